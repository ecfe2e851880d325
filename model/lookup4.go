package model

import (
	"net/netip"
	"syscall"
)

// flow4 is the question of an IPv4 lookup.
type flow4 struct {
	dst      netip.Addr
	scope    uint8 // routes of a wider scope are not considered
	oif, iif int
}

type result4 struct {
	typ   RouteType
	scope uint8
	leg   leg
}

// tableLookup4 is fib_table_lookup; EAGAIN when nothing matches.
func (s *State) tableLookup4(id uint32, f flow4) (result4, syscall.Errno) {
	t := s.fib4.tables[id]
	if !s.separate && (id == tableMain || id == tableLocal) {
		return s.mergedLookup4(f)
	}
	if t == nil {
		return result4{}, syscall.EAGAIN
	}
	for _, list := range t.matches(f.dst) {
		if res, errno, done := s.select4(list, f); done {
			return res, errno
		}
	}
	return result4{}, syscall.EAGAIN
}

// mergedLookup4 looks into the tables local and main, which share one trie as long as there are only the default rules (fib_trie_table): the longest
// prefix of both wins.
func (s *State) mergedLookup4(f flow4) (result4, syscall.Errno) {
	local, main := s.fib4.tables[tableLocal], s.fib4.tables[tableMain]
	for bits := 32; bits >= 0; bits-- {
		p, _ := f.dst.Prefix(bits)
		for _, t := range []*table[route4]{local, main} {
			if t == nil || t.count[bits] == 0 {
				continue
			}
			if res, errno, done := s.select4(t.nodes[p], f); done {
				return res, errno
			}
		}
	}
	return result4{}, syscall.EAGAIN
}

// select4 takes the first entry of a node that fits (the second half of fib_table_lookup).
func (s *State) select4(list []*route4, f flow4) (res result4, errno syscall.Errno, done bool) {
	for _, r := range list {
		if r.scope < f.scope {
			continue
		}
		if r.typ.isReject() {
			return res, typeErrno(r.typ), true
		}
		legs := r.legs
		if r.nhid != 0 {
			if s.isBlackhole(r.nhid) {
				return res, syscall.EINVAL, true
			}
			legs = s.legsOf(r.nhid)
		}
		for _, l := range legs {
			if l.dead || f.oif != 0 && f.oif != l.dev {
				continue
			}
			return result4{typ: r.typ, scope: r.scope, leg: l}, 0, true
		}
	}
	return res, 0, false
}

// lookup4 is fib_lookup: all rules, or the tables main and default when nobody touched the rules.
func (s *State) lookup4(f flow4) (result4, syscall.Errno) {
	if !s.separate {
		res, errno := s.tableLookup4(tableMain, f)
		if errno != 0 && s.fib4.tables[tableDefault] != nil {
			res, errno = s.tableLookup4(tableDefault, f)
		}
		if errno == syscall.EAGAIN {
			errno = syscall.ENETUNREACH
		}
		return res, errno
	}
	l3mdev := s.updateFlow(&f.oif)
	for i := range s.rules4 {
		r := &s.rules4[i]
		table, ok := s.ruleMatches(r, f.dst, f.oif, f.iif, l3mdev)
		if !ok {
			continue
		}
		if errno := ruleErrno(r.Action); errno != 0 {
			return result4{}, errno
		}
		if res, errno := s.tableLookup4(table, f); errno != syscall.EAGAIN {
			return res, errno
		}
	}
	return result4{}, syscall.ENETUNREACH
}

// updateFlow is l3mdev_update_flow for a lookup with an output device: it returns the VRF that the lookup belongs to, or 0. A VRF itself as output
// device stands for its table only.
func (s *State) updateFlow(oif *int) (l3mdev int) {
	d := s.byIndex[*oif]
	m := s.l3master(d)
	if m == nil {
		return 0
	}
	if d == m {
		*oif = 0
	}
	return m.index
}

// ruleErrno is what a rule that is no table answers (fib4_rule_action, fib6_rule_action).
func ruleErrno(a RuleAction) syscall.Errno {
	switch a {
	case RuleBlackhole:
		return syscall.EINVAL
	case RuleUnreachable:
		return syscall.ENETUNREACH
	case RuleProhibit:
		return syscall.EACCES
	}
	return 0
}

// ruleMatches is fib_rule_match with fib4_rule_match and fib6_rule_match, for the lookups that check gateways: those have neither a source nor a mark.
// It returns the table to look into.
func (s *State) ruleMatches(r *RuleEntry, dst netip.Addr, oif, iif, l3mdev int) (table uint32, ok bool) {
	switch {
	case r.IIF != "" && (s.byName[r.IIF] == nil || s.byName[r.IIF].index != iif),
		r.OIF != "" && !s.ruleLeavesBy(r.OIF, oif, l3mdev),
		r.To.IsValid() && !r.To.Contains(dst),
		r.Mark != 0, r.From.IsValid():
		return 0, false
	}
	if r.Action != RuleL3MDev {
		return r.Table, true
	}
	m := s.byIndex[l3mdev]
	if m == nil || m.kind != VRF {
		return 0, false
	}
	return m.table, true
}

// ruleLeavesBy says whether a rule's output device is that of a lookup (fib_rule_oif_match).
func (s *State) ruleLeavesBy(name string, dev, l3mdev int) bool {
	d := s.byName[name]
	if d != nil && d.kind == VRF && s.prof.RuleMatchesVRF {
		return d.index == l3mdev
	}
	return d != nil && d.index == dev
}

// addrType4 is inet_addr_type_table: what a table says an address is.
func (s *State) addrType4(table uint32, a netip.Addr) RouteType {
	b := a.As4()
	switch {
	case b[0] == 0, b == [4]byte{255, 255, 255, 255}:
		return Broadcast
	case a.IsMulticast():
		return Multicast
	}
	if s.fib4.tables[table] == nil {
		return Broadcast // before the first address there is no table local
	}
	if res, errno := s.tableLookup4(table, flow4{dst: a}); errno == 0 {
		return res.typ
	}
	return Unicast
}
