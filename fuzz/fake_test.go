package fuzz

import (
	"context"
	"testing"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// fake is a target whose kernel is the model itself, with a fault planted by spoil: it may change what is seen after an operation.
type fake struct {
	st     *model.State
	ran    []model.Op
	spoil  func(ran []model.Op, o *invariants.Observation)
	resets int
	wedged bool
	t      *testing.T
}

func (f *fake) Begin(context.Context) (*invariants.Observation, error) {
	if f.wedged {
		f.t.Error("a namespace was begun on a wedged kernel")
	}
	f.st, f.ran = model.New(model.DefaultProfile()), nil
	return &invariants.Observation{Tables: f.st.Tables(), Memory: f.memory()}, nil
}

// memory is what a kernel without faults counts.
func (f *fake) memory() *invariants.Memory {
	m := &invariants.Memory{NetRefs: 3}
	for name, n := range f.st.Ledger() {
		m.Devices = append(m.Devices, invariants.Device{Name: name, State: 1, Refs: n})
	}
	return m
}

func (f *fake) Apply(_ context.Context, op model.Op) (*invariants.Observation, error) {
	if f.wedged {
		f.t.Error("an operation was run on a wedged kernel")
	}
	f.ran = append(f.ran, op)
	o := &invariants.Observation{Op: iproute.Print(op), Errno: f.st.Apply(op).Errno, Tables: f.st.Tables()}
	if _, settle := op.(model.Settle); settle {
		o.Memory = f.memory()
	}
	if f.spoil != nil {
		f.spoil(f.ran, o)
	}
	f.wedged = o.Blocked
	return o, nil
}

func (f *fake) Explain(context.Context, []string) ([]invariants.Device, error) { return nil, nil }

func (f *fake) Release(ctx context.Context) (*invariants.Observation, error) {
	for _, q := range f.st.Qdiscs() {
		if q.Parent == "" {
			f.st.Apply(model.Qdisc{Verb: model.QdiscDel, Dev: q.Dev})
		}
	}
	o, err := f.Observe(ctx)
	o.Memory = f.memory()
	return o, err
}

func (f *fake) Observe(context.Context) (*invariants.Observation, error) {
	o := &invariants.Observation{Tables: f.st.Tables()}
	if f.spoil != nil {
		f.spoil(f.ran, o)
	}
	return o, nil
}

func (f *fake) End(context.Context) (*invariants.Observation, error) {
	return &invariants.Observation{Net: invariants.NetState{Deleted: true, Gone: true}}, nil
}

func (f *fake) Reset(context.Context) error {
	f.resets++
	f.wedged = false
	return nil
}

// blockedDelete is a planted fault of three parts: a delete blocks when an address was added and a rule was made before.
func blockedDelete(ran []model.Op, o *invariants.Observation) {
	var addr, rule bool
	for _, op := range ran {
		switch op := op.(type) {
		case model.AddrAdd:
			addr = true
		case model.Rule:
			rule = rule || !op.Del
		}
	}
	if _, del := ran[len(ran)-1].(model.LinkDel); del && addr && rule && o.Errno == 0 && o.Op != "" {
		o.Blocked = true
	}
}

func TestRunnerAgreesWithItsModel(t *testing.T) {
	f := &fake{t: t}
	r := &Runner{Target: f, Kernel: Kernel{Profile: model.DefaultProfile()}}
	for i := range 20 {
		out, err := r.Run(t.Context(), Generate(1, i, DefaultOps).Ops)
		if err != nil || out.Violation != nil {
			t.Fatalf("sequence %d: %v, %+v", i, err, out.Violation)
		}
	}
	if f.resets != 0 {
		t.Errorf("%d resets of a healthy target", f.resets)
	}
}

func TestCampaignFindsAndReduces(t *testing.T) {
	f := &fake{t: t, spoil: blockedDelete}
	var got []*Finding
	c := &Campaign{Seed: 3, Ops: DefaultOps, Sequences: 300, Findings: 1, Limits: DefaultLimits, Runners: []*Runner{{Target: f, Kernel: Kernel{Profile: model.DefaultProfile()}}},
		Found: func(f *Finding) error { got = append(got, f); return nil }}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Violation.Invariant != "blocked" {
		t.Fatalf("found %+v", got)
	}
	// A link, an address, a rule, the delete: nothing can go.
	if n := len(got[0].Ops); n > 4 {
		t.Errorf("reduced to %d operations, not to 4:\n%s", n, text(got[0].Ops))
	}
	if got[0].Failed != votes || got[0].Votes != votes {
		t.Errorf("fails %d of %d times, want all", got[0].Failed, got[0].Votes)
	}
	if f.resets == 0 {
		t.Error("a wedged kernel was never reset")
	}
}

func TestReduceKeepsTheFingerprint(t *testing.T) {
	// Two faults: any delete answers with a wrong errno, one of a link with an address blocks. Reducing the second must not end at the first.
	f := &fake{t: t, spoil: func(ran []model.Op, o *invariants.Observation) {
		blockedDelete(ran, o)
		if d, ok := ran[len(ran)-1].(model.LinkDel); ok && d.Name == "d1" && !o.Blocked {
			o.Errno = 1
		}
	}}
	r := &Runner{Target: f, Kernel: Kernel{Profile: model.DefaultProfile()}}
	ops := []model.Op{
		model.LinkAdd{Name: "d0", Type: model.Dummy}, model.LinkAdd{Name: "d1", Type: model.Dummy}, model.LinkUp{Name: "d0"},
		model.AddrAdd{Dev: "d1", Prefix: mustPrefix(netipAddr("10.0.0.1"), 24)}, model.Rule{Family: model.IPv4, Pref: 100, Table: 10}, model.LinkDel{Name: "d1"},
	}
	out, err := r.Run(t.Context(), ops)
	if err != nil || out.Violation == nil {
		t.Fatal(out, err)
	}
	red, err := Reduce(t.Context(), r, ops, out, DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	if red.Outcome.Violation.Fingerprint != out.Violation.Fingerprint {
		t.Errorf("reduced to %s, was %s", red.Outcome.Violation.Fingerprint, out.Violation.Fingerprint)
	}
	if len(red.Other) == 0 {
		t.Error("the other fault that was met on the way is lost")
	}
	if len(red.Ops) != 4 {
		t.Errorf("reduced to:\n%s", text(red.Ops))
	}
}

func TestReduceOfFlakyFailure(t *testing.T) {
	n := 0
	f := &fake{t: t, spoil: func(ran []model.Op, o *invariants.Observation) {
		if blockedDelete(ran, o); o.Blocked {
			n++
			o.Blocked = n%2 == 0 // fails every other time
		}
	}}
	r := &Runner{Target: f, Kernel: Kernel{Profile: model.DefaultProfile()}}
	ops := []model.Op{
		model.LinkAdd{Name: "d0", Type: model.Dummy}, model.LinkUp{Name: "d0"}, model.LinkAdd{Name: "d1", Type: model.Dummy},
		model.AddrAdd{Dev: "d0", Prefix: mustPrefix(netipAddr("10.0.0.1"), 24)}, model.Rule{Family: model.IPv4, Pref: 100, Table: 10}, model.LinkDel{Name: "d0"},
	}
	n = 1
	out, err := r.Run(t.Context(), ops)
	if err != nil || out.Violation == nil {
		t.Fatal(out, err)
	}
	red, err := Reduce(t.Context(), r, ops, out, DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	if len(red.Ops) != 4 || red.Failed == 0 || red.Failed == red.Votes {
		t.Errorf("fails %d of %d, reduced to:\n%s", red.Failed, red.Votes, text(red.Ops))
	}
}

func TestCanaryCatchesADeafJudge(t *testing.T) {
	r := &Runner{Target: &fake{t: t}, Kernel: Kernel{Profile: model.DefaultProfile()}}
	if err := Canary(t.Context(), r); err != nil {
		t.Errorf("healthy judges: %v", err)
	}
	all := invariants.All
	defer func() { invariants.All = all }()
	for i, in := range all {
		if in.Name == "waiting" {
			continue // the log's canary stands for both readers of the log
		}
		invariants.All = append(append([]invariants.Invariant{}, all[:i]...), all[i+1:]...)
		if err := Canary(t.Context(), r); err == nil {
			t.Errorf("the judge %q is deaf and no canary noticed", in.Name)
		}
	}
}
