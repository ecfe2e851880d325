package kmem

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

const (
	maxDsts      = 200        // how many routes a Memory lists
	maxMembers   = 1 << 10    // of a nexthop group
	exceptions   = 1 << 11    // FNHE_HASH_SIZE
	rtfCache     = 0x01000000 // RTF_CACHE: an exception of an IPv6 route
	blackholeDev = "blackhole_dev"
)

// Audit reads what a reference ledger of the namespace needs. Call it after a barrier: else what RCU callbacks have still to release is counted.
// A fresh namespace has no routes in use yet, and they are not looked for.
func (r *Reader) Audit(net Net, fresh bool) (*invariants.Memory, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.l.auditErr != nil {
		return nil, r.l.auditErr
	}
	if r.l.tablesErr != nil {
		return nil, r.l.tablesErr
	}
	devs, err := r.devices(net)
	if err != nil {
		return nil, err
	}
	a := &audit{Reader: r, net: net, mem: &invariants.Memory{Devices: devs}, dev: map[uint64]*invariants.Device{}, pins: map[uint64]invariants.Pin{}}
	for i := range a.mem.Devices {
		a.dev[a.mem.Devices[i].Addr] = &a.mem.Devices[i]
	}
	refs, err := r.m.u32(uint64(net) + r.l.audit.netCount)
	if err != nil {
		return nil, err
	}
	a.mem.NetRefs = int(int32(refs))
	if err := a.neighbours(); err != nil {
		return nil, err
	}
	if err := a.nexthopObjects(); err != nil {
		return nil, err
	}
	if fresh {
		return a.mem, nil
	}
	slabs := a.slabs()
	for i, v6 := range families {
		if err := a.routes(v6, slabs[i]); err != nil {
			return nil, err
		}
	}
	return a.mem, nil
}

// families are IPv6 and IPv4.
var families = [2]bool{true, false}

// slabs searches the slabs for the routes of both families; where it can't, that is noted: the lists can still be read.
func (a *audit) slabs() (out [2][]uint64) {
	var searches []search
	var of []int
	for i, v6 := range families {
		s, err := a.search(a.net, v6)
		if err != nil {
			a.mem.Trouble = append(a.mem.Trouble, err.Error())
			continue
		}
		searches, of = append(searches, s), append(of, i)
	}
	if len(searches) == 0 {
		return out
	}
	found, err := a.inSlabs(searches...)
	if err != nil {
		a.mem.Trouble = append(a.mem.Trouble, err.Error())
		return out
	}
	for n, i := range of {
		out[i] = found[n]
	}
	return out
}

// audit is one reading.
type audit struct {
	*Reader
	net     Net
	mem     *invariants.Memory
	dev     map[uint64]*invariants.Device // the namespace's devices by address
	pins    map[uint64]invariants.Pin     // of all devices met
	objects map[uint64]bool               // the nh_info of the namespace's nexthop objects that have a device
}

