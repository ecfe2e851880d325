// Package guest runs operations in a kernel that is booted in QEMU, with this same binary as its init, and restores a snapshot of it when it is wedged.
package guest

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/kernel"
	"github.com/nlfuzz/nlfuzz/internal/rtnl"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Config says which kernel is booted and how.
type Config struct {
	Image   *kernel.Image
	Binary  string   // static nlfuzz that becomes the init; empty: this program
	Memory  int      // MiB; 0: 256
	CPUs    int      // 0: 1
	Cmdline string   // more words for the kernel
	Dir     string   // where work folders are made; empty: the folder for temporary files
	Modules []string // nil: kernel.DefaultModules
}

// Guest is a booted kernel under test. It is a fuzz.Target, for one goroutine at a time.
type Guest struct {
	cfg   Config
	work  *workDir
	mc    machineConfig
	m     *machine
	hello hello
	id    uint32
	last  []invariants.Dump

	next beginRequest
}

// Info is what is known of a running guest.
type Info struct {
	Release  string   // uname -r
	Degraded string   // why kernel memory can't be read; empty if it can
	Trouble  []string // what went wrong while it started, modules that did not load for instance
	KVM      bool
}

const (
	bootLimit = 90 * time.Second // an emulated guest takes 3 to 6 s, a debug kernel more
	callLimit = 30 * time.Second // the agent itself bounds every operation to some seconds
)

// Start boots a guest, or restores the snapshot that an earlier Start of the same kernel, binary and configuration left in the cache.
func Start(ctx context.Context, cfg Config) (*Guest, error) {
	g, err := prepare(cfg, "serve")
	if err != nil {
		return nil, err
	}
	err = g.start(ctx)
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// baseCmdline: quiet and fast under emulation; grace periods are short (docs/design.md has the figures).
const baseCmdline = "console=ttyS0 quiet panic=-1 oops=panic no_timer_check tsc=reliable random.trust_cpu=on mitigations=off rcu_nocbs=all rcupdate.rcu_expedited=1 rcutree.enable_rcu_lazy=0"

// prepare makes the work folder with the initramfs.
func prepare(cfg Config, mode string, trees ...kernel.Tree) (*Guest, error) {
	if cfg.Image == nil {
		return nil, errors.New("start a guest: no kernel image is given")
	}
	if cfg.Memory == 0 {
		cfg.Memory = 256
	}
	if cfg.CPUs == 0 {
		cfg.CPUs = 1
	}
	var err error
	if cfg.Binary == "" {
		if cfg.Binary, err = os.Executable(); err != nil {
			return nil, env("find this program", err)
		}
	}
	if err := static(cfg.Binary); err != nil {
		return nil, err
	}
	g := &Guest{cfg: cfg, id: rand.Uint32()}
	if g.work, err = newWorkDir(cfg.Dir); err != nil {
		return nil, err
	}
	// A bzImage unpacked into a vmlinux boots faster; where that can't be had, the bzImage does.
	path, err := cfg.Image.Vmlinux(kernel.Options{})
	if err != nil {
		path = cfg.Image.Kernel
	}
	if f, err := os.Open(path); err != nil {
		g.Close()
		return nil, env("read the kernel", err)
	} else {
		f.Close()
	}
	g.mc = machineConfig{kernel: path, initrd: filepath.Join(g.work.path, "initramfs"), memory: cfg.Memory, cpus: cfg.CPUs, kvm: kvmOpens(), dir: g.work.path,
		cmdline: strings.TrimSpace(baseCmdline + " nlfuzz.mode=" + mode + " " + cfg.Cmdline)}
	out, err := os.Create(g.mc.initrd)
	if err == nil {
		_, err = kernel.Initramfs(out, kernel.InitramfsSpec{Init: cfg.Binary, Image: cfg.Image, Modules: cfg.Modules, Trees: trees})
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		g.Close()
		return nil, env("write the initramfs", err)
	}
	return g, nil
}

// static checks that a binary can be an init without libraries beside it.
func static(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return env("read "+path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return &EnvError{path + " is not static, so it can't be the guest's init", "build it with CGO_ENABLED=0 (make build)"}
		}
	}
	return nil
}

func (g *Guest) start(ctx context.Context) error {
	snap, err := g.cached()
	if err != nil {
		return err
	}
	if snap != "" {
		if err := g.link(snap); err == nil {
			if err = g.Reset(ctx); err == nil || ctx.Err() != nil {
				return err
			}
		}
		// It does not restore: boot anew.
		g.stop()
		os.Remove(snap)
	}
	if err := g.boot(ctx, bootLimit); err != nil {
		return err
	}
	if err := g.m.command("qmp_capabilities", nil, nil); err != nil {
		return env("talk to QEMU", err)
	}
	if err := g.m.save(ctx, "snapshot.tmp"); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return env("save a snapshot", err)
	}
	if err := g.keep(filepath.Join(g.work.path, "snapshot.tmp")); err != nil {
		return env("keep the snapshot", err)
	}
	if err := g.m.command("cont", nil, nil); err != nil {
		return env("talk to QEMU", err)
	}
	return nil
}

