package rtnl

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/model"
)

// route decodes struct rtmsg. The legs of a route by nexthop id are left out: they are the object's.
func (d *decoder) route(table string, fixed []byte, attrs []attribute) error {
	flags := le.Uint32(fixed[8:])
	if flags&unix.RTM_F_CLONED != 0 {
		return nil // a cached exception, not a route
	}
	f := model.Family(fixed[0])
	r := model.RouteEntry{Family: f, Table: uint32(fixed[4]), Proto: fixed[5], Type: model.RouteType(fixed[7])}
	if f == model.IPv4 {
		r.Scope = fixed[6]
	}
	dst := netip.IPv4Unspecified()
	if f == model.IPv6 {
		dst = netip.IPv6Unspecified()
	}
	one := model.LegEntry{Weight: 1}
	setFlags(&one, flags)
	single := false
	for _, a := range attrs {
		var err error
		var n uint32
		switch a.typ {
		case unix.RTA_DST:
			dst, err = a.ip(f)
		case unix.RTA_TABLE:
			r.Table, err = a.u32()
		case unix.RTA_PRIORITY:
			r.Metric, err = a.u32()
		case unix.RTA_PREFSRC:
			r.Src, err = a.ip(f)
		case rtaNHID:
			r.NHID, err = a.u32()
		case unix.RTA_OIF:
			n, err = a.u32()
			one.Dev, single = d.name(int32(n)), true
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			one.Gateway, err = a.gateway(f)
			single = true
		case unix.RTA_MULTIPATH:
			r.Legs, err = d.legs(table, f, a.data)
		}
		if err != nil {
			return err
		}
	}
	var err error
	if r.Dst, err = prefix(dst, fixed[1]); err != nil {
		return err
	}
	if single {
		r.Legs = append(r.Legs, one)
	}
	if r.NHID != 0 {
		r.Legs = nil
	}
	d.t.Routes = append(d.t.Routes, r)
	return nil
}

// setFlags takes over the RTNH_F_* bits, which stand in rtm_flags for a single leg.
func setFlags(l *model.LegEntry, f uint32) {
	l.Dead, l.Onlink, l.Linkdown = f&unix.RTNH_F_DEAD != 0, f&unix.RTNH_F_ONLINK != 0, f&unix.RTNH_F_LINKDOWN != 0
}

// gateway reads RTA_GATEWAY of a route of family f, or RTA_VIA: a family and its address.
func (a attribute) gateway(f model.Family) (netip.Addr, error) {
	if a.typ == unix.RTA_VIA {
		if len(a.data) < 2 {
			return netip.Addr{}, errShort
		}
		f = model.Family(le.Uint16(a.data))
		a.data = a.data[2:]
	}
	return a.ip(f)
}

// legs decodes RTA_MULTIPATH: struct rtnexthop with attributes, one after the other.
func (d *decoder) legs(table string, f model.Family, b []byte) (out []model.LegEntry, err error) {
	for len(b) > 0 {
		if len(b) < 8 {
			return nil, errShort
		}
		n := int(le.Uint16(b))
		if n < 8 || n > len(b) {
			return nil, errShort
		}
		l := model.LegEntry{Weight: uint16(b[3]) + 1, Dev: d.name(int32(le.Uint32(b[4:])))}
		setFlags(&l, uint32(b[2]))
		err := each(b[8:n], func(a attribute) (err error) {
			d.note(table+" leg", legAttrs, a.typ)
			if a.typ == unix.RTA_GATEWAY || a.typ == unix.RTA_VIA {
				l.Gateway, err = a.gateway(f)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, l)
		b = b[min((n+3)&^3, len(b)):]
	}
	return out, nil
}

// nexthop decodes struct nhmsg.
func (d *decoder) nexthop(fixed []byte, attrs []attribute) error {
	n := model.NexthopEntry{Family: model.Family(fixed[0]), Scope: fixed[1], Onlink: le.Uint32(fixed[4:])&unix.RTNH_F_ONLINK != 0}
	for _, a := range attrs {
		var err error
		var i uint32
		switch a.typ {
		case unix.NHA_ID:
			n.ID, err = a.u32()
		case unix.NHA_OIF:
			i, err = a.u32()
			n.Dev = d.name(int32(i))
		case unix.NHA_GATEWAY:
			n.Gateway, err = a.ip(n.Family)
		case unix.NHA_BLACKHOLE:
			n.Blackhole = true
		case nhaFDB:
			n.FDB = true
		case unix.NHA_GROUP:
			if len(a.data)%8 != 0 {
				return fmt.Errorf("group of %d bytes: %w", len(a.data), errShort)
			}
			for b := a.data; len(b) > 0; b = b[8:] {
				n.Group = append(n.Group, model.Member{ID: le.Uint32(b), Weight: (uint16(b[4]) | uint16(b[5])<<8) + 1})
			}
		}
		if err != nil {
			return err
		}
	}
	d.t.Nexthops = append(d.t.Nexthops, n)
	return nil
}
