package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/nlfuzz/nlfuzz/fuzz"
)

type reduceCmd struct {
	targetFlags
	File string `arg:"" help:"Sequence file or folder of a finding." type:"path"`
	Out  string `help:"Folder for the finding." default:"findings" type:"path"`
	Runs int    `help:"Most runs on the kernel." default:"400"`
}

// failing runs a sequence once; it is wrong use if nothing is wrong with it.
func (t *targetFlags) failing(ctx context.Context, file string) (*fuzz.Finding, *reporter, *environment, error) {
	ops, err := readOps(file)
	if err != nil {
		return nil, nil, nil, err
	}
	rep := newReporter(false)
	env, err := t.open(ctx, rep, 1)
	if err != nil {
		return nil, nil, nil, err
	}
	out, err := env.runners[0].Run(ctx, ops)
	if err == nil && out.Violation == nil {
		err = usageError{fmt.Errorf("%s: all invariants hold on %s; nothing to do", file, env.kernel)}
	}
	if err != nil {
		env.Close()
		return nil, nil, nil, err
	}
	f := &fuzz.Finding{Violation: out.Violation, Ops: out.Ran, At: out.At, Answers: out.Answers, Seen: out.Seen, Kernel: env.kernel,
		Command: "nlfuzz replay --kernel " + t.Kernel + " " + filepath.Base(file)}
	return f, rep, env, nil
}

// Run implements the verb.
func (c *reduceCmd) Run(ctx context.Context) error {
	if c.Runs < 1 {
		return usageError{fmt.Errorf("--runs %d: at least 1", c.Runs)}
	}
	if err := writable(c.Out); err != nil {
		return err
	}
	f, rep, env, err := c.failing(ctx, c.File)
	if err != nil {
		return err
	}
	defer env.Close()
	out := &fuzz.Outcome{Violation: f.Violation, At: f.At, Answers: f.Answers, Seen: f.Seen, Ran: f.Ops}
	lim := fuzz.DefaultLimits
	lim.Runs = c.Runs
	red, err := fuzz.Reduce(ctx, env.runners[0], f.Ops, out, lim)
	if err != nil {
		return err
	}
	f.Apply(red)
	dir, err := f.Save(c.Out)
	if err == nil {
		err = writeScript(f, filepath.Join(dir, "repro.sh"))
	}
	if err != nil {
		return err
	}
	printFinding(rep, f, dir)
	return errFound
}
