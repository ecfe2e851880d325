package kmem

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/invariants"
)

// holder finds the holders of a kind; Count is 0 for none.
func holder(t *testing.T, r *Reader, net Net, dev uint64, kind string) invariants.Holder {
	t.Helper()
	hs, err := r.Holders(net, dev)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hs {
		if h.Kind == kind {
			return h
		}
	}
	return invariants.Holder{Kind: kind}
}

func TestHoldersIPv4(t *testing.T) {
	r, net := live(t)
	veth(t)
	d := device(t, r, net, "v0")
	const kind = "ipv4 dst (dst.dev)"
	if got := holder(t, r, net, d.Addr, kind); strings.Contains(got.Detail, "uncached list") {
		t.Fatalf("before any route is held: %+v", got)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.BindToDevice(fd, "v0"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{224, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	got := holder(t, r, net, d.Addr, kind)
	if !strings.Contains(got.Detail, "dst.dev v0") || !strings.Contains(got.Detail, "type 5") || !strings.Contains(got.Detail, "uncached list") {
		t.Fatalf("a connected multicast socket holds %+v, want an uncached multicast route on v0", got)
	}
}

func TestHoldersIPv6(t *testing.T) {
	r, net := live(t)
	veth(t)
	ip(t, "addr add 2001:db8::1/64 dev v0 nodad")
	d := device(t, r, net, "v0")
	ip(t, "nexthop add id 7 via 2001:db8::2 dev v0")
	for i, route := range []string{"via 2001:db8::2", "nhid 7"} {
		ip(t, fmt.Sprintf("route add 2001:db8:%d::/64 %s", i+1, route))
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet6{Port: 9, Addr: [16]byte{0x20, 1, 0x0d, 0xb8, 0, byte(i + 1), 15: 7}}
		if err := unix.Connect(fd, to); err != nil {
			t.Fatal(err)
		}
		dsts, partly, err := r.inUse(net, true)
		if err != nil || partly != nil {
			t.Fatal(err, partly)
		}
		var h tally
		if err := r.addRoutes(dsts, d.Addr, &h); err != nil {
			t.Fatal(err)
		}
		kinds := map[string]bool{}
		for _, holder := range h.holders {
			kinds[holder.Kind] = true
		}
		for _, kind := range []string{"ipv6 dst (dst.dev)", "ipv6 dst (rt6i_idev)", "ipv6 dst (from->nexthop)"} {
			if !kinds[kind] {
				t.Errorf("a socket connected by %q: no %s in %+v", route, kind, h.holders)
			}
		}
		to6 := fmt.Sprintf("to 2001:db8:%d::/64 ", i+1)
		if !slices.ContainsFunc(dsts, func(s dst) bool {
			return s.refs > 0 && s.dev == d.Addr && s.idev == d.Addr && s.via == d.Addr && strings.HasPrefix(r.text6(&s), to6)
		}) {
			t.Errorf("a socket connected by %q: no route %q that is in use pins v0 in all three ways", route, to6)
		}
	}
}

// TestHoldersTables sets up one holder after the other: each must appear, name what it is, and go again.
func TestHoldersTables(t *testing.T) {
	r, net := live(t)
	veth(t)
	ip(t, "addr add 2001:db8::1/64 dev v0 nodad")
	d := device(t, r, net, "v0")
	for _, c := range []struct{ kind, add, del, detail string }{
		{"neighbour", "neigh add 192.0.2.7 lladdr 02:00:00:00:00:07 dev v0", "neigh del 192.0.2.7 dev v0", "192.0.2.7 "},
		{"neighbour", "neigh add 2001:db8::7 lladdr 02:00:00:00:00:07 dev v0", "neigh del 2001:db8::7 dev v0", "2001:db8::7 "},
		{"proxy neighbour", "neigh add proxy 192.0.2.8 dev v0", "neigh del proxy 192.0.2.8 dev v0", "192.0.2.8"},
		{"proxy neighbour", "neigh add proxy 2001:db8::8 dev v0", "neigh del proxy 2001:db8::8 dev v0", "2001:db8::8"},
		{"nexthop object", "nexthop add id 9 via 192.0.2.9 dev v0", "nexthop del id 9", "id 9 "},
		{"nexthop object", "nexthop add id 10 via 2001:db8::9 dev v0", "nexthop del id 10", "id 10 "},
		{"in_device", "addr add 192.0.2.1/24 dev v1", "", ""}, // attached from the start
		{"inet6_dev", "link set v0 mtu 1500", "link set v0 mtu 1000", "refs "},
	} {
		if c.kind != "in_device" && c.kind != "inet6_dev" {
			if h := holder(t, r, net, d.Addr, c.kind); strings.Contains(h.Detail, c.detail) {
				t.Errorf("before %q: %+v", c.add, h)
			}
		}
		ip(t, c.add)
		if h := holder(t, r, net, d.Addr, c.kind); h.Count == 0 || !strings.Contains(h.Detail, c.detail) {
			t.Errorf("after %q: %+v, want %q in it", c.add, h, c.detail)
		}
		if c.del == "" {
			continue
		}
		ip(t, c.del)
		if h := holder(t, r, net, d.Addr, c.kind); h.Count != 0 && strings.Contains(h.Detail, c.detail) {
			t.Errorf("after %q: %+v", c.del, h)
		}
	}
	if r.l.tables.hasDevRoutes {
		before := holder(t, r, net, d.Addr, "ipv4 route (fib_nh)").Count
		ip(t, "route add 203.0.113.0/24 via 192.0.2.3")
		if after := holder(t, r, net, d.Addr, "ipv4 route (fib_nh)"); after.Count != before+1 {
			t.Errorf("a route was added: %+v, want %d", after, before+1)
		}
	}
}
