package guest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/kernel"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// onEachKernel runs a test with each kernel that NLFUZZ_LIVE names, with the static binary NLFUZZ_BIN as init. The work folder and the cache of snapshots
// are the test's own.
func onEachKernel(t *testing.T, test func(t *testing.T, cfg Config)) {
	onKernels(t, -1, test)
}

// onOneKernel is for what does not depend on the kernel.
func onOneKernel(t *testing.T, test func(t *testing.T, cfg Config)) {
	onKernels(t, 1, test)
}

func onKernels(t *testing.T, limit int, test func(t *testing.T, cfg Config)) {
	names, bin := os.Getenv("NLFUZZ_LIVE"), os.Getenv("NLFUZZ_BIN")
	if names == "" || bin == "" {
		t.Skip("needs guests: NLFUZZ_LIVE (kernels) and NLFUZZ_BIN (a static nlfuzz) are not set; make live sets them")
	}
	specs := strings.Split(names, ",")
	if limit > 0 {
		specs = specs[:limit]
	}
	for _, spec := range specs {
		t.Run(spec, func(t *testing.T) {
			img, err := kernel.Resolve(t.Context(), spec, kernel.Options{})
			if err != nil {
				t.Fatal(err)
			}
			// Unpacked once, in the common cache.
			if vmlinux, err := img.Vmlinux(kernel.Options{}); err == nil {
				img.Kernel = vmlinux
			}
			t.Setenv("NLFUZZ_CACHE", t.TempDir())
			test(t, Config{Image: img, Binary: bin, Dir: t.TempDir()})
		})
	}
}

// start starts a guest whose end is checked to leave nothing behind.
func start(t *testing.T, cfg Config) *Guest {
	t.Helper()
	g, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		nothingLeft(t, cfg.Dir)
	})
	return g
}

// sequence has 30 operations that all succeed.
func sequence() (out []model.Op) {
	for i := range 5 {
		for _, l := range []string{"ip link add name d%[1]d type dummy", "ip link set dev d%[1]d up", "ip addr add 10.0.%[1]d.1/24 dev d%[1]d",
			"ip -6 addr add 2001:db8:%[1]d::1/64 dev d%[1]d", "ip route add 10.1.%[1]d.0/24 via 10.0.%[1]d.2 dev d%[1]d", "ip link del dev d%[1]d"} {
			op, err := iproute.Parse(fmt.Sprintf(l, i))
			if err != nil {
				panic(err)
			}
			out = append(out, op)
		}
	}
	return out
}

// run runs ops in a fresh namespace, which must be gone in the end, and returns the observations.
func run(t *testing.T, g *Guest, ops []model.Op) (out []*invariants.Observation) {
	t.Helper()
	keep := func(o *invariants.Observation, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, o)
	}
	keep(g.Begin(t.Context()))
	for _, op := range ops {
		o, err := g.Apply(t.Context(), op)
		keep(o, err)
		if o.Errno != 0 || o.Blocked || o.Op != iproute.Print(op) {
			t.Fatalf("%s: it ran as %q: errno %v, blocked %t", iproute.Print(op), o.Op, o.Errno, o.Blocked)
		}
	}
	keep(g.End(t.Context()))
	if end := out[len(out)-1]; !end.Net.Gone {
		t.Fatalf("the namespace stays: %+v", end.Net)
	}
	return out
}