// boot starts a machine and waits until its agent answers.
func (g *Guest) boot(ctx context.Context, limit time.Duration) error {
	m, err := startMachine(g.mc)
	if err != nil {
		return err
	}
	g.m = m
	err = g.greet(ctx, limit)
	var d *Died
	if !errors.As(err, &d) {
		return err
	}
	said := "its console is empty"
	if len(d.Console) > 0 {
		said = "its console ended with: " + lastLines(d.Console, 4)
	}
	return &EnvError{fmt.Sprintf("the guest did not boot: %v; %s", d, said),
		"try --kernel debian:7.3, more --memory, or the kernel's configuration (virtio-pci, virtio-console, initrd)"}
}

// greet asks the agent who it is.
func (g *Guest) greet(ctx context.Context, limit time.Duration) error {
	b, err := g.call(ctx, frame{kind: kindPing}, limit)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, &g.hello)
}

// Info says what is known of the guest.
func (g *Guest) Info() Info {
	return Info{g.hello.Release, g.hello.Degraded, g.hello.Trouble, g.mc.kvm}
}

// Reset throws the machine away and restores the snapshot in a new one.
func (g *Guest) Reset(ctx context.Context) error {
	g.stop()
	mc := g.mc
	mc.incoming = "snapshot"
	m, err := startMachine(mc)
	if err != nil {
		return err
	}
	g.m, g.last = m, nil
	if err := m.resume(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return env("restore the snapshot", err)
	}
	if err := g.greet(ctx, callLimit); err != nil {
		return fmt.Errorf("restore the snapshot: %w", err)
	}
	return nil
}

// Close ends the guest and removes its work folder.
func (g *Guest) Close() error {
	g.stop()
	return g.work.remove()
}

// stop ends the machine.
func (g *Guest) stop() {
	if g.m != nil {
		g.m.kill()
		g.m = nil
	}
}

// call sends a request and waits for its answer. If the guest ends or is silent for the limit, it has died. Without an answer, because of that or because
// the context ended, the machine is ended as well: it may be in the middle of a frame, or busy for ever. Reset brings it back.
func (g *Guest) call(ctx context.Context, f frame, limit time.Duration) ([]byte, error) {
	if g.m == nil {
		return nil, errors.New("the guest does not run: it was closed, or it must be reset after it died")
	}
	g.id++
	f.id = g.id
	m, start := g.m, time.Now()
	m.agent.SetDeadline(start.Add(limit))
	// The context's end ends the wait for an answer, and so does the machine's: QEMU closes its side.
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { m.agent.SetDeadline(time.Unix(1, 0)); close(ended) })
	defer func() {
		if !stop() {
			<-ended // else it might end the wait of the next call
		}
	}()
	err := writeFrame(m.agent, f)
	for err == nil {
		var ans frame
		if ans, err = readFrame(m.agent); err != nil {
			break
		}
		if ans.id != f.id {
			continue // of a host before this one
		}
		if ans.kind == kindFailed {
			return nil, fmt.Errorf("in the guest: %s", ans.payload)
		}
		return ans.payload, nil
	}
	defer g.stop()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	d := &Died{Op: f.name(), Hung: errors.Is(err, os.ErrDeadlineExceeded), After: time.Since(start)}
	if !d.Hung {
		d.How = m.ending(err)
	}
	d.Console = m.lines()
	return nil, d
}

func (g *Guest) observe(ctx context.Context, f frame) (*invariants.Observation, error) {
	b, err := g.call(ctx, f, callLimit)
	if err != nil {
		return nil, err
	}
	o, err := decodeObservation(b)
	if err != nil || o.Blocked || o.Net.Deleted {
		return o, err
	}
	g.last = rtnl.Merge(g.last, o.Dumps)
	o.Dumps = g.last
	o.Tables, o.Unknown, err = rtnl.Decode(g.last)
	return o, err
}

// SetFaults chooses the planted faults (internal/planted) that are on from the next Begin; that fails where the kernel has none.
func (g *Guest) SetFaults(mask uint64) { g.next.Faults = mask }

// SetExact chooses whether exact counts are read from the next Begin on. It is for measuring what they cost.
func (g *Guest) SetExact(on bool) { g.next.Inexact = !on }

// Begin implements fuzz.Target.
func (g *Guest) Begin(ctx context.Context) (*invariants.Observation, error) {
	g.last = nil
	b, err := json.Marshal(g.next)
	if err != nil {
		return nil, err
	}
	return g.observe(ctx, frame{kind: kindBegin, payload: b})
}

// Apply implements fuzz.Target.
func (g *Guest) Apply(ctx context.Context, op model.Op) (*invariants.Observation, error) {
	return g.observe(ctx, frame{kind: kindApply, payload: []byte(iproute.Print(op))})
}

// Observe implements fuzz.Target.
func (g *Guest) Observe(ctx context.Context) (*invariants.Observation, error) {
	return g.observe(ctx, frame{kind: kindObserve})
}

// Release implements fuzz.Target.
func (g *Guest) Release(ctx context.Context) (*invariants.Observation, error) {
	return g.observe(ctx, frame{kind: kindRelease})
}

// End implements fuzz.Target.
func (g *Guest) End(ctx context.Context) (*invariants.Observation, error) {
	return g.observe(ctx, frame{kind: kindEnd})
}

// Explain implements fuzz.Target.
func (g *Guest) Explain(ctx context.Context, devices []string) (out []invariants.Device, err error) {
	names, err := json.Marshal(devices)
	if err != nil {
		return nil, err
	}
	b, err := g.call(ctx, frame{kind: kindExplain, payload: names}, callLimit)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	return out, nil
}
