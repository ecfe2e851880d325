package repro

import (
	"fmt"
	"slices"
	"strings"
)

// query is one line of a state as a question to iproute2: Show must print a line that has all of some words and none of others.
type query struct {
	Line   string // as the model writes it
	Want   bool   // it must be there; else it must not
	Show   string // shell command
	Has    string // shell words
	HasNot string
}

// queries turns what is wrong with a state into questions, and returns the lines for which there are none: those that iproute2 does not
// show, and pairs that differ only in what it does not show, or in their order.
func queries(c State) (out []query, untold []string) {
	ask := func(line string, want bool) {
		q, ok := queryOf(line)
		q.Want = want
		if !ok {
			untold = append(untold, line)
			return
		}
		out = append(out, q)
	}
	for _, l := range c.Missing {
		ask(l, true)
	}
	for _, l := range c.Unexpected {
		ask(l, false)
	}
	contradicted := func(a query) bool {
		return slices.ContainsFunc(out, func(b query) bool {
			return a.Want != b.Want && a.Show == b.Show && a.Has == b.Has && a.HasNot == b.HasNot
		})
	}
	var kept []query
	for _, q := range out {
		if contradicted(q) {
			untold = append(untold, q.Line)
		} else {
			kept = append(kept, q)
		}
	}
	return kept, untold
}

// lineWords reads a line of model.Tables: its words, and the value after each word.
type lineWords []string

func (l lineWords) has(w string) bool { return slices.Contains(l, w) }

func (l lineWords) value(w string) string {
	if i := slices.Index(l, w); i >= 0 && i+1 < len(l) {
		return l[i+1]
	}
	return ""
}

// pair adds "word value" to has, or word to not, as the line has it.
func (l lineWords) pair(has, not *[]string, word string) {
	if v := l.value(word); v != "" {
		*has = append(*has, word+" "+v)
	} else {
		*not = append(*not, word)
	}
}

func (l lineWords) flags(has, not *[]string, words ...string) {
	for _, w := range words {
		if l.has(w) {
			*has = append(*has, w)
		} else {
			*not = append(*not, w)
		}
	}
}

func queryOf(line string) (query, bool) {
	l := lineWords(strings.Fields(line))
	if len(l) < 2 {
		return query{}, false
	}
	var show string
	var has, not []string
	switch l[0] {
	case "link":
		show, has, not = linkQuery(l)
	case "addr":
		show = "ip -o addr show dev " + quote(l.value("dev"))
		has = []string{l[1]}
		l.flags(&has, &not, "secondary", "noprefixroute", "tentative")
		l.pair(&has, &not, "metric")
	case "route":
		show, has, not = routeQuery(l)
	case "nexthop":
		show, has, not = nexthopQuery(l)
	case "rule":
		show, has, not = ruleQuery(l)
	case "neigh":
		show = "ip neigh show nud permanent dev " + quote(l.value("dev"))
		if l.has("proxy") {
			show = "ip neigh show proxy dev " + quote(l.value("dev"))
		}
		has = []string{l[1]}
		if v := l.value("lladdr"); v != "" {
			has = append(has, "lladdr "+v)
		}
	case "qdisc":
		show = "tc qdisc show dev " + quote(l.value("dev"))
		has = []string{"qdisc " + l[len(l)-1]}
		l.flags(&has, &not, "root")
		l.pair(&has, &not, "parent")
	default:
		return query{}, false
	}
	return query{Line: line, Show: show, Has: quoteAll(has), HasNot: quoteAll(not)}, show != ""
}

func quoteAll(words []string) string {
	q := make([]string, len(words))
	for i, w := range words {
		q[i] = quote(w)
	}
	return strings.Join(q, " ")
}

func linkQuery(l lineWords) (show string, has, not []string) {
	name := l[1] + ":"
	if lower := l.value("lower"); lower != "" {
		name = l[1] + "@" + lower + ":"
	}
	has = []string{name, "mtu " + l.value("mtu")}
	if l.has("down") {
		not = append(not, "UP")
	} else {
		has = append(has, "UP")
		if l.has("no-carrier") {
			not = append(not, "LOWER_UP")
		} else {
			has = append(has, "LOWER_UP")
		}
	}
	l.pair(&has, &not, "master")
	switch kind := l.value("type"); kind {
	case "":
	case "vlan":
		has = append(has, "id "+l.value("id"))
	case "vrf":
		has = append(has, "vrf table "+l.value("table"))
	default:
		has = append(has, kind)
	}
	return "ip -d -o link show dev " + quote(l[1]), has, not
}

