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

	ended bool // the target's namespace
}

var canaryOps = []model.Op{
	model.LinkUp{Name: "lo"},
	model.AddrAdd{Prefix: netip.MustParsePrefix("2001:db8::1/64"), Dev: "lo"},
	model.Route{Verb: model.RouteAdd, Type: model.Blackhole, Dst: netip.MustParsePrefix("192.0.2.0/24")},
}

func (s *spoiled) Apply(ctx context.Context, op model.Op) (*invariants.Observation, error) {
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

// Canary plants a fault for each judge on the runner's target and fails unless every one is flagged by its judge, and the control by none.
func Canary(ctx context.Context, r *Runner) error {
	for _, c := range canaries {
		s := &spoiled{Target: r.Target}
		c.spoil(s)
		spoilt := &Runner{Target: s, Kernel: r.Kernel}
		out, err := spoilt.Run(ctx, canaryOps)
		if err != nil {
			return err
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