func TestLiveGuest(t *testing.T) {
	onEachKernel(t, func(t *testing.T, cfg Config) {
		begin := time.Now()
		g := start(t, cfg)
		t.Logf("boot and snapshot: %v", since(begin))
		if info := g.Info(); info.Release != cfg.Image.Release || info.Degraded != "" || len(info.Trouble) > 0 {
			t.Errorf("info is %+v, want release %s and no trouble", info, cfg.Image.Release)
		}
		ops := sequence()
		seen := run(t, g, ops)
		// After begin, link add, link up and addr add: what an observation leaves out as unchanged is filled in.
		if tab := seen[4].Tables; tab == nil || !slices.ContainsFunc(tab.Addrs, func(a model.Addr) bool { return a.Prefix == netip.MustParsePrefix("10.0.0.1/24") }) {
			t.Errorf("10.0.0.1/24 is not in the tables: %+v", tab)
		}
		for i, o := range seen[:len(seen)-1] {
			if len(o.Dumps) != 10 || o.Tables == nil || len(o.Unknown) > 0 {
				t.Errorf("observation %d has %d dumps, unknown attributes %v", i, len(o.Dumps), o.Unknown)
			}
		}
		if links := seen[1].Tables.Links; len(links) != 2 {
			t.Errorf("links after the first is added: %+v", links)
		}

		begin = time.Now()
		if err := g.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("reset: %v", since(begin))

		const pings = 200
		begin = time.Now()
		for range pings {
			if err := g.greet(t.Context(), callLimit); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("round trip: %v", time.Since(begin)/pings)
		const rounds = 10
		begin = time.Now()
		var inKernel time.Duration
		for range rounds {
			for _, o := range run(t, g, ops) {
				inKernel += o.Took + o.Net.Took
			}
		}
		took := time.Since(begin)
		t.Logf("a sequence of %d operations: %v, of which %v in the operations and the end (%.1f sequences/s)", len(ops), took/rounds, inKernel/rounds, rounds/took.Seconds())

		cfg.Dir = t.TempDir()
		begin = time.Now()
		second := start(t, cfg)
		t.Logf("start from the cache: %v", since(begin))
		run(t, second, ops[:6])
		if !restored(second) {
			t.Error("the second guest was booted, though its snapshot is in the cache")
		}
	})
}

// restored tells whether a guest was started from a snapshot.
func restored(g *Guest) bool { return slices.Contains(g.m.cmd.Args, "-incoming") }

func since(t time.Time) time.Duration { return time.Since(t).Round(10 * time.Millisecond) }

// A snapshot in the cache that can't be restored costs a boot, no more.
func TestLiveSnapshotSpoilt(t *testing.T) {
	onOneKernel(t, func(t *testing.T, cfg Config) {
		good, err := os.ReadFile(filepath.Join(start(t, cfg).work.path, "snapshot"))
		if err != nil {
			t.Fatal(err)
		}
		found, _ := filepath.Glob(filepath.Join(os.Getenv("NLFUZZ_CACHE"), "snapshots", "*"))
		if len(found) != 1 {
			t.Fatalf("snapshots in the cache: %v", found)
		}
		for _, size := range []int{0, len(good) / 2} {
			// A new file: guests that run have a link to the old one.
			if err := errors.Join(os.Remove(found[0]), os.WriteFile(found[0], good[:size], 0o644)); err != nil {
				t.Fatal(err)
			}
			cfg.Dir = t.TempDir()
			begin := time.Now()
			g := start(t, cfg)
			t.Logf("start with a snapshot cut to %d bytes: %v", size, since(begin))
			if restored(g) {
				t.Errorf("a snapshot of %d bytes was restored", size)
			}
			run(t, g, nil)
			if now, err := os.Stat(found[0]); err != nil || now.Size() < int64(len(good))/2+1 {
				t.Errorf("the spoilt snapshot was not replaced: %v", err)
			}
		}
	})
}

func TestLiveDied(t *testing.T) {
	onEachKernel(t, func(t *testing.T, cfg Config) {
		g := start(t, cfg)
		for _, test := range []struct {
			name string
			die  func() error
			hung bool
			how  string
			want string // on the console
		}{
			{"panic", func() error { _, err := g.call(t.Context(), frame{kind: kindPanic}, callLimit); return err }, false, "its kernel switched it off", "Kernel panic - not syncing: sysrq"},
			{"killed", func() error {
				// It is stopped first: so it can't answer before it is killed.
				pid := g.m.cmd.Process.Pid
				syscall.Kill(pid, syscall.SIGSTOP)
				time.AfterFunc(100*time.Millisecond, func() { syscall.Kill(pid, syscall.SIGKILL) })
				_, err := g.Apply(t.Context(), model.Settle{})
				return err
			}, false, "QEMU ended: signal: killed", ""},
			{"hung", func() error {
				syscall.Kill(g.m.cmd.Process.Pid, syscall.SIGSTOP)
				_, err := g.call(t.Context(), frame{kind: kindApply, payload: []byte("nlfuzz settle")}, 300*time.Millisecond)
				return err
			}, true, "", ""},
		} {
			t.Run(test.name, func(t *testing.T) {
				if _, err := g.Begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				err := test.die()
				t.Logf("known after %v: %v", since(begin), err)
				var d *Died
				if !errors.As(err, &d) {
					t.Fatalf("got %v, want a *Died", err)
				}
				if d.Hung != test.hung || !strings.Contains(d.How, test.how) || !strings.Contains(strings.Join(d.Console, "\n"), test.want) {
					t.Errorf("hung %t, how %q, console %q", d.Hung, d.How, d.Console)
				}
				if test.name != "panic" && d.Op != "nlfuzz settle" {
					t.Errorf("the operation is %q", d.Op)
				}
				if _, err := g.Observe(t.Context()); err == nil || errors.As(err, &d) {
					t.Errorf("a dead guest answered with %v, want an error that is no finding", err)
				}
				if err := g.Reset(t.Context()); err != nil {
					t.Fatal(err)
				}
				run(t, g, sequence()[:6])
			})
		}
	})
}

// A context that ends in the middle of a call ends the machine; a reset brings it back.
func TestLiveCancel(t *testing.T) {
	onOneKernel(t, func(t *testing.T, cfg Config) {
		g := start(t, cfg)
		if _, err := g.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		syscall.Kill(g.m.cmd.Process.Pid, syscall.SIGSTOP)
		time.AfterFunc(50*time.Millisecond, cancel)
		if _, err := g.Apply(ctx, model.Settle{}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		if pids := running(cfg.Dir); len(pids) > 0 {
			t.Errorf("still running: %v", pids)
		}
		if err := g.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		run(t, g, sequence()[:6])
	})
}

// A full disk, met by the initramfs or by the snapshot, is one clear line.
func TestLiveNoSpace(t *testing.T) {
	onOneKernel(t, func(t *testing.T, cfg Config) {
		for _, test := range []struct{ size, want string }{{"1m", "write the initramfs"}, {"40m", "save a snapshot"}} {
			if err := unix.Mount("tmpfs", cfg.Dir, "tmpfs", 0, "size="+test.size); err != nil {
				t.Skipf("needs root to mount a small file system: %v", err)
			}
			_, err := Start(t.Context(), cfg)
			nothingLeft(t, cfg.Dir)
			if err := unix.Unmount(cfg.Dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
			var env *EnvError
			if !errors.As(err, &env) || !strings.Contains(env.What, test.want) || !strings.Contains(env.Next, "make room") {
				t.Errorf("with %s: got %v", test.size, err)
			}
		}
	})
}

func TestLiveScript(t *testing.T) {
	onEachKernel(t, func(t *testing.T, cfg Config) {
		t.Setenv("NLFUZZ_CACHE", "") // the userland is in the common cache
		begin := time.Now()
		const script = `echo "$0 $*"; uname -r; ip link add d0 type dummy; ip -br link show d0 | cut -d' ' -f1; sleep 1000 & exit 7`
		out, exit, err := RunScript(t.Context(), cfg, []byte(script), "--control", "two words")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("boot and script: %v", since(begin))
		if want := "/tmp/script.sh --control two words\n" + cfg.Image.Release + "\nd0\n"; exit != 7 || string(out) != want {
			t.Errorf("exit %d, output %q; want 7, %q", exit, out, want)
		}
		if _, exit, err := RunScript(t.Context(), cfg, []byte("sleep 1000 &")); exit != 0 || err != nil {
			t.Errorf("a script that leaves a process behind: exit %d, %v; want 0", exit, err)
		}
		nothingLeft(t, cfg.Dir)
	})
}
