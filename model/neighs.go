package model

import (
	"net/netip"
	"strings"
	"syscall"
)

// neighKey names a permanent neighbour or a proxy entry.
type neighKey struct {
	dev   int
	addr  netip.Addr
	proxy bool
}

// neigh follows neigh_add and neigh_delete.
func (s *State) neigh(o Neigh) syscall.Errno {
	l := s.byName[o.Dev]
	if l == nil {
		return syscall.ENODEV
	}
	k := neighKey{l.index, o.Addr, o.Proxy}
	_, have := s.neighs[k]
	if o.Verb == NeighDel {
		if !have {
			return syscall.ENOENT
		}
		delete(s.neighs, k)
		return 0
	}
	v4 := o.Addr.Is4()
	switch {
	case !v4 && !l.in6 && o.Proxy:
		return syscall.ENOBUFS // pndisc_constructor
	case !v4 && !l.in6:
		return syscall.EINVAL // ndisc_allow_add
	case o.Proxy:
		s.neighs[k] = ""
		return 0
	case have && o.Verb == NeighAdd:
		return syscall.EEXIST
	case !have && o.Verb == NeighChange:
		return syscall.ENOENT
	case !have && v4 && !l.in4:
		return syscall.EINVAL // arp_constructor
	case !have && v4 && l.kind == "":
		k.addr = netip.IPv4Unspecified() // arp_constructor: lo has one neighbour for all
	}
	s.neighs[k] = strings.ToLower(o.MAC)
	return 0
}

// neighFlush is neigh_ifdown: a device that goes down loses even its permanent neighbours and its proxy entries. Family Unspec is both.
func (s *State) neighFlush(l *link, f Family) {
	for k := range s.neighs {
		if k.dev == l.index && (f == Unspec || FamilyOf(k.addr) == f) {
			delete(s.neighs, k)
		}
	}
}

// neighChangeAddr is neigh_changeaddr: a device with a new link-layer address loses its neighbours, but not its proxy entries. Loss of carrier, for
// comparison, takes neither from it (neigh_carrier_down).
func (s *State) neighChangeAddr(l *link) {
	for k := range s.neighs {
		if k.dev == l.index && !k.proxy {
			delete(s.neighs, k)
		}
	}
}
