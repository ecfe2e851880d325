package fuzz

import (
	"context"
	"slices"
	"time"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Detection is what became of the search for one planted fault.
type Detection struct {
	Found       bool
	Judge       string
	Fingerprint string
	Detail      []string
	Sequences   int           // run with the fault on, the one that shows it included
	Ops         int           // in them
	Took        time.Duration // until the verdict was confirmed
	// Cause is the operation after which the exact counts are wrong for the first time, and Verdict how long after it was sent the judge spoke.
	Cause   string
	Verdict time.Duration
	// Known are fingerprints that the kernel also shows with the fault off.
	Known []string
}

// Detect searches for a fault that is planted in the runner's kernel: it runs the sequences of a seed with the fault on until a judge speaks, and takes that
// for the fault only if the same sequence is clean with the fault off, and fails in the same way with it on again. The switch acts from the next sequence on.
func Detect(ctx context.Context, r *Runner, seed uint64, limit time.Duration, turn func(on bool)) (*Detection, error) {
	d := &Detection{}
	start := time.Now()
	known := map[string]bool{}
	defer turn(false)
	r.Known = func(fingerprint string) bool { return known[fingerprint] }
	defer func() { r.Known = nil }()
	for i := 0; time.Since(start) < limit; i++ {
		seq := Generate(seed, i, DefaultOps)
		turn(true)
		out, err := r.Run(ctx, seq.Ops)
		if err != nil {
			return nil, err
		}
		d.Sequences++
		d.Ops += len(out.Ran)
		if out.Violation == nil || known[out.Violation.Fingerprint] {
			continue
		}
		// Nothing that the fault left behind may be there in the control.
		r.Discard()
		turn(false)
		control, err := r.Run(ctx, seq.Ops)
		if err != nil {
			return nil, err
		}
		if control.Violation != nil && control.Violation.Fingerprint == out.Violation.Fingerprint {
			known[out.Violation.Fingerprint] = true
			d.Known = append(d.Known, out.Violation.Fingerprint)
			continue
		}
		turn(true)
		again, err := r.Run(ctx, seq.Ops)
		if err != nil {
			return nil, err
		}
		if again.Violation == nil || again.Violation.Invariant != out.Violation.Invariant {
			continue // by chance: a busy machine, for instance
		}
		d.Found, d.Judge, d.Fingerprint, d.Detail = true, out.Violation.Invariant, out.Violation.Fingerprint, out.Violation.Detail
		d.Took = time.Since(start)
		at, err := cause(ctx, r, out)
		if err != nil {
			return nil, err
		}
		d.Cause, d.Verdict = iproute.Print(out.Ran[at]), out.Took-out.Sent[at]
		break
	}
	if !d.Found {
		d.Took = time.Since(start)
	}
	r.Discard()
	return d, nil
}

// cause finds the operation that did what was told of later: the last one of the shortest beginning of the sequence after which, once settled, the exact
// counts are wrong. Where they never are, it is the operation that the judge spoke of: what a device's own parts hold among themselves shows only when the
// device goes.
func cause(ctx context.Context, r *Runner, out *Outcome) (int, error) {
	good, bad := 0, len(out.Ran) // lengths of beginnings
	for bad-good > 1 {
		half := (good + bad) / 2
		o, err := r.Run(ctx, append(slices.Clone(out.Ran[:half]), model.Settle{}))
		if err != nil {
			return 0, err
		}
		if o.Violation != nil && invariants.Exact(o.Violation.Invariant) {
			bad = half
		} else {
			good = half
		}
	}
	return bad - 1, nil
}

// Discard makes the runner reset its target before the next sequence.
func (r *Runner) Discard() { r.dirty = true }
