package repro_test

import (
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/internal/repro"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// TestOf: each invariant's violation becomes the check that can see it.
func TestOf(t *testing.T) {
	list := ops(t, "ip link set dev lo up\nip link del dev d0")
	for _, c := range []struct {
		invariant string
		at        int
		detail    []string
		want      repro.Check
	}{
		{"blocked", 1, nil, repro.Blocked{OpIndex: 1}},
		{"blocked", 2, nil, repro.NetnsStuck{}},
		{"waiting", 2, nil, repro.Log{OpIndex: 2, Pattern: "unregister_netdevice: waiting for"}},
		{"errno", 1, nil, repro.Errno{OpIndex: 1, Want: syscall.ENODEV, Got: syscall.EPERM, Extack: "why"}},
		{"state", 1, []string{"after: x", "- link a", "+ link b", "- link c"}, repro.State{OpIndex: 1, Missing: []string{"link a", "link c"}, Unexpected: []string{"link b"}}},
		{"netns", 2, nil, repro.NetnsStuck{}},
		{"log", 0, []string{"[   12.345678] WARNING: CPU: 0 PID: 77 at net/core/dev.c:11 f+0x1a/0x20", "more"},
			repro.Log{OpIndex: 0, Pattern: `WARNING: CPU: [0-9a-fx]+ PID: [0-9a-fx]+ at net/core/dev\.c:[0-9a-fx]+ f\+[0-9a-fx]+/[0-9a-fx]+`}},
	} {
		f := &fuzz.Finding{
			Violation: &invariants.Violation{Invariant: c.invariant, Fingerprint: c.invariant + "/x", Detail: c.detail},
			Ops:       list, At: c.at, Answers: []model.Answer{{Unjudged: true}, {Errno: syscall.ENODEV}},
			Seen: &invariants.Observation{Errno: syscall.EPERM, Extack: "why"},
		}
		s := repro.Of(f)
		if diff := cmp.Diff(c.want, s.Check); diff != "" {
			t.Errorf("%s at %d (-want +got):\n%s", c.invariant, c.at, diff)
		}
		if diff := cmp.Diff([]syscall.Errno{repro.Any, syscall.ENODEV}, s.Expect); diff != "" {
			t.Errorf("%s: expect:\n%s", c.invariant, diff)
		}
		checkSyntax(t, c.invariant, repro.Render(f))
	}
}
