package fuzz

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nlfuzz/nlfuzz/invariants"
)

// Campaign runs generated sequences on one or more targets until it has had enough. Sequence i is the same whatever the number of targets.
type Campaign struct {
	Seed      uint64
	Ops       int           // operations of a sequence before its teardown
	Sequences int           // stop after so many; 0: no limit
	Time      time.Duration // stop after so long; 0: no limit
	Findings  int           // stop after so many different fingerprints; 0: no limit
	Runners   []*Runner
	Limits    Limits // of each reduction; zero Runs: findings are not reduced
	Kernel    string
	Command   string // that repeats the campaign
	// Found is called for each new finding, one at a time; its error ends the campaign.
	Found func(*Finding) error

	Stats Stats

	mu    sync.Mutex
	known map[string]bool
	start time.Time
}

// Stats counts what a campaign did; safe to read while it runs.
type Stats struct {
	Sequences, Ops, Findings atomic.Int64
	Repeats                  atomic.Int64 // violations with a fingerprint that was met before
	Reducing                 atomic.Int64 // reductions going on
	mu                       sync.Mutex
	unknown                  map[string]bool
	unread                   []string
}

// Unread says why exact counts were not judged, if they could not be read as a whole.
func (s *Stats) Unread() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unread
}

// Unknown lists the netlink attributes met so far that the decoder does not know.
func (s *Stats) Unknown() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for u := range s.unknown {
		out = append(out, u)
	}
	return out
}

func (s *Stats) note(o *Outcome) {
	s.Ops.Add(int64(len(o.Ran)))
	s.Sequences.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(o.Unread) > 0 {
		s.unread = o.Unread
	}
	for u := range o.Unknown {
		if s.unknown == nil {
			s.unknown = map[string]bool{}
		}
		s.unknown[u] = true
	}
}

// Resets counts how often the targets were reset.
func (c *Campaign) Resets() (n int64) {
	for _, r := range c.Runners {
		n += r.Resets.Load()
	}
	return n
}

// errEnough ends a campaign that has reached a limit of its own.
var errEnough = errors.New("enough")

// Run runs the campaign. It returns nil when a limit of the campaign ended it, and the context's error when that did; what was found was given to Found.
func (c *Campaign) Run(ctx context.Context) error {
	c.start, c.known = time.Now(), map[string]bool{}
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if c.Time > 0 {
		t := time.AfterFunc(c.Time, func() { stop(errEnough) })
		defer t.Stop()
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for _, r := range c.Runners {
		r.Known = c.repeated
		wg.Go(func() {
			for run.Err() == nil {
				i := int(next.Add(1)) - 1
				if c.Sequences > 0 && i >= c.Sequences {
					return
				}
				if err := c.one(run, ctx, r, i); err != nil {
					stop(err)
				}
			}
		})
	}
	wg.Wait()
	switch err := context.Cause(run); {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errEnough):
		return nil
	default:
		return err
	}
}

// one runs sequence i. The campaign's own end stops it, but not the reduction of what it found: only user, the caller's context, ends that.
func (c *Campaign) one(ctx, user context.Context, r *Runner, i int) error {
	seq := Generate(c.Seed, i, c.Ops)
	out, err := r.Run(ctx, seq.Ops)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	c.Stats.note(out)
	if out.Violation == nil {
		return nil
	}
	if !c.claim(out.Violation) {
		c.Stats.Repeats.Add(1)
		return nil
	}
	f := &Finding{Violation: out.Violation, Ops: out.Ran, At: out.At, Answers: out.Answers, Seen: out.Seen,
		Original: seq, Kernel: c.Kernel, Command: c.Command, Took: time.Since(c.start)}
	if c.Limits.Runs > 0 {
		c.Stats.Reducing.Add(1)
		r.Known = nil // what is reduced is known by now
		red, err := Reduce(user, r, f.Ops, out, c.Limits)
		r.Known = c.repeated
		c.Stats.Reducing.Add(-1)
		if err != nil {
			return errors.Join(c.report(f), err)
		}
		f.Apply(red)
		for _, o := range red.Other {
			if c.claim(o.Violation) {
				o.Original, o.Kernel, o.Command, o.Took = seq, c.Kernel, c.Command, time.Since(c.start)
				o.Reduced = "met while another finding was reduced; not reduced itself"
				if err := c.report(o); err != nil {
					return err
				}
			}
		}
	}
	return c.report(f)
}

// Apply takes over what a reduction found.
func (f *Finding) Apply(red *Reduction) {
	f.Ops, f.At, f.Answers, f.Seen, f.Violation = red.Ops, red.Outcome.At, red.Outcome.Answers, red.Outcome.Seen, red.Outcome.Violation
	f.Failed, f.Votes, f.Runs, f.Reduced, f.Reduction = red.Failed, red.Votes, red.Runs, red.Stopped, red.Took
}

// claim is true for the first violation with its fingerprint, until there are as many as were asked for.
func (c *Campaign) claim(v *invariants.Violation) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[v.Fingerprint] || c.Findings > 0 && len(c.known) >= c.Findings {
		return false
	}
	c.known[v.Fingerprint] = true
	return true
}

// repeated tells a fingerprint that was claimed.
func (c *Campaign) repeated(fingerprint string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[fingerprint]
}

func (c *Campaign) report(f *Finding) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.Stats.Findings.Add(1)
	if c.Found != nil {
		if err := c.Found(f); err != nil {
			return err
		}
	}
	if c.Findings > 0 && int(n) >= c.Findings {
		return errEnough
	}
	return nil
}
