package fuzz

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// features are what a kernel may lack, each with operations of which the last fails where it is missing, and the operations that need it.
var features = []struct {
	name string
	ops  []model.Op
	uses func(model.Op) bool
}{
	{"dummy", linkOps(model.Dummy), usesLink(model.Dummy)},
	{"veth", linkOps(model.Veth), usesLink(model.Veth)},
	{"vrf", linkOps(model.VRF), usesLink(model.VRF)},
	{"bridge", linkOps(model.Bridge), usesLink(model.Bridge)},
	{"vlan", linkOps(model.VLAN), usesLink(model.VLAN)},
	{"macvlan", linkOps(model.MACVLAN), usesLink(model.MACVLAN)},
	{"nexthop objects", []model.Op{model.LinkUp{Name: "lo"}, model.Nexthop{Verb: model.NexthopAdd, ID: 1, Blackhole: true}}, func(o model.Op) bool {
		r, route := o.(model.Route)
		_, nexthop := o.(model.Nexthop)
		return nexthop || route && r.NHID != 0
	}},
	{"netem", []model.Op{model.Qdisc{Verb: model.QdiscAdd, Dev: "lo", Type: model.Netem, Delay: 1}}, func(o model.Op) bool {
		q, ok := o.(model.Qdisc)
		return ok && q.Type == model.Netem
	}},
	{"prio", []model.Op{model.Qdisc{Verb: model.QdiscAdd, Dev: "lo", Type: model.Prio, Handle: 1}}, func(o model.Op) bool {
		q, ok := o.(model.Qdisc)
		return ok && q.Type == model.Prio
	}},
	{"flow classifier", []model.Op{model.Qdisc{Verb: model.QdiscAdd, Dev: "lo", Type: model.Prio, Handle: 1}, model.Filter{Dev: "lo", Handle: 1}}, func(o model.Op) bool {
		_, ok := o.(model.Filter)
		return ok
	}},
}

// linkOps makes a link of a kind, on a veth where it needs one below.
func linkOps(k model.LinkKind) []model.Op {
	add := model.LinkAdd{Name: "probe0", Type: k}
	switch k {
	case model.Veth:
		add.Peer = "probe1"
	case model.VRF:
		add.Table = 10
	case model.VLAN, model.MACVLAN:
		add.Lower = "below0"
		if k == model.VLAN {
			add.VLANID = 10
		}
		return []model.Op{model.LinkAdd{Name: "below0", Type: model.Veth, Peer: "below1"}, add}
	}
	return []model.Op{add}
}

func usesLink(k model.LinkKind) func(model.Op) bool {
	return func(o model.Op) bool {
		l, ok := o.(model.LinkAdd)
		return ok && l.Type == k
	}
}

