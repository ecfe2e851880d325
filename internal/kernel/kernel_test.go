package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ulikunitz/xz"
)

// fakeBzImage is a boot header with a version and nothing to boot.
func fakeBzImage(release string) string {
	b := make([]byte, 4096)
	copy(b[bootMagic:], "HdrS")
	binary.LittleEndian.PutUint16(b[bootVersion:], 0x100+0x200)
	binary.LittleEndian.PutUint16(b[bootLoadFlag:], 1)
	copy(b[0x500:], release+" (builder@example) #1 SMP\x00")
	return string(b)
}

// fakeELF is an x86-64 object file with one section.
func fakeELF(section, content string) string {
	names := "\x00" + section + "\x00.shstrtab\x00"
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			binary.Write(&b, binary.LittleEndian, v)
		}
	}
	text := uint64(64)
	table := text + uint64(len(content))
	headers := table + uint64(len(names))
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	put(uint16(1), uint16(62), uint32(1), uint64(0), uint64(0), headers, uint32(0), uint16(64), uint16(0), uint16(0), uint16(64), uint16(3), uint16(2))
	b.WriteString(content + names)
	header := func(name, kind uint32, flags, offset, size uint64) {
		put(name, kind, flags, uint64(0), offset, size, uint32(0), uint32(0), uint64(1), uint64(0))
	}
	header(0, 0, 0, 0, 0)
	header(1, 1, 2, text, uint64(len(content)))
	header(uint32(2+len(section)), 3, 0, table, uint64(len(names)))
	return b.String()
}

func fakeModule(release, depends string) string {
	return fakeELF(".modinfo", "license=GPL\x00depends="+depends+"\x00retpoline=Y\x00vermagic="+release+" SMP mod_unload \x00")
}

func TestReleaseOf(t *testing.T) {
	wide := fakeBzImage("7.3.4")
	narrow := wide[:bootLoadFlag] + "\x00" + wide[bootLoadFlag+1:]
	tests := map[string]struct{ content, want, err string }{
		"bzImage":     {content: wide, want: "7.3.4"},
		"vmlinux":     {content: fakeELF(".rodata", strings.Repeat("x", 600)+"Linux version %s (b)\x00Linux version 6.12.1+ (b@h) #1"), want: "6.12.1+"},
		"32 bits":     {content: narrow, err: "not a 64-bit x86 kernel"},
		"cut short":   {content: wide[:0x300], err: "not a whole kernel"},
		"empty":       {content: "", err: "shorter than a boot header"},
		"text":        {content: strings.Repeat("hello ", 200), err: "neither a bzImage nor an ELF file"},
		"no banner":   {content: fakeELF(".rodata", strings.Repeat("x", 600)), err: `without a "Linux version" text`},
		"no version":  {content: wide[:0x500] + strings.Repeat("\x00", 600), err: "the version text is damaged"},
		"bad ELF":     {content: "\x7fELF" + strings.Repeat("\xff", 700), err: "not a whole kernel"},
		"not for x86": {content: strings.Replace(fakeELF(".rodata", strings.Repeat("x", 600)), "\x01\x00\x3e\x00", "\x01\x00\xb7\x00", 1), err: "not an x86-64 kernel but EM_AARCH64"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kernel")
			writeFile(t, path, test.content)
			img, err := Resolve(context.Background(), path, Options{})
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error is %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if img.Release != test.want {
				t.Errorf("release is %q, want %q", img.Release, test.want)
			}
		})
	}
}