// routeQuery reads "route TYPE DST table T metric M proto P [scope S] [src A] [nhid N] [leg 1] via G dev D ...".
func routeQuery(l lineWords) (show string, has, not []string) {
	if len(l) < 5 {
		return "", nil, nil
	}
	typ, dst, family, other := l[1], l[2], "-4", "inet6"
	if strings.Contains(dst, ":") {
		family, other = "-6", "inet"
	}
	show = fmt.Sprintf("ip %s -N -o route show table %s type %s exact %s", family, l.value("table"), typ, dst)
	if m := l.value("metric"); m != "0" {
		has = append(has, "metric "+m)
	} else {
		not = append(not, "metric")
	}
	l.pair(&has, &not, "src")
	l.pair(&has, &not, "nhid")
	if l.has("nhid") {
		return show, has, not // what ip prints besides is derived from the object
	}
	if s := l.value("scope"); s != "" && s != "0" {
		has = append(has, "scope "+s)
	}
	via := func(leg lineWords) string {
		g := leg.value("via")
		if strings.Contains(g, ":") != (family == "-6") {
			return "via " + other + " " + g
		}
		return "via " + g
	}
	first := slices.Index(l, "leg")
	if first < 0 {
		if l.has("via") {
			has = append(has, via(l))
		} else {
			not = append(not, "via")
		}
		if d := l.value("dev"); d != "" {
			has = append(has, "dev "+d)
		}
		l.flags(&has, &not, "onlink", "dead", "linkdown")
		return show, has, append(not, "nexthop")
	}
	for _, leg := range legs(l[first:]) {
		words := []string{"nexthop"}
		if leg.has("via") {
			words = append(words, via(leg))
		}
		words = append(words, "dev", leg.value("dev"), "weight")
		if w := leg.value("weight"); w != "" {
			words = append(words, w)
		} else {
			words = append(words, "1")
		}
		has = append(has, strings.Join(words, " "))
	}
	return show, has, not
}

// legs splits "leg 1 ... leg 2 ...".
func legs(l lineWords) (out []lineWords) {
	for i, w := range l {
		if w == "leg" {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], l[i])
	}
	return out
}

func nexthopQuery(l lineWords) (show string, has, not []string) {
	has = []string{"id " + l.value("id")}
	l.pair(&has, &not, "via")
	l.pair(&has, &not, "dev")
	l.flags(&has, &not, "blackhole", "fdb", "onlink")
	if g := l.value("group"); g != "" {
		var members []string
		for m := range strings.SplitSeq(g, "/") { // ip leaves a weight of 1 out
			members = append(members, strings.TrimSuffix(m, ",1"))
		}
		has = append(has, "group "+strings.Join(members, "/"))
	} else {
		not = append(not, "group")
	}
	return "ip nexthop show id " + l.value("id"), has, not
}

func ruleQuery(l lineWords) (show string, has, not []string) {
	family := "-4"
	if l.has("inet6") {
		family = "-6"
	}
	for _, w := range []string{"from", "to"} {
		v := strings.TrimSuffix(strings.TrimSuffix(l.value(w), "/32"), "/128")
		if w == "from" && v == "" {
			v = "all"
		}
		if v == "" {
			not = append(not, w)
		} else {
			has = append(has, w+" "+v)
		}
	}
	if m := l.value("fwmark"); m != "" {
		var n uint32
		fmt.Sscan(m, &n)
		has = append(has, fmt.Sprintf("fwmark %#x", n))
	} else {
		not = append(not, "fwmark")
	}
	l.pair(&has, &not, "iif")
	l.pair(&has, &not, "oif")
	numeric := "-N " // a table's number, also where it has a name; but the word for an action
	switch {
	case l.has("l3mdev"):
		has = append(has, "[l3mdev-table]")
	case l.has("lookup"):
		if t := l.value("lookup"); t != "0" {
			has = append(has, "lookup "+t)
		}
	default:
		numeric = ""
		l.flags(&has, &not, "blackhole", "unreachable", "prohibit")
	}
	return fmt.Sprintf("ip %s %srule show pref %s", family, numeric, l.value("pref")), has, not
}
