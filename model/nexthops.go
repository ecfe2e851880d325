package model

import (
	"slices"
	"syscall"
)

// nexthop is one nexthop object. It is never changed but replaced, so that states can share it.
type nexthop struct {
	id        uint32
	family    Family // Unspec for a group
	leg       leg
	blackhole bool
	fdb       bool
	group     []Member
	parents   []uint32 // the groups that it is a member of
}

func (n *nexthop) isGroup() bool { return n.family == Unspec }

// isFDB, has4, isBlackhole and legsOf see through a group (nexthop_is_fdb, nexthop_has_v4, nexthop_is_blackhole).
func (s *State) isFDB(n *nexthop) bool { return n.fdb }

func (s *State) has4(n *nexthop) bool {
	if !n.isGroup() {
		return n.family == IPv4
	}
	return slices.ContainsFunc(n.group, func(m Member) bool { return s.nexthops[m.ID].family == IPv4 })
}

func (s *State) isBlackhole(id uint32) bool {
	n := s.nexthops[id]
	if n.isGroup() {
		return len(n.group) == 1 && s.nexthops[n.group[0].ID].blackhole
	}
	return n.blackhole
}

func (s *State) legsOf(id uint32) []leg {
	n := s.nexthops[id]
	if !n.isGroup() {
		return []leg{n.leg}
	}
	var legs []leg
	for _, m := range n.group {
		legs = append(legs, s.nexthops[m.ID].leg)
	}
	return legs
}

// checkScope is fib_check_nexthop: whether an IPv4 route of a scope may use an object.
func (s *State) checkScope(n *nexthop, scope uint8) syscall.Errno {
	first := n
	if n.isGroup() {
		if scope == scopeHost {
			return syscall.EINVAL
		}
		first = s.nexthops[n.group[0].ID]
	}
	if n.fdb || scope == scopeHost && first.leg.gw.IsValid() || first.leg.onlink && scope >= scopeLink {
		return syscall.EINVAL
	}
	return 0
}

// nexthop follows rtm_new_nexthop and rtm_del_nexthop.
func (s *State) nexthop(o Nexthop) syscall.Errno {
	if o.Dev != "" && s.byName[o.Dev] == nil {
		return syscall.ENODEV // iproute2
	}
	old := s.nexthops[o.ID]
	if o.Verb == NexthopDel {
		switch {
		case o.ID == 0:
			return syscall.EINVAL
		case old == nil:
			return syscall.ENOENT
		}
		s.nexthopDelete(o.ID)
		return 0
	}
	var n nexthop
	var errno syscall.Errno
	if len(o.Group) > 0 {
		n, errno = s.groupOf(o)
	} else {
		n, errno = s.singleOf(o)
	}
	switch {
	case errno != 0:
		return errno
	case o.ID == 0 && o.Verb == NexthopReplace:
		return syscall.EINVAL
	case o.ID == 0:
		n.id = s.unusedID()
	case old != nil && o.Verb == NexthopAdd:
		return syscall.EEXIST
	case old != nil:
		return s.nexthopReplace(old, n)
	}
	s.nexthopInsert(n)
	return 0
}

// unusedID is nh_find_unused_id as long as its cursor has not wrapped.
func (s *State) unusedID() uint32 {
	id := uint32(1)
	for s.nexthops[id] != nil {
		id++
	}
	return id
}

// groupOf is nh_check_attr_group.
func (s *State) groupOf(o Nexthop) (nexthop, syscall.Errno) {
	n := nexthop{id: o.ID, fdb: o.FDB}
	if o.Family != Unspec || o.Gateway.IsValid() || o.Dev != "" || o.Blackhole {
		return n, syscall.EINVAL
	}
	family := Unspec
	for i, m := range o.Group {
		m.Weight = max(m.Weight, 1)
		x := s.nexthops[m.ID]
		switch {
		case m.Weight > 255 && !s.prof.GroupWeight16,
			slices.ContainsFunc(o.Group[:i], func(b Member) bool { return b.ID == m.ID }),
			x == nil || x.isGroup(),
			x.blackhole && len(o.Group) > 1,
			x.fdb != o.FDB,
			o.FDB && family != Unspec && x.family != family:
			return n, syscall.EINVAL
		}
		family = x.family
		n.group = append(n.group, m)
	}
	return n, 0
}

