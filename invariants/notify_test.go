package invariants

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/model"
)

func heard(types ...uint16) *Notes {
	n := &Notes{}
	for _, t := range types {
		n.Add(t)
	}
	return n
}

// Each row is an operation with what was heard of it, and the fingerprint that it must get; empty where it must not be flagged.
func TestNotify(t *testing.T) {
	none, some := &model.Tables{}, tables(model.Link{Name: "d0", Type: model.Dummy, MTU: 1500})
	for _, c := range []struct {
		name  string
		obs   Observation
		kind  string
		after *model.Tables
		is    string
	}{
		{"a route is not announced", Observation{Op: "ip route add 10.0.0.0/8 dev d0", Notes: heard()}, "route add", some, "notify/route add/RTM_NEWROUTE"},
		{"another message does not do", Observation{Op: "ip route del 10.0.0.0/8", Notes: heard(unix.RTM_NEWROUTE)}, "route del", some, "notify/route del/RTM_DELROUTE"},
		{"it is announced, among others", Observation{Op: "ip route del 10.0.0.0/8", Notes: heard(unix.RTM_NEWROUTE, unix.RTM_DELROUTE)}, "route del", some, ""},
		{"every kind of link", Observation{Op: "x", Notes: heard()}, "link add vrf", some, "notify/link add vrf/RTM_NEWLINK"},
		{"a nexthop", Observation{Op: "x", Notes: heard(unix.RTM_NEWROUTE)}, "nexthop replace", some, "notify/nexthop replace/RTM_NEWNEXTHOP"},
		{"a rule", Observation{Op: "x", Notes: heard(unix.RTM_NEWRULE)}, "rule del", some, "notify/rule del/RTM_DELRULE"},
		{"a neighbour", Observation{Op: "ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:01 dev d0 nud permanent", Notes: heard()}, "neigh add", some, "notify/neigh add/RTM_NEWNEIGH"},
		{"a proxy entry is silent", Observation{Op: "ip neigh add proxy 10.0.0.9 dev d0", Notes: heard()}, "neigh add", some, ""},
		{"nothing was changed", Observation{Op: "ip link set dev lo up", Notes: heard()}, "link up", none, ""},
		{"it failed", Observation{Op: "x", Errno: syscall.EEXIST, Notes: heard()}, "route add", some, ""},
		{"it is blocked", Observation{Op: "x", Blocked: true, Notes: heard()}, "link del", some, ""},
		{"nobody listened", Observation{Op: "x"}, "route add", some, ""},
		{"messages were lost", Observation{Op: "x", Notes: &Notes{Lost: true}}, "route add", some, ""},
		{"a kind without announcements", Observation{Op: "x", Notes: heard()}, "qdisc add", some, ""},
		{"the state is not judged", Observation{Op: "x", Notes: heard()}, "route add", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := checkNotify(&c.obs, Expected{Kind: c.kind, Before: none, Tables: c.after})
			got := ""
			if v != nil {
				got = v.Fingerprint
			}
			if got != c.is {
				t.Errorf("judged %q, want %q", got, c.is)
			}
		})
	}
}

func TestNotesCount(t *testing.T) {
	n := heard(16, 24, 16)
	if len(n.Heard) != 2 || n.Heard[0] != (Note{16, 2}) || n.Heard[1] != (Note{24, 1}) {
		t.Errorf("counted %v", n.Heard)
	}
}