// differences are the probes of model.Profile: operations, and what is seen after the last one (or the first that failed).
var differences = []struct {
	name string
	ops  []model.Op
	set  func(p *model.Profile, o *invariants.Observation)
}{
	{"rename while up", []model.Op{
		model.LinkAdd{Name: "probe0", Type: model.Veth, Peer: "probe1"},
		model.LinkUp{Name: "probe0"},
		model.LinkRename{Name: "probe0", New: "probe2"},
	}, func(p *model.Profile, o *invariants.Observation) { p.RenameUp = o.Errno == 0 }},
	{"group weights of 16 bits", []model.Op{
		model.LinkUp{Name: "lo"},
		model.AddrAdd{Dev: "lo", Prefix: netip.MustParsePrefix("10.0.0.1/24")},
		model.Nexthop{Verb: model.NexthopAdd, ID: 1, Dev: "lo"},
		model.Nexthop{Verb: model.NexthopAdd, ID: 2, Group: []model.Member{{ID: 1, Weight: 256}}},
	}, func(p *model.Profile, o *invariants.Observation) { p.GroupWeight16 = o.Errno == 0 }},
	{"multipath checks the first gateway first", []model.Op{
		model.LinkUp{Name: "lo"},
		model.Route{Verb: model.RouteAdd, Type: model.Blackhole, Dst: netip.MustParsePrefix("2001:db8::/64"), Legs: []model.Leg{
			{Gateway: netip.MustParseAddr("2001:db8::1")}, {Gateway: netip.MustParseAddr("2001:db8::2")}}},
	}, func(p *model.Profile, o *invariants.Observation) { p.MultipathGatewayFirst = o.Errno != syscall.EINVAL }},
	{"rules match a VRF", []model.Op{
		model.LinkAdd{Name: "probe0", Type: model.VRF, Table: 10},
		model.Rule{Family: model.IPv4, Pref: 100, OIF: "probe0", Action: model.RuleUnreachable},
		model.LinkUp{Name: "probe0"},
		model.AddrAdd{Dev: "probe0", Prefix: netip.MustParsePrefix("10.0.0.1/24")},
		model.Route{Verb: model.RouteAdd, Dst: netip.MustParsePrefix("10.1.0.0/24"), Legs: []model.Leg{{Gateway: netip.MustParseAddr("10.0.0.2"), Dev: "probe0"}}},
	}, func(p *model.Profile, o *invariants.Observation) { p.RuleMatchesVRF = o.Errno != 0 }},
	{"a deleted address is no route's source", []model.Op{
		model.LinkUp{Name: "lo"},
		model.LinkAdd{Name: "probe0", Type: model.Veth, Peer: "probe1"},
		model.AddrAdd{Dev: "probe0", Prefix: netip.MustParsePrefix("2001:db8::1/64")},
		model.Route{Verb: model.RouteAdd, Dst: netip.MustParsePrefix("2001:db8:1::/64"), Src: netip.MustParseAddr("2001:db8::1"), Legs: []model.Leg{{Dev: "lo"}}},
		model.AddrDel{Dev: "probe0", Prefix: netip.MustParsePrefix("2001:db8::1/64")},
	}, func(p *model.Profile, o *invariants.Observation) {
		p.SourceOfAnyDevice = !slices.ContainsFunc(o.Tables.Routes, func(r model.RouteEntry) bool { return r.Src == netip.MustParseAddr("2001:db8::1") })
	}},
	{"VLANs follow their lower device later", []model.Op{
		model.LinkAdd{Name: "probe0", Type: model.VRF, Table: 10},
		model.LinkAdd{Name: "probe1", Type: model.Dummy},
		model.LinkAdd{Name: "probe2", Type: model.VLAN, Lower: "probe1", VLANID: 10},
		model.LinkUp{Name: "probe1"},
		model.LinkUp{Name: "probe2"},
		model.Nexthop{Verb: model.NexthopAdd, ID: 1, Dev: "probe2"},
		model.LinkMaster{Name: "probe1", Master: "probe0"},
		model.Nexthop{Verb: model.NexthopDel, ID: 1},
	}, func(p *model.Profile, o *invariants.Observation) { p.VLANsFollowLater = o.Errno == 0 }},
	{"the ends of a veth hold each other", []model.Op{
		model.LinkAdd{Name: "probe0", Type: model.Veth, Peer: "probe1"},
		model.LinkAdd{Name: "probe2", Type: model.Bridge},
		model.Settle{},
	}, func(p *model.Profile, o *invariants.Observation) {
		if o.Memory != nil && o.Errno == 0 {
			p.VethHoldsPeer = o.Memory.Device("probe0").Ledger() > o.Memory.Device("probe2").Ledger()
		}
	}},
}

// Kernel is what probes say of a target's kernel.
type Kernel struct {
	Profile model.Profile
	// Missing names the features that the kernel lacks, with its answer.
	Missing map[string]string
}

// Probe asks the target's kernel, by a few operations, in what it differs from others and what it lacks.
func Probe(ctx context.Context, t Target) (Kernel, error) {
	k := Kernel{Profile: model.DefaultProfile(), Missing: map[string]string{}}
	for _, f := range features {
		o, err := try(ctx, t, f.ops)
		if err != nil {
			return k, fmt.Errorf("probe for %s: %w", f.name, err)
		}
		if o.Errno != 0 {
			k.Missing[f.name] = invariants.ErrnoName(o.Errno)
		}
	}
	for _, d := range differences {
		o, err := try(ctx, t, d.ops)
		if err != nil {
			return k, fmt.Errorf("probe for %s: %w", d.name, err)
		}
		d.set(&k.Profile, o)
	}
	return k, nil
}

// try runs ops in a namespace of their own and returns what was seen after the first that failed, or after the last.
func try(ctx context.Context, t Target, ops []model.Op) (o *invariants.Observation, err error) {
	if o, err = t.Begin(ctx); err != nil {
		return nil, err
	}
	for _, op := range ops {
		if o, err = t.Apply(ctx, op); err != nil {
			return nil, err
		}
		if o.Errno != 0 {
			break
		}
	}
	_, err = t.End(ctx)
	return o, err
}

// Supported returns ops without those that need a feature that is missing, and without those that then fail although they did not before.
func (k Kernel) Supported(ops []model.Op) []model.Op {
	if len(k.Missing) == 0 {
		return ops
	}
	return filtered(k.Profile, ops, func(_ int, op model.Op) bool {
		for _, f := range features {
			if _, missing := k.Missing[f.name]; missing && f.uses(op) {
				return true
			}
		}
		return false
	})
}