// singleOf is rtm_to_nh_config with nexthop_create.
func (s *State) singleOf(o Nexthop) (nexthop, syscall.Errno) {
	n := nexthop{id: o.ID, family: o.Family, blackhole: o.Blackhole, fdb: o.FDB}
	d := s.byName[o.Dev]
	if n.family == Unspec {
		n.family = IPv4
	}
	if o.Gateway.IsValid() {
		n.family = FamilyOf(o.Gateway)
	}
	n.leg = leg{gw: o.Gateway, weight: 1, onlink: o.Onlink, scope: scopeLink}
	switch {
	case o.FDB && (d != nil || o.Blackhole || o.Onlink):
		return n, syscall.EINVAL
	case o.FDB:
		return n, 0
	case o.Blackhole && (d != nil || o.Gateway.IsValid()):
		return n, syscall.EINVAL
	case o.Blackhole:
		d = s.loopback()
	case d == nil:
		return n, syscall.EINVAL
	case !d.up, !d.carrier:
		return n, syscall.ENETDOWN
	case o.Onlink && !o.Gateway.IsValid():
		return n, syscall.EINVAL
	}
	n.leg.dev = d.index
	if n.family == IPv4 {
		return n, s.checkLeg4(&n.leg, s.l3table(d), scopeUniverse)
	}
	return n, s.checkLeg6(&n.leg, s.l3table(d), false)
}

func (s *State) nexthopInsert(n nexthop) {
	s.nexthops[n.id] = &n
	if n.leg.dev != 0 {
		s.nexthopsOf[n.leg.dev] = append(s.nexthopsOf[n.leg.dev], n.id)
	}
	for _, m := range n.group {
		c := *s.nexthops[m.ID]
		c.parents = append(slices.Clone(c.parents), n.id)
		s.nexthops[m.ID] = &c
	}
}

// nexthopForget takes an object out of the indexes.
func (s *State) nexthopForget(n *nexthop) {
	if dev := n.leg.dev; dev != 0 {
		ids := slices.DeleteFunc(s.nexthopsOf[dev], func(id uint32) bool { return id == n.id })
		if s.nexthopsOf[dev] = ids; len(ids) == 0 {
			delete(s.nexthopsOf, dev)
		}
	}
	for _, m := range n.group {
		if x := s.nexthops[m.ID]; x != nil {
			c := *x
			c.parents = slices.DeleteFunc(slices.Clone(c.parents), func(id uint32) bool { return id == n.id })
			s.nexthops[m.ID] = &c
		}
	}
	delete(s.nexthops, n.id)
}

// nexthopReplace is replace_nexthop: the routes and groups that use the old object must be able to use the new one.
func (s *State) nexthopReplace(old *nexthop, n nexthop) syscall.Errno {
	if errno := s.checkUsers(old.id, &n); errno != 0 {
		return errno
	}
	if old.isGroup() != n.isGroup() {
		return syscall.EINVAL
	}
	for _, id := range old.parents {
		if n.blackhole && len(s.nexthops[id].group) > 1 || n.fdb != old.fdb {
			return syscall.EINVAL
		}
		if errno := s.checkUsers(id, &n); errno != 0 {
			return errno
		}
	}
	n.parents = old.parents
	s.nexthopForget(old)
	s.nexthopInsert(n)
	return 0
}

// checkUsers is fib_check_nh_list and fib6_check_nh_list.
func (s *State) checkUsers(id uint32, n *nexthop) syscall.Errno {
	for _, k := range s.fib4.keysOf(ref{nh: id}) {
		for _, r := range s.fib4.node(k) {
			if r.nhid == id {
				if errno := s.checkScope(n, r.scope); errno != 0 {
					return errno
				}
			}
		}
	}
	if len(s.fib6.keysOf(ref{nh: id})) > 0 && (s.has4(n) || n.fdb) {
		return syscall.EINVAL
	}
	return 0
}

// nexthopDelete is remove_nexthop: routes that use the object go, groups lose a member, and a group without members goes too.
func (s *State) nexthopDelete(id uint32) {
	n := s.nexthops[id]
	for _, k := range s.fib4.keysOf(ref{nh: id}) {
		s.fib4.removeIf(k, func(r *route4) bool { return r.nhid == id })
	}
	for _, k := range s.fib6.keysOf(ref{nh: id}) {
		s.fib6.removeIf(k, func(r *route6) bool { return r.nhid == id })
	}
	for _, p := range n.parents {
		g := *s.nexthops[p]
		if len(g.group) == 1 {
			s.nexthopDelete(p)
			continue
		}
		g.group = slices.DeleteFunc(slices.Clone(g.group), func(m Member) bool { return m.ID == id })
		s.nexthops[p] = &g
	}
	s.nexthopForget(s.nexthops[id])
}

// nexthopFlush is nexthop_flush_dev. A blackhole, which is on lo, stays.
func (s *State) nexthopFlush(l *link, ev event) {
	for _, id := range slices.Clone(s.nexthopsOf[l.index]) {
		if n := s.nexthops[id]; n != nil && (!n.blackhole || ev == eventUnregister) {
			s.nexthopDelete(id)
		}
	}
}
