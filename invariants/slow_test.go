package invariants

import (
	"testing"
	"time"
)

// Each row is an operation with the time that it took, and the fingerprint that it must get; empty where it must not be flagged.
func TestSlow(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		obs  Observation
		kind string
		pace float64
		is   string
	}{
		{"a sleep in the unregister loop", Observation{Op: "ip link del dev d0", Took: 255 * ms}, "link del", 0, "slow/link del"},
		{"a delete on a busy machine", Observation{Op: "ip link del dev d0", Took: 105 * ms}, "link del", 0, ""},
		{"any kind of link", Observation{Op: "ip link add name d0 type vrf table 10", Took: 200 * ms}, "link add vrf", 1, "slow/link add vrf"},
		{"a route", Observation{Op: "x", Took: 101 * ms}, "route replace", 1, "slow/route replace"},
		{"a slow guest", Observation{Op: "x", Took: 350 * ms}, "route replace", 4, ""},
		{"slow even for a slow guest", Observation{Op: "x", Took: 450 * ms}, "route replace", 4, "slow/route replace"},
		{"a fast guest gets no shorter limit", Observation{Op: "x", Took: 90 * ms}, "route replace", 0.1, ""},
		{"settle waits on purpose", Observation{Op: "nlfuzz settle", Took: time.Second}, "settle", 0, ""},
		{"what blocks is another judge's", Observation{Op: "ip link del dev d0", Took: 1500 * ms, Blocked: true}, "link del", 0, ""},
		{"the end of a namespace", Observation{Net: NetState{Deleted: true, Gone: true, Took: time.Second}}, "end", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := checkSlow(&c.obs, Expected{Kind: c.kind, Pace: c.pace})
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
