package model

import (
	"slices"
	"syscall"
)

// event is a notification of a device that the protocols handle: NETDEV_*.
type event uint8

const (
	eventDown event = iota + 1
	eventChange
	eventUnregister
)

// up follows __dev_open.
func (s *State) up(l *link) syscall.Errno {
	if l.up {
		return 0
	}
	lower := s.byIndex[l.lower]
	switch l.kind {
	case VLAN:
		if l.noMAC {
			return syscall.EADDRNOTAVAIL // eth_validate_addr
		}
		if !lower.up {
			return syscall.ENETDOWN // vlan_dev_open
		}
		l.noMAC = lower.noMAC
		if lower.carrier {
			s.setCarrier(l, true)
		}
	case Veth:
		if lower.up {
			s.setCarrier(l, true)
			s.setCarrier(lower, true)
		}
	}
	l.up = true
	l.defaultQdisc = s.qdiscAt(l.index, "") < 0
	if l.kind == Bridge {
		for _, p := range s.portsOf(l) {
			s.portCheck(p, l) // br_stp_enable_bridge
		}
	}
	s.up4(l)
	s.up6(l)
	if s.isBridgePort(l) {
		s.portCheck(l, s.masterOf(l))
	}
	s.uppersFollow(l)
	return 0
}

// uppersFollow tells the devices above that a device went up or down (macvlan_device_event, vlan_device_event).
func (s *State) uppersFollow(l *link) {
	for _, u := range s.uppersOf(l) {
		if u.kind == MACVLAN {
			s.setCarrier(u, l.carrier)
		} else if !slices.Contains(s.later, l.index) {
			s.later = append(s.later, l.index)
		}
	}
	if !s.prof.VLANsFollowLater {
		s.vlansFollow()
	}
}

// vlansFollow takes VLANs up or down with their device, whatever they were before.
func (s *State) vlansFollow() {
	for len(s.later) > 0 {
		l := s.byIndex[s.later[0]]
		s.later = s.later[1:]
		if l == nil {
			continue
		}
		for _, u := range s.uppersOf(l) {
			switch {
			case u.kind != VLAN:
			case l.up && !u.up:
				s.up(u)
				s.setCarrier(u, l.carrier)
			case !l.up:
				s.down(u)
			}
		}
	}
}

// down follows __dev_close_many.
func (s *State) down(l *link) {
	if !l.up {
		return
	}
	switch l.kind {
	case VLAN:
		s.setCarrier(l, false)
	case Veth:
		s.setCarrier(l, false)
		s.setCarrier(s.byIndex[l.lower], false)
	case Bridge:
		for _, p := range s.portsOf(l) {
			if p.forwarding {
				s.portSet(p, l, false) // br_stp_disable_bridge
			}
		}
	}
	l.up = false
	if l.in4 {
		s.fibDisable(l, eventDown, false)
	}
	s.nexthopFlush(l, eventDown)
	s.ifdown6(l, false)
	if m := s.masterOf(l); s.isBridgePort(l) && m.up {
		s.portSet(l, m, false) // br_device_event
	}
	s.uppersFollow(l)
}

// setCarrier is netif_carrier_on and netif_carrier_off.
func (s *State) setCarrier(l *link, on bool) {
	if l.carrier == on {
		return
	}
	l.carrier = on
	if !slices.Contains(s.changed, l.index) {
		s.changed = append(s.changed, l.index) // __LINK_STATE_LINKWATCH_PENDING
	}
}

// linkwatch reports changes of carrier (linkwatch_do_dev): after the operation, since the operation holds the RTNL. So a carrier that went and came
// back during one operation was never gone.
func (s *State) linkwatch() {
	for len(s.changed) > 0 {
		l := s.byIndex[s.changed[0]]
		s.changed = s.changed[1:]
		if l == nil {
			continue
		}
		l.oper = l.carrier // rfc2863_policy
		if !l.up {
			continue
		}
		s.change4(l)
		if !l.carrier {
			s.nexthopFlush(l, eventChange)
		}
		s.change6(l)
		if s.isBridgePort(l) {
			s.portCheck(l, s.masterOf(l)) // br_port_carrier_check
		}
		for _, u := range s.uppersOf(l) {
			s.setCarrier(u, l.carrier)
		}
	}
}

// portCheck enables or disables a bridge port for what it is now.
func (s *State) portCheck(p, br *link) {
	if live := p.up && p.carrier; br.up && live != p.forwarding {
		s.portSet(p, br, live)
	}
}

// portSet is br_stp_enable_port and br_stp_disable_port: a bridge has carrier while a port forwards. A bridge that never had a port has carrier as well.
func (s *State) portSet(p, br *link, forwarding bool) {
	p.forwarding = forwarding
	s.stateSelection(br)
}

// stateSelection is br_port_state_selection.
func (s *State) stateSelection(br *link) {
	s.setCarrier(br, slices.ContainsFunc(s.portsOf(br), func(p *link) bool { return p.forwarding }))
}

// linkMaster follows do_set_master: the old master is left before the new one is asked.
func (s *State) linkMaster(o LinkMaster) syscall.Errno {
	l, m := s.byName[o.Name], s.byName[o.Master]
	switch {
	case l == nil || m == nil:
		return syscall.ENODEV
	case l.master == m.index:
		return 0
	}
	s.release(l)
	switch m.kind {
	case VRF:
		return s.vrfEnslave(l, m)
	case Bridge:
		return s.bridgeEnslave(l, m)
	}
	return syscall.EOPNOTSUPP
}

