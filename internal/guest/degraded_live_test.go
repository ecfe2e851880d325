package guest

import (
	"strings"
	"testing"
	"time"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
)

// A kernel that lets nobody read its memory says so once; the blocked delete and the kernel's own message then tell of a leak, and nothing else pretends to.
func TestLiveLockdown(t *testing.T) {
	onOneKernel(t, func(t *testing.T, cfg Config) {
		cfg.Cmdline = "lockdown=confidentiality"
		g := start(t, cfg)
		info := g.Info()
		if !strings.Contains(info.Degraded, "lockdown=confidentiality") || !strings.Contains(info.Degraded, "the kernel log and blocked deletes judge instead") {
			t.Fatalf("the guest says of its memory: %q", info.Degraded)
		}
		o, err := g.Begin(t.Context())
		if err != nil || o.Memory != nil {
			t.Fatalf("begin: %v, counts %+v although memory can't be read", err, o.Memory)
		}
		for _, line := range []string{
			"ip link add name d0 type dummy", "ip link set dev d0 up", "ip addr add 2001:db8:1::1/64 dev d0", "ip link set dev lo up",
			"tc qdisc add dev lo root netem delay 200s", "nlfuzz settle", "nlfuzz send raw6 from 2001:db8:1::1 to 2001:db8:1::1", "ip link del dev d0",
		} {
			op, err := iproute.Parse(line)
			if err != nil {
				t.Fatal(err)
			}
			if o, err = g.Apply(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
		if !o.Blocked || len(o.Devices) > 0 || !strings.Contains(strings.Join(o.Log, "\n"), "unregister_netdevice: waiting for d0") {
			t.Errorf("the delete: blocked %t after %v, devices %+v, log %q", o.Blocked, o.Took.Round(time.Millisecond), o.Devices, o.Log)
		}
	})
}

// With memory the same is seen at once, without the kernel's message: the verdict comes half a second after the operation began.
func TestLiveBlockedIsSeenEarly(t *testing.T) {
	onEachKernel(t, func(t *testing.T, cfg Config) {
		g := start(t, cfg)
		if _, err := g.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{
			"ip link add name d0 type dummy", "ip link set dev d0 up", "ip addr add 2001:db8:1::1/64 dev d0", "ip link set dev lo up",
			"tc qdisc add dev lo root netem delay 200s", "nlfuzz send raw6 from 2001:db8:1::1 to 2001:db8:1::1", "ip link del dev d0",
		} {
			op, err := iproute.Parse(line)
			if err != nil {
				t.Fatal(err)
			}
			o, err := g.Apply(t.Context(), op)
			if err != nil {
				t.Fatal(err)
			}
			if line != "ip link del dev d0" {
				continue
			}
			held := false
			for _, d := range o.Devices {
				held = held || d.Name == "d0" && len(d.Holders) > 0
			}
			if !o.Blocked || !held {
				t.Errorf("the delete: blocked %t, devices %+v", o.Blocked, o.Devices)
			}
			t.Logf("verdict after %v", o.Took.Round(time.Millisecond))
		}
	})
}
