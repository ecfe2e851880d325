// Package opgen generates arbitrary well-formed operations: each has a text form, but few of them make sense to a kernel.
package opgen

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"pgregory.net/rapid"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/model"
)

// Op generates one operation of any type.
func Op() *rapid.Generator[model.Op] {
	all := make([]*rapid.Generator[model.Op], 0, len(byType))
	for _, name := range slices.Sorted(maps.Keys(byType)) {
		all = append(all, OfType(name))
	}
	return rapid.OneOf(all...)
}

// Types returns the names of the operations' types ("LinkAdd", ...), sorted.
func Types() []string { return slices.Sorted(maps.Keys(byType)) }

// OfType generates operations of one type, named as in Types.
func OfType(name string) *rapid.Generator[model.Op] {
	if name == "Settle" { // rapid.Custom wants something to be drawn
		return rapid.Just[model.Op](model.Settle{})
	}
	draw, ok := byType[name]
	if !ok {
		panic(fmt.Sprintf("opgen: no type %q", name))
	}
	return rapid.Custom(func(t *rapid.T) model.Op { return draw(gen{t}) })
}

// gen draws the parts of an operation.
type gen struct{ t *rapid.T }

var byType = map[string]func(gen) model.Op{
	"LinkAdd": func(g gen) model.Op { return g.linkAdd() },
	"LinkDel": func(g gen) model.Op { return model.LinkDel{Name: g.name()} },
	"LinkUp":  func(g gen) model.Op { return model.LinkUp{Name: g.name()} },
	"LinkDown": func(g gen) model.Op {
		return model.LinkDown{Name: g.name()}
	},
	"LinkMaster":   func(g gen) model.Op { return model.LinkMaster{Name: g.name(), Master: g.name()} },
	"LinkNoMaster": func(g gen) model.Op { return model.LinkNoMaster{Name: g.name()} },
	"LinkMTU":      func(g gen) model.Op { return model.LinkMTU{Name: g.name(), MTU: g.u32(1)} },
	"LinkRename":   func(g gen) model.Op { return model.LinkRename{Name: g.name(), New: g.name()} },
	"AddrAdd": func(g gen) model.Op {
		return model.AddrAdd{Prefix: g.prefix(g.family()), Dev: g.name(), Metric: g.u32(0), NoPrefixRoute: g.bool()}
	},
	"AddrDel": func(g gen) model.Op { return model.AddrDel{Prefix: g.prefix(g.family()), Dev: g.name()} },
	"Route":   func(g gen) model.Op { return g.route() },
	"Nexthop": func(g gen) model.Op { return g.nexthop() },
	"Rule":    func(g gen) model.Op { return g.rule() },
	"Neigh":   func(g gen) model.Op { return g.neigh() },
	"Qdisc":   func(g gen) model.Op { return g.qdisc() },
	"Filter": func(g gen) model.Op {
		return model.Filter{Del: g.bool(), Dev: g.name(), Handle: g.u16(1)}
	},
	"Send":    func(g gen) model.Op { return g.send() },
	"Hold":    func(g gen) model.Op { return g.hold() },
	"Release": func(g gen) model.Op { return model.Release{Name: g.socket()} },
	"PTB":     func(g gen) model.Op { return g.ptb() },
	"Settle":  nil, // see OfType
}

func (g gen) bool() bool { return rapid.Bool().Draw(g.t, "flag") }

func (g gen) u16(low uint16) uint16 { return rapid.Uint16Min(low).Draw(g.t, "u16") }

// u32 draws small numbers and any number; 0 often where it is allowed, since it means "not given".
func (g gen) u32(low uint32) uint32 {
	return rapid.OneOf(rapid.Just(low), rapid.Uint32Range(low, 300), rapid.Uint32Min(low)).Draw(g.t, "u32")
}

func (g gen) weight() uint16 { return rapid.Uint16Range(0, 256).Draw(g.t, "weight") }

