package iproute

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nlfuzz/nlfuzz/model"
)

// routeTypes are the words for RTN_*, by number.
var routeTypes = []string{"", "unicast", "local", "broadcast", "anycast", "multicast", "blackhole", "unreachable", "prohibit", "throw"}

func parseRoute(w *words, f model.Family) (model.Op, error) {
	verb, err := w.verb("add", "change", "chg", "replace", "prepend", "append", "delete")
	if err != nil {
		return nil, err
	}
	if verb == "chg" {
		verb = "change"
	}
	o := model.Route{Verb: model.RouteVerb(verb)}
	if f, err = routeDst(w, &o, f); err != nil {
		return nil, err
	}
	var leg model.Leg
	var nexthop bool
	err = w.options(
		opt(via(&leg.Gateway, f), "via"), opt(device(&leg.Dev), "dev", "oif"), opt(flag(&leg.Onlink), "onlink"),
		opt(address(&o.Src, f), "src"),
		opt(number(&o.Metric, "metric", 0, 1<<32-1), "metric", "priority", "preference"),
		opt(table(&o.Table, 1), "table"),
		opt(number(&o.NHID, "nhid", 1, 1<<32-1), "nhid"),
		option{names: []string{"nexthop"}, many: true, value: func(w *words) error {
			nexthop = true
			l, err := parseLeg(w, f)
			o.Legs = append(o.Legs, l)
			return err
		}})
	switch {
	case err != nil:
		return nil, err
	case nexthop && leg != model.Leg{}:
		return nil, w.errorf("via, dev and onlink do not go together with nexthop")
	case nexthop && len(o.Legs) == 1:
		return nil, w.errorf("one nexthop alone: write its via and dev without the word nexthop")
	case leg.Onlink && !leg.Gateway.IsValid() && leg.Dev == "":
		return nil, w.errorf("onlink needs via or dev")
	case leg != model.Leg{}:
		o.Legs = []model.Leg{leg}
	}
	return o, nil
}

// routeDst reads the type and the destination, and returns the route's family. As iproute2 does, "default" is IPv4 if neither -6 nor a gateway
// says otherwise.
func routeDst(w *words, o *model.Route, f model.Family) (model.Family, error) {
	s, err := w.need("a destination")
	if i := slices.Index(routeTypes, s); err == nil && i > 0 {
		o.Type = model.RouteType(i)
		s, err = w.need("a destination")
	}
	if err == nil && s == "to" {
		s, err = w.need("a destination")
	}
	if err != nil {
		return f, err
	}
	if s == "default" || s == "all" || s == "any" {
		if i := slices.Index(w.list, "via"); f == model.Unspec && i >= 0 && i+1 < len(w.list) {
			gw, _ := parseAddr(w.list[i+1])
			f = model.FamilyOf(gw)
		}
		if f == model.IPv6 {
			o.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			return f, nil
		}
		o.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		return model.IPv4, nil
	}
	o.Dst, err = parsePrefix(w, s, f)
	if err != nil && o.Type == 0 && !strings.ContainsAny(s, ".:/") {
		err = w.errorf("%q is neither a destination nor a type of route (have %s)", s, strings.Join(routeTypes[1:], ", "))
	}
	return model.FamilyOf(o.Dst.Addr()), err
}

// via reads a gateway: an address of the route's family, or one of the other after inet or inet6.
func via(dst *netip.Addr, f model.Family) value {
	return func(w *words) error {
		of := f
		if w.more() {
			switch w.list[0] {
			case "inet":
				w.take()
				of = model.IPv4
			case "inet6":
				w.take()
				of = model.IPv6
			}
		}
		return address(dst, of)(w)
	}
}

// parseLeg reads one leg of a multipath route, up to the next one or the end.
func parseLeg(w *words, f model.Family) (model.Leg, error) {
	var l model.Leg
	own := []string{"via", "dev", "weight", "onlink"}
	part := words{cmd: w.cmd + " ... nexthop", list: w.list}
	// A leg ends at the first word that is none of its own and no value of them.
	n := 0
	for n < len(w.list) && slices.Contains(own, w.list[n]) {
		switch w.list[n] {
		case "via":
			n += 2
			if n <= len(w.list) && strings.HasPrefix(w.list[n-1], "inet") {
				n++
			}
		case "dev", "weight":
			n += 2
		default:
			n++
		}
	}
	n = min(n, len(w.list))
	part.list, w.list = w.list[:n], w.list[n:]
	err := part.options(opt(via(&l.Gateway, f), "via"), opt(device(&l.Dev), "dev"),
		opt(number(&l.Weight, "weight", 1, 256), "weight"), opt(flag(&l.Onlink), "onlink"))
	if err == nil && !l.Gateway.IsValid() && l.Dev == "" {
		err = part.errorf("via or dev is expected")
		if w.more() {
			err = part.errorf("via or dev is expected before %q", w.list[0])
		}
	}
	return l, err
}

func parseNexthop(w *words, f model.Family) (model.Op, error) {
	verb, err := w.verb("add", "replace", "delete")
	if err != nil {
		return nil, err
	}
	o := model.Nexthop{Verb: model.NexthopVerb(verb), Family: f}
	opts := []option{opt(number(&o.ID, "id", 1, 1<<32-1), "id")}
	if verb != "del" {
		opts = append(opts, opt(address(&o.Gateway, f), "via"), opt(device(&o.Dev), "dev"),
			opt(flag(&o.Blackhole), "blackhole"), opt(flag(&o.FDB), "fdb"), opt(flag(&o.Onlink), "onlink"), opt(members(&o.Group), "group"))
	}
	if err := w.options(opts...); err != nil {
		return nil, err
	}
	if o.ID == 0 {
		return nil, w.errorf("id is missing")
	}
	return o, nil
}

// members reads the members of a group: id[,weight]/id[,weight]...
func members(dst *[]model.Member) value {
	return func(w *words) error {
		s, err := w.need("a group")
		if err != nil {
			return err
		}
		for m := range strings.SplitSeq(s, "/") {
			var one model.Member
			id, weight, given := strings.Cut(m, ",")
			part := words{cmd: w.cmd + " ... group " + s, list: []string{id, weight}}
			if err := number(&one.ID, "id", 1, 1<<32-1)(&part); err != nil {
				return err
			}
			if given {
				if err := number(&one.Weight, "weight", 1, 256)(&part); err != nil {
					return err
				}
			}
			*dst = append(*dst, one)
		}
		return nil
	}
}