func TestResolveFolders(t *testing.T) {
	tests := map[string]struct {
		files   []string // those with a kernel's name are kernels
		spec    string
		modules string // want
		err     string
	}{
		"built tree":          {files: []string{"arch/x86/boot/bzImage", "modules.order", "Makefile"}, modules: "."},
		"built tree's kernel": {files: []string{"arch/x86/boot/bzImage", "modules.order", "Makefile"}, spec: "arch/x86/boot/bzImage", modules: "."},
		"built-in only":       {files: []string{"arch/x86/boot/bzImage", "Makefile"}},
		"old package":         {files: []string{"boot/vmlinuz-7.3.4", "lib/modules/7.3.4/kernel/net/x.ko"}, modules: "lib/modules/7.3.4"},
		"new package":         {files: []string{"usr/lib/modules/7.3.4/vmlinuz", "usr/lib/modules/7.3.4/kernel/x.ko"}, modules: "usr/lib/modules/7.3.4"},
		"two kernels":         {files: []string{"boot/vmlinuz-7.3.4", "boot/vmlinuz-7.3.5"}, err: "more than one kernel"},
		"empty":               {files: []string{"README"}, err: "no kernel in this folder"},
		"missing":             {files: []string{"README"}, spec: "nowhere", err: "no such file"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "with [sign]")
			for _, file := range test.files {
				content := ""
				if base := filepath.Base(file); base == "bzImage" || strings.HasPrefix(base, "vmlinuz") {
					content = fakeBzImage("7.3.4")
				}
				writeFile(t, filepath.Join(dir, file), content)
			}
			img, err := Resolve(context.Background(), filepath.Join(dir, test.spec), Options{})
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error is %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			if test.modules != "" {
				want = filepath.Join(dir, test.modules)
			}
			if img.ModuleDir != want {
				t.Errorf("modules are in %q, want %q", img.ModuleDir, want)
			}
		})
	}
	for spec, want := range map[string]string{"7.3": "did you mean debian:7.3?", "debian:unstable": "want a series such as debian:7.3"} {
		if _, err := Resolve(context.Background(), spec, Options{Cache: t.TempDir()}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Resolve(%q): %v, want %q", spec, err, want)
		}
	}
}

// fakeImage is an image with modules: a and b-dash need c, c needs the built-in d; loop needs itself by way of loop2.
func fakeImage(t *testing.T) *Image {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "lib/modules/7.3.4")
	var packed bytes.Buffer
	w, err := xz.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, fakeModule("7.3.4", "d")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		"kernel/net/a.ko":           fakeModule("7.3.4", "c"),
		"kernel/net/b-dash.ko":      fakeModule("7.3.4", "c,a"),
		"kernel/net/c.ko.xz":        packed.String(),
		"kernel/net/loop.ko":        fakeModule("7.3.4", "loop2"),
		"kernel/net/loop2.ko":       fakeModule("7.3.4", "loop"),
		"kernel/net/needy.ko":       fakeModule("7.3.4", "gone"),
		"kernel/net/other.ko":       fakeModule("7.3.5", ""),
		"kernel/net/no.ko":          "text",
		"kernel/net/cut.ko.xz":      packed.String()[:packed.Len()/2],
		"modules.builtin":           "kernel/drivers/d.ko\n",
		"modules.builtin.modinfo":   "e.license=GPL\x00e.author=x\x00",
		"kernel/net/readme.ko.text": "no module",
	} {
		writeFile(t, filepath.Join(dir, file), content)
	}
	return &Image{Release: "7.3.4", ModuleDir: dir}
}

func names(modules []Module) (all []string) {
	for _, m := range modules {
		all = append(all, m.Name)
	}
	return all
}

func TestPlan(t *testing.T) {
	img := fakeImage(t)
	plan, err := img.Plan([]string{"b_dash", "d", "a", "nowhere", "e"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c", "a", "b_dash"}, names(plan.Modules)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"d", "e"}, plan.Builtin); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"nowhere"}, plan.Missing); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{
		"loop": "depends on itself", "needy": "needs gone", "other": "was built for 7.3.5", "no": "not a module", "cut": "cut.ko.xz",
	} {
		if _, err := img.Plan([]string{name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("plan of %s: %v, want %q", name, err, want)
		}
	}
	plan, err = (&Image{Release: "7.3.4"}).Plan([]string{"a"})
	if err != nil || len(plan.Modules) != 0 || len(plan.Missing) != 1 {
		t.Errorf("plan without modules: %+v, %v", plan, err)
	}
}

func TestPlanInBuiltTree(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "Makefile"), "")
	writeFile(t, filepath.Join(dir, "modules.order"), "net/a.o\nkernel/net/b.ko\nnet/unbuilt.o\n")
	writeFile(t, filepath.Join(dir, "net/a.ko"), fakeModule("7.3.4", ""))
	writeFile(t, filepath.Join(dir, "net/b.ko"), fakeModule("7.3.4", "a"))
	plan, err := (&Image{Release: "7.3.4", ModuleDir: dir}).Plan([]string{"b", "unbuilt"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, names(plan.Modules)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"unbuilt"}, plan.Missing); diff != "" {
		t.Error(diff)
	}
}

