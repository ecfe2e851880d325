package model

import (
	"net/netip"
	"syscall"
)

// route4 is one fib_alias with its fib_info.
type route4 struct {
	typ    RouteType
	metric uint32
	proto  uint8
	scope  uint8
	src    netip.Addr
	nhid   uint32
	legs   []leg
}

// leg is one way out of a route: a fib_nh or a fib6_nh.
type leg struct {
	gw       netip.Addr
	dev      int
	weight   uint16
	scope    uint8 // fib_nh_scope: what the gateway is
	onlink   bool
	dead     bool
	linkdown bool
}

func (r *route4) refs(yield func(ref)) {
	for _, l := range r.legs {
		if l.dev != 0 {
			yield(ref{dev: l.dev})
		}
	}
	if r.nhid != 0 {
		yield(ref{nh: r.nhid})
	}
	if r.src.IsValid() {
		yield(ref{src: r.src})
	}
}

// same says whether two routes share their fib_info (fib_find_info, nh_comp) and type.
func (r *route4) same(o *route4) bool {
	if r.typ != o.typ || r.metric != o.metric || r.proto != o.proto || r.scope != o.scope || r.src != o.src || r.nhid != o.nhid || len(r.legs) != len(o.legs) {
		return false
	}
	for i, a := range r.legs {
		b := o.legs[i]
		if a.gw != b.gw || a.dev != b.dev || a.weight != b.weight || a.scope != b.scope || a.onlink != b.onlink {
			return false
		}
	}
	return true
}

// flags of a request for a route, NLM_F_*.
type flags struct{ create, excl, replace, append bool }

var verbFlags = map[RouteVerb]flags{
	RouteAdd:     {create: true, excl: true},
	RouteAppend:  {create: true, append: true},
	RoutePrepend: {create: true},
	RouteReplace: {create: true, replace: true},
	RouteChange:  {replace: true},
}

// isReject says whether a route type answers with an error instead of a way out.
func (t RouteType) isReject() bool { return t >= Blackhole && t <= Throw }

// typeErrno is fib_props.error.
func typeErrno(t RouteType) syscall.Errno {
	switch t {
	case Blackhole:
		return syscall.EINVAL
	case Unreachable:
		return syscall.EHOSTUNREACH
	case Prohibit:
		return syscall.EACCES
	case Throw:
		return syscall.EAGAIN
	}
	return 0
}

// typeScope is fib_props.scope: the narrowest scope that a route of the type may have.
func typeScope(t RouteType) uint8 {
	switch t {
	case Local:
		return scopeHost
	case Broadcast, Anycast:
		return scopeLink
	}
	return scopeUniverse
}

// route runs an operation on a route of either family.
func (s *State) route(o Route) syscall.Errno {
	for _, l := range o.Legs {
		if l.Dev != "" && s.byName[l.Dev] == nil {
			return syscall.ENODEV // iproute2
		}
	}
	if o.Table == 0 {
		o.Table = tableMain
		if o.Type == Local || o.Type == Broadcast || o.Type == Anycast {
			o.Table = tableLocal
		}
	}
	del := o.Verb == RouteDel
	if o.Type == 0 && !del {
		o.Type = Unicast
	}
	switch v4 := o.Dst.Addr().Is4(); {
	case v4 && del:
		return s.userDelete4(o)
	case v4:
		return s.userAdd4(o)
	case del:
		return s.userDelete6(o)
	}
	return s.userAdd6(o)
}

// scopeOf is the scope that iproute2 gives a route (iproute_modify).
func scopeOf(o Route) uint8 {
	switch o.Type {
	case Local:
		return scopeHost
	case Broadcast, Multicast, Anycast:
		return scopeLink
	}
	if o.Verb == RouteDel {
		return scopeNowhere
	}
	if o.Type == Unicast && o.NHID == 0 && len(o.Legs) < 2 && (len(o.Legs) == 0 || !o.Legs[0].Gateway.IsValid()) {
		return scopeLink
	}
	return scopeUniverse
}

