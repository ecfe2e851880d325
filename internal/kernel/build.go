package kernel

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// guestConfig is what a guest needs, on top of `make tinyconfig`.
//
//go:embed build/guest.config
var guestConfig []byte

// The names of builds, which are also the specs to resolve them by.
const (
	BuildPlanted = "planted" // with the planted faults
	BuildPlain   = "built"   // without
)

// buildTimeout limits a whole build; on two busy cores it took half an hour.
const buildTimeout = 2 * time.Hour

// buildSpace is what the unpacked source and the objects of a build need: 3.2 GB were seen.
const buildSpace = 4 << 30

// Patch is a unified diff for a kernel source, applied with `patch -p1`.
type Patch struct {
	Name string // for messages
	Text []byte
}

// BuildOptions say which kernel is built from Debian's source package.
type BuildOptions struct {
	Options
	Name    string   // BuildPlanted or BuildPlain
	Series  string   // such as "7.3"
	Source  string   // folder of an unpacked pristine source; empty: Debian's linux-source-SERIES is pulled
	Patches []Patch  // applied in this order
	Configs []string // fragments on top of the one that every guest needs
	Jobs    int      // of make; 0: one for each CPU
}

var seriesForm = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)

// Build makes a kernel for guests from source and keeps it in the cache, from where Resolve finds it as `NAME:SERIES`. What is built already from the
// same patches and configuration is returned at once, unless Refresh is set.
func Build(ctx context.Context, opts BuildOptions) (*Image, error) {
	img, err := build(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("build kernel %s:%s: %w", opts.Name, opts.Series, err)
	}
	return img, nil
}

func build(ctx context.Context, opts BuildOptions) (*Image, error) {
	switch {
	case opts.Name != BuildPlanted && opts.Name != BuildPlain:
		return nil, fmt.Errorf("want a name out of %s and %s", BuildPlanted, BuildPlain)
	case !seriesForm.MatchString(opts.Series):
		return nil, errors.New("want a series such as 7.3")
	case opts.Jobs < 0:
		return nil, fmt.Errorf("%d jobs: want at least 1", opts.Jobs)
	}
	cache, err := opts.cacheDir()
	if err != nil {
		return nil, err
	}
	if img := opts.current(cache); img != nil {
		return img, nil
	}
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	if err := needTools(ctx); err != nil {
		return nil, err
	}
	// Not the cache's own lock: pulls need not wait for a build.
	dir := filepath.Join(cache, "build")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, diskError("make the folder of builds", err)
	}
	unlock, err := lock(ctx, dir, opts.Options)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if img := opts.current(cache); img != nil {
		return img, nil // built by another process in the meantime
	}
	work, err := workTree(dir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	source, err := opts.source(ctx, cache, work)
	if err != nil {
		return nil, err
	}
	tree := filepath.Join(work, "tree")
	if err := opts.prepare(ctx, tree); err != nil {
		return nil, err
	}
	if err := opts.compile(ctx, tree, filepath.Join(dir, opts.Name+"-"+opts.Series+".log")); err != nil {
		return nil, err
	}
	return opts.store(ctx, cache, tree, source)
}

// current is the image in the cache that is what would be built, or nil.
func (o *BuildOptions) current(cache string) *Image {
	if o.Refresh {
		return nil
	}
	for _, img := range builds(cache, o.Name, o.Series) {
		if img.BuildKey == o.key(img.Version) {
			return img
		}
	}
	return nil
}

