package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// manifestName is the file that makes a folder a pulled image. Its paths are relative to the folder.
const manifestName = "manifest.json"

// temporary starts the name of a folder that is being filled; it is renamed when complete, so one that is met without the lock held is dead.
const temporary = ".tmp-"

func (o Options) progress(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// CacheDir is the absolute folder of pulled things: dir, or if that is empty $NLFUZZ_CACHE, $XDG_CACHE_HOME/nlfuzz or ~/.cache/nlfuzz. It need
// not exist yet.
func CacheDir(dir string) (string, error) {
	if dir == "" {
		dir = os.Getenv("NLFUZZ_CACHE")
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("cache folder: %w; set NLFUZZ_CACHE", err)
		}
		dir = filepath.Join(base, "nlfuzz")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	return dir, nil
}

// cacheDir is the folder of pulled things, made if it must be.
func (o Options) cacheDir() (string, error) {
	dir, err := CacheDir(o.Cache)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", diskError("cache folder", err)
	}
	return dir, nil
}

// lock keeps other processes from pulling into the same cache until unlock is called.
func lock(ctx context.Context, dir string, opts Options) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, diskError("lock the cache", err)
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for told := false; ; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { f.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		case !told:
			opts.progress("another process pulls into %s: waiting for it", dir)
			told = true
		}
		// There is no event for a released flock that can be waited for together with the context.
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s, which another process holds: %w", f.Name(), context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// makeDir fills a new folder in parent by fill and gives it its name only when fill succeeded. The caller holds the lock.
func makeDir(parent, name string, fill func(dir string) error) error {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return diskError("cache folder", err)
	}
	stale, _ := filepath.Glob(filepath.Join(parent, temporary+"*"))
	for _, dir := range stale {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove a pull that was cut off: %w", err)
		}
	}
	dir, err := os.MkdirTemp(parent, temporary)
	if err != nil {
		return diskError("cache folder", err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("cache folder: %w", err)
	}
	if err := fill(dir); err != nil {
		return err
	}
	// The rename must not reach the disk before the content.
	if f, err := os.Open(dir); err == nil {
		err = unix.Syncfs(int(f.Fd()))
		f.Close()
		if err != nil {
			return diskError("write a pulled image to disk", err)
		}
	}
	final := filepath.Join(parent, name)
	if err := os.RemoveAll(final); err != nil {
		return fmt.Errorf("replace a pulled image: %w", err)
	}
	if err := os.Rename(dir, final); err != nil {
		return fmt.Errorf("complete a pulled image: %w", err)
	}
	return nil
}

// writeManifest stores the image's description in its folder.
func writeManifest(dir string, img *Image) error {
	rel := *img
	var err error
	if rel.Kernel, err = filepath.Rel(dir, img.Kernel); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if img.ModuleDir != "" {
		if rel.ModuleDir, err = filepath.Rel(dir, img.ModuleDir); err != nil {
			return fmt.Errorf("manifest: %w", err)
		}
	}
	text, err := json.MarshalIndent(rel, "", "\t")
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	return diskError("write the manifest", os.WriteFile(filepath.Join(dir, manifestName), append(text, '\n'), 0o644))
}

// readManifest reads the description of a pulled image and checks that the kernel file is still the one that was pulled.
func readManifest(dir string) (*Image, error) {
	text, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	img := new(Image)
	if err := json.Unmarshal(text, img); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, manifestName), err)
	}
	img.Kernel = filepath.Join(dir, img.Kernel)
	if img.ModuleDir != "" {
		img.ModuleDir = filepath.Join(dir, img.ModuleDir)
	}
	sum, err := hashFile(img.Kernel)
	if err != nil {
		return nil, err
	}
	if sum != img.SHA256 {
		return nil, fmt.Errorf("%s: the checksum is not that of its manifest", img.Kernel)
	}
	return img, nil
}

// pulled returns the complete images in the cache that match `debian:want` (all if want is empty), the newest first. Damaged ones are left out, so
// that they are pulled again.
func pulled(cache, want string) []*Image { return kept(cache, "", want) }

// builds returns those that Build made under a name, likewise.
func builds(cache, name, want string) []*Image { return kept(cache, name, want) }

func kept(cache, build, want string) []*Image {
	entries, _ := os.ReadDir(filepath.Join(cache, "kernels"))
	var all []*Image
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), temporary) {
			continue
		}
		img, err := readManifest(filepath.Join(cache, "kernels", e.Name()))
		if err == nil && img.Build == build && (want == "" || matches(img.Version, want)) {
			all = append(all, img)
		}
	}
	slices.SortStableFunc(all, func(a, b *Image) int { return compareVersions(b.Version, a.Version) })
	return all
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func isDiskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, errDiskFull)
}

// needSpace refuses early when the disk cannot take what is to be pulled.
func needSpace(dir string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return fmt.Errorf("%s: %w: %d MB are free, %d MB are needed", dir, errDiskFull, free>>20, need>>20)
	}
	return nil
}
