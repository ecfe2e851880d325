package fuzz

import (
	"net/netip"
	"slices"

	"pgregory.net/rapid"

	"github.com/nlfuzz/nlfuzz/model"
)

// The makers of rules, neighbours, qdiscs, traffic and sockets.

// longDelay is a netem delay in seconds that no sequence lives to see the end of; tc takes no more than 274.
const longDelay = 200

func (g *gen) ruleAdd() model.Op {
	f := g.family()
	o := model.Rule{Family: f, Pref: pick(g, prefs), Mark: pick(g, marks)}
	if g.oneIn(3) {
		o.From = g.dst(f)
	}
	if g.oneIn(4) {
		o.To = g.dst(f)
	}
	if g.oneIn(4) {
		o.IIF = g.sample("iif", allNames)
	}
	if g.oneIn(6) {
		o.OIF = g.sample("oif", allNames)
	}
	if g.oneIn(4) {
		o.Action = pick(g, []model.RuleAction{model.RuleBlackhole, model.RuleUnreachable, model.RuleProhibit, model.RuleL3MDev})
	}
	if o.Action == model.RuleLookup {
		o.Table = pick(g, []uint32{10, 20, 100, 1000})
	}
	if o.From.IsValid() && o.From.Bits() == 0 {
		o.From = netip.Prefix{} // "from all": the same as none
	}
	if o.To.IsValid() && o.To.Bits() == 0 {
		o.To = netip.Prefix{}
	}
	return o
}

func (g *gen) ruleDel() model.Op {
	if g.wild || len(g.tab.Rules) == 0 {
		op := g.ruleAdd().(model.Rule)
		op.Del = true
		return op
	}
	r := pick(g, g.tab.Rules)
	if r.Proto == protoKernel && !g.oneIn(10) {
		return nil
	}
	return model.Rule{Del: true, Family: r.Family, Pref: r.Pref, From: r.From, To: r.To, Mark: r.Mark, IIF: r.IIF, OIF: r.OIF, Action: r.Action, Table: r.Table}
}

// neighAdd leaves bridges out: a bridge takes the lowest of its ports' random MACs, and loses its neighbours when that changes (docs/design.md).
func (g *gen) neighAdd() model.Op {
	d := g.dev(nil)
	if l, ok := g.link(d); d == "" || ok && l.Type == model.Bridge {
		return nil
	}
	o := model.Neigh{Verb: pick(g, []model.NeighVerb{model.NeighAdd, model.NeighAdd, model.NeighReplace, model.NeighChange}), Dev: d, Addr: g.subnetAddr(g.family(), 8, 9)}
	if g.oneIn(4) {
		o.Verb, o.Proxy = model.NeighAdd, true
		return o
	}
	o.MAC = pick(g, lladdrs)
	return o
}

func (g *gen) neighDel() model.Op {
	if g.wild || len(g.tab.Neighs) == 0 {
		if d := g.dev(nil); d != "" && g.wild {
			return model.Neigh{Verb: model.NeighDel, Dev: d, Addr: g.subnetAddr(g.family(), 8, 9), Proxy: g.oneIn(3)}
		}
		return nil
	}
	n := pick(g, g.tab.Neighs)
	return model.Neigh{Verb: model.NeighDel, Dev: n.Dev, Addr: n.Addr, Proxy: n.Proxy}
}

// keepsDst are the devices whose packets keep their dst while they wait in a qdisc (netif_keep_dst; all others drop it before, IFF_XMIT_DST_RELEASE).
func keepsDst(l model.Link) bool {
	return l.Up && (l.Name == "lo" || l.Type == model.VLAN || l.Type == model.MACVLAN)
}

// qdiscAdd mostly takes a device on which waiting packets hold something.
func (g *gen) qdiscAdd() model.Op {
	d := ""
	if !g.oneIn(4) {
		d = g.dev(keepsDst)
	}
	if d == "" {
		d = g.dev(nil)
	}
	if d == "" {
		return nil
	}
	o := model.Qdisc{Verb: model.QdiscAdd, Dev: d, Type: model.Netem, Delay: longDelay}
	if g.oneIn(5) {
		o.Verb = model.QdiscReplace
	}
	if h := g.prioOn(d); h != 0 {
		o.Parent = []string{"1:1", "1:2", "1:3"}[rapid.IntRange(0, 2).Draw(g.t, "class")]
		if h != 1 {
			return nil
		}
		return o
	}
	if g.oneIn(4) {
		o.Type, o.Handle, o.Delay = model.Prio, 1, 0
	} else if g.wild {
		o.Parent = "1:1"
	}
	return o
}

