// Package model says what a Linux network namespace must answer to rtnetlink operations, and what it must become.
//
// It is pure: it knows the operations, the rules of the kernel and the resulting tables, and makes no system call.
package model

import "net/netip"

// Op is one operation on a network namespace. Each has exactly one text form, a line of iproute2, tc or nlfuzz (internal/iproute).
// The concrete types are plain comparable data except for slices, and the zero value of a field means "not given".
type Op interface {
	// Kind names the operation for tables and statistics: "link add dummy", "route replace", "settle".
	Kind() string
}

// Family is an address family as rtnetlink numbers it.
type Family uint8

// The families that operations and tables use.
const (
	Unspec Family = 0
	IPv4   Family = 2
	IPv6   Family = 10
)

// FamilyOf returns the family of an address; Unspec for the zero Addr.
func FamilyOf(a netip.Addr) Family {
	switch {
	case a.Is4():
		return IPv4
	case a.Is6():
		return IPv6
	}
	return Unspec
}

// LinkKind is the rtnl_link_ops kind of a device; empty for lo.
type LinkKind string

// The kinds of link that operations can create.
const (
	Dummy   LinkKind = "dummy"
	Veth    LinkKind = "veth"
	VRF     LinkKind = "vrf"
	Bridge  LinkKind = "bridge"
	VLAN    LinkKind = "vlan"
	MACVLAN LinkKind = "macvlan" // always mode bridge
)

// LinkAdd creates a link: ip link add [link LOWER] name NAME [mtu MTU] type KIND ...
type LinkAdd struct {
	Name   string
	Type   LinkKind
	MTU    uint32
	Lower  string // vlan, macvlan: the device below
	Peer   string // veth: the other end's name
	VLANID uint16 // vlan
	Table  uint32 // vrf
}

// LinkDel deletes a link: ip link del dev NAME.
type LinkDel struct{ Name string }

// LinkUp sets a link administratively up.
type LinkUp struct{ Name string }

// LinkDown sets a link administratively down.
type LinkDown struct{ Name string }

// LinkMaster enslaves a link: ip link set dev NAME master MASTER.
type LinkMaster struct{ Name, Master string }

// LinkNoMaster releases a link from its master.
type LinkNoMaster struct{ Name string }

// LinkMTU sets a link's MTU.
type LinkMTU struct {
	Name string
	MTU  uint32
}

// LinkRename renames a link: ip link set dev NAME name NEW.
type LinkRename struct{ Name, New string }

// AddrAdd adds an address: ip addr add PREFIX dev DEV [metric N] [noprefixroute].
type AddrAdd struct {
	Prefix        netip.Prefix // address and length, host bits kept
	Dev           string
	Metric        uint32
	NoPrefixRoute bool
}

// AddrDel deletes an address.
type AddrDel struct {
	Prefix netip.Prefix
	Dev    string
}

// RouteVerb is the word of ip route, which decides the netlink flags (iproute2, do_iproute).
type RouteVerb string

// The verbs of ip route.
const (
	RouteAdd     RouteVerb = "add"     // NLM_F_CREATE|NLM_F_EXCL
	RouteAppend  RouteVerb = "append"  // NLM_F_CREATE|NLM_F_APPEND
	RoutePrepend RouteVerb = "prepend" // NLM_F_CREATE
	RouteReplace RouteVerb = "replace" // NLM_F_CREATE|NLM_F_REPLACE
	RouteChange  RouteVerb = "change"  // NLM_F_REPLACE
	RouteDel     RouteVerb = "del"
)

// RouteType is an rtm_type.
type RouteType uint8

// The route types, numbered as RTN_*.
const (
	Unicast     RouteType = 1
	Local       RouteType = 2
	Broadcast   RouteType = 3
	Anycast     RouteType = 4
	Multicast   RouteType = 5
	Blackhole   RouteType = 6
	Unreachable RouteType = 7
	Prohibit    RouteType = 8
	Throw       RouteType = 9
)

