package kernel

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recorded is what `apt-cache show` printed on 2026-12-01, with the fields that do not matter left out.
func recorded(t *testing.T) []candidate {
	t.Helper()
	text, err := os.ReadFile("testdata/apt-cache-show.txt")
	if err != nil {
		t.Fatal(err)
	}
	return candidates(parseStanzas(string(text)))
}

func TestPick(t *testing.T) {
	all := recorded(t)
	tests := []struct {
		want     string
		version  string // empty: not there
		packages []string
	}{
		{"6.1", "6.1.192-3", []string{"linux-image-6.1.0-57-cloud-amd64-unsigned"}},
		{"6.1.192", "6.1.192-3", []string{"linux-image-6.1.0-57-cloud-amd64-unsigned"}},
		{"6.1.192-2", "6.1.192-2", []string{"linux-image-6.1.0-56-cloud-amd64-unsigned"}},
		{"6.12", "6.12.117-1", []string{"linux-image-6.12.117+deb13-cloud-amd64-unsigned"}},
		{"6.12.90", "6.12.90-1~bpo12+1", []string{"linux-image-6.12.90+deb12-cloud-amd64"}},
		{"6.18", "6.18.15-1~bpo13+1", []string{"linux-image-6.18.15+deb13-cloud-amd64"}},
		{"7.1", "", nil}, // its modules are gone from the archive
		{"7.2", "7.2.13-1", []string{
			"linux-binary-7.2.13+deb14-cloud-amd64", "linux-base-7.2.13+deb14-cloud-amd64", "linux-modules-7.2.13+deb14-cloud-amd64",
		}},
		{"7.3", "7.3.4-1~bpo13+1", []string{
			"linux-binary-7.3.4+deb13-cloud-amd64", "linux-base-7.3.4+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64",
		}},
		{"7", "7.3.4-1~bpo13+1", []string{
			"linux-binary-7.3.4+deb13-cloud-amd64", "linux-base-7.3.4+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64",
		}},
		{"5.10", "", nil},
	}
	for _, test := range tests {
		c, ok := pick(all, test.want)
		if ok != (test.version != "") {
			t.Errorf("pick %s: found is %v: %+v", test.want, ok, c)
			continue
		}
		if c.version != test.version {
			t.Errorf("pick %s is %s, want %s", test.want, c.version, test.version)
		}
		var names []string
		for _, p := range c.packages {
			names = append(names, p.Name)
			if len(p.SHA256) != 64 || p.Size == 0 {
				t.Errorf("pick %s: %+v has no checksum or size", test.want, p)
			}
		}
		if diff := cmp.Diff(test.packages, names); diff != "" {
			t.Errorf("pick %s: %s", test.want, diff)
		}
	}
	const want = "7.3 (7.3.4), 7.2 (7.2.13), 6.18 (6.18.15), 6.12 (6.12.117), 6.1 (6.1.192)"
	if got := offer(all); got != want {
		t.Errorf("offer is %s, want %s", got, want)
	}
}

func TestParseInstall(t *testing.T) {
	const out = `NOTE: This is only a simulation!
The following NEW packages will be installed:
  bash libc6
Inst gcc-12-base (12.2.0-14 Debian:12/oldstable [amd64]) []
Inst libc6 (2.36-9+deb12u14 Debian:12/oldstable [amd64]) []
Inst perl-base (5.36.0-7 Debian:12/oldstable [amd64])
Inst libtinfo6:amd64 (6.4-4 Debian:12/oldstable [amd64])
Conf libc6 (2.36-9+deb12u14 Debian:12/oldstable [amd64])
`
	want := []Package{{Name: "gcc-12-base", Version: "12.2.0-14"}, {Name: "libc6", Version: "2.36-9+deb12u14"}, {Name: "libtinfo6", Version: "6.4-4"}}
	if diff := cmp.Diff(want, parseInstall(out)); diff != "" {
		t.Error(diff)
	}
}

