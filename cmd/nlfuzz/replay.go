package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

type replayCmd struct {
	targetFlags
	File  string `arg:"" help:"Sequence file, or folder of a finding." type:"path"`
	Times int    `help:"Run it so many times." default:"1"`
	State bool   `help:"Print the whole state at the end."`
	// Record feeds the tests of the judges.
	Record string `help:"Write what was expected and seen at each reading of the exact counts to this file, one JSON object a line." type:"path" placeholder:"FILE"`
}

// readOps reads a sequence file, or the minimal sequence of a finding's folder.
func readOps(path string) ([]model.Op, error) {
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		path = filepath.Join(path, "sequence.txt")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, usageError{err}
	}
	defer f.Close()
	_, ops, err := iproute.ParseSequence(f)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", path, err)}
	}
	if len(ops) == 0 {
		return nil, usageError{fmt.Errorf("%s: no operations in it", path)}
	}
	return ops, nil
}

// Run implements the verb.
func (c *replayCmd) Run(ctx context.Context) error {
	if c.Times < 1 {
		return usageError{fmt.Errorf("--times %d: at least 1", c.Times)}
	}
	ops, err := readOps(c.File)
	if err != nil {
		return err
	}
	var record *json.Encoder
	if c.Record != "" {
		f, err := os.Create(c.Record)
		if err != nil {
			return usageError{fmt.Errorf("--record: %w", err)}
		}
		defer f.Close()
		record = json.NewEncoder(f)
	}
	rep := newReporter(false)
	env, err := c.open(ctx, rep, 1)
	if err != nil {
		return err
	}
	defer env.Close()
	r := env.runners[0]
	var state *model.Tables
	r.Step = func(_ int, op model.Op, want invariants.Expected, got *invariants.Observation) {
		state = got.Tables
		answer := invariants.ErrnoName(got.Errno)
		if got.Blocked {
			answer = "blocked"
		}
		model := invariants.ErrnoName(want.Answer.Errno)
		if want.Answer.Unjudged {
			model = "any"
		}
		fmt.Printf("%-12s %-12s %9s  %s", answer, "("+model+")", got.Took.Round(10*time.Microsecond), iproute.Print(op))
		if got.Extack != "" && got.Errno != 0 {
			fmt.Printf("   # %s", got.Extack)
		}
		fmt.Println()
		printMemory(got.Memory)
		if record != nil && (got.Memory != nil || got.Blocked) {
			seen := *got
			seen.Dumps, seen.Tables, seen.Notes = nil, nil, nil
			record.Encode(invariants.Record{Expected: invariants.Expected{Kind: want.Kind, Links: want.Links, Ledgers: want.Ledgers, Undone: want.Undone, Other: want.Other,
				NetRefs: want.NetRefs}, Seen: seen})
		}
	}
	fmt.Printf("%-12s %-12s %9s  %s\n", "KERNEL", "(MODEL)", "TOOK", "OPERATION")
	failed := 0
	var last *fuzz.Outcome
	for range c.Times {
		out, err := r.Run(ctx, ops)
		if err != nil {
			return err
		}
		if out.Violation != nil {
			failed++
			last = out
			printViolation(out)
		}
		r.Step = nil // list it once
	}
	if c.State && state != nil {
		for _, l := range state.Lines() {
			fmt.Println("  " + l)
		}
	}
	fmt.Printf("%d of %d runs broke an invariant\n", failed, c.Times)
	if last != nil {
		return errFound
	}
	return nil
}

func printViolation(out *fuzz.Outcome) {
	fmt.Printf("VIOLATION %s\n", out.Violation.Fingerprint)
	for i, d := range out.Violation.Detail {
		if i == 40 {
			fmt.Printf("  ... and %d lines more\n", len(out.Violation.Detail)-i)
			break
		}
		fmt.Println("  " + d)
	}
}

// printMemory shows the ledger of each device as a table.
func printMemory(m *invariants.Memory) {
	if m == nil {
		return
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  DEVICE\tREFS\tNEIGHBOURS\tDSTS\tDETACHED\tLEDGER\n")
	for i := range m.Devices {
		d := &m.Devices[i]
		fmt.Fprintf(w, "  %s\t%d\t%d\t%d\t%d\t%d\n", d.Name, d.Refs, d.Neighbours, d.Dsts, d.Detached, d.Ledger())
	}
	w.Flush()
	for _, d := range m.Dsts {
		fmt.Printf("  route in use on %s: %s\n", d.Where, d.Text)
	}
}
