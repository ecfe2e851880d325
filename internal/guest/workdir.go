package guest

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const workPrefix = "nlfuzz-guest-"

// workDir is a folder of one guest. It holds a locked file as long as its owner lives: so a folder that a killed nlfuzz left behind can be told from one in use.
type workDir struct {
	path string
	lock *os.File
}

func newWorkDir(root string) (*workDir, error) {
	if root == "" {
		root = os.TempDir()
	}
	var err error
	for range 5 {
		var path string
		if path, err = os.MkdirTemp(root, fmt.Sprintf("%s%d-", workPrefix, os.Getpid())); err != nil {
			return nil, env("make a work folder", err)
		}
		var lock *os.File
		if lock, err = lockIn(path); err == nil {
			return &workDir{path, lock}, nil
		}
		os.RemoveAll(path)
	}
	return nil, env("lock a work folder", err)
}

// lockIn makes and locks the lock file of a new folder. It fails if the CleanStale of another process took the folder for a stale one in between.
func lockIn(path string) (*os.File, error) {
	name := filepath.Join(path, "lock")
	lock, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		if _, err = os.Stat(name); err == nil {
			return lock, nil
		}
	}
	lock.Close()
	return nil, err
}

func (d *workDir) remove() error {
	err := os.RemoveAll(d.path)
	d.lock.Close()
	return err
}

// CleanStale removes the work folders below root (empty: the folder for temporary files) whose owners were killed.
func CleanStale(root string) {
	if root == "" {
		root = os.TempDir()
	}
	found, _ := filepath.Glob(filepath.Join(root, workPrefix+"*"))
	for _, path := range found {
		lock, err := os.Open(filepath.Join(path, "lock"))
		if err != nil {
			continue // being made or removed right now
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			os.RemoveAll(path)
		}
		lock.Close()
	}
}
