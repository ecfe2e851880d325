package kernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// LoadPlan says which modules to load, in an order that satisfies all dependencies.
type LoadPlan struct {
	Modules []Module
	Builtin []string // asked for, and part of the kernel itself
	Missing []string // asked for, and neither a module nor known to be built in
}

// Module is one kernel module in load order.
type Module struct {
	Name string // with underscores, as `lsmod` prints it
	Path string // on the host; may be compressed

	object []byte // the ELF file
}

// DefaultModules are what a guest needs to talk to the host and to build the devices that the generator knows.
var DefaultModules = []string{
	"virtio_pci", "virtio_console", "dummy", "veth", "vrf", "bridge", "8021q", "macvlan", "sch_netem", "sch_prio", "cls_flow",
}

// maxModule bounds a decompressed module, so that a damaged file cannot fill the memory.
const maxModule = 256 << 20

// Plan finds the modules of the image by name and orders them so that each one follows what it depends on. A module that another one needs
// and that is not there is an error; one that is only asked for goes to Missing.
func (img *Image) Plan(names []string) (*LoadPlan, error) {
	plan := &LoadPlan{}
	if img.ModuleDir == "" {
		plan.Missing = slices.Clone(names)
		return plan, nil
	}
	paths, err := findModules(img.ModuleDir)
	if err != nil {
		return nil, err
	}
	p := planner{img: img, plan: plan, paths: paths, builtin: builtinModules(img.ModuleDir), state: map[string]int{}}
	for _, name := range names {
		name = canonical(name)
		switch {
		case paths[name] != "":
			if err := p.visit(name); err != nil {
				return nil, err
			}
		case p.builtin[name]:
			plan.Builtin = append(plan.Builtin, name)
		default:
			plan.Missing = append(plan.Missing, name)
		}
	}
	return plan, nil
}

// planner walks the dependencies depth first.
type planner struct {
	img     *Image
	plan    *LoadPlan
	paths   map[string]string
	builtin map[string]bool
	state   map[string]int // 1: being visited, 2: planned
}

func (p *planner) visit(name string) error {
	switch p.state[name] {
	case 1:
		return fmt.Errorf("kernel %s: module %s depends on itself", p.img.Release, name)
	case 2:
		return nil
	}
	p.state[name] = 1
	object, err := readModule(p.paths[name])
	if err != nil {
		return err
	}
	info, err := modinfo(object)
	if err != nil {
		return fmt.Errorf("module %s: %w", p.paths[name], err)
	}
	if built, _, _ := strings.Cut(info["vermagic"], " "); built != "" && built != p.img.Release {
		return fmt.Errorf("module %s was built for %s, but the kernel is %s: build or install its modules again", p.paths[name], built, p.img.Release)
	}
	for _, need := range strings.Split(info["depends"], ",") {
		need = canonical(need)
		if need == "" || p.builtin[need] {
			continue
		}
		if p.paths[need] == "" {
			return fmt.Errorf("kernel %s: module %s needs %s, which is not below %s", p.img.Release, name, need, p.img.ModuleDir)
		}
		if err := p.visit(need); err != nil {
			return err
		}
	}
	p.state[name] = 2
	p.plan.Modules = append(p.plan.Modules, Module{Name: name, Path: p.paths[name], object: object})
	return nil
}

// canonical is the name of a module as the kernel writes it.
func canonical(name string) string {
	return strings.ReplaceAll(strings.TrimSpace(name), "-", "_")
}

// moduleName is the name of the module that a file holds, and whether it is a module file.
func moduleName(file string) (string, bool) {
	base := path.Base(file)
	for _, ext := range []string{"", ".xz", ".gz", ".zst"} {
		if name, ok := strings.CutSuffix(base, ".ko"+ext); ok {
			return canonical(name), true
		}
	}
	return "", false
}

// findModules maps the name of each module below dir to its file. A built tree is large, so its modules.order is believed.
func findModules(dir string) (map[string]string, error) {
	found := map[string]string{}
	if isFile(filepath.Join(dir, "Makefile")) {
		order, err := os.ReadFile(filepath.Join(dir, "modules.order"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("modules: %w", err)
		}
		for _, line := range strings.Fields(string(order)) {
			// Since 6.3 the list names object files (scripts/Makefile.build).
			file := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(line, "kernel/"), ".o"), ".ko") + ".ko"
			if name, _ := moduleName(file); isFile(filepath.Join(dir, file)) {
				found[name] = filepath.Join(dir, file)
			}
		}
		return found, nil
	}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, ok := moduleName(file); ok && !d.IsDir() && found[name] == "" {
			found[name] = file
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	return found, nil
}

// builtinModules reads modules.builtin and modules.builtin.modinfo; kernels pulled without them have an empty set.
func builtinModules(dir string) map[string]bool {
	set := map[string]bool{}
	list, _ := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	for _, file := range strings.Fields(string(list)) {
		if name, ok := moduleName(file); ok {
			set[name] = true
		}
	}
	info, _ := os.ReadFile(filepath.Join(dir, "modules.builtin.modinfo"))
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if name, _, ok := bytes.Cut(entry, []byte{'.'}); ok {
			set[canonical(string(name))] = true
		}
	}
	return set
}

// readModule reads a module file and decompresses it.
func readModule(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("module: %w", err)
	}
	var r io.Reader
	switch filepath.Ext(file) {
	case ".xz":
		r, err = xz.NewReader(bytes.NewReader(data))
	case ".gz":
		r, err = gzip.NewReader(bytes.NewReader(data))
	case ".zst":
		var d *zstd.Decoder
		if d, err = zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1)); err == nil {
			defer d.Close()
			r = d
		}
	default:
		return data, nil
	}
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	object, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", file, err)
	}
	if len(object) > maxModule {
		return nil, fmt.Errorf("module %s: more than %d MB when decompressed", file, maxModule>>20)
	}
	return object, nil
}

// modinfo reads the key=value pairs of a module's .modinfo section; of a key that is there more than once, the first.
func modinfo(object []byte) (map[string]string, error) {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("not a module: %w", err)
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("not a module: it has no .modinfo section")
	}
	data, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("not a whole module: %w", err)
	}
	info := map[string]string{}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if key, value, ok := strings.Cut(string(entry), "="); ok {
			if _, double := info[key]; !double {
				info[key] = value
			}
		}
	}
	return info, nil
}
