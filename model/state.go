package model

import (
	"maps"
	"net/netip"
	"slices"
	"syscall"
)

// Profile is what kernels are known to do differently. Each field is found out by a few operations on a live kernel, never by its version.
type Profile struct {
	// RenameUp: a link that is up can be renamed (dev_change_name; not on 6.1).
	RenameUp bool
	// GroupWeight16: a member of a nexthop group may have a weight above 255.
	GroupWeight16 bool
	// SkipsBetweenSiblings: an IPv6 route that lies between two siblings of a multipath route of the same prefix and metric is left out by dumps
	// (fib6_dump_node) and survives its device going down (fib6_clean_node): both jump from the first sibling to the last. A fault of all kernels so far.
	SkipsBetweenSiblings bool
	// MultipathGatewayFirst: the legs of an IPv6 multipath route are checked to have gateways before all else (rtm_to_fib6_multipath_config; on 6.1 each
	// leg only after it was made, when a reject route has lost its gateway).
	MultipathGatewayFirst bool
	// RuleMatchesVRF: a rule's oif that is a VRF matches lookups in that VRF (fib_rule_oif_match; not on 6.1 and 6.12).
	RuleMatchesVRF bool
	// VLANsFollowLater: VLANs follow their device up and down after the operation, so that a device which a VRF takes down and up again does not take
	// them down (vlan_device_event; not on 6.1 and 6.12).
	VLANsFollowLater bool
	// SourceOfAnyDevice: deleting an IPv6 address strips it as the preferred source of every route for which no other device of the same VRF has it
	// (fib6_remove_prefsrc); on 6.1 of the routes out of its own device, wherever else it is.
	SourceOfAnyDevice bool
	// VethHoldsPeer: each end of a veth pair keeps a reference on the other (veth_newlink; not on 6.1 to 7.2).
	VethHoldsPeer bool
}

// DefaultProfile is the profile of current kernels.
func DefaultProfile() Profile {
	return Profile{RenameUp: true, GroupWeight16: true, SkipsBetweenSiblings: true, MultipathGatewayFirst: true, RuleMatchesVRF: true,
		VLANsFollowLater: true, SourceOfAnyDevice: true, VethHoldsPeer: true}
}

// Answer is what the kernel must say to an operation.
type Answer struct {
	Errno    syscall.Errno // 0 is success
	Unjudged bool          // the model does not know; Errno is meaningless
}

// owner marks who may write to a shared part of a state in place; see State.Clone. It must not have size zero: its address is its meaning.
type owner struct{ _ byte }

// State is a network namespace as the model sees it. It is not safe for concurrent use.
type State struct {
	prof      Profile
	own       *owner
	links     []*link // in the order of creation
	byName    map[string]*link
	byIndex   map[int]*link
	nextIndex int

	fib4       *fib[route4]
	fib6       *fib[route6]
	nextRoute  uint64 // identity of IPv6 routes
	separate   bool   // tables local and main have separate tries (fib_unmerge): once an IPv4 rule was added or deleted
	rules4     []RuleEntry
	rules6     []RuleEntry
	custom6    bool // net->ipv6.fib6_has_custom_rules
	hadVRF     bool // vrf_add_fib_rules ran
	nexthops   map[uint32]*nexthop
	nexthopsOf map[int][]uint32 // by device, as net->nexthop.devhash
	neighs     map[neighKey]string
	qdiscs     []qdisc
	later      []int // devices that VLANs are to follow
	changed    []int // devices whose carrier changed, until linkwatch reports it at the end of the operation
}

// Reserved tables, RT_TABLE_*.
const (
	tableDefault uint32 = 253
	tableMain    uint32 = 254
	tableLocal   uint32 = 255
)

// Values of rtm_protocol and rtm_scope, RTPROT_* and RT_SCOPE_*.
const (
	protoKernel uint8 = 2
	protoBoot   uint8 = 3

	scopeUniverse uint8 = 0
	scopeLink     uint8 = 253
	scopeHost     uint8 = 254
	scopeNowhere  uint8 = 255
)

const loIndex = 1

