package kmem

import (
	"errors"
	"fmt"

	"github.com/nlfuzz/nlfuzz/invariants"
)

const maxDetails = 3 // how many objects of a kind are described

// Holders returns what holds a device: by stack, where the kernel tracks that; else of the kinds of objects that kmem knows: routes in use (dst_entry) of both families, on the per-CPU uncached
// lists and, found by a scan of the slabs, on none; then the entries of tables that name the device: neighbours, nexthop objects, the IPv4 and IPv6
// configuration. One route can count in several kinds. The counts need not add up to the device's references. When err is not nil, what was found until
// then is returned as well.
func (r *Reader) Holders(net Net, dev uint64) ([]invariants.Holder, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tracked := r.trackers(dev); tracked != nil {
		return tracked, nil
	}
	var h tally
	var first error
	keep := func(err error) {
		if err != nil && first == nil {
			first = fmt.Errorf("holders of device %#x may be missing: %w", dev, err)
		}
	}
	for _, v6 := range []bool{true, false} {
		dsts, partly, err := r.inUse(net, v6)
		keep(err)
		if !errors.Is(partly, errNoOps) {
			keep(partly)
		}
		keep(r.addRoutes(dsts, dev, &h))
	}
	if r.l.tablesErr != nil {
		keep(r.l.tablesErr)
		return h.holders, first
	}
	for i := range r.neigh {
		keep(r.addNeighbours(net, i, dev, &h))
	}
	keep(r.addNexthops(net, dev, &h))
	keep(r.addConfig(dev, &h))
	return h.holders, first
}

// tally counts holders by kind, in the order in which the kinds were met.
type tally struct{ holders []invariants.Holder }

// add counts one object; it is described if it is among the first of its kind.
func (t *tally) add(kind string, describe func() string) {
	i := 0
	for i < len(t.holders) && t.holders[i].Kind != kind {
		i++
	}
	if i == len(t.holders) {
		t.holders = append(t.holders, invariants.Holder{Kind: kind})
	}
	h := &t.holders[i]
	h.Count++
	switch {
	case h.Count == 1:
		h.Detail = describe()
	case h.Count <= maxDetails:
		h.Detail += "; " + describe()
	case h.Count == maxDetails+1:
		h.Detail += "; ..."
	}
}
