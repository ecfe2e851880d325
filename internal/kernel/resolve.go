package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Resolve finds the kernel that spec names and pulls it if it must. A spec is `debian:7.3` (the newest 7.3.x that the archive has), an exact
// `debian:6.1.192` or `debian:6.1.192-3`, `planted:7.3` or `built:7.3` for what Build made, the path of a bzImage or vmlinux, the folder of a built
// kernel tree, or a folder with an unpacked package. What is in the cache is used without asking the archive.
func Resolve(ctx context.Context, spec string, opts Options) (*Image, error) {
	var img *Image
	var err error
	switch source, want, _ := strings.Cut(spec, ":"); source {
	case "debian":
		img, err = resolveDebian(ctx, want, opts)
	case BuildPlanted, BuildPlain:
		img, err = resolveBuild(source, want, opts)
	default:
		img, err = fromPath(spec)
	}
	if err != nil {
		return nil, err
	}
	img.Spec = spec
	return img, nil
}

// resolveBuild finds a kernel that Build made.
func resolveBuild(name, want string, opts Options) (*Image, error) {
	cache, err := CacheDir(opts.Cache)
	if err != nil {
		return nil, err
	}
	if found := builds(cache, name, want); want != "" && len(found) > 0 {
		return found[0], nil
	}
	command := "nlfuzz kernel build"
	if name == BuildPlanted {
		command += " --faults"
	}
	return nil, fmt.Errorf("kernel %s:%s is not built; run: %s", name, want, command)
}

// fromPath describes a kernel of the local file system.
func fromPath(spec string) (*Image, error) {
	info, err := os.Stat(spec)
	if errors.Is(err, fs.ErrNotExist) && wantForm.MatchString(spec) {
		return nil, fmt.Errorf("kernel %s: no such file; did you mean debian:%s?", spec, spec)
	}
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w; want debian:VERSION, a bzImage or vmlinux, or the folder of a built tree", spec, err)
	}
	path, err := filepath.Abs(spec)
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", spec, err)
	}
	if info.IsDir() {
		if img, err := readManifest(path); err == nil {
			return img, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("kernel %s: %w", spec, err)
		}
		return fromDir(path)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("kernel %s: neither a file nor a folder", spec)
	}
	return fromFile(path)
}

// fromDir describes the kernel in a built tree, an unpacked package, or a folder of /lib/modules. An unpacked package must hold one kernel only.
func fromDir(dir string) (*Image, error) {
	for _, name := range []string{"arch/x86/boot/bzImage", "vmlinux", "vmlinuz", "bzImage"} {
		// A built tree has a symbolic link in arch/x86_64; both lead here.
		if isFile(filepath.Join(dir, name)) {
			return fromFile(filepath.Join(dir, name))
		}
	}
	var found []string
	for _, pattern := range []string{"boot/vmlinu[xz]-*", "usr/lib/modules/*/vmlinuz", "lib/modules/*/vmlinuz"} {
		paths, err := filepath.Glob(filepath.Join(globEscape(dir), pattern))
		if err != nil {
			return nil, fmt.Errorf("kernel %s: %w", dir, err)
		}
		found = append(found, paths...)
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("kernel %s: no kernel in this folder: looked for arch/x86/boot/bzImage, vmlinux, vmlinuz, boot/vmlinuz-* and lib/modules/*/vmlinuz", dir)
	case 1:
		return fromFile(found[0])
	default:
		return nil, fmt.Errorf("kernel %s: more than one kernel: give one of %s", dir, strings.Join(found, ", "))
	}
}

// fromFile describes a kernel file and finds the modules that belong to it by where it lies.
func fromFile(path string) (*Image, error) {
	release, err := releaseOf(path)
	if err != nil {
		return nil, fmt.Errorf("kernel %w", err)
	}
	sum, err := hashFile(path)
	if err != nil {
		return nil, fmt.Errorf("kernel %w", err)
	}
	return &Image{Spec: path, Release: release, SHA256: sum, Kernel: path, ModuleDir: moduleDir(path, release)}, nil
}

// moduleDir guesses where the modules of a kernel file lie; empty if nowhere.
func moduleDir(path, release string) string {
	dir := filepath.Dir(path)
	choices := []string{
		dir,                            // lib/modules/RELEASE/vmlinuz, or vmlinux in a built tree
		filepath.Join(dir, "../../.."), // arch/x86/boot/bzImage in a built tree
		filepath.Join(dir, "../lib/modules", release), // boot/vmlinuz-RELEASE
		filepath.Join(dir, "../usr/lib/modules", release),
		filepath.Join(dir, "lib/modules", release), // beside a file and its modules installed with INSTALL_MOD_PATH
	}
	i := slices.IndexFunc(choices, func(dir string) bool {
		return isFile(filepath.Join(dir, "modules.order")) || isFile(filepath.Join(dir, "modules.builtin")) ||
			(filepath.Base(dir) == release && isDir(filepath.Join(dir, "kernel")))
	})
	if i < 0 {
		return ""
	}
	return choices[i]
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// globEscape keeps the signs of a folder's name from being read as a pattern.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
