package model

import (
	"cmp"
	"slices"
	"syscall"
)

// link is one device with its addresses. Devices refer to each other by index.
type link struct {
	index   int
	name    string
	kind    LinkKind
	up      bool
	carrier bool // netif_carrier_ok: also known while the device is down
	oper    bool // netif_oper_up: follows the carrier when linkwatch reports it
	mtu     uint32
	minMTU  uint32
	maxMTU  uint32 // 0: no limit
	userMTU bool   // bridge: BROPT_MTU_SET_BY_USER
	noMAC   bool   // bridge (and its VLANs): the address is 00:00:00:00:00:00 because the last port is gone
	// defaultQdisc: it has the noqueue qdisc that dev_activate attaches where no other is.
	defaultQdisc bool
	forwarding   bool // bridge port: its state is not BR_STATE_DISABLED
	master       int
	lower        int // vlan, macvlan: the device below; veth: the peer
	vlanID       uint16
	table        uint32 // vrf

	in4   bool // has an in_device
	in6   bool // has an inet6_dev
	ready bool // IF_READY of the inet6_dev
	addr4 []addr4
	addr6 []addr6
}

const (
	minMTU4 = 68   // inetdev_valid_mtu
	minMTU6 = 1280 // IPV6_MIN_MTU

	etherMTU  = 1500
	etherMax  = 65535 // ETH_MAX_MTU
	vrfMax    = 65575 // IP6_MAX_MTU
	maxVLANID = 4095  // VLAN_VID_MASK: the first that is out of range
	vrfRule   = 1000  // the preference of the l3mdev rule
)

func (s *State) loopback() *link { return s.byIndex[loIndex] }

// linkSet runs a change of an existing link.
func (s *State) linkSet(name string, change func(*link) syscall.Errno) syscall.Errno {
	l := s.byName[name]
	if l == nil {
		return syscall.ENODEV
	}
	return change(l)
}

// register adds a device and makes its protocol parts (NETDEV_REGISTER: inetdev_event, addrconf_notify).
func (s *State) register(l link) *link {
	l.index = s.nextIndex
	s.nextIndex++
	l.in4 = true
	l.in6 = l.mtu >= minMTU6
	l.oper = l.carrier
	n := &l
	s.links = append(s.links, n)
	s.byName[n.name], s.byIndex[n.index] = n, n
	return n
}

// linkAdd follows rtnl_newlink and the newlink function of each kind.
func (s *State) linkAdd(o LinkAdd) syscall.Errno {
	lower := s.byName[o.Lower]
	switch {
	case o.Lower != "" && lower == nil:
		return syscall.ENODEV // iproute2
	case s.byName[o.Name] != nil:
		return syscall.EEXIST
	}
	n := link{name: o.Name, kind: o.Type, mtu: o.MTU, carrier: true, minMTU: minMTU4, maxMTU: etherMax}
	switch o.Type {
	case Dummy:
		n.minMTU, n.maxMTU = 0, 0
	case VRF:
		n.minMTU, n.maxMTU, n.table = minMTU6, vrfMax, o.Table
	case VLAN:
		n.minMTU = 0
	}
	if o.MTU != 0 && !n.validMTU(o.MTU) {
		return syscall.EINVAL // rtnl_create_link, dev_validate_mtu
	}
	if o.MTU == 0 {
		n.mtu = etherMTU
	}
	switch o.Type {
	case Dummy, Bridge:
		s.register(n)
		return 0
	case Veth:
		return s.vethAdd(o, n)
	case VRF:
		return s.vrfAdd(o, n)
	case VLAN:
		return s.vlanAdd(o, n, lower)
	case MACVLAN:
		return s.macvlanAdd(o, n, lower)
	}
	return syscall.EOPNOTSUPP
}

func (s *State) vethAdd(o LinkAdd, n link) syscall.Errno {
	if o.Peer == o.Name || s.byName[o.Peer] != nil {
		return syscall.EEXIST
	}
	n.carrier = false
	peer := n
	peer.name, peer.mtu = o.Peer, etherMTU
	// The peer is registered first (veth_newlink).
	p := s.register(peer)
	d := s.register(n)
	p.lower, d.lower = d.index, p.index
	return 0
}

func (s *State) vrfAdd(o LinkAdd, n link) syscall.Errno {
	if o.Table == 0 {
		return syscall.EINVAL // vrf_newlink
	}
	if o.MTU == 0 {
		n.mtu = vrfMax
	}
	s.register(n)
	s.fib4.create(o.Table) // vrf_rtable_create
	s.fib6.create(o.Table)
	if !s.hadVRF {
		// vrf_add_fib_rules: once in the life of a namespace.
		s.hadVRF = true
		for _, f := range []Family{IPv4, IPv6} {
			s.ruleInsert(RuleEntry{Family: f, Pref: vrfRule, Action: RuleL3MDev, Proto: protoKernel})
		}
	}
	return 0
}