// legOf translates a leg of an operation.
func (s *State) legOf(l Leg) leg {
	out := leg{gw: l.Gateway, weight: max(l.Weight, 1), onlink: l.Onlink}
	if l.Gateway.IsValid() && l.Gateway.IsUnspecified() {
		out.gw = netip.Addr{}
	}
	if d := s.byName[l.Dev]; d != nil {
		out.dev = d.index
	}
	return out
}

// userAdd4 is inet_rtm_newroute.
func (s *State) userAdd4(o Route) syscall.Errno {
	if o.NHID != 0 && len(o.Legs) > 0 {
		return syscall.EINVAL // rtm_to_fib_config
	}
	r := route4{typ: o.Type, metric: o.Metric, proto: protoBoot, scope: scopeOf(o), src: o.Src, nhid: o.NHID}
	for _, l := range o.Legs {
		r.legs = append(r.legs, s.legOf(l))
	}
	return s.add4(routeKey{o.Table, o.Dst}, r, verbFlags[o.Verb])
}

// add4 is fib_table_insert.
func (s *State) add4(k routeKey, r route4, f flags) syscall.Errno {
	s.fib4.create(k.table)
	if k.dst != k.dst.Masked() {
		return syscall.EINVAL
	}
	if errno := s.check4(k, &r); errno != 0 {
		return errno
	}
	list := s.fib4.node(k)
	// The entries of one node are sorted by metric (fib_find_alias): first is the first of this metric or what to insert before.
	first := 0
	for first < len(list) && list[first].metric < r.metric {
		first++
	}
	end, match := first, -1
	for end < len(list) && list[end].metric == r.metric {
		if match < 0 && list[end].same(&r) {
			match = end
		}
		end++
	}
	at := first
	if end > first {
		switch {
		case f.excl:
			return syscall.EEXIST
		case f.replace && match == first:
			return 0
		case match >= 0:
			return syscall.EEXIST
		case f.replace:
			s.fib4.replace(k, first, &r)
			return 0
		case f.append:
			at = end
		}
	}
	if !f.create {
		return syscall.ENOENT
	}
	s.fib4.insert(k, at, &r)
	return 0
}

// check4 is fib_create_info: it checks a new route and completes its legs.
func (s *State) check4(k routeKey, r *route4) syscall.Errno {
	if typeScope(r.typ) > r.scope {
		return syscall.EINVAL
	}
	nh := s.nexthops[r.nhid]
	if r.nhid != 0 && nh == nil {
		return syscall.EINVAL
	}
	switch {
	case r.typ.isReject():
		if len(r.legs) > 0 {
			return syscall.EINVAL
		}
		return 0
	case nh != nil:
		if errno := s.checkScope(nh, r.scope); errno != 0 {
			return errno
		}
	case r.scope == scopeHost:
		if len(r.legs) > 1 || len(r.legs) == 1 && r.legs[0].gw.IsValid() {
			return syscall.EINVAL
		}
		if len(r.legs) == 0 {
			return syscall.ENODEV
		}
		r.legs[0].scope = scopeNowhere
	default:
		if len(r.legs) == 0 {
			return syscall.ENODEV
		}
		for i := range r.legs {
			if errno := s.checkLeg4(&r.legs[i], k.table, r.scope); errno != 0 {
				return errno
			}
		}
	}
	if r.src.IsValid() && !s.validSource4(k, r) {
		return syscall.EINVAL
	}
	return 0
}

// checkLeg4 is fib_check_nh.
func (s *State) checkLeg4(l *leg, table uint32, scope uint8) syscall.Errno {
	switch {
	case !l.gw.IsValid():
		return s.checkDev4(l)
	case l.gw.Is6():
		if errno := s.checkLeg6(l, table, false); errno != 0 {
			return errno
		}
		l.scope, l.linkdown = scopeLink, false // fib_check_nh_v6_gw
		return 0
	case l.onlink:
		d := s.byIndex[l.dev]
		switch {
		case scope >= scopeLink:
			return syscall.EINVAL
		case d == nil:
			return syscall.ENODEV
		case !d.up:
			return syscall.ENETDOWN
		case s.addrType4(s.tableOr(d, tableLocal), l.gw) != Unicast:
			return syscall.EINVAL
		}
		l.linkdown, l.scope = !d.carrier, scopeLink
		return 0
	}
	// fib_check_nh_v4_gw: the gateway must be reachable by a route of a narrower scope.
	flow := flow4{dst: l.gw, scope: max(scope+1, scopeLink), oif: l.dev, iif: loIndex}
	res, errno := result4{}, syscall.EAGAIN
	if _, ok := s.fib4.tables[table]; ok && table != tableMain {
		res, errno = s.tableLookup4(table, flow)
	}
	if errno != 0 {
		res, errno = s.lookup4(flow)
	}
	if errno != 0 {
		return errno
	}
	d := s.byIndex[res.leg.dev]
	switch {
	case res.typ != Unicast && res.typ != Local, d == nil:
		return syscall.EINVAL
	case !d.up:
		return syscall.ENETDOWN
	}
	l.scope, l.dev, l.linkdown = res.scope, d.index, !d.carrier
	return 0
}

