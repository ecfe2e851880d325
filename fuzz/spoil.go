package fuzz

import (
	"net/netip"
	"slices"

	"github.com/nlfuzz/nlfuzz/model"
)

// spoil makes a good operation wrong in one place. The kernel finds that out late, when it has already taken references: the error paths that undo these
// are what it is after. What is drawn from anywhere, as wild operations are, is mostly refused by the first check.
func (g *gen) spoil(op model.Op) model.Op {
	switch o := op.(type) {
	case model.Route:
		return g.spoilRoute(o)
	case model.Nexthop:
		return g.spoilNexthop(o)
	case model.LinkAdd:
		if used := names[o.Type]; len(used) > 0 && g.oneIn(2) {
			o.Name = g.sample("used", used)
		} else {
			o.MTU = pick(g, []uint32{1, 67, 70000})
		}
		return o
	case model.AddrAdd:
		if as := g.addrs(model.FamilyOf(o.Prefix.Addr())); len(as) > 0 {
			o.Prefix = pick(g, as).Prefix
		}
		return o
	case model.LinkMaster:
		o.Master = g.sample("master", allNames)
		return o
	case model.Qdisc:
		o.Parent = pick(g, []string{"1:9", "7:1"})
		return o
	}
	return op
}

func (g *gen) spoilRoute(o model.Route) model.Op {
	f := model.FamilyOf(o.Dst.Addr())
	far := g.nowhere(f)
	o.Legs = slices.Clone(o.Legs)
	switch n := len(o.Legs); {
	case g.oneIn(4): // a source that is nobody's
		o.Src = far
	case n == 1 && o.Legs[0].Gateway.IsValid() && g.oneIn(2): // a gateway that can't be reached, behind one that can
		o.Legs = append(o.Legs, model.Leg{Gateway: far, Dev: o.Legs[0].Dev})
	case n > 0 && g.oneIn(2):
		o.Legs[n-1] = model.Leg{Gateway: far, Dev: o.Legs[n-1].Dev}
	case n == 1 && f == model.IPv6 && o.Legs[0].Gateway.IsValid() && g.oneIn(2): // the same leg twice
		o.Legs = append(o.Legs, o.Legs[0])
	default: // one that exists
		var fit []model.RouteEntry
		for _, r := range g.tab.Routes {
			if r.Family == f {
				fit = append(fit, r)
			}
		}
		if len(fit) > 0 {
			r := pick(g, fit)
			o.Dst, o.Table, o.Metric = r.Dst, r.Table, r.Metric
		}
	}
	return o
}

func (g *gen) spoilNexthop(o model.Nexthop) model.Op {
	switch {
	case len(o.Group) > 0:
		o.Group = append(slices.Clone(o.Group), model.Member{ID: 99})
	case o.Gateway.IsValid() && g.oneIn(2):
		o.Gateway = g.nowhere(model.FamilyOf(o.Gateway))
	default:
		if len(g.tab.Nexthops) > 0 {
			o.ID = pick(g, g.tab.Nexthops).ID
		}
	}
	return o
}

// nowhere is an address that no route but a default one leads to.
func (g *gen) nowhere(f model.Family) netip.Addr {
	if f == model.IPv4 {
		return netip.AddrFrom4([4]byte{172, 16, 99, 9})
	}
	return netip.MustParseAddr("2001:db9:99::9")
}
