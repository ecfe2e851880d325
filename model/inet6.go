package model

import (
	"net/netip"
	"slices"
	"syscall"
)

// addr6 is one inet6_ifaddr.
type addr6 struct {
	prefix        netip.Prefix
	metric        uint32
	noPrefixRoute bool
	route         uint64 // its local route
}

var multicast6 = netip.MustParsePrefix("ff00::/8")

// addrAdd6 is inet6_rtm_newaddr with inet6_addr_add. Duplicate detection is off, so the address is valid at once, also on a device that is down.
func (s *State) addrAdd6(l *link, o AddrAdd) syscall.Errno {
	a := o.Prefix.Addr()
	switch {
	case slices.ContainsFunc(l.addr6, func(b addr6) bool { return b.prefix.Addr() == a }):
		return syscall.EEXIST
	case !l.in6:
		return syscall.EINVAL // ipv6_add_dev
	}
	s.addMulticast6(l)
	if a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() && l.kind != "" && l.kind != VRF {
		return syscall.EADDRNOTAVAIL // ipv6_add_addr
	}
	n := addr6{prefix: o.Prefix, metric: o.Metric, noPrefixRoute: o.NoPrefixRoute}
	if !n.noPrefixRoute {
		s.addPrefix6(l, n)
	}
	n.route = s.addLocal6(l, a)
	l.addr6 = append(l.addr6, n)
	return 0
}

// kernelAdd6 adds a route of the kernel, which has no netlink flags.
func (s *State) kernelAdd6(k routeKey, r route6) syscall.Errno {
	r.proto, r.leg.weight = protoKernel, 1
	s.fib6.create(k.table)
	return s.add6(k, r, flags{create: true})
}

// addMulticast6 is addrconf_add_dev with addrconf_add_mroute: every device but lo and VRFs has a route for multicast.
func (s *State) addMulticast6(l *link) {
	if l.kind == "" || l.kind == VRF || !l.up {
		return
	}
	s.kernelAdd6(routeKey{s.tableOr(l, tableLocal), multicast6},
		route6{typ: Multicast, metric: metricAddrconf, leg: leg{dev: l.index, linkdown: !l.carrier}})
}

// addPrefix6 is addrconf_prefix_route.
func (s *State) addPrefix6(l *link, a addr6) {
	if !l.up {
		return
	}
	r := route6{typ: Unicast, metric: a.metric, leg: leg{dev: l.index, linkdown: !l.carrier}}
	if r.metric == 0 {
		r.metric = metricAddrconf
	}
	r.reject = s.isReject6(false, false, l.index, a.prefix.Addr())
	s.kernelAdd6(routeKey{s.tableOr(l, tableMain), a.prefix.Masked()}, r)
}

// addLocal6 adds the local route of an address (addrconf_f6i_alloc, __ipv6_ifa_notify) and returns its identity, or 0 if there is one already.
func (s *State) addLocal6(l *link, a netip.Addr) uint64 {
	r := route6{typ: Local, local: true, leg: leg{dev: l.index}}
	if s.kernelAdd6(routeKey{s.tableOr(l, tableLocal), hostPrefix(a)}, r) != 0 {
		return 0
	}
	return s.nextRoute
}

// addLoopback6 is init_loopback.
func (s *State) addLoopback6(lo *link) {
	one := netip.IPv6Loopback()
	if lo.in6 && !slices.ContainsFunc(lo.addr6, func(b addr6) bool { return b.prefix.Addr() == one }) {
		lo.addr6 = append(lo.addr6, addr6{prefix: hostPrefix(one), route: s.addLocal6(lo, one)})
	}
}

// addrDel6 is inet6_addr_del with ipv6_del_addr.
func (s *State) addrDel6(l *link, o AddrDel) syscall.Errno {
	if !l.in6 {
		return syscall.ENXIO
	}
	i := slices.IndexFunc(l.addr6, func(b addr6) bool { return b.prefix == o.Prefix })
	if i < 0 {
		return syscall.EADDRNOTAVAIL
	}
	a := l.addr6[i]
	l.addr6 = slices.Delete(l.addr6, i, i+1)
	s.dropLocal6(l, a)
	// check_cleanup_prefix_route: another address of the same prefix keeps the prefix route.
	if !a.noPrefixRoute && !slices.ContainsFunc(l.addr6, func(b addr6) bool { return b.prefix.Masked() == a.prefix.Masked() }) {
		s.dropPrefix6(l, a)
	}
	s.stripSource6(l, a.prefix.Addr())
	return 0
}

// dropLocal6 removes an address's local route, in whatever table it is.
func (s *State) dropLocal6(l *link, a addr6) {
	if a.route == 0 {
		return
	}
	for _, table := range []uint32{s.tableOr(l, tableLocal), tableLocal} {
		s.fib6.removeIf(routeKey{table, hostPrefix(a.prefix.Addr())}, func(r *route6) bool { return r.id == a.route })
	}
}

// dropPrefix6 is cleanup_prefix_route: it deletes the first route without gateway to the prefix on the device, whoever made it.
func (s *State) dropPrefix6(l *link, a addr6) {
	k := routeKey{s.tableOr(l, tableMain), a.prefix.Masked()}
	for i, r := range s.fib6.node(k) {
		if r.nhid == 0 && r.leg.dev == l.index && !r.leg.gw.IsValid() {
			s.fib6.remove(k, i)
			return
		}
	}
}

