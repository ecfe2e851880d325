package kernel

import (
	"fmt"
	"io"
	"math"
)

// Bits of a cpio entry's mode that say what it is (the values of stat(2)).
const (
	modeDir     = 0o040000
	modeFile    = 0o100000
	modeSymlink = 0o120000
	modeChar    = 0o020000
)

// cpioEntry is one entry of an archive. All belong to root and are from 1970, so that equal content makes equal archives.
type cpioEntry struct {
	name         string // without leading slash
	mode         uint32
	major, minor uint32 // of a device
	size         int64
	data         io.Reader // nil if size is 0
}

// cpioWriter writes the newc format that the kernel unpacks (init/initramfs.c, Documentation/driver-api/early-userspace/buffer-format.rst).
type cpioWriter struct {
	w     io.Writer
	inode uint32
	pos   int64
}

// add writes one entry.
func (c *cpioWriter) add(e cpioEntry) error {
	if e.size > math.MaxUint32 {
		return fmt.Errorf("cpio: %s: %d bytes are more than the format can hold", e.name, e.size)
	}
	c.inode++
	links := 1
	if e.mode&0o170000 == modeDir {
		links = 2
	}
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		c.inode, e.mode, 0, 0, links, 0, e.size, 0, 0, e.major, e.minor, len(e.name)+1, 0, e.name)
	if err := c.write([]byte(header)); err != nil {
		return err
	}
	if err := c.pad(); err != nil {
		return err
	}
	if e.size > 0 {
		n, err := io.Copy(c.w, io.LimitReader(e.data, e.size))
		c.pos += n
		if err != nil {
			return fmt.Errorf("cpio: %s: %w", e.name, err)
		}
		if n != e.size {
			return fmt.Errorf("cpio: %s: %d bytes instead of %d: it shrank while it was read", e.name, n, e.size)
		}
	}
	return c.pad()
}

// close writes the trailer.
func (c *cpioWriter) close() error {
	c.inode = math.MaxUint32 // add makes it 0
	return c.add(cpioEntry{name: "TRAILER!!!"})
}

// pad fills up to a multiple of four bytes.
func (c *cpioWriter) pad() error {
	return c.write(make([]byte, -c.pos&3))
}

func (c *cpioWriter) write(b []byte) error {
	n, err := c.w.Write(b)
	c.pos += int64(n)
	if err != nil {
		return fmt.Errorf("cpio: %w", err)
	}
	return nil
}
