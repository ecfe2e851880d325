package fuzz

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Runner runs sequences on one target, with the model in lockstep and the judges after every operation.
type Runner struct {
	Target Target
	Kernel Kernel // what Probe says of it
	// Step, if set, is called after each operation: with what was expected and seen, for replay's listing and for counting.
	Step func(i int, op model.Op, want invariants.Expected, got *invariants.Observation)

	// Known, if set, tells fingerprints of the exact judges that were reported before. They do not end a sequence: the kernel is none the worse.
	Known func(fingerprint string) bool

	// Resets counts how often the target was reset.
	Resets atomic.Int64
	// Hiccups counts the runs with an operation that was slow once and not again.
	Hiccups atomic.Int64

	dirty bool // the target must be reset before it can be used
	pace  pace
	book  book // ledgers of the states met
	blind bool // for canaries: the model's prediction of the ledgers is not judged
}

// Outcome is what became of one sequence.
type Outcome struct {
	// Violation is the first claim that did not hold; nil if all held.
	Violation *invariants.Violation
	// At is the index of the operation after which it was seen; len(ops) for the namespace's end.
	At int
	// Seen is the observation that broke it; nil when the kernel died.
	Seen *invariants.Observation
	// Answers are the model's answers to the operations that ran.
	Answers []model.Answer
	// Ran are the operations that ran, the one that broke the claim included.
	Ran []model.Op
	// Unknown are the netlink attributes met that the decoder does not know.
	Unknown map[string]bool
	// Sent says, for each operation that ran, how long after the namespace's begin it was sent.
	Sent []time.Duration
	// Unread says what of kernel memory could not be read, so that exact counts were not judged.
	Unread []string
	// Took is the time from the namespace's begin to the verdict.
	Took time.Duration

	lags []lag // operations that were slow
}

// A state that differs may be on its way: link watch reports carrier changes from a work item. It is read again after these pauses, and only what
// still differs after the last is a violation.
var settlePauses = []time.Duration{2 * time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, 1200 * time.Millisecond}

// once runs ops one time. What was slow is in the Outcome's lags, not its Violation: see Run.
func (r *Runner) once(ctx context.Context, ops []model.Op) (*Outcome, error) {
	out := &Outcome{Unknown: map[string]bool{}}
	if r.dirty {
		if err := r.Target.Reset(ctx); err != nil {
			return nil, fmt.Errorf("reset the target: %w", err)
		}
		r.Resets.Add(1)
		r.dirty = false
	}
	start := time.Now()
	defer func() { out.Took = time.Since(start) }()
	// Until the namespace is known to be gone without a fault, nothing more may run on this kernel.
	r.dirty = true
	obs, err := r.Target.Begin(ctx)
	if err != nil {
		return r.died(out, -1, nil, err)
	}
	ops = r.Kernel.Supported(ops)
	out.At = len(ops)
	st := model.New(r.Kernel.Profile)
	want := invariants.Expected{Kind: "begin", Tables: st.Tables(), Ledgers: st.Ledger()}
	been := r.book.begin()
	been.recall(&want, nil)
	if obs.Memory != nil {
		been.netRefs = obs.Memory.NetRefs
	}
	if v, seen, err := r.judge(ctx, obs, want); err != nil {
		return r.died(out, -1, nil, err)
	} else if v != nil {
		out.Violation, out.Seen, out.At = v, seen, -1
		return out, nil
	}
	been.note(want, obs.Memory, nil)
	for i, op := range ops {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		out.Ran, out.Sent = append(out.Ran, op), append(out.Sent, time.Since(start))
		before := want.Tables
		ans := st.Apply(op)
		want = invariants.Expected{Kind: op.Kind(), Answer: ans, Tables: st.Tables(), Before: before, Links: before.Links, Pace: r.pace.now}
		obs, err := r.Target.Apply(ctx, op)
		if err != nil {
			return r.died(out, i, op, err)
		}
		if obs.Memory != nil {
			want.Ledgers, want.Loose = st.Ledger(), loose(want.Tables)
			been.recall(&want, ops[:i])
		}
		if obs.Memory != nil && out.Unread == nil {
			out.Unread = obs.Memory.Trouble
		}
		out.Answers = append(out.Answers, ans)
		for _, u := range obs.Unknown {
			out.Unknown[u] = true
		}
		v, seen, err := r.judge(ctx, obs, want)
		if err != nil {
			return r.died(out, i, op, err)
		}
		if r.Step != nil {
			r.Step(i, op, want, seen)
		}
		r.pace.note(seen.Took)
		if v != nil && v.Invariant == slow {
			out.lags = append(out.lags, lag{i, v, seen})
			v = nil
		}
		if v == nil && seen.Memory != nil {
			been.note(want, seen.Memory, ops[:i])
		}
		if v != nil {
			out.Violation, out.At, out.Seen = v, i, seen
			if obs.Blocked || v.Invariant == "log" || v.Invariant == "waiting" || invariants.Exact(v.Invariant) {
				return out, nil // the kernel is wedged or tainted, or has something that will never go
			}
			// What differs does not harm the kernel: end the namespace and go on with it.
			if end, err := r.Target.End(ctx); err == nil && end.Net.Gone && len(end.Log) == 0 {
				r.dirty = false
			}
			return out, nil
		}
	}
	if v, seen, err := r.release(ctx, been, st, want, ops); err != nil {
		return r.died(out, len(ops), nil, err)
	} else if v != nil {
		out.Violation, out.Seen = v, seen
		return out, nil
	}
	obs, err = r.Target.End(ctx)
	if err != nil {
		return r.died(out, len(ops), nil, err)
	}
	v := invariants.Judge(obs, invariants.Expected{Kind: "end", Links: want.Tables.Links})
	if v != nil {
		out.Violation, out.Seen = v, obs
		return out, nil
	}
	r.dirty = false
	return out, nil
}

