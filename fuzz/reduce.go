package fuzz

import (
	"context"
	"time"

	"github.com/nlfuzz/nlfuzz/model"
)

// Reduction is how a sequence was made smaller.
type Reduction struct {
	Ops     []model.Op
	Outcome *Outcome // of the last run that failed
	Runs    int      // on the target
	Failed  int      // how many of the last Votes runs of the result failed with the fingerprint
	Votes   int
	Other   []*Finding // findings with another fingerprint that were met on the way
	Took    time.Duration
	// Stopped says why the reduction ended before it was done; empty if nothing more could be removed.
	Stopped string
}

// Limits bound a reduction.
type Limits struct {
	Runs int           // on the target, without the votes
	Time time.Duration // all together
}

// DefaultLimits suit one finding on an emulated guest.
var DefaultLimits = Limits{Runs: 400, Time: 6 * time.Minute}

// votes is how often the result is run again to tell how reliably it fails.
const votes = 5

// reducer removes and simplifies operations while the fingerprint stays.
type reducer struct {
	run   *Runner
	lim   Limits
	print string
	start time.Time
	res   *Reduction
	// tries is how often a candidate is run until one run fails: 1 for a failure that always shows.
	tries int
	seen  map[string]bool
	err   error
}

// Reduce makes ops smaller on the live kernel: what is left still fails with the fingerprint of first. It removes what comes after the failure, then
// parts by delta debugging, with everything that depends on what was removed, then arguments, links that another can stand for, and names.
func Reduce(ctx context.Context, run *Runner, ops []model.Op, first *Outcome, lim Limits) (*Reduction, error) {
	d := &reducer{run: run, lim: lim, print: first.Violation.Fingerprint, start: time.Now(), tries: 1, seen: map[string]bool{},
		res: &Reduction{Ops: ops, Outcome: first}}
	// Is it reliable? Two runs decide how often each candidate gets a chance.
	cut := first.Ran
	if !d.fails(ctx, cut) {
		d.tries = 3
		if !d.fails(ctx, cut) && !d.fails(ctx, ops) {
			d.res.Stopped = "the failure did not show again"
		}
	}
	if d.res.Stopped == "" {
		d.chunks(ctx)
		d.simplify(ctx)
		d.merge(ctx)
		d.chunks(ctx)
		d.rename(ctx)
	}
	for d.err == nil && d.res.Votes < votes && ctx.Err() == nil {
		o, err := run.Run(ctx, d.res.Ops)
		if err != nil {
			if ctx.Err() == nil {
				d.err = err
			}
			break
		}
		d.res.Votes++
		if o.Violation != nil && o.Violation.Fingerprint == d.print {
			d.res.Failed++
			d.res.Outcome = o
		}
	}
	d.res.Took = time.Since(d.start)
	return d.res, d.err
}

// fails runs ops and keeps them as the result if they fail as the first run did.
func (d *reducer) fails(ctx context.Context, ops []model.Op) bool {
	key := text(ops)
	if d.err != nil || d.tries == 1 && d.seen[key] {
		return false
	}
	d.seen[key] = true
	for range d.tries {
		switch {
		case ctx.Err() != nil:
			d.res.Stopped = "interrupted"
			return false
		case d.res.Runs >= d.lim.Runs:
			d.res.Stopped = "limit of runs reached"
			return false
		case time.Since(d.start) > d.lim.Time:
			d.res.Stopped = "limit of time reached"
			return false
		}
		d.res.Runs++
		o, err := d.run.Run(ctx, ops)
		if err != nil {
			if ctx.Err() == nil {
				d.err = err
			}
			return false
		}
		if o.Violation == nil {
			continue
		}
		if o.Violation.Fingerprint == d.print {
			d.res.Ops, d.res.Outcome = o.Ran, o
			return true
		}
		d.res.Other = append(d.res.Other, &Finding{Violation: o.Violation, Ops: o.Ran, At: o.At, Answers: o.Answers, Seen: o.Seen})
	}
	return false
}

// chunks removes ever smaller parts, from the end to the start, until no single operation can go.
func (d *reducer) chunks(ctx context.Context) {
	for size := max(len(d.res.Ops)/2, 1); ; {
		removed := false
		for end := len(d.res.Ops); end > 0; end -= size {
			if end > len(d.res.Ops) {
				continue
			}
			rest := without(d.run.Kernel.Profile, d.res.Ops, max(end-size, 0), end)
			if len(rest) < len(d.res.Ops) && d.fails(ctx, rest) {
				removed = true
			}
			if d.res.Stopped != "" || d.err != nil {
				return
			}
		}
		if size > 1 {
			size /= 2
		} else if !removed {
			return
		}
	}
}

// without returns ops without those from start to end and what depends on them.
func without(p model.Profile, ops []model.Op, start, end int) []model.Op {
	return filtered(p, ops, func(i int, _ model.Op) bool { return i >= start && i < end })
}

// filtered returns ops without those to drop, and without those that succeeded before and fail now: what depends on what was dropped. The model knows: no
// list of dependencies has to be kept.
func filtered(p model.Profile, ops []model.Op, drop func(int, model.Op) bool) []model.Op {
	before, after := model.New(p), model.New(p)
	var out []model.Op
	for i, op := range ops {
		was := before.Apply(op)
		if drop(i, op) {
			continue
		}
		try := after.Clone()
		if is := try.Apply(op); was.Errno == 0 && is.Errno != 0 {
			continue
		}
		after = try
		out = append(out, op)
	}
	return out
}
