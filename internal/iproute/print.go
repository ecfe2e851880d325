package iproute

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nlfuzz/nlfuzz/model"
)

// MaxDelay is the longest netem delay, in seconds, that every tc can give to a kernel: that of iproute2 6.1 counts in 32 bits of 64 ns and
// refuses more, or takes the rest of a division for it. Parse and Print know longer ones, since nlfuzz itself needs no tc.
const MaxDelay = 274

// line builds a command line word by word.
type line []string

func (l *line) add(words ...string) { *l = append(*l, words...) }

// str adds a word and its value where there is one.
func (l *line) str(word, v string) {
	if v != "" {
		l.add(word, v)
	}
}

func (l *line) num(word string, v uint32) {
	if v != 0 {
		l.add(word, fmt.Sprint(v))
	}
}

func (l *line) addr(word string, a netip.Addr) {
	if a.IsValid() {
		l.add(word, a.String())
	}
}

func (l *line) prefix(word string, p netip.Prefix) {
	if p.IsValid() {
		l.add(word, p.String())
	}
}

func (l *line) flag(word string, v bool) {
	if v {
		l.add(word)
	}
}

// ip starts a line of ip with the family's option.
func ip(f model.Family, words ...string) line {
	l := line{"ip"}
	switch f {
	case model.IPv4:
		l.add("-4")
	case model.IPv6:
		l.add("-6")
	}
	l.add(words...)
	return l
}

// Print returns an operation's one text form. It panics on a type that is no operation of package model.
func Print(op model.Op) string {
	return strings.Join(printed(op), " ")
}

func printed(op model.Op) line {
	switch o := op.(type) {
	case model.LinkAdd:
		return printLinkAdd(o)
	case model.LinkDel:
		return line{"ip", "link", "del", "dev", o.Name}
	case model.LinkUp:
		return linkSet(o.Name, "up")
	case model.LinkDown:
		return linkSet(o.Name, "down")
	case model.LinkMaster:
		return linkSet(o.Name, "master", o.Master)
	case model.LinkNoMaster:
		return linkSet(o.Name, "nomaster")
	case model.LinkMTU:
		return linkSet(o.Name, "mtu", fmt.Sprint(o.MTU))
	case model.LinkRename:
		return linkSet(o.Name, "name", o.New)
	case model.AddrAdd:
		l := line{"ip", "addr", "add", o.Prefix.String(), "dev", o.Dev}
		l.num("metric", o.Metric)
		l.flag("noprefixroute", o.NoPrefixRoute)
		return l
	case model.AddrDel:
		return line{"ip", "addr", "del", o.Prefix.String(), "dev", o.Dev}
	case model.Route:
		return printRoute(o)
	case model.Nexthop:
		return printNexthop(o)
	case model.Rule:
		return printRule(o)
	case model.Neigh:
		return printNeigh(o)
	case model.Qdisc:
		return printQdisc(o)
	case model.Filter:
		return printFilter(o)
	case model.Send:
		l := line{"nlfuzz", "send", string(o.Proto)}
		l.addr("from", o.From)
		l.addr("to", o.To)
		l.str("dev", o.Dev)
		l.num("count", uint32(o.Count))
		return l
	case model.Hold:
		l := line{"nlfuzz", "hold", string(o.Proto), o.Name}
		l.addr("to", o.To)
		l.str("dev", o.Dev)
		return l
	case model.Release:
		return line{"nlfuzz", "release", o.Name}
	case model.PTB:
		l := line{"nlfuzz", "ptb", o.To.String()}
		l.num("mtu", uint32(o.MTU))
		l.addr("from", o.From)
		l.str("dev", o.Dev)
		return l
	case model.Settle:
		return line{"nlfuzz", "settle"}
	}
	panic(fmt.Sprintf("iproute: %T is no operation", op))
}

func linkSet(name string, change ...string) line {
	return append(line{"ip", "link", "set", "dev", name}, change...)
}

func printLinkAdd(o model.LinkAdd) line {
	l := line{"ip", "link", "add"}
	l.str("link", o.Lower)
	l.add("name", o.Name)
	l.num("mtu", o.MTU)
	l.add("type", string(o.Type))
	switch o.Type {
	case model.Veth:
		if o.Peer != "" {
			l.add("peer", "name", o.Peer)
		}
	case model.VRF:
		l.num("table", o.Table)
	case model.VLAN:
		l.num("id", uint32(o.VLANID))
	case model.MACVLAN:
		l.add("mode", "bridge")
	}
	return l
}