// stripSource6 is rt6_remove_prefsrc: routes lose the deleted address as their preferred source (Profile.SourceOfAnyDevice says which).
func (s *State) stripSource6(l *link, a netip.Addr) {
	for _, k := range s.fib6.keysOf(ref{src: a}) {
		for i, r := range s.fib6.node(k) {
			if r.src != a || r.nhid != 0 {
				continue
			}
			lost := r.leg.dev == l.index
			if s.prof.SourceOfAnyDevice {
				lost = !s.hasAddr6(a, s.byIndex[r.leg.dev], false)
			}
			if lost {
				n := *r
				n.src = netip.Addr{}
				s.fib6.replace(k, i, &n)
			}
		}
	}
}

// ifdown6 is addrconf_ifdown without keep_addr_on_down: all addresses go, and all routes out of the device.
func (s *State) ifdown6(l *link, unregister bool) {
	for _, k := range s.fib6.keysOf(ref{dev: l.index}) {
		s.syncDown6(k, l, unregister)
	}
	s.neighFlush(l, IPv6)
	if !l.in6 {
		return
	}
	addrs := l.addr6
	l.addr6 = nil
	l.ready = false
	if unregister {
		l.in6 = false
	}
	for _, a := range addrs {
		s.dropLocal6(l, a)
	}
}

// syncDown6 is fib6_clean_node with fib6_ifdown for one node.
func (s *State) syncDown6(k routeKey, l *link, unregister bool) {
	if unregister {
		s.fib6.removeIf(k, func(r *route6) bool { return r.leg.dev == l.index && r.nhid == 0 })
		return
	}
	list := s.fib6.node(k)
	gone := map[uint64]bool{}
	for i := 0; i < len(list); i++ {
		r := list[i]
		if r.nhid != 0 || gone[r.id] {
			continue
		}
		if s.siblings6(k, i) == 1 {
			if r.leg.dev == l.index {
				gone[r.id] = true
			}
			continue
		}
		last, uses, dead, n := i, false, 0, 0
		for j, o := range list {
			if o.metric != r.metric || !o.ecmp() {
				continue
			}
			n++
			last = j
			if o.leg.dev == l.index {
				uses = true
			}
			if o.leg.dev == l.index || o.leg.dead {
				dead++
			}
		}
		if uses && dead == n {
			for _, o := range list {
				if o.metric == r.metric && o.ecmp() {
					gone[o.id] = true // rt6_multipath_flush
				}
			}
			continue
		}
		for j, o := range list {
			if uses && o.metric == r.metric && o.ecmp() && o.leg.dev == l.index {
				c := *o
				c.leg.dead, c.leg.linkdown = true, true
				s.fib6.replace(k, j, &c)
			}
		}
		if s.prof.SkipsBetweenSiblings {
			i = last
		}
	}
	s.fib6.removeIf(k, func(r *route6) bool { return gone[r.id] })
}

// up6 is NETDEV_UP in addrconf_notify: routes of addresses that were added meanwhile, then, if there is carrier, the rest.
func (s *State) up6(l *link) {
	if l.in6 {
		for i := range l.addr6 {
			s.fixup6(l, &l.addr6[i])
		}
	}
	if !l.carrier || !l.oper {
		return // addrconf_link_ready
	}
	if !l.in6 && l.mtu >= minMTU6 {
		l.in6 = true
	}
	if l.in6 {
		l.ready = true
		s.configure6(l)
	}
}

// fixup6 is fixup_permanent_addr. A local route that a user deleted is made anew, but only that of an address without duplicate detection, lo's own,
// is put into the table.
func (s *State) fixup6(l *link, a *addr6) {
	addr := a.prefix.Addr()
	k := routeKey{s.tableOr(l, tableLocal), hostPrefix(addr)}
	if !slices.ContainsFunc(s.fib6.node(k), func(r *route6) bool { return r.id == a.route }) {
		a.route = 0
		if addr.IsLoopback() {
			a.route = s.addLocal6(l, addr)
		}
	}
	if !a.noPrefixRoute {
		s.addPrefix6(l, *a)
	}
}

// configure6 is the end of addrconf_notify: a device that is ready gets its standard addresses and routes, and dead legs live again.
func (s *State) configure6(l *link) {
	if l.kind == "" {
		s.addLoopback6(l)
	} else {
		s.addMulticast6(l)
	}
	s.syncUp6(l, true)
	if l.mtu < minMTU6 {
		s.ifdown6(l, l.kind != "") // only lo has an inet6_dev with such an MTU
	}
}

// change6 is NETDEV_CHANGE in addrconf_notify.
func (s *State) change6(l *link) {
	switch {
	case !l.carrier:
		s.setLegs6(l, func(r *route6) {
			if !r.local {
				r.leg.linkdown = true
			}
		})
	case !l.in6:
	case l.ready:
		s.syncUp6(l, false)
	default:
		l.ready = true
		s.configure6(l)
	}
}

// syncUp6 is rt6_sync_up.
func (s *State) syncUp6(l *link, fromDead bool) {
	s.setLegs6(l, func(r *route6) {
		if fromDead {
			r.leg.dead = false
		}
		if !fromDead || l.carrier {
			r.leg.linkdown = false
		}
	})
}

// setLegs6 changes the routes out of a device.
func (s *State) setLegs6(l *link, change func(*route6)) {
	for _, k := range s.fib6.keysOf(ref{dev: l.index}) {
		for i, r := range s.fib6.node(k) {
			if r.nhid != 0 || r.leg.dev != l.index {
				continue
			}
			n := *r
			if change(&n); n != *r {
				s.fib6.replace(k, i, &n)
			}
		}
	}
}

// mtu6 is NETDEV_CHANGEMTU in addrconf_notify.
func (s *State) mtu6(l *link) {
	switch {
	case l.mtu < minMTU6:
		s.ifdown6(l, l.kind != "")
	case !l.in6:
		l.in6 = true
		l.ready = l.up && l.oper // ipv6_add_dev: loss of carrier in the same operation is not reported yet
		if l.ready {
			s.configure6(l)
		}
	}
}
