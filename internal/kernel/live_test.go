package kernel

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// needArchive skips unless the test may reach the Debian archive.
func needArchive(t *testing.T) {
	t.Helper()
	if os.Getenv("NLFUZZ_TEST_NET") != "1" {
		t.Skip("needs the Debian archive: set NLFUZZ_TEST_NET=1 to allow about 60 MB of download")
	}
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s, which is not installed", tool)
		}
	}
}

func TestLivePull(t *testing.T) {
	needArchive(t)
	opts := Options{Cache: t.TempDir(), Progress: func(line string) { t.Log(line) }}
	img, err := Resolve(t.Context(), "debian:7.3", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, %d packages", img, len(img.Packages))
	if !strings.HasPrefix(img.Release, "7.3.") || !matches(img.Version, "7.3") || img.SHA256 == "" {
		t.Errorf("image is %+v", img)
	}
	plan, err := Initramfs(io.Discard, InitramfsSpec{Init: "/proc/self/exe", Image: img})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("modules %v, built in %v", names(plan.Modules), plan.Builtin)
	if len(plan.Missing) > 0 || len(plan.Modules)+len(plan.Builtin) < len(DefaultModules) {
		t.Errorf("missing modules: %v", plan.Missing)
	}
	again, err := Resolve(t.Context(), "debian:"+img.Version, Options{Cache: opts.Cache, Progress: func(line string) { t.Errorf("not offline: %s", line) }})
	if err != nil || again.Kernel != img.Kernel {
		t.Errorf("second time: %+v, %v", again, err)
	}
	refresh := opts
	refresh.Refresh = true
	if again, err := Resolve(t.Context(), "debian:7.3", refresh); err != nil || again.Kernel != img.Kernel {
		t.Errorf("refreshed: %+v, %v", again, err)
	}
	_, err = Resolve(t.Context(), "debian:5.99", opts)
	if err == nil || !strings.Contains(err.Error(), "it has 7.") {
		t.Errorf("a release that is not there: %v", err)
	}
	list, err := List(t.Context(), opts)
	if err != nil || len(list) < 4 {
		t.Errorf("list has %d kernels, %v", len(list), err)
	}
}

func TestLiveUserland(t *testing.T) {
	needArchive(t)
	tree, err := Userland(t.Context(), Options{Cache: t.TempDir(), Progress: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	err = filepath.WalkDir(tree, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	if err != nil || size > 45e6 {
		t.Errorf("the tree has %d bytes, %v", size, err)
	}
	if _, err := Initramfs(io.Discard, InitramfsSpec{Init: "/proc/self/exe", Trees: []Tree{{Dir: tree}}}); err != nil {
		t.Error(err)
	}
	if os.Getuid() != 0 {
		t.Skip("the tree is complete; to run programs in it the test needs root for chroot")
	}
	const script = `set -e; ip -V; tc -V; bridge -V; ss -V; sysctl --version; ping -V; mount --version; unshare --version
test "$(printf 'a b\n' | grep a | sed s/b/c/ | awk '{print $2}')" = c
python3 -c 'import socket, struct, ctypes, fcntl, os, subprocess, threading, select, json; print(socket.AF_NETLINK)'`
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "chroot", tree, "/bin/bash", "-c", script).CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
