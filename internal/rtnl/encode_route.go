package rtnl

import (
	"net/netip"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/model"
)

var routeFlags = map[model.RouteVerb]uint16{
	model.RouteAdd:     flagAdd,
	model.RouteAppend:  unix.NLM_F_CREATE | unix.NLM_F_APPEND | flagAck,
	model.RoutePrepend: unix.NLM_F_CREATE | flagAck,
	model.RouteReplace: flagReplace,
	model.RouteChange:  unix.NLM_F_REPLACE | flagAck,
	model.RouteDel:     flagAck,
}

// route is struct rtmsg and its attributes, with the defaults of iproute2's iproute_modify.
func (e *encoder) route(o model.Route) *request {
	family := model.FamilyOf(o.Dst.Addr())
	typ, proto := uint16(unix.RTM_NEWROUTE), uint8(unix.RTPROT_BOOT)
	rtype := o.Type
	if o.Verb == model.RouteDel {
		typ, proto = unix.RTM_DELROUTE, 0
	} else if rtype == 0 {
		rtype = model.Unicast
	}
	table := o.Table
	if table == 0 {
		table = unix.RT_TABLE_MAIN
		switch rtype {
		case model.Local, model.Broadcast, model.Anycast:
			table = unix.RT_TABLE_LOCAL
		}
	}
	short := uint8(table)
	if table >= 256 {
		short = unix.RT_TABLE_UNSPEC
	}
	var flags uint32
	if len(o.Legs) == 1 && o.Legs[0].Onlink {
		flags = unix.RTNH_F_ONLINK
	}
	r := newRequest(typ, routeFlags[o.Verb]).body(&rtnetlink.RouteMessage{Family: uint8(family), DstLength: uint8(o.Dst.Bits()), Table: short, Protocol: proto,
		Scope: routeScope(o, rtype, family), Type: uint8(rtype), Flags: flags})
	// The attributes come in the order of the words; iproute2 leaves the destination out where the line says default and gives no family.
	if family == model.IPv6 || o.Dst.Bits() > 0 || !o.Dst.Addr().IsUnspecified() {
		r.addr(unix.RTA_DST, o.Dst.Addr())
	}
	if len(o.Legs) == 1 {
		e.gateway(r, family, o.Legs[0].Gateway)
	}
	r.addr(unix.RTA_PREFSRC, o.Src)
	if o.Metric != 0 {
		r.u32(unix.RTA_PRIORITY, o.Metric)
	}
	if table >= 256 {
		r.u32(unix.RTA_TABLE, table)
	}
	if o.NHID != 0 {
		r.u32(rtaNHID, o.NHID)
	}
	switch len(o.Legs) {
	case 0:
	case 1:
		if d := o.Legs[0].Dev; d != "" {
			r.u32(unix.RTA_OIF, uint32(e.dev(d)))
		}
	default:
		r.nest(unix.RTA_MULTIPATH, func() {
			for _, l := range o.Legs {
				e.leg(r, family, l)
			}
		})
	}
	return r
}

// routeScope is the scope that iproute2 gives a route whose scope the user does not name.
func routeScope(o model.Route, t model.RouteType, f model.Family) uint8 {
	switch {
	case f == model.IPv6:
		return unix.RT_SCOPE_UNIVERSE
	case t == model.Local:
		return unix.RT_SCOPE_HOST
	case t == model.Broadcast || t == model.Multicast || t == model.Anycast:
		return unix.RT_SCOPE_LINK
	case o.Verb == model.RouteDel:
		return unix.RT_SCOPE_NOWHERE
	case t != model.Unicast:
		return unix.RT_SCOPE_UNIVERSE
	case len(o.Legs) > 1 || o.NHID != 0 || len(o.Legs) == 1 && o.Legs[0].Gateway.IsValid():
		return unix.RT_SCOPE_UNIVERSE
	}
	return unix.RT_SCOPE_LINK
}

// gateway is RTA_GATEWAY, or RTA_VIA where the gateway is of another family than the route.
func (e *encoder) gateway(r *request, f model.Family, gw netip.Addr) {
	switch g := model.FamilyOf(gw); {
	case g == model.Unspec:
	case g == f:
		r.addr(unix.RTA_GATEWAY, gw)
	default:
		r.attr(unix.RTA_VIA, append([]byte{byte(g), 0}, gw.AsSlice()...))
	}
}

// leg is struct rtnexthop and its attributes.
func (e *encoder) leg(r *request, f model.Family, l model.Leg) {
	start := len(r.b)
	var flags, hops uint8
	if l.Onlink {
		flags = unix.RTNH_F_ONLINK
	}
	if l.Weight > 0 {
		hops = uint8(l.Weight - 1)
	}
	r.put(uint16(0), flags, hops, e.dev(l.Dev))
	e.gateway(r, f, l.Gateway)
	le.PutUint16(r.b[start:], uint16(len(r.b)-start))
}

// nexthop is struct nhmsg and its attributes, with the defaults of iproute2's ipnh_modify.
func (e *encoder) nexthop(o model.Nexthop) *request {
	typ, flags := uint16(unix.RTM_NEWNEXTHOP), uint16(flagAdd)
	switch o.Verb {
	case model.NexthopReplace:
		flags = flagReplace
	case model.NexthopDel:
		typ, flags = unix.RTM_DELNEXTHOP, flagAck
	}
	family := o.Family
	switch {
	case o.Gateway.IsValid():
		family = model.FamilyOf(o.Gateway)
	case family == model.Unspec && (o.Dev != "" || o.Blackhole):
		family = model.IPv4
	}
	var nhflags uint32
	if o.Onlink {
		nhflags = unix.RTNH_F_ONLINK
	}
	r := newRequest(typ, flags).put(uint8(family), uint8(0), uint8(0), uint8(0), nhflags)
	r.u32(unix.NHA_ID, o.ID)
	r.addr(unix.NHA_GATEWAY, o.Gateway)
	if o.Dev != "" {
		r.u32(unix.NHA_OIF, uint32(e.dev(o.Dev)))
	}
	if o.Blackhole {
		r.attr(unix.NHA_BLACKHOLE, nil)
	}
	if o.FDB {
		r.attr(nhaFDB, nil)
	}
	if len(o.Group) > 0 {
		var b []byte
		for _, m := range o.Group {
			w := uint16(0)
			if m.Weight > 0 {
				w = m.Weight - 1
			}
			// struct nexthop_grp: the weight's high byte was reserved before weights had 16 bits.
			b = append(le.AppendUint32(b, m.ID), byte(w), byte(w>>8), 0, 0)
		}
		r.attr(unix.NHA_GROUP, b)
	}
	return r
}
