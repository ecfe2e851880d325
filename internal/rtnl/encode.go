package rtnl

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/model"
)

const (
	flagRequest = unix.NLM_F_REQUEST
	flagAck     = unix.NLM_F_ACK
	flagAdd     = unix.NLM_F_CREATE | unix.NLM_F_EXCL | flagAck
	flagReplace = unix.NLM_F_CREATE | unix.NLM_F_REPLACE | flagAck
)

// Index finds a device's ifindex by its name.
type Index func(name string) (int, bool)

// Encode returns the request that iproute2 sends for op. A device that does not exist is refused by iproute2 itself ("Cannot find device"): that is the answer
// ENODEV without a request. Only operations that are one request can be encoded; for others (send, hold, release, settle) ok is false.
func Encode(op model.Op, index Index) (req []byte, errno syscall.Errno, ok bool) {
	e := &encoder{index: index}
	r := e.encode(op)
	if r == nil {
		return nil, 0, false
	}
	if e.nodev {
		return nil, unix.ENODEV, true
	}
	return r.finish(), 0, true
}

type encoder struct {
	index Index
	nodev bool // a device was named that does not exist
}

// dev returns the ifindex of a device; 0 for the empty name.
func (e *encoder) dev(name string) int32 {
	if name == "" {
		return 0
	}
	i, ok := e.index(name)
	if !ok {
		e.nodev = true
	}
	return int32(i)
}

func (e *encoder) encode(op model.Op) *request {
	switch o := op.(type) {
	case model.LinkAdd:
		return e.linkAdd(o)
	case model.LinkDel:
		return link(unix.RTM_DELLINK, flagAck, e.dev(o.Name), 0, 0)
	case model.LinkUp:
		return link(unix.RTM_NEWLINK, flagAck, e.dev(o.Name), unix.IFF_UP, unix.IFF_UP)
	case model.LinkDown:
		return link(unix.RTM_NEWLINK, flagAck, e.dev(o.Name), 0, unix.IFF_UP)
	case model.LinkMaster:
		r := link(unix.RTM_NEWLINK, flagAck, e.dev(o.Name), 0, 0)
		r.u32(unix.IFLA_MASTER, uint32(e.dev(o.Master)))
		return r
	case model.LinkNoMaster:
		r := link(unix.RTM_NEWLINK, flagAck, e.dev(o.Name), 0, 0)
		r.u32(unix.IFLA_MASTER, 0)
		return r
	case model.LinkMTU:
		r := link(unix.RTM_NEWLINK, flagAck, e.dev(o.Name), 0, 0)
		r.u32(unix.IFLA_MTU, o.MTU)
		return r
	case model.LinkRename:
		r := link(unix.RTM_NEWLINK, flagAck, e.dev(o.Name), 0, 0)
		r.str(unix.IFLA_IFNAME, o.New)
		return r
	case model.AddrAdd:
		return e.addr(unix.RTM_NEWADDR, flagAdd, o)
	case model.AddrDel:
		return e.addr(unix.RTM_DELADDR, flagAck, model.AddrAdd{Prefix: o.Prefix, Dev: o.Dev})
	case model.Route:
		return e.route(o)
	case model.Nexthop:
		return e.nexthop(o)
	case model.Rule:
		return rule(o)
	case model.Neigh:
		return e.neigh(o)
	case model.Qdisc:
		return e.qdisc(o)
	case model.Filter:
		return e.filter(o)
	}
	return nil
}

// link starts a link message: struct ifinfomsg.
func link(typ, flags uint16, index int32, set, change uint32) *request {
	return newRequest(typ, flags).body(&rtnetlink.LinkMessage{Index: uint32(index), Flags: set, Change: change})
}

func (e *encoder) linkAdd(o model.LinkAdd) *request {
	r := link(unix.RTM_NEWLINK, flagAdd, 0, 0, 0)
	if o.MTU != 0 {
		r.u32(unix.IFLA_MTU, o.MTU)
	}
	if o.Lower != "" {
		r.u32(unix.IFLA_LINK, uint32(e.dev(o.Lower)))
	}
	r.str(unix.IFLA_IFNAME, o.Name)
	r.nest(unix.IFLA_LINKINFO, func() {
		r.attr(unix.IFLA_INFO_KIND, []byte(o.Type))
		data := linkData(o)
		if data == nil {
			return
		}
		r.nest(unix.IFLA_INFO_DATA, func() { data(r) })
	})
	return r
}

const (
	vethInfoPeer      = 1 // VETH_INFO_PEER
	macvlanModeBridge = 4 // MACVLAN_MODE_BRIDGE
)