// readCpio reads a newc archive back into `mode name content` lines; it checks the form as the kernel does.
func readCpio(t *testing.T, b []byte) []string {
	t.Helper()
	var lines []string
	pos := 0
	for {
		if len(b) < pos+110 || string(b[pos:pos+6]) != "070701" {
			t.Fatalf("no header at %d", pos)
		}
		var field [13]int
		for i := range field {
			v, err := strconv.ParseUint(string(b[pos+6+8*i:pos+14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			field[i] = int(v)
		}
		mode, size, major, minor, nameSize := field[1], field[6], field[9], field[10], field[11]
		name := string(b[pos+110 : pos+110+nameSize-1])
		pos = (pos + 110 + nameSize + 3) &^ 3
		if name == "TRAILER!!!" {
			return lines
		}
		content := string(b[pos : pos+size])
		pos = (pos + size + 3) &^ 3
		if mode&0o170000 == modeChar {
			content = fmt.Sprintf("%d:%d", major, minor)
		}
		lines = append(lines, fmt.Sprintf("%o %s %s", mode, name, content))
	}
}

func TestInitramfs(t *testing.T) {
	dir := t.TempDir()
	initFile := filepath.Join(dir, "nlfuzz")
	writeFile(t, initFile, "static!")
	tree := filepath.Join(dir, "tree")
	writeFile(t, filepath.Join(tree, "usr/bin/tool"), "tool")
	for _, err := range []error{
		os.Chmod(filepath.Join(tree, "usr/bin/tool"), 0o755|os.ModeSetuid), os.Symlink("usr/bin", filepath.Join(tree, "bin")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	img := fakeImage(t)
	module := func(name, depends string) string {
		return "100644 modules/" + name + ".ko " + fakeModule("7.3.4", depends)
	}
	spec := InitramfsSpec{
		Init: initFile, Image: img, Modules: []string{"a", "d"},
		Files: []File{{Path: "/etc/deep/conf", Data: []byte("x=1")}, {Path: "/bin/script", Mode: 0o755}},
		Trees: []Tree{{Dir: tree}},
	}
	var out, again bytes.Buffer
	plan, err := Initramfs(&out, spec)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c", "a"}, names(plan.Modules)); diff != "" {
		t.Error(diff)
	}
	want := []string{
		"120777 bin usr/bin", "40755 usr ", "40755 usr/bin ", "104755 usr/bin/tool tool",
		"40755 dev ", "40755 proc ", "40755 sys ", "40755 run ", "40755 root ", "41777 tmp ", "20600 dev/console 5:1",
		"40755 modules ", module("00-c", "d"), module("01-a", "c"), "100644 modules.list /modules/00-c.ko\n/modules/01-a.ko\n",
		"40755 etc ", "40755 etc/deep ", "100644 etc/deep/conf x=1", "100755 bin/script ", "100755 init static!",
	}
	if diff := cmp.Diff(want, readCpio(t, out.Bytes())); diff != "" {
		t.Error(diff)
	}
	if _, err := Initramfs(&again, spec); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Errorf("a second archive of the same differs, %v", err)
	}
}

func TestInitramfsErrors(t *testing.T) {
	initFile := filepath.Join(t.TempDir(), "init")
	writeFile(t, initFile, "static!")
	tests := map[string]struct {
		spec InitramfsSpec
		want string
	}{
		"no init":      {InitramfsSpec{Init: "/nonexistent"}, "/init: open /nonexistent"},
		"init twice":   {InitramfsSpec{Init: initFile, Files: []File{{Path: "/init"}}}, "/init is there twice"},
		"bad path":     {InitramfsSpec{Init: initFile, Files: []File{{Path: "../x"}}}, "no path in the guest"},
		"file as dir":  {InitramfsSpec{Init: initFile, Files: []File{{Path: "/a"}, {Path: "/a/b"}}}, "/a is a file"},
		"no tree":      {InitramfsSpec{Init: initFile, Trees: []Tree{{Dir: "/nonexistent"}}}, "/nonexistent"},
		"bad module":   {InitramfsSpec{Init: initFile, Image: fakeImage(t), Modules: []string{"needy"}}, "needs gone"},
		"folder as in": {InitramfsSpec{Init: t.TempDir()}, "is not a file"},
	}
	for name, test := range tests {
		if _, err := Initramfs(io.Discard, test.spec); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error is %v, want %q", name, err, test.want)
		}
	}
}
