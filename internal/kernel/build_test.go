package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeSource is a folder that builds like a kernel source: make's targets, the script that merges fragments, a file to patch and an image.
func fakeSource(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "Makefile"), "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\n"+
		"tinyconfig:\n\t@touch .config\nolddefconfig:\n\t@sed -i /CONFIG_GONE=/d .config\n"+
		"bzImage:\n\t@echo '  CC x.o'; cat net.c; sh build.sh\n")
	writeFile(t, filepath.Join(dir, "scripts/kconfig/merge_config.sh"), "#!/bin/sh\ncat \"$3\" >> \"$2\"\n")
	if err := os.Chmod(filepath.Join(dir, "scripts/kconfig/merge_config.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "net.c"), "one\ntwo\n")
	writeFile(t, filepath.Join(dir, "image"), fakeBzImage("7.3.4-planted"))
	writeFile(t, filepath.Join(dir, "build.sh"), "mkdir -p arch/x86/boot && cp image arch/x86/boot/bzImage\n")
	return dir
}

const fakePatch = "--- a/net.c\n+++ b/net.c\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"

// fakeBuild has options for a build from a fake source in an empty cache.
func fakeBuild(t *testing.T) BuildOptions {
	t.Helper()
	if err := needTools(t.Context()); err != nil {
		t.Skipf("needs the tools that build a kernel: %v", err)
	}
	if err := needSpace(t.TempDir(), buildSpace); err != nil {
		t.Skip(err)
	}
	return BuildOptions{
		Options: Options{Cache: t.TempDir(), Progress: func(line string) { t.Log(line) }},
		Name:    BuildPlanted, Series: "7.3", Source: fakeSource(t), Patches: []Patch{{"first.diff", []byte(fakePatch)}}, Jobs: 1,
	}
}

func TestBuild(t *testing.T) {
	opts := fakeBuild(t)
	img, err := Build(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if img.Release != "7.3.4-planted" || img.Version != "7.3.4" || img.Build != BuildPlanted || img.Spec != "planted:7.3" {
		t.Errorf("image is %+v", img)
	}
	log, err := os.ReadFile(filepath.Join(opts.Cache, "build/planted-7.3.log"))
	if err != nil || !strings.Contains(string(log), "three") {
		t.Errorf("the log is %q, %v: want the patched file", log, err)
	}
	noWorkTree(t, opts.Cache)

	t.Setenv("PATH", t.TempDir()) // what follows must not call a tool
	again, err := Build(t.Context(), opts)
	if err != nil {
		t.Fatalf("a second time: %v", err)
	}
	if diff := cmp.Diff(img, again); diff != "" {
		t.Errorf("a second time: %s", diff)
	}
	for _, spec := range []string{"planted:7.3", "planted:7.3.4"} {
		if found, err := Resolve(t.Context(), spec, opts.Options); err != nil || found.SHA256 != img.SHA256 || found.Spec != spec {
			t.Errorf("%s resolves to %+v, %v", spec, found, err)
		}
	}
	for spec, want := range map[string]string{
		"planted:7.2": "run: nlfuzz kernel build --faults",
		"planted:":    "run: nlfuzz kernel build --faults",
		"built:7.3":   "run: nlfuzz kernel build",
		"debian:7.3":  "apt-get is not installed", // a build is no Debian kernel
	} {
		if _, err := Resolve(t.Context(), spec, opts.Options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
	opts.Patches[0].Text = append(opts.Patches[0].Text, '\n')
	if _, err := Build(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "tools are missing") {
		t.Errorf("with another patch: %v, want a new build", err)
	}
}

func TestBuildErrors(t *testing.T) {
	tests := map[string]struct {
		change func(o *BuildOptions)
		want   string
	}{
		"name":    {func(o *BuildOptions) { o.Name = "../x" }, "want a name out of planted and built"},
		"series":  {func(o *BuildOptions) { o.Series = "7.3.4" }, "want a series such as 7.3"},
		"jobs":    {func(o *BuildOptions) { o.Jobs = -1 }, "-1 jobs"},
		"other":   {func(o *BuildOptions) { o.Series = "7.2" }, "is 7.3.4, not 7.2"},
		"source":  {func(o *BuildOptions) { o.Source = t.TempDir() }, "not a kernel source"},
		"patch":   {func(o *BuildOptions) { o.Patches = append(o.Patches, o.Patches[0]) }, "patch first.diff does not apply to this source: patch: exit status 1: net.c: Reversed"},
		"symbol":  {func(o *BuildOptions) { o.Configs = []string{"CONFIG_B=y\nCONFIG_GONE=y"} }, "this source does not take CONFIG_GONE=y"},
		"compile": {func(o *BuildOptions) { writeFile(t, filepath.Join(o.Source, "build.sh"), "echo net.c: error; exit 1") }, "make bzImage: exit status 2; the log is "},
		"image":   {func(o *BuildOptions) { writeFile(t, filepath.Join(o.Source, "build.sh"), "true") }, "make bzImage left no image"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			opts := fakeBuild(t)
			test.change(&opts)
			_, err := Build(t.Context(), opts)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q in one line", err, test.want)
			}
			noWorkTree(t, opts.Cache)
		})
	}
}

// TestBuildInterrupted checks that nothing of a build stays when it is cut off: neither its files nor its processes.
func TestBuildInterrupted(t *testing.T) {
	opts := fakeBuild(t)
	mark := filepath.Join(t.TempDir(), "mark")
	writeFile(t, filepath.Join(opts.Source, "build.sh"), "echo $$ > "+mark+".new; mv "+mark+".new "+mark+"; sleep 600\n")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !isFile(mark) && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	start := time.Now()
	_, err := Build(ctx, opts)
	if !errors.Is(err, context.Canceled) || time.Since(start) > time.Minute {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	noWorkTree(t, opts.Cache)
	pid, err := os.ReadFile(mark)
	if err != nil {
		t.Fatal(err)
	}
	// A zombie has ended; where process 1 does not reap, it stays.
	stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
	if err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("a process of the build still runs: %s", stat)
	}
}

func noWorkTree(t *testing.T, cache string) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(cache, "build", temporary+"*")); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
}

