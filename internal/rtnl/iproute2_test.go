package rtnl_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/iproute/opgen"
	"github.com/nlfuzz/nlfuzz/internal/rtnl"
	"github.com/nlfuzz/nlfuzz/model"
)

// requestsFile holds command lines and, indented below each, the request that iproute2 6.1 sent for it, recorded with
// go test -run TestRecord -args -record. Devices have the ifindexes of devices.
const requestsFile = "testdata/requests.txt"

var record = flag.Bool("record", false, "TestRecord writes the requests of the installed iproute2 to "+requestsFile)

var devices = map[string]int{"lo": 1, "d0": 10, "d1": 11, "vrf0": 12, "br0": 13}

func index(name string) (int, bool) {
	i, ok := devices[name]
	return i, ok
}

func encode(t *testing.T, line string, index rtnl.Index) []byte {
	t.Helper()
	op, err := iproute.Parse(line)
	if err != nil {
		t.Fatal(err)
	}
	if got := iproute.Print(op); got != line {
		t.Errorf("%q is not in the form in which it is printed: %q", line, got)
	}
	req, errno, ok := rtnl.Encode(op, index)
	if !ok || errno != 0 {
		t.Fatalf("%s: errno %v, ok %t", line, errno, ok)
	}
	return req
}

func readRequests(t *testing.T) (lines []string, want map[string]string) {
	b, err := os.ReadFile(requestsFile)
	if err != nil {
		t.Fatal(err)
	}
	want = map[string]string{}
	for _, l := range strings.Split(string(b), "\n") {
		switch {
		case l == "" || strings.HasPrefix(l, "#"):
		case strings.HasPrefix(l, "\t"):
			want[lines[len(lines)-1]] += strings.TrimSpace(l)
		default:
			lines = append(lines, l)
		}
	}
	return lines, want
}

// Every kind of operation makes the very request that iproute2 makes of its line.
func TestEncodeAsRecorded(t *testing.T) {
	lines, want := readRequests(t)
	kinds := map[string]bool{}
	for _, l := range lines {
		op, err := iproute.Parse(l)
		if err != nil {
			t.Fatal(err)
		}
		kinds[fmt.Sprintf("%T", op)] = true
		if got := hex.EncodeToString(encode(t, l, index)); got != want[l] {
			t.Errorf("%s\n  made %s\n  want %s", l, got, want[l])
		}
	}
	for _, o := range []model.Op{model.LinkAdd{}, model.LinkDel{}, model.LinkUp{}, model.LinkDown{}, model.LinkMaster{}, model.LinkNoMaster{}, model.LinkMTU{}, model.LinkRename{},
		model.AddrAdd{}, model.AddrDel{}, model.Route{}, model.Nexthop{}, model.Rule{}, model.Neigh{}, model.Qdisc{}, model.Filter{}} {
		if !kinds[fmt.Sprintf("%T", o)] {
			t.Errorf("no request is recorded for %T", o)
		}
	}
}

func TestEncodeUnknownDevice(t *testing.T) {
	for _, l := range []string{"ip link del dev nope", "ip link set dev nope up", "ip link set dev d0 master nope", "ip link add link nope name m0 type macvlan mode bridge",
		"ip addr add 192.0.2.1/24 dev nope", "ip route add 192.0.2.0/24 dev nope", "ip route add 192.0.2.0/24 nexthop dev d0 nexthop dev nope", "ip nexthop add id 1 dev nope",
		"ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev nope nud permanent", "tc qdisc del dev nope root", "tc filter del dev nope parent 1: protocol all prio 1 handle 1 flow"} {
		op, err := iproute.Parse(l)
		if err != nil {
			t.Fatal(err)
		}
		if req, errno, ok := rtnl.Encode(op, index); req != nil || errno != unix.ENODEV || !ok {
			t.Errorf("%s: request %x, errno %v, ok %t; want ENODEV without a request", l, req, errno, ok)
		}
	}
	// A rule's devices are names for the kernel.
	encode(t, "ip rule add pref 1 iif nope lookup 10", index)
}

func TestEncodeNotOneRequest(t *testing.T) {
	for _, o := range []model.Op{model.Send{}, model.Hold{}, model.Release{}, model.PTB{}, model.Settle{}} {
		if _, _, ok := rtnl.Encode(o, index); ok {
			t.Errorf("%T is encoded", o)
		}
	}
}

// enterNamespace gives the calling test a namespace of its own, which ends with the test's thread.
func enterNamespace(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Skipf("needs a network namespace of its own: unshare: %v", err)
	}
}

