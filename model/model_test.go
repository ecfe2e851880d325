package model_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/model"
)

// TestScripts runs testdata/*.txt. A line is one of
//
//	$ COMMAND   apply an operation; it must succeed unless the next line says otherwise
//	= ERRNO     the answer to the last operation
//	| WORDS     the lines of the state that contain WORDS must be exactly the indented lines that follow, in this order
//	@ DEV N...  the references on devices (Ledger)
//	reset       a fresh namespace
//	profile F   a fresh namespace of a kernel that lacks the difference F (a field of Profile)
//	# ...       a comment
//
// What the files expect was measured on kernels (MODEL-FACTS), not taken from the model.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var (
		s       = model.New(model.DefaultProfile())
		answer  model.Answer
		command string // the last operation while its answer is unchecked
		words   string // of the last | line
		want    []string
		n       int
	)
	where := func() string { return fmt.Sprintf("%s:%d", file, n) }
	// flush checks what the lines before asked for.
	flush := func() {
		if command != "" && (answer.Errno != 0 || answer.Unjudged) {
			t.Errorf("%s: before this line: %s: got %v, want success", where(), command, answer)
		}
		command = ""
		if words == "" {
			return
		}
		var got []string
		for _, l := range s.Tables().Lines() {
			if strings.Contains(l, words) {
				got = append(got, l)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: before this line: with %q:\ngot\n  %s\nwant\n  %s", where(), words, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
		words, want = "", nil
	}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		n++
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "  "):
			want = append(want, strings.TrimSpace(line))
		case strings.HasPrefix(line, "= "):
			if got := errnoName(answer.Errno); got != line[2:] || answer.Unjudged {
				t.Errorf("%s: %s: got %s %v, want %s", where(), command, got, answer, line[2:])
			}
			command = ""
		default:
			flush()
			switch {
			case line == "" || strings.HasPrefix(line, "#"):
			case line == "reset":
				s = model.New(model.DefaultProfile())
			case strings.HasPrefix(line, "profile "):
				s = model.New(without(t, line[8:]))
			case strings.HasPrefix(line, "| "):
				words = line[2:]
			case strings.HasPrefix(line, "@ "):
				ledger := s.Ledger()
				for pair := range slices.Chunk(strings.Fields(line[2:]), 2) {
					if got, ok := ledger[pair[0]]; !ok || fmt.Sprint(got) != pair[1] {
						t.Errorf("%s: %s has %d references, want %s", where(), pair[0], got, pair[1])
					}
				}
			case strings.HasPrefix(line, "$ "):
				command = line[2:]
				op, err := iproute.Parse(command)
				if err != nil {
					t.Fatalf("%s: %v", where(), err)
				}
				answer = s.Apply(op)
			default:
				t.Fatalf("%s: %q is no line of a test", where(), line)
			}
		}
	}
	n++
	flush()
}

func errnoName(e syscall.Errno) string {
	if e == syscall.EOPNOTSUPP {
		return "EOPNOTSUPP" // unix prefers the other name of the number
	}
	return unix.ErrnoName(e)
}

func without(t *testing.T, field string) model.Profile {
	p := model.DefaultProfile()
	switch field {
	case "RenameUp":
		p.RenameUp = false
	case "GroupWeight16":
		p.GroupWeight16 = false
	case "SkipsBetweenSiblings":
		p.SkipsBetweenSiblings = false
	case "RuleMatchesVRF":
		p.RuleMatchesVRF = false
	case "VLANsFollowLater":
		p.VLANsFollowLater = false
	case "SourceOfAnyDevice":
		p.SourceOfAnyDevice = false
	case "MultipathGatewayFirst":
		p.MultipathGatewayFirst = false
	default:
		t.Fatalf("no field %q in Profile", field)
	}
	return p
}

// TestClone: what happens to a copy must not be seen in the original, nor the other way round.
func TestClone(t *testing.T) {
	script := []string{
		"ip link set dev lo up", "ip link add name d0 type dummy", "ip link set dev d0 up", "ip addr add 10.0.0.1/24 dev d0", "ip addr add 2001:db8::1/64 dev d0",
		"ip nexthop add id 1 via 10.0.0.2 dev d0", "ip nexthop add id 11 group 1", "ip route add 192.0.2.0/24 nhid 11", "ip route add 198.51.100.0/24 via 10.0.0.3",
		"ip -6 route add 2001:db8:1::/64 via 2001:db8::2", "ip rule add pref 100 from 10.0.0.0/24 lookup 10",
		"ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:01 dev d0 nud permanent", "tc qdisc add dev d0 root handle 1: prio", "ip link del dev d0",
	}
	s := model.New(model.DefaultProfile())
	for i, line := range script {
		op, err := iproute.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		before := s.Tables().Lines()
		a, b := s.Clone(), s.Clone()
		if ans := a.Apply(op); ans.Errno != 0 {
			t.Fatalf("%s: %v", line, ans.Errno)
		}
		if got := s.Tables().Lines(); !slices.Equal(got, before) {
			t.Fatalf("op %d on a copy changed the original", i)
		}
		s.Apply(op)
		if got := b.Tables().Lines(); !slices.Equal(got, before) {
			t.Fatalf("op %d on the original changed a copy", i)
		}
		if d := model.Diff(s.Tables(), a.Tables()); len(d) > 0 {
			t.Fatalf("op %d: copy and original differ: %q", i, d)
		}
	}
}