// linkData returns what writes the kind's own attributes; nil if the line has none.
func linkData(o model.LinkAdd) func(*request) {
	switch o.Type {
	case model.Veth:
		if o.Peer == "" {
			return nil
		}
		return func(r *request) {
			r.nest(vethInfoPeer, func() {
				r.put(uint8(0), uint8(0), uint16(0), int32(0), uint32(0), uint32(0))
				r.str(unix.IFLA_IFNAME, o.Peer)
			})
		}
	case model.VRF:
		if o.Table == 0 {
			return nil
		}
		return func(r *request) { r.u32(unix.IFLA_VRF_TABLE, o.Table) }
	case model.VLAN:
		if o.VLANID == 0 {
			return nil
		}
		return func(r *request) { r.u16(unix.IFLA_VLAN_ID, o.VLANID) }
	case model.MACVLAN:
		return func(r *request) { r.u32(unix.IFLA_MACVLAN_MODE, macvlanModeBridge) }
	}
	return nil
}

// addr is struct ifaddrmsg and its attributes, as iproute2's ipaddr_modify makes them.
func (e *encoder) addr(typ, flags uint16, o model.AddrAdd) *request {
	a := o.Prefix.Addr()
	scope := uint8(unix.RT_SCOPE_UNIVERSE)
	if typ == unix.RTM_NEWADDR && a.Is4() && a.As4()[0] == 127 {
		scope = unix.RT_SCOPE_HOST
	}
	r := newRequest(typ, flags).body(&rtnetlink.AddressMessage{Family: uint8(model.FamilyOf(a)), PrefixLength: uint8(o.Prefix.Bits()), Scope: scope, Index: uint32(e.dev(o.Dev))})
	r.addr(unix.IFA_LOCAL, a)
	if o.Metric != 0 {
		r.u32(unix.IFA_RT_PRIORITY, o.Metric)
	}
	if o.NoPrefixRoute {
		r.u32(unix.IFA_FLAGS, unix.IFA_F_NOPREFIXROUTE)
	}
	r.addr(unix.IFA_ADDRESS, a)
	return r
}

// ruleActions are the rtm_type numbers that a rule's action may have (FR_ACT_*).
var ruleActions = map[model.RuleAction]uint8{
	model.RuleLookup: unix.FR_ACT_TO_TBL, model.RuleL3MDev: unix.FR_ACT_TO_TBL,
	model.RuleBlackhole: unix.FR_ACT_BLACKHOLE, model.RuleUnreachable: unix.FR_ACT_UNREACHABLE, model.RuleProhibit: unix.FR_ACT_PROHIBIT,
}

// rule is struct fib_rule_hdr and its attributes, as iproute2's iprule_modify makes them.
func rule(o model.Rule) *request {
	typ, flags, action := uint16(unix.RTM_NEWRULE), uint16(flagAdd), ruleActions[o.Action]
	if o.Del {
		typ, flags = unix.RTM_DELRULE, flagAck
		if o.Action == model.RuleLookup || o.Action == model.RuleL3MDev {
			action = unix.FR_ACT_UNSPEC
		}
	}
	table := uint8(0)
	if o.Action == model.RuleLookup && o.Table < 256 {
		table = uint8(o.Table)
	}
	bits := func(p netip.Prefix) uint8 {
		if !p.IsValid() {
			return 0
		}
		return uint8(p.Bits())
	}
	r := newRequest(typ, flags).body(&rtnetlink.RuleMessage{Family: uint8(o.Family), DstLength: bits(o.To), SrcLength: bits(o.From), Table: table, Action: action})
	r.u32(unix.FRA_PRIORITY, o.Pref)
	if o.From.IsValid() {
		r.addr(unix.FRA_SRC, o.From.Addr())
	}
	if o.To.IsValid() {
		r.addr(unix.FRA_DST, o.To.Addr())
	}
	if o.Mark != 0 {
		r.u32(unix.FRA_FWMARK, o.Mark)
	}
	if o.IIF != "" {
		r.str(unix.FRA_IIFNAME, o.IIF)
	}
	if o.OIF != "" {
		r.str(unix.FRA_OIFNAME, o.OIF)
	}
	if o.Action == model.RuleL3MDev {
		r.u8(unix.FRA_L3MDEV, 1)
	}
	if o.Action == model.RuleLookup && o.Table >= 256 {
		r.u32(unix.FRA_TABLE, o.Table)
	}
	return r
}

