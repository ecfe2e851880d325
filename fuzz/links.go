package fuzz

import (
	"github.com/nlfuzz/nlfuzz/model"
)

// The makers of link and address operations. A maker returns nil where the state has nothing that fits.

func (g *gen) mtuOrNone() uint32 {
	if g.oneIn(10) {
		return pick(g, mtus)
	}
	return 0
}

func (g *gen) linkAddDummy() model.Op {
	if n := g.freeName(model.Dummy); n != "" {
		return model.LinkAdd{Name: n, Type: model.Dummy, MTU: g.mtuOrNone()}
	}
	return nil
}

func (g *gen) linkAddVeth() model.Op {
	a, b := g.freeName(model.Veth), g.freeName(model.Veth)
	if a == "" || a == b && !g.wild {
		return nil
	}
	return model.LinkAdd{Name: a, Type: model.Veth, Peer: b}
}

func (g *gen) linkAddVRF() model.Op {
	n := g.freeName(model.VRF)
	if n == "" {
		return nil
	}
	o := model.LinkAdd{Name: n, Type: model.VRF, Table: pick(g, vrfIDs)}
	if g.wild && g.oneIn(4) {
		o.Table = 0
	}
	return o
}

func (g *gen) linkAddBridge() model.Op {
	if n := g.freeName(model.Bridge); n != "" {
		return model.LinkAdd{Name: n, Type: model.Bridge}
	}
	return nil
}

func (g *gen) linkAddVLAN() model.Op {
	n, lower := g.freeName(model.VLAN), g.dev(notLo)
	if n == "" || lower == "" {
		return nil
	}
	return model.LinkAdd{Name: n, Type: model.VLAN, Lower: lower, VLANID: pick(g, vlanIDs)}
}

func (g *gen) linkAddMACVLAN() model.Op {
	n, lower := g.freeName(model.MACVLAN), g.dev(notLo)
	if n == "" || lower == "" {
		return nil
	}
	return model.LinkAdd{Name: n, Type: model.MACVLAN, Lower: lower}
}

func (g *gen) linkDel() model.Op {
	if d := g.dev(notLo); d != "" {
		return model.LinkDel{Name: d}
	}
	return nil
}

func (g *gen) linkUp() model.Op {
	if d := g.dev(isDown); d != "" {
		return model.LinkUp{Name: d}
	}
	return nil
}

func (g *gen) linkDown() model.Op {
	if d := g.dev(isUp); d != "" {
		return model.LinkDown{Name: d}
	}
	return nil
}

func (g *gen) linkMaster() model.Op {
	m := g.dev(func(l model.Link) bool { return l.Type == model.VRF || l.Type == model.Bridge })
	d := g.dev(func(l model.Link) bool { return l.Name != "lo" && l.Type != model.VRF })
	if m == "" || d == "" {
		return nil
	}
	return model.LinkMaster{Name: d, Master: m}
}

func (g *gen) linkNoMaster() model.Op {
	if d := g.dev(func(l model.Link) bool { return l.Master != "" }); d != "" {
		return model.LinkNoMaster{Name: d}
	}
	return nil
}

func (g *gen) linkMTU() model.Op {
	if d := g.dev(notLo); d != "" {
		return model.LinkMTU{Name: d, MTU: pick(g, mtus)}
	}
	return nil
}

func (g *gen) linkRename() model.Op {
	d := g.dev(notLo)
	l, ok := g.link(d)
	if !ok && !g.wild {
		return nil
	}
	k := l.Type
	if k == "" {
		k = model.Dummy
	}
	if n := g.freeName(k); n != "" && d != "" {
		return model.LinkRename{Name: d, New: n}
	}
	return nil
}

func (g *gen) addrAdd() model.Op {
	f := g.family()
	d := g.dev(nil)
	if d == "" {
		return nil
	}
	bits := 24
	if f == model.IPv6 {
		bits = 64
	}
	switch {
	case g.oneIn(12):
		bits = 32
		if f == model.IPv6 {
			bits = 128
		}
	case g.oneIn(12):
		bits = 16
	}
	o := model.AddrAdd{Dev: d, Prefix: mustPrefix(g.subnetAddr(f, 1, 2, 3), bits)}
	if g.oneIn(10) {
		o.Metric = pick(g, metrics)
	}
	o.NoPrefixRoute = g.oneIn(12)
	return o
}

func (g *gen) addrDel() model.Op {
	if g.wild || len(g.tab.Addrs) == 0 {
		if d := g.dev(nil); d != "" && g.wild {
			return model.AddrDel{Dev: d, Prefix: mustPrefix(g.subnetAddr(g.family(), 1, 2), 24)}
		}
		return nil
	}
	a := pick(g, g.tab.Addrs)
	return model.AddrDel{Dev: a.Dev, Prefix: a.Prefix}
}