// pullFake puts an image into a cache as fetch does, from a package made here.
func pullFake(t *testing.T, cache, version string) {
	t.Helper()
	err := makeDir(filepath.Join(cache, "kernels"), "linux-image_"+version, func(dir string) error {
		release := upstream(version) + "-cloud-amd64"
		writeFile(t, filepath.Join(dir, "boot/vmlinuz-"+release), fakeBzImage(release))
		writeFile(t, filepath.Join(dir, "lib/modules", release, "modules.builtin"), "")
		img, err := fromDir(dir)
		if err != nil {
			return err
		}
		img.Version = version
		return writeManifest(dir, img)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPulledIsUsedOffline(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("PATH", t.TempDir()) // no apt
	for _, version := range []string{"6.1.9-1", "6.1.10-1", "7.3.4-1~bpo13+1"} {
		pullFake(t, cache, version)
	}
	img, err := Resolve(context.Background(), "debian:6.1", Options{Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	if img.Release != "6.1.10-cloud-amd64" || img.Spec != "debian:6.1" || !isFile(img.Kernel) || !isDir(img.ModuleDir) {
		t.Errorf("image is %+v", img)
	}
	if again, err := Resolve(context.Background(), filepath.Dir(filepath.Dir(img.Kernel)), Options{}); err != nil || again.SHA256 != img.SHA256 {
		t.Errorf("the unpacked folder is %+v, %v", again, err)
	}
	_, err = Resolve(context.Background(), "debian:6.12", Options{Cache: cache})
	if err == nil || !strings.Contains(err.Error(), "apt-get is not installed") {
		t.Errorf("without apt: %v", err)
	}
	list, err := List(context.Background(), Options{Cache: cache})
	if err == nil || len(list) != 3 || list[0].Spec != "debian:7.3.4-1~bpo13+1" || list[0].Image == nil {
		t.Errorf("list without apt: %v, %v", list, err)
	}
}

func TestHalfDonePullIsNoImage(t *testing.T) {
	cache := t.TempDir()
	broken := errors.New("network gone")
	err := makeDir(filepath.Join(cache, "kernels"), "linux-image_6.1.9-1", func(dir string) error {
		writeFile(t, filepath.Join(dir, "boot/vmlinuz-6.1.9"), "half")
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("error is %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Join(cache, "kernels")); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
	// A process that was killed leaves its temporary folder, perhaps complete but for the rename.
	pullFake(t, cache, "6.1.9-1")
	final := filepath.Join(cache, "kernels", "linux-image_6.1.9-1")
	dead := filepath.Join(cache, "kernels", temporary+"dead")
	if err := os.Rename(final, dead); err != nil {
		t.Fatal(err)
	}
	if got := pulled(cache, ""); len(got) != 0 {
		t.Errorf("a folder that was not renamed counts as pulled: %v", got)
	}
	pullFake(t, cache, "6.1.9-1")
	if got := pulled(cache, "6.1"); len(got) != 1 {
		t.Errorf("pulled is %v", got)
	}
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dead folder is still there: %v", err)
	}
	// A kernel file that is cut short is no image either.
	img := pulled(cache, "6.1")[0]
	if err := os.Truncate(img.Kernel, 1024); err != nil {
		t.Fatal(err)
	}
	if got := pulled(cache, "6.1"); len(got) != 0 {
		t.Errorf("a damaged image counts as pulled: %v", got)
	}
}

func TestLockWaits(t *testing.T) {
	cache := t.TempDir()
	unlock, err := lock(context.Background(), cache, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, cache, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: %v", err)
	}
	told := make(chan string, 1)
	got := make(chan error, 1)
	go func() {
		second, err := lock(context.Background(), cache, Options{Progress: func(line string) { told <- line }})
		if err == nil {
			second()
		}
		got <- err
	}()
	if line := <-told; !strings.Contains(line, "another process") {
		t.Errorf("progress says %q", line)
	}
	unlock()
	if err := <-got; err != nil {
		t.Errorf("lock after unlock: %v", err)
	}
}

func TestNeedSpace(t *testing.T) {
	if err := needSpace(t.TempDir(), 1<<60); !errors.Is(err, errDiskFull) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error is %v", err)
	}
	if err := needSpace(t.TempDir(), 1); err != nil {
		t.Errorf("error is %v", err)
	}
}

func TestUnpackDeb(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb")
	}
	src, dst := t.TempDir(), t.TempDir()
	if err := os.Chmod(src, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(src, "DEBIAN/control"), "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example>\nDescription: x\n")
	writeFile(t, filepath.Join(src, "bin/tool"), "tool")
	writeFile(t, filepath.Join(src, "usr/share/doc/x/README"), "readme")
	for _, err := range []error{
		os.Chmod(filepath.Join(src, "bin/tool"), 0o755), os.Symlink("tool", filepath.Join(src, "bin/alias")),
		os.Link(filepath.Join(src, "bin/tool"), filepath.Join(src, "bin/hard")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(t.TempDir(), "x.deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "-b", src, deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := userlandBase(dst); err != nil {
		t.Fatal(err)
	}
	if err := unpackDeb(context.Background(), deb, dst, userlandFile, mergeUsr); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dst, "usr/bin/tool"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("usr/bin/tool: %v, %v", info, err)
	}
	if target, err := os.Readlink(filepath.Join(dst, "bin/alias")); err != nil || target != "tool" {
		t.Errorf("bin/alias leads to %q, %v", target, err)
	}
	if target, err := os.Readlink(filepath.Join(dst, "bin")); err != nil || target != "usr/bin" {
		t.Errorf("bin leads to %q, %v", target, err)
	}
	if text, err := os.ReadFile(filepath.Join(dst, "bin/hard")); err != nil || string(text) != "tool" {
		t.Errorf("bin/hard holds %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dst, "usr/share/doc")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("documentation is unpacked: %v", err)
	}
	if err := os.Truncate(deb, 300); err != nil {
		t.Fatal(err)
	}
	if err := unpackDeb(context.Background(), deb, t.TempDir(), userlandFile, mergeUsr); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a truncated package: %v", err)
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	t.Setenv("NLFUZZ_CACHE", "")
	for _, test := range []struct{ env, dir, want string }{{"", "", "/xdg/nlfuzz"}, {"/own", "", "/own"}, {"/own", "/given", "/given"}} {
		t.Setenv("NLFUZZ_CACHE", test.env)
		if got, err := CacheDir(test.dir); err != nil || got != test.want {
			t.Errorf("CacheDir(%q) with NLFUZZ_CACHE=%q is %q, %v; want %q", test.dir, test.env, got, err, test.want)
		}
	}
}
