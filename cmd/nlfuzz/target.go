package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/internal/guest"
	"github.com/nlfuzz/nlfuzz/internal/kernel"
	"github.com/nlfuzz/nlfuzz/internal/planted"
)

// targetFlags choose the kernel under test and how it is booted.
type targetFlags struct {
	Kernel string `help:"Kernel under test: debian:7.3, a bzImage or vmlinux, a build tree, or host (a fresh namespace of this kernel)." default:"debian:7.3" placeholder:"KERNEL"`
	Memory int    `help:"MiB of memory of a guest." default:"256"`
	CPUs   int    `help:"CPUs of a guest." default:"1" name:"cpus"`
	Append string `help:"More words for the guest's kernel command line." placeholder:"WORDS"`
	// Planted needs a kernel that has them.
	Planted []string `help:"Switch these planted faults on (nlfuzz bench detect --list), on a kernel built with them." placeholder:"FAULT"`
}

// environment is the targets of a verb and what is known of their kernel.
type environment struct {
	kernel  string // release and package version
	runners []*fuzz.Runner
	image   *kernel.Image // nil for the host
	config  guest.Config
	timers  []*timed
	close   sync.Once
	closers []func() error
}

// Close ends all targets; more than once is fine.
func (e *environment) Close() {
	e.close.Do(func() {
		for _, c := range e.closers {
			c() // what can't be ended is killed and cleaned up by the target itself
		}
	})
}

// open makes n targets of the kernel that the flags name, probes the kernel once, and says what it lacks.
func (t *targetFlags) open(ctx context.Context, rep *reporter, n int) (*environment, error) {
	if t.Memory < 128 || t.CPUs < 1 || t.CPUs > 64 {
		return nil, usageError{fmt.Errorf("--memory %d --cpus %d: at least 128 MiB, and 1 to 64 CPUs", t.Memory, t.CPUs)}
	}
	mask, err := plantedMask(t.Planted)
	if err != nil {
		return nil, err
	}
	env := &environment{}
	start := time.Now()
	if t.Kernel == "host" {
		err = env.openHost(n)
	} else {
		err = env.openGuests(ctx, t, rep, n)
	}
	if err != nil {
		env.Close()
		return nil, err
	}
	k, err := fuzz.Probe(ctx, env.runners[0].Target)
	if err != nil {
		env.Close()
		return nil, err
	}
	for i, r := range env.runners {
		r.Kernel = k
		if mask != 0 {
			target, ok := env.timers[i].Target.(switched)
			if !ok {
				env.Close()
				return nil, usageError{fmt.Errorf("--planted: --kernel %s has no planted faults; use planted:%s", t.Kernel, planted.Series)}
			}
			target.SetFaults(mask)
		}
	}
	if len(k.Missing) > 0 {
		rep.say("this kernel lacks, and the operations are left out: %s", missingText(k.Missing))
	}
	rep.say("ready after %s", time.Since(start).Round(100*time.Millisecond))
	return env, nil
}

// plantedMask is the mask of the faults of these names.
func plantedMask(names []string) (mask uint64, err error) {
	for _, name := range names {
		f, ok := planted.Find(name)
		if !ok {
			return 0, usageError{fmt.Errorf("no planted fault is called %q: nlfuzz bench detect --list names them", name)}
		}
		mask |= f.Mask()
	}
	return mask, nil
}

func (e *environment) openGuests(ctx context.Context, t *targetFlags, rep *reporter, n int) error {
	guest.CleanStale("")
	img, err := kernel.Resolve(ctx, t.Kernel, kernel.Options{Progress: func(s string) { rep.say("%s", s) }})
	if err != nil {
		return err
	}
	e.image, e.kernel = img, img.String()
	e.config = guest.Config{Image: img, Memory: t.Memory, CPUs: t.CPUs, Cmdline: t.Append}
	rep.say("booting %s", img)
	// The first guest boots and leaves its snapshot in the cache; the others start from that.
	for i := range n {
		g, err := guest.Start(ctx, e.config)
		if err != nil {
			return err
		}
		e.closers = append(e.closers, g.Close)
		if info := g.Info(); i == 0 {
			if info.Degraded != "" {
				rep.say("kernel memory can't be read: %s", info.Degraded)
			}
			for _, l := range info.Trouble {
				rep.say("while the guest started: %s", l)
			}
		}
		e.add(g)
	}
	return nil
}

func (e *environment) add(t fuzz.Target) {
	tm := &timed{Target: t}
	e.timers = append(e.timers, tm)
	e.runners = append(e.runners, &fuzz.Runner{Target: tm})
}

// runScript runs a script by itself in a fresh guest with a small Debian userland.
func (e *environment) runScript(ctx context.Context, script []byte, args ...string) ([]byte, int, error) {
	return guest.RunScript(ctx, e.config, script, args...)
}

// writable makes the folder for findings and checks that files can be made in it, before a long run rather than after it.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("the folder for findings: %w; choose another with --out", err)
	}
	p := filepath.Join(dir, ".writable")
	err := os.WriteFile(p, nil, 0o600)
	if err = errors.Join(err, os.Remove(p)); err != nil {
		return fmt.Errorf("the folder for findings: %s; choose another with --out", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// canaries plants the faults that every judge must flag, on the first target.
func canaries(ctx context.Context, env *environment) error {
	return fuzz.Canary(ctx, env.runners[0])
}
