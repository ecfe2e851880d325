package fuzz

import (
	"context"
	"slices"
	"time"

	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// slow is the judge whose word is checked before it counts: a busy machine makes a guest slow by chance.
const slow = "slow"

// confirmations is how often the operations are run again before an operation that was slow is a violation.
const confirmations = 2

// lag is an operation that was slow in one run.
type lag struct {
	at   int
	v    *invariants.Violation
	seen *invariants.Observation
}

// Run runs ops in a fresh namespace. An error means that the target could not run them; whatever is wrong with the kernel is in the Outcome. An
// operation that takes too long does not end the run, since what it hides may be worse; it is the violation if nothing else is wrong, and if the same
// operation is slow each time that all are run again. Else it was a hiccup.
func (r *Runner) Run(ctx context.Context, ops []model.Op) (*Outcome, error) {
	out, err := r.once(ctx, ops)
	if err != nil || out.Violation != nil || len(out.lags) == 0 {
		return out, err
	}
	// Who listens to the steps has heard of these.
	step := r.Step
	r.Step = nil
	defer func() { r.Step = step }()
	lags := out.lags
	for range confirmations {
		again, err := r.once(ctx, out.Ran)
		if err != nil || again.Violation != nil {
			return again, err
		}
		lags = slices.DeleteFunc(lags, func(l lag) bool {
			return !slices.ContainsFunc(again.lags, func(a lag) bool { return a.at == l.at && a.v.Fingerprint == l.v.Fingerprint })
		})
		if len(lags) == 0 {
			r.Hiccups.Add(1)
			return out, nil
		}
	}
	l := lags[0]
	out.Violation, out.At, out.Seen = l.v, l.at, l.seen
	out.Ran, out.Sent, out.Answers = out.Ran[:l.at+1], out.Sent[:l.at+1], out.Answers[:l.at+1]
	return out, nil
}

// A pace is how fast a target is: the median time of its last operations, of all kinds, as a multiple of what is usual. A fault makes one kind of
// operation slow and hardly moves the median; a kernel with debugging options, or one on a slower machine, moves all.
type pace struct {
	took []time.Duration // a ring
	next int
	now  float64
}

const (
	paceSize  = 256
	paceEvery = 32                   // how often the median is taken
	paceUsual = 4 * time.Millisecond // 1 to 3 ms were measured in an emulated guest, on a busy machine
)

func (p *pace) note(took time.Duration) {
	if len(p.took) < paceSize {
		p.took = append(p.took, took)
	} else {
		p.took[p.next%paceSize] = took
	}
	p.next++
	if p.next%paceEvery == 0 {
		sorted := slices.Clone(p.took)
		slices.Sort(sorted)
		p.now = float64(sorted[len(sorted)/2]) / float64(paceUsual)
	}
}

// Hiccups counts the runs with an operation that was slow once and not again.
func (c *Campaign) Hiccups() (n int64) {
	for _, r := range c.Runners {
		n += r.Hiccups.Load()
	}
	return n
}
