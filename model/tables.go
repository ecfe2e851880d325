package model

import (
	"net/netip"
)

// Tables is what can be seen of one network namespace, in the kernel's own order: the common form of a predicted state and of a decoded dump.
// Objects name each other by device name or nexthop id, never by ifindex.
type Tables struct {
	Links    []Link
	Addrs    []Addr
	Routes   []RouteEntry
	Nexthops []NexthopEntry
	Rules    []RuleEntry
	Neighs   []NeighEntry
	Qdiscs   []QdiscEntry
}

// Link is one device.
type Link struct {
	Name    string
	Type    LinkKind // empty for lo
	Up      bool     // IFF_UP
	Carrier bool     // IFLA_CARRIER (netif_carrier_ok); meaningful and compared only while Up
	MTU     uint32
	Master  string
	Lower   string // vlan, macvlan: the device below; veth: the peer (IFLA_LINK)
	VLANID  uint16
	Table   uint32 // vrf
}

// Addr is one address of a device.
type Addr struct {
	Dev           string
	Prefix        netip.Prefix
	Secondary     bool   // IFA_F_SECONDARY; IPv4 only (the bit means temporary in IPv6, which nobody asks for here)
	Metric        uint32 // IFA_RT_PRIORITY
	NoPrefixRoute bool
	Tentative     bool // IPv6, while the device is down
}

// RouteEntry is one route as dumped. A route with NHID has no Legs here (they are derived from the object).
type RouteEntry struct {
	Family Family
	Table  uint32
	Dst    netip.Prefix
	Type   RouteType
	Metric uint32
	Proto  uint8 // RTPROT_*: 2 kernel, 3 boot
	Scope  uint8 // IPv4 only, RT_SCOPE_*
	Src    netip.Addr
	NHID   uint32
	Legs   []LegEntry
}

// LegEntry is one way out of a dumped route.
type LegEntry struct {
	Gateway  netip.Addr
	Dev      string
	Weight   uint16 // 1 and up; 1 for a route that is not multipath
	Onlink   bool
	Dead     bool // RTNH_F_DEAD
	Linkdown bool // RTNH_F_LINKDOWN
}

// NexthopEntry is one nexthop object.
type NexthopEntry struct {
	ID        uint32
	Family    Family // Unspec for a group
	Gateway   netip.Addr
	Dev       string
	Blackhole bool
	FDB       bool
	Onlink    bool
	Scope     uint8    // nh_scope
	Group     []Member // weights filled in
}

// RuleEntry is one policy rule.
type RuleEntry struct {
	Family   Family
	Pref     uint32
	From, To netip.Prefix
	Mark     uint32
	IIF, OIF string
	Detached bool // the named device does not exist
	Action   RuleAction
	Table    uint32
	Proto    uint8 // RTPROT_*
}

// NeighEntry is a permanent neighbour or a proxy entry. Entries that the kernel learned or makes for itself (NOARP) are not listed.
type NeighEntry struct {
	Dev   string
	Addr  netip.Addr
	MAC   string
	Proxy bool
}

// QdiscEntry is a qdisc that an operation made. Default qdiscs (handle 0) are not listed.
type QdiscEntry struct {
	Dev    string
	Parent string // "" is root
	Handle uint16 // 0 where the kernel chose it (numbers from 0x8001)
	Type   QdiscKind
}
