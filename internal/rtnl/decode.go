package rtnl

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Decode turns the dumps of one observation into tables. It is pure. Attributes that it does not know are listed in unknown ("route4 attribute 31") and
// are not an error; a message that is cut off is.
func Decode(dumps []invariants.Dump) (t *model.Tables, unknown []string, err error) {
	d := newDecoder()
	// Names come from the links, wherever these stand among the dumps.
	order := slices.Clone(dumps)
	slices.SortStableFunc(order, func(a, b invariants.Dump) int { return tableIndex(a.Table) - tableIndex(b.Table) })
	for _, dump := range order {
		i := tableIndex(dump.Table)
		if i == len(tables) {
			return nil, nil, fmt.Errorf("decode: no table is called %q", dump.Table)
		}
		if err := d.dump(i, dump.Data); err != nil {
			return nil, nil, fmt.Errorf("decode %s: %w", dump.Table, err)
		}
	}
	for u := range d.unknown {
		unknown = append(unknown, u)
	}
	slices.Sort(unknown)
	return d.t, unknown, nil
}

func tableIndex(name string) int {
	for i := range tables {
		if tables[i].name == name {
			return i
		}
	}
	return len(tables)
}

type decoder struct {
	t       *model.Tables
	names   map[int32]string
	links   []linkRef
	unknown map[string]bool
}

func newDecoder() *decoder {
	return &decoder{t: &model.Tables{}, names: map[int32]string{}, unknown: map[string]bool{}}
}

// note lists an attribute of something ("route4", "route4 leg") as unknown unless it is known.
func (d *decoder) note(what string, known attrs, typ uint16) {
	if !slices.Contains(known, typ) {
		d.unknown[fmt.Sprintf("%s attribute %d", what, typ)] = true
	}
}

// linkRef is what a link says of others by ifindex; resolved once all names are known.
type linkRef struct {
	at, index     int // in t.Links; its own ifindex
	master, lower int32
}

// dump decodes the dump of tables[i].
func (d *decoder) dump(i int, data []byte) error {
	t := &tables[i]
	for len(data) > 0 {
		if len(data) < headerLen {
			return errShort
		}
		n := int(le.Uint32(data))
		if n < headerLen || n > len(data) {
			return errShort
		}
		if typ := le.Uint16(data[4:]); typ != t.message {
			return fmt.Errorf("message type %d where %d is expected", typ, t.message)
		}
		body := data[headerLen:n]
		if len(body) < t.fixed {
			return errShort
		}
		if t.family != 0 && body[0] != t.family {
			return fmt.Errorf("a message of family %d where %d was asked for", body[0], t.family)
		}
		if err := d.message(t, body[:t.fixed], body[t.fixed:]); err != nil {
			return err
		}
		data = data[min((n+3)&^3, len(data)):]
	}
	if t.name == "link" {
		d.resolveLinks()
	}
	return nil
}

func (d *decoder) message(t *table, fixed, attrs []byte) error {
	all := make([]attribute, 0, 24)
	err := each(attrs, func(a attribute) error {
		d.note(t.name, t.known, a.typ)
		all = append(all, a)
		return nil
	})
	if err != nil {
		return err
	}
	switch t.name {
	case "link":
		return d.link(fixed, all)
	case "addr":
		return d.addr(fixed, all)
	case "route4", "route6":
		return d.route(t.name, fixed, all)
	case "nexthop":
		return d.nexthop(fixed, all)
	case "rule4", "rule6":
		return d.rule(fixed, all)
	case "neigh", "proxy":
		return d.neigh(fixed, all)
	case "qdisc":
		return d.qdisc(fixed, all)
	}
	return fmt.Errorf("table %s has no decoder", t.name)
}

// name returns the name of a device; "ifN" for one that the link dump does not have.
func (d *decoder) name(index int32) string {
	if n, ok := d.names[index]; ok {
		return n
	}
	if index == 0 {
		return ""
	}
	return fmt.Sprintf("if%d", index)
}

func (d *decoder) link(fixed []byte, attrs []attribute) error {
	index := int32(le.Uint32(fixed[4:]))
	flags := le.Uint32(fixed[8:])
	l := model.Link{Up: flags&unix.IFF_UP != 0}
	ref := linkRef{at: len(d.t.Links), index: int(index)}
	elsewhere := false
	for _, a := range attrs {
		var err error
		switch a.typ {
		case unix.IFLA_IFNAME:
			l.Name = a.str()
		case unix.IFLA_MTU:
			l.MTU, err = a.u32()
		case unix.IFLA_CARRIER:
			var c uint8
			c, err = a.u8()
			l.Carrier = c != 0
		case unix.IFLA_MASTER:
			var i uint32
			i, err = a.u32()
			ref.master = int32(i)
		case unix.IFLA_LINK:
			var i uint32
			i, err = a.u32()
			ref.lower = int32(i)
		case unix.IFLA_LINK_NETNSID:
			elsewhere = true
		case unix.IFLA_LINKINFO:
			err = d.linkInfo(&l, a.data)
		}
		if err != nil {
			return err
		}
	}
	if elsewhere || ref.lower == index {
		ref.lower = 0
	}
	d.names[index] = l.Name
	d.links = append(d.links, ref)
	d.t.Links = append(d.t.Links, l)
	return nil
}

