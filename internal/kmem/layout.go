package kmem

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// layout holds where this kernel keeps the fields; looked up once, because parsing BTF takes seconds in an emulated guest.
type layout struct {
	netList, netInum, netDevs, net6Ops                   uint64
	netTemplates                                         []uint64 // of a namespace: the dsts that it has for itself
	opsCache                                             uint64
	devList, devName, devIndex, devReg, devState, devCnt uint64
	devPercpu                                            bool // devCnt is a pointer to per-CPU counters (CONFIG_PCPU_DEV_REFCNT)
	linkwatch                                            uint64
	devTracker                                           uint64 // 0 where holders are not tracked
	dstDev, dstOps, dstCnt                               uint64
	dstRcuref                                            bool // the count is an rcuref_t: value + 1 (since 6.4)
	idevDev                                              uint64
	rt6Idev, rt6From, rt6Flags, rt6Addr, rt6Plen         uint64
	rt4Flags, rt4Type, rt4Gw                             uint64
	uncached6, uncached4                                 uint64 // dst to its node in an uncached list
	uncachedHead, quarantine                             uint64
	hasQuarantine                                        bool // 6.1 moves routes of removed devices to a second list
	fibNh, fibNexthop, nhGroup, nhInfo, infoDev          uint64
	arrayPptrs                                           uint64
	taskRunqueue                                         [4]uint64 // task.se.cfs_rq, cfs_rq.rq, rq.cpu, and runqueues in the per-CPU section
	taskNsproxy, nsproxyNet                              uint64
	slabCache, cacheSize, cacheOrder, cachePad, pageSize uint64
	percpu6, percpu4                                     uint64 // the uncached lists in the per-CPU section

	runqueueErr error // why taskRunqueue can't be used

	tables    tableLayout
	tablesErr error // why the tables that hold devices can't be read; routes still can
	audit     auditLayout
	auditErr  error // why a ledger can't be read
}

// tableLayout is where the tables are that hold devices beside routes.
type tableLayout struct {
	netLo, devInet4, devInet6                           uint64
	inet4Refs, inet4Parms, inet6Refs, inet6Parms        uint64
	parmsTable, tableHash, tableProxies                 uint64
	hashHeads, hashShift                                uint64
	neighLink, neighDev, neighRefs, neighState, neighTo uint64
	proxyLink, proxyDev, proxyTo                        uint64
	netNexthops, infoLink, infoParent                   uint64
	nhID, nhRefs                                        uint64
	devRoutes                                           uint64 // the IPv4 nexthops on a device
	fibLink, fibParent, fibUsers                        uint64
	hasDevRoutes                                        bool // before 6.13 they are in a hash of all devices, which is not read
}

// auditLayout is where the owners of cached routes are, and the namespace's own count.
type auditLayout struct {
	netCount, netPassive                uint64
	privFlags, l3master                 uint64
	fib6Node, fib6Nh, nh6Pcpu           uint64
	idevAddrs, ifaList, ifaRoute        uint64
	info6, info4                        uint64 // nh_info to its fib6_nh and fib_nh
	nhGrp, grpNum, grpEntries, grpEntry uint64
	entryNh                             uint64
	nhcOutput, nhcInput, nhcExceptions  uint64
	fnheIn, fnheOut                     uint64
}

// resolver looks fields up and keeps the first failure.
type resolver struct {
	spec *btf.Spec
	err  error
}

func (r *resolver) find(typ, path string) (uint64, error) {
	var s *btf.Struct
	if err := r.spec.TypeByName(typ, &s); err != nil {
		return 0, fmt.Errorf("struct %s: %w", typ, err)
	}
	var t btf.Type = s
	off := uint64(0)
	for _, name := range strings.Split(path, ".") {
		o, next, ok := member(btf.UnderlyingType(t), name)
		if !ok {
			return 0, fmt.Errorf("struct %s has no field %s", typ, path)
		}
		off, t = off+o, next
	}
	return off, nil
}

// off returns the offset of the first of the fields that exists.
func (r *resolver) off(typ string, paths ...string) (off uint64) {
	var err error
	for _, path := range paths {
		if off, err = r.find(typ, path); err == nil {
			return off
		}
	}
	if r.err == nil {
		r.err = err
	}
	return 0
}

func member(t btf.Type, name string) (uint64, btf.Type, bool) {
	var ms []btf.Member
	switch s := t.(type) {
	case *btf.Struct:
		ms = s.Members
	case *btf.Union:
		ms = s.Members
	}
	for _, m := range ms {
		if m.Name == name {
			return uint64(m.Offset.Bytes()), m.Type, true
		}
		if m.Name == "" {
			if o, next, ok := member(btf.UnderlyingType(m.Type), name); ok {
				return uint64(m.Offset.Bytes()) + o, next, true
			}
		}
	}
	return 0, nil, false
}

