package model

import "fmt"

// Ledger says how many references each device must have, by device name: its own, and those of the objects that name it. Left out is what comes and goes
// by itself: neighbour entries, link watch events, routes in use.
//
// Each rule is one netdev_hold of the kernel, seen on 6.1 to 7.3 (TestLiveLedger in package fuzz).
func (s *State) Ledger() map[string]int {
	n := make(map[int]int, len(s.links))
	for _, l := range s.links {
		n[l.index] += deviceRefs
		if l.in4 {
			n[l.index] += inet4Refs
		}
		if l.in6 {
			n[l.index] += inet6Refs
		}
		if l.defaultQdisc {
			n[l.index]++
		}
		if m := s.masterOf(l); m != nil {
			n[l.index]++ // __netdev_adjacent_dev_insert, in each direction
			n[m.index]++
			if m.kind == Bridge {
				n[l.index]++ // new_nbp
			}
		}
		if l.kind == Veth && s.prof.VethHoldsPeer {
			n[l.lower]++
		}
		if l.kind == VLAN || l.kind == MACVLAN {
			n[l.lower] += 2 // vlan_dev_init, macvlan_init; adjacency
			n[l.index]++    // adjacency
		}
	}
	for _, q := range s.qdiscs {
		n[q.dev] += s.qdiscRefs(q)
	}
	for k := range s.neighs {
		if k.proxy {
			n[k.dev]++ // pneigh_create
		}
	}
	for _, x := range s.nexthops {
		if x.leg.dev != 0 {
			n[x.leg.dev]++ // fib_nh_init, fib6_nh_init
		}
	}
	s.ledger4(n)
	s.ledger6(n)
	out := make(map[string]int, len(s.links))
	for _, l := range s.links {
		out[l.name] = n[l.index]
	}
	return out
}

// What a device has of its own, and what its protocol parts hold: the in_device and the inet6_dev one each, and one each for their neighbour parameters
// (inetdev_init, ipv6_add_dev, neigh_parms_alloc).
const (
	deviceRefs = 4
	inet4Refs  = 2
	inet6Refs  = 2
)

// qdiscRefs is what a qdisc adds to its device's count: one (qdisc_alloc), a prio one more for each band's default qdisc. One that is below another takes
// the place of a default qdisc in prio, and of none in netem.
func (s *State) qdiscRefs(q qdisc) int {
	n := 1
	if q.kind == Prio {
		n += prioBands
	}
	if q.parent != "" {
		if p, _ := s.parentOf(q.dev, q.parent); p >= 0 && s.qdiscs[p].kind == Prio {
			n--
		}
	}
	return n
}

// infoKey is what routes must have in common to share a fib_info (fib_find_info, nh_comp).
type infoKey struct {
	table  uint32 // fib_tb_id: the VRF's, where it is one
	typ    RouteType
	metric uint32
	proto  uint8
	scope  uint8
	src    string
	legs   string
}

// ledger4 counts the devices of IPv4 routes: once for each fib_info, which routes share.
func (s *State) ledger4(n map[int]int) {
	seen := map[infoKey]bool{}
	for id, t := range s.fib4.tables {
		for _, list := range t.nodes {
			for _, r := range list {
				if r.nhid != 0 {
					continue
				}
				k := infoKey{table: id, typ: r.typ, metric: r.metric, proto: r.proto, scope: r.scope, src: r.src.String()}
				for _, l := range r.legs {
					k.legs += fmt.Sprint(l.gw, l.dev, l.weight, l.scope, l.onlink, ";")
				}
				if seen[k] {
					continue
				}
				seen[k] = true
				for _, l := range r.legs {
					if l.dev != 0 {
						n[l.dev]++ // fib_nh_init
					}
				}
			}
		}
	}
}

// ledger6 counts the devices of IPv6 routes, which share nothing. An address keeps its local route (inet6_ifaddr.rt), also one that is in no table: a user
// deleted it, or the kernel could not add it.
func (s *State) ledger6(n map[int]int) {
	listed := map[uint64]bool{}
	for _, t := range s.fib6.tables {
		for _, list := range t.nodes {
			for _, r := range list {
				if r.nhid == 0 && r.leg.dev != 0 {
					n[r.leg.dev]++ // fib6_nh_init
				}
				if r.local {
					listed[r.id] = true
				}
			}
		}
	}
	for _, l := range s.links {
		for _, a := range l.addr6 {
			if !listed[a.route] {
				n[l.index]++ // addrconf_f6i_alloc
			}
		}
	}
}