// name draws a device name that is usual, or odd but allowed; never one with a space, slash, colon or percent sign.
func (g gen) name() string {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"lo", "d0", "d1", "e0", "vrf0", "br0", "vl0.10", "dev", "up", "via", "type", "name", "root", "netem", "a'b", "$x", "#1", "-6"}),
		rapid.StringMatching(`[!-$&-.0-9;-~][!-$&-.0-9;-~]{0,13}[a-z]`),
	).Draw(g.t, "name")
}

func (g gen) socket() string { return rapid.StringMatching(`[a-zA-Z0-9_]{1,8}`).Draw(g.t, "socket") }

func (g gen) family() model.Family {
	return rapid.SampledFrom([]model.Family{model.IPv4, model.IPv6}).Draw(g.t, "family")
}

func (g gen) addr(f model.Family) netip.Addr {
	if f == model.IPv4 {
		return netip.AddrFrom4([4]byte(g.bytes(4)))
	}
	usual := rapid.SampledFrom([]string{"::", "::1", "fe80::1", "2001:db8::1", "ff02::1", "::ffff:192.0.2.1"})
	if g.bool() {
		return netip.MustParseAddr(usual.Draw(g.t, "address"))
	}
	return netip.AddrFrom16([16]byte(g.bytes(16)))
}

func (g gen) bytes(n int) []byte { return rapid.SliceOfN(rapid.Byte(), n, n).Draw(g.t, "bytes") }

// maybe draws an address or none.
func (g gen) maybe(f model.Family) netip.Addr {
	if g.bool() {
		return netip.Addr{}
	}
	return g.addr(f)
}

func (g gen) maybeName() string {
	if g.bool() {
		return ""
	}
	return g.name()
}

// prefix draws a prefix with host bits.
func (g gen) prefix(f model.Family) netip.Prefix {
	a := g.addr(f)
	return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(g.t, "bits"))
}

func (g gen) linkAdd() model.Op {
	o := model.LinkAdd{
		Name: g.name(), MTU: g.u32(0), Lower: g.maybeName(),
		Type: rapid.SampledFrom([]model.LinkKind{model.Dummy, model.Veth, model.VRF, model.Bridge, model.VLAN, model.MACVLAN}).Draw(g.t, "kind"),
	}
	switch o.Type {
	case model.Veth:
		o.Peer = g.maybeName()
	case model.VRF:
		o.Table = g.u32(0)
	case model.VLAN:
		o.VLANID = g.u16(0)
	}
	return o
}

func (g gen) route() model.Op {
	verbs := []model.RouteVerb{model.RouteAdd, model.RouteAppend, model.RoutePrepend, model.RouteReplace, model.RouteChange, model.RouteDel}
	f := g.family()
	o := model.Route{
		Verb: rapid.SampledFrom(verbs).Draw(g.t, "verb"), Type: model.RouteType(rapid.IntRange(0, 9).Draw(g.t, "type")), Dst: g.prefix(f),
		Table: g.u32(0), Metric: g.u32(0), Src: g.maybe(f), NHID: g.u32(0),
	}
	if g.bool() {
		o.Dst = netip.PrefixFrom(g.unspecified(f), 0)
	}
	n := rapid.IntRange(0, 4).Draw(g.t, "legs")
	for range n {
		l := g.leg(f)
		if n == 1 {
			l.Weight = 0
		}
		o.Legs = append(o.Legs, l)
	}
	return o
}

