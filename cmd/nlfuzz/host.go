package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/nlfuzz/nlfuzz/internal/kmem"
	"github.com/nlfuzz/nlfuzz/internal/live"
	"github.com/nlfuzz/nlfuzz/internal/rtnl"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// host is a fresh namespace of this machine's own kernel as a target: what live sees, decoded here.
type host struct {
	*live.Target
	last []invariants.Dump
}

func (e *environment) openHost(n int) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("--kernel host makes network namespaces: run it as root, or use a guest (--kernel debian:7.3)")
	}
	var cfg live.Config
	if mem, err := kmem.Open(); err == nil {
		cfg.Memory = mem
		e.closers = append(e.closers, mem.Close)
	}
	for range n {
		t, err := live.New(cfg)
		if err != nil {
			return err
		}
		e.closers = append(e.closers, t.Close)
		e.add(&host{Target: t})
	}
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	e.kernel = "host " + strings.TrimSpace(string(b))
	return err
}

func (h *host) Begin(ctx context.Context) (*invariants.Observation, error) {
	h.last = nil
	return h.decode(h.Target.Begin(ctx))
}

func (h *host) Apply(ctx context.Context, op model.Op) (*invariants.Observation, error) {
	return h.decode(h.Target.Apply(ctx, op))
}

func (h *host) Observe(ctx context.Context) (*invariants.Observation, error) {
	return h.decode(h.Target.Observe(ctx))
}

func (h *host) Release(ctx context.Context) (*invariants.Observation, error) {
	return h.decode(h.Target.Release(ctx))
}

// Reset releases what blocks: the kernel of this machine can't be thrown away.
func (h *host) Reset(ctx context.Context) error { return h.Recover(ctx) }

func (h *host) decode(o *invariants.Observation, err error) (*invariants.Observation, error) {
	if err != nil || o.Blocked {
		return o, err
	}
	h.last = rtnl.Merge(h.last, o.Dumps)
	o.Tables, o.Unknown, err = rtnl.Decode(h.last)
	return o, err
}
