package kmem

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nlfuzz/nlfuzz/invariants"
)

const maxUncached = 1 << 18

// dst is a rt6_info or rtable.
type dst struct {
	addr  uint64
	v6    bool
	where string // the list that it is on
	refs  int
	dev   uint64 // dst.dev
	idev  uint64 // rt6i_idev->dev
	via   uint64 // device of the nexthop of from

	from    uint64 // the fib6_info
	flags   uint32 // rt6i_flags
	idevAt  uint64 // the inet6_dev
	idevOld bool   // its device has another one by now, or none
}

// uncached returns the routes on the lists that rt6_uncached_list_flush_dev and rt_flush_dev walk when a device goes.
func (r *Reader) uncached(v6 bool) (out []dst, err error) {
	name, node := "rt_uncached_list", r.l.uncached4
	if v6 {
		name, node = "rt6_uncached_list", r.l.uncached6
	}
	type list struct {
		name string
		off  uint64
	}
	lists := []list{{invariants.OnUncached, r.l.uncachedHead}}
	if r.l.hasQuarantine {
		lists = append(lists, list{invariants.InQuarant, r.l.quarantine})
	}
	for _, l := range lists {
		for cpu, cpuOff := range r.cpuOff {
			nodes, err := r.m.ring(fmt.Sprintf("%s's %s on CPU %d", name, l.name, cpu), r.lists[name]+cpuOff+l.off, 0, 0, maxUncached)
			if err != nil {
				return out, err
			}
			for _, n := range nodes {
				out = append(out, dst{addr: n.addr - node, v6: v6, where: l.name})
			}
		}
	}
	if !v6 && r.ipv4Ops == 0 && len(out) > 0 { // ipv4_dst_ops is learned from the first route met where kallsyms hides it
		r.ipv4Ops, err = r.m.u64(out[0].addr + r.l.dstOps)
	}
	return out, err
}

// inUse returns the routes of a family, those on the uncached lists and those on none. Partly is why the latter may be missing. The slabs are searched first:
// a route that is made meanwhile is then found on its list, and not taken for one that is on none.
func (r *Reader) inUse(net Net, v6 bool) (out []dst, partly, err error) {
	var slabs [][]uint64
	s, partly := r.search(net, v6)
	if partly == nil {
		slabs, partly = r.inSlabs(s)
	}
	if partly != nil {
		slabs = [][]uint64{nil}
	}
	out, err = r.withListed(v6, slabs[0])
	return out, partly, err
}

// withListed returns the routes on the uncached lists, and of those in slabs the ones that are on none.
func (r *Reader) withListed(v6 bool, slabs []uint64) ([]dst, error) {
	out, err := r.uncached(v6)
	if err != nil {
		return nil, err
	}
	known := map[uint64]bool{}
	for _, d := range out {
		known[d.addr] = true
	}
	for _, a := range slabs {
		if !known[a] {
			known[a] = true // where the kernel had to make a smaller slab, its neighbour is met twice
			out = append(out, dst{addr: a, v6: v6, where: invariants.Nowhere})
		}
	}
	return out, nil
}

// errNoOps: without symbols ipv4_dst_ops is learned from the first route met on an uncached list.
var errNoOps = errors.New("IPv4 routes that are on no list can't be told from other objects yet: kallsyms hides ipv4_dst_ops")

// search is what tells routes of a family in the slabs: the cache that they are in, the operations that they have, and which are no routes of a lookup.
type search struct {
	cache    uint64
	ops, own map[uint64]bool
}

// search prepares a search. IPv6 routes found may belong to any namespace, also to one that is being dismantled.
func (r *Reader) search(net Net, v6 bool) (s search, err error) {
	s.ops, s.own = map[uint64]bool{}, map[uint64]bool{}
	any := r.ipv4Ops
	if v6 {
		any = uint64(net) + r.l.net6Ops
		nets, err := r.nets()
		if err != nil {
			return s, err
		}
		// Where the kernel merges slab caches, what a namespace has for itself (kmemdup in ip6_route_net_init) is in the same one.
		var templates []uint64
		for _, n := range nets {
			s.ops[uint64(n)+r.l.net6Ops] = true
			for _, off := range r.l.netTemplates {
				templates = append(templates, uint64(n)+off)
			}
		}
		if templates, err = r.m.words(templates); err != nil {
			return s, err
		}
		for _, a := range templates {
			s.own[a] = true
		}
	} else if any == 0 {
		return s, errNoOps
	}
	s.ops[any] = true
	s.cache, err = r.m.u64(any + r.l.opsCache)
	return s, err
}

// inSlabs finds the routes of some searches in one pass over memory, which is what takes the time.
func (r *Reader) inSlabs(searches ...search) ([][]uint64, error) {
	caches := make([]uint64, len(searches))
	for i, s := range searches {
		caches[i] = s.cache
	}
	slots, err := r.slots(caches...)
	if err != nil {
		return nil, err
	}
	out := make([][]uint64, len(searches))
	for i, s := range searches {
		addrs := make([]uint64, len(slots[i]))
		for n, a := range slots[i] {
			addrs[n] = a + r.l.dstOps
		}
		found, err := r.m.words(addrs)
		if err != nil {
			return nil, err
		}
		for n, a := range slots[i] {
			if found[n] != 0 && s.ops[found[n]] && !s.own[a] {
				out[i] = append(out[i], a)
			}
		}
	}
	return out, nil
}

