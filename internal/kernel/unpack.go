package kernel

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// unpackDeb unpacks the files of a package below dir, without root and without leaving dir. Only names that keep wants are written; place says
// under which name. Both see a clean name without leading slash.
func unpackDeb(ctx context.Context, deb, dir string, keep func(name string) bool, place func(name string) string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("unpack %s: dpkg-deb: %w", filepath.Base(deb), err)
	}
	unpackErr := unpackTar(out, root, keep, place)
	if unpackErr != nil {
		cancel() // dpkg-deb may be waiting to write
	}
	waitErr := cmd.Wait()
	if unpackErr != nil && !errors.Is(unpackErr, io.ErrUnexpectedEOF) {
		return diskError("unpack "+filepath.Base(deb), unpackErr)
	}
	if waitErr != nil {
		return fmt.Errorf("unpack %s: dpkg-deb: %s: %w", filepath.Base(deb), firstLine(stderr.String()), waitErr)
	}
	return diskError("unpack "+filepath.Base(deb), unpackErr)
}

func unpackTar(r io.Reader, root *os.Root, keep func(string) bool, place func(string) string) error {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, r) // the padding, so that the writer can end
			return err
		}
		if err != nil {
			return err
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "/"))
		if name == "." || !keep(name) {
			continue
		}
		if err := unpackEntry(archive, h, root, place(name), place); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

func unpackEntry(r io.Reader, h *tar.Header, root *os.Root, name string, place func(string) string) error {
	mode := fs.FileMode(h.Mode & 0o777)
	if h.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, mode|0o700)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Chmod(mode), f.Close())
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(place(path.Clean(strings.TrimPrefix(h.Linkname, "/"))), name)
	default:
		return fmt.Errorf("entry of type %q", h.Typeflag)
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
