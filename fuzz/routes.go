package fuzz

import (
	"net/netip"

	"pgregory.net/rapid"

	"github.com/nlfuzz/nlfuzz/model"
)

// The makers of route and nexthop operations.

func mustPrefix(a netip.Addr, bits int) netip.Prefix { return netip.PrefixFrom(a, bits) }

// legs draws the ways out of a route: mostly one, over a device that is up, with a gateway of one of its subnets or without.
func (g *gen) legs(f model.Family, most int) []model.Leg {
	n := 1
	if most > 1 && g.oneIn(5) {
		n = rapid.IntRange(2, most).Draw(g.t, "legs")
	}
	var out []model.Leg
	for range n {
		d := g.dev(isUp)
		if d == "" {
			return nil
		}
		l := model.Leg{Dev: d}
		if n > 1 || g.oneIn(2) {
			l.Gateway = g.gateway(f, d)
			if g.oneIn(4) && l.Gateway.IsValid() && !(n > 1 && f == model.IPv6) {
				l.Dev = ""
			}
		}
		if g.oneIn(12) && l.Gateway.IsValid() && l.Dev != "" {
			l.Onlink = true
		}
		if n > 1 && g.oneIn(3) {
			l.Weight = uint16(rapid.IntRange(2, 5).Draw(g.t, "weight"))
		}
		out = append(out, l)
	}
	return out
}

