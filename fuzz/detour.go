package fuzz

import (
	"pgregory.net/rapid"

	"github.com/nlfuzz/nlfuzz/model"
)

const (
	detourOneIn = 3 // one sequence in so many has a detour
	maxDetour   = 4 // operations that a detour undoes
)

// detour does some operations and undoes them, between two settles: the exact counts must be what they were (invariants: undo).
func (g *gen) detour() {
	g.add(model.Settle{})
	var back []model.Op
	for range rapid.IntRange(1, maxDetour).Draw(g.t, "detour length") {
		op := g.random()
		undo := inverse(op)
		if undo == nil || g.st.Clone().Apply(op).Errno != 0 {
			continue
		}
		g.add(op)
		back = append(back, undo)
	}
	for i := len(back) - 1; i >= 0; i-- {
		g.add(back[i])
	}
	g.add(model.Settle{})
}

// inverse returns the operation that undoes one that added something, nil for others. Whether the state is then really what it was, the model says.
func inverse(op model.Op) model.Op {
	switch o := op.(type) {
	case model.LinkAdd:
		return model.LinkDel{Name: o.Name}
	case model.LinkUp:
		return model.LinkDown{Name: o.Name}
	case model.LinkMaster:
		return model.LinkNoMaster{Name: o.Name}
	case model.AddrAdd:
		return model.AddrDel{Prefix: o.Prefix, Dev: o.Dev}
	case model.Route:
		if o.Verb == model.RouteAdd || o.Verb == model.RouteAppend || o.Verb == model.RoutePrepend {
			o.Verb = model.RouteDel
			return o
		}
	case model.Nexthop:
		if o.Verb == model.NexthopAdd {
			return model.Nexthop{Verb: model.NexthopDel, ID: o.ID}
		}
	case model.Rule:
		if !o.Del {
			o.Del = true
			return o
		}
	case model.Neigh:
		if o.Verb == model.NeighAdd {
			return model.Neigh{Verb: model.NeighDel, Addr: o.Addr, Dev: o.Dev, Proxy: o.Proxy}
		}
	case model.Qdisc:
		if o.Verb == model.QdiscAdd {
			return model.Qdisc{Verb: model.QdiscDel, Dev: o.Dev, Parent: o.Parent}
		}
	case model.Filter:
		if !o.Del {
			o.Del = true
			return o
		}
	}
	return nil
}
