// Package fuzz generates sequences of rtnetlink operations, runs each on the model and on a live kernel in lockstep, and reduces those that fail.
package fuzz

import (
	"context"

	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Target is where a sequence runs: a network namespace of one kernel. It is used by one goroutine at a time.
//
// A method's error means that the target failed, not the operation: the kernel's answer is in the Observation.
type Target interface {
	// Begin makes a fresh namespace and observes it.
	Begin(ctx context.Context) (*invariants.Observation, error)
	// Apply runs one operation and observes the namespace after it.
	Apply(ctx context.Context, op model.Op) (*invariants.Observation, error)
	// Observe observes the namespace again without an operation.
	Observe(ctx context.Context) (*invariants.Observation, error)
	// Explain reads what holds references on the namespace's devices of these names (invariants.Device.Holders).
	Explain(ctx context.Context, names []string) ([]invariants.Device, error)
	// Release lets go of what the sequence still holds: sockets, and packets that wait in qdiscs, which it deletes. Then it settles and observes.
	Release(ctx context.Context) (*invariants.Observation, error)
	// End releases what the sequence holds, deletes the namespace and waits until it is gone.
	End(ctx context.Context) (*invariants.Observation, error)
	// Reset throws the kernel's state away: what was blocked or dead is good again after it.
	Reset(ctx context.Context) error
}

// Dead is implemented by a Target's error when the kernel under test died or hung: a finding, not trouble of the machine.
type Dead interface {
	error
	// LastWords are the last lines of the kernel's console.
	LastWords() []string
}

// Sequence is operations in order, with how they came to be.
type Sequence struct {
	Seed  uint64 // of the campaign
	Index int    // in the campaign
	Ops   []model.Op
}
