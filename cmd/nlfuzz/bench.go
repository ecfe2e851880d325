package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/internal/planted"
)

type benchCmd struct {
	Judges judgesCmd `cmd:"" help:"Run the same sequences with the exact judges and without, and say what these cost."`
	Detect detectCmd `cmd:"" help:"Search for each planted fault alone and say which judge finds it, after how long."`
}

type detectCmd struct {
	targetFlags
	Faults []string      `arg:"" optional:"" help:"Names of faults; all where none is given."`
	Seed   uint64        `help:"Seed of the sequences." default:"1"`
	Time   time.Duration `help:"Give a fault up after so long." default:"10m"`
	Guests int           `help:"How many guests search at the same time, each for a fault of its own." default:"2"`
	CSV    string        `help:"Write the table to this file as well." type:"path" placeholder:"FILE"`
	Wanted int           `help:"Exit with 1 when fewer faults than so many are detected." placeholder:"N"`
	List   bool          `help:"Only list the faults."`
}

// switched is a target with planted faults.
type switched interface{ SetFaults(mask uint64) }

// Run implements the verb.
func (c *detectCmd) Run(ctx context.Context) error {
	faults := planted.Faults
	if len(c.Faults) > 0 {
		faults = nil
		for _, name := range c.Faults {
			if _, err := plantedMask([]string{name}); err != nil {
				return err
			}
			f, _ := planted.Find(name)
			faults = append(faults, f)
		}
	}
	if c.List {
		for _, f := range faults {
			fmt.Printf("%-24s %-13s %s: %s\n", f.Name, f.Kind, f.Where, f.What)
		}
		return nil
	}
	if c.Guests < 1 || c.Guests > 64 || c.Time <= 0 {
		return usageError{errors.New("--guests from 1 to 64, and --time above 0")}
	}
	rep := newReporter(false)
	env, err := c.open(ctx, rep, c.Guests)
	if err != nil {
		return err
	}
	defer env.Close()
	if env.image == nil {
		return usageError{errors.New("--kernel host: planted faults are in a kernel of their own: nlfuzz kernel build --faults, then --kernel planted:" + planted.Series)}
	}
	if err := canaries(ctx, env); err != nil {
		return err
	}
	return c.table(faults, c.search(ctx, env, faults, rep))
}

// result is a row of the table.
type result struct {
	*fuzz.Detection
	err error
}

// search looks for the faults, each guest for one at a time, and prints each row as it comes.
func (c *detectCmd) search(ctx context.Context, env *environment, faults []planted.Fault, rep *reporter) []result {
	results := make([]result, len(faults))
	next := make(chan int, len(faults))
	for i := range faults {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for n, r := range env.runners {
		target := env.timers[n].Target.(switched)
		wg.Go(func() {
			for i := range next {
				if ctx.Err() != nil {
					results[i].err = ctx.Err()
					continue
				}
				f := faults[i]
				d, err := fuzz.Detect(ctx, r, c.Seed, c.Time, func(on bool) {
					if target.SetFaults(0); on {
						target.SetFaults(f.Mask())
					}
				})
				results[i] = result{d, err}
				if err != nil {
					rep.say("%s: %v", f.Name, err)
					continue
				}
				rep.say("%s", row(f, d))
			}
		})
	}
	wg.Wait()
	return results
}

func row(f planted.Fault, d *fuzz.Detection) string {
	if !d.Found {
		return fmt.Sprintf("%-24s %-13s NOT DETECTED in %d sequences, %d operations, %s", f.Name, f.Kind, d.Sequences, d.Ops, d.Took.Round(time.Second))
	}
	return fmt.Sprintf("%-24s %-13s by %-8s after %6.1f s, %4d sequences, %5d operations; verdict %.2f s after %s  %s",
		f.Name, f.Kind, d.Judge, d.Took.Seconds(), d.Sequences, d.Ops, d.Verdict.Seconds(), d.Cause, d.Fingerprint)
}

// table sums up, writes the file, and fails if too few were detected.
func (c *detectCmd) table(faults []planted.Fault, results []result) error {
	var out [][]string
	found, early, failed := 0, 0, 0
	judges := map[string]int{}
	var missed []string
	var verdicts []time.Duration
	for i, f := range faults {
		d := results[i].Detection
		if results[i].err != nil || d == nil {
			failed++
			continue
		}
		out = append(out, []string{f.Name, string(f.Kind), f.Where, fmt.Sprint(d.Found), d.Judge, d.Fingerprint, fmt.Sprint(d.Sequences), fmt.Sprint(d.Ops),
			fmt.Sprintf("%.1f", d.Took.Seconds()), d.Cause, fmt.Sprintf("%.2f", d.Verdict.Seconds())})
		if !d.Found {
			missed = append(missed, f.Name)
			continue
		}
		found++
		judges[d.Judge]++
		verdicts = append(verdicts, d.Verdict)
		if d.Took <= 2*time.Minute {
			early++
		}
	}
	fmt.Printf("detected %d of %d faults within %s, %d of them within 2 minutes; %d could not be run\n", found, len(faults), c.Time, early, failed)
	if len(missed) > 0 {
		fmt.Printf("missed: %s\n", strings.Join(missed, ", "))
	}
	var by []string
	for j, n := range judges {
		by = append(by, fmt.Sprintf("%s %d", j, n))
	}
	slices.Sort(by)
	fmt.Printf("by judge: %s\n", strings.Join(by, ", "))
	if len(verdicts) > 0 {
		slices.Sort(verdicts)
		fmt.Printf("from the operation that causes it to the verdict: median %.2f s, most %.2f s\n", verdicts[len(verdicts)/2].Seconds(), verdicts[len(verdicts)-1].Seconds())
	}
	if c.CSV != "" {
		if err := writeCSV(c.CSV, out); err != nil {
			return err
		}
	}
	if found < c.Wanted {
		return errFound
	}
	return nil
}

func writeCSV(path string, rows [][]string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	w := csv.NewWriter(f)
	w.Write([]string{"fault", "kind", "where", "detected", "judge", "fingerprint", "sequences", "operations", "seconds", "cause", "verdict_seconds"})
	w.WriteAll(rows)
	return errors.Join(w.Error(), f.Close())
}
