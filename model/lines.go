package model

import (
	"fmt"
	"net/netip"
	"strings"
)

// Lines returns the tables as text in canonical order (see Canonical), one line an object, in words close to iproute2's.
func (t *Tables) Lines() []string {
	t.Canonical()
	var out []string
	out = append(out, lines(t.Links, linkLine)...)
	out = append(out, lines(t.Addrs, addrLine)...)
	out = append(out, lines(t.Routes, routeLine)...)
	out = append(out, lines(t.Nexthops, nexthopLine)...)
	out = append(out, lines(t.Rules, ruleLine)...)
	out = append(out, lines(t.Neighs, neighLine)...)
	return append(out, lines(t.Qdiscs, qdiscLine)...)
}

// words builds a line of words.
type words struct{ strings.Builder }

func (w *words) add(format string, args ...any) {
	if w.Len() > 0 {
		w.WriteByte(' ')
	}
	fmt.Fprintf(w, format, args...)
}

func (w *words) flag(set bool, word string) {
	if set {
		w.add("%s", word)
	}
}

func (w *words) name(label, s string) {
	if s != "" {
		w.add("%s %s", label, s)
	}
}

func (w *words) number(label string, n uint32) {
	if n != 0 {
		w.add("%s %d", label, n)
	}
}

func (w *words) addr(label string, a netip.Addr) {
	if a.IsValid() {
		w.add("%s %s", label, a)
	}
}

func linkLine(l Link) string {
	var w words
	w.add("link %s", l.Name)
	w.name("type", string(l.Type))
	switch {
	case l.Up && l.Carrier:
		w.add("up")
	case l.Up:
		w.add("up no-carrier")
	default:
		w.add("down")
	}
	w.add("mtu %d", l.MTU)
	w.name("master", l.Master)
	w.name("lower", l.Lower)
	w.number("id", uint32(l.VLANID))
	w.number("table", l.Table)
	return w.String()
}

func addrLine(a Addr) string {
	var w words
	w.add("addr %s dev %s", a.Prefix, a.Dev)
	w.flag(a.Secondary, "secondary")
	w.number("metric", a.Metric)
	w.flag(a.NoPrefixRoute, "noprefixroute")
	w.flag(a.Tentative, "tentative")
	return w.String()
}

var typeNames = [...]string{Unicast: "unicast", Local: "local", Broadcast: "broadcast", Anycast: "anycast", Multicast: "multicast",
	Blackhole: "blackhole", Unreachable: "unreachable", Prohibit: "prohibit", Throw: "throw"}

// String returns the name of iproute2.
func (t RouteType) String() string {
	if int(t) < len(typeNames) && typeNames[t] != "" {
		return typeNames[t]
	}
	return fmt.Sprintf("type-%d", uint8(t))
}

func routeLine(r RouteEntry) string {
	var w words
	w.add("route %s", r.Type)
	w.add("%s table %d metric %d proto %d", r.Dst, r.Table, r.Metric, r.Proto)
	if r.Family == IPv4 {
		w.add("scope %d", r.Scope)
	}
	w.addr("src", r.Src)
	w.number("nhid", r.NHID)
	for i, l := range r.Legs {
		if len(r.Legs) > 1 {
			w.add("leg %d", i+1)
		}
		w.addr("via", l.Gateway)
		w.name("dev", l.Dev)
		if l.Weight > 1 {
			w.add("weight %d", l.Weight)
		}
		w.flag(l.Onlink, "onlink")
		w.flag(l.Dead, "dead")
		w.flag(l.Linkdown, "linkdown")
	}
	return w.String()
}

func nexthopLine(n NexthopEntry) string {
	var w words
	w.add("nexthop id %d", n.ID)
	switch n.Family {
	case IPv4:
		w.add("inet")
	case IPv6:
		w.add("inet6")
	}
	w.addr("via", n.Gateway)
	w.name("dev", n.Dev)
	w.flag(n.Blackhole, "blackhole")
	w.flag(n.FDB, "fdb")
	w.flag(n.Onlink, "onlink")
	w.number("scope", uint32(n.Scope))
	for i, m := range n.Group {
		sep := "/"
		if i == 0 {
			sep = " group "
		}
		fmt.Fprintf(&w, "%s%d,%d", sep, m.ID, m.Weight)
	}
	return w.String()
}

func ruleLine(r RuleEntry) string {
	var w words
	w.add("rule")
	if r.Family == IPv6 {
		w.add("inet6")
	} else {
		w.add("inet")
	}
	w.add("pref %d", r.Pref)
	if r.From.IsValid() {
		w.add("from %s", r.From)
	}
	if r.To.IsValid() {
		w.add("to %s", r.To)
	}
	w.number("fwmark", r.Mark)
	w.name("iif", r.IIF)
	w.name("oif", r.OIF)
	w.flag(r.Detached, "[detached]")
	if r.Action == RuleLookup {
		w.add("lookup %d", r.Table)
	} else {
		w.add("%s", r.Action)
		w.number("table", r.Table)
	}
	w.add("proto %d", r.Proto)
	return w.String()
}

func neighLine(n NeighEntry) string {
	var w words
	w.add("neigh %s dev %s", n.Addr, n.Dev)
	w.name("lladdr", n.MAC)
	w.flag(n.Proxy, "proxy")
	return w.String()
}

func qdiscLine(q QdiscEntry) string {
	var w words
	w.add("qdisc dev %s", q.Dev)
	if q.Parent == "" {
		w.add("root")
	} else {
		w.add("parent %s", q.Parent)
	}
	if q.Handle != 0 {
		w.add("handle %x:", q.Handle)
	}
	w.add("%s", q.Type)
	return w.String()
}