// checkDev4 is fib_check_nh_nongw.
func (s *State) checkDev4(l *leg) syscall.Errno {
	d := s.byIndex[l.dev]
	switch {
	case l.onlink:
		return syscall.EINVAL
	case d == nil || !d.in4:
		return syscall.ENODEV
	case !d.up:
		return syscall.ENETDOWN
	}
	l.scope, l.linkdown = scopeHost, !d.carrier
	return 0
}

// validSource4 is fib_valid_prefsrc.
func (s *State) validSource4(k routeKey, r *route4) bool {
	if r.typ == Local && r.src == k.dst.Addr() {
		return true
	}
	table := k.table
	if table == tableMain {
		table = tableLocal
	}
	return s.addrType4(table, r.src) == Local || s.addrType4(tableLocal, r.src) == Local
}

// match4 is what a deletion asks for, beside the prefix: the zero value of a field matches all.
type match4 struct {
	typ    RouteType
	scope  uint8 // scopeNowhere: any
	proto  uint8
	metric uint32
	src    netip.Addr
	nhid   uint32
	legs   []leg
}

// userDelete4 is inet_rtm_delroute.
func (s *State) userDelete4(o Route) syscall.Errno {
	if o.NHID != 0 && (len(o.Legs) > 0 || s.nexthops[o.NHID] == nil) {
		return syscall.EINVAL
	}
	if s.fib4.tables[o.Table] == nil {
		return syscall.ESRCH
	}
	m := match4{typ: o.Type, scope: scopeOf(o), metric: o.Metric, src: o.Src, nhid: o.NHID}
	for _, l := range o.Legs {
		m.legs = append(m.legs, s.legOf(l))
	}
	return s.delete4(routeKey{o.Table, o.Dst}, m)
}

// delete4 is fib_table_delete: it removes the first match.
func (s *State) delete4(k routeKey, m match4) syscall.Errno {
	if k.dst != k.dst.Masked() {
		return syscall.EINVAL
	}
	for i, r := range s.fib4.node(k) {
		if (m.typ == 0 || r.typ == m.typ) && (m.scope == scopeNowhere || r.scope == m.scope) && (!m.src.IsValid() || r.src == m.src) &&
			(m.proto == 0 || r.proto == m.proto) && m.matches(r) {
			s.fib4.remove(k, i)
			return 0
		}
	}
	return syscall.ESRCH
}

// matches is fib_nh_match.
func (m *match4) matches(r *route4) bool {
	switch {
	case m.metric != 0 && m.metric != r.metric:
		return false
	case m.nhid != 0:
		return r.nhid == m.nhid
	case r.nhid != 0:
		return len(m.legs) == 0
	case len(m.legs) == 0:
		return true
	}
	legs := r.legs
	if len(legs) == 0 {
		legs = []leg{{}} // a reject route has one fib_nh without device
	}
	if len(m.legs) == 1 {
		w := m.legs[0]
		return (w.dev == 0 || w.dev == legs[0].dev) && (!w.gw.IsValid() || w.gw == legs[0].gw)
	}
	if len(m.legs) < len(legs) {
		return false
	}
	for i, l := range legs {
		if w := m.legs[i]; w.dev != 0 && w.dev != l.dev || w.gw.IsValid() && w.gw != l.gw {
			return false
		}
	}
	return true
}
