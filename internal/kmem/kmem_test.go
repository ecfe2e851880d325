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

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/invariants"
)

func TestRefused(t *testing.T) {
	verdict := func(line string) error {
		return fmt.Errorf("load: %w", &ebpf.VerifierError{Cause: syscall.EINVAL, Log: []string{"0: (b7) r0 = 0", line, "", "processed 1 insns"}})
	}
	const free, locked = "[none] integrity confidentiality", "none integrity [confidentiality]"
	for _, c := range []struct {
		what     string
		err      error
		lockdown string
		known    bool
		want     error
	}{
		{"no right", syscall.EPERM, free, true, ErrPermission},
		{"no right, wrapped", fmt.Errorf("load: %w", syscall.EACCES), free, true, ErrPermission},
		{"no system call", syscall.ENOSYS, free, true, ErrNoBPF},
		{"locked down, new text", verdict("program of this type cannot use helper bpf_probe_read_kernel#113"), locked, true, ErrLockdown},
		{"locked down, old text", verdict("unknown func bpf_probe_read_kernel#113"), locked, true, ErrLockdown},
		{"locked down or without BPF_EVENTS, securityfs not mounted", verdict("program of this type cannot use helper bpf_probe_read#4"), "", false, ErrHidden},
		{"CAP_BPF without CAP_PERFMON", verdict("unknown func bpf_probe_read_kernel#113"), free, true, ErrPermission},
		{"before 5.17", verdict("unknown func bpf_loop#181"), free, true, ErrNoBPF},
	} {
		got := refusedIn(c.err, c.lockdown, c.known)
		if !errors.Is(got, c.want) || !errors.Is(got, c.err) || !strings.Contains(got.Error(), weaker) {
			t.Errorf("%s: refusedIn(%v) = %v, want it to wrap %v and to name the weaker judge", c.what, c.err, got, c.want)
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
		h.add("a", func() string {
			if i >= maxDetails {
				t.Errorf("object %d is described, over the limit of %d", i, maxDetails)
			}
			return fmt.Sprint(i)
		})
	}
	h.add("b", func() string { return "x" })
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
		for _, known := range []error{ErrNoBTF, ErrLockdown, ErrHidden, ErrPermission, ErrNoBPF} {
			if errors.Is(err, known) {
				t.Skip("needs a kernel whose memory can be read: ", err)
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
	if one, err := r.Device(d.Addr); err != nil || one.Name != "v0" || one.Ifindex != d.Ifindex {
		t.Errorf("Device(%#x) = %+v, %v, want v0", d.Addr, one, err)
	}
	if one, err := r.Device(0x1000); err == nil {
		t.Errorf("Device of an address that is not the kernel's = %+v, want an error", one)
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
	one, err := r.Device(d.Addr)
	if err == nil && one.Name == d.Name && one.Ifindex == d.Ifindex {
		t.Errorf("Device of a freed device = %+v, want an error or what its memory was used for since", one)
	}
	if err != nil { // else somebody else's device is there now
		if hs, err := r.Holders(net, d.Addr); err != nil || len(hs) != 0 {
			t.Errorf("Holders of a freed device = %+v, %v, want none", hs, err)
		}
	}
	if _, same, err := r.Recheck(invariants.Device{Addr: 0x1000}); err != nil || same {
		t.Errorf("Recheck of an address that is not the kernel's = %v, %v; want false and no error", same, err)
	}
}

func TestWalksAreBounded(t *testing.T) {
	r, net := live(t)
	veth(t)
	devs, err := r.Devices(net)
	if err != nil {
		t.Fatal(err)
	}
	head := uint64(net) + r.l.netDevs
	if nodes, err := r.m.ring("devices", head, 0, 0, len(devs)); err != nil || len(nodes) != len(devs) {
		t.Errorf("a walk of %d devices with just that limit = %d, %v", len(devs), len(nodes), err)
	}
	if nodes, err := r.m.ring("devices", head, 0, 0, len(devs)-1); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("within %d entries", len(devs)-1)) {
		t.Errorf("a walk of %d devices with a limit of one less = %d, %v; want an error that names the limit", len(devs), len(nodes), err)
	}
	if nodes, err := r.m.ring("nothing", 0x1000, 0, 0, 10); err == nil || !strings.Contains(err.Error(), "unreadable") {
		t.Errorf("a walk from an address that is not the kernel's = %d, %v; want an error", len(nodes), err)
	}
}
