// Package iproute turns operations into command lines of iproute2, tc and nlfuzz, and such lines into operations: exact inverses.
package iproute

import (
	"fmt"
	"strings"

	"github.com/nlfuzz/nlfuzz/model"
)

// Parse reads one command line: what Print makes, and the variants and abbreviations of it that people use. What an operation can't represent
// is an error that names the word.
func Parse(line string) (model.Op, error) {
	op, err := parse(&words{list: strings.FieldsFunc(line, isSpace)})
	if err != nil {
		return nil, err
	}
	return op, nil
}

func parse(w *words) (model.Op, error) {
	switch prog := w.take(); prog {
	case "ip":
		return parseIP(w)
	case "tc":
		w.cmd = "tc"
		object, err := w.oneOf("object", "qdisc", "filter")
		if err != nil {
			return nil, err
		}
		w.cmd = "tc " + object
		if object == "qdisc" {
			return parseQdisc(w)
		}
		return parseFilter(w)
	case "nlfuzz":
		w.cmd = "nlfuzz"
		return parseNlfuzz(w)
	case "":
		return nil, fmt.Errorf("an empty line is no operation")
	default:
		return nil, fmt.Errorf("unknown command %q (have ip, tc, nlfuzz)", prog)
	}
}

// isSpace splits at what is space in ASCII; other bytes are the business of badName.
func isSpace(r rune) bool { return r == ' ' || r >= '\t' && r <= '\r' }

func parseIP(w *words) (model.Op, error) {
	f := model.Unspec
	w.cmd = "ip"
	if w.more() {
		switch w.list[0] {
		case "-4":
			f = model.IPv4
		case "-6":
			f = model.IPv6
		}
	}
	if f != model.Unspec {
		w.cmd = "ip " + w.take()
	}
	// In the order in which iproute2 looks abbreviations up (ip.c, cmds): "a" is address, "r" route, "n" neighbour, "l" link.
	object, err := w.oneOf("object", "address", "route", "rule", "neighbor", "neighbour", "link", "nexthop")
	if err != nil {
		return nil, err
	}
	name := map[string]string{"address": "addr", "neighbor": "neigh", "neighbour": "neigh"}[object]
	if name == "" {
		name = object
	}
	w.cmd += " " + name
	switch name {
	case "addr":
		return parseAddress(w, f)
	case "route":
		return parseRoute(w, f)
	case "rule":
		return parseRule(w, f)
	case "neigh":
		return parseNeigh(w, f)
	case "nexthop":
		return parseNexthop(w, f)
	}
	if f != model.Unspec {
		return nil, w.errorf("a link has no address family: leave -4 or -6 out")
	}
	return parseLink(w)
}

// verb takes one of the verbs; delete and del are the same.
func (w *words) verb(have ...string) (string, error) {
	v, err := w.oneOf("verb", have...)
	if v == "delete" {
		v = "del"
	}
	w.cmd += " " + v
	return v, err
}

func parseLink(w *words) (model.Op, error) {
	verb, err := w.verb("add", "set", "delete")
	switch {
	case err != nil:
		return nil, err
	case verb == "add":
		return parseLinkAdd(w)
	case verb == "set":
		return parseLinkSet(w)
	}
	var o model.LinkDel
	if err := w.options(opt(device(&o.Name), "dev"), opt(device(&o.Name))); err != nil {
		return nil, err
	}
	if o.Name == "" {
		return nil, w.errorf("the device is missing")
	}
	return o, nil
}

func parseLinkAdd(w *words) (model.Op, error) {
	var o model.LinkAdd
	stop, err := w.optionsUntil([]string{"type"},
		opt(device(&o.Lower), "link"),
		opt(newDevice(&o.Name), "name", "dev"), opt(newDevice(&o.Name)),
		opt(number(&o.MTU, "mtu", 1, 1<<32-1), "mtu"))
	if err != nil {
		return nil, err
	}
	if stop == "" {
		return nil, w.errorf("type is missing")
	}
	if o.Name == "" {
		return nil, w.errorf("the name is missing before type")
	}
	kind, err := w.need("a kind")
	if err != nil {
		return nil, err
	}
	o.Type = model.LinkKind(kind)
	switch o.Type {
	case model.Dummy, model.Bridge:
		err = w.end()
	case model.Veth:
		err = w.options(opt(func(w *words) error {
			if w.more() && w.list[0] == "name" {
				w.take()
			}
			return newDevice(&o.Peer)(w)
		}, "peer"))
	case model.VRF:
		err = w.options(opt(table(&o.Table, 1), "table"))
	case model.VLAN:
		err = w.options(opt(number(&o.VLANID, "vlan id", 1, 1<<16-1), "id"))
	case model.MACVLAN:
		if err = w.literal("mode", "bridge"); err == nil {
			err = w.end()
		}
	default:
		return nil, w.errorf("unknown kind %q (have dummy, veth, vrf, bridge, vlan, macvlan)", kind)
	}
	return o, err
}

func parseLinkSet(w *words) (model.Op, error) {
	var (
		dev, arg, what string
		mtu            uint32
	)
	// change is one thing to set. iproute2 takes many in one request; an operation is one.
	change := func(name string, v value) option {
		return opt(func(w *words) error {
			if what != "" {
				return w.errorf("unknown word %q after %q: one change a line", name, what)
			}
			what = name
			if v == nil {
				return nil
			}
			return v(w)
		}, name)
	}
	err := w.options(opt(device(&dev), "dev"), opt(device(&dev)),
		change("up", nil), change("down", nil), change("nomaster", nil), change("master", device(&arg)), change("vrf", device(&arg)),
		change("mtu", number(&mtu, "mtu", 1, 1<<32-1)), change("name", newDevice(&arg)))
	if err != nil {
		return nil, err
	}
	if dev == "" {
		return nil, w.errorf("the device is missing")
	}
	switch what {
	case "up":
		return model.LinkUp{Name: dev}, nil
	case "down":
		return model.LinkDown{Name: dev}, nil
	case "master", "vrf":
		return model.LinkMaster{Name: dev, Master: arg}, nil
	case "nomaster":
		return model.LinkNoMaster{Name: dev}, nil
	case "mtu":
		return model.LinkMTU{Name: dev, MTU: mtu}, nil
	case "name":
		return model.LinkRename{Name: dev, New: arg}, nil
	}
	return nil, w.errorf("nothing is set (have up, down, master, nomaster, mtu, name)")
}

func parseAddress(w *words, f model.Family) (model.Op, error) {
	verb, err := w.verb("add", "delete")
	if err != nil {
		return nil, err
	}
	var o model.AddrAdd
	prefix := func(w *words) error {
		s, err := w.need("an address")
		if err == nil {
			if o.Prefix.IsValid() {
				return w.errorf("unknown word %q: the address is already %s", s, o.Prefix)
			}
			o.Prefix, err = parsePrefix(w, s, f)
		}
		return err
	}
	opts := []option{opt(prefix, "local"), opt(prefix), opt(device(&o.Dev), "dev")}
	if verb == "add" {
		opts = append(opts, opt(number(&o.Metric, "metric", 1, 1<<32-1), "metric", "priority", "preference"), opt(flag(&o.NoPrefixRoute), "noprefixroute"))
	}
	if err := w.options(opts...); err != nil {
		return nil, err
	}
	switch {
	case !o.Prefix.IsValid():
		return nil, w.errorf("the address is missing")
	case o.Dev == "":
		return nil, w.errorf("dev is missing")
	case verb == "del":
		return model.AddrDel{Prefix: o.Prefix, Dev: o.Dev}, nil
	}
	return o, nil
}