// gateway draws a neighbour's address in a subnet of the device; where it has none, or in wild mode, in any subnet.
func (g *gen) gateway(f model.Family, dev string) netip.Addr {
	var of []model.Addr
	for _, a := range g.addrs(f) {
		if a.Dev == dev && a.Prefix.Bits() <= 64 && (f == model.IPv6 || a.Prefix.Bits() <= 24) {
			of = append(of, a)
		}
	}
	if len(of) == 0 || g.wild {
		return g.subnetAddr(f, 1, 8, 9)
	}
	b := pick(g, of).Prefix.Addr().AsSlice()
	b[len(b)-1] = byte(pick(g, []int{7, 8, 9}))
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (g *gen) dst(f model.Family) netip.Prefix {
	if f == model.IPv4 {
		return pick(g, prefixes4)
	}
	return pick(g, prefixes6)
}

// route draws a whole route: what add, append, prepend and replace take.
func (g *gen) route(verb model.RouteVerb) model.Op {
	f := g.family()
	o := model.Route{Verb: verb, Dst: g.dst(f), Table: pick(g, tables), Metric: pick(g, metrics)}
	if g.oneIn(6) {
		o.Type = pick(g, []model.RouteType{model.Blackhole, model.Unreachable, model.Prohibit, model.Throw, model.Local})
	}
	switch {
	case o.Type == model.Local:
		o.Legs = []model.Leg{{Dev: g.dev(isUp)}}
		if o.Legs[0].Dev == "" {
			return nil
		}
	case o.Type != 0:
		if g.wild && g.oneIn(3) {
			o.Legs = g.legs(f, 1)
		}
	case len(g.tab.Nexthops) > 0 && g.oneIn(3):
		o.NHID = pick(g, g.tab.Nexthops).ID
	default:
		if o.Legs = g.legs(f, 3); len(o.Legs) == 0 && !g.wild {
			return nil
		}
	}
	if g.wild && g.oneIn(6) {
		o.NHID = pick(g, single)
	}
	if as := g.addrs(f); len(as) > 0 && g.oneIn(10) {
		o.Src = pick(g, as).Prefix.Addr()
	}
	return o
}

// again draws a route with the key of one that exists, so that append, replace and change meet something.
func (g *gen) again(verb model.RouteVerb) model.Op {
	op := g.route(verb)
	o, ok := op.(model.Route)
	if !ok {
		return op
	}
	var fit []model.RouteEntry
	for _, r := range g.tab.Routes {
		if r.Family == model.FamilyOf(o.Dst.Addr()) && (r.Proto != protoKernel || g.oneIn(20)) {
			fit = append(fit, r)
		}
	}
	if len(fit) > 0 && !g.wild {
		r := pick(g, fit)
		o.Dst, o.Table, o.Metric = r.Dst, r.Table, r.Metric
	}
	return o
}

// protoKernel is RTPROT_KERNEL: routes that the kernel made.
const protoKernel = 2

func (g *gen) routeAdd() model.Op     { return g.route(model.RouteAdd) }
func (g *gen) routePrepend() model.Op { return g.again(model.RoutePrepend) }
func (g *gen) routeAppend() model.Op  { return g.again(model.RouteAppend) }
func (g *gen) routeChange() model.Op  { return g.again(model.RouteChange) }

func (g *gen) routeReplace() model.Op {
	if g.oneIn(4) {
		return g.route(model.RouteReplace)
	}
	return g.again(model.RouteReplace)
}

// routeDel names a route that exists, by more or less of what it has.
func (g *gen) routeDel() model.Op {
	if g.wild || len(g.tab.Routes) == 0 {
		op := g.route(model.RouteDel)
		if op == nil {
			return nil
		}
		return op
	}
	r := pick(g, g.tab.Routes)
	if r.Proto == protoKernel && !g.oneIn(8) {
		return nil
	}
	o := model.Route{Verb: model.RouteDel, Dst: r.Dst, Table: r.Table}
	if r.Type != model.Unicast {
		o.Type = r.Type
	}
	if g.oneIn(2) {
		o.Metric = r.Metric
	}
	if r.NHID != 0 {
		if g.oneIn(2) {
			o.NHID = r.NHID
		}
		return o
	}
	if g.oneIn(2) && (r.Type == model.Unicast || r.Type == model.Local) {
		for _, l := range r.Legs {
			leg := model.Leg{Gateway: l.Gateway, Dev: l.Dev}
			if len(r.Legs) > 1 {
				leg.Weight = l.Weight
			}
			o.Legs = append(o.Legs, leg)
		}
		if len(o.Legs) > 1 && r.Family == model.IPv6 && g.oneIn(2) {
			o.Legs = []model.Leg{{Gateway: r.Legs[0].Gateway, Dev: r.Legs[0].Dev}}
		}
	}
	return o
}

func (g *gen) freeID(pool []uint32) uint32 {
	var free []uint32
	for _, id := range pool {
		if _, used := g.nexthop(id); !used || g.wild {
			free = append(free, id)
		}
	}
	if len(free) == 0 {
		return 0
	}
	return pick(g, free)
}

func (g *gen) nexthop(id uint32) (model.NexthopEntry, bool) {
	for _, n := range g.tab.Nexthops {
		if n.ID == id {
			return n, true
		}
	}
	return model.NexthopEntry{}, false
}

// object draws what a nexthop that is not a group can be.
func (g *gen) object(verb model.NexthopVerb, id uint32) model.Op {
	f := g.family()
	o := model.Nexthop{Verb: verb, ID: id}
	switch {
	case g.oneIn(8):
		o.Blackhole, o.Family = true, f
	case g.oneIn(12):
		o.FDB, o.Gateway = true, g.subnetAddr(f, 1, 8, 9)
	default:
		l := g.legs(f, 1)
		if len(l) == 0 {
			return nil
		}
		o.Dev, o.Gateway, o.Onlink = l[0].Dev, l[0].Gateway, l[0].Onlink
		if !o.Gateway.IsValid() {
			o.Family = f
		} else if o.Dev == "" && !g.wild {
			return nil // iproute2 asks for a device with every gateway
		}
	}
	if o.Family == model.IPv4 {
		o.Family = model.Unspec // printed and parsed as none: the default
	}
	if g.wild && g.oneIn(4) {
		o.Blackhole = true
	}
	return o
}

func (g *gen) nexthopAdd() model.Op {
	if id := g.freeID(single); id != 0 {
		return g.object(model.NexthopAdd, id)
	}
	return nil
}

// members draws the members of a group among the objects that are not groups.
func (g *gen) members() (out []model.Member) {
	var fit []uint32
	for _, n := range g.tab.Nexthops {
		if len(n.Group) == 0 || g.wild {
			fit = append(fit, n.ID)
		}
	}
	if g.wild {
		fit = append(fit, 6, 11)
	}
	if len(fit) == 0 {
		return nil
	}
	n := rapid.IntRange(1, min(3, len(fit))).Draw(g.t, "members")
	perm := rapid.Permutation(fit).Draw(g.t, "of")
	for _, id := range perm[:n] {
		m := model.Member{ID: id}
		if g.oneIn(4) {
			m.Weight = pick(g, []uint16{2, 3, 100, 255})
		}
		out = append(out, m)
	}
	return out
}

func (g *gen) groupAdd() model.Op {
	id, ms := g.freeID(groups), g.members()
	if id == 0 || len(ms) == 0 {
		return nil
	}
	return model.Nexthop{Verb: model.NexthopAdd, ID: id, Group: ms}
}

func (g *gen) nexthopReplace() model.Op {
	if len(g.tab.Nexthops) == 0 {
		return nil
	}
	n := pick(g, g.tab.Nexthops)
	if (len(n.Group) > 0) != (g.wild && g.oneIn(2)) {
		if ms := g.members(); len(ms) > 0 {
			return model.Nexthop{Verb: model.NexthopReplace, ID: n.ID, Group: ms}
		}
		return nil
	}
	return g.object(model.NexthopReplace, n.ID)
}

func (g *gen) nexthopDel() model.Op {
	if g.wild {
		return model.Nexthop{Verb: model.NexthopDel, ID: pick(g, single)}
	}
	if len(g.tab.Nexthops) == 0 {
		return nil
	}
	return model.Nexthop{Verb: model.NexthopDel, ID: pick(g, g.tab.Nexthops).ID}
}
