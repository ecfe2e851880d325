package kmem

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/invariants"
)

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		err  error
		want error
	}{
		{syscall.EPERM, ErrPermission},
		{fmt.Errorf("load: %w", syscall.EACCES), ErrPermission},
		{syscall.ENOSYS, ErrNoBPF},
		{fmt.Errorf("load: %w: program of this type cannot use helper bpf_probe_read_kernel#113", syscall.EINVAL), ErrLockdown},
		{fmt.Errorf("load: %w: unknown func bpf_loop#181", syscall.EINVAL), ErrNoBPF},
	} {
		got := refused(c.err)
		if !errors.Is(got, c.want) || !errors.Is(got, c.err) || !strings.Contains(got.Error(), weaker) {
			t.Errorf("refused(%v) = %v, want it to wrap %v and to name the weaker judge", c.err, got, c.want)
		}
	}
}

func TestCount(t *testing.T) {
	for _, c := range []struct {
		rcuref bool
		raw    uint32
		want   int
	}{
		{false, 0, 0}, {false, 2, 2}, {false, 0xffffffff, 0},
		{true, 0, 1}, {true, 4, 5}, {true, 0xffffffff, 0}, {true, 0xe0000000, 0}, {true, 0xc0000000, 0},
	} {
		r := Reader{l: &layout{dstRcuref: c.rcuref}}
		if got := r.count(c.raw); got != c.want {
			t.Errorf("count(%#x) with rcuref %v = %d, want %d", c.raw, c.rcuref, got, c.want)
		}
	}
}

func TestTally(t *testing.T) {
	var h tally
	for i := range 5 {
		h.add("a", &dst{text: fmt.Sprint(i)})
	}
	h.add("b", &dst{text: "x"})
	want := []invariants.Holder{{Kind: "a", Count: 5, Detail: "0; 1; 2; ..."}, {Kind: "b", Count: 1, Detail: "x"}}
	if fmt.Sprint(h.holders) != fmt.Sprint(want) {
		t.Errorf("tally = %v, want %v", h.holders, want)
	}
}

// live opens a reader and moves the test's thread to a fresh namespace for as long as the test runs.
func live(t *testing.T) (*Reader, Net) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to read kernel memory and to create a network namespace")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip of iproute2 to set devices up")
	}
	r, err := Open()
	if err != nil {
		for _, known := range []error{ErrNoBTF, ErrLockdown, ErrPermission, ErrNoBPF} {
			if errors.Is(err, known) {
				t.Skip(err)
			}
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	runtime.LockOSThread() // never unlocked: the thread ends with the test and its namespace with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip("needs a network namespace: ", err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	net, ok, err := r.Net(uint32(st.Ino))
	if err != nil || !ok {
		t.Fatalf("Net(%d) = %v, %v; the namespace was just created", st.Ino, ok, err)
	}
	return r, net
}

func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

func device(t *testing.T, r *Reader, net Net, name string) invariants.Device {
	t.Helper()
	devs, err := r.Devices(net)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devs {
		if d.Name == name {
			return d
		}
	}
	t.Fatalf("no device %s in %v", name, devs)
	return invariants.Device{}
}

// ledger is the count without the reference of a queued link watch event.
func ledger(d invariants.Device) int {
	if d.Linkwatch {
		return d.Refs - 1
	}
	return d.Refs
}

// settle waits until a device's ledger has a value.
func settle(t *testing.T, r *Reader, net Net, name string, want int, what string) {
	t.Helper()
	var got int
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got = ledger(device(t, r, net, name)); got == want {
			return
		}
	}
	t.Fatalf("%s: %s has %d references after 5 s, want %d", what, name, got, want)
}

func veth(t *testing.T) {
	t.Helper()
	ip(t, "link add v0 type veth peer name v1")
	ip(t, "link set v0 addrgenmode none")
	ip(t, "link set v1 addrgenmode none")
	ip(t, "link set v0 up")
	ip(t, "link set v1 up")
	ip(t, "addr add 192.0.2.1/24 dev v0")
}

func TestRouteCountsOnce(t *testing.T) {
	r, net := live(t)
	veth(t)
	d := device(t, r, net, "v0")
	if d.State != 1 || d.Ifindex <= 0 || d.Addr == 0 {
		t.Fatalf("v0 reads as %+v, want a registered device", d)
	}
	base := ledger(d)
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		now := ledger(device(t, r, net, "v0")) // grace periods of the set-up pass
		if now != base {
			base, end = now, time.Now().Add(time.Second)
		}
	}
	ip(t, "route add 198.51.100.0/24 via 192.0.2.2")
	settle(t, r, net, "v0", base+1, "a route was added")
	ip(t, "route del 198.51.100.0/24")
	settle(t, r, net, "v0", base, "the route was deleted")
}

func TestRecheck(t *testing.T) {
	r, net := live(t)
	veth(t)
	d := device(t, r, net, "v0")
	now, same, err := r.Recheck(d)
	if err != nil || !same || now.Addr != d.Addr || now.Name != "v0" || now.State != 1 {
		t.Fatalf("Recheck(%+v) = %+v, %v, %v", d, now, same, err)
	}
	other := d
	other.Ifindex++
	if now, same, err := r.Recheck(other); err != nil || same {
		t.Errorf("Recheck with another ifindex = %+v, %v, %v; want not the same", now, same, err)
	}
	ip(t, "link del v0")
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, same, err = r.Recheck(d); err != nil || !same {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the device still rechecks as the same 5 s after its deletion returned")
		}
	}
	if err != nil {
		t.Errorf("Recheck of a freed device: %v", err)
	}
	if _, same, err := r.Recheck(invariants.Device{Addr: 0x1000}); err != nil || same {
		t.Errorf("Recheck of an address that is not the kernel's = %v, %v; want false and no error", same, err)
	}
}

func TestHoldersIPv4(t *testing.T) {
	r, net := live(t)
	veth(t)
	d := device(t, r, net, "v0")
	kinds := func() string {
		hs, err := r.Holders(net, d.Addr)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hs {
			if h.Kind == "ipv4 dst (dst.dev)" && strings.Contains(h.Detail, "uncached list") {
				return fmt.Sprintf("%d: %s", h.Count, h.Detail)
			}
		}
		return ""
	}
	if got := kinds(); got != "" {
		t.Fatalf("before any route is held: %s", got)
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
	got := kinds()
	if !strings.Contains(got, "dst.dev v0") || !strings.Contains(got, "type 5") {
		t.Fatalf("a connected multicast socket holds %q, want an uncached multicast route on v0", got)
	}
	t.Log(got)
}

func TestHoldersIPv6(t *testing.T) {
	r, net := live(t)
	veth(t)
	ip(t, "addr add 2001:db8::1/64 dev v0 nodad")
	d := device(t, r, net, "v0")
	ip(t, "route add 2001:db8:1::/64 via 2001:db8::2")
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet6{Port: 9, Addr: [16]byte{0x20, 1, 0x0d, 0xb8, 0, 1, 15: 7}}
	if err := unix.Connect(fd, to); err != nil {
		t.Fatal(err)
	}
	hs, err := r.Holders(net, d.Addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"ipv6 dst (dst.dev)", "ipv6 dst (rt6i_idev)", "ipv6 dst (from->nexthop)"} {
		found := false
		for _, h := range hs {
			found = found || h.Kind == kind && h.Count > 0 && strings.Contains(h.Detail, "2001:db8:1::/64")
		}
		if !found {
			t.Errorf("a connected socket's route is not among %+v as %s", hs, kind)
		}
	}
}
