package iproute

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/nlfuzz/nlfuzz/model"
)

func parseRule(w *words, f model.Family) (model.Op, error) {
	verb, err := w.verb("add", "delete")
	if err != nil {
		return nil, err
	}
	o := model.Rule{Del: verb == "del", Family: f}
	if f == model.Unspec {
		o.Family = model.IPv4
	}
	var pref bool
	var what string
	action := func(a model.RuleAction, v value, names ...string) option {
		return opt(func(w *words) error {
			if what != "" {
				return w.errorf("unknown word %q after %q: a rule has one action", names[0], what)
			}
			what, o.Action = names[0], a
			if v == nil {
				return nil
			}
			return v(w)
		}, names...)
	}
	err = w.options(
		opt(func(w *words) error { pref = true; return number(&o.Pref, "pref", 0, 1<<32-1)(w) }, "pref", "preference", "order", "priority"),
		opt(selector(&o.From, o.Family), "from"), opt(selector(&o.To, o.Family), "to"),
		opt(number(&o.Mark, "fwmark", 1, 1<<32-1), "fwmark"),
		opt(device(&o.IIF), "iif"), opt(device(&o.OIF), "oif"),
		action(model.RuleLookup, table(&o.Table, 0), "lookup", "table"),
		action(model.RuleL3MDev, nil, "l3mdev"), action(model.RuleBlackhole, nil, "blackhole"),
		action(model.RuleUnreachable, nil, "unreachable"), action(model.RuleProhibit, nil, "prohibit"))
	if err != nil {
		return nil, err
	}
	if !pref {
		return nil, w.errorf("pref is missing")
	}
	if what == "" && !o.Del {
		o.Table = tableNames["main"] // as iproute2 does
	}
	return o, nil
}

// selector reads a prefix or "all".
func selector(dst *netip.Prefix, f model.Family) value {
	return func(w *words) error {
		s, err := w.need("a prefix")
		if err != nil {
			return err
		}
		if s == "all" || s == "any" || s == "default" {
			return nil
		}
		*dst, err = parsePrefix(w, s, f)
		if err != nil && f == model.IPv4 && strings.Contains(s, ":") {
			err = fmt.Errorf("%w: write ip -6 rule", err)
		}
		return err
	}
}

func parseNeigh(w *words, f model.Family) (model.Op, error) {
	verb, err := w.verb("add", "change", "chg", "replace", "delete")
	if err != nil {
		return nil, err
	}
	if verb == "chg" {
		verb = "change"
	}
	o := model.Neigh{Verb: model.NeighVerb(verb)}
	var nud bool
	addr := func(w *words) error {
		if o.Addr.IsValid() {
			return w.errorf("unknown word %q: the address is already %s", w.take(), o.Addr)
		}
		return address(&o.Addr, f)(w)
	}
	opts := []option{opt(addr, "to"), opt(addr), opt(device(&o.Dev), "dev")}
	if verb != "del" {
		opts = append(opts, opt(mac(&o.MAC), "lladdr"), opt(func(w *words) error { nud = true; return w.literal("permanent") }, "nud"))
	}
	if verb == "add" || verb == "del" {
		opts = append(opts, opt(func(w *words) error { o.Proxy = true; return addr(w) }, "proxy"))
	}
	if err := w.options(opts...); err != nil {
		return nil, err
	}
	switch {
	case !o.Addr.IsValid():
		return nil, w.errorf("the address is missing")
	case o.Dev == "":
		return nil, w.errorf("dev is missing")
	case o.Proxy && (nud || o.MAC != ""):
		return nil, w.errorf("a proxy entry has no lladdr and no nud")
	}
	return o, nil
}

