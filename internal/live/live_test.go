package live

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/kmem"
	"github.com/nlfuzz/nlfuzz/internal/rtnl"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// target makes a target in this kernel. Whatever this kernel has no module for is left to the tests in guests (internal/guest).
func target(t testing.TB, memory bool) *Target {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	var cfg Config
	if memory {
		r, err := kmem.Open()
		if err != nil {
			t.Skipf("needs kernel memory: %v", err)
		}
		t.Cleanup(func() { r.Close() })
		cfg.Memory = r
	}
	tg, err := New(cfg)
	if err != nil {
		t.Skipf("needs network namespaces: %v", err)
	}
	t.Cleanup(func() {
		if err := tg.Close(); err != nil {
			t.Error(err)
		}
	})
	return tg
}

// session is a namespace with what was last seen of it.
type session struct {
	t    testing.TB
	tg   *Target
	last []invariants.Dump
}

func begin(t testing.TB, tg *Target) *session {
	t.Helper()
	s := &session{t: t, tg: tg}
	o, err := tg.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.last = rtnl.Merge(nil, o.Dumps)
	return s
}

// apply runs lines and returns the last one's observation; each must be answered with its errno: "EEXIST: ip link add ...".
func (s *session) apply(lines ...string) *invariants.Observation {
	s.t.Helper()
	var o *invariants.Observation
	for _, l := range lines {
		want := "ok"
		if name, rest, ok := strings.Cut(l, ": "); ok && strings.HasPrefix(name, "E") {
			want, l = name, rest
		}
		op, err := iproute.Parse(l)
		if err != nil {
			s.t.Fatal(err)
		}
		if o, err = s.tg.Apply(s.t.Context(), op); err != nil {
			s.t.Fatal(err)
		}
		if got := invariants.ErrnoName(o.Errno); got != want || o.Blocked {
			s.t.Fatalf("%s: %s %s, blocked %t; want %s", l, got, o.Extack, o.Blocked, want)
		}
		s.last = rtnl.Merge(s.last, o.Dumps)
	}
	return o
}

func (s *session) tables() *model.Tables {
	s.t.Helper()
	tables, unknown, err := rtnl.Decode(s.last)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(unknown) > 0 {
		s.t.Errorf("unknown attributes: %v", unknown)
	}
	return tables
}

