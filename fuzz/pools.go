package fuzz

import (
	"fmt"
	"net/netip"

	"pgregory.net/rapid"

	"github.com/nlfuzz/nlfuzz/model"
)

// The pools are small on purpose: names, addresses and tables that meet again make operations that touch each other.
var (
	names = map[model.LinkKind][]string{
		model.Dummy:   {"d0", "d1", "d2", "d3"},
		model.Veth:    {"e0", "e1", "e2", "e3"},
		model.VRF:     {"vrf0", "vrf1"},
		model.Bridge:  {"br0", "br1"},
		model.VLAN:    {"vl0", "vl1", "vl2"},
		model.MACVLAN: {"mv0", "mv1", "mv2"},
	}
	allNames = []string{"lo", "d0", "d1", "d2", "e0", "e1", "vrf0", "vrf1", "br0", "vl0", "mv0", "nodev"}

	prefixes4 = prefixes("default4", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/25", "192.0.2.7/32", "10.0.1.0/24", "10.0.2.0/24", "10.0.0.0/8")
	prefixes6 = prefixes("default6", "2001:db8:100::/64", "2001:db8:200::/56", "2001:db8:300::1/128", "2001:db8:1::/64", "2001:db8:2::/64", "2001:db8::/32")

	tables   = []uint32{0, 0, 0, 0, 10, 10, 20, 100, 254, 1000}
	metrics  = []uint32{0, 0, 0, 0, 5, 10, 256, 1024}
	mtus     = []uint32{1500, 1400, 1280, 9000, 1279, 68, 67}
	vlanIDs  = []uint16{10, 11, 12}
	prefs    = []uint32{100, 200, 300}
	marks    = []uint32{0, 0, 1, 2}
	vrfIDs   = []uint32{10, 20}
	handles  = []uint16{0, 1, 2}
	sockets  = []string{"s0", "s1", "s2"}
	single   = []uint32{1, 2, 3, 4, 5, 6}
	groups   = []uint32{11, 12, 13}
	lladdrs  = []string{"02:00:00:00:00:01", "02:00:00:00:00:02"}
	families = []model.Family{model.IPv4, model.IPv6}
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		switch s {
		case "default4":
			out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
		case "default6":
			out = append(out, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		default:
			out = append(out, netip.MustParsePrefix(s))
		}
	}
	return out
}

func (g *gen) family() model.Family { return pick(g, families) }

// subnetAddr draws a host address of one of the four subnets of a family.
func (g *gen) subnetAddr(f model.Family, hosts ...int) netip.Addr {
	n, h := rapid.IntRange(0, 3).Draw(g.t, "subnet"), pick(g, hosts)
	if f == model.IPv4 {
		return netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", n, h))
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::%d", n, h))
}

// dev draws the name of a link that fits; in wild mode any name.
func (g *gen) dev(fits func(model.Link) bool) string {
	if g.wild && g.oneIn(2) {
		return g.sample("any dev", allNames)
	}
	var fit []string
	for _, l := range g.tab.Links {
		if fits == nil || fits(l) {
			fit = append(fit, l.Name)
		}
	}
	return g.sample("dev", fit)
}

// freeName draws an unused name of a kind; in wild mode one that may be in use.
func (g *gen) freeName(k model.LinkKind) string {
	var free []string
	for _, n := range names[k] {
		if _, used := g.link(n); !used || g.wild {
			free = append(free, n)
		}
	}
	return g.sample("name", free)
}

func (g *gen) link(name string) (model.Link, bool) {
	for _, l := range g.tab.Links {
		if l.Name == name {
			return l, true
		}
	}
	return model.Link{}, false
}

// addrs returns the addresses of a family.
func (g *gen) addrs(f model.Family) (out []model.Addr) {
	for _, a := range g.tab.Addrs {
		if model.FamilyOf(a.Prefix.Addr()) == f {
			out = append(out, a)
		}
	}
	return out
}

// farAddrs returns the addresses of a family that are not on lo, which can't be deleted; all of them where there is no other, or one time in four.
func (g *gen) farAddrs(f model.Family) (out []model.Addr) {
	all := g.addrs(f)
	for _, a := range all {
		if a.Dev != "lo" {
			out = append(out, a)
		}
	}
	if len(out) == 0 || g.oneIn(4) {
		return all
	}
	return out
}

func isUp(l model.Link) bool   { return l.Up }
func isDown(l model.Link) bool { return !l.Up }
func notLo(l model.Link) bool  { return l.Name != "lo" }
