package kernel

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// InitramfsSpec is what an initramfs shall hold.
type InitramfsSpec struct {
	Init    string   // path of a static binary, which becomes /init
	Image   *Image   // where the modules come from; nil: no modules
	Modules []string // names to load with what they depend on; nil: DefaultModules
	Files   []File   // further files
	Trees   []Tree   // further folders, for instance that of Userland
}

// File is one file in the initramfs, with its content in memory.
type File struct {
	Path string // absolute in the guest
	Mode uint32 // permission bits; 0 means 0644
	Data []byte
}

// Tree is a folder of the host that appears in the initramfs with its links and modes.
type Tree struct {
	Dir string // on the host
	At  string // in the guest; empty means /
}

// ModuleList is the file in the initramfs that names the module files to load, one a line, in order.
const ModuleList = "/modules.list"

// Initramfs writes an uncompressed newc archive: /init, the usual folders, /dev/console, the modules as /modules/NN-name.ko with their order in
// ModuleList, and the extra files and trees. It returns what there is to load. Equal input makes equal archives.
func Initramfs(w io.Writer, spec InitramfsSpec) (*LoadPlan, error) {
	plan := &LoadPlan{}
	if spec.Image != nil {
		names := spec.Modules
		if names == nil {
			names = DefaultModules
		}
		var err error
		if plan, err = spec.Image.Plan(names); err != nil {
			return nil, fmt.Errorf("initramfs: %w", err)
		}
	}
	buffered := bufio.NewWriterSize(w, 1<<20)
	b := &builder{cpio: cpioWriter{w: buffered}, have: map[string]uint32{}}
	if err := b.build(spec, plan); err != nil {
		return nil, fmt.Errorf("initramfs: %w", err)
	}
	if err := buffered.Flush(); err != nil {
		return nil, fmt.Errorf("initramfs: %w", err)
	}
	return plan, nil
}

// builder writes entries and remembers their modes, so that folders are made once and before what they hold.
type builder struct {
	cpio cpioWriter
	have map[string]uint32
}

func (b *builder) build(spec InitramfsSpec, plan *LoadPlan) error {
	// Trees come first: they may have symbolic links where files would otherwise make folders.
	for _, tree := range spec.Trees {
		if err := b.tree(tree); err != nil {
			return err
		}
	}
	for _, dir := range []string{"dev", "proc", "sys", "run", "root"} {
		if err := b.dir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := b.dir("tmp", 0o1777); err != nil {
		return err
	}
	// The kernel opens it for init's standard streams (console_on_rootfs).
	if err := b.add(cpioEntry{name: "dev/console", mode: modeChar | 0o600, major: 5, minor: 1}); err != nil {
		return err
	}
	var list strings.Builder
	for i, m := range plan.Modules {
		name := fmt.Sprintf("/modules/%02d-%s.ko", i, m.Name)
		if err := b.file(File{Path: name, Data: m.object}); err != nil {
			return err
		}
		fmt.Fprintln(&list, name)
	}
	if err := b.file(File{Path: ModuleList, Data: []byte(list.String())}); err != nil {
		return err
	}
	for _, f := range spec.Files {
		if err := b.file(f); err != nil {
			return err
		}
	}
	if err := b.hostFile("init", spec.Init, 0o755); err != nil {
		return err
	}
	return b.cpio.close()
}

// add writes an entry after the folders that it needs.
func (b *builder) add(e cpioEntry) error {
	if e.name == "" || !fs.ValidPath(e.name) {
		return fmt.Errorf("%q is no path in the guest", e.name)
	}
	if _, ok := b.have[e.name]; ok {
		return fmt.Errorf("/%s is there twice", e.name)
	}
	if err := b.parents(e.name); err != nil {
		return err
	}
	b.have[e.name] = e.mode
	return b.cpio.add(e)
}

// parents makes the folders above name that are not there yet.
func (b *builder) parents(name string) error {
	parent := path.Dir(name)
	if parent == "." {
		return nil
	}
	if mode, ok := b.have[parent]; ok {
		if kind := mode & 0o170000; kind != modeDir && kind != modeSymlink {
			return fmt.Errorf("/%s is a file, so it cannot hold /%s", parent, name)
		}
		return nil
	}
	return b.dir(parent, 0o755)
}

// dir makes a folder unless it is there.
func (b *builder) dir(name string, mode uint32) error {
	if _, ok := b.have[name]; ok {
		return nil
	}
	return b.add(cpioEntry{name: name, mode: modeDir | mode})
}

func (b *builder) file(f File) error {
	mode := f.Mode
	if mode == 0 {
		mode = 0o644
	}
	name := strings.TrimPrefix(path.Clean(f.Path), "/")
	return b.add(cpioEntry{name: name, mode: modeFile | mode&0o7777, size: int64(len(f.Data)), data: bytes.NewReader(f.Data)})
}

// hostFile copies a regular file of the host.
func (b *builder) hostFile(name, from string, mode uint32) error {
	f, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("/%s: %w", name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("/%s: %w", name, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("/%s: %s is not a file", name, from)
	}
	return b.add(cpioEntry{name: name, mode: modeFile | mode, size: info.Size(), data: f})
}

// tree copies a folder of the host with its symbolic links and modes.
func (b *builder) tree(t Tree) error {
	at := strings.Trim(path.Clean("/"+t.At), "/")
	return filepath.WalkDir(t.Dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(t.Dir, file)
		if err != nil {
			return err
		}
		name := path.Join(at, filepath.ToSlash(rel))
		if name == "." || name == "" {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := unixMode(info.Mode()); info.Mode().Type() {
		case fs.ModeDir:
			return b.dir(name, mode)
		case 0:
			return b.hostFile(name, file, mode)
		case fs.ModeSymlink:
			target, err := os.Readlink(file)
			if err != nil {
				return err
			}
			return b.add(cpioEntry{name: name, mode: modeSymlink | 0o777, size: int64(len(target)), data: strings.NewReader(target)})
		default:
			return fmt.Errorf("%s: %w", file, errors.New("only files, folders and symbolic links can go into an initramfs"))
		}
	})
}

// unixMode is the permission bits with setuid, setgid and sticky where Unix has them.
func unixMode(m fs.FileMode) uint32 {
	mode := uint32(m.Perm())
	for bit, value := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			mode |= value
		}
	}
	return mode
}
