package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nlfuzz/nlfuzz/internal/kernel"
)

// fakeQEMU puts a shell script in QEMU's place and returns a configuration whose kernel and init are files that only look right. The script runs with
// $PWD as the work folder; what it prints is the console.
func fakeQEMU(t *testing.T, script string) Config {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write(qemuName, "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n"+script+"\n", 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("NLFUZZ_CACHE", filepath.Join(dir, "cache"))
	var header bytes.Buffer
	binary.Write(&header, binary.LittleEndian, elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: 2, Machine: 62, Version: 1, Ehsize: 64})
	return Config{Image: &kernel.Image{Kernel: write("vmlinuz", "no kernel", 0o644)}, Binary: write("init", header.String(), 0o755), Dir: t.TempDir()}
}

// nothingLeft checks that no process works below root, and that root is empty.
func nothingLeft(t *testing.T, root string) {
	t.Helper()
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("left in the work folder: %v, %v", left, err)
	}
	// A killed process has closed its files some moments before it is gone.
	eventually(t, "no process is left", func() bool { return len(running(root)) == 0 })
}

// running finds the processes that work below a folder.
func running(root string) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		cwd, _ := os.Readlink(filepath.Join(p, "cwd"))
		if strings.HasPrefix(cwd, root+"/") {
			pids = append(pids, filepath.Base(p))
		}
	}
	return pids
}

// eventually waits for something that other processes do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func TestBootFails(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"panic", "echo 'Kernel panic - not syncing: No working init found.'", []string{"did not boot", "its kernel switched it off", "No working init found"}},
		{"QEMU refuses", "echo 'qemu: no such machine' >&2; exit 1", []string{"did not boot", "QEMU ended: exit status 1", "no such machine", "console is empty"}},
		{"killed", "echo hello; kill -9 $$", []string{"QEMU ended: signal: killed", "hello"}},
		// Descriptor 4 is the agent's port.
		{"garbage", `printf '\377\377\377\377' >&4; cat >/dev/null <&4`, []string{"did not boot", "frame of 4294967295 bytes"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := fakeQEMU(t, test.script)
			_, err := Start(t.Context(), cfg)
			var env *EnvError
			if !errors.As(err, &env) || env.Next == "" {
				t.Fatalf("got %v, want an EnvError that says what next", err)
			}
			for _, w := range test.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
			nothingLeft(t, cfg.Dir)
		})
	}
}

func TestBootSilent(t *testing.T) {
	cfg := fakeQEMU(t, "echo started; sleep 1000") // a child: as QEMU has one while it reads or writes a snapshot
	g, err := prepare(cfg, "serve")
	if err != nil {
		t.Fatal(err)
	}
	// The limit must be long enough for a shell to start and print.
	err = g.boot(t.Context(), time.Second)
	if err == nil || !strings.Contains(err.Error(), "gave no answer for 1") || !strings.Contains(err.Error(), "started") {
		t.Errorf("got %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, cfg.Dir)
}

func TestBootCancelled(t *testing.T) {
	cfg := fakeQEMU(t, "exec sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for len(running(cfg.Dir)) == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	start := time.Now()
	if _, err := Start(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	nothingLeft(t, cfg.Dir)
}

func TestEnvironment(t *testing.T) {
	dynamic := "/bin/sh"
	for _, test := range []struct {
		name   string
		change func(t *testing.T, cfg *Config)
		want   string
	}{
		{"no QEMU", func(t *testing.T, _ *Config) { t.Setenv("PATH", t.TempDir()) }, "qemu-system-x86_64 not found; install it: apt-get install qemu-system-x86"},
		{"no kernel", func(t *testing.T, c *Config) { c.Image = &kernel.Image{Kernel: "/nonexistent/vmlinuz"} }, "read the kernel: open /nonexistent/vmlinuz"},
		{"no init", func(t *testing.T, c *Config) { c.Binary = "/nonexistent/nlfuzz" }, "read /nonexistent/nlfuzz"},
		{"dynamic init", func(t *testing.T, c *Config) { c.Binary = dynamic }, "/bin/sh is not static, so it can't be the guest's init; build it with CGO_ENABLED=0"},
		{"no work folder", func(t *testing.T, c *Config) { c.Dir = "/nonexistent" }, "make a work folder"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := fakeQEMU(t, "exit 1")
			root := cfg.Dir
			test.change(t, &cfg)
			_, err := Start(t.Context(), cfg)
			var env *EnvError
			if !errors.As(err, &env) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an EnvError with %q", err, test.want)
			}
			nothingLeft(t, root)
		})
	}
}

func TestNoSpace(t *testing.T) {
	for _, err := range []error{&os.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}, errors.New("cat: write error: No space left on device")} {
		if got := env("save a snapshot", err).Error(); !strings.HasPrefix(got, "save a snapshot: ") || !strings.Contains(got, "make room") {
			t.Errorf("%v became %q", err, got)
		}
	}
}

// A console without line ends, and one with a million lines, must not fill the host's memory.
func TestConsoleBounded(t *testing.T) {
	m := &machine{}
	m.readConsole(bytes.NewReader(bytes.Repeat([]byte{'x'}, 8<<20)))
	m.readConsole(strings.NewReader(strings.Repeat("line\r\n", 10*consoleLines) + "\n\nlast"))
	l := m.lines()
	if len(l) != consoleLines || l[len(l)-1] != "last" || l[0] != "line" {
		t.Errorf("%d lines from %.20q to %.20q", len(l), l[0], l[len(l)-1])
	}
	if len(m.console) > 2*consoleLines {
		t.Errorf("%d lines are kept", len(m.console))
	}
}

func TestWorkDir(t *testing.T) {
	root := t.TempDir()
	mine, err := newWorkDir(root)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := newWorkDir(root)
	if err != nil {
		t.Fatal(err)
	}
	dead.lock.Close() // as when its owner is killed
	other := filepath.Join(root, "somebody-elses")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	CleanStale(root)
	for path, want := range map[string]bool{mine.path: true, dead.path: false, other: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", path, err == nil, want)
		}
	}
	if err := mine.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mine.path); err == nil {
		t.Error("a removed folder is still there")
	}
}

