package kmem

import (
	"fmt"
	"net/netip"
)

const (
	maxChain     = 1 << 16
	maxHashShift = 16  // neigh_hash_grow doubles a table; gc_thresh3 keeps it far below
	proxyBuckets = 16  // PNEIGH_HASHMASK + 1
	devBuckets   = 256 // NH_DEV_HASHSIZE
)

// addrBytes are the lengths of the addresses in the tables of Reader.neigh.
var addrBytes = [2]int{4, 16}

// buckets walks the chains of a hash, each node linked by its first word, and returns the nodes whose word at off is dev.
func (r *Reader) buckets(what string, heads uint64, n int, off, dev uint64) (out []uint64, err error) {
	err = r.visit(what, heads, n, off, func(node, word uint64) {
		if word == dev {
			out = append(out, node)
		}
	})
	return out, err
}

// visit walks the chains of a hash and calls f for each node with its word at off.
func (r *Reader) visit(what string, heads uint64, n int, off uint64, f func(node, word uint64)) error {
	addrs := make([]uint64, n)
	for i := range addrs {
		addrs[i] = heads + 8*uint64(i)
	}
	first, err := r.m.words(addrs)
	if err != nil {
		return err
	}
	for i, a := range addrs {
		if first[i] == 0 {
			continue
		}
		nodes, err := r.m.chain(what, a, int64(off), 8, maxChain)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			f(n.addr, le.Uint64(n.data))
		}
	}
	return nil
}

// findNeighbourTables finds arp_tbl and nd_tbl without symbols: the configuration of a loopback device refers to them. A namespace's loopback device
// can lack it (a small MTU ends IPv6 on it), so all are asked.
func (r *Reader) findNeighbourTables(net Net) error {
	if r.neigh[0] != 0 && r.neigh[1] != 0 {
		return nil
	}
	nets, err := r.nets()
	if err != nil {
		return err
	}
	candidates := []Net{net}
	for _, n := range nets {
		candidates = append(candidates, n)
	}
	t := &r.l.tables
	for i, path := range [2][2]uint64{{t.devInet4, t.inet4Parms}, {t.devInet6, t.inet6Parms}} {
		for _, n := range candidates {
			if r.neigh[i] != 0 {
				break
			}
			at := uint64(n)
			for _, off := range []uint64{t.netLo, path[0], path[1], t.parmsTable} {
				w, err := r.m.words([]uint64{field(at, off)})
				if err != nil {
					return err
				}
				at = w[0]
			}
			r.neigh[i] = at
		}
	}
	return nil // a kernel without IPv6 has no nd_tbl
}

// neighbourHash returns the chains of a neighbour table.
func (r *Reader) neighbourHash(table int) (heads uint64, n int, err error) {
	t := &r.l.tables
	hash, err := r.m.u64(r.neigh[table] + t.tableHash)
	if err != nil {
		return 0, 0, err
	}
	if heads, err = r.m.u64(hash + t.hashHeads); err != nil {
		return 0, 0, err
	}
	shift, err := r.m.u32(hash + t.hashShift)
	if err == nil && shift > maxHashShift {
		err = fmt.Errorf("the neighbour table has 2^%d chains, over the limit of 2^%d", shift, maxHashShift)
	}
	return heads, 1 << (shift & 31), err
}

// addNeighbours tallies the entries of one neighbour table, and its proxy entries. An entry that was unlinked but is still referred to is not found.
func (r *Reader) addNeighbours(net Net, table int, dev uint64, h *tally) error {
	if err := r.findNeighbourTables(net); err != nil || r.neigh[table] == 0 {
		return err
	}
	t := &r.l.tables
	heads, n, err := r.neighbourHash(table)
	if err != nil {
		return err
	}
	found, err := r.buckets("a neighbour table's chain", heads, n, t.neighDev, dev)
	for _, n := range found {
		h.add("neighbour", func() string {
			refs, _ := r.m.u32(n + t.neighRefs)
			state, _ := r.m.read(n+t.neighState, 1)
			return fmt.Sprintf("%s state %#x refs %d", r.address(n+t.neighTo, addrBytes[table]), state, refs)
		})
	}
	if err != nil {
		return err
	}
	proxies, err := r.m.u64(r.neigh[table] + t.tableProxies)
	if err != nil {
		return err
	}
	found, err = r.buckets("a proxy table's chain", proxies, proxyBuckets, t.proxyDev, dev)
	for _, n := range found {
		h.add("proxy neighbour", func() string { return r.address(n+t.proxyTo, addrBytes[table]) })
	}
	return err
}

func (r *Reader) address(at uint64, size int) string {
	b, err := r.m.read(at, size)
	if err != nil {
		return "?"
	}
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}

// addNexthops tallies the nexthop objects of a namespace.
func (r *Reader) addNexthops(net Net, dev uint64, h *tally) error {
	t := &r.l.tables
	heads, err := r.m.u64(uint64(net) + t.netNexthops)
	if err != nil || heads == 0 {
		return err
	}
	found, err := r.buckets("a chain of nexthop objects", heads, devBuckets, r.l.infoDev-t.infoLink, dev)
	for _, n := range found {
		h.add("nexthop object", func() string {
			nh, _ := r.m.u64(n - t.infoLink + t.infoParent)
			id, _ := r.m.u32(nh + t.nhID)
			refs, _ := r.m.u32(nh + t.nhRefs)
			return fmt.Sprintf("id %d refs %d", id, refs)
		})
	}
	return err
}

// addConfig tallies what is attached to the device itself: its IPv4 and IPv6 configuration and, where the kernel lists them, its IPv4 nexthops. In a
// device that was freed the pointers are stale, so nothing is looked for there.
func (r *Reader) addConfig(dev uint64, h *tally) error {
	if d, err := r.device(dev); err != nil || d == nil {
		return err
	}
	t := &r.l.tables
	w, err := r.m.words([]uint64{dev + t.devInet4, dev + t.devInet6})
	if err != nil {
		return err
	}
	for i, c := range []struct {
		kind string
		refs uint64
	}{{"in_device", t.inet4Refs}, {"inet6_dev", t.inet6Refs}} {
		if w[i] == 0 {
			continue
		}
		h.add(c.kind, func() string {
			refs, _ := r.m.u32(w[i] + c.refs)
			return fmt.Sprintf("refs %d", refs)
		})
	}
	if !t.hasDevRoutes {
		return nil
	}
	nodes, err := r.m.chain("the IPv4 nexthops of a device", dev+t.devRoutes, 0, 0, maxChain)
	for _, n := range nodes {
		h.add("ipv4 route (fib_nh)", func() string {
			info, _ := r.m.u64(n.addr - t.fibLink + t.fibParent)
			users, _ := r.m.u32(info + t.fibUsers)
			return fmt.Sprintf("fib_info of %d routes", users)
		})
	}
	return err
}
