package fuzz

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// canaries are planted faults: each withholds from the kernel what the model is told, or the other way round, on the live target. A judge that does not
// flag its canary can't be trusted with a campaign. The control is the same sequence without the fault.
var canaries = []struct {
	invariant string
	spoil     func(*spoiled)
}{
	{"", func(*spoiled) {}},
	{"errno", func(s *spoiled) { s.errno = syscall.EPERM }},
	{"state", func(s *spoiled) { s.skip = true }},
	{"log", func(s *spoiled) { s.log = "WARNING: CPU: 0 PID: 1 at net/core/canary.c:1 canary+0x1/0x2" }},
	{"notify", func(s *spoiled) { s.deaf = true }},
	{"blocked", func(s *spoiled) { s.blocked = true }},
	{"slow", func(s *spoiled) { s.took = time.Minute }},
	{"orphan", func(s *spoiled) { s.lie = lieFrom(firstSettle, orphanRoute) }},
	{"ledger", func(s *spoiled) { s.lie = lieFrom(firstSettle, oneMore) }},
	{"undo", func(s *spoiled) { s.lie, s.blind = lieFrom(secondSettle, oneMore), true }},
	{"path", func(s *spoiled) { s.lie, s.blind = lieFrom(0, oneMore), true }},
	{"netrefs", func(s *spoiled) {
		s.lie = lieFrom(firstSettle, func(m *invariants.Memory) { m.NetRefs++ })
	}},
	{"netns", func(s *spoiled) { s.stays = true }},
}

// spoiled is a target that lies about one operation.
type spoiled struct {
	Target
	errno   syscall.Errno
	skip    bool
	log     string
	blocked bool
	deaf    bool
	took    time.Duration
	stays   bool
	lie     func(reading int, m *invariants.Memory) // about the exact counts
	blind   bool                                    // the prediction is withheld, so that the judges behind it are heard

	readings int  // of exact counts
	ended    bool // the target's namespace
}

var canaryOps = []model.Op{
	model.LinkUp{Name: "lo"},
	model.AddrAdd{Prefix: netip.MustParsePrefix("2001:db8::1/64"), Dev: "lo"},
	model.Route{Verb: model.RouteAdd, Type: model.Blackhole, Dst: netip.MustParsePrefix("192.0.2.0/24")},
	model.Settle{},
	model.AddrAdd{Prefix: netip.MustParsePrefix("2001:db8:1::1/64"), Dev: "lo"},
	model.AddrDel{Prefix: netip.MustParsePrefix("2001:db8:1::1/64"), Dev: "lo"},
	model.Settle{},
}

// The readings of exact counts that canaryOps makes, counted from 0, which is the namespace's begin.
const (
	firstSettle  = 1
	secondSettle = 2 // of the same state
)

func lieFrom(reading int, lie func(*invariants.Memory)) func(int, *invariants.Memory) {
	return func(n int, m *invariants.Memory) {
		if n >= reading {
			lie(m)
		}
	}
}

func oneMore(m *invariants.Memory) { m.Devices[0].Refs++ }

func orphanRoute(m *invariants.Memory) {
	m.Dsts = append(m.Dsts, invariants.Dst{Family: model.IPv6, Where: invariants.Nowhere, Refs: 1, Dev: invariants.Pin{Name: "lo", Reg: 1}, Text: "a canary"})
}

func (s *spoiled) read(o *invariants.Observation, err error) (*invariants.Observation, error) {
	if err == nil && o.Memory != nil {
		if s.lie != nil {
			s.lie(s.readings, o.Memory)
		}
		s.readings++
	}
	return o, err
}

func (s *spoiled) Begin(ctx context.Context) (*invariants.Observation, error) {
	return s.read(s.Target.Begin(ctx))
}

func (s *spoiled) Release(ctx context.Context) (*invariants.Observation, error) {
	return s.read(s.Target.Release(ctx))
}

func (s *spoiled) Apply(ctx context.Context, op model.Op) (*invariants.Observation, error) {
	if _, ok := op.(model.Settle); ok {
		return s.read(s.Target.Apply(ctx, op))
	}
	if _, ok := op.(model.Route); !ok {
		return s.Target.Apply(ctx, op)
	}
	if s.skip {
		return s.Target.Observe(ctx)
	}
	o, err := s.Target.Apply(ctx, op)
	if err != nil {
		return nil, err
	}
	if s.errno != 0 {
		o.Errno = s.errno
	}
	if s.log != "" {
		o.Log = append(o.Log, s.log)
	}
	o.Blocked = o.Blocked || s.blocked
	if s.deaf {
		o.Notes = &invariants.Notes{}
	}
	o.Took += s.took
	return o, nil
}

func (s *spoiled) End(ctx context.Context) (*invariants.Observation, error) {
	o, err := s.Target.End(ctx)
	s.ended = true
	if err == nil && s.stays {
		o.Net.Gone = false
	}
	return o, err
}

// Canary plants a fault for each judge on the runner's target and fails unless every one is flagged by its judge, and the control by none. Where kernel
// memory can't be read the judges of exact counts have nothing to judge, and no canary.
func Canary(ctx context.Context, r *Runner) error {
	var control spoiled
	spoilt := &Runner{Kernel: r.Kernel} // one for all: it remembers what the control counted
	for _, c := range canaries {
		if invariants.Exact(c.invariant) && control.readings == 0 {
			continue
		}
		s := &spoiled{Target: r.Target}
		c.spoil(s)
		spoilt.Target, spoilt.blind, spoilt.dirty = s, s.blind, false
		out, err := spoilt.Run(ctx, canaryOps)
		if err != nil {
			return err
		}
		if c.invariant == "" {
			control = *s
		}
		got := ""
		if out.Violation != nil {
			got = out.Violation.Invariant
		}
		if got != c.invariant {
			d := ""
			if out.Violation != nil {
				d = fmt.Sprintf(": %q", out.Violation.Detail)
			}
			return fmt.Errorf("canary: the judge %q should have spoken, %q did%s", c.invariant, got, d)
		}
		if !s.ended {
			// The lie made the runner think that the kernel is wedged; only the namespace is to be ended.
			if _, err := r.Target.End(ctx); err != nil {
				return fmt.Errorf("canary %s: %w", c.invariant, err)
			}
		}
	}
	return nil
}
