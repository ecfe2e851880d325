package fuzz

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"pgregory.net/rapid"

	"github.com/nlfuzz/nlfuzz/model"
)

// DefaultOps is how many operations a sequence has before its teardown.
const DefaultOps = 30

// tries is how often an operation is drawn again because the model says that it would fail (or, if it was to fail, that it would not).
const tries = 8

// Generate returns sequence number index of the campaign with this seed, with n operations and a teardown. It is a pure function: the same arguments
// give the same sequence on every machine and for every kernel, since the model that guides it has the default profile.
func Generate(seed uint64, index, n int) Sequence {
	// Two rounds of a good generator make neighbouring indexes independent; rapid wants an int.
	r := rand.New(rand.NewPCG(seed, uint64(index)))
	return Sequence{Seed: seed, Index: index, Ops: Ops(n).Example(int(r.Uint64() >> 1))}
}

// Ops is the rapid generator of sequences of n operations with a teardown: for rapid.Check, rapid.MakeFuzz and Generate.
//
// A sequence is half of the time a property (properties.go) with random operations in its gaps, else all random. The teardown deletes every device in
// a random order while everything that holds references is still held: after it, nothing may be left. The exact counts are judged in the middle, before the
// teardown and at the end, where the sequence settles.
func Ops(n int) *rapid.Generator[[]model.Op] {
	return rapid.Custom(func(t *rapid.T) []model.Op {
		g := &gen{t: t, st: model.New(model.DefaultProfile()), learned: map[model.Family][]netip.Addr{}}
		g.tab = g.st.Tables()
		var steps []step
		if rapid.Bool().Draw(t, "property") {
			steps = rapid.SampledFrom(properties).Draw(t, "which").steps
		}
		detour := -1 // where operations are done and undone
		if g.oneIn(detourOneIn) {
			detour = rapid.IntRange(0, n-1).Draw(t, "detour")
		}
		audited := detour >= 0 || g.oneIn(2) // a detour settles as well; one reading in the middle is enough, and they cost
		for len(g.ops) < n {
			if !audited && len(g.ops) >= n/2 {
				g.add(model.Settle{})
				audited = true
			}
			if len(g.ops) >= detour && detour >= 0 {
				g.detour()
				detour = -1
			}
			left := n - len(g.ops)
			// Each step of the property falls into its share of the sequence; what lies between is random.
			if len(steps) > 0 && rapid.IntRange(0, left/len(steps)).Draw(t, "gap") == 0 {
				g.add(g.draw(steps[0], false))
				steps = steps[1:]
				continue
			}
			g.add(g.random())
		}
		g.add(model.Settle{})
		for {
			var names []string
			for _, l := range g.tab.Links {
				if l.Name != "lo" {
					names = append(names, l.Name)
				}
			}
			if len(names) == 0 {
				return g.ops
			}
			g.add(model.LinkDel{Name: g.sample("teardown", names)})
		}
	})
}

// step makes one operation from the state reached; nil if there is none that fits.
type step = func(*gen) model.Op

// gen draws operations while the model runs along.
type gen struct {
	t    *rapid.T
	st   *model.State
	tab  *model.Tables // of st
	ops  []model.Op
	held []string // sockets held

	learned map[model.Family][]netip.Addr // addresses with a path MTU of their own
	joined  string                        // the device of the last socket that was connected to a group
	wild    bool                          // arguments come from anywhere
}

func (g *gen) add(op model.Op) {
	if op == nil {
		return
	}
	g.ops = append(g.ops, op)
	ans := g.st.Apply(op)
	g.tab = g.st.Tables()
	switch o := op.(type) {
	case model.Hold:
		if ans.Errno == 0 {
			g.held = append(g.held, o.Name)
		}
	case model.PTB:
		f := model.FamilyOf(o.To)
		g.learned[f] = append(g.learned[f], o.To)
	case model.Release:
		g.held = slices.DeleteFunc(g.held, func(n string) bool { return n == o.Name })
	}
}

// random draws one operation by weight. It never returns nil: a link can always be made or set up.
func (g *gen) random() model.Op {
	wild := rapid.IntRange(0, wildOneIn-1).Draw(g.t, "wild") == 0
	for range 4 * tries {
		n := rapid.IntRange(0, totalWeight-1).Draw(g.t, "kind")
		for _, w := range weights {
			if n -= w.weight; n < 0 {
				if op := g.draw(w.make, wild); op != nil {
					return op
				}
				break
			}
		}
	}
	return model.LinkUp{Name: "lo"}
}

// draw makes one operation whose success, as the model sees it, is as wanted; after some tries it takes what comes.
func (g *gen) draw(make step, wild bool) (op model.Op) {
	spoilt := wild && g.oneIn(2)
	g.wild = wild && !spoilt
	defer func() { g.wild = false }()
	for range tries {
		if op = make(g); op == nil {
			return nil
		}
		if spoilt {
			op = g.spoil(op)
		}
		if fails := g.st.Clone().Apply(op).Errno != 0; fails == wild {
			return op
		}
	}
	return op
}

func (g *gen) sample(label string, from []string) string {
	if len(from) == 0 {
		return ""
	}
	return rapid.SampledFrom(from).Draw(g.t, label)
}

// oneIn is true one time in n.
func (g *gen) oneIn(n int) bool { return rapid.IntRange(0, n-1).Draw(g.t, "one in") == n-1 }

func pick[T any](g *gen, from []T) T { return rapid.SampledFrom(from).Draw(g.t, "pick") }