// until observes again until the tables are as wanted: the kernel reports some of its work from work items, up to a second later.
func (s *session) until(what string, is func(*model.Tables) bool) {
	s.t.Helper()
	for range 300 {
		if is(s.tables()) {
			return
		}
		time.Sleep(10 * time.Millisecond)
		o, err := s.tg.Observe(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		s.last = rtnl.Merge(s.last, o.Dumps)
	}
	s.t.Fatalf("never seen: %s; the tables: %q", what, s.tables().Lines())
}

func (s *session) end() {
	s.t.Helper()
	o, err := s.tg.End(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if !o.Net.Deleted || !o.Net.Gone {
		s.t.Fatalf("the namespace is not gone: %+v", o.Net)
	}
}

// What iproute2's lines do is seen in the tables.
func TestApply(t *testing.T) {
	for _, memory := range []bool{false, true} {
		t.Run(fmt.Sprintf("memory=%t", memory), func(t *testing.T) {
			s := begin(t, target(t, memory))
			s.apply("ip link set dev lo up",
				"ip link add name d0 type veth peer name d1",
				"EEXIST: ip link add name d0 type bridge",
				"ENODEV: ip link set dev nope up",
				"ip link set dev d0 up")
			if l := s.tables().Links; !slices.ContainsFunc(l, func(l model.Link) bool {
				return l == model.Link{Name: "d0", Type: model.Veth, Up: true, MTU: 1500, Lower: "d1"}
			}) {
				t.Errorf("d0 is not up without carrier: %+v", l)
			}
			for i := range 20 {
				s.apply(fmt.Sprintf("ip addr add 2001:db8:%x::1/64 dev d0", i))
				local := netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::1/128", i))
				s.until(fmt.Sprintf("%s has its local route", local), func(t *model.Tables) bool {
					return slices.ContainsFunc(t.Routes, func(r model.RouteEntry) bool { return r.Dst == local && r.Type == model.Local && r.Table == 255 })
				})
			}
			s.apply("ip link set dev d1 up",
				"ip addr add 192.0.2.1/24 dev d0",
				"ip nexthop add id 7 via 192.0.2.9 dev d0",
				"ip route add 198.51.100.0/24 nhid 7")
			// Link watch reports to d0 that its peer is down: the object goes, and the route with it.
			s.apply("ip link set dev d1 down")
			s.until("the object goes with its carrier, and its route with it", func(t *model.Tables) bool {
				return len(t.Nexthops) == 0 && !slices.ContainsFunc(t.Routes, func(r model.RouteEntry) bool { return r.NHID != 0 })
			})
			s.end()
		})
	}
}

// An observation has the dumps that changed, and only these.
func TestOnlyWhatChanged(t *testing.T) {
	tg := target(t, false)
	s := begin(t, tg)
	var names []string
	for _, d := range s.last {
		names = append(names, d.Table)
	}
	if !slices.Equal(names, rtnl.TableNames()) {
		t.Errorf("the first observation has %v", names)
	}
	o := s.apply("ip rule add pref 7 lookup 9")
	if len(o.Dumps) != 1 || o.Dumps[0].Table != "rule4" {
		t.Errorf("after a rule was added %d dumps have changed", len(o.Dumps))
	}
	o, err := tg.Observe(t.Context())
	if err != nil || len(o.Dumps) != 0 {
		t.Errorf("%d dumps differ without an operation, error %v", len(o.Dumps), err)
	}
	s.end()
}

func TestSockets(t *testing.T) {
	s := begin(t, target(t, false))
	s.apply("ENETUNREACH: nlfuzz hold udp4 s0 to 192.0.2.1",
		"ip link set dev lo up",
		"nlfuzz hold udp4 s0 to 127.0.0.1",
		"EEXIST: nlfuzz hold udp4 s0 to 127.0.0.1",
		"nlfuzz hold udp6 s1 to ::1 dev lo",
		"ENODEV: nlfuzz hold udp6 s2 to ::1 dev nope",
		"nlfuzz release s0",
		"ENOENT: nlfuzz release s0",
		"nlfuzz send udp4 from 127.0.0.1 to 127.0.0.2 count 3",
		"EADDRNOTAVAIL: nlfuzz send udp4 from 192.0.2.1 to 127.0.0.2",
		"nlfuzz send udp6 to ::1",
		"ip addr add 2001:db8::1/64 dev lo",
		"nlfuzz send raw6 from 2001:db8::2 to 2001:db8::1 dev lo count 2",
		"ENETUNREACH: nlfuzz send raw6 from 2001:db8::2 to 2001:db9::1",
		"nlfuzz settle")
	s.end() // closes s1
	s = begin(t, s.tg)
	s.apply("ENOENT: nlfuzz release s1") // names are the namespace's
	s.end()
}

// After a target is closed, neither a file descriptor nor a goroutine stays behind.
func TestNothingLeft(t *testing.T) {
	use := func(t *testing.T) {
		tg := target(t, false)
		for range 3 {
			s := begin(t, tg)
			s.apply("ip link set dev lo up", "nlfuzz hold udp4 s0 to 127.0.0.1", "ip link add name d0 type veth peer name d1")
			s.end()
		}
		begin(t, tg).apply("nlfuzz settle") // and a namespace that is not ended
	}
	t.Run("first", use) // what a first use makes for good
	fds, routines := count(t, "/proc/self/fd"), runtime.NumGoroutine()
	t.Run("again", use)
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		f, r := count(t, "/proc/self/fd"), runtime.NumGoroutine()
		if f <= fds && r <= routines {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d file descriptors and %d goroutines, before %d and %d", f, r, fds, routines)
		}
	}
}

func count(t *testing.T, dir string) int {
	t.Helper()
	e, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// End waits for a namespace that something keeps, and says that it stays.
func TestEndSeesThatItStays(t *testing.T) {
	tg := target(t, false)
	s := begin(t, tg)
	ns, err := unix.Dup(int(tg.netns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	o, err := tg.End(t.Context())
	unix.Close(ns)
	if err != nil || !o.Net.Deleted || o.Net.Gone || o.Net.Took < netnsLimit || time.Since(start) > 2*netnsLimit {
		t.Errorf("%+v, %v", o.Net, err)
	}
	if _, err := tg.Apply(t.Context(), model.LinkUp{Name: "lo"}); err == nil {
		t.Error("an operation ran after the end")
	}
	s = begin(t, tg)
	s.end()
}

func TestHeader6(t *testing.T) {
	h := header6(netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"))
	want := append([]byte{0x60, 0, 0, 0, 0, 0, 59, 64}, append(netip.MustParseAddr("2001:db8::1").AsSlice(), netip.MustParseAddr("2001:db8::2").AsSlice()...)...)
	if !bytes.Equal(h, want) {
		t.Errorf("%x, want %x", h, want)
	}
}

func TestLogText(t *testing.T) {
	for _, c := range []struct {
		record, want string
		ok           bool
	}{
		{"6,1234,5678,-;eth0: up; really\n SUBSYSTEM=net\n", "eth0: up; really", true},
		{"4,1,2,c,caller=T1;x\n", "x", true},
		{"garbage", "", false},
	} {
		if got, ok := logText(c.record); got != c.want || ok != c.ok {
			t.Errorf("%q is read as %q, %t", c.record, got, ok)
		}
	}
}

func BenchmarkApply(b *testing.B) {
	s := begin(b, target(b, true))
	s.apply("ip link set dev lo up", "ip link add name d0 type veth peer name d1", "ip link set dev d0 up")
	for b.Loop() {
		s.apply("ip addr add 192.0.2.1/24 dev d0", "ip addr del 192.0.2.1/24 dev d0")
	}
	s.end()
}

func BenchmarkBeginEnd(b *testing.B) {
	tg := target(b, true)
	for b.Loop() {
		begin(b, tg).end()
	}
}