// addRoutes tallies the routes in use that pin the device.
func (r *Reader) addRoutes(dsts []dst, dev uint64, h *tally) error {
	if err := r.resolve(dsts); err != nil {
		return err
	}
	for i := range dsts {
		d := &dsts[i]
		if d.refs <= 0 {
			continue
		}
		if !d.v6 {
			if d.dev == dev {
				h.add("ipv4 dst (dst.dev)", func() string { return r.text4(d) })
			}
			continue
		}
		describe := func() string { return r.text6(d) }
		if d.dev == dev {
			h.add("ipv6 dst (dst.dev)", describe)
		}
		if d.idev == dev {
			h.add("ipv6 dst (rt6i_idev)", describe)
		}
		if d.via == dev {
			h.add("ipv6 dst (from->nexthop)", describe)
		}
	}
	return nil
}

// resolve reads what the routes refer to. It goes pointer by pointer for all of them at once: there can be 100,000. A route can go away between the
// reads; what can't be read then is 0 and pins nothing.
func (r *Reader) resolve(dsts []dst) error {
	const own, next = 5, 3
	addrs := make([]uint64, 0, own*len(dsts))
	for _, d := range dsts {
		addrs = append(addrs, d.addr+r.l.dstCnt, d.addr+r.l.dstDev)
		if d.v6 {
			addrs = append(addrs, d.addr+r.l.rt6Idev, d.addr+r.l.rt6From, d.addr+r.l.rt6Flags)
		} else {
			addrs = append(addrs, 0, 0, 0)
		}
	}
	w, err := r.m.words(addrs)
	if err != nil {
		return err
	}
	addrs = addrs[:0]
	for i := range dsts {
		dsts[i].refs, dsts[i].dev = r.count(uint32(w[own*i])), w[own*i+1]
		idev, from := w[own*i+2], w[own*i+3]
		dsts[i].idevAt, dsts[i].from, dsts[i].flags = idev, from, uint32(w[own*i+4])
		addrs = append(addrs, field(idev, r.l.idevDev), field(from, r.l.fibNh), field(from, r.l.fibNexthop))
	}
	if w, err = r.m.words(addrs); err != nil {
		return err
	}
	addrs = addrs[:0]
	for i := range dsts {
		dsts[i].idev = w[next*i]
		nh := w[next*i+1]
		if nh == 0 {
			dsts[i].via = w[next*i+2] // fib6_info.fib6_nh exists only without a nexthop object
		}
		addrs = append(addrs, field(nh, r.l.nhGroup), field(nh, r.l.nhInfo), field(dsts[i].idev, r.l.tables.devInet6))
	}
	if w, err = r.m.words(addrs); err != nil {
		return err
	}
	addrs = addrs[:0]
	for i := range dsts {
		group, info := byte(w[3*i]) != 0, w[3*i+1]
		dsts[i].idevOld = dsts[i].idev != 0 && w[3*i+2] != dsts[i].idevAt
		if group { // remove_nexthop_from_groups takes a removed device's members out of it
			info = 0
		}
		addrs = append(addrs, field(info, r.l.infoDev))
	}
	if w, err = r.m.words(addrs); err != nil {
		return err
	}
	for i := range dsts {
		if w[i] != 0 {
			dsts[i].via = w[i]
		}
	}
	return nil
}

// count decodes dst_entry's reference count; 0 for one that is being freed.
func (r *Reader) count(v uint32) int {
	if !r.l.dstRcuref {
		return max(0, int(int32(v)))
	}
	if v >= 1<<31 { // RCUREF_RELEASED and above
		return 0
	}
	return int(v) + 1
}

func (r *Reader) text6(d *dst) string {
	to := "?"
	if b, err := r.m.read(d.addr+r.l.rt6Addr, 16); err == nil {
		to = netip.AddrFrom16([16]byte(b)).String()
	}
	if b, err := r.m.read(d.addr+r.l.rt6Plen, 1); err == nil {
		to += fmt.Sprintf("/%d", b[0])
	}
	flags, _ := r.m.u32(d.addr + r.l.rt6Flags)
	return fmt.Sprintf("to %s flags %#x refs %d on %s, dst.dev %s, rt6i_idev %s, from->nexthop %s",
		to, flags, d.refs, d.where, r.nameOf(d.dev), r.nameOf(d.idev), r.nameOf(d.via))
}

func (r *Reader) text4(d *dst) string {
	flags, _ := r.m.u32(d.addr + r.l.rt4Flags)
	kind, _ := r.m.read(d.addr+r.l.rt4Type, 2)
	gw, _ := r.m.read(d.addr+r.l.rt4Gw, 4)
	via := ""
	if len(gw) == 4 && le.Uint32(gw) != 0 {
		via = " via " + netip.AddrFrom4([4]byte(gw)).String()
	}
	typ := "?"
	if len(kind) == 2 {
		typ = fmt.Sprint(le.Uint16(kind))
	}
	return fmt.Sprintf("type %s%s flags %#x refs %d on %s, dst.dev %s", typ, via, flags, d.refs, d.where, r.nameOf(d.dev))
}

func (r *Reader) nameOf(dev uint64) string {
	if dev == 0 {
		return "none"
	}
	b, err := r.m.read(dev+r.l.devName, nameSize)
	if err != nil {
		return "?"
	}
	return cstring(b)
}