func (g gen) unspecified(f model.Family) netip.Addr {
	if f == model.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (g gen) leg(f model.Family) model.Leg {
	if rapid.IntRange(0, 9).Draw(g.t, "other family") == 0 {
		f = g.family()
	}
	l := model.Leg{Gateway: g.maybe(f), Dev: g.maybeName(), Weight: g.weight(), Onlink: g.bool()}
	if !l.Gateway.IsValid() && l.Dev == "" {
		l.Dev = g.name()
	}
	return l
}

func (g gen) nexthop() model.Op {
	o := model.Nexthop{
		Verb:   rapid.SampledFrom([]model.NexthopVerb{model.NexthopAdd, model.NexthopReplace, model.NexthopDel}).Draw(g.t, "verb"),
		ID:     g.u32(1),
		Family: rapid.SampledFrom([]model.Family{model.Unspec, model.IPv4, model.IPv6}).Draw(g.t, "nexthop family"),
	}
	if o.Verb == model.NexthopDel {
		return o
	}
	f := o.Family
	if f == model.Unspec {
		f = g.family()
	}
	o.Gateway, o.Dev, o.Blackhole, o.FDB, o.Onlink = g.maybe(f), g.maybeName(), g.bool(), g.bool(), g.bool()
	for range rapid.IntRange(0, 3).Draw(g.t, "members") {
		o.Group = append(o.Group, model.Member{ID: g.u32(1), Weight: g.weight()})
	}
	return o
}

func (g gen) rule() model.Op {
	o := model.Rule{Del: g.bool(), Family: g.family(), Pref: g.u32(0), Mark: g.u32(0), IIF: g.maybeName(), OIF: g.maybeName()}
	if g.bool() {
		o.From = g.prefix(o.Family)
	}
	if g.bool() {
		o.To = g.prefix(o.Family)
	}
	o.Action = rapid.SampledFrom([]model.RuleAction{model.RuleLookup, model.RuleL3MDev, model.RuleBlackhole, model.RuleUnreachable, model.RuleProhibit}).Draw(g.t, "action")
	if o.Action == model.RuleLookup {
		o.Table = g.u32(0)
	}
	return o
}

func (g gen) neigh() model.Op {
	o := model.Neigh{
		Verb: rapid.SampledFrom([]model.NeighVerb{model.NeighAdd, model.NeighReplace, model.NeighChange, model.NeighDel}).Draw(g.t, "verb"),
		Addr: g.addr(g.family()), Dev: g.name(),
	}
	o.Proxy = (o.Verb == model.NeighAdd || o.Verb == model.NeighDel) && g.bool()
	if !o.Proxy && o.Verb != model.NeighDel && g.bool() {
		o.MAC = fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", toAny(g.bytes(6))...)
	}
	return o
}

func toAny(b []byte) (out []any) {
	for _, x := range b {
		out = append(out, x)
	}
	return out
}

func (g gen) qdisc() model.Op {
	o := model.Qdisc{
		Verb: rapid.SampledFrom([]model.QdiscVerb{model.QdiscAdd, model.QdiscReplace, model.QdiscDel}).Draw(g.t, "verb"),
		Dev:  g.name(), Handle: g.u16(0),
		Type: rapid.SampledFrom([]model.QdiscKind{model.Netem, model.Prio}).Draw(g.t, "kind"),
	}
	if o.Verb == model.QdiscDel && g.bool() {
		o.Type = ""
	}
	if g.bool() {
		o.Parent = fmt.Sprintf("%x:%x", g.u16(0), g.u16(0))
	}
	if o.Type == model.Netem {
		o.Delay = rapid.Uint32Range(0, iproute.MaxDelay).Draw(g.t, "delay")
	}
	return o
}

func (g gen) ptb() model.Op {
	f := g.family()
	return model.PTB{To: g.addr(f), MTU: g.u16(1), From: g.maybe(f), Dev: g.maybeName()}
}

func (g gen) send() model.Op {
	o := model.Send{Proto: rapid.SampledFrom([]model.SendProto{model.Raw6, model.UDP4, model.UDP6}).Draw(g.t, "proto")}
	f := model.IPv6
	if o.Proto == model.UDP4 {
		f = model.IPv4
	}
	o.From, o.To, o.Dev, o.Count = g.maybe(f), g.addr(f), g.maybeName(), g.u16(0)
	return o
}

func (g gen) hold() model.Op {
	o := model.Hold{Proto: model.UDP6, Name: g.socket(), Dev: g.maybeName()}
	f := model.IPv6
	if g.bool() {
		o.Proto, f = model.UDP4, model.IPv4
	}
	o.To = g.addr(f)
	return o
}