func printRoute(o model.Route) line {
	f := model.FamilyOf(o.Dst.Addr())
	l := line{"ip"}
	l.flag("-6", f == model.IPv6)
	l.add("route", string(o.Verb))
	if o.Type != 0 {
		l.add(routeTypes[o.Type])
	}
	if o.Dst.Bits() == 0 && o.Dst.Addr().IsUnspecified() {
		l.add("default")
	} else {
		l.add(o.Dst.String())
	}
	if len(o.Legs) == 1 {
		l.leg(o.Legs[0], f)
	}
	l.addr("src", o.Src)
	l.num("metric", o.Metric)
	l.num("table", o.Table)
	l.num("nhid", o.NHID)
	if len(o.Legs) > 1 {
		for _, leg := range o.Legs {
			l.add("nexthop")
			l.leg(leg, f)
		}
	}
	return l
}

func (l *line) leg(leg model.Leg, f model.Family) {
	word := "via"
	switch g := model.FamilyOf(leg.Gateway); {
	case g == model.IPv4 && f == model.IPv6:
		word = "via inet"
	case g == model.IPv6 && f == model.IPv4:
		word = "via inet6"
	}
	l.addr(word, leg.Gateway)
	l.str("dev", leg.Dev)
	l.num("weight", uint32(leg.Weight))
	l.flag("onlink", leg.Onlink)
}

func printNexthop(o model.Nexthop) line {
	l := ip(o.Family, "nexthop", string(o.Verb), "id", fmt.Sprint(o.ID))
	l.addr("via", o.Gateway) // before dev, which would make iproute2 take IPv4 for the family
	l.str("dev", o.Dev)
	l.flag("blackhole", o.Blackhole)
	l.flag("fdb", o.FDB)
	l.flag("onlink", o.Onlink)
	var group []string
	for _, m := range o.Group {
		s := fmt.Sprint(m.ID)
		if m.Weight != 0 {
			s += fmt.Sprintf(",%d", m.Weight)
		}
		group = append(group, s)
	}
	l.str("group", strings.Join(group, "/"))
	return l
}

func printRule(o model.Rule) line {
	l := line{"ip"}
	l.flag("-6", o.Family == model.IPv6)
	l.add("rule", addOrDel(o.Del), "pref", fmt.Sprint(o.Pref))
	l.prefix("from", o.From)
	l.prefix("to", o.To)
	l.num("fwmark", o.Mark)
	l.str("iif", o.IIF)
	l.str("oif", o.OIF)
	switch {
	case o.Action != model.RuleLookup:
		l.add(string(o.Action))
	case o.Table != 0 || !o.Del: // without a table, add means main and del means any
		l.add("lookup", fmt.Sprint(o.Table))
	}
	return l
}

func printNeigh(o model.Neigh) line {
	l := line{"ip", "neigh", string(o.Verb)}
	l.flag("proxy", o.Proxy)
	l.add(o.Addr.String())
	l.str("lladdr", o.MAC)
	l.add("dev", o.Dev)
	if o.Verb != model.NeighDel && !o.Proxy {
		l.add("nud", "permanent")
	}
	return l
}

func printQdisc(o model.Qdisc) line {
	l := line{"tc", "qdisc", string(o.Verb), "dev", o.Dev}
	if o.Parent == "" {
		l.add("root")
	} else {
		l.add("parent", o.Parent)
	}
	if o.Handle != 0 {
		l.add("handle", fmt.Sprintf("%x:", o.Handle))
	}
	if o.Type != "" {
		l.add(string(o.Type))
	}
	if o.Delay != 0 {
		l.add("delay", fmt.Sprintf("%ds", o.Delay))
	}
	return l
}

// printFilter names the filter's own handle: the kernel makes no flow filter without (flow_change).
func printFilter(o model.Filter) line {
	l := line{"tc", "filter", addOrDel(o.Del), "dev", o.Dev, "parent", fmt.Sprintf("%x:", o.Handle), "protocol", "all", "prio", "1", "handle", "1", "flow"}
	if !o.Del {
		l.add("hash", "keys", "dst", "baseclass", fmt.Sprintf("%x:1", o.Handle))
	}
	return l
}

func addOrDel(del bool) string {
	if del {
		return "del"
	}
	return "add"
}