// percpu returns where per-CPU variables lie in their section; 0 for one that BTF doesn't list.
func (r *resolver) percpu(names ...string) []uint64 {
	out := make([]uint64, len(names))
	var section *btf.Datasec
	if r.spec.TypeByName(".data..percpu", &section) != nil && r.spec.TypeByName(".data.percpu", &section) != nil {
		return out
	}
	for _, v := range section.Vars {
		for i, name := range names {
			if bv, ok := v.Type.(*btf.Var); ok && bv.Name == name {
				out[i] = uint64(v.Offset)
			}
		}
	}
	return out
}

func loadLayout() (*layout, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, err
	}
	return newLayout(spec)
}

func newLayout(spec *btf.Spec) (*layout, error) {
	r := &resolver{spec: spec}
	l := &layout{}
	l.netList, l.netInum = r.off("net", "list"), r.off("net", "ns.inum")
	l.netDevs, l.net6Ops = r.off("net", "dev_base_head"), r.off("net", "ipv6.ip6_dst_ops")
	// The last two only with CONFIG_IPV6_MULTIPLE_TABLES.
	for _, name := range []string{"ip6_null_entry", "ip6_prohibit_entry", "ip6_blk_hole_entry"} {
		if off, err := r.find("net", "ipv6."+name); err == nil {
			l.netTemplates = append(l.netTemplates, off)
		}
	}
	l.opsCache = r.off("dst_ops", "kmem_cachep")

	l.devList, l.devName = r.off("net_device", "dev_list"), r.off("net_device", "name")
	l.devIndex, l.devReg = r.off("net_device", "ifindex"), r.off("net_device", "reg_state")
	l.devState = r.off("net_device", "state")
	l.devCnt = r.off("net_device", "pcpu_refcnt", "dev_refcnt")
	_, err := r.find("net_device", "pcpu_refcnt")
	l.devPercpu = err == nil
	l.devTracker, _ = r.find("net_device", "refcnt_tracker") // only with CONFIG_NET_DEV_REFCNT_TRACKER has it a size
	l.linkwatch = r.enum("netdev_state_t", "__LINK_STATE_LINKWATCH_PENDING")

	l.dstDev, l.dstOps = r.off("dst_entry", "dev", "dev_rcu"), r.off("dst_entry", "ops")
	l.dstCnt = r.off("dst_entry", "__rcuref.refcnt", "__refcnt")
	_, err = r.find("dst_entry", "__rcuref.refcnt")
	l.dstRcuref = err == nil
	l.idevDev = r.off("inet6_dev", "dev")
	l.rt6Idev, l.rt6From, l.rt6Flags = r.off("rt6_info", "rt6i_idev"), r.off("rt6_info", "from"), r.off("rt6_info", "rt6i_flags")
	l.rt6Addr, l.rt6Plen = r.off("rt6_info", "rt6i_dst.addr"), r.off("rt6_info", "rt6i_dst.plen")
	l.rt4Flags, l.rt4Type, l.rt4Gw = r.off("rtable", "rt_flags"), r.off("rtable", "rt_type"), r.off("rtable", "rt_gw4")
	l.uncached6, l.uncached4 = r.off("rt6_info", "rt6i_uncached", "dst.rt_uncached"), r.off("rtable", "rt_uncached", "dst.rt_uncached")
	l.uncachedHead = r.off("uncached_list", "head")
	if off, err := r.find("uncached_list", "quarantine"); err == nil {
		l.quarantine, l.hasQuarantine = off, true
	}
	l.fibNh = r.off("fib6_info", "nh")
	l.fibNexthop = r.off("fib6_info", "fib6_nh") + r.off("fib6_nh", "nh_common.nhc_dev")
	l.nhGroup, l.nhInfo = r.off("nexthop", "is_group"), r.off("nexthop", "nh_info")
	l.infoDev = r.off("nh_info", "fib6_nh.nh_common.nhc_dev")

	l.arrayPptrs = r.off("bpf_array", "pptrs")
	// Only for a kernel whose symbols are hidden, and only with CONFIG_FAIR_GROUP_SCHED.
	group := &resolver{spec: spec}
	l.taskRunqueue[0], l.taskRunqueue[1], l.taskRunqueue[2] = group.off("task_struct", "se.cfs_rq"), group.off("cfs_rq", "rq"), group.off("rq", "cpu")
	l.runqueueErr = group.err
	l.taskNsproxy, l.nsproxyNet = r.off("task_struct", "nsproxy"), r.off("nsproxy", "net_ns")
	l.slabCache, l.cacheSize, l.cacheOrder = r.off("slab", "slab_cache"), r.off("kmem_cache", "size"), r.off("kmem_cache", "oo.x")
	l.cachePad, _ = r.find("kmem_cache", "red_left_pad") // only with CONFIG_SLUB_DEBUG
	l.pageSize = r.size("page")
	vars := r.percpu("runqueues", "rt6_uncached_list", "rt_uncached_list")
	l.taskRunqueue[3], l.percpu6, l.percpu4 = vars[0], vars[1], vars[2]
	l.tables, l.tablesErr = newTableLayout(spec)
	l.audit, l.auditErr = newAuditLayout(spec)
	return l, r.err
}

