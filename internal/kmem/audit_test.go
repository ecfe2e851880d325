package kmem

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/invariants"
)

// auditOf reads the counts after a barrier: the deletion of a device waits for the RCU callbacks that were queued before it.
func auditOf(t *testing.T, r *Reader, net Net) *invariants.Memory {
	t.Helper()
	for range 2 { // what one callback releases may be put by another
		ip(t, "link add barrier0 type veth peer name barrier1")
		ip(t, "link del barrier0")
	}
	m, err := r.Audit(net, false)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func ledgerOf(t *testing.T, m *invariants.Memory, name string) int {
	t.Helper()
	d := m.Device(name)
	if d == nil {
		t.Fatalf("no device %s among %v", name, m.Devices)
	}
	return d.Ledger()
}

func TestAuditCountsObjects(t *testing.T) {
	r, net := live(t)
	veth(t)
	base := ledgerOf(t, auditOf(t, r, net), "v0")
	for _, c := range []struct {
		do, undo string
		refs     int
	}{
		{"route add 198.51.100.0/24 via 192.0.2.2", "route del 198.51.100.0/24", 1},
		{"-6 route add 2001:db8:9::/64 dev v0", "-6 route del 2001:db8:9::/64", 1},
		{"nexthop add id 7 via 192.0.2.9 dev v0", "nexthop del id 7", 1},
		{"neigh add proxy 192.0.2.77 dev v0", "neigh del proxy 192.0.2.77 dev v0", 1},
		// A neighbour entry holds a reference, which the ledger leaves out.
		{"neigh add 192.0.2.66 lladdr 02:00:00:00:00:01 dev v0 nud permanent", "neigh del 192.0.2.66 dev v0", 0},
		{"rule add pref 100 iif v0 lookup 10", "rule del pref 100", 0},
	} {
		ip(t, c.do)
		if got := ledgerOf(t, auditOf(t, r, net), "v0") - base; got != c.refs {
			t.Errorf("ip %s adds %d references, want %d", c.do, got, c.refs)
		}
		ip(t, c.undo)
		if got := ledgerOf(t, auditOf(t, r, net), "v0") - base; got != 0 {
			t.Errorf("ip %s leaves %d references, want 0", c.undo, got)
		}
	}
}

// A socket that is connected to a multicast address holds a route on the uncached list.
func TestAuditSeesHeldRoutes(t *testing.T) {
	r, net := live(t)
	veth(t)
	before := auditOf(t, r, net)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "v0"), unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{224, 0, 0, 1}})); err != nil {
		t.Fatal(err)
	}
	m := auditOf(t, r, net)
	if len(m.Dsts) != 1 || m.Dsts[0].Where != invariants.OnUncached || m.Dsts[0].Dev.Name != "v0" {
		t.Errorf("routes in use %+v, want one on the uncached list, on v0", m.Dsts)
	}
	if got, want := ledgerOf(t, m, "v0"), ledgerOf(t, before, "v0"); got != want {
		t.Errorf("the ledger of v0 is %d with the route, %d without", got, want)
	}
	unix.Close(fd)
	if m := auditOf(t, r, net); len(m.Dsts) != 0 {
		t.Errorf("after the socket's close: routes in use %+v", m.Dsts)
	}
}

// Where kallsyms shows no data, all addresses are derived: the answers are the same.
func TestAuditWithoutSymbols(t *testing.T) {
	r, net := live(t)
	hidden, err := open(func(*memory, ...string) (map[string]uint64, error) { return map[string]uint64{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer hidden.Close()
	veth(t)
	ip(t, "-6 addr add 2001:db8::1/64 dev v0 nodad")
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	if found, ok, err := hidden.Net(uint32(st.Ino)); err != nil || !ok || found != net {
		t.Fatalf("Net without symbols = %#x, %v, %v, want %#x", found, ok, err, net)
	}
	// Multicast reports and sockets come and go by themselves: once the two must agree.
	var diff string
	for range 10 {
		want := auditOf(t, r, net)
		got, err := hidden.Audit(net, false)
		if err != nil {
			t.Fatal(err)
		}
		diff = ""
		for _, d := range want.Devices {
			if g := got.Device(d.Name); g == nil || g.Ledger() != d.Ledger() || g.Addr != d.Addr {
				diff += fmt.Sprintf("%s reads as %+v without symbols, %+v with them\n", d.Name, g, d)
			}
		}
		if got.NetRefs < 1 || got.NetRefs > want.NetRefs || len(got.Devices) != len(want.Devices) { // the sockets of ip go a little after it
			diff += fmt.Sprintf("without symbols %d references, %d devices; with them %d, %d\n", got.NetRefs, len(got.Devices), want.NetRefs, len(want.Devices))
		}
		if diff == "" {
			return
		}
	}
	t.Error(diff)
}

// A thousand devices, and others that come and go while they are read: each reading either fails or is right for what stays.
func TestAuditUnderChange(t *testing.T) {
	r, net := live(t)
	var batch strings.Builder
	for i := range 500 {
		fmt.Fprintf(&batch, "link add a%d type veth peer name b%d\n", i, i)
	}
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip -batch: %v: %s", err, out)
	}
	want := auditOf(t, r, net)
	if len(want.Devices) != 1001 {
		t.Fatalf("%d devices, want 1001", len(want.Devices))
	}
	var churn sync.WaitGroup
	done := make(chan struct{})
	started := make(chan error, 1)
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(own)
	rounds := 0
	churn.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		err := unix.Setns(own, unix.CLONE_NEWNET)
		started <- err
		for err == nil {
			select {
			case <-done:
				return
			default:
			}
			exec.Command("ip", "link", "add", "x0", "type", "veth", "peer", "name", "x1").Run()
			exec.Command("ip", "link", "del", "x0").Run()
			rounds++
		}
	})
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	read, failed := 0, 0
	for rounds := 0; rounds < 60; rounds++ {
		m, err := r.Audit(net, false)
		if err != nil {
			failed++
			continue
		}
		read++
		for _, d := range want.Devices {
			if g := m.Device(d.Name); d.Name != "lo" && (g == nil || g.Ledger() != d.Ledger()) {
				t.Errorf("%s reads as %+v while others come and go, %+v before", d.Name, g, d)
			}
		}
	}
	close(done)
	churn.Wait()
	if read < 30 || rounds == 0 {
		t.Errorf("%d readings, %d failed, while devices came and went %d times", read, failed, rounds)
	}
}

// A kernel that does not describe its structures is named as that.
func TestNoBTF(t *testing.T) {
	live(t) // has the rights, and a thread of its own
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		t.Skip("needs a mount namespace: ", err)
	}
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", "/sys/kernel/btf", "tmpfs", 0, "")); err != nil {
		t.Skip("needs to hide /sys/kernel/btf: ", err)
	}
	r, err := Open()
	if err == nil {
		r.Close()
	}
	if !errors.Is(err, ErrNoBTF) || !strings.Contains(err.Error(), weaker) {
		t.Errorf("Open without BTF = %v, want ErrNoBTF and the weaker judge named", err)
	}
}
