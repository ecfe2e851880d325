package fuzz

import (
	"context"
	"net/netip"
	"strings"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/model"
)

// text is a sequence as its lines.
func text(ops []model.Op) string {
	var b strings.Builder
	for _, op := range ops {
		b.WriteString(iproute.Print(op))
		b.WriteByte('\n')
	}
	return b.String()
}

// simplify tries each operation with simpler arguments: fewer, then plainer ones.
func (d *reducer) simplify(ctx context.Context) {
	for i := 0; i < len(d.res.Ops); i++ {
		for again := true; again; {
			again = false
			if i >= len(d.res.Ops) {
				return
			}
			for _, s := range simpler(d.res.Ops[i]) {
				if d.res.Stopped != "" || d.err != nil {
					return
				}
				ops := append([]model.Op(nil), d.res.Ops...)
				ops[i] = s
				if d.fails(ctx, ops) {
					again = true
					break
				}
			}
		}
	}
}

// simpler lists what an operation could be with one argument less or plainer.
func simpler(op model.Op) (out []model.Op) {
	switch o := op.(type) {
	case model.LinkAdd:
		if o.MTU != 0 {
			p := o
			p.MTU = 0
			out = append(out, p)
		}
		if o.Type != model.Dummy && o.Type != model.VRF {
			out = append(out, model.LinkAdd{Name: o.Name, Type: model.Dummy})
		}
	case model.AddrAdd:
		if o.Metric != 0 || o.NoPrefixRoute {
			out = append(out, model.AddrAdd{Prefix: o.Prefix, Dev: o.Dev})
		}
		usual := 24
		if o.Prefix.Addr().Is6() {
			usual = 64
		}
		if o.Prefix.Bits() != usual {
			p := o
			p.Prefix = netip.PrefixFrom(o.Prefix.Addr(), usual)
			out = append(out, p)
		}
	case model.Route:
		for _, change := range []func(*model.Route){
			func(r *model.Route) { r.Src = netip.Addr{} },
			func(r *model.Route) { r.Metric = 0 },
			func(r *model.Route) { r.Table = 0 },
			func(r *model.Route) {
				if len(r.Legs) > 1 {
					r.Legs = []model.Leg{{Gateway: r.Legs[0].Gateway, Dev: r.Legs[0].Dev}}
				}
			},
			func(r *model.Route) {
				if len(r.Legs) == 1 && r.Legs[0].Dev != "" {
					r.Legs = []model.Leg{{Dev: r.Legs[0].Dev}}
				}
			},
			func(r *model.Route) {
				if r.Verb != model.RouteDel {
					r.Verb = model.RouteAdd
				}
			},
		} {
			p := o
			p.Legs = append([]model.Leg(nil), o.Legs...)
			change(&p)
			if iproute.Print(p) != iproute.Print(o) {
				out = append(out, p)
			}
		}
	case model.Nexthop:
		if o.Gateway.IsValid() && o.Dev != "" {
			p := model.Nexthop{Verb: o.Verb, ID: o.ID, Dev: o.Dev}
			if o.Gateway.Is6() {
				p.Family = model.IPv6
			}
			out = append(out, p)
		}
		if len(o.Group) > 1 {
			p := o
			p.Group = o.Group[:1]
			out = append(out, p)
		}
	case model.Qdisc:
		if o.Verb == model.QdiscReplace {
			p := o
			p.Verb = model.QdiscAdd
			out = append(out, p)
		}
	case model.Send:
		if o.Count > 1 {
			p := o
			p.Count = 0
			out = append(out, p)
		}
		if o.Dev != "" {
			p := o
			p.Dev = ""
			out = append(out, p)
		}
		if o.Proto == model.Raw6 && o.From != o.To && o.To.IsValid() {
			p := o
			p.From = o.To
			out = append(out, p)
		}
	case model.PTB:
		if o.Dev != "" {
			p := o
			p.Dev = ""
			out = append(out, p)
		}
		if o.From.IsValid() {
			p := o
			p.From = netip.Addr{}
			out = append(out, p)
		}
	case model.Hold:
		if o.Dev != "" {
			p := o
			p.Dev = ""
			out = append(out, p)
		}
	}
	return out
}

