package kmem

import (
	"fmt"
	"net/netip"

	"github.com/nlfuzz/nlfuzz/invariants"
)

const (
	maxUncached = 1 << 18
	maxDetails  = 3 // how many dsts of a kind are described
)

// dst is a rt6_info or rtable that is in use.
type dst struct {
	addr  uint64
	v6    bool
	where string // the list that it is on
	refs  int
	dev   uint64 // dst.dev
	idev  uint64 // rt6i_idev->dev
	via   uint64 // device of the nexthop of from
	text  string
}

// Holders returns what pins a device, of the kinds of objects that kmem knows: routes (dst_entry) of both families, on the per-CPU uncached lists and,
// found by a scan of the slabs, on none. One route can count in several kinds. When err is not nil, what was found until then is returned as well.
func (r *Reader) Holders(net Net, dev uint64) ([]invariants.Holder, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var h tally
	var firstErr error
	for _, v6 := range []bool{true, false} {
		dsts, err := r.uncached(v6)
		if err == nil {
			dsts, err = r.addOffList(net, v6, dsts)
		}
		if err != nil && firstErr == nil {
			firstErr = fmt.Errorf("holders of device %#x may be missing: %w", dev, err)
		}
		if err := r.describe(dsts, dev, &h); err != nil && firstErr == nil {
			firstErr = fmt.Errorf("holders of device %#x may be missing: %w", dev, err)
		}
	}
	return h.holders, firstErr
}

// uncached returns the routes on the lists that rt6_uncached_list_flush_dev and rt_flush_dev walk when a device goes.
func (r *Reader) uncached(v6 bool) (out []dst, err error) {
	name, node := "rt_uncached_list", r.l.uncached4
	if v6 {
		name, node = "rt6_uncached_list", r.l.uncached6
	}
	lists := map[string]uint64{"uncached list": r.l.uncachedHead}
	if r.l.hasQuarantine {
		lists["quarantine"] = r.l.quarantine
	}
	for where, off := range lists {
		for cpu, cpuOff := range r.cpuOff {
			nodes, err := r.m.list(fmt.Sprintf("%s's %s on CPU %d", name, where, cpu), r.lists[name]+cpuOff+off, 0, 0, maxUncached)
			if err != nil {
				return out, err
			}
			for _, n := range nodes {
				out = append(out, dst{addr: n.addr - node, v6: v6, where: where})
			}
		}
	}
	if !v6 && r.ipv4Ops == 0 && len(out) > 0 { // ipv4_dst_ops is learned from the first route met where kallsyms hides it
		r.ipv4Ops, err = r.m.u64(out[0].addr + r.l.dstOps)
	}
	return out, err
}

// addOffList adds the routes in use that are on no uncached list. Those of IPv6 belong to any namespace, also to one that is being dismantled; those
// of IPv4 are skipped as long as ipv4_dst_ops is unknown.
func (r *Reader) addOffList(net Net, v6 bool, listed []dst) ([]dst, error) {
	ops := map[uint64]bool{}
	var any uint64
	if v6 {
		any = uint64(net) + r.l.net6Ops
		nets, err := r.nets()
		if err != nil {
			return listed, err
		}
		for _, n := range nets {
			ops[uint64(n)+r.l.net6Ops] = true
		}
	} else if any = r.ipv4Ops; any == 0 {
		return listed, nil
	}
	ops[any] = true
	cache, err := r.m.u64(any + r.l.opsCache)
	if err != nil {
		return listed, err
	}
	slots, err := r.slots(cache)
	if err != nil {
		return listed, err
	}
	known := map[uint64]bool{}
	for _, d := range listed {
		known[d.addr] = true
	}
	reqs := make([]request, 0, len(slots))
	for _, a := range slots {
		reqs = append(reqs, request{a + r.l.dstOps, 8})
	}
	err = r.m.each(reqs, func(i int, data []byte) {
		if data != nil && ops[le.Uint64(data)] && !known[slots[i]] {
			listed = append(listed, dst{addr: slots[i], v6: v6, where: "no list"})
		}
	})
	return listed, err
}

// describe reads the routes and tallies those in use that pin the device.
func (r *Reader) describe(dsts []dst, dev uint64, h *tally) error {
	reqs := make([]request, 0, len(dsts)*2)
	for _, d := range dsts {
		reqs = append(reqs, request{d.addr + r.l.dstCnt, 4}, request{d.addr + r.l.dstDev, 8})
	}
	err := r.m.each(reqs, func(i int, data []byte) {
		switch d := &dsts[i/2]; {
		case data == nil:
		case i%2 == 0:
			d.refs = r.count(le.Uint32(data))
		default:
			d.dev = le.Uint64(data)
		}
	})
	if err != nil {
		return err
	}
	for i := range dsts {
		d := &dsts[i]
		if d.refs <= 0 {
			continue
		}
		if !d.v6 {
			if d.dev == dev {
				d.text = r.text4(d)
				h.add("ipv4 dst (dst.dev)", d)
			}
			continue
		}
		// A route can go away between the reads; what can't be read then pins nothing any more.
		if idev, err := r.m.u64(d.addr + r.l.rt6Idev); err == nil && idev != 0 {
			d.idev, _ = r.m.u64(idev + r.l.idevDev)
		}
		if from, err := r.m.u64(d.addr + r.l.rt6From); err == nil && from != 0 {
			d.via = r.nexthopDev(from)
		}
		if d.dev != dev && d.idev != dev && d.via != dev {
			continue
		}
		d.text = r.text6(d)
		if d.dev == dev {
			h.add("ipv6 dst (dst.dev)", d)
		}
		if d.idev == dev {
			h.add("ipv6 dst (rt6i_idev)", d)
		}
		if d.via == dev {
			h.add("ipv6 dst (from->nexthop)", d)
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

// nexthopDev returns the device of a fib6_info's nexthop, also when that is an object. A group is skipped: remove_nexthop_from_groups has taken a
// removed device's members out of it.
func (r *Reader) nexthopDev(from uint64) uint64 {
	nh, err := r.m.u64(from + r.l.fibNh)
	if err != nil {
		return 0
	}
	at := from + r.l.fibNexthop
	if nh != 0 {
		group, err := r.m.read(nh+r.l.nhGroup, 1)
		if err != nil || group[0] != 0 {
			return 0
		}
		info, err := r.m.u64(nh + r.l.nhInfo)
		if err != nil || info == 0 {
			return 0
		}
		at = info + r.l.infoDev
	}
	dev, _ := r.m.u64(at)
	return dev
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
		to, flags, d.refs, d.where, r.name(d.dev), r.name(d.idev), r.name(d.via))
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
	return fmt.Sprintf("type %s%s flags %#x refs %d on %s, dst.dev %s", typ, via, flags, d.refs, d.where, r.name(d.dev))
}

func (r *Reader) name(dev uint64) string {
	if dev == 0 {
		return "none"
	}
	b, err := r.m.read(dev+r.l.devName, nameSize)
	if err != nil {
		return "?"
	}
	return cstring(b)
}

// tally counts holders by kind, in the order in which the kinds were met.
type tally struct{ holders []invariants.Holder }

func (t *tally) add(kind string, d *dst) {
	for i := range t.holders {
		h := &t.holders[i]
		if h.Kind != kind {
			continue
		}
		h.Count++
		if h.Count <= maxDetails {
			h.Detail += "; " + d.text
		} else if h.Count == maxDetails+1 {
			h.Detail += "; ..."
		}
		return
	}
	t.holders = append(t.holders, invariants.Holder{Kind: kind, Count: 1, Detail: d.text})
}