// release lets go of everything that the sequence still holds and judges what is left.
func (r *Runner) release(ctx context.Context, been *visit, st *model.State, last invariants.Expected, ops []model.Op) (*invariants.Violation, *invariants.Observation, error) {
	obs, err := r.Target.Release(ctx)
	if err != nil {
		return nil, nil, err
	}
	// The target has deleted the qdiscs that can hold packets.
	for _, q := range st.Qdiscs() {
		if q.Parent == "" {
			st.Apply(model.Qdisc{Verb: model.QdiscDel, Dev: q.Dev})
		}
	}
	want := invariants.Expected{Kind: "release", Tables: st.Tables(), Before: last.Tables, Links: last.Tables.Links}
	if obs.Memory != nil {
		want.Ledgers, want.Loose, want.NetRefs = st.Ledger(), loose(want.Tables), been.netRefs
		been.recall(&want, ops)
	}
	return r.judge(ctx, obs, want)
}

// loose names the devices that are up without carrier.
func loose(t *model.Tables) map[string]bool {
	out := map[string]bool{}
	for _, l := range t.Links {
		if l.Up && !l.Carrier {
			out[l.Name] = true
		}
	}
	return out
}

// judge asks the judges. A state that differs is observed again until it agrees or the pauses are used up; exact counts that differ are read again after
// further barriers, since what one RCU callback releases may be put by another.
func (r *Runner) judge(ctx context.Context, obs *invariants.Observation, want invariants.Expected) (*invariants.Violation, *invariants.Observation, error) {
	if r.blind {
		want.Ledgers = nil
	}
	want.Known = r.Known
	v := invariants.Judge(obs, want)
	for _, p := range settlePauses {
		if v == nil || v.Invariant != "state" {
			break
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(p):
		}
		again, err := r.Target.Observe(ctx)
		if err != nil {
			return nil, nil, err
		}
		again.Op, again.Errno, again.Extack, again.Took, again.Notes, again.Memory = obs.Op, obs.Errno, obs.Extack, obs.Took, obs.Notes, obs.Memory
		obs = again
		v = invariants.Judge(obs, want)
	}
	for range barriers {
		if v == nil || !invariants.Exact(v.Invariant) || obs.Memory == nil {
			break
		}
		again, err := r.Target.Apply(ctx, model.Settle{})
		if err != nil {
			return nil, nil, err
		}
		obs.Memory = again.Memory
		v = invariants.Judge(obs, want)
	}
	if v != nil && len(v.Devices) > 0 {
		var err error
		if v, err = r.explain(ctx, v, obs, want); err != nil {
			return nil, nil, err
		}
	}
	return v, obs, nil
}

// barriers is how often exact counts that differ are read again.
const barriers = 3

// explain adds who holds the references that are too many, and judges again.
func (r *Runner) explain(ctx context.Context, v *invariants.Violation, obs *invariants.Observation, want invariants.Expected) (*invariants.Violation, error) {
	devices, err := r.Target.Explain(ctx, v.Devices)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if seen := obs.Memory.Device(d.Name); seen != nil {
			seen.Holders = d.Holders
		}
	}
	return invariants.Judge(obs, want), nil
}

// died makes a violation of a target's error if the kernel under test died; any other error is passed on.
func (r *Runner) died(out *Outcome, i int, op model.Op, err error) (*Outcome, error) {
	var dead Dead
	if !errors.As(err, &dead) {
		return nil, err
	}
	words := dead.LastWords()
	v := invariants.JudgeLog(words)
	if v == nil {
		kind := "begin or end"
		if op != nil {
			kind = op.Kind()
		}
		v = &invariants.Violation{Invariant: "died", Fingerprint: "died/" + kind, Detail: words}
	}
	if op != nil {
		v.Detail = append([]string{"while it ran: " + iproute.Print(op) + ": " + dead.Error()}, v.Detail...)
	}
	out.Violation, out.At = v, i
	return out, nil
}