// neighbours counts the neighbour entries of each device.
func (a *audit) neighbours() error {
	if err := a.findNeighbourTables(a.net); err != nil {
		return err
	}
	for table := range a.neigh {
		if a.neigh[table] == 0 {
			continue
		}
		heads, n, err := a.neighbourHash(table)
		if err != nil {
			return err
		}
		err = a.visit("a neighbour table's chain", heads, n, a.l.tables.neighDev, func(_, dev uint64) {
			if d := a.dev[dev]; d != nil {
				d.Neighbours++
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *audit) nexthopObjects() error {
	a.objects = map[uint64]bool{}
	t := &a.l.tables
	heads, err := a.m.u64(uint64(a.net) + t.netNexthops)
	if err != nil || heads == 0 {
		return err
	}
	return a.visit("a chain of nexthop objects", heads, devBuckets, 0, func(node, _ uint64) { a.objects[node-t.infoLink] = true })
}

// routes adds the routes in use of one family.
func (a *audit) routes(v6 bool, slabs []uint64) error {
	dsts, err := a.withListed(v6, slabs)
	if err != nil {
		return err
	}
	if err := a.resolve(dsts); err != nil {
		return err
	}
	dsts = slices.DeleteFunc(dsts, func(d dst) bool { return d.refs <= 0 || d.dev == 0 && d.idev == 0 })
	if err := a.name(dsts); err != nil {
		return err
	}
	// The routes of a namespace are those that pin one of its devices; one that pins a device that is no more may be anybody's and is shown.
	dsts = slices.DeleteFunc(dsts, func(d dst) bool { return !a.ours(d.dev) && !a.ours(d.idev) && !a.ours(d.via) })
	owners := map[uint64]string{}
	removed := map[uint64]bool{}
	if v6 {
		owners, removed, err = a.owners6(dsts)
	} else if len(dsts) > 0 {
		owners, err = a.owners4()
	}
	if err != nil {
		return err
	}
	detached := map[[2]uint64]bool{}
	for i := range dsts {
		d := &dsts[i]
		if dev := a.dev[d.dev]; dev != nil {
			dev.Dsts++
		}
		if removed[d.from] && a.dev[d.via] != nil && !detached[[2]uint64{d.from, d.via}] {
			detached[[2]uint64{d.from, d.via}] = true
			a.dev[d.via].Detached++
		}
		if dev := a.dev[d.idev]; dev != nil && d.idevOld && !detached[[2]uint64{d.idevAt, d.idev}] {
			detached[[2]uint64{d.idevAt, d.idev}] = true
			dev.Detached++
		}
		a.add(d, owners[d.addr], removed[d.from])
	}
	return nil
}

func (a *audit) ours(dev uint64) bool {
	if dev == 0 {
		return false
	}
	return a.dev[dev] != nil || a.pins[dev].Reg > 1
}

// name reads the names and states of the devices that the routes pin.
func (a *audit) name(dsts []dst) error {
	var addrs []uint64
	for i := range dsts {
		for _, dev := range []uint64{dsts[i].dev, dsts[i].idev, dsts[i].via} {
			if _, known := a.pins[dev]; dev != 0 && !known {
				a.pins[dev] = invariants.Pin{}
				addrs = append(addrs, dev)
			}
		}
	}
	devs, err := a.readDevices(addrs)
	if err != nil {
		return err
	}
	for i, d := range devs {
		switch {
		case d == nil || d.State > maxRegState:
			a.pins[addrs[i]] = invariants.Pin{Name: "freed", Reg: maxRegState + 1}
		case d.Name == blackholeDev:
		default:
			a.pins[addrs[i]] = invariants.Pin{Name: d.Name, Reg: d.State}
		}
	}
	return nil
}

// add lists a route unless a nexthop has it in the ordinary way.
func (a *audit) add(d *dst, owner string, removed bool) {
	out := invariants.Dst{Family: model.IPv6, Where: d.where, Refs: d.refs, Dev: a.pins[d.dev], Idev: a.pins[d.idev]}
	if !d.v6 {
		out.Family = model.IPv4
	}
	if removed {
		out.Via = a.pins[d.via]
	}
	if d.where == invariants.Nowhere {
		switch {
		case owner != "":
			out.Where = owner
		case d.v6 && d.flags&rtfCache != 0 && d.from != 0 && !removed:
			out.Where = invariants.InException
		case d.from == 0 && d.idev == 0 && a.vrf(d.dev):
			out.Where = invariants.OfVRF
		case !d.v6 && !a.l.tables.hasDevRoutes:
			out.Where = invariants.Unknown
		}
	}
	if out.Where == invariants.InNexthop || out.Where == invariants.OfVRF || out.Where == invariants.Unknown {
		if out.Dev.Reg == 1 && (out.Idev == invariants.Pin{} || out.Idev.Reg == 1) {
			return
		}
	}
	if len(a.mem.Dsts) >= maxDsts {
		a.mem.More++
		return
	}
	out.Text = a.text4or6(d)
	a.mem.Dsts = append(a.mem.Dsts, out)
}

func (a *audit) text4or6(d *dst) string {
	if d.v6 {
		return a.text6(d)
	}
	return a.text4(d)
}

// vrf tells a VRF device: net_device.priv_flags has IFF_L3MDEV_MASTER.
func (a *audit) vrf(dev uint64) bool {
	w, err := a.m.read(dev+a.l.audit.privFlags, 4)
	return err == nil && uint64(le.Uint32(w))&a.l.audit.l3master != 0
}

// owners6 finds which IPv6 routes are in the per-CPU caches of their nexthops, and which fib6_info they keep that are in no table any more.
func (a *audit) owners6(dsts []dst) (owners map[uint64]string, removed map[uint64]bool, err error) {
	owners, removed = map[uint64]string{}, map[uint64]bool{}
	l := &a.l.audit
	froms := map[uint64]bool{}
	for _, d := range dsts {
		if d.from != 0 {
			froms[d.from] = true
		}
	}
	list := slices.Sorted(maps.Keys(froms))
	var addrs []uint64
	for _, f := range list {
		addrs = append(addrs, f+l.fib6Node, f+a.l.fibNh)
	}
	w, err := a.m.words(addrs)
	if err != nil {
		return nil, nil, err
	}
	var nhs []uint64 // fib6_nh
	for i, f := range list {
		removed[f] = w[2*i] == 0
		obj := w[2*i+1]
		if obj == 0 {
			nhs = append(nhs, f+l.fib6Nh)
			continue
		}
		infos, err := a.infosOf(obj)
		if err != nil {
			return nil, nil, err
		}
		for _, info := range infos {
			nhs = append(nhs, info+l.info6)
		}
		// A removed route that uses a nexthop object keeps the object, not the device; the device only if the object is removed as well.
		if removed[f] && !slices.ContainsFunc(infos, func(i uint64) bool { return !a.objects[i] }) {
			removed[f] = false
		}
	}
	mark := func(nhs []uint64) error {
		cached, err := a.perCPU(nhs, l.nh6Pcpu)
		for _, rt := range cached {
			owners[rt] = invariants.InNexthop
		}
		return err
	}
	if err := mark(nhs); err != nil {
		return nil, nil, err
	}
	if slices.ContainsFunc(dsts, func(d dst) bool { return d.where == invariants.Nowhere && owners[d.addr] == "" }) {
		if nhs, err = a.addressRoutes(); err == nil {
			// So does what a nexthop object caches for a route that is gone.
			for info := range a.objects {
				nhs = append(nhs, info+l.info6)
			}
			err = mark(nhs)
		}
	}
	return owners, removed, err
}

// addressRoutes returns the fib6_nh of the local routes that addresses keep, also when a user has deleted the route: fib6_drop_pcpu_from then leaves no
// way from the cached dst back to it, but it goes with the address.
func (a *audit) addressRoutes() (nhs []uint64, err error) {
	l := &a.l.audit
	for dev := range a.dev {
		idev, err := a.m.u64(dev + a.l.tables.devInet6)
		if err != nil {
			return nil, err
		}
		if idev == 0 {
			continue
		}
		nodes, err := a.m.ring("the IPv6 addresses of a device", idev+l.idevAddrs, int64(l.ifaRoute)-int64(l.ifaList), 8, maxChain)
		if err != nil {
			return nil, err
		}
		for _, n := range nodes {
			if rt := le.Uint64(n.data); rt != 0 {
				nhs = append(nhs, rt+l.fib6Nh)
			}
		}
	}
	return nhs, nil
}

// infosOf returns the nh_info of a nexthop object, of each member for a group.
func (a *audit) infosOf(obj uint64) (infos []uint64, err error) {
	l := &a.l.audit
	group, err := a.m.read(obj+a.l.nhGroup, 1)
	if err != nil {
		return nil, nil // gone meanwhile
	}
	members := []uint64{obj}
	if group[0] != 0 {
		grp, err := a.m.u64(obj + l.nhGrp)
		if err != nil {
			return nil, nil
		}
		num, err := a.m.read(grp+l.grpNum, 2)
		if err != nil {
			return nil, nil
		}
		members = members[:0]
		var addrs []uint64
		for i := range uint64(min(le.Uint16(num), maxMembers)) {
			addrs = append(addrs, grp+l.grpEntries+i*l.grpEntry+l.entryNh)
		}
		if members, err = a.m.words(addrs); err != nil {
			return nil, err
		}
	}
	var addrs []uint64
	for _, m := range members {
		addrs = append(addrs, field(m, a.l.nhInfo))
	}
	return a.m.words(addrs)
}

// perCPU reads a per-CPU pointer of each object and returns what it points to on all CPUs.
func (a *audit) perCPU(objects []uint64, off uint64) (out []uint64, err error) {
	addrs := make([]uint64, len(objects))
	for i, o := range objects {
		addrs[i] = field(o, off)
	}
	ptrs, err := a.m.words(addrs)
	if err != nil {
		return nil, err
	}
	addrs = addrs[:0]
	for _, p := range ptrs {
		for _, cpu := range a.cpuOff {
			if p != 0 {
				addrs = append(addrs, p+cpu)
			}
		}
	}
	return a.m.words(addrs)
}

// owners4 finds the IPv4 routes that the nexthops of the namespace's devices cache. It needs the kernel to list these by device (since 6.13).
func (a *audit) owners4() (map[uint64]string, error) {
	owners := map[uint64]string{}
	l, t := &a.l.audit, &a.l.tables
	if !t.hasDevRoutes {
		return owners, nil
	}
	var nhs []uint64 // fib_nh, which starts with its fib_nh_common
	for dev := range a.dev {
		nodes, err := a.m.chain("the IPv4 nexthops of a device", dev+t.devRoutes, 0, 0, maxChain)
		if err != nil {
			return nil, err
		}
		for _, n := range nodes {
			nhs = append(nhs, n.addr-t.fibLink)
		}
	}
	for info := range a.objects {
		nhs = append(nhs, info+l.info4)
	}
	cached, err := a.perCPU(nhs, l.nhcOutput)
	if err != nil {
		return nil, err
	}
	addrs := make([]uint64, 0, 2*len(nhs))
	for _, nh := range nhs {
		addrs = append(addrs, nh+l.nhcInput, nh+l.nhcExceptions)
	}
	w, err := a.m.words(addrs)
	if err != nil {
		return nil, err
	}
	for i := range nhs {
		cached = append(cached, w[2*i])
		if w[2*i+1] == 0 {
			continue
		}
		var fnhe []uint64
		err := a.visit("the exceptions of an IPv4 nexthop", w[2*i+1], exceptions, 0, func(node, _ uint64) { fnhe = append(fnhe, node+l.fnheIn, node+l.fnheOut) })
		if err != nil {
			return nil, err
		}
		routes, err := a.m.words(fnhe)
		if err != nil {
			return nil, err
		}
		for _, rt := range routes {
			owners[rt] = invariants.InException
		}
	}
	for _, rt := range cached {
		owners[rt] = invariants.InNexthop
	}
	delete(owners, 0)
	return owners, nil
}

// Freed tells whether the struct net at an address that was that of a namespace is gone: neither listed nor kept by passive references.
func (r *Reader) Freed(net Net, inum uint32) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	nets, err := r.nets()
	if err != nil {
		return false, err
	}
	for n, at := range nets {
		if at == net {
			return n != inum, nil // its memory is another namespace's now
		}
	}
	passive, err := r.m.u32(uint64(net) + r.l.audit.netPassive)
	if err != nil {
		return false, fmt.Errorf("read a namespace that was deleted: %w", err)
	}
	return passive == 0, nil
}
