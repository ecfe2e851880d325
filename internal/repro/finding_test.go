package repro_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/repro"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// TestOf: each invariant's violation becomes the check that can see it, with the operations that this needs.
func TestOf(t *testing.T) {
	const veth = "ip link set dev lo up\nip link add name e0 type veth peer name e1\n"
	const held = veth + "nlfuzz hold udp4 s1 to 127.0.0.1\nnlfuzz hold udp4 s0 to 127.0.0.1\nnlfuzz release s1\ntc qdisc add dev e1 root netem delay 9s\n"
	const end = -2 // stands for the number of operations
	for _, c := range []struct {
		name        string
		ops         string
		fingerprint string // the invariant is its first part
		at          int
		devices     []string
		detail      []string
		want        repro.Check
		more        string
	}{
		{"blocked", veth, "blocked/x", 1, nil, nil, repro.Blocked{OpIndex: 1}, ""},
		{"blocked, end", veth, "blocked/x", end, nil, nil, repro.NetnsStuck{}, ""},
		{"waiting", veth, "waiting/x", end, nil, nil, repro.Log{OpIndex: 2, Pattern: "unregister_netdevice: waiting for"}, ""},
		{"errno", veth, "errno/x", 1, nil, nil, repro.Errno{OpIndex: 1, Want: syscall.ENODEV, Got: syscall.EPERM, Extack: "why"}, ""},
		{"state", veth, "state/x", 1, nil, []string{"after: x", "- link a", "+ link b", "- link c"},
			repro.State{OpIndex: 1, Missing: []string{"link a", "link c"}, Unexpected: []string{"link b"}}, ""},
		{"log", veth, "log/x", 0, nil, []string{"[   12.345678] WARNING: CPU: 0 PID: 77 at net/core/dev.c:11 f+0x1a/0x20", "more"},
			repro.Log{OpIndex: 0, Pattern: `WARNING: CPU: [0-9a-fx]+ PID: [0-9a-fx]+ at net/core/dev\.c:[0-9a-fx]+ f\+[0-9a-fx]+/[0-9a-fx]+`}, ""},
		{"netns", veth, "netns/stays", end, nil, nil, repro.NetnsStuck{}, ""},
		{"netns, held", held, "netns/stays", end, nil, nil, repro.NetnsStuck{}, "nlfuzz release s0\ntc qdisc del dev e1 root"},
		{"netrefs", veth, "netrefs/+", end, nil, nil, repro.NetnsStuck{}, ""},
		{"ledger", veth, "ledger/+veth", 1, []string{"e1"}, nil, repro.Blocked{OpIndex: 2, Dev: "e1"}, "ip link del dev e1"},
		{"ledger, settled", veth + "nlfuzz settle\n", "ledger/+veth", 2, []string{"e0", "e1"}, nil, repro.Blocked{OpIndex: 3, Dev: "e0"}, "ip link del dev e0"},
		{"ledger, lo first", veth, "ledger/+lo,+veth", 1, []string{"lo", "e0"}, nil, repro.Blocked{OpIndex: 2, Dev: "e0"}, "ip link del dev e0"},
		{"ledger, only lo", veth, "ledger/+lo", 1, []string{"lo"}, nil, repro.NetnsStuck{}, ""},
		{"ledger, device gone", veth + "ip link del dev e0", "ledger/+veth", 2, []string{"e0"}, nil, repro.NetnsStuck{}, ""},
		{"ledger, held", held, "ledger/+veth", 5, []string{"e0"}, nil, repro.Blocked{OpIndex: 6, Dev: "e0"}, "ip link del dev e0"},
		{"ledger, held, released", held, "ledger/+veth", end, []string{"e0"}, nil, repro.Blocked{OpIndex: 8, Dev: "e0"},
			"nlfuzz release s0\ntc qdisc del dev e1 root\nip link del dev e0"},
		{"undo", veth, "undo/+veth", 1, []string{"e0"}, nil, repro.Blocked{OpIndex: 2, Dev: "e0"}, "ip link del dev e0"},
		{"path", veth, "path/+veth", 1, []string{"e0"}, nil, repro.Blocked{OpIndex: 2, Dev: "e0"}, "ip link del dev e0"},
		{"orphan", veth, "orphan/ipv6 dst (dst.dev)", 1, []string{"e0", "lo"}, nil, repro.Blocked{OpIndex: 2, Dev: "e0"}, "ip link del dev e0"},
		{"orphan, none left", veth, "orphan/ipv6 dst (dst.dev of an unregistered device)", 1, []string{"d9"}, nil, repro.NetnsStuck{}, ""},
		{"notify", veth, "notify/link add veth/RTM_NEWLINK", 1, nil, nil, repro.Notify{OpIndex: 1, Message: "RTM_NEWLINK"}, ""},
		{"slow", veth, "slow/link add veth", 1, nil, []string{"ip link add name e0: it took 400ms, every time that it was run; 187.5ms is the limit for its kind"},
			repro.Slow{OpIndex: 1, Limit: 187500 * time.Microsecond}, ""},
		{"slow, limit not told", veth, "slow/link add veth", 1, nil, []string{"a bad one is the limit for its kind"}, repro.Slow{OpIndex: 1, Limit: 250 * time.Millisecond}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := ops(t, c.ops)
			if c.at == end {
				c.at = len(list)
			}
			invariant, _, _ := strings.Cut(c.fingerprint, "/")
			f := &fuzz.Finding{
				Violation: &invariants.Violation{Invariant: invariant, Fingerprint: c.fingerprint, Detail: c.detail, Devices: c.devices},
				Ops:       list, At: c.at, Answers: []model.Answer{{Unjudged: true}, {Errno: syscall.ENODEV}},
				Seen: &invariants.Observation{Errno: syscall.EPERM, Extack: "why"},
			}
			s := repro.Of(f)
			if diff := cmp.Diff(c.want, s.Check); diff != "" {
				t.Errorf("the check (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(printed(ops(t, c.ops+"\n"+c.more)), printed(s.Ops)); diff != "" {
				t.Errorf("the operations (-want +got):\n%s", diff)
			}
			expect := []syscall.Errno{repro.Any, syscall.ENODEV}
			for i, op := range s.Ops[len(list):] {
				for len(expect) < len(list)+i {
					expect = append(expect, 0)
				}
				if _, ok := op.(model.Release); ok {
					expect = append(expect, repro.Any)
				} else {
					expect = append(expect, 0)
				}
			}
			if diff := cmp.Diff(expect, s.Expect); diff != "" {
				t.Errorf("the answers (-want +got):\n%s", diff)
			}
			if len(f.Ops) != len(list) {
				t.Errorf("the finding has %d operations now", len(f.Ops))
			}
			checkSyntax(t, c.name, repro.Render(f))
		})
	}
}

func printed(list []model.Op) (lines []string) {
	for _, op := range list {
		lines = append(lines, iproute.Print(op))
	}
	return lines
}