// neigh is struct ndmsg and its attributes.
func (e *encoder) neigh(o model.Neigh) *request {
	typ, flags := uint16(unix.RTM_NEWNEIGH), uint16(flagAck)
	switch o.Verb {
	case model.NeighAdd:
		flags = flagAdd
	case model.NeighReplace:
		flags = flagReplace
	case model.NeighChange:
		flags = flagAck | unix.NLM_F_REPLACE
	case model.NeighDel:
		typ = unix.RTM_DELNEIGH
	}
	var ntf uint8
	if o.Proxy {
		ntf = unix.NTF_PROXY
	}
	r := newRequest(typ, flags).body(&rtnetlink.NeighMessage{Family: uint16(model.FamilyOf(o.Addr)), Index: uint32(e.dev(o.Dev)), State: unix.NUD_PERMANENT, Flags: ntf})
	r.addr(unix.NDA_DST, o.Addr)
	if mac, err := net.ParseMAC(o.MAC); err == nil {
		r.attr(unix.NDA_LLADDR, mac)
	}
	return r
}

const tcRoot = 0xffffffff // TC_H_ROOT

// class parses "1:2" (hexadecimal); the empty string is the root.
func class(s string) uint32 {
	if s == "" {
		return tcRoot
	}
	major, minor, _ := strings.Cut(s, ":")
	a, _ := strconv.ParseUint(major, 16, 16)
	b, _ := strconv.ParseUint(minor, 16, 16)
	return uint32(a<<16 | b)
}

// ClassName is the inverse of class.
func className(h uint32) string {
	if h == tcRoot {
		return ""
	}
	return fmt.Sprintf("%x:%x", h>>16, h&0xffff)
}

// Attributes and values of tc, linux/pkt_sched.h and linux/pkt_cls.h.
const (
	tcaKind, tcaOptions = 1, 2
	netemLatency64      = 10
	netemLimit          = 1000
	flowKeys, flowMode  = 1, 2
	flowBaseclass       = 3
	flowKeyDst          = 1 << 1
	flowModeMap         = 0
	flowModeHash        = 1
	flowHandle          = 1 // the filter's own; flow_change makes none without
	filterPrio          = 1
)

// prioOptions is struct tc_prio_qopt with tc's defaults, three bands and its priority map, and the empty nest that tc puts after it.
var prioOptions = []byte{3, 0, 0, 0, 1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 4, 0, tcaOptions, 0}

// ticksPerSecond is the kernel's PSCHED_TICKS_PER_SEC, the unit of struct tc_netem_qopt. tc reads it from /proc/net/psched; it has been the same since 2.6.
const ticksPerSecond = 1e9 / 64

// qdisc is struct tcmsg and its attributes.
func (e *encoder) qdisc(o model.Qdisc) *request {
	typ, flags := uint16(unix.RTM_NEWQDISC), uint16(flagAdd)
	switch o.Verb {
	case model.QdiscReplace:
		flags = flagReplace
	case model.QdiscDel:
		typ, flags = unix.RTM_DELQDISC, flagAck
	}
	r := newRequest(typ, flags).put(uint8(0), uint8(0), uint16(0), e.dev(o.Dev), uint32(o.Handle)<<16, class(o.Parent), uint32(0))
	if o.Type == "" {
		return r
	}
	r.str(tcaKind, string(o.Type))
	switch o.Type {
	case model.Netem:
		r.nest(tcaOptions, func() {
			ticks, long := uint64(o.Delay)*ticksPerSecond, uint64(0)
			if ticks > math.MaxUint32 { // tc refuses such a delay; the kernel takes it as an attribute, in nanoseconds
				ticks, long = 0, uint64(o.Delay)*1e9
			}
			r.put(uint32(ticks), uint32(netemLimit), uint32(0), uint32(0), uint32(0), uint32(0))
			if long != 0 {
				r.u64(netemLatency64, long)
			}
		})
	case model.Prio:
		r.attr(tcaOptions, prioOptions)
	}
	return r
}

func (e *encoder) filter(o model.Filter) *request {
	typ, flags := uint16(unix.RTM_NEWTFILTER), uint16(flagAdd)
	if o.Del {
		typ, flags = unix.RTM_DELTFILTER, flagAck
	}
	const all = uint32(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8) // htons
	r := newRequest(typ, flags).put(uint8(0), uint8(0), uint16(0), e.dev(o.Dev), uint32(flowHandle), uint32(o.Handle)<<16, uint32(filterPrio)<<16|all)
	r.str(tcaKind, "flow")
	r.nest(tcaOptions, func() {
		if o.Del {
			r.u32(flowMode, flowModeMap) // tc's default, which the kernel does not look at
			return
		}
		r.u32(flowKeys, flowKeyDst)
		r.u32(flowBaseclass, uint32(o.Handle)<<16|1)
		r.u32(flowMode, flowModeHash)
	})
	return r
}