func TestMissingSymbols(t *testing.T) {
	const wanted = "# why\nCONFIG_A=y\nCONFIG_B=n\nCONFIG_C=\"-x\"\nCONFIG_D=y\nCONFIG_D=n\nCONFIG_E=y\nCONFIG_F=n\nCONFIG_AB=8\n"
	const got = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=\"-x\"\n# CONFIG_E is not set\nCONFIG_F=y\nCONFIG_AB=64\nCONFIG_G=y\n"
	if diff := cmp.Diff([]string{"CONFIG_E=y", "CONFIG_F=n", "CONFIG_AB=8"}, missingSymbols(wanted, got)); diff != "" {
		t.Error(diff)
	}
}

func TestNewestSource(t *testing.T) {
	stanzas := []map[string]string{
		{"package": "linux-source-7.3", "version": "7.3.4-1~bpo13+1", "sha256": "a", "size": "1"},
		{"package": "linux-source-7.3", "version": "7.3.10-1", "sha256": "b", "size": "2"},
		{"package": "linux-source-7.3", "version": "7.3.9-2", "sha256": "c", "size": "3"},
	}
	got, ok := newest(stanzas)
	if diff := cmp.Diff(Package{"linux-source-7.3", "7.3.10-1", "b", 2}, got); !ok || diff != "" {
		t.Error(ok, diff)
	}
	if got, ok := newest(nil); ok {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestBuildLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := newBuildLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for range buildTail {
		if _, err := log.Write([]byte("first\n")); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []string{"  CC ", "a.o\n  CC b.o\nlast", " without end"} {
		if _, err := log.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	tail := log.tail()
	if len(tail) != buildTail || tail[buildTail-2] != "CC a.o" || tail[buildTail-1] != "CC b.o" || log.lines != buildTail+2 {
		t.Errorf("%d lines, the tail is %q", log.lines, tail)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.HasSuffix(string(text), "last without end") {
		t.Errorf("the file is %q, %v", text, err)
	}
}
