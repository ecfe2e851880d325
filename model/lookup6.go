package model

import "net/netip"

// result6 is what an IPv6 lookup found.
type result6 struct {
	typ    RouteType
	reject bool
	any    bool // it is a default route
	leg    leg
}

// tableLookup6 is fib6_table_lookup. With strict, a route must leave by the device asked for (RT6_LOOKUP_F_IFACE).
func (s *State) tableLookup6(id uint32, dst netip.Addr, oif int, strict bool) (result6, bool) {
	t := s.fib6.tables[id]
	if t == nil {
		return result6{}, false
	}
	for p, list := range t.matches(dst) {
		if res, ok := s.select6(list, oif, strict); ok {
			res.any = p.Addr().IsUnspecified()
			return res, true
		}
	}
	return result6{}, false
}

// select6 is rt6_select: the best entry of the lowest metric, or, if none of that is usable, of all others (find_rr_leaf).
func (s *State) select6(list []*route6, oif int, strict bool) (result6, bool) {
	n := 1
	for n < len(list) && list[n].metric == list[0].metric {
		n++
	}
	if res, ok := s.best6(list[:n], oif, strict); ok {
		return res, true
	}
	return s.best6(list[n:], oif, strict)
}

// best6 is __find_rr_leaf.
func (s *State) best6(list []*route6, oif int, strict bool) (best result6, ok bool) {
	score := -1
	for _, r := range list {
		legs := []leg{r.leg}
		if r.nhid != 0 {
			legs = s.legsOf(r.nhid)
			if s.isBlackhole(r.nhid) {
				return result6{typ: Blackhole, reject: true, leg: legs[0]}, true
			}
		}
		for _, l := range legs {
			m := 0
			if oif == 0 || l.dev == oif {
				m = 2
			} else if strict {
				m = -1
			}
			if !l.dead && m > score {
				score, ok = m, true
				best = result6{typ: r.typ, reject: r.reject, leg: l}
				break
			}
		}
	}
	return best, ok
}

// lookup6 is fib6_lookup with RT6_LOOKUP_F_IFACE.
func (s *State) lookup6(dst netip.Addr, oif int) (result6, bool) {
	if !s.custom6 {
		if res, ok := s.tableLookup6(tableLocal, dst, oif, true); ok {
			return res, true
		}
		return s.tableLookup6(tableMain, dst, oif, true)
	}
	flowOIF := oif
	l3mdev := s.updateFlow(&flowOIF)
	for i := range s.rules6 {
		r := &s.rules6[i]
		table, ok := s.ruleMatches(r, dst, flowOIF, 0, l3mdev)
		if !ok {
			continue
		}
		if ruleErrno(r.Action) != 0 {
			return result6{}, false
		}
		if res, ok := s.tableLookup6(table, dst, oif, true); ok {
			return res, true
		}
	}
	return result6{}, false
}

// hasAddr6 is ipv6_chk_addr_and_flags: whether an address belongs to a device or, if it is global, to another device of the same VRF (or of none).
// With anyDev the device gives no more than the VRF.
func (s *State) hasAddr6(a netip.Addr, d *link, anyDev bool) bool {
	domain := s.l3master(d)
	narrow := a.IsLinkLocalUnicast() || a.IsLoopback()
	for _, l := range s.links {
		if d != nil && l != d && narrow && !anyDev || s.l3master(l) != domain {
			continue
		}
		for i := range l.addr6 {
			if l.addr6[i].prefix.Addr() == a {
				return true
			}
		}
	}
	return false
}
