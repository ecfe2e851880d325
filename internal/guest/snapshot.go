package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/nlfuzz/nlfuzz/internal/kernel"
)

// snapshotsKept bounds the cache: some 100 MB each.
const snapshotsKept = 6

// snapshotLeast is less than any guest takes.
const snapshotLeast = 1 << 20

// cached returns the snapshot that fits this guest, empty if there is none.
func (g *Guest) cached() (string, error) {
	path, err := g.snapshotPath()
	if err != nil {
		return "", err
	}
	// QEMU waits for ever for the header of an empty one, which a machine that lost its power leaves behind.
	if fi, err := os.Stat(path); err != nil || fi.Size() < snapshotLeast {
		return "", nil
	}
	now := time.Now()
	os.Chtimes(path, now, now) // it is in use: not the one to go
	return path, nil
}

// snapshotPath names a snapshot by everything that it depends on.
func (g *Guest) snapshotPath() (string, error) {
	h := sha256.New()
	for _, path := range []string{g.mc.kernel, g.mc.initrd} {
		f, err := os.Open(path)
		if err != nil {
			return "", env("read "+path, err)
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", env("read "+path, err)
		}
	}
	version, err := exec.Command(qemuName, "--version").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", &EnvError{qemuName + " not found", "install it: apt-get install qemu-system-x86"}
	}
	fmt.Fprintf(h, "%s|%s|%d|%d|%t", version, g.mc.cmdline, g.mc.memory, g.mc.cpus, g.mc.kvm)
	cache, err := kernel.CacheDir("")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "snapshots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", env("make the cache", err)
	}
	return filepath.Join(dir, hex.EncodeToString(h.Sum(nil))[:32]), nil
}

// link makes a snapshot of the cache the one that this guest resets to. A hard link stays good when the cache drops it.
func (g *Guest) link(snap string) error {
	own := filepath.Join(g.work.path, "snapshot")
	if os.Link(snap, own) == nil {
		return nil
	}
	return copyFile(snap, own) // the cache is on another file system
}

// keep makes a saved snapshot this guest's own and puts it into the cache, from which the oldest go.
func (g *Guest) keep(saved string) error {
	own := filepath.Join(g.work.path, "snapshot")
	if err := os.Rename(saved, own); err != nil {
		return err
	}
	path, err := g.snapshotPath()
	if err != nil {
		return err
	}
	if fi, err := os.Stat(path); err == nil && fi.Size() < snapshotLeast {
		os.Remove(path)
	}
	if os.Link(own, path) != nil {
		tmp := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
		err := copyFile(own, tmp)
		if err == nil {
			err = os.Rename(tmp, path)
		}
		if err != nil {
			os.Remove(tmp)
			return nil // the cache only saves time: without it every start boots
		}
	}
	all, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	age := func(p string) time.Time {
		fi, err := os.Stat(p)
		if err != nil {
			return time.Time{}
		}
		return fi.ModTime()
	}
	slices.SortFunc(all, func(a, b string) int { return age(b).Compare(age(a)) })
	for _, old := range all[min(len(all), snapshotsKept):] {
		os.Remove(old)
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
