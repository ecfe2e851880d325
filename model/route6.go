package model

import (
	"math"
	"net/netip"
	"syscall"
)

// route6 is one fib6_info. A multipath route is several of them, siblings, of the same prefix and metric.
type route6 struct {
	id     uint64 // identity: an address knows its own local route
	typ    RouteType
	metric uint32
	proto  uint8
	src    netip.Addr
	nhid   uint32
	reject bool // RTF_REJECT
	local  bool // RTF_LOCAL
	leg    leg
}

func (r *route6) refs(yield func(ref)) {
	if r.leg.dev != 0 {
		yield(ref{dev: r.leg.dev})
	}
	if r.nhid != 0 {
		yield(ref{nh: r.nhid})
	}
	if r.src.IsValid() {
		yield(ref{src: r.src})
	}
}

// ecmp is rt6_qualify_for_ecmp.
func (r *route6) ecmp() bool { return r.nhid == 0 && r.leg.gw.IsValid() }

// duplicates is rt6_duplicate_nexthop: it looks at nothing but the way out.
func (r *route6) duplicates(o *route6) bool {
	return r.nhid == o.nhid && r.leg.dev == o.leg.dev && r.leg.gw == o.leg.gw
}

const (
	metricUser     = 1024 // IP6_RT_PRIO_USER
	metricAddrconf = 256  // IP6_RT_PRIO_ADDRCONF
)

// userAdd6 is inet6_rtm_newroute.
func (s *State) userAdd6(o Route) syscall.Errno {
	if o.NHID != 0 && len(o.Legs) > 0 {
		return syscall.EINVAL
	}
	r := route6{typ: o.Type, metric: o.Metric, proto: protoBoot, src: o.Src, nhid: o.NHID, reject: o.Type.isReject(), local: o.Type == Local}
	if r.metric == 0 {
		r.metric = metricUser
	}
	if r.src.IsValid() && r.src.IsUnspecified() {
		r.src = netip.Addr{}
	}
	k := routeKey{o.Table, o.Dst.Masked()}
	f := verbFlags[o.Verb]
	if len(o.Legs) > 1 {
		return s.addMultipath6(k, o, r, f)
	}
	s.fib6.create(k.table)
	if len(o.Legs) == 1 {
		r.leg = s.legOf(o.Legs[0])
		r.leg.weight = 1
	}
	if errno := s.check6(k, o.Dst.Addr(), &r); errno != 0 {
		return errno
	}
	return s.add6(k, r, f)
}

// addMultipath6 is ip6_route_multipath_add: all legs are checked, then added one by one.
func (s *State) addMultipath6(k routeKey, o Route, r route6, f flags) syscall.Errno {
	for _, l := range o.Legs {
		if !l.Gateway.IsValid() && s.prof.MultipathGatewayFirst {
			return syscall.EINVAL // rtm_to_fib6_multipath_config
		}
	}
	s.fib6.create(k.table)
	var list []route6
	for _, l := range o.Legs {
		n := r
		n.leg = s.legOf(l)
		if errno := s.check6(k, o.Dst.Addr(), &n); errno != 0 {
			return errno
		}
		if !n.ecmp() && !s.prof.MultipathGatewayFirst {
			return syscall.EINVAL
		}
		for i := range list {
			if list[i].duplicates(&n) {
				return syscall.EEXIST // ip6_route_info_append
			}
		}
		list = append(list, n)
	}
	for i, n := range list {
		if errno := s.add6(k, n, f); errno != 0 {
			// What was already added is deleted again; what the first leg replaced does not come back.
			for _, l := range o.Legs[:i] {
				s.delete6(k, match6{metric: r.metric, legs: []leg{s.legOf(l)}})
			}
			return errno
		}
		f = flags{create: true, append: f.append}
	}
	return 0
}

