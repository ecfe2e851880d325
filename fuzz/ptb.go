package fuzz

import (
	"net/netip"

	"github.com/nlfuzz/nlfuzz/model"
)

// pathMTUs are path MTUs that devices of the usual MTUs make an exception for. The kernel takes no IPv6 one below 1280, and locks an IPv4 one below 552.
var pathMTUs = map[model.Family][]uint16{
	model.IPv4: {600, 1000, 500},
	model.IPv6: {1280, 1300, 1000},
}

// ptb draws a path MTU error: for an address that a unicast route leads to, mostly, since there are no exceptions to others. It travels over lo.
func (g *gen) ptb() model.Op {
	f := g.family()
	lo, _ := g.link("lo")
	own := g.farAddrs(f)
	if len(own) == 0 || !lo.Up && !g.wild {
		return nil
	}
	from := pick(g, own)
	if f == model.IPv4 && g.vrfOf(from.Dev) != "" && !g.wild {
		return nil // makes no exception
	}
	o := model.PTB{To: g.target(f), MTU: pick(g, pathMTUs[f]), From: from.Prefix.Addr(), Dev: g.vrfOf(from.Dev)}
	var to []netip.Prefix
	for _, r := range g.tab.Routes {
		if r.Family == f && r.Type == model.Unicast && !r.Dst.Addr().IsMulticast() && !r.Dst.Addr().IsLinkLocalUnicast() {
			to = append(to, r.Dst)
		}
	}
	if len(to) > 0 && !g.wild {
		o.To = g.within(pick(g, to))
	}
	return o
}

// vrfOf names the VRF whose port a device is: addresses there are reached only from inside.
func (g *gen) vrfOf(dev string) string {
	l, _ := g.link(dev)
	if m, ok := g.link(l.Master); ok && m.Type == model.VRF {
		return m.Name
	}
	return ""
}

// within is a host of a prefix; of the default prefix, one that no other prefix of the pools has.
func (g *gen) within(p netip.Prefix) netip.Addr {
	switch {
	case p.IsSingleIP():
		return p.Addr()
	case p.Bits() == 0 && p.Addr().Is4():
		return netip.AddrFrom4([4]byte{172, 16, 0, 1})
	case p.Bits() == 0:
		return netip.MustParseAddr("2001:db9::1")
	}
	a := p.Masked().Addr().Next()
	if g.oneIn(2) {
		a = a.Next() // .1 is often an own address
	}
	return a
}