// key is the checksum of everything that a build from this version of the source is made of.
func (o *BuildOptions) key(version string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n%q\n", version, o.config())
	for _, p := range o.Patches {
		fmt.Fprintf(h, "%q\n", p.Text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// config is the whole fragment. The release is marked, so that a report of this kernel is not taken for one of Debian's.
func (o *BuildOptions) config() string {
	return string(guestConfig) + "\n" + strings.Join(o.Configs, "\n") + "\nCONFIG_LOCALVERSION=\"-" + o.Name + "\"\nCONFIG_LOCALVERSION_AUTO=n\n"
}

// buildTools are the programs that a build calls, each with the Debian package that has it.
var buildTools = [][2]string{
	{"make", "make"}, {"gcc", "gcc"}, {"ld", "binutils"}, {"flex", "flex"}, {"bison", "bison"}, {"bc", "bc"}, {"perl", "perl"},
	{"pahole", "pahole"}, {"patch", "patch"}, {"tar", "tar"}, {"xz", "xz-utils"},
}

// needTools names all that is missing, so that one installation mends it.
func needTools(ctx context.Context) error {
	var missing []string
	for _, tool := range buildTools {
		if _, err := exec.LookPath(tool[0]); err != nil {
			missing = append(missing, tool[1])
		}
	}
	if !slices.Contains(missing, "gcc") {
		for _, header := range [][2]string{{"stdio.h", "libc6-dev"}, {"libelf.h", "libelf-dev"}} {
			cmd := exec.CommandContext(ctx, "gcc", "-E", "-x", "c", "-o", "/dev/null", "-")
			cmd.Stdin = strings.NewReader("#include <" + header[0] + ">\n")
			if cmd.Run() != nil && ctx.Err() == nil {
				missing = append(missing, header[1])
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("tools are missing; run: apt-get install %s", strings.Join(missing, " "))
	}
	return ctx.Err()
}

// workTree makes the folder in which everything happens and removes those of builds that were killed. The caller holds the lock.
func workTree(dir string) (string, error) {
	stale, _ := filepath.Glob(filepath.Join(globEscape(dir), temporary+"*"))
	for _, old := range stale {
		if err := os.RemoveAll(old); err != nil {
			return "", fmt.Errorf("remove a build that was cut off: %w", err)
		}
	}
	if err := needSpace(dir, buildSpace); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(dir, temporary)
	return work, diskError("make the work tree", err)
}

// source fills the folder tree in work and says which package that is.
func (o *BuildOptions) source(ctx context.Context, cache, work string) (Package, error) {
	tree := filepath.Join(work, "tree")
	if o.Source == "" {
		return o.pullSource(ctx, cache, work)
	}
	version, err := sourceVersion(o.Source)
	if err != nil {
		return Package{}, err
	}
	if series(version) != o.Series {
		return Package{}, fmt.Errorf("source %s is %s, not %s", o.Source, version, o.Series)
	}
	o.progress("copying %s (%s)", o.Source, version)
	from, err := filepath.Abs(o.Source)
	if err != nil {
		return Package{}, fmt.Errorf("source %s: %w", o.Source, err)
	}
	_, err = runTool(ctx, work, nil, "cp", "-a", "--", from, tree)
	return Package{Name: "linux-source-" + o.Series, Version: version}, err
}

// sourceVersion reads what `make kernelversion` would say.
func sourceVersion(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "Makefile"))
	if err != nil {
		return "", fmt.Errorf("not a kernel source: %w", err)
	}
	var parts [3]string
	for i, key := range []string{"VERSION", "PATCHLEVEL", "SUBLEVEL"} {
		m := regexp.MustCompile(`(?m)^` + key + ` *= *([0-9]+) *$`).FindSubmatch(text)
		if m == nil {
			return "", fmt.Errorf("source %s: not a kernel source: its Makefile has no %s", dir, key)
		}
		parts[i] = string(m[1])
	}
	return strings.Join(parts[:], "."), nil
}

// pullSource pulls and unpacks the newest linux-source package of the series.
func (o *BuildOptions) pullSource(ctx context.Context, cache, work string) (Package, error) {
	deb, err := o.downloadSource(ctx, cache, work)
	if err != nil {
		return Package{}, err
	}
	o.progress("unpacking %s %s", deb.Name, deb.Version)
	files, err := filepath.Glob(filepath.Join(globEscape(work), "*.deb"))
	if err != nil || len(files) != 1 {
		return Package{}, fmt.Errorf("apt-get download left %d files for one package", len(files))
	}
	archive := "usr/src/" + deb.Name + ".tar.xz"
	err = unpackDeb(ctx, files[0], work, func(name string) bool { return name == archive }, func(string) string { return "source.tar.xz" })
	if err != nil {
		return Package{}, err
	}
	if err := os.Remove(files[0]); err != nil {
		return Package{}, fmt.Errorf("remove the download: %w", err)
	}
	if err := os.Mkdir(filepath.Join(work, "tree"), 0o755); err != nil {
		return Package{}, diskError("unpack the source", err)
	}
	if _, err := runTool(ctx, work, nil, "tar", "-xJf", "source.tar.xz", "-C", "tree", "--strip-components=1"); err != nil {
		return Package{}, fmt.Errorf("unpack %s: %w", archive, err)
	}
	if err := os.Remove(filepath.Join(work, "source.tar.xz")); err != nil {
		return Package{}, fmt.Errorf("remove the archive: %w", err)
	}
	return deb, nil
}

func (o *BuildOptions) downloadSource(ctx context.Context, cache, work string) (Package, error) {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	unlock, err := lock(ctx, cache, o.Options)
	if err != nil {
		return Package{}, err
	}
	defer unlock()
	a, err := newApt(ctx, filepath.Join(cache, "apt"), func(line string) { o.progress("%s", line) })
	if err != nil {
		return Package{}, err
	}
	name := "linux-source-" + o.Series
	trouble, err := a.update(ctx, likelySuites(o.Series))
	if err != nil {
		return Package{}, err
	}
	stanzas, err := a.show(ctx, name, func(n string) bool { return n == name })
	if err != nil {
		return Package{}, cmp.Or(trouble, err)
	}
	found, ok := newest(stanzas)
	if !ok && trouble != nil {
		return Package{}, trouble
	}
	if !ok {
		return Package{}, fmt.Errorf("%s is not in the archive (any more); give an unpacked source of %s with --source", name, o.Series)
	}
	o.progress("pulling %s %s (%.0f MB)", found.Name, found.Version, float64(found.Size)/1e6)
	return found, a.download(ctx, work, []Package{found})
}

// newest is the package with the highest version.
func newest(stanzas []map[string]string) (best Package, ok bool) {
	for _, s := range stanzas {
		if p := parsePackage(s); !ok || compareVersions(p.Version, best.Version) > 0 {
			best, ok = p, true
		}
	}
	return best, ok
}

// prepare patches and configures the tree.
func (o *BuildOptions) prepare(ctx context.Context, tree string) error {
	for _, p := range o.Patches {
		o.progress("applying %s", p.Name)
		out, err := runTool(ctx, tree, p.Text, "patch", "-p1", "--batch", "--forward")
		if err != nil {
			return fmt.Errorf("patch %s does not apply to this source: %w: %s", p.Name, err, refused(out))
		}
	}
	if err := os.WriteFile(filepath.Join(tree, "nlfuzz.config"), []byte(o.config()), 0o644); err != nil {
		return diskError("write the configuration", err)
	}
	o.progress("configuring")
	for _, command := range [][]string{
		{"make", "tinyconfig"},
		{"scripts/kconfig/merge_config.sh", "-m", ".config", "nlfuzz.config"},
		{"make", "olddefconfig"},
	} {
		if out, err := runTool(ctx, tree, nil, command[0], command[1:]...); err != nil {
			return fmt.Errorf("configure: %s: %w: %s", strings.Join(command, " "), err, lastLine(out))
		}
	}
	got, err := os.ReadFile(filepath.Join(tree, ".config"))
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	if missing := missingSymbols(o.config(), string(got)); len(missing) > 0 {
		return fmt.Errorf("configure: this source does not take %s", strings.Join(missing, ", "))
	}
	return nil
}

// missingSymbols are the lines `CONFIG_X=value` of wanted that a complete configuration does not fulfil; the last line of a symbol counts.
func missingSymbols(wanted, got string) []string {
	set := map[string]string{}
	for line := range strings.Lines(got) {
		if symbol, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(symbol, "CONFIG_") {
			set[symbol] = value
		}
	}
	want, order := map[string]string{}, []string(nil)
	for line := range strings.Lines(wanted) {
		if symbol, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(symbol, "CONFIG_") {
			if _, seen := want[symbol]; !seen {
				order = append(order, symbol)
			}
			want[symbol] = value
		}
	}
	var missing []string
	for _, symbol := range order {
		if cmp.Or(set[symbol], "n") != want[symbol] {
			missing = append(missing, symbol+"="+want[symbol])
		}
	}
	return missing
}

// refused is the line in which `patch` says what it could not do.
func refused(out string) string {
	file := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "patching file ") {
			file = strings.TrimPrefix(line, "patching file ")
		}
		if strings.Contains(line, "FAILED") || strings.HasPrefix(line, "can't find file") || strings.HasPrefix(line, "Reversed") || strings.Contains(line, "****") {
			return strings.TrimPrefix(file+": "+line, ": ")
		}
	}
	return lastLine(out)
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// runTool runs a short command in dir and returns all that it printed. A build ends with its whole process group: make does not tell its children.
func runTool(ctx context.Context, dir string, stdin []byte, name string, args ...string) (string, error) {
	cmd := buildCommand(ctx, dir, name, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		return out.String(), context.Cause(ctx)
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %w", name, err)
	}
	return out.String(), nil
}

// buildCommand has an environment in which the same source makes the same kernel, whoever builds it.
func buildCommand(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	// What a make above left in the environment must not reach this one.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") || strings.HasPrefix(v, "KBUILD_") || strings.HasPrefix(v, "KCONFIG_") ||
			strings.HasPrefix(v, "ARCH=") || strings.HasPrefix(v, "CROSS_COMPILE=") || strings.HasPrefix(v, "LOCALVERSION=")
	})
	cmd.Env = append(cmd.Env, "LC_ALL=C", "ARCH=x86_64", "KBUILD_BUILD_USER=nlfuzz", "KBUILD_BUILD_HOST=nlfuzz", "KBUILD_BUILD_TIMESTAMP=1970-01-01 UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// compile runs the build proper: minutes, so it says now and then that it lives.
func (o *BuildOptions) compile(ctx context.Context, tree, logPath string) error {
	log, err := newBuildLog(logPath)
	if err != nil {
		return err
	}
	defer log.Close()
	jobs := cmp.Or(o.Jobs, runtime.NumCPU())
	o.progress("compiling with %d jobs, 20 to 30 minutes on two cores; log: %s", jobs, logPath)
	cmd := buildCommand(ctx, tree, "make", fmt.Sprintf("-j%d", jobs), "bzImage")
	cmd.Stdout, cmd.Stderr = log, log
	stop := log.report(o.Options, tree)
	err = cmd.Run()
	stop()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		for _, line := range log.tail() {
			o.progress("  %s", line)
		}
		return fmt.Errorf("make bzImage: %w; the log is %s", err, logPath)
	}
	return nil
}

// store puts the image into the cache and removes earlier builds of the same name and series.
func (o *BuildOptions) store(ctx context.Context, cache, tree string, source Package) (*Image, error) {
	unlock, err := lock(ctx, cache, o.Options)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old := builds(cache, o.Name, o.Series)
	parent, name := filepath.Join(cache, "kernels"), o.Name+"_"+source.Version
	err = makeDir(parent, name, func(dir string) error {
		img := &Image{Spec: o.Name + ":" + o.Series, Kernel: filepath.Join(dir, "bzImage"), Package: source.Name, Version: source.Version,
			Build: o.Name, BuildKey: o.key(source.Version), Packages: []Package{source}}
		for from, to := range map[string]string{"arch/x86/boot/bzImage": "bzImage", ".config": "config"} {
			text, err := os.ReadFile(filepath.Join(tree, from))
			if err != nil {
				return fmt.Errorf("make bzImage left no image: %w", err)
			}
			if err := os.WriteFile(filepath.Join(dir, to), text, 0o644); err != nil {
				return diskError("store the image", err)
			}
		}
		if img.Release, err = releaseOf(img.Kernel); err != nil {
			return err
		}
		if img.SHA256, err = hashFile(img.Kernel); err != nil {
			return err
		}
		return writeManifest(dir, img)
	})
	if err != nil {
		return nil, err
	}
	for _, img := range old {
		if dir := filepath.Dir(img.Kernel); filepath.Base(dir) != name {
			if err := os.RemoveAll(dir); err != nil {
				return nil, fmt.Errorf("remove an earlier build: %w", err)
			}
		}
	}
	return readManifest(filepath.Join(parent, name))
}