func parseQdisc(w *words) (model.Op, error) {
	verb, err := w.verb("add", "replace", "delete")
	if err != nil {
		return nil, err
	}
	o := model.Qdisc{Verb: model.QdiscVerb(verb)}
	var where string
	place := func(name string, v value) option {
		return opt(func(w *words) error {
			if where != "" {
				return w.errorf("unknown word %q after %q: a qdisc has one parent", name, where)
			}
			where = name
			return v(w)
		}, name)
	}
	kind, err := w.optionsUntil([]string{string(model.Netem), string(model.Prio)},
		opt(device(&o.Dev), "dev"),
		place("root", func(*words) error { return nil }), place("parent", classid(&o.Parent)),
		opt(handle(&o.Handle), "handle"))
	switch {
	case err != nil:
		return nil, err
	case o.Dev == "":
		return nil, w.errorf("dev is missing")
	case where == "":
		return nil, w.errorf("root or parent is missing")
	case kind == "" && verb != "del":
		return nil, w.errorf("the kind is missing (have netem, prio)")
	}
	o.Type = model.QdiscKind(kind)
	w.cmd += " ... " + kind
	if o.Type == model.Netem {
		err = w.options(opt(delay(&o.Delay), "delay", "latency"))
	} else {
		err = w.end()
	}
	return o, err
}

// classid reads the id of a class, major:minor in hexadecimal, into its canonical form.
func classid(dst *string) value {
	return func(w *words) error {
		s, err := w.need("a class")
		if err != nil {
			return err
		}
		major, minor, _ := strings.Cut(s, ":")
		h, err := strconv.ParseUint(major, 16, 16)
		l := uint64(0)
		if err == nil && minor != "" {
			l, err = strconv.ParseUint(minor, 16, 16)
		}
		if err != nil || !strings.Contains(s, ":") {
			return w.errorf("%q is no class, such as 1:2", s)
		}
		*dst = fmt.Sprintf("%x:%x", h, l)
		return nil
	}
}

// handle reads the handle of a qdisc: its major number in hexadecimal, with or without the colon.
func handle(dst *uint16) value {
	return func(w *words) error {
		s, err := w.need("a handle")
		if err != nil {
			return err
		}
		major, minor, _ := strings.Cut(s, ":")
		h, err := strconv.ParseUint(major, 16, 16)
		if err != nil || h == 0 || minor != "" && minor != "0" {
			return w.errorf("%q is no handle, such as 1:", s)
		}
		*dst = uint16(h)
		return nil
	}
}

// The units of time that tc knows (utils.c, get_time64), longest names first. A number alone is microseconds.
var timeUnits = []struct {
	name string
	of   time.Duration
}{
	{"msecs", time.Millisecond}, {"msec", time.Millisecond}, {"ms", time.Millisecond},
	{"usecs", time.Microsecond}, {"usec", time.Microsecond}, {"us", time.Microsecond},
	{"nsecs", time.Nanosecond}, {"nsec", time.Nanosecond}, {"ns", time.Nanosecond},
	{"secs", time.Second}, {"sec", time.Second}, {"s", time.Second},
	{"", time.Microsecond},
}

// delay reads a time that is whole seconds.
func delay(dst *uint32) value {
	return func(w *words) error {
		s, err := w.need("a delay")
		if err != nil {
			return err
		}
		for _, u := range timeUnits {
			digits, ok := strings.CutSuffix(s, u.name)
			if !ok {
				continue
			}
			per := uint64(time.Second / u.of)
			n, err := strconv.ParseUint(digits, 10, 64)
			if err != nil || n == 0 || n%per != 0 || n/per > 1<<32-1 {
				break
			}
			*dst = uint32(n / per)
			return nil
		}
		return w.errorf("delay %q must be whole seconds, such as 100s or 5000ms", s)
	}
}

// parseFilter reads the one filter there is, in iproute2's order of words.
func parseFilter(w *words) (model.Op, error) {
	verb, err := w.verb("add", "delete")
	if err != nil {
		return nil, err
	}
	o := model.Filter{Del: verb == "del"}
	var protocol, prio, id bool
	is := func(dst *bool, want string) value {
		return func(w *words) error { *dst = true; return w.literal(want) }
	}
	kind, err := w.optionsUntil([]string{"flow"}, opt(device(&o.Dev), "dev"), opt(handle(&o.Handle), "parent"),
		opt(is(&protocol, "all"), "protocol"), opt(is(&prio, "1"), "prio", "pref", "preference", "priority"), opt(is(&id, "1"), "handle"))
	switch {
	case err != nil:
		return nil, err
	case o.Dev == "":
		return nil, w.errorf("dev is missing")
	case o.Handle == 0:
		return nil, w.errorf("parent is missing")
	case !protocol:
		return nil, w.errorf("protocol all is missing")
	case !prio:
		return nil, w.errorf("prio 1 is missing")
	case o.Del && kind == "":
		return o, nil
	case kind == "":
		return nil, w.errorf("flow is missing")
	case !o.Del && !id:
		return nil, w.errorf("handle 1 is missing before flow: the kernel makes no flow filter without (flow_change)")
	}
	if o.Del && !w.more() {
		return o, nil
	}
	if err = w.literal("hash", "keys", "dst", "baseclass", fmt.Sprintf("%x:1", o.Handle)); err == nil {
		err = w.end()
	}
	return o, err
}