// check6 is ip6_route_info_create_nh: it checks a route and completes its leg. The destination is the one of the request, with its host bits.
func (s *State) check6(k routeKey, dst netip.Addr, r *route6) syscall.Errno {
	dev := 0
	if r.nhid != 0 {
		nh := s.nexthops[r.nhid]
		if nh == nil || s.has4(nh) || s.isFDB(nh) {
			return syscall.EINVAL // fib6_check_nexthop
		}
		if legs := s.legsOf(r.nhid); len(legs) > 0 {
			dev = legs[0].dev // nexthop_fib6_nh
		}
	} else {
		if errno := s.checkLeg6(&r.leg, k.table, r.reject); errno != 0 {
			return errno
		}
		r.reject = s.isReject6(r.reject, r.local, r.leg.dev, dst)
		if r.local {
			r.leg.linkdown = false
		}
		dev = r.leg.dev
	}
	if r.src.IsValid() && !s.hasAddr6(r.src, s.byIndex[dev], false) {
		return syscall.EINVAL
	}
	return 0
}

// isReject6 is fib6_is_reject: a route out of lo becomes a reject route.
func (s *State) isReject6(reject, local bool, dev int, dst netip.Addr) bool {
	return reject || dev == loIndex && !local && dst != netip.IPv6Loopback()
}

// checkLeg6 is fib6_nh_init.
func (s *State) checkLeg6(l *leg, table uint32, reject bool) syscall.Errno {
	d := s.byIndex[l.dev]
	switch {
	case d != nil && !d.in6:
		return syscall.ENODEV
	case l.onlink && d == nil:
		return syscall.ENODEV
	case l.onlink && !d.up:
		return syscall.ENETDOWN
	case reject:
		lo := s.loopback()
		if !lo.in6 {
			return syscall.ENODEV
		}
		*l = leg{dev: lo.index, weight: l.weight, onlink: l.onlink}
		return 0
	}
	if l.gw.IsValid() {
		if errno := s.checkGateway6(l, table); errno != 0 {
			return errno
		}
		d = s.byIndex[l.dev]
	}
	switch {
	case d == nil:
		return syscall.ENODEV
	case !d.in6:
		return syscall.EACCES
	case !d.up:
		return syscall.ENETDOWN
	}
	l.linkdown = !d.carrier
	return 0
}

// checkGateway6 is ip6_validate_gw; it finds the device when none was given.
func (s *State) checkGateway6(l *leg, table uint32) syscall.Errno {
	d := s.byIndex[l.dev]
	linkLocal := l.gw.IsLinkLocalUnicast()
	if d != nil && s.hasAddr6(l.gw, d, !linkLocal) {
		return syscall.EINVAL
	}
	if !linkLocal {
		if l.gw.IsMulticast() || l.gw.IsLoopback() {
			return syscall.EINVAL // ipv6_addr_type is not unicast
		}
		var errno syscall.Errno
		if l.onlink {
			errno = s.checkOnlink6(l, d)
		} else {
			errno = s.reach6(l, table)
		}
		if errno != 0 {
			return errno
		}
	}
	given := d != nil
	d = s.byIndex[l.dev]
	switch {
	case d == nil, d.index == loIndex:
		return syscall.EINVAL
	case !given && s.hasAddr6(l.gw, d, !linkLocal):
		return syscall.EINVAL
	}
	return 0
}

// checkOnlink6 is ip6_route_check_nh_onlink.
func (s *State) checkOnlink6(l *leg, d *link) syscall.Errno {
	table := s.tableOr(d, tableMain)
	if s.fib6.tables[table] == nil && table != tableMain {
		return syscall.EINVAL
	}
	res, ok := s.tableLookup6(table, l.gw, l.dev, false)
	if ok && !res.reject && !res.any && (res.typ != Unicast || res.leg.dev != l.dev) {
		return syscall.EINVAL
	}
	return 0
}

// reach6 is ip6_route_check_nh: a look into the route's own table, then one by the rules.
func (s *State) reach6(l *leg, table uint32) syscall.Errno {
	res, ok := result6{}, false
	if table != 0 {
		res, ok = s.tableLookup6(table, l.gw, l.dev, true)
		ok = ok && !res.reject && !res.leg.gw.IsValid() && (l.dev == 0 || l.dev == res.leg.dev)
	}
	if !ok {
		res, ok = s.lookup6(l.gw, l.dev)
		if !ok || res.reject || res.leg.gw.IsValid() {
			return syscall.EHOSTUNREACH
		}
	}
	if l.dev != 0 && l.dev != res.leg.dev {
		return syscall.EHOSTUNREACH
	}
	l.dev = res.leg.dev
	return 0
}

