package live

import (
	"encoding/hex"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/nlfuzz/nlfuzz/model"
)

// The packets are byte for byte those of the RFCs: headers, MTU field, quoted packet, and checksums that sum up to nothing.
func TestPathMTUError(t *testing.T) {
	for _, c := range []struct {
		from, to string
		mtu      uint16
		want     string
	}{
		{"192.0.2.1", "198.51.100.7", 600, "45000038000000004001f6c2" + "c0000201" + "c0000201" + // from and to itself
			"0304CKSM00000258" + "4500001c0000000040018ea5" + "c0000201" + "c6336407" + "0000ffff00000000"},
		{"2001:db8::1", "2001:db8:100::1", 1300, "6000000000383a40" + "20010db8000000000000000000000001" + "20010db8000000000000000000000001" +
			"0200CKSM00000514" + "6000000000083a40" + "20010db8000000000000000000000001" + "20010db8010000000000000000000001" + "8100224900000000"},
	} {
		from := netip.MustParseAddr(c.from)
		b := pathMTUError(from, netip.MustParseAddr(c.to), c.mtu)
		message, sum := b[20:], uint32(0)
		if from.Is6() {
			message = b[40:]
			sum = add(uint32(len(message))+58, b[8:40])
		}
		if got := fold(add(sum, message)); got != 0xffff {
			t.Errorf("%s: the message and its checksum sum up to %#x", c.to, got)
		}
		message[2], message[3] = 0, 0
		want := strings.Replace(c.want, "CKSM", "0000", 1)
		if got := hex.EncodeToString(b); got != want {
			t.Errorf("%s:\n%s, want\n%s", c.to, got, want)
		}
	}
}

// The kernel learns the path MTU: ip route get shows it, the tables do not, and the namespace goes away all the same.
func TestPTB(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs iproute2")
	}
	s := begin(t, target(t, false))
	s.apply("ip link set dev lo up", "ip link add name d0 type veth peer name d1", "ip link set dev d0 up", "ip link set dev d1 up",
		"ip addr add 192.0.2.1/24 dev d0", "ip addr add 2001:db8::1/64 dev d0",
		"ip route add 198.51.100.0/24 via 192.0.2.9", "ip -6 route add 2001:db8:100::/64 via 2001:db8::9")
	local := netip.MustParsePrefix("2001:db8::1/128")
	s.until("the address has its local route", func(t *model.Tables) bool {
		return slices.ContainsFunc(t.Routes, func(r model.RouteEntry) bool { return r.Dst == local && r.Type == model.Local })
	})
	before := s.tables().Lines()
	s.apply("nlfuzz ptb 2001:db8:100::1 mtu 1300 from 2001:db8::1", "nlfuzz ptb 2001:db8:100::2 mtu 1310", "nlfuzz ptb 198.51.100.1 mtu 600 from 192.0.2.1",
		"nlfuzz ptb 198.51.100.2 mtu 610", "ENETUNREACH: nlfuzz ptb 203.0.113.1 mtu 600", "ENODEV: nlfuzz ptb 198.51.100.2 mtu 600 dev nope")
	for addr, want := range map[string]string{"2001:db8:100::1": "mtu 1300", "2001:db8:100::2": "mtu 1310", "198.51.100.1": "mtu 600", "198.51.100.2": "mtu 610"} {
		var out []byte
		err := s.tg.thread.do(func() (err error) {
			out, err = exec.Command("ip", "route", "get", addr).CombinedOutput()
			return err
		})
		t.Logf("%s", out)
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("ip route get %s: %v: %s; want %s", addr, err, out, want)
		}
	}
	if after := s.tables().Lines(); strings.Join(before, "\n") != strings.Join(after, "\n") {
		t.Errorf("the tables changed from\n%s to\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	s.end()
}

// In a VRF the error has to come from inside, and the exception is found there. For IPv4 there is none: the kernel looks the route up without a device (icmp_err).
func TestPTBInVRF(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs iproute2")
	}
	tg := target(t, false)
	s := begin(t, tg)
	if o, err := tg.Apply(t.Context(), model.LinkAdd{Name: "vrf0", Type: model.VRF, Table: 10}); err != nil || o.Errno != 0 {
		t.Skipf("needs VRF: %v, %v", o, err)
	}
	s.apply("ip link set dev lo up", "ip link set dev vrf0 up", "ip link add name d0 type veth peer name d1", "ip link set dev d0 master vrf0",
		"ip link set dev d0 up", "ip link set dev d1 up", "ip addr add 192.0.2.1/24 dev d0", "ip addr add 2001:db8::1/64 dev d0",
		"ip route add 198.51.100.0/24 via 192.0.2.9 table 10", "ip -6 route add 2001:db8:100::/64 via 2001:db8::9 dev d0 table 10")
	local := netip.MustParsePrefix("2001:db8::1/128")
	s.until("the address has its local route", func(t *model.Tables) bool {
		return slices.ContainsFunc(t.Routes, func(r model.RouteEntry) bool { return r.Dst == local && r.Type == model.Local })
	})
	s.apply("nlfuzz ptb 2001:db8:100::1 mtu 1300 from 2001:db8::1 dev vrf0", "nlfuzz ptb 198.51.100.1 mtu 600 dev vrf0")
	for addr, exception := range map[string]string{"2001:db8:100::1": "mtu 1300", "198.51.100.1": ""} {
		var out []byte
		err := tg.thread.do(func() (err error) {
			out, err = exec.Command("ip", "route", "get", addr, "vrf", "vrf0").CombinedOutput()
			return err
		})
		t.Logf("%s", out)
		if has := strings.Contains(string(out), "mtu"); err != nil || has != (exception != "") || !strings.Contains(string(out), exception) {
			t.Errorf("ip route get %s: %v: %s; want %q", addr, err, out, exception)
		}
	}
	s.end()
}