// New returns a fresh namespace: lo down, the default rules, IPv6 without link-local addresses (addr_gen_mode 1), duplicate detection and forwarding.
func New(p Profile) *State {
	s := &State{
		prof: p, own: new(owner), byName: map[string]*link{}, byIndex: map[int]*link{}, nextIndex: loIndex,
		nexthops: map[uint32]*nexthop{}, nexthopsOf: map[int][]uint32{}, neighs: map[neighKey]string{},
	}
	s.fib4, s.fib6 = newFIB[route4](s.own), newFIB[route6](s.own)
	lo := s.register(link{name: "lo", mtu: 65536, carrier: true})
	s.rules4 = []RuleEntry{
		{Family: IPv4, Pref: 0, Table: tableLocal, Proto: protoKernel},
		{Family: IPv4, Pref: 32766, Table: tableMain, Proto: protoKernel},
		{Family: IPv4, Pref: 32767, Table: tableDefault, Proto: protoKernel},
	}
	s.rules6 = []RuleEntry{
		{Family: IPv6, Pref: 0, Table: tableLocal, Proto: protoKernel},
		{Family: IPv6, Pref: 32766, Table: tableMain, Proto: protoKernel},
	}
	// Writing addr_gen_mode of a namespace makes lo's address although lo is down (addrconf_sysctl_addr_gen_mode, addrconf_init_auto_addrs).
	s.addLoopback6(lo)
	return s
}

// Clone returns an independent copy. Tables of routes are shared until one of the two writes to them.
func (s *State) Clone() *State {
	c := *s
	// Neither side owns the shared parts any longer.
	s.own, c.own = new(owner), new(owner)
	s.fib4.own, s.fib6.own = s.own, s.own
	c.fib4, c.fib6 = s.fib4.clone(c.own), s.fib6.clone(c.own)
	c.links = make([]*link, len(s.links))
	c.byName, c.byIndex = make(map[string]*link, len(s.links)), make(map[int]*link, len(s.links))
	for i, l := range s.links {
		n := *l
		n.addr4, n.addr6 = slices.Clone(l.addr4), slices.Clone(l.addr6)
		c.links[i], c.byName[n.name], c.byIndex[n.index] = &n, &n, &n
	}
	c.rules4, c.rules6 = slices.Clone(s.rules4), slices.Clone(s.rules6)
	c.nexthops, c.neighs = maps.Clone(s.nexthops), maps.Clone(s.neighs)
	c.nexthopsOf = make(map[int][]uint32, len(s.nexthopsOf))
	for dev, ids := range s.nexthopsOf {
		c.nexthopsOf[dev] = slices.Clone(ids)
	}
	c.qdiscs, c.changed, c.later = slices.Clone(s.qdiscs), slices.Clone(s.changed), slices.Clone(s.later)
	return &c
}

// Apply makes the state what it must be after the operation and returns the answer.
func (s *State) Apply(op Op) Answer {
	errno, unjudged := s.apply(op)
	for len(s.later)+len(s.changed) > 0 {
		s.vlansFollow()
		s.linkwatch()
	}
	return Answer{Errno: errno, Unjudged: unjudged}
}

func (s *State) apply(op Op) (errno syscall.Errno, unjudged bool) {
	switch o := op.(type) {
	case LinkAdd:
		return s.linkAdd(o), false
	case LinkDel:
		return s.linkDel(o), false
	case LinkUp:
		return s.linkSet(o.Name, s.up), false
	case LinkDown:
		return s.linkSet(o.Name, func(l *link) syscall.Errno { s.down(l); return 0 }), false
	case LinkMaster:
		return s.linkMaster(o), false
	case LinkNoMaster:
		return s.linkSet(o.Name, func(l *link) syscall.Errno { s.release(l); return 0 }), false
	case LinkMTU:
		return s.linkSet(o.Name, func(l *link) syscall.Errno { return s.userMTU(l, o.MTU) }), false
	case LinkRename:
		return s.linkRename(o), false
	case AddrAdd:
		return s.addrAdd(o), false
	case AddrDel:
		return s.addrDel(o), false
	case Route:
		return s.route(o), false
	case Nexthop:
		return s.nexthop(o), false
	case Rule:
		return s.rule(o), false
	case Neigh:
		return s.neigh(o), false
	case Qdisc:
		return s.qdisc(o), false
	case Filter:
		return s.filter(o), false
	case Settle:
		return 0, false
	}
	// Traffic changes no table; whether a socket call succeeds is not predicted.
	return 0, true
}

// hostPrefix is the prefix of one address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
