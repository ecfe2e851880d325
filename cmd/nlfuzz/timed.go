package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// timed is a target that counts where the time goes.
type timed struct {
	fuzz.Target
	begin, apply, observe, release, end, reset clock
	kernel                                     atomic.Int64 // nanoseconds in the operations themselves, of apply
}

type clock struct{ n, ns atomic.Int64 }

func (c *clock) since(t time.Time) {
	c.n.Add(1)
	c.ns.Add(int64(time.Since(t)))
}

func (t *timed) Begin(ctx context.Context) (*invariants.Observation, error) {
	defer t.begin.since(time.Now())
	return t.Target.Begin(ctx)
}

func (t *timed) Apply(ctx context.Context, op model.Op) (*invariants.Observation, error) {
	defer t.apply.since(time.Now())
	o, err := t.Target.Apply(ctx, op)
	if err == nil {
		t.kernel.Add(int64(o.Took))
	}
	return o, err
}

func (t *timed) Observe(ctx context.Context) (*invariants.Observation, error) {
	defer t.observe.since(time.Now())
	return t.Target.Observe(ctx)
}

func (t *timed) Release(ctx context.Context) (*invariants.Observation, error) {
	defer t.release.since(time.Now())
	return t.Target.Release(ctx)
}

func (t *timed) End(ctx context.Context) (*invariants.Observation, error) {
	defer t.end.since(time.Now())
	return t.Target.End(ctx)
}

func (t *timed) Reset(ctx context.Context) error {
	defer t.reset.since(time.Now())
	return t.Target.Reset(ctx)
}

// times says, a line for each, how often a target's methods ran and how long they took all together.
func (e *environment) times() (out []string) {
	for _, m := range []struct {
		name string
		of   func(*timed) *clock
	}{
		{"namespace made", func(t *timed) *clock { return &t.begin }},
		{"operation and dumps", func(t *timed) *clock { return &t.apply }},
		{"observed again", func(t *timed) *clock { return &t.observe }},
		{"all released", func(t *timed) *clock { return &t.release }},
		{"namespace gone", func(t *timed) *clock { return &t.end }},
		{"guest reset", func(t *timed) *clock { return &t.reset }},
	} {
		var n, ns, kernel int64
		for _, t := range e.timers {
			n += m.of(t).n.Load()
			ns += m.of(t).ns.Load()
			kernel += t.kernel.Load()
		}
		if n == 0 {
			continue
		}
		l := fmt.Sprintf("%-20s %7d times  %7.2f ms each  %6.1f s", m.name, n, float64(ns)/1e6/float64(n), float64(ns)/1e9)
		if m.name == "operation and dumps" {
			l += fmt.Sprintf(", of which %.1f s in the operations themselves", float64(kernel)/1e9)
		}
		out = append(out, l)
	}
	return out
}
