package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nlfuzz/nlfuzz/fuzz"
)

type judgesCmd struct {
	targetFlags
	Seed      uint64 `help:"Seed of the sequences." default:"1"`
	Sequences int    `help:"Sequences of a round." default:"30"`
	Rounds    int    `help:"How often they are run with the exact judges and without." default:"5"`
}

// exacting is a target whose exact counts can be switched off.
type exacting interface{ SetExact(on bool) }

// Run implements the verb: the same sequences on one target, with exact counts and without, alternating.
func (c *judgesCmd) Run(ctx context.Context) error {
	if c.Sequences < 1 || c.Rounds < 1 {
		return usageError{errors.New("--sequences and --rounds: at least 1")}
	}
	rep := newReporter(false)
	env, err := c.open(ctx, rep, 1)
	if err != nil {
		return err
	}
	defer env.Close()
	target, ok := env.timers[0].Target.(exacting)
	if !ok {
		return fmt.Errorf("the exact counts of this target can't be switched off")
	}
	r := env.runners[0]
	// Only sequences that no judge objects to: a reset costs the same either way, but a judge that ends a sequence early does not.
	var clean []fuzz.Sequence
	for i := 0; len(clean) < c.Sequences; i++ {
		seq := fuzz.Generate(c.Seed, i, fuzz.DefaultOps)
		out, err := r.Run(ctx, seq.Ops)
		if err != nil {
			return err
		}
		if out.Violation == nil {
			clean = append(clean, seq)
		}
	}
	var rates [2][]float64 // with, without
	for round := range c.Rounds {
		for turn := range 2 {
			mode := (round + turn) % 2
			target.SetExact(mode == 0)
			start := time.Now()
			for _, seq := range clean {
				out, err := r.Run(ctx, seq.Ops)
				if err != nil {
					return err
				}
				if out.Violation != nil {
					rep.say("sequence %d: %s, which it did not show before", seq.Index, out.Violation.Fingerprint)
				}
			}
			rates[mode] = append(rates[mode], float64(len(clean))/time.Since(start).Seconds())
		}
		rep.say("round %d: %.2f sequences/s with the exact judges, %.2f without", round+1, rates[0][round], rates[1][round])
	}
	// What else the machine does changes from round to round, so the two halves of a round are compared.
	var cost []float64
	for i, with := range rates[0] {
		cost = append(cost, 100*(1-with/rates[1][i]))
	}
	fmt.Printf("%d rounds of %d sequences (median, least to most): with the exact judges %s sequences/s, without %s; they cost %s %%\n",
		c.Rounds, c.Sequences, spread(rates[0]), spread(rates[1]), spread(cost))
	return nil
}

// figures are a median and its spread.
type figures struct{ median, least, most float64 }

func spread(v []float64) figures {
	s := slices.Sorted(slices.Values(v))
	return figures{s[len(s)/2], s[0], s[len(s)-1]}
}

func (f figures) String() string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", f.median, f.least, f.most)
}
