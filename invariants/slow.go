package invariants

import (
	"fmt"
	"strings"
	"time"
)

// limits say how long an operation may take in a guest that is emulated at the usual pace, on a busy machine (28,000 operations on debian:6.1 and 7.3, two
// guests on two CPUs with a load of six; the 99.9th percentile and the longest, in ms). The first row whose kind is the operation's, or its beginning, counts.
//
//	kind    of the operation, or the beginning of several kinds
//	limit   longer is slow
//
// Not here: settle, which waits for the kernel on purpose.
var limits = []struct {
	kind  string
	limit time.Duration
}{
	{"link del", 150 * time.Millisecond}, // 105, 165: two grace periods and a barrier
	{"link add", 150 * time.Millisecond}, // 45, 219
	{"link ", 120 * time.Millisecond},    // 66, 96
	{"addr ", 100 * time.Millisecond},    // 47, 47
	{"route ", 100 * time.Millisecond},   // 38, 38
	{"nexthop ", 100 * time.Millisecond}, // 16, 16
	{"rule ", 100 * time.Millisecond},    // 12, 12
	{"neigh ", 100 * time.Millisecond},   // 15, 15
	{"qdisc ", 100 * time.Millisecond},   // 42, 42
	{"filter ", 120 * time.Millisecond},  // 23, 23
	{"send ", 120 * time.Millisecond},    // 46, 83: for up to ten packets
	{"hold ", 100 * time.Millisecond},    // 45, 45
	{"release", 100 * time.Millisecond},  // 5, 5
	{"ptb", 100 * time.Millisecond},      // 28, 28
}

// checkSlow abstains for a kind without a limit. A slow operation is no violation before it was slow again: see the runner.
func checkSlow(o *Observation, want Expected) *Violation {
	if o.Op == "" || o.Blocked {
		return nil
	}
	for _, l := range limits {
		if !strings.HasPrefix(want.Kind, l.kind) {
			continue
		}
		limit := time.Duration(float64(l.limit) * max(want.Pace, 1))
		if o.Took <= limit {
			return nil
		}
		return &Violation{Fingerprint: "slow/" + want.Kind,
			Detail: []string{fmt.Sprintf("%s: it took %v, every time that it was run; %v is the limit for its kind", o.Op, o.Took.Round(time.Millisecond), limit)}}
	}
	return nil
}