// vrfEnslave follows vrf_add_slave.
func (s *State) vrfEnslave(l, m *link) syscall.Errno {
	switch {
	case l.kind == VRF:
		return syscall.EINVAL
	case l.kind == "":
		return syscall.EOPNOTSUPP
	case s.isUpperOf(l, m):
		return syscall.EBUSY
	}
	l.master = m.index
	s.changeUpper(l)
	s.cycle(l)
	return 0
}

// bridgeEnslave follows br_add_if.
func (s *State) bridgeEnslave(l, m *link) syscall.Errno {
	switch {
	case l.kind == "" || l.noMAC:
		return syscall.EINVAL
	case l.kind == Bridge:
		return syscall.ELOOP
	case l.kind == VRF:
		return syscall.EINVAL // IFF_NO_RX_HANDLER
	case s.hasMACVLAN(l), s.isUpperOf(l, m):
		return syscall.EBUSY
	}
	first := len(s.portsOf(m)) == 0
	l.master = m.index
	s.portCheck(l, m)
	if first {
		s.bridgeMAC(m, false)
	}
	s.bridgeMTU(m)
	return 0
}

func (s *State) hasMACVLAN(l *link) bool {
	for _, u := range s.uppersOf(l) {
		if u.kind == MACVLAN {
			return true
		}
	}
	return false
}

// isUpperOf says whether a device is above another: by VLAN, macvlan or master (__netdev_has_upper_dev).
func (s *State) isUpperOf(u, l *link) bool {
	if u == l {
		return true
	}
	if (u.kind == VLAN || u.kind == MACVLAN) && s.isUpperOf(s.byIndex[u.lower], l) {
		return true
	}
	for _, p := range s.portsOf(u) {
		if s.isUpperOf(p, l) {
			return true
		}
	}
	return false
}

// release takes a device away from its master: vrf_del_slave, br_del_if.
func (s *State) release(l *link) {
	m := s.masterOf(l)
	if m == nil {
		return
	}
	if m.kind == VRF {
		s.changeUpper(l)
		l.master = 0
		s.cycle(l)
		return
	}
	last := len(s.portsOf(m)) == 1
	s.portSet(l, m, false)
	l.master = 0
	if last {
		s.bridgeMAC(m, true)
	}
	s.bridgeMTU(m)
}

// bridgeMAC is what the change of a bridge's address does (br_stp_recalculate_bridge_id): without ports it becomes zero. VLANs that are up follow.
func (s *State) bridgeMAC(m *link, zero bool) {
	m.noMAC = zero
	s.neighChangeAddr(m)
	if m.kind == Bridge {
		s.stateSelection(m) // br_stp_change_bridge_id
	}
	for _, u := range s.uppersOf(m) {
		if u.kind == VLAN && u.up {
			s.bridgeMAC(u, zero)
		}
	}
}

// changeUpper is NETDEV_CHANGEUPPER of a VRF port (fib_netdev_event, addrconf_notify).
func (s *State) changeUpper(l *link) {
	if l.in4 {
		s.fibDisable(l, eventDown, true)
	}
	s.ifdown6(l, false)
}

// cycle is cycle_netdev of drivers/net/vrf.c.
func (s *State) cycle(l *link) {
	if l.up {
		s.down(l)
		s.up(l)
	}
}

func (l *link) validMTU(mtu uint32) bool {
	return mtu >= l.minMTU && (l.maxMTU == 0 || mtu <= l.maxMTU)
}

// userMTU sets the MTU as a user asked for it.
func (s *State) userMTU(l *link, mtu uint32) syscall.Errno {
	if mtu == l.mtu {
		return 0
	}
	if errno := s.setMTU(l, mtu); errno != 0 {
		return errno
	}
	if l.kind == Bridge {
		l.userMTU = true // br_change_mtu
	}
	return 0
}

// setMTU follows dev_set_mtu_ext and the NETDEV_CHANGEMTU handlers.
func (s *State) setMTU(l *link, mtu uint32) syscall.Errno {
	if mtu == l.mtu {
		return 0
	}
	if !l.validMTU(mtu) {
		return syscall.EINVAL
	}
	if (l.kind == VLAN || l.kind == MACVLAN) && mtu > s.byIndex[l.lower].mtu {
		if l.kind == VLAN {
			return syscall.ERANGE // vlan_dev_change_mtu
		}
		return syscall.EINVAL // macvlan_change_mtu
	}
	l.mtu = mtu
	switch {
	case mtu < minMTU4:
		s.destroyInet4(l)
	default:
		l.in4 = true // inetdev_event makes it again
	}
	s.mtu6(l)
	if s.isBridgePort(l) {
		s.bridgeMTU(s.masterOf(l))
	}
	for _, u := range s.uppersOf(l) {
		if u.mtu > mtu {
			s.setMTU(u, mtu)
		}
	}
	return 0
}

// bridgeMTU is br_mtu_auto_adjust: the smallest MTU of the ports, unless a user set one.
func (s *State) bridgeMTU(br *link) {
	if br.userMTU {
		return
	}
	mtu := uint32(0)
	for _, p := range s.portsOf(br) {
		if mtu == 0 || p.mtu < mtu {
			mtu = p.mtu
		}
	}
	if mtu == 0 {
		mtu = etherMTU
	}
	s.setMTU(br, mtu)
}