func parseNlfuzz(w *words) (model.Op, error) {
	verb, err := w.need("a verb (send, hold, release, ptb, settle)")
	if err != nil {
		return nil, err
	}
	w.cmd += " " + verb
	switch verb {
	case "send":
		return parseSend(w)
	case "hold":
		return parseHold(w)
	case "release":
		var o model.Release
		if err := socket(&o.Name)(w); err != nil {
			return nil, err
		}
		return o, w.end()
	case "ptb":
		return parsePTB(w)
	case "settle":
		return model.Settle{}, w.end()
	}
	w.cmd = "nlfuzz"
	return nil, w.errorf("unknown verb %q (have send, hold, release, ptb, settle)", verb)
}

func parseSend(w *words) (model.Op, error) {
	p, err := w.need("a protocol (raw6, udp4, udp6)")
	if err != nil {
		return nil, err
	}
	o := model.Send{Proto: model.SendProto(p)}
	if o.Proto != model.Raw6 && o.Proto != model.UDP4 && o.Proto != model.UDP6 {
		return nil, w.errorf("unknown protocol %q (have raw6, udp4, udp6)", p)
	}
	f := protoFamily(o.Proto)
	if err := w.options(opt(address(&o.From, f), "from"), opt(address(&o.To, f), "to"), opt(device(&o.Dev), "dev"),
		opt(number(&o.Count, "count", 1, 1<<16-1), "count")); err != nil {
		return nil, err
	}
	if !o.To.IsValid() {
		return nil, w.errorf("to is missing")
	}
	return o, nil
}

func parseHold(w *words) (model.Op, error) {
	p, err := w.need("a protocol (udp4, udp6)")
	if err != nil {
		return nil, err
	}
	o := model.Hold{Proto: model.SendProto(p)}
	if o.Proto != model.UDP4 && o.Proto != model.UDP6 {
		return nil, w.errorf("unknown protocol %q (have udp4, udp6)", p)
	}
	if err := socket(&o.Name)(w); err != nil {
		return nil, err
	}
	if err := w.options(opt(address(&o.To, protoFamily(o.Proto)), "to"), opt(device(&o.Dev), "dev")); err != nil {
		return nil, err
	}
	if !o.To.IsValid() {
		return nil, w.errorf("to is missing")
	}
	return o, nil
}

func parsePTB(w *words) (model.Op, error) {
	var o model.PTB
	if err := address(&o.To, model.Unspec)(w); err != nil {
		return nil, err
	}
	if err := w.options(opt(number(&o.MTU, "mtu", 1, 1<<16-1), "mtu"), opt(address(&o.From, model.FamilyOf(o.To)), "from"), opt(device(&o.Dev), "dev")); err != nil {
		return nil, err
	}
	if o.MTU == 0 {
		return nil, w.errorf("mtu is missing")
	}
	return o, nil
}

func protoFamily(p model.SendProto) model.Family {
	if p == model.UDP4 {
		return model.IPv4
	}
	return model.IPv6
}

// socket reads the name of a held socket: up to 32 letters, digits and underscores, so that it can be part of a variable's name.
func socket(dst *string) value {
	return func(w *words) error {
		s, err := w.need("the socket's name")
		if err != nil {
			return err
		}
		for _, c := range s {
			if !(c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') || len(s) > 32 {
				return w.errorf("%q is no name for a socket: up to 32 letters, digits and underscores", s)
			}
		}
		*dst = s
		return nil
	}
}