func newTableLayout(spec *btf.Spec) (l tableLayout, err error) {
	r := &resolver{spec: spec}
	l.netLo, l.devInet4, l.devInet6 = r.off("net", "loopback_dev"), r.off("net_device", "ip_ptr"), r.off("net_device", "ip6_ptr")
	l.inet4Refs, l.inet4Parms = r.off("in_device", "refcnt"), r.off("in_device", "arp_parms")
	l.inet6Refs, l.inet6Parms = r.off("inet6_dev", "refcnt"), r.off("inet6_dev", "nd_parms")
	l.parmsTable, l.tableHash, l.tableProxies = r.off("neigh_parms", "tbl"), r.off("neigh_table", "nht"), r.off("neigh_table", "phash_buckets")
	l.hashHeads, l.hashShift = r.off("neigh_hash_table", "hash_heads", "hash_buckets"), r.off("neigh_hash_table", "hash_shift")
	l.neighLink, l.neighDev = r.off("neighbour", "hash", "next"), r.off("neighbour", "dev")
	l.neighRefs, l.neighState, l.neighTo = r.off("neighbour", "refcnt"), r.off("neighbour", "nud_state"), r.off("neighbour", "primary_key")
	l.proxyLink, l.proxyDev, l.proxyTo = r.off("pneigh_entry", "next"), r.off("pneigh_entry", "dev"), r.off("pneigh_entry", "key")
	l.netNexthops, l.infoLink, l.infoParent = r.off("net", "nexthop.devhash"), r.off("nh_info", "dev_hash"), r.off("nh_info", "nh_parent")
	l.nhID, l.nhRefs = r.off("nexthop", "id"), r.off("nexthop", "refcnt")
	if off, err := r.find("net_device", "fib_nh_head"); err == nil {
		l.devRoutes, l.hasDevRoutes = off, true
		l.fibLink, l.fibParent, l.fibUsers = r.off("fib_nh", "nh_hash"), r.off("fib_nh", "nh_parent"), r.off("fib_info", "fib_treeref")
	}
	if r.err == nil && l.neighLink|l.proxyLink != 0 {
		r.err = fmt.Errorf("neighbours are not linked by their first word")
	}
	return l, r.err
}

// newAuditLayout looks up what tells which nexthop caches a route.
func newAuditLayout(spec *btf.Spec) (l auditLayout, err error) {
	r := &resolver{spec: spec}
	l.netCount = r.off("net", "ns.count.refs.counter", "ns.__ns_ref.refs.counter")
	l.netPassive = r.off("net", "passive.refs.counter")
	l.privFlags, l.l3master = r.off("net_device", "priv_flags"), r.enum("netdev_priv_flags", "IFF_L3MDEV_MASTER")
	l.fib6Node, l.fib6Nh = r.off("fib6_info", "fib6_node"), r.off("fib6_info", "fib6_nh")
	l.nh6Pcpu = r.off("fib6_nh", "rt6i_pcpu")
	l.idevAddrs, l.ifaList, l.ifaRoute = r.off("inet6_dev", "addr_list"), r.off("inet6_ifaddr", "if_list"), r.off("inet6_ifaddr", "rt")
	l.info6, l.info4 = r.off("nh_info", "fib6_nh"), r.off("nh_info", "fib_nh")
	l.nhGrp = r.off("nexthop", "nh_grp")
	l.grpNum, l.grpEntries, l.grpEntry = r.off("nh_group", "num_nh"), r.off("nh_group", "nh_entries"), r.size("nh_grp_entry")
	l.entryNh = r.off("nh_grp_entry", "nh")
	l.nhcOutput, l.nhcInput, l.nhcExceptions = r.off("fib_nh_common", "nhc_pcpu_rth_output"), r.off("fib_nh_common", "nhc_rth_input"), r.off("fib_nh_common", "nhc_exceptions")
	l.fnheIn, l.fnheOut = r.off("fib_nh_exception", "fnhe_rth_input"), r.off("fib_nh_exception", "fnhe_rth_output")
	if r.err == nil && r.off("fib_nh_exception", "fnhe_next")|r.off("fib_nh", "nh_common")|r.off("fib6_nh", "nh_common")|r.off("fnhe_hash_bucket", "chain") != 0 {
		r.err = fmt.Errorf("nexthops or their exceptions are not linked by their first word")
	}
	return l, r.err
}

func (r *resolver) size(typ string) uint64 {
	var s *btf.Struct
	if err := r.spec.TypeByName(typ, &s); err != nil {
		if r.err == nil {
			r.err = fmt.Errorf("struct %s: %w", typ, err)
		}
		return 0
	}
	return uint64(s.Size)
}

func (r *resolver) enum(typ, name string) uint64 {
	var e *btf.Enum
	err := r.spec.TypeByName(typ, &e)
	if err == nil {
		for _, v := range e.Values {
			if v.Name == name {
				return v.Value
			}
		}
	}
	if r.err == nil {
		r.err = fmt.Errorf("enum %s has no %s (%w)", typ, name, err)
	}
	return 0
}