// needTools skips where iproute2 6.1 or strace is missing: other versions of iproute2 need not make the same requests.
func needTools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"strace", "ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	if out, _ := exec.Command("ip", "-V").Output(); !strings.Contains(string(out), "iproute2-6.1.") {
		t.Skipf("needs iproute2 6.1, has %s", out)
	}
}

var (
	hexdump = regexp.MustCompile(`^ \| [0-9a-f]+  ((?:[0-9a-f]{2}  ?)+)`)
	noDev   = regexp.MustCompile(`Cannot find device "(.*)"|argument "(.*)" is wrong: Device does not exist`)
)

// trace runs a line under strace and returns the last request that it sent which changes something, without its sequence number.
func trace(line string) (req []byte, output string) {
	cmd := exec.Command("strace", append([]string{"-e", "trace=sendmsg,sendto", "-e", "write=all"}, strings.Fields(line)...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, _ := cmd.CombinedOutput() // the kernel may refuse it
	var sent [][]byte
	for _, l := range strings.Split(string(out), "\n") {
		if m := hexdump.FindStringSubmatch(l); m != nil {
			b, err := hex.DecodeString(strings.ReplaceAll(m[1], " ", ""))
			if err == nil && len(sent) > 0 {
				sent[len(sent)-1] = append(sent[len(sent)-1], b...)
			}
		} else if strings.HasPrefix(l, "send") {
			sent = append(sent, nil)
		}
	}
	for _, b := range sent {
		if len(b) > 16 && b[4]%4 <= 1 { // RTM_NEW*, RTM_DEL*
			req = b
		}
	}
	if req != nil {
		clear(req[8:12])
	}
	return req, string(out)
}

func sh(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command(strings.Fields(line)[0], strings.Fields(line)[1:]...).CombinedOutput(); err != nil {
		t.Skipf("needs a kernel that can %s: %v: %s", line, err, out)
	}
}

// TestRecord writes the requests that the installed iproute2 makes.
func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("needs -record")
	}
	needTools(t)
	lines, _ := readRequests(t)
	var out bytes.Buffer
	out.WriteString("# Command lines and the requests that iproute2 6.1 sent for them (go test -run TestRecord -args -record); ifindexes: lo 1, d0 10, d1 11, vrf0 12, br0 13.\n")
	for _, l := range lines {
		enterNamespace(t) // a fresh one: lines delete and rename
		for name, i := range devices {
			if name != "lo" {
				sh(t, fmt.Sprintf("ip link add name %s index %d type bridge", name, i))
			}
		}
		req, text := trace(l)
		if req == nil {
			t.Fatalf("%s: no request: %s", l, text)
		}
		fmt.Fprintf(&out, "%s\n\t%x\n", l, req)
	}
	if err := os.WriteFile(requestsFile, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Random operations make the requests that the installed iproute2 makes.
func TestEncodeAsIproute2(t *testing.T) {
	needTools(t)
	enterNamespace(t)
	compared := 0
	for _, typ := range opgen.Types() {
		for seed := range 6 {
			op := opgen.OfType(typ).Example(seed)
			line := iproute.Print(op)
			if strings.HasPrefix(line, "nlfuzz") || strings.Contains(line, "nexthop via inet6") {
				continue // iproute2 pads RTA_VIA of a leg with what is on its stack
			}
			var want []byte
			var text string
			for range 8 { // a tool stops at the first device that does not exist
				want, text = trace(line)
				m := noDev.FindStringSubmatch(text)
				if m == nil {
					break
				}
				sh(t, fmt.Sprintf("ip link add name %s type bridge", m[1]+m[2]))
			}
			if want == nil {
				continue // no word of iproute2 6.1 for it (delays over 274 s)
			}
			req, errno, ok := rtnl.Encode(op, func(name string) (int, bool) {
				i, err := net.InterfaceByName(name)
				if err != nil {
					return indexIn(want, op), true // it was deleted or renamed by the line itself
				}
				return i.Index, true
			})
			if !ok || errno != 0 || !bytes.Equal(req, want) {
				t.Errorf("%s: errno %v\n  made %x\n  want %x", line, errno, req, want)
			}
			compared++
		}
	}
	if compared < 70 {
		t.Errorf("compared only %d requests", compared)
	}
}

// indexIn takes the ifindex of a deleted or renamed link from the request.
func indexIn(req []byte, op model.Op) int {
	switch op.(type) {
	case model.LinkDel, model.LinkRename:
		return int(req[20]) | int(req[21])<<8
	}
	return -1
}
