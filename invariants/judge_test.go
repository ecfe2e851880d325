package invariants

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nlfuzz/nlfuzz/model"
)

func tables(links ...model.Link) *model.Tables { return &model.Tables{Links: links} }

// Each row is an observation that a judge must flag, with its fingerprint, or must not (empty).
func TestJudges(t *testing.T) {
	lo := model.Link{Name: "lo", MTU: 65536}
	d0 := model.Link{Name: "d0", Type: model.Dummy, MTU: 1500}
	vrf := model.Link{Name: "red", Type: model.VRF, MTU: 65575, Table: 10}
	links := []model.Link{lo, d0, vrf}
	ok := model.Answer{}
	for _, c := range []struct {
		name string
		obs  Observation
		want Expected
		is   string
	}{
		{"all well", Observation{Op: "ip link set dev d0 up", Tables: tables(lo, d0)}, Expected{Kind: "link up", Answer: ok, Tables: tables(lo, d0)}, ""},

		{"errno differs", Observation{Op: "ip link add d0 type dummy", Errno: syscall.EEXIST}, Expected{Kind: "link add dummy", Answer: ok}, "errno/link add dummy/ok/EEXIST"},
		{"errno agrees", Observation{Op: "ip link add d0 type dummy", Errno: syscall.EEXIST}, Expected{Kind: "link add dummy", Answer: model.Answer{Errno: syscall.EEXIST}}, ""},
		{"errno is not judged", Observation{Op: "nlfuzz send", Errno: syscall.ENETUNREACH}, Expected{Kind: "send raw6", Answer: model.Answer{Unjudged: true}}, ""},

		{"a link is missing", Observation{Op: "x", Tables: tables(lo)}, Expected{Kind: "link add dummy", Tables: tables(lo, d0)}, "state/link add dummy/-link"},
		{"a link is too many", Observation{Op: "x", Tables: tables(lo, d0)}, Expected{Kind: "link del", Tables: tables(lo)}, "state/link del/+link"},
		{"state was not read", Observation{Op: "x"}, Expected{Kind: "link del", Tables: tables(lo)}, ""},

		{"blocked, holder found", Observation{Op: "ip link del dev red", Blocked: true, Took: 2 * time.Second, Devices: []Device{
			{Name: "lo", State: 1, Refs: 8},
			{Name: "red", State: 3, Refs: 11, Holders: []Holder{{Kind: "ipv6 dst (dst.dev)", Count: 10}}}}},
			Expected{Kind: "link del", Links: links}, "blocked/vrf/ipv6 dst (dst.dev)"},
		{"blocked, two kinds of holder, one fingerprint in any order", Observation{Op: "ip link del dev d0", Blocked: true, Devices: []Device{
			{Name: "d0", State: 3, Refs: 3, Holders: []Holder{{Kind: "b", Count: 1}, {Kind: "a", Count: 7}}}}},
			Expected{Kind: "link del", Links: links}, "blocked/dummy/a+b"},
		{"blocked, the device below waits for the one on it", Observation{Op: "ip link del dev d0", Blocked: true, Devices: []Device{
			{Name: "d0", State: 3, Refs: 2}, {Name: "red", State: 3, Refs: 3, Holders: []Holder{{Kind: "a", Count: 1}}}}},
			Expected{Kind: "link del", Links: links}, "blocked/vrf/a"},
		{"blocked, no holder found", Observation{Op: "ip link del dev d0", Blocked: true, Devices: []Device{{Name: "d0", State: 3, Refs: 2}}},
			Expected{Kind: "link del", Links: links}, "blocked/dummy/unknown holder"},
		{"blocked, memory can't be read, the log tells", Observation{Op: "ip link del dev d0", Blocked: true,
			Log: []string{"[   12.0] unregister_netdevice: waiting for d0 to become free. Usage count = 2"}}, Expected{Kind: "link del", Links: links}, "blocked/dummy/unknown holder"},
		{"blocked, no witness", Observation{Op: "ip link set dev d0 up", Blocked: true}, Expected{Kind: "link up", Links: links}, "blocked/link up"},
		{"slow but back", Observation{Op: "ip link del dev d0", Took: time.Second, Devices: []Device{{Name: "red", State: 1, Refs: 11}}}, Expected{Kind: "link del", Links: links}, "slow/link del"},

		{"waited for without a blocked op", Observation{Log: []string{"unregister_netdevice: waiting for lo to become free. Usage count = 3"}}, Expected{Kind: "end", Links: links}, "waiting/lo"},

		{"the namespace stays", Observation{Net: NetState{Deleted: true, Took: time.Second}}, Expected{Kind: "end"}, "netns/stays"},
		{"the namespace goes", Observation{Net: NetState{Deleted: true, Gone: true}}, Expected{Kind: "end"}, ""},
		{"the namespace goes, its memory does not", Observation{Net: NetState{Deleted: true, Gone: true, Kept: true}}, Expected{Kind: "end"}, "netns/kept"},

		{"a warning names its function", Observation{Log: []string{"[ 3.1] WARNING: CPU: 0 PID: 71 at net/core/dev.c:11021 unregister_netdevice_many_notify+0x5f1/0x840"}}, Expected{},
			"log/warning/unregister_netdevice_many_notify"},
		{"a warning of a later kernel", Observation{Log: []string{"[ 3.1] WARNING: net/core/dst.c:170 at dst_release+0x5f1/0x840, CPU#0: ip/71"}}, Expected{}, "log/warning/dst_release"},
		{"an oops takes its place from RIP", Observation{Log: []string{"BUG: kernel NULL pointer dereference, address: 0000000000000010", "Oops: 0000 [#1]", "RIP: 0010:fib_nh_match+0x12/0x90"}}, Expected{},
			"log/bug/fib_nh_match"},
		{"a hung task", Observation{Log: []string{"INFO: task kworker/u4:1:33 blocked for more than 120 seconds."}}, Expected{}, "log/hung/kworker/uN:N"},
		{"an RCU stall", Observation{Log: []string{"rcu: INFO: rcu_preempt self-detected stall on CPU"}}, Expected{}, "log/rcu stall/rcu_preempt"},
		{"lockdep", Observation{Log: []string{"WARNING: possible circular locking dependency detected"}}, Expected{}, "log/lockdep/possible circular locking dependency detected"},
		{"a plain line", Observation{Log: []string{"IPv6: ADDRCONF(NETDEV_CHANGE): e0: link becomes ready", "e0 (unregistering): left promiscuous mode"}}, Expected{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := Judge(&c.obs, c.want)
			got := ""
			if v != nil {
				got = v.Fingerprint
				if v.Invariant == "" || !strings.HasPrefix(v.Fingerprint, v.Invariant+"/") {
					t.Errorf("the fingerprint %q does not start with its invariant %q", v.Fingerprint, v.Invariant)
				}
			}
			if got != c.is {
				t.Errorf("verdict %q, want %q", got, c.is)
			}
		})
	}
}