// prioOn returns the handle of the prio qdisc at a device's root, 0 if there is none.
func (g *gen) prioOn(dev string) uint16 {
	for _, q := range g.tab.Qdiscs {
		if q.Dev == dev && q.Type == model.Prio && q.Parent == "" {
			return q.Handle
		}
	}
	return 0
}

func (g *gen) qdiscDel() model.Op {
	if g.wild || len(g.tab.Qdiscs) == 0 {
		if d := g.dev(nil); d != "" && g.wild {
			return model.Qdisc{Verb: model.QdiscDel, Dev: d, Type: model.Netem}
		}
		return nil
	}
	q := pick(g, g.tab.Qdiscs)
	return model.Qdisc{Verb: model.QdiscDel, Dev: q.Dev, Parent: q.Parent, Type: q.Type}
}

func (g *gen) filter() model.Op {
	var fit []model.QdiscEntry
	for _, q := range g.tab.Qdiscs {
		if q.Type == model.Prio && q.Parent == "" {
			fit = append(fit, q)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	q := pick(g, fit)
	return model.Filter{Dev: q.Dev, Handle: q.Handle, Del: g.oneIn(2)}
}

// target draws where traffic goes: an address of this namespace, a neighbour's, a routed one, or multicast.
func (g *gen) target(f model.Family) netip.Addr {
	as := g.farAddrs(f)
	if learned := g.learned[f]; len(learned) > 0 && g.oneIn(3) {
		return pick(g, learned) // a path MTU was learned: the exception caches a route once it is used
	}
	switch rapid.IntRange(0, 5).Draw(g.t, "target") {
	case 0, 1:
		if len(as) > 0 {
			return pick(g, as).Prefix.Addr()
		}
	case 2, 3:
		if len(as) > 0 {
			return g.gateway(f, pick(g, as).Dev)
		}
	case 4:
		if f == model.IPv4 {
			return netip.MustParseAddr("224.0.0.1")
		}
		return netip.MustParseAddr("ff05::1")
	}
	return g.dst(f).Addr().Next()
}

func (g *gen) bindDev() string {
	if g.oneIn(3) {
		return g.dev(isUp)
	}
	return ""
}

func (g *gen) count() uint16 {
	if g.oneIn(2) {
		return uint16(rapid.IntRange(2, 10).Draw(g.t, "count"))
	}
	return 0
}

func (g *gen) sendRaw6() model.Op {
	as := g.addrs(model.IPv6)
	if len(as) == 0 {
		return nil
	}
	o := model.Send{Proto: model.Raw6, From: pick(g, g.farAddrs(model.IPv6)).Prefix.Addr(), To: g.target(model.IPv6), Dev: g.bindDev(), Count: g.count()}
	if g.oneIn(4) {
		o.To = o.From // a local route: its dst is on lo, or the VRF, and its rt6i_idev is the address's device
	}
	return o
}

func (g *gen) sendUDP() model.Op {
	f := g.family()
	p := model.UDP4
	if f == model.IPv6 {
		p = model.UDP6
	}
	if len(g.addrs(f)) == 0 {
		return nil
	}
	return model.Send{Proto: p, To: g.target(f), Dev: g.bindDev(), Count: g.count()}
}

// sendLearned sends to an address for which a path MTU was learned: the exception then caches a route.
func (g *gen) sendLearned() model.Op {
	f := g.family()
	if len(g.learned[f]) == 0 {
		return nil
	}
	p := model.UDP4
	if f == model.IPv6 {
		p = model.UDP6
	}
	return model.Send{Proto: p, To: pick(g, g.learned[f])}
}

func (g *gen) hold() model.Op {
	f := g.family()
	p := model.UDP4
	if f == model.IPv6 {
		p = model.UDP6
	}
	var free []string
	for _, s := range sockets {
		if !slices.Contains(g.held, s) || g.wild {
			free = append(free, s)
		}
	}
	if len(free) == 0 || len(g.addrs(f)) == 0 {
		return nil
	}
	o := model.Hold{Proto: p, Name: g.sample("socket", free), To: g.target(f), Dev: g.bindDev()}
	if p == model.UDP4 && g.oneIn(2) { // a group on a device: an uncached route, mostly on the device of the socket before
		o.To = netip.MustParseAddr("224.0.0.1")
		if _, there := g.link(g.joined); !there || g.oneIn(4) {
			g.joined = g.dev(func(l model.Link) bool { return l.Up && notLo(l) })
		}
		o.Dev = g.joined
	}
	return o
}

func (g *gen) release() model.Op {
	from := g.held
	if g.wild {
		from = sockets
	}
	if len(from) == 0 {
		return nil
	}
	return model.Release{Name: g.sample("socket", from)}
}

func (g *gen) settle() model.Op { return model.Settle{} }