// TestDiff: every kind of object is compared, and the order only where it has a meaning.
func TestDiff(t *testing.T) {
	s := model.New(model.DefaultProfile())
	for _, line := range []string{
		"ip link set dev lo up", "ip addr add 10.0.0.1/24 dev lo", "ip addr add 10.0.0.2/24 dev lo", "ip nexthop add id 1 dev lo", "ip nexthop add id 2 group 1",
		"ip route add 192.0.2.0/24 dev lo", "ip route append 192.0.2.0/24 via 10.0.0.1",
		"ip neigh add 2001:db8::1 lladdr 02:00:00:00:00:01 dev lo nud permanent", "tc qdisc add dev lo root netem delay 1s",
	} {
		op, err := iproute.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if a := s.Apply(op); a.Errno != 0 {
			t.Fatalf("%s: %v", line, a.Errno)
		}
	}
	changes := map[string]func(*model.Tables){
		"link":    func(t *model.Tables) { t.Links[0].MTU++ },
		"address": func(t *model.Tables) { t.Addrs = t.Addrs[1:] },
		"route":   func(t *model.Tables) { t.Routes[0].Metric = 7 },
		"leg":     func(t *model.Tables) { t.Routes[0].Legs[0].Linkdown = true },
		"alias order": func(t *model.Tables) {
			i := slices.IndexFunc(t.Routes, func(r model.RouteEntry) bool { return r.Dst.String() == "192.0.2.0/24" })
			t.Routes[i], t.Routes[i+1] = t.Routes[i+1], t.Routes[i]
		},
		"nexthop": func(t *model.Tables) { t.Nexthops[0].Scope = 0 },
		"member":  func(t *model.Tables) { t.Nexthops[1].Group = []model.Member{{ID: 1, Weight: 2}} },
		"rule":    func(t *model.Tables) { t.Rules[0].Table = 7 },
		"neigh":   func(t *model.Tables) { t.Neighs[0].MAC = "" },
		"qdisc":   func(t *model.Tables) { t.Qdiscs[0].Type = model.Prio },
	}
	for name, change := range changes {
		got := s.Tables()
		change(got)
		if d := model.Diff(s.Tables(), got); len(d) < 1 {
			t.Errorf("a changed %s is not seen", name)
		}
	}
	shuffled := s.Tables()
	slices.Reverse(shuffled.Links)
	slices.Reverse(shuffled.Nexthops)
	if d := model.Diff(s.Tables(), shuffled); len(d) != 0 {
		t.Errorf("order without meaning is seen: %q", d)
	}
}

// TestUnknownDevice: iproute2 answers for the kernel.
func TestUnknownDevice(t *testing.T) {
	for _, line := range []string{
		"ip link del dev nodev", "ip link set dev nodev up", "ip link set dev nodev down", "ip link set dev nodev master lo", "ip link set dev nodev nomaster",
		"ip link set dev nodev mtu 1500", "ip link set dev nodev name other", "ip addr add 10.0.0.1/24 dev nodev", "ip addr del 10.0.0.1/24 dev nodev",
		"ip route add 10.0.0.0/24 dev nodev", "ip -6 route del 2001:db8::/64 dev nodev", "ip nexthop add id 1 dev nodev",
		"ip neigh del 10.0.0.1 dev nodev", "tc qdisc del dev nodev root", "ip link add link nodev name mv0 type macvlan mode bridge",
	} {
		op, err := iproute.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		s := model.New(model.DefaultProfile())
		before := s.Tables()
		if a := s.Apply(op); a.Errno != syscall.ENODEV {
			t.Errorf("%s: got %v, want ENODEV", line, a.Errno)
		}
		if d := model.Diff(before, s.Tables()); len(d) != 0 {
			t.Errorf("%s: changed the state: %q", line, d)
		}
	}
}

// BenchmarkRoutes adds and deletes a route in a table of 100,000.
func BenchmarkRoutes(b *testing.B) {
	s := model.New(model.DefaultProfile())
	for _, line := range []string{"ip link add name d0 type dummy", "ip link set dev d0 up", "ip addr add 10.0.0.1/24 dev d0"} {
		op, _ := iproute.Parse(line)
		s.Apply(op)
	}
	for i := range 100_000 {
		op, _ := iproute.Parse(fmt.Sprintf("ip route add 172.%d.%d.%d/32 via 10.0.0.2", 16+i>>16, i>>8&255, i&255))
		if a := s.Apply(op); a.Errno != 0 {
			b.Fatal(a.Errno)
		}
	}
	add, _ := iproute.Parse("ip route add 192.0.2.0/24 via 10.0.0.2")
	del, _ := iproute.Parse("ip route del 192.0.2.0/24 via 10.0.0.2")
	for b.Loop() {
		s.Apply(add)
		s.Apply(del)
	}
}