func (d *decoder) linkInfo(l *model.Link, data []byte) error {
	return each(data, func(a attribute) error {
		d.note("link info", linkInfoAttrs, a.typ)
		switch a.typ {
		case unix.IFLA_INFO_KIND:
			l.Type = model.LinkKind(a.str())
		case unix.IFLA_INFO_DATA: // the kernel puts it after the kind (rtnl_link_info_fill)
			return each(a.data, func(a attribute) (err error) {
				if known, ok := linkDataAttrs[l.Type]; ok {
					d.note(string(l.Type)+" data", known, a.typ)
				}
				switch {
				case l.Type == model.VRF && a.typ == unix.IFLA_VRF_TABLE:
					l.Table, err = a.u32()
				case l.Type == model.VLAN && a.typ == unix.IFLA_VLAN_ID:
					l.VLANID, err = a.u16()
				}
				return err
			})
		}
		return nil
	})
}

func (d *decoder) resolveLinks() {
	for _, r := range d.links {
		d.t.Links[r.at].Master, d.t.Links[r.at].Lower = d.name(r.master), d.name(r.lower)
	}
}

func (d *decoder) addr(fixed []byte, attrs []attribute) error {
	f := model.Family(fixed[0])
	a := model.Addr{Dev: d.name(int32(le.Uint32(fixed[4:])))}
	var local, address netip.Addr
	flags := uint32(fixed[2])
	for _, at := range attrs {
		var err error
		switch at.typ {
		case unix.IFA_LOCAL:
			local, err = at.ip(f)
		case unix.IFA_ADDRESS:
			address, err = at.ip(f)
		case unix.IFA_FLAGS:
			flags, err = at.u32()
		case unix.IFA_RT_PRIORITY:
			a.Metric, err = at.u32()
		}
		if err != nil {
			return err
		}
	}
	if !local.IsValid() {
		local = address
	}
	var err error
	if a.Prefix, err = prefix(local, fixed[1]); err != nil {
		return err
	}
	a.NoPrefixRoute = flags&unix.IFA_F_NOPREFIXROUTE != 0
	a.Tentative = f == model.IPv6 && flags&unix.IFA_F_TENTATIVE != 0
	a.Secondary = f == model.IPv4 && flags&unix.IFA_F_SECONDARY != 0
	d.t.Addrs = append(d.t.Addrs, a)
	return nil
}

func (d *decoder) rule(fixed []byte, attrs []attribute) error {
	r := model.RuleEntry{Family: model.Family(fixed[0]), Table: uint32(fixed[4])}
	flags := le.Uint32(fixed[8:])
	action, l3mdev := fixed[7], uint8(0)
	for _, a := range attrs {
		var err error
		var ip netip.Addr
		switch a.typ {
		case unix.FRA_PRIORITY:
			r.Pref, err = a.u32()
		case unix.FRA_SRC:
			if ip, err = a.ip(r.Family); err == nil {
				r.From, err = prefix(ip, fixed[2])
			}
		case unix.FRA_DST:
			if ip, err = a.ip(r.Family); err == nil {
				r.To, err = prefix(ip, fixed[1])
			}
		case unix.FRA_FWMARK:
			r.Mark, err = a.u32()
		case unix.FRA_IIFNAME:
			r.IIF = a.str()
		case unix.FRA_OIFNAME:
			r.OIF = a.str()
		case unix.FRA_TABLE:
			r.Table, err = a.u32()
		case unix.FRA_L3MDEV:
			l3mdev, err = a.u8()
		case unix.FRA_PROTOCOL:
			r.Proto, err = a.u8()
		}
		if err != nil {
			return err
		}
	}
	r.Detached = flags&(unix.FIB_RULE_IIF_DETACHED|unix.FIB_RULE_OIF_DETACHED) != 0
	switch {
	case l3mdev != 0:
		r.Action = model.RuleL3MDev
	case action == unix.FR_ACT_BLACKHOLE:
		r.Action = model.RuleBlackhole
	case action == unix.FR_ACT_UNREACHABLE:
		r.Action = model.RuleUnreachable
	case action == unix.FR_ACT_PROHIBIT:
		r.Action = model.RuleProhibit
	}
	d.t.Rules = append(d.t.Rules, r)
	return nil
}

func (d *decoder) neigh(fixed []byte, attrs []attribute) error {
	state, flags := le.Uint16(fixed[8:]), fixed[10]
	n := model.NeighEntry{Dev: d.name(int32(le.Uint32(fixed[4:]))), Proxy: flags&unix.NTF_PROXY != 0}
	if f := fixed[0]; f != unix.AF_INET && f != unix.AF_INET6 || !n.Proxy && state&unix.NUD_PERMANENT == 0 {
		return nil // bridge fdb entries, and what the kernel learned
	}
	for _, a := range attrs {
		var err error
		switch a.typ {
		case unix.NDA_DST:
			n.Addr, err = a.ip(model.Family(fixed[0]))
		case unix.NDA_LLADDR:
			n.MAC = net.HardwareAddr(a.data).String()
		}
		if err != nil {
			return err
		}
	}
	d.t.Neighs = append(d.t.Neighs, n)
	return nil
}

// autoHandle is the first handle that the kernel chooses by itself (qdisc_alloc_handle).
const autoHandle = 0x8000

func (d *decoder) qdisc(fixed []byte, attrs []attribute) error {
	handle, parent := le.Uint32(fixed[8:]), le.Uint32(fixed[12:])
	q := model.QdiscEntry{Dev: d.name(int32(le.Uint32(fixed[4:]))), Parent: className(parent), Handle: uint16(handle >> 16)}
	for _, a := range attrs {
		if a.typ == tcaKind {
			q.Type = model.QdiscKind(a.str())
		}
	}
	if q.Handle == 0 {
		return nil // a default qdisc
	}
	if q.Handle >= autoHandle {
		q.Handle = 0
	}
	d.t.Qdiscs = append(d.t.Qdiscs, q)
	return nil
}