// merge tries to do with one link less: all that is done to one is done to another.
func (d *reducer) merge(ctx context.Context) {
	for again := true; again; {
		again = false
		links := added(d.res.Ops)
		for _, gone := range links {
			for _, kept := range links {
				if gone == kept || d.res.Stopped != "" || d.err != nil {
					continue
				}
				var ops []model.Op
				for _, op := range d.res.Ops {
					if a, ok := op.(model.LinkAdd); ok && a.Name == gone {
						continue
					}
					ops = append(ops, renamed(op, func(n string) string {
						if n == gone {
							return kept
						}
						return n
					}))
				}
				if again = d.fails(ctx, ops); again {
					break
				}
			}
			if again {
				break
			}
		}
	}
}

// added lists the names of the links that are added.
func added(ops []model.Op) (out []string) {
	for _, op := range ops {
		if a, ok := op.(model.LinkAdd); ok {
			out = append(out, a.Name)
		}
	}
	return out
}

// rename gives the links that are left the first names of their kinds, if the failure does not mind.
func (d *reducer) rename(ctx context.Context) {
	to, used := map[string]string{}, map[model.LinkKind]int{}
	next := func(k model.LinkKind, old string) {
		if _, done := to[old]; !done && used[k] < len(names[k]) {
			to[old] = names[k][used[k]]
			used[k]++
		}
	}
	for _, op := range d.res.Ops {
		if o, ok := op.(model.LinkAdd); ok {
			next(o.Type, o.Name)
			if o.Peer != "" {
				next(o.Type, o.Peer)
			}
		}
	}
	var ops []model.Op
	for _, op := range d.res.Ops {
		ops = append(ops, renamed(op, func(n string) string {
			if s, ok := to[n]; ok {
				return s
			}
			return n
		}))
	}
	if text(ops) != text(d.res.Ops) {
		d.fails(ctx, ops)
	}
}

// renamed returns op with every device name replaced.
func renamed(op model.Op, to func(string) string) model.Op {
	switch o := op.(type) {
	case model.LinkAdd:
		o.Name, o.Lower, o.Peer = to(o.Name), to(o.Lower), to(o.Peer)
		return o
	case model.LinkDel:
		return model.LinkDel{Name: to(o.Name)}
	case model.LinkUp:
		return model.LinkUp{Name: to(o.Name)}
	case model.LinkDown:
		return model.LinkDown{Name: to(o.Name)}
	case model.LinkMaster:
		return model.LinkMaster{Name: to(o.Name), Master: to(o.Master)}
	case model.LinkNoMaster:
		return model.LinkNoMaster{Name: to(o.Name)}
	case model.LinkMTU:
		o.Name = to(o.Name)
		return o
	case model.LinkRename:
		return model.LinkRename{Name: to(o.Name), New: to(o.New)}
	case model.AddrAdd:
		o.Dev = to(o.Dev)
		return o
	case model.AddrDel:
		o.Dev = to(o.Dev)
		return o
	case model.Route:
		legs := append([]model.Leg(nil), o.Legs...)
		for i := range legs {
			legs[i].Dev = to(legs[i].Dev)
		}
		o.Legs = legs
		return o
	case model.Nexthop:
		o.Dev = to(o.Dev)
		return o
	case model.Rule:
		o.IIF, o.OIF = to(o.IIF), to(o.OIF)
		return o
	case model.Neigh:
		o.Dev = to(o.Dev)
		return o
	case model.Qdisc:
		o.Dev = to(o.Dev)
		return o
	case model.Filter:
		o.Dev = to(o.Dev)
		return o
	case model.Send:
		o.Dev = to(o.Dev)
		return o
	case model.PTB:
		o.Dev = to(o.Dev)
		return o
	case model.Hold:
		o.Dev = to(o.Dev)
		return o
	}
	return op
}
