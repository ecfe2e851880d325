package model

import (
	"net/netip"
	"slices"
	"syscall"
)

// addr4 is one in_ifaddr.
type addr4 struct {
	prefix        netip.Prefix
	scope         uint8
	secondary     bool
	metric        uint32
	noPrefixRoute bool
}

func (a addr4) subnet() netip.Prefix { return a.prefix.Masked() }

// isZeronet is ipv4_is_zeronet.
func isZeronet(a netip.Addr) bool { return a.As4()[0] == 0 }

// hasSubnet says whether an address has a connected route (fib_add_ifaddr).
func (a addr4) hasSubnet() bool { return !isZeronet(a.subnet().Addr()) && a.prefix.Bits() < 32 }

// last4 is the directed broadcast address of a prefix.
func last4(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// addrAdd adds an address of either family.
func (s *State) addrAdd(o AddrAdd) syscall.Errno {
	l := s.byName[o.Dev]
	switch {
	case l == nil:
		return syscall.ENODEV
	case o.Prefix.Addr().Is6():
		return s.addrAdd6(l, o)
	case !l.in4:
		return syscall.ENOBUFS // rtm_to_ifaddr
	}
	a := addr4{prefix: o.Prefix, metric: o.Metric, noPrefixRoute: o.NoPrefixRoute}
	if o.Prefix.Addr().As4()[0] == 127 {
		a.scope = scopeHost // iproute2, default_scope
	}
	return s.insertAddr4(l, a)
}

// insertAddr4 is __inet_insert_ifa: primaries come before secondaries.
func (s *State) insertAddr4(l *link, a addr4) syscall.Errno {
	if a.prefix.Addr().IsUnspecified() {
		return 0 // accepted and forgotten
	}
	at := 0
	for i, b := range l.addr4 {
		if !b.secondary && a.scope <= b.scope {
			at = i + 1
		}
		if b.subnet() == a.subnet() {
			if b.prefix.Addr() == a.prefix.Addr() {
				return syscall.EEXIST
			}
			if b.scope != a.scope {
				return syscall.EINVAL
			}
			a.secondary = true
		}
	}
	if a.secondary {
		at = len(l.addr4)
	}
	l.addr4 = slices.Insert(l.addr4, at, a)
	s.addrRoutes4(l, a)
	s.syncUp4(l, true)
	return 0
}

// addrDel deletes an address of either family.
func (s *State) addrDel(o AddrDel) syscall.Errno {
	l := s.byName[o.Dev]
	switch {
	case l == nil:
		return syscall.ENODEV
	case o.Prefix.Addr().Is6():
		return s.addrDel6(l, o)
	case !l.in4:
		return syscall.ENODEV // inet_rtm_deladdr
	}
	for i, a := range l.addr4 {
		if a.prefix == o.Prefix {
			s.removeAddr4(l, i, false)
			return 0
		}
	}
	return syscall.EADDRNOTAVAIL
}

// removeAddr4 is __inet_del_ifa without promotion: with a primary go its secondaries, first. When the device goes they come one by one after their
// primary, and fib_del_ifaddr, which no longer finds it, leaves the routes that prefer them as their source.
func (s *State) removeAddr4(l *link, i int, dead bool) {
	a := l.addr4[i]
	if !a.secondary && !dead {
		for j := i + 1; j < len(l.addr4); {
			if b := l.addr4[j]; b.secondary && b.subnet() == a.subnet() {
				l.addr4 = slices.Delete(l.addr4, j, j+1)
				s.addrGone4(l, b, dead)
				continue
			}
			j++
		}
	}
	l.addr4 = slices.Delete(l.addr4, i, i+1)
	s.addrGone4(l, a, dead)
}

// addrGone4 is fib_inetaddr_event for NETDEV_DOWN.
func (s *State) addrGone4(l *link, a addr4, dead bool) {
	s.dropAddrRoutes4(l, a, dead)
	if len(l.addr4) == 0 {
		s.fibDisable(l, eventDown, true)
	}
}

// destroyInet4 is inetdev_destroy.
func (s *State) destroyInet4(l *link) {
	if !l.in4 {
		return
	}
	for len(l.addr4) > 0 {
		s.removeAddr4(l, 0, true)
	}
	l.in4 = false
	s.neighFlush(l, IPv4)
}

// primary4 is inet_ifa_byprefix.
func (l *link) primary4(subnet netip.Prefix) (addr4, bool) {
	for _, b := range l.addr4 {
		if !b.secondary && b.subnet() == subnet {
			return b, true
		}
	}
	return addr4{}, false
}

// magicKey is the table and the prefix of a route of the kernel (fib_magic).
func (s *State) magicKey(l *link, typ RouteType, dst netip.Prefix) routeKey {
	other := tableLocal
	if typ == Unicast {
		other = tableMain
	}
	return routeKey{s.tableOr(l, other), dst}
}

func magicScope(typ RouteType) uint8 {
	if typ == Local {
		return scopeHost
	}
	return scopeLink
}

// magicAdd adds a route of the kernel; src is the primary address of the subnet.
func (s *State) magicAdd(l *link, typ RouteType, dst netip.Prefix, src netip.Addr, metric uint32) {
	r := route4{typ: typ, metric: metric, proto: protoKernel, scope: magicScope(typ), src: src, legs: []leg{{dev: l.index, weight: 1}}}
	s.add4(s.magicKey(l, typ, dst), r, flags{create: true, append: true})
}

func (s *State) magicDel(l *link, typ RouteType, dst netip.Prefix, src netip.Addr) {
	s.delete4(s.magicKey(l, typ, dst), match4{typ: typ, scope: magicScope(typ), proto: protoKernel, src: src, legs: []leg{{dev: l.index}}})
}

// connectedType is the type of the route to an address's subnet.
func (l *link) connectedType() RouteType {
	if l.kind == "" {
		return Local
	}
	return Unicast
}

// addrRoutes4 is fib_add_ifaddr. iproute2 sets no broadcast address, so there is none but the subnet's own.
func (s *State) addrRoutes4(l *link, a addr4) {
	prim := a
	if a.secondary {
		p, ok := l.primary4(a.subnet())
		if !ok {
			return
		}
		prim = p
	}
	src := prim.prefix.Addr()
	s.magicAdd(l, Local, hostPrefix(a.prefix.Addr()), src, 0)
	if !l.up || a.secondary || !a.hasSubnet() {
		return
	}
	if !a.noPrefixRoute {
		s.magicAdd(l, l.connectedType(), a.subnet(), src, a.metric)
	}
	if a.prefix.Bits() < 31 {
		// Since 5.19 there is no route for the network address itself (fib_add_ifaddr).
		s.magicAdd(l, Broadcast, hostPrefix(last4(a.subnet())), src, 0)
	}
}

// dropAddrRoutes4 is fib_del_ifaddr for an address that is already off its device's list.
func (s *State) dropAddrRoutes4(l *link, a addr4, dead bool) {
	prim := a
	subnet := false
	if a.secondary {
		p, ok := l.primary4(a.subnet())
		if !ok {
			return
		}
		prim = p
	} else if a.hasSubnet() {
		if !a.noPrefixRoute {
			s.magicDel(l, l.connectedType(), a.subnet(), prim.prefix.Addr())
		}
		subnet = true
	}
	brd := last4(a.subnet())
	localOK, brdOK := false, false
	if !dead {
		localOK, brdOK = s.stillNeeded4(l, a, prim, brd)
	}
	if subnet && a.prefix.Bits() < 31 && !brdOK {
		s.magicDel(l, Broadcast, hostPrefix(brd), prim.prefix.Addr())
	}
	if localOK {
		return
	}
	addr := a.prefix.Addr()
	s.magicDel(l, Local, hostPrefix(addr), prim.prefix.Addr())
	if s.addrType4(s.tableOr(l, tableLocal), addr) != Local {
		s.sourceGone4(l, addr)
	}
}

// stillNeeded4 says whether other addresses of the device need the local and the broadcast route of a deleted one.
func (s *State) stillNeeded4(l *link, a, prim addr4, brd netip.Addr) (localOK, brdOK bool) {
	samePrefsrc := false
	prim1, havePrim1 := addr4{}, false
	for _, b := range l.addr4 {
		isPrim1 := false
		if b.secondary {
			if b.subnet() == prim.subnet() {
				prim1, havePrim1 = prim, true
			} else {
				if !samePrefsrc {
					continue
				}
				if !havePrim1 || prim1.subnet() != b.subnet() {
					prim1, havePrim1 = l.primary4(b.subnet())
				}
				if !havePrim1 || prim1.prefix.Addr() != prim.prefix.Addr() {
					continue
				}
			}
		} else {
			if prim.prefix.Addr() != b.prefix.Addr() {
				continue
			}
			isPrim1 = true
			prim1, havePrim1 = b, true
			if prim.prefix != b.prefix {
				samePrefsrc = true
			}
		}
		if a.prefix.Addr() == b.prefix.Addr() {
			localOK = true
		}
		if isPrim1 && b.prefix.Bits() < 31 && !isZeronet(b.subnet().Addr()) && brd == last4(b.subnet()) {
			brdOK = true
		}
	}
	return localOK, brdOK
}

// sourceGone4 is fib_sync_down_addr: routes of the device's VRF table (or main) that prefer an address go with it.
func (s *State) sourceGone4(l *link, addr netip.Addr) {
	table := s.tableOr(l, tableMain)
	for _, k := range s.fib4.keysOf(ref{src: addr}) {
		if k.table == table {
			s.fib4.removeIf(k, func(r *route4) bool { return r.src == addr })
		}
	}
}

// fibDisable is fib_disable_ip with fib_sync_down_dev: it kills the legs on a device. Force also kills routes to local addresses.
func (s *State) fibDisable(l *link, ev event, force bool) {
	s.syncDown4(l, ev, force)
	s.neighFlush(l, IPv4) // arp_ifdown
}

func (s *State) syncDown4(l *link, ev event, force bool) {
	for _, k := range s.fib4.keysOf(ref{dev: l.index}) {
		for i := len(s.fib4.node(k)) - 1; i >= 0; i-- {
			r := s.fib4.node(k)[i]
			if !slices.ContainsFunc(r.legs, func(g leg) bool { return g.dev == l.index }) {
				continue
			}
			n := *r
			n.legs = slices.Clone(r.legs)
			dead := 0
			for j := range n.legs {
				g := &n.legs[j]
				switch {
				case g.dead:
					dead++
				case g.dev == l.index && (force || g.scope != scopeNowhere):
					g.dead = ev != eventChange
					g.linkdown = true
					dead++
				}
				if ev == eventUnregister && g.dev == l.index {
					dead = len(n.legs)
					break
				}
			}
			if dead == len(n.legs) && ev != eventChange {
				s.fib4.remove(k, i)
			} else {
				s.fib4.replace(k, i, &n)
			}
		}
	}
}

// syncUp4 is fib_sync_up: legs on a device that is up live again.
func (s *State) syncUp4(l *link, fromDead bool) {
	if !l.up || !l.in4 {
		return
	}
	linkdown := !fromDead || l.carrier
	for _, k := range s.fib4.keysOf(ref{dev: l.index}) {
		for i, r := range s.fib4.node(k) {
			revives := func(g leg) bool { return g.dev == l.index && (fromDead && g.dead || linkdown && g.linkdown) }
			if !slices.ContainsFunc(r.legs, revives) {
				continue
			}
			n := *r
			n.legs = slices.Clone(r.legs)
			for j := range n.legs {
				if g := &n.legs[j]; revives(*g) {
					g.dead = g.dead && !fromDead
					g.linkdown = g.linkdown && !linkdown
				}
			}
			s.fib4.replace(k, i, &n)
		}
	}
}

// up4 is NETDEV_UP for IPv4: inetdev_event, fib_netdev_event.
func (s *State) up4(l *link) {
	if !l.in4 {
		return
	}
	if l.kind == "" && l.mtu >= minMTU4 {
		s.insertAddr4(l, addr4{prefix: netip.MustParsePrefix("127.0.0.1/8"), scope: scopeHost})
	}
	for _, a := range l.addr4 {
		s.addrRoutes4(l, a)
	}
	s.syncUp4(l, true)
}

// change4 is NETDEV_CHANGE for IPv4.
func (s *State) change4(l *link) {
	switch {
	case !l.in4:
	case l.carrier:
		s.syncUp4(l, false)
	default:
		s.syncDown4(l, eventChange, false)
	}
}