// vlanAdd follows vlan_newlink.
func (s *State) vlanAdd(o LinkAdd, n link, lower *link) syscall.Errno {
	switch {
	case o.VLANID >= maxVLANID:
		return syscall.ERANGE // vlan_validate
	case lower == nil:
		return syscall.EINVAL
	case lower.kind == "" || lower.kind == VRF:
		return syscall.EOPNOTSUPP // NETIF_F_VLAN_CHALLENGED, vlan_check_real_dev
	}
	for _, l := range s.links {
		if l.kind == VLAN && l.lower == lower.index && l.vlanID == o.VLANID {
			return syscall.EEXIST
		}
	}
	if o.MTU == 0 {
		n.mtu = lower.mtu
	} else if o.MTU > lower.mtu {
		return syscall.EINVAL
	}
	n.lower, n.vlanID, n.carrier, n.noMAC = lower.index, o.VLANID, lower.carrier, lower.noMAC
	s.register(n)
	return 0
}

// macvlanAdd follows macvlan_common_newlink.
func (s *State) macvlanAdd(o LinkAdd, n link, lower *link) syscall.Errno {
	if lower == nil {
		return syscall.EINVAL
	}
	if lower.kind == MACVLAN {
		lower = s.byIndex[lower.lower] // a macvlan on a macvlan is one on the real device
	}
	if o.MTU == 0 {
		n.mtu = lower.mtu
	} else if o.MTU > lower.mtu {
		return syscall.EINVAL
	}
	switch {
	case lower.kind == "" || lower.kind == VRF:
		return syscall.EINVAL // macvlan_port_create: loopback; IFF_NO_RX_HANDLER
	case s.isBridgePort(lower):
		return syscall.EBUSY // rx_handler taken
	}
	n.lower, n.carrier = lower.index, lower.carrier
	s.register(n)
	return 0
}

// linkDel follows rtnl_delete_link.
func (s *State) linkDel(o LinkDel) syscall.Errno {
	l := s.byName[o.Name]
	switch {
	case l == nil:
		return syscall.ENODEV
	case l.kind == "":
		return syscall.EOPNOTSUPP
	}
	s.unregister(l)
	return 0
}

// unregister follows the dellink functions, unregister_netdevice_many and the NETDEV_UNREGISTER handlers.
func (s *State) unregister(l *link) {
	if l.kind == VRF || l.kind == Bridge {
		for _, p := range s.portsOf(l) {
			s.release(p) // vrf_dellink, br_dev_delete
		}
	}
	var peer *link
	if l.kind == Veth {
		peer = s.byIndex[l.lower]
		s.down(peer)
	}
	s.down(l)
	s.shutdown(l)
	if peer != nil {
		s.shutdown(peer)
	}
}

// shutdown removes a device that is down.
func (s *State) shutdown(l *link) {
	s.destroyInet4(l)
	s.fibDisable(l, eventUnregister, true)
	s.nexthopFlush(l, eventUnregister)
	s.ifdown6(l, true)
	for _, u := range s.uppersOf(l) {
		s.unregister(u) // vlan_device_event, macvlan_device_event
	}
	if l.master != 0 {
		s.release(l)
	}
	s.qdiscs = slices.DeleteFunc(s.qdiscs, func(q qdisc) bool { return q.dev == l.index })
	s.neighFlush(l, Unspec)
	delete(s.byName, l.name)
	delete(s.byIndex, l.index)
	s.links = slices.DeleteFunc(s.links, func(x *link) bool { return x == l })
}

// linkRename follows dev_change_name.
func (s *State) linkRename(o LinkRename) syscall.Errno {
	l := s.byName[o.Name]
	switch {
	case l == nil:
		return syscall.ENODEV
	case l.up && !s.prof.RenameUp:
		return syscall.EBUSY
	case o.Name == o.New:
		return 0
	case s.byName[o.New] != nil:
		return syscall.EEXIST
	}
	delete(s.byName, l.name)
	l.name = o.New
	s.byName[l.name] = l
	return 0
}

// uppersOf returns the VLANs on a device by their ids (vlan_group_for_each_dev), then the macvlans in the order of creation.
func (s *State) uppersOf(l *link) (out []*link) {
	for _, u := range s.links {
		if u.lower == l.index && (u.kind == VLAN || u.kind == MACVLAN) {
			out = append(out, u)
		}
	}
	slices.SortStableFunc(out, func(a, b *link) int {
		return cmp.Or(compareBool(a.kind == MACVLAN, b.kind == MACVLAN), cmp.Compare(a.vlanID, b.vlanID))
	})
	return out
}

func (s *State) portsOf(m *link) (out []*link) {
	for _, p := range s.links {
		if p.master == m.index {
			out = append(out, p)
		}
	}
	return out
}

func (s *State) masterOf(l *link) *link { return s.byIndex[l.master] }

func (s *State) isBridgePort(l *link) bool {
	m := s.masterOf(l)
	return m != nil && m.kind == Bridge
}

// l3master is l3mdev_master_dev: the VRF that a device is or belongs to.
func (s *State) l3master(l *link) *link {
	if l == nil {
		return nil
	}
	if l.kind == VRF {
		return l
	}
	if m := s.masterOf(l); m != nil && m.kind == VRF {
		return m
	}
	return nil
}

// l3table is l3mdev_fib_table: the table of the VRF that a device is or belongs to, or 0.
func (s *State) l3table(l *link) uint32 {
	if m := s.l3master(l); m != nil {
		return m.table
	}
	return 0
}

// tableOr returns a device's VRF table, or another one outside VRFs.
func (s *State) tableOr(l *link, other uint32) uint32 {
	if t := s.l3table(l); t != 0 {
		return t
	}
	return other
}
