package model

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// fib is all routing tables of one family. A node holds the entries of one prefix of one table in the kernel's order. Entries are never changed once
// they are in a table but replaced, so that states can share them.
type fib[R any] struct {
	own    *owner
	tables map[uint32]*table[R]
	index  map[ref]*keySet
}

type table[R any] struct {
	own   *owner
	nodes map[netip.Prefix][]*R
	count [129]int32 // nodes of each prefix length
}

// routeKey names a node.
type routeKey struct {
	table uint32
	dst   netip.Prefix
}

// ref is something that routes refer to: a device, a nexthop object or a preferred source address.
type ref struct {
	dev int
	nh  uint32
	src netip.Addr
}

// keySet is the nodes that have entries with some reference, with how many.
type keySet struct {
	own  *owner
	keys map[routeKey]int32
}

// referrer is what the entries of a fib can do: name what they refer to.
type referrer interface{ refs(yield func(ref)) }

func newFIB[R any](own *owner) *fib[R] {
	return &fib[R]{own: own, tables: map[uint32]*table[R]{}, index: map[ref]*keySet{}}
}

func (f *fib[R]) clone(own *owner) *fib[R] {
	return &fib[R]{own: own, tables: maps.Clone(f.tables), index: maps.Clone(f.index)}
}

// create makes sure that a table exists, as fib_new_table does.
func (f *fib[R]) create(id uint32) *table[R] {
	t := f.tables[id]
	switch {
	case t == nil:
		t = &table[R]{own: f.own, nodes: map[netip.Prefix][]*R{}}
	case t.own != f.own:
		t = &table[R]{own: f.own, nodes: maps.Clone(t.nodes), count: t.count}
	default:
		return t
	}
	f.tables[id] = t
	return t
}

func (f *fib[R]) node(k routeKey) []*R {
	if t := f.tables[k.table]; t != nil {
		return t.nodes[k.dst]
	}
	return nil
}

// insert puts an entry before position i of a node.
func (f *fib[R]) insert(k routeKey, i int, r *R) {
	old := f.node(k)
	list := make([]*R, 0, len(old)+1)
	list = append(append(append(list, old[:i]...), r), old[i:]...)
	f.store(k, list)
	f.count(k, r, 1)
}

// replace puts an entry in the place of another.
func (f *fib[R]) replace(k routeKey, i int, r *R) {
	list := slices.Clone(f.node(k))
	old := list[i]
	list[i] = r
	f.store(k, list)
	f.count(k, r, 1)
	f.count(k, old, -1)
}

// remove takes entry i out of a node.
func (f *fib[R]) remove(k routeKey, i int) {
	old := f.node(k)
	r := old[i]
	list := make([]*R, 0, len(old)-1)
	f.store(k, append(append(list, old[:i]...), old[i+1:]...))
	f.count(k, r, -1)
}

// removeIf takes all entries out of a node for which gone holds.
func (f *fib[R]) removeIf(k routeKey, gone func(*R) bool) {
	for i := len(f.node(k)) - 1; i >= 0; i-- {
		if gone(f.node(k)[i]) {
			f.remove(k, i)
		}
	}
}

func (f *fib[R]) store(k routeKey, list []*R) {
	t := f.create(k.table)
	_, had := t.nodes[k.dst]
	switch {
	case len(list) == 0:
		delete(t.nodes, k.dst)
		if had {
			t.count[k.dst.Bits()]--
		}
	default:
		t.nodes[k.dst] = list
		if !had {
			t.count[k.dst.Bits()]++
		}
	}
}

// count adds n to the references of an entry.
func (f *fib[R]) count(k routeKey, r *R, n int32) {
	any(r).(referrer).refs(func(to ref) {
		set := f.index[to]
		switch {
		case set == nil:
			set = &keySet{own: f.own, keys: map[routeKey]int32{}}
			f.index[to] = set
		case set.own != f.own:
			set = &keySet{own: f.own, keys: maps.Clone(set.keys)}
			f.index[to] = set
		}
		if set.keys[k] += n; set.keys[k] == 0 {
			delete(set.keys, k)
			if len(set.keys) == 0 {
				delete(f.index, to)
			}
		}
	})
}

// keysOf returns the nodes that have an entry with a reference. The caller may change the fib meanwhile.
func (f *fib[R]) keysOf(to ref) []routeKey {
	set := f.index[to]
	if set == nil {
		return nil
	}
	return slices.Collect(maps.Keys(set.keys))
}

// matches yields the nodes of a table that match an address, longest prefix first.
func (t *table[R]) matches(a netip.Addr) iter.Seq2[netip.Prefix, []*R] {
	return func(yield func(netip.Prefix, []*R) bool) {
		for bits := a.BitLen(); bits >= 0; bits-- {
			if t.count[bits] == 0 {
				continue
			}
			p, _ := a.Prefix(bits)
			if list := t.nodes[p]; list != nil && !yield(p, list) {
				return
			}
		}
	}
}
