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
	path, err := os.MkdirTemp(root, fmt.Sprintf("%s%d-", workPrefix, os.Getpid()))
	if err != nil {
		return nil, env("make a work folder", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		os.RemoveAll(path)
		return nil, env("lock a work folder", err)
	}
	return &workDir{path, lock}, nil
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
