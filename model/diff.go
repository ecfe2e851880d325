package model

import (
	"cmp"
	"slices"
)

// lcsLimit bounds the quadratic comparison of two sections; larger differences are shown without regard to order.
const lcsLimit = 1500

// Canonical brings the tables into canonical order in place and clears what is not compared. The sort is stable: the kernel's order is kept where it
// has a meaning (IPv4 addresses of a device, aliases of one IPv4 prefix and metric, entries of one IPv6 prefix and metric, rules of one preference).
func (t *Tables) Canonical() {
	for i := range t.Links {
		if !t.Links[i].Up {
			t.Links[i].Carrier = false
		}
	}
	// A device without carrier may or may not have got its route for multicast: that depends on whether link watch had run when the device came up
	// (addrconf_link_ready reads operstate). Nothing follows from it.
	t.Routes = slices.DeleteFunc(t.Routes, func(r RouteEntry) bool {
		return r.Dst == multicast6 && r.Proto == protoKernel && len(r.Legs) == 1 && r.Legs[0].Linkdown
	})
	sortStable(t.Links, func(a, b Link) int { return cmp.Compare(a.Name, b.Name) })
	sortStable(t.Addrs, compareAddrs)
	sortStable(t.Routes, compareRoutes)
	sortStable(t.Nexthops, compareNexthops)
	sortStable(t.Rules, func(a, b RuleEntry) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Pref, b.Pref))
	})
	sortStable(t.Neighs, compareNeighs)
	sortStable(t.Qdiscs, func(a, b QdiscEntry) int {
		return cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Parent, b.Parent), cmp.Compare(a.Handle, b.Handle))
	})
}

func compareAddrs(a, b Addr) int {
	fa, fb := FamilyOf(a.Prefix.Addr()), FamilyOf(b.Prefix.Addr())
	if c := cmp.Or(cmp.Compare(a.Dev, b.Dev), cmp.Compare(fa, fb)); c != 0 || fa == IPv4 {
		return c
	}
	return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
}

func compareRoutes(a, b RouteEntry) int {
	// Spelled out instead of cmp.Or, whose arguments are all evaluated: this runs for every route of every comparison.
	if c := cmp.Compare(a.Family, b.Family); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Table, b.Table); c != 0 {
		return c
	}
	if c := a.Dst.Addr().Compare(b.Dst.Addr()); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Dst.Bits(), b.Dst.Bits()); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Metric, b.Metric); c != 0 || a.Family == IPv4 || a.Dst != multicast6 {
		return c
	}
	// The routes for multicast that devices get of themselves: when several devices become ready at once, the order is that of the link watch.
	ka, kb := a.Proto == protoKernel && len(a.Legs) == 1, b.Proto == protoKernel && len(b.Legs) == 1
	if c := compareBool(kb, ka); c != 0 || !ka {
		return c
	}
	return cmp.Compare(a.Legs[0].Dev, b.Legs[0].Dev)
}

func compareNexthops(a, b NexthopEntry) int { return cmp.Compare(a.ID, b.ID) }

func compareNeighs(a, b NeighEntry) int {
	return cmp.Or(cmp.Compare(a.Dev, b.Dev), compareBool(a.Proxy, b.Proxy), a.Addr.Compare(b.Addr))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func sortStable[T any](s []T, compare func(a, b T) int) {
	if !slices.IsSortedFunc(s, compare) {
		slices.SortStableFunc(s, compare)
	}
}

// Diff compares two states and returns "- line" for what only want has and "+ line" for what only got has; nothing when they are equal.
// It brings both into canonical order.
func Diff(want, got *Tables) []string {
	want.Canonical()
	got.Canonical()
	var out []string
	out = append(out, diffSection(want.Links, got.Links, equal, linkLine)...)
	out = append(out, diffSection(want.Addrs, got.Addrs, equal, addrLine)...)
	out = append(out, diffSection(want.Routes, got.Routes, equalRoutes, routeLine)...)
	out = append(out, diffSection(want.Nexthops, got.Nexthops, equalNexthops, nexthopLine)...)
	out = append(out, diffSection(want.Rules, got.Rules, equal, ruleLine)...)
	out = append(out, diffSection(want.Neighs, got.Neighs, equal, neighLine)...)
	return append(out, diffSection(want.Qdiscs, got.Qdiscs, equal, qdiscLine)...)
}

func equal[T comparable](a, b T) bool { return a == b }

func equalRoutes(a, b RouteEntry) bool {
	return a.Family == b.Family && a.Table == b.Table && a.Dst == b.Dst && a.Type == b.Type && a.Metric == b.Metric && a.Proto == b.Proto &&
		a.Scope == b.Scope && a.Src == b.Src && a.NHID == b.NHID && slices.Equal(a.Legs, b.Legs)
}

func equalNexthops(a, b NexthopEntry) bool {
	return a.ID == b.ID && a.Family == b.Family && a.Gateway == b.Gateway && a.Dev == b.Dev && a.Blackhole == b.Blackhole && a.FDB == b.FDB &&
		a.Onlink == b.Onlink && a.Scope == b.Scope && slices.Equal(a.Group, b.Group)
}

// diffSection compares one section. Only the part between the common head and the common tail is turned into text.
func diffSection[T any](want, got []T, same func(a, b T) bool, line func(T) string) []string {
	for len(want) > 0 && len(got) > 0 && same(want[0], got[0]) {
		want, got = want[1:], got[1:]
	}
	for len(want) > 0 && len(got) > 0 && same(want[len(want)-1], got[len(got)-1]) {
		want, got = want[:len(want)-1], got[:len(got)-1]
	}
	if len(want) == 0 && len(got) == 0 {
		return nil
	}
	w, g := lines(want, line), lines(got, line)
	if len(w) > lcsLimit || len(g) > lcsLimit {
		return diffSets(w, g)
	}
	return diffOrdered(w, g)
}

func lines[T any](list []T, line func(T) string) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = line(list[i])
	}
	return out
}

// diffOrdered is a difference by longest common subsequence.
func diffOrdered(want, got []string) (out []string) {
	// n[i][j] is the length of the longest common subsequence of want[i:] and got[j:].
	n := make([][]int, len(want)+1)
	for i := range n {
		n[i] = make([]int, len(got)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(got) - 1; j >= 0; j-- {
			if want[i] == got[j] {
				n[i][j] = n[i+1][j+1] + 1
			} else {
				n[i][j] = max(n[i+1][j], n[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case i < len(want) && j < len(got) && want[i] == got[j]:
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && n[i+1][j] >= n[i][j+1]:
			out = append(out, "- "+want[i])
			i++
		default:
			out = append(out, "+ "+got[j])
			j++
		}
	}
	return out
}

// diffSets is a difference that ignores the order.
func diffSets(want, got []string) (out []string) {
	count := make(map[string]int, len(got))
	for _, l := range got {
		count[l]++
	}
	for _, l := range want {
		if count[l] > 0 {
			count[l]--
		} else {
			out = append(out, "- "+l)
		}
	}
	for _, l := range got {
		if count[l] > 0 {
			count[l]--
			out = append(out, "+ "+l)
		}
	}
	return out
}