// Leg is one way out of a route: a gateway, a device, or both.
type Leg struct {
	Gateway netip.Addr
	Dev     string
	Weight  uint16 // 1 to 256; 0 is not given, the same as 1. Only in multipath routes.
	Onlink  bool
}

// Route changes a route: ip [-6] route VERB [TYPE] DST [via GW] [dev DEV] [src A] [metric N] [table N] [nhid N] [nexthop ...]...
type Route struct {
	Verb   RouteVerb
	Type   RouteType    // 0: unicast for everything but del, where it is "any" (RTN_UNSPEC)
	Dst    netip.Prefix // its family is the operation's; 0.0.0.0/0 and ::/0 print as default
	Table  uint32       // 0: main, or local for the types local, broadcast, anycast (as iproute2 does)
	Metric uint32
	Src    netip.Addr
	NHID   uint32
	Legs   []Leg // none, one (printed as via/dev), or a multipath route of two and more
}

// NexthopVerb is the word of ip nexthop.
type NexthopVerb string

// The verbs of ip nexthop.
const (
	NexthopAdd     NexthopVerb = "add"
	NexthopReplace NexthopVerb = "replace"
	NexthopDel     NexthopVerb = "del"
)

// Member is one member of a nexthop group.
type Member struct {
	ID     uint32
	Weight uint16 // 0 is not given, the same as 1
}

// Nexthop changes a nexthop object: ip [-6] nexthop VERB id ID [via GW] [dev DEV] [blackhole] [fdb] [onlink] [group ...].
type Nexthop struct {
	Verb      NexthopVerb
	ID        uint32
	Family    Family // of an object without gateway: Unspec is IPv4 (as iproute2 does); of a gateway: its own
	Gateway   netip.Addr
	Dev       string
	Blackhole bool
	FDB       bool
	Onlink    bool
	Group     []Member
}

// RuleAction is what a rule does.
type RuleAction string

// The actions of a rule: "" and RuleTable look a table up.
const (
	RuleLookup      RuleAction = ""
	RuleL3MDev      RuleAction = "l3mdev"
	RuleBlackhole   RuleAction = "blackhole"
	RuleUnreachable RuleAction = "unreachable"
	RuleProhibit    RuleAction = "prohibit"
)

// Rule adds or deletes a policy rule: ip [-6] rule add|del pref N [from P] [to P] [fwmark N] [iif D] [oif D] ACTION.
type Rule struct {
	Del    bool
	Family Family // IPv4 or IPv6
	Pref   uint32 // always given
	From   netip.Prefix
	To     netip.Prefix
	Mark   uint32
	IIF    string
	OIF    string
	Action RuleAction
	Table  uint32 // with RuleLookup
}

// NeighVerb is the word of ip neigh.
type NeighVerb string

// The verbs of ip neigh.
const (
	NeighAdd     NeighVerb = "add"
	NeighReplace NeighVerb = "replace"
	NeighChange  NeighVerb = "change"
	NeighDel     NeighVerb = "del"
)

// Neigh changes a permanent neighbour or a proxy entry: ip neigh VERB ADDR lladdr MAC dev DEV nud permanent; ip neigh add proxy ADDR dev DEV.
type Neigh struct {
	Verb  NeighVerb
	Addr  netip.Addr
	MAC   string // "02:00:00:00:00:01"; not with proxy or del
	Dev   string
	Proxy bool // add and del only
}

// QdiscVerb is the word of tc qdisc.
type QdiscVerb string

// The verbs of tc qdisc.
const (
	QdiscAdd     QdiscVerb = "add"
	QdiscReplace QdiscVerb = "replace"
	QdiscDel     QdiscVerb = "del"
)

// QdiscKind is a queueing discipline.
type QdiscKind string

// The qdiscs that operations can make.
const (
	Netem QdiscKind = "netem" // with a delay
	Prio  QdiscKind = "prio"  // three bands; can carry a filter
)

