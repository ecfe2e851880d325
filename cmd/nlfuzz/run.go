package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/internal/iproute"
)

type runCmd struct {
	targetFlags
	Seed      uint64        `help:"Seed of the campaign; printed, and enough to repeat it. 0 draws one." placeholder:"N"`
	Time      time.Duration `help:"Stop after so long (reductions that were begun end first)." default:"10m"`
	Sequences int           `help:"Stop after so many sequences." placeholder:"N"`
	Ops       int           `help:"Operations of a sequence before its teardown." default:"30"`
	Findings  int           `help:"Stop after so many different findings." placeholder:"N"`
	Guests    int           `help:"How many guests run at the same time." default:"2"`
	Out       string        `help:"Folder for the findings." default:"findings" type:"path"`
	NoReduce  bool          `help:"Keep findings as they were generated."`
	NoScript  bool          `help:"Do not run the scripts of findings in a guest of their own."`
	JSON      bool          `help:"One JSON object a line on standard output: start, status, finding, end." name:"json"`
}

func (c *runCmd) validate() error {
	switch {
	case c.Ops < 1 || c.Ops > 1000:
		return usageError{fmt.Errorf("--ops %d: from 1 to 1000", c.Ops)}
	case c.Guests < 1 || c.Guests > 64:
		return usageError{fmt.Errorf("--guests %d: from 1 to 64", c.Guests)}
	case c.Time < 0 || c.Sequences < 0 || c.Findings < 0:
		return usageError{errors.New("--time, --sequences and --findings can't be negative")}
	case c.Time == 0 && c.Sequences == 0 && c.Findings == 0:
		return usageError{errors.New("the run would never end: give --time, --sequences or --findings")}
	}
	return nil
}

// Run implements the verb.
func (c *runCmd) Run(ctx context.Context) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64N(1 << 32)
	}
	if err := writable(c.Out); err != nil {
		return err
	}
	rep := newReporter(c.JSON)
	env, err := c.open(ctx, rep, c.Guests)
	if err != nil {
		return err
	}
	defer env.Close()

	command := fmt.Sprintf("nlfuzz run --kernel %s --seed %d --ops %d", c.Kernel, c.Seed, c.Ops)
	rep.say("kernel %s; seed %d; %d guests; findings go to %s", env.kernel, c.Seed, len(env.runners), c.Out)
	rep.event("start", map[string]any{"kernel": env.kernel, "seed": c.Seed, "command": command})
	if err := canaries(ctx, env); err != nil {
		return err
	}
	camp := &fuzz.Campaign{Seed: c.Seed, Ops: c.Ops, Sequences: c.Sequences, Time: c.Time, Findings: c.Findings, Runners: env.runners,
		Limits: fuzz.DefaultLimits, Kernel: env.kernel, Command: command}
	if c.NoReduce {
		camp.Limits = fuzz.Limits{}
	}
	var found []foundOne
	camp.Found = func(f *fuzz.Finding) error {
		dir, err := f.Save(c.Out)
		if err == nil {
			err = writeScript(f, filepath.Join(dir, "repro.sh"))
		}
		printFinding(rep, f, dir)
		rep.event("finding", map[string]any{"fingerprint": f.Violation.Fingerprint, "dir": dir, "index": f.Original.Index, "ops": len(f.Ops),
			"seconds": f.Took.Seconds(), "reduction_seconds": f.Reduction.Seconds(), "failed": f.Failed, "votes": f.Votes})
		found = append(found, foundOne{f, dir})
		return err
	}
	status, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	start := time.Now()
	go func() { rep.watch(status, camp); close(done) }()
	err = camp.Run(ctx)
	stop()
	<-done
	took := time.Since(start)
	s := &camp.Stats
	rep.say("done: %d sequences, %d ops in %s (%.2f sequences/s), %d resets, %d findings, %d repeats of them, %d hiccups", s.Sequences.Load(), s.Ops.Load(),
		took.Round(time.Second), float64(s.Sequences.Load())/took.Seconds(), camp.Resets(), len(found), s.Repeats.Load(), camp.Hiccups())
	for _, l := range env.times() {
		rep.say("  %s", l)
	}
	if u := slices.Sorted(slices.Values(s.Unknown())); len(u) > 0 {
		rep.say("attributes that the decoder does not know: %s", strings.Join(u, ", "))
	}
	if u := s.Unread(); len(u) > 0 {
		rep.say("exact reference counts were not judged: %s", strings.Join(u, "; "))
	}
	rep.event("end", map[string]any{"sequences": s.Sequences.Load(), "ops": s.Ops.Load(), "resets": camp.Resets(), "findings": len(found), "repeats": s.Repeats.Load(), "hiccups": camp.Hiccups(),
		"seconds": took.Seconds()})
	env.Close()
	if errors.Is(err, context.Canceled) && len(found) > 0 {
		rep.say("interrupted; %d findings are in %s, their scripts were not run", len(found), c.Out)
		return errFound
	}
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return nil
	}
	if !c.NoScript && env.image != nil {
		if err := proveScripts(ctx, rep, env, found); err != nil {
			return err
		}
	}
	return errFound
}

type foundOne struct {
	*fuzz.Finding
	dir string
}

func printFinding(rep *reporter, f *fuzz.Finding, dir string) {
	rep.say("\nFINDING %s", f.Violation.Fingerprint)
	rep.say("  seen after %s, in sequence %d; reduced in %s (%d runs) to %d operations; fails %d of %d times", f.Took.Round(time.Second), f.Original.Index,
		f.Reduction.Round(time.Second), f.Runs, len(f.Ops), f.Failed, f.Votes)
	if f.Reduced != "" {
		rep.say("  the reduction stopped early: %s", f.Reduced)
	}
	for _, op := range f.Ops {
		rep.say("    %s", iproute.Print(op))
	}
	for i, d := range f.Violation.Detail {
		if i == 20 {
			rep.say("  ... %d lines more in finding.json", len(f.Violation.Detail)-i)
			break
		}
		rep.say("  %s", d)
	}
	rep.say("  saved in %s", dir)
}

// missingText names the operations that a kernel lacks, one line.
func missingText(missing map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(missing)) {
		out = append(out, k+" ("+missing[k]+")")
	}
	return strings.Join(out, ", ")
}