// add6 is fib6_add_rt2node. All ways to change the entries of one prefix are here.
func (s *State) add6(k routeKey, r route6, f flags) syscall.Errno {
	list := s.fib6.node(k)
	s.nextRoute++
	r.id = s.nextRoute
	at, found, fallback := 0, -1, -1
	for ; at < len(list); at++ {
		it := list[at]
		if it.metric > r.metric {
			break
		}
		if it.metric < r.metric {
			continue
		}
		if f.excl {
			return syscall.EEXIST
		}
		if f.replace {
			if it.ecmp() == r.ecmp() {
				found = at
				break
			}
			if fallback < 0 {
				fallback = at
			}
			continue
		}
		if it.duplicates(&r) {
			return syscall.EEXIST
		}
	}
	if f.replace {
		if found < 0 {
			found = fallback
		}
		if found >= 0 {
			s.replace6(k, found, r)
			return 0
		}
		if !f.create {
			return syscall.ENOENT
		}
	}
	s.fib6.insert(k, at, &r)
	return 0
}

// replace6 puts a route in the place of another. With one sibling go all.
func (s *State) replace6(k routeKey, i int, r route6) {
	victim := s.fib6.node(k)[i]
	n := s.siblings6(k, i)
	s.fib6.replace(k, i, &r)
	if !victim.ecmp() || n < 2 {
		return
	}
	for j := len(s.fib6.node(k)) - 1; j > i; j-- {
		if it := s.fib6.node(k)[j]; it.metric == r.metric && it.ecmp() {
			s.fib6.remove(k, j)
		}
	}
}

// siblings6 counts the members of the multipath route that entry i belongs to, itself included.
func (s *State) siblings6(k routeKey, i int) (n int) {
	list := s.fib6.node(k)
	if !list[i].ecmp() {
		return 1
	}
	for _, it := range list {
		if it.metric == list[i].metric && it.ecmp() {
			n++
		}
	}
	return n
}

// match6 is what a deletion asks for; the zero value of a field matches all.
type match6 struct {
	metric      uint32
	nhid        uint32
	legs        []leg
	allSiblings bool // fc_delete_all_nh
}

// userDelete6 is inet6_rtm_delroute.
func (s *State) userDelete6(o Route) syscall.Errno {
	if o.NHID != 0 && (len(o.Legs) > 0 || s.nexthops[o.NHID] == nil) {
		return syscall.EINVAL
	}
	k := routeKey{o.Table, o.Dst.Masked()}
	m := match6{metric: o.Metric, nhid: o.NHID, allSiblings: len(o.Legs) < 2}
	if len(o.Legs) == 0 {
		return s.delete6(k, m)
	}
	var last syscall.Errno
	for _, l := range o.Legs {
		m.legs = []leg{s.legOf(l)}
		if errno := s.delete6(k, m); errno != 0 {
			last = errno // ip6_route_multipath_del
		}
	}
	return last
}

// delete6 is ip6_route_del. Type and preferred source are not looked at, nor the way out of a route with a nexthop object.
func (s *State) delete6(k routeKey, m match6) syscall.Errno {
	want := leg{}
	if len(m.legs) > 0 {
		want = m.legs[0]
	}
	for i, r := range s.fib6.node(k) {
		switch {
		case r.nhid != 0 && m.nhid != 0 && r.nhid != m.nhid, m.metric != 0 && m.metric != r.metric:
			continue
		case r.nhid != 0:
			s.fib6.remove(k, i)
			return 0
		case m.nhid != 0, want.dev != 0 && want.dev != r.leg.dev, want.gw.IsValid() && want.gw != r.leg.gw:
			continue
		}
		if !want.gw.IsValid() && m.allSiblings && r.ecmp() {
			s.fib6.removeIf(k, func(o *route6) bool { return o.metric == r.metric && o.ecmp() })
		} else {
			s.fib6.remove(k, i)
		}
		return 0
	}
	// The root of a table holds fib6_null_entry, on lo, as long as there is no default route.
	exists := s.fib6.tables[k.table] != nil || k.table == tableMain || k.table == tableLocal
	if exists && k.dst.Bits() == 0 && len(s.fib6.node(k)) == 0 && (m.metric == 0 || m.metric == math.MaxUint32) && m.nhid == 0 && !want.gw.IsValid() && (want.dev == 0 || want.dev == loIndex) {
		return syscall.ENOENT // __ip6_del_rt
	}
	return syscall.ESRCH
}