// Qdisc changes a qdisc: tc qdisc VERB dev DEV root|parent P [handle H] KIND [delay Ns].
type Qdisc struct {
	Verb   QdiscVerb
	Dev    string
	Parent string // "" is root; else a class such as "1:2"
	Handle uint16 // major number (hexadecimal in text); 0: the kernel chooses
	Type   QdiscKind
	Delay  uint32 // netem: seconds
}

// Filter adds or deletes the flow classifier on a prio qdisc, after which the device's packets keep their dst
// (net/sched/cls_flow.c calls tcf_block_netif_keep_dst): tc filter add dev DEV parent H: protocol all prio 1 handle 1 flow hash keys dst baseclass H:1.
type Filter struct {
	Del    bool
	Dev    string
	Handle uint16 // of the prio qdisc
}

// SendProto is the kind of traffic that Send makes.
type SendProto string

// The protocols of Send and Hold.
const (
	Raw6 SendProto = "raw6" // a raw IPv6 socket with its own header (IPV6_HDRINCL)
	UDP4 SendProto = "udp4"
	UDP6 SendProto = "udp6"
)

// Send sends datagrams from a new socket and closes it: nlfuzz send PROTO [from A] to B [dev D] [count N].
type Send struct {
	Proto SendProto
	From  netip.Addr // raw6: the header's source; else bind
	To    netip.Addr
	Dev   string // SO_BINDTODEVICE
	Count uint16 // 0 is 1
}

// Hold keeps a connected UDP socket: nlfuzz hold PROTO NAME to B [dev D]. A socket holds the dst that connect found until it is closed.
type Hold struct {
	Proto SendProto // UDP4 or UDP6
	Name  string
	To    netip.Addr
	Dev   string
}

// Release closes a held socket: nlfuzz release NAME.
type Release struct{ Name string }

// PTB makes the kernel learn a path MTU, and with it a route exception: it is sent an ICMP error (IPv6 packet too big, IPv4 fragmentation needed) from and
// to an address of its own, which quotes a packet from there: nlfuzz ptb TO mtu N [from A] [dev D].
type PTB struct {
	To   netip.Addr
	MTU  uint16     // not below 1
	From netip.Addr // not given: the source that the kernel takes for To
	Dev  string     // SO_BINDTODEVICE: for IPv6 addresses in a VRF; IPv4 makes no exception there (icmp_err looks the route up without a device)
}

// Settle waits until the RCU callbacks that were queued before it are done: nlfuzz settle.
type Settle struct{}

// Kind implements Op.
func (o LinkAdd) Kind() string      { return "link add " + string(o.Type) }
func (o LinkDel) Kind() string      { return "link del" }
func (o LinkUp) Kind() string       { return "link up" }
func (o LinkDown) Kind() string     { return "link down" }
func (o LinkMaster) Kind() string   { return "link master" }
func (o LinkNoMaster) Kind() string { return "link nomaster" }
func (o LinkMTU) Kind() string      { return "link mtu" }
func (o LinkRename) Kind() string   { return "link rename" }
func (o AddrAdd) Kind() string      { return "addr add" }
func (o AddrDel) Kind() string      { return "addr del" }
func (o Route) Kind() string        { return "route " + string(o.Verb) }
func (o Nexthop) Kind() string      { return "nexthop " + string(o.Verb) }
func (o Rule) Kind() string         { return addOrDel("rule", o.Del) }
func (o Neigh) Kind() string        { return "neigh " + string(o.Verb) }
func (o Qdisc) Kind() string        { return "qdisc " + string(o.Verb) }
func (o Filter) Kind() string       { return addOrDel("filter", o.Del) }
func (o Send) Kind() string         { return "send " + string(o.Proto) }
func (o Hold) Kind() string         { return "hold " + string(o.Proto) }
func (o Release) Kind() string      { return "release" }
func (o PTB) Kind() string          { return "ptb" }
func (o Settle) Kind() string       { return "settle" }

func addOrDel(what string, del bool) string {
	if del {
		return what + " del"
	}
	return what + " add"
}