// A folder that was cleaned away before its owner had the lock must not be used.
func TestWorkDirTaken(t *testing.T) {
	dir := t.TempDir()
	held, err := lockIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if again, err := lockIn(dir); err == nil {
		again.Close()
		t.Error("the same folder was locked twice")
	}
	if gone, err := lockIn(filepath.Join(dir, "gone")); err == nil {
		gone.Close()
		t.Error("a folder that is gone was locked")
	}
}

// The machine goes when its owner is killed, and the next start finds the folder to clean.
func TestOwnerKilled(t *testing.T) {
	const mark = "NLFUZZ_TEST_OWNER"
	if os.Getenv(mark) != "" {
		cfg := fakeQEMU(t, "exec sleep 1000")
		cfg.Dir = os.Getenv(mark)
		Start(t.Context(), cfg)
		t.Fatal("the owner was not killed")
	}
	root := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	owner := exec.Command(self, "-test.run=^TestOwnerKilled$")
	owner.Env = append(os.Environ(), mark+"="+root)
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the machine runs", func() bool { return len(running(root)) > 0 })
	machine := running(root)[0]
	CleanStale(root)
	if left, _ := os.ReadDir(root); len(left) != 1 {
		t.Errorf("a folder in use was cleaned: %v", left)
	}
	owner.Process.Kill()
	owner.Wait()
	eventually(t, "the machine ends with its owner", func() bool {
		pid, err := strconv.Atoi(machine)
		return err != nil || syscall.Kill(pid, 0) != nil || len(running(root)) == 0
	})
	CleanStale(root)
	nothingLeft(t, root)
}

func TestSnapshotsKept(t *testing.T) {
	cfg := fakeQEMU(t, "exit 1")
	g, err := prepare(cfg, "serve")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	path, err := g.snapshotPath()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		old := filepath.Join(filepath.Dir(path), fmt.Sprint("old", i))
		if err := os.WriteFile(old, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		age := time.Now().Add(-time.Duration(i+1) * time.Hour)
		os.Chtimes(old, age, age)
	}
	saved := filepath.Join(g.work.path, "saved")
	if err := os.WriteFile(saved, make([]byte, snapshotLeast), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := g.keep(saved); err != nil {
		t.Fatal(err)
	}
	if got, err := g.cached(); got != path || err != nil {
		t.Errorf("cached: %q, %v; want %q", got, err, path)
	}
	left, _ := os.ReadDir(filepath.Dir(path))
	if len(left) != snapshotsKept {
		t.Errorf("%d snapshots are kept, want %d", len(left), snapshotsKept)
	}
	for _, d := range left {
		if d.Name() > "old4" && strings.HasPrefix(d.Name(), "old") {
			t.Errorf("%s is kept, though there are newer ones", d.Name())
		}
	}
	// Anything else that a guest is made of makes another snapshot.
	g.mc.cmdline += " more"
	if other, err := g.snapshotPath(); err != nil || other == path {
		t.Errorf("another command line has the same snapshot: %v", err)
	}
}
