package model

import (
	"net/netip"
)

// Tables returns what must be seen of the namespace, in canonical order.
func (s *State) Tables() *Tables {
	t := &Tables{Links: s.Links(), Addrs: s.Addrs(), Routes: s.Routes(), Nexthops: s.Nexthops(), Rules: s.Rules(), Neighs: s.Neighs(), Qdiscs: s.Qdiscs()}
	t.Canonical()
	return t
}

// Link returns a device by its name.
func (s *State) Link(name string) (Link, bool) {
	l := s.byName[name]
	if l == nil {
		return Link{}, false
	}
	return s.linkEntry(l), true
}

// Links returns the devices in the order of their creation.
func (s *State) Links() []Link {
	out := make([]Link, len(s.links))
	for i, l := range s.links {
		out[i] = s.linkEntry(l)
	}
	return out
}

func (s *State) linkEntry(l *link) Link {
	return Link{Name: l.name, Type: l.kind, Up: l.up, Carrier: l.carrier && l.up, MTU: l.mtu, Master: s.nameOf(l.master), Lower: s.nameOf(l.lower),
		VLANID: l.vlanID, Table: l.table}
}

func (s *State) nameOf(dev int) string {
	if l := s.byIndex[dev]; l != nil {
		return l.name
	}
	return ""
}

// Addrs returns the addresses, those of one device and family in the kernel's order (IPv6: in the order of addition).
func (s *State) Addrs() (out []Addr) {
	for _, l := range s.links {
		for _, a := range l.addr4 {
			out = append(out, Addr{Dev: l.name, Prefix: a.prefix, Secondary: a.secondary, Metric: a.metric, NoPrefixRoute: a.noPrefixRoute})
		}
		for _, a := range l.addr6 {
			out = append(out, Addr{Dev: l.name, Prefix: a.prefix, Metric: a.metric, NoPrefixRoute: a.noPrefixRoute})
		}
	}
	return out
}

// Routes returns the routes as dumps show them, in canonical order.
func (s *State) Routes() (out []RouteEntry) {
	for id, t := range s.fib4.tables {
		for dst, list := range t.nodes {
			for _, r := range list {
				out = append(out, s.entry4(id, dst, r))
			}
		}
	}
	for id, t := range s.fib6.tables {
		for dst, list := range t.nodes {
			out = s.entries6(out, id, dst, list)
		}
	}
	sortStable(out, compareRoutes)
	return out
}

func (s *State) entry4(table uint32, dst netip.Prefix, r *route4) RouteEntry {
	e := RouteEntry{Family: IPv4, Table: table, Dst: dst, Type: r.typ, Metric: r.metric, Proto: r.proto, Scope: r.scope, Src: r.src, NHID: r.nhid}
	if r.nhid != 0 {
		if s.isBlackhole(r.nhid) {
			e.Type = Blackhole // fib_dump_info
		}
		return e
	}
	e.Legs = make([]LegEntry, len(r.legs))
	for i, l := range r.legs {
		e.Legs[i] = s.legEntry(l)
	}
	return e
}

func (s *State) legEntry(l leg) LegEntry {
	return LegEntry{Gateway: l.gw, Dev: s.nameOf(l.dev), Weight: max(l.weight, 1), Onlink: l.onlink, Dead: l.dead, Linkdown: l.linkdown}
}

// entries6 shows one node. Siblings are one entry; after it a dump goes on behind the last of them (fib6_dump_node).
func (s *State) entries6(out []RouteEntry, table uint32, dst netip.Prefix, list []*route6) []RouteEntry {
	shown := map[uint32]bool{} // metrics of which the multipath route was shown
	for i := 0; i < len(list); i++ {
		r := list[i]
		if r.ecmp() && shown[r.metric] {
			continue
		}
		e := RouteEntry{Family: IPv6, Table: table, Dst: dst, Type: r.typ, Metric: r.metric, Proto: r.proto, Src: r.src, NHID: r.nhid}
		switch {
		case r.nhid != 0:
			if s.isBlackhole(r.nhid) {
				e.Type = Blackhole // rt6_fill_node
			}
		case !r.ecmp():
			e.Legs = []LegEntry{s.legEntry(r.leg)}
		default:
			last := i
			for j, o := range list[i:] {
				if o.ecmp() && o.metric == r.metric {
					e.Legs = append(e.Legs, s.legEntry(o.leg))
					last = i + j
				}
			}
			shown[r.metric] = true
			if s.prof.SkipsBetweenSiblings {
				i = last
			}
		}
		if len(e.Legs) == 1 {
			e.Legs[0].Weight = 1 // only multipath routes show weights
		}
		out = append(out, e)
	}
	return out
}

// Nexthops returns the nexthop objects by id.
func (s *State) Nexthops() []NexthopEntry {
	out := make([]NexthopEntry, 0, len(s.nexthops))
	for _, n := range s.nexthops {
		e := NexthopEntry{ID: n.id, Family: n.family, Blackhole: n.blackhole, FDB: n.fdb, Group: n.group}
		if !n.isGroup() {
			e.Gateway, e.Onlink = n.leg.gw, n.leg.onlink
			if !n.blackhole {
				e.Dev, e.Scope = s.nameOf(n.leg.dev), n.leg.scope // nh_fill_node
			}
		}
		out = append(out, e)
	}
	sortStable(out, compareNexthops)
	return out
}

// Rules returns the rules of IPv4, then those of IPv6, in the order in which they are tried.
func (s *State) Rules() (out []RuleEntry) {
	for _, list := range [][]RuleEntry{s.rules4, s.rules6} {
		for _, r := range list {
			r.Detached = r.IIF != "" && s.byName[r.IIF] == nil || r.OIF != "" && s.byName[r.OIF] == nil
			out = append(out, r)
		}
	}
	return out
}

// Neighs returns the permanent neighbours and proxy entries.
func (s *State) Neighs() (out []NeighEntry) {
	for k, mac := range s.neighs {
		out = append(out, NeighEntry{Dev: s.nameOf(k.dev), Addr: k.addr, MAC: mac, Proxy: k.proxy})
	}
	sortStable(out, compareNeighs)
	return out
}

// Qdiscs returns the qdiscs that operations made, in the order of creation.
func (s *State) Qdiscs() (out []QdiscEntry) {
	for _, q := range s.qdiscs {
		out = append(out, QdiscEntry{Dev: s.nameOf(q.dev), Parent: q.parent, Handle: q.handle, Type: q.kind})
	}
	return out
}
