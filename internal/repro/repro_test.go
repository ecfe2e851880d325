package repro_test

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/iproute/opgen"
	"github.com/nlfuzz/nlfuzz/internal/repro"
	"github.com/nlfuzz/nlfuzz/model"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ops(t testing.TB, lines string) []model.Op {
	t.Helper()
	_, o, err := iproute.ParseSequence(strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// held is a fault of every kernel from 6.1 to 7.3 (KERNEL.md): packets to an own address, queued on lo, keep the device that owns the address.
const held = `
ip link set dev lo up
ip link add name d0 type dummy
ip link set dev d0 up
ip addr add 10.0.0.1/24 dev d0
ip addr add 2001:db8::1/64 dev d0
tc qdisc add dev lo root netem delay 1000s
nlfuzz hold udp4 s0 to 224.0.0.1 dev d0
nlfuzz send raw6 from 2001:db8::1 to 2001:db8::1 count 10
ip link add name d0 type dummy
ip link del dev d0
`

func scripts(t testing.TB) map[string]repro.Script {
	base := repro.Script{
		Title: "a title\nin two lines", Kernel: "7.3.4 (linux-image-7.3.4 7.3.4-1~bpo13+1)",
		Found: "nlfuzz run --kernel debian:7.3 --seed 5", Observed: []string{"d0 is held", "by $(something) `else`"},
	}
	with := func(fingerprint, lines string, c repro.Check, expect ...syscall.Errno) repro.Script {
		s := base
		s.Fingerprint, s.Ops, s.Check, s.Expect = fingerprint, ops(t, lines), c, expect
		return s
	}
	return map[string]repro.Script{
		"blocked": with("blocked/dummy/ipv6 dst (from->nexthop)", held, repro.Blocked{OpIndex: 9, Dev: "d0"}, 0, 0, 0, 0, 0, 0, 0, 0, syscall.EEXIST),
		"errno": with("errno/route add/EEXIST/ok", "ip link add name e0 type veth peer name e1\nip route add blackhole 192.0.2.0/24\nip route add blackhole 192.0.2.0/24",
			repro.Errno{OpIndex: 2, Want: syscall.EEXIST}),
		"state": with("state/route", "ip route add blackhole 192.0.2.0/24\nip route add blackhole 192.0.2.0/25", repro.State{OpIndex: 1,
			Missing:    []string{"route blackhole 192.0.2.0/25 table 254 metric 0 proto 3 scope 0"},
			Unexpected: []string{"route blackhole 192.0.2.0/24 table 254 metric 0 proto 3 scope 0", "gadget 1"}}),
		"log":  with("log/warning/fib_flush", "ip link set dev lo up", repro.Log{OpIndex: 0, Pattern: `WARNING: .* at net/ipv4/it's`}),
		"kept": with("ledger/+veth", "ip link add name e0 type veth peer name e1\nnlfuzz settle\nip link del dev e0", repro.Blocked{OpIndex: 2, Dev: "e0"}),
		"notify": with("notify/route del/RTM_DELROUTE", "ip link set dev lo up\nip -6 route add blackhole 2001:db8::/64\nip -6 route del blackhole 2001:db8::/64",
			repro.Notify{OpIndex: 2, Message: "RTM_DELROUTE"}),
		"slow":  with("slow/link del", "ip link add name e0 type veth peer name e1\nip link del dev e0", repro.Slow{OpIndex: 1, Limit: 150 * time.Millisecond}),
		"netns": with("netns", "ip link add name e0 type veth peer name e1\nip link set dev e0 up", repro.NetnsStuck{}),
	}
}

func TestGolden(t *testing.T) {
	for name, s := range scripts(t) {
		got := s.Render()
		checkSyntax(t, name, got)
		file := filepath.Join("testdata", name+".sh")
		if *update {
			if err := os.WriteFile(file, got, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s differs (-golden +rendered; go test -update if it is meant):\n%s", file, diff)
		}
	}
}

func checkSyntax(t testing.TB, name string, script []byte) {
	t.Helper()
	c := exec.Command("bash", "-n")
	c.Stdin = bytes.NewReader(script)
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("bash does not take the script %s: %v: %s", name, err, out)
	}
}

// TestAnySequence: whatever the operations and texts, bash reads the script and sees the words of each operation as they are.
func TestAnySequence(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skipf("needs bash: %v", err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		list := rapid.SliceOfN(opgen.Op(), 1, 6).Draw(rt, "ops")
		at := rapid.IntRange(0, len(list)-1).Draw(rt, "at")
		said := rapid.SliceOfN(rapid.String(), 0, 3).Draw(rt, "lines")
		check := rapid.SampledFrom([]repro.Check{
			repro.Blocked{OpIndex: at, Dev: "d0"}, repro.Errno{OpIndex: at, Want: syscall.EPERM, Got: syscall.ENODEV, Extack: strings.Join(said, " ")},
			repro.Errno{OpIndex: at, Got: syscall.EPERM}, repro.State{OpIndex: at, Missing: said, Unexpected: said},
			repro.Log{OpIndex: at, Pattern: strings.Join(said, "|")}, repro.NetnsStuck{},
			repro.Notify{OpIndex: at, Message: strings.Join(said, "")}, repro.Slow{OpIndex: at, Limit: time.Second},
		}).Draw(rt, "check")
		script := repro.Script{Title: strings.Join(said, "\n"), Observed: said, Ops: list, Check: check}.Render()
		checkSyntax(t, "", script)

		// Run only the sequence, with a step that shows its words.
		head, _, _ := bytes.Cut(script, []byte("\n# What holds references"))
		c := exec.Command("bash", "-c", string(head)+"\nstep() { [[ $1 == setting ]] || printf '[%s]' \"$@\"; }\nsequence\n")
		out, err := c.CombinedOutput()
		if err != nil {
			rt.Fatalf("%v: %s", err, out)
		}
		var want strings.Builder
		if _, ok := check.(repro.NetnsStuck); ok {
			at = len(list)
		}
		for _, op := range list[:at] {
			words := strings.Fields(iproute.Print(op))
			if words[0] == "nlfuzz" {
				words = words[1:]
			}
			if words[0] == "release" {
				words[0] = "close_socket"
			}
			want.WriteString("[" + strings.Join(words, "][") + "]")
		}
		if got := string(out); got != want.String() {
			rt.Fatalf("bash sees\n%s\nnot\n%s", got, want.String())
		}
	})
}

// run runs a script as it is on this machine's kernel, in the namespace that it makes.
func run(t *testing.T, s repro.Script, args ...string) (string, int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	for _, tool := range []string{"bash", "ip", "unshare", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	file := filepath.Join(t.TempDir(), "repro.sh")
	if err := os.WriteFile(file, s.Render(), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(file, args...).CombinedOutput()
	var e *exec.ExitError
	switch {
	case err == nil:
		return string(out), 0
	case errors.As(err, &e):
		return string(out), e.ExitCode()
	}
	t.Fatal(err)
	return "", -1
}

// TestOnThisKernel runs scripts on the kernel of this machine: what each must find, and that nothing stays behind.
func TestOnThisKernel(t *testing.T) {
	script := func(lines string, c repro.Check, expect ...syscall.Errno) repro.Script {
		return repro.Script{Title: t.Name(), Ops: ops(t, lines), Check: c, Expect: expect}
	}
	const veth = "ip link add name e0 type veth peer name e1\n"
	const route = veth + "ip link set dev e0 up\nip route add blackhole 192.0.2.0/24\n"
	const blackhole = "route blackhole 192.0.2.0/24 table 254 metric 0 proto 3 scope 0"
	const many = veth + "ip link set dev lo up\nip link add name br0 type bridge\nip link set dev e1 master br0\nip link set dev br0 up\nip link set dev e0 up\nip link set dev e1 up\n" +
		"ip link add link e0 name mv0 mtu 1400 type macvlan mode bridge\n" +
		"ip addr add 10.0.0.1/24 dev e0 metric 5\nip addr add 10.0.0.2/24 dev e0 noprefixroute\nip addr add 2001:db8::1/64 dev e0\n" +
		"ip route add 192.0.2.0/24 metric 7 table 10 nexthop via 10.0.0.8 dev e0 weight 2 nexthop via 10.0.0.9 dev e0\n" +
		"ip route add 198.51.100.0/24 via inet6 2001:db8::9 dev e0\nip route add default via 10.1.1.1 dev e0 onlink\n" +
		"ip -6 route add 2001:db8:1::/64 via 2001:db8::9\nip nexthop add id 1 via 2001:db8::9 dev e0\nip nexthop add id 2 blackhole\n" +
		"ip nexthop add id 4 dev e0\nip nexthop add id 3 group 1/4,3\nip -6 route add default nhid 1\nip route add 203.0.113.0/24 nhid 2\n" +
		"ip -6 route add unreachable 2001:db8:2::/64 table 10\n" +
		"ip rule add pref 100 from 192.0.2.0/24 fwmark 17 iif nodev lookup 10\nip -6 rule add pref 100 to 2001:db8::1 blackhole\nip rule add pref 101 l3mdev\n" +
		"ip neigh add 10.0.0.7 lladdr 02:00:00:00:00:01 dev e0\nip neigh add proxy 2001:db8::7 dev e0\n"
	for _, c := range []struct {
		name   string
		script repro.Script
		args   string
		exit   int
		says   string
	}{
		{"delete returns", script(veth+"ip link del dev e0", repro.Blocked{OpIndex: 1, Dev: "e0"}), "", 0, "PASS: it returned after"},
		{"delete returns, socket held", script(veth+"ip link set dev lo up\nnlfuzz hold udp4 s0 to 127.0.0.1\nip link del dev e0", repro.Blocked{OpIndex: 3}), "--control", 0, "close_sockets"},
		{"no control", script(veth+"ip link del dev e0", repro.Blocked{OpIndex: 1}), "--control", 4, "SKIP: no control"},
		{"delete fails", script("ip link del dev e0", repro.Blocked{OpIndex: 0}), "", 4, "SKIP: it failed, which nlfuzz did not see"},
		{"no such qdisc", script("tc qdisc add dev lo root prio\nip link set dev lo up", repro.Blocked{OpIndex: 1}), "", 4, "SKIP: this machine lacks what this step needs: tc qdisc add dev lo root prio"},
		{"step fails", script("ip link set dev nodev up\nip link set dev lo up", repro.Blocked{OpIndex: 1}), "", 4, "SKIP: set-up step failed"},
		{"step fails as it must", script("ip link set dev nodev up\nip link set dev lo up", repro.Blocked{OpIndex: 1}, syscall.ENODEV), "", 0, "# ENODEV"},
		{"step succeeds and must not", script("ip link set dev lo up\nip link set dev lo up", repro.Blocked{OpIndex: 1}, syscall.ENODEV), "", 4, "SKIP: set-up step succeeded"},
		{"right errno", script(veth+veth, repro.Errno{OpIndex: 1, Want: syscall.EEXIST}), "", 0, "PASS: it was refused with EEXIST"},
		{"wrong errno", script(veth+veth, repro.Errno{OpIndex: 1, Want: syscall.EPERM, Got: syscall.EEXIST}), "", 1, "FAIL: it was refused with EEXIST; EPERM is right"},
		{"refused", script(veth+veth, repro.Errno{OpIndex: 1, Got: syscall.EEXIST}), "", 1, "FAIL: it was refused with EEXIST; success is right"},
		{"not refused", script(veth, repro.Errno{OpIndex: 0, Want: syscall.EEXIST}), "", 1, "FAIL: it succeeded; EEXIST is right"},
		{"other errno", script(veth+veth, repro.Errno{OpIndex: 1, Want: syscall.EPERM, Got: syscall.EBUSY}), "", 4, "SKIP: it was refused, but"},
		{"extack", script(veth+"ip nexthop add id 1 dev e0", repro.Errno{OpIndex: 1, Got: syscall.ENETDOWN, Extack: "Nexthop device is not up."}), "", 1, "FAIL: it was refused with ENETDOWN"},
		{"send", script("ip link set dev lo up\nip addr add 2001:db8::1/64 dev lo\nnlfuzz send raw6 from 2001:db8::1 to 2001:db8::1 count 3\nnlfuzz send udp6 to 2001:db8::1 dev lo\n"+
			"nlfuzz send udp4 from 127.0.0.1 to 127.0.0.1\nnlfuzz hold udp6 s to ::1\nnlfuzz release s\nnlfuzz settle\nip link set dev lo down", repro.Blocked{OpIndex: 8}), "", 0, "PASS"},
		{"send refused", script("nlfuzz send udp4 to 192.0.2.1", repro.Errno{OpIndex: 0, Got: syscall.ENETUNREACH}), "", 1, "FAIL: it was refused with ENETUNREACH"},
		{"connect refused", script("nlfuzz hold udp6 s to 2001:db8::1", repro.Errno{OpIndex: 0, Want: syscall.ENETUNREACH}), "", 0, "PASS"},
		{"right state", script(route, repro.State{OpIndex: 2, Missing: []string{
			"link e0 type veth up no-carrier mtu 1500 lower e1", "link e1 type veth down mtu 1500 lower e0", blackhole,
			"rule inet pref 32766 lookup 254 proto 2", "rule inet pref 0 lookup 255 proto 2"},
			Unexpected: []string{"route blackhole 192.0.2.0/24 table 254 metric 5 proto 3 scope 0", "addr 10.0.0.1/24 dev e0"}}), "", 0, "PASS: the tables are right"},
		{"right state, many kinds", script(many, repro.State{OpIndex: strings.Count(many, "\n") - 1, Missing: []string{
			"link e0 type veth up mtu 1500 lower e1", "link br0 type bridge up mtu 1500", "link e1 type veth up mtu 1500 master br0 lower e0",
			"link mv0 type macvlan down mtu 1400 lower e0",
			"addr 10.0.0.1/24 dev e0 metric 5", "addr 10.0.0.2/24 dev e0 secondary noprefixroute", "addr 2001:db8::1/64 dev e0",
			"route unicast 10.0.0.0/24 table 254 metric 5 proto 2 scope 253 src 10.0.0.1 dev e0",
			"route local 10.0.0.1/32 table 255 metric 0 proto 2 scope 254 src 10.0.0.1 dev e0",
			"route unicast 192.0.2.0/24 table 10 metric 7 proto 3 scope 0 leg 1 via 10.0.0.8 dev e0 weight 2 leg 2 via 10.0.0.9 dev e0",
			"route unicast 198.51.100.0/24 table 254 metric 0 proto 3 scope 0 via 2001:db8::9 dev e0",
			"route unicast 0.0.0.0/0 table 254 metric 0 proto 3 scope 0 via 10.1.1.1 dev e0 onlink",
			"route unicast 2001:db8:1::/64 table 254 metric 1024 proto 3 via 2001:db8::9 dev e0",
			"route unicast ::/0 table 254 metric 1024 proto 3 nhid 1", "route blackhole 203.0.113.0/24 table 254 metric 0 proto 3 scope 0 nhid 2",
			"route unreachable 2001:db8:2::/64 table 10 metric 1024 proto 3 dev lo",
			"nexthop id 1 inet6 via 2001:db8::9 dev e0", "nexthop id 2 inet blackhole", "nexthop id 3 group 1,1/4,3", "nexthop id 4 inet dev e0 scope 253",
			"rule inet pref 100 from 192.0.2.0/24 fwmark 17 iif nodev [detached] lookup 10 proto 3", "rule inet6 pref 100 to 2001:db8::1/128 blackhole proto 3",
			"rule inet pref 101 l3mdev proto 3", "neigh 10.0.0.7 dev e0 lladdr 02:00:00:00:00:01", "neigh 2001:db8::7 dev e0 proxy"},
			Unexpected: []string{"link e0 type veth up no-carrier mtu 1500 lower e1", "link mv0 type macvlan up mtu 1400 lower e0", "link e1 type veth up mtu 1500 lower e0",
				"addr 10.0.0.2/24 dev e0", "addr 10.0.0.1/24 dev e0 secondary metric 5",
				"route unicast 192.0.2.0/24 table 10 metric 7 proto 3 scope 0 leg 1 via 10.0.0.8 dev e0 leg 2 via 10.0.0.9 dev e0",
				"route unicast 2001:db8:1::/64 table 254 metric 1024 proto 3 dev e0", "route unicast ::/0 table 254 metric 1024 proto 3 via 2001:db8::9 dev e0",
				"nexthop id 4 inet blackhole", "nexthop id 3 group 1,1/4,1", "rule inet pref 100 from 192.0.2.0/24 lookup 10 proto 3",
				"neigh 10.0.0.8 dev e0 lladdr 02:00:00:00:00:01", "neigh 10.0.0.7 dev e0 lladdr 02:00:00:00:00:02"}}), "--limit 2", 0, "PASS: the tables are right"},
		{"missing", script(route, repro.State{OpIndex: 2, Missing: []string{"route unicast 192.0.2.0/25 table 254 metric 0 proto 3 scope 253 dev e0"}}), "--limit 1", 1, "missing: route unicast"},
		{"unexpected", script(route, repro.State{OpIndex: 2, Unexpected: []string{blackhole}}), "--limit 1", 1, "unexpected: " + blackhole},
		{"not told", script(route, repro.State{OpIndex: 2, Unexpected: []string{"gadget"}}), "", 4, "not checked"},
		{"quiet log", script(route, repro.Log{OpIndex: 2, Pattern: "WARNING: .* at nowhere"}), "--limit 1", 0, "PASS: nothing in the kernel log"},
		{"log shows it", script(route, repro.Log{OpIndex: 2, Pattern: `repro\.sh [0-9]+`}), "", 1, "FAIL: the kernel's log shows it"}, // the script's own mark
		{"heard", script(veth+"ip link set dev lo up\nip -6 route add blackhole 2001:db8::/64\nip -6 route del blackhole 2001:db8::/64",
			repro.Notify{OpIndex: 3, Message: "RTM_DELROUTE"}), "", 0, "PASS: RTM_DELROUTE was heard"},
		{"heard, new", script(veth+"ip link set dev e0 up", repro.Notify{OpIndex: 1, Message: "RTM_NEWLINK"}), "", 0, "PASS: RTM_NEWLINK was heard"},
		{"not heard", script(route, repro.Notify{OpIndex: 2, Message: "RTM_DELROUTE"}), "--limit 1", 1, "FAIL: it succeeded, but no RTM_DELROUTE was heard"},
		{"not heard, new", script(route+"ip route del blackhole 192.0.2.0/24", repro.Notify{OpIndex: 3, Message: "RTM_NEWROUTE"}), "--limit 1", 1, "[ROUTE]Deleted blackhole 192.0.2.0/24"},
		{"not run", script("ip link del dev e0", repro.Notify{OpIndex: 0, Message: "RTM_DELLINK"}), "", 4, "SKIP: it failed, which nlfuzz did not see"},
		{"fast", script(veth+"ip link del dev e0", repro.Slow{OpIndex: 1, Limit: time.Minute}), "", 0, "PASS: it took no longer than 60.00 s"},
		{"slow", script(veth+"nlfuzz settle", repro.Slow{OpIndex: 1, Limit: time.Minute}), "--limit 0.5", 1, "FAIL: it took longer than 0.5 s, each time"},
		{"slow, socket", script("ip link set dev lo up\nnlfuzz hold udp4 s to 127.0.0.1", repro.Slow{OpIndex: 1, Limit: time.Minute}), "", 0, "PASS: it took no longer than 60.00 s"},
		{"slow, failed", script("ip -6 route del 2001:db8::/64", repro.Slow{OpIndex: 0, Limit: time.Minute}), "", 4, "SKIP: it failed, which nlfuzz did not see: RTNETLINK answers: No such process"},
		{"slow, refused", script("ip link del dev e0", repro.Slow{OpIndex: 0, Limit: time.Minute}, syscall.ENODEV), "--limit 2", 0, "PASS: it took no longer than 2 s"},
		{"namespace goes", script(route, repro.NetnsStuck{}), "", 0, "PASS: the namespace went away"},
		{"help", script(route, repro.NetnsStuck{}), "--help", 0, "--limit SECONDS"},
		{"usage", script(route, repro.NetnsStuck{}), "--limit x", 2, "usage:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, exit := run(t, c.script, strings.Fields(c.args)...)
			if exit != c.exit || !strings.Contains(out, c.says) {
				t.Errorf("exit code %d, want %d and %q in:\n%s", exit, c.exit, c.says, out)
			}
		})
	}
}

// TestInterrupted: Ctrl-C in the middle leaves no process, no namespace and no sysctl behind.
func TestInterrupted(t *testing.T) {
	s := repro.Script{Ops: ops(t, "ip link set dev lo up\nnlfuzz hold udp4 s to 127.0.0.1\n"+strings.Repeat("nlfuzz settle\n", 60)+"ip link set dev lo down"), Check: repro.Blocked{OpIndex: 62}}
	const sysctl = "/proc/sys/net/core/netdev_unregister_timeout_secs"
	before, _ := os.ReadFile(sysctl)
	file := filepath.Join(t.TempDir(), "repro.sh")
	if err := os.WriteFile(file, s.Render(), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, s, "--help") // skips without what it needs
	c := exec.Command(file)
	c.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the terminal's Ctrl-C goes to the whole group
	pipe, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(30*time.Second, func() { syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	defer watchdog.Stop()
	var keeper string
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		if m := regexp.MustCompile(`nsenter -t (\d+) -n`).FindStringSubmatch(lines.Text()); m != nil {
			keeper = m[1]
		}
		if strings.HasSuffix(lines.Text(), "settle") {
			break
		}
	}
	ns, err := os.Readlink("/proc/" + keeper + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if inNamespace(ns) < 2 {
		t.Errorf("%d processes in the namespace, not the keeper and the socket's", inNamespace(ns))
	}
	if err := syscall.Kill(-c.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		t.Log(lines.Text())
	}
	if err := c.Wait(); err == nil || err.Error() != "exit status 130" {
		t.Errorf("the script ended with %v, not with exit status 130", err)
	}
	if n := inNamespace(ns); n != 0 {
		t.Errorf("%d processes are left in the namespace", n)
	}
	if after, _ := os.ReadFile(sysctl); !bytes.Equal(before, after) {
		t.Errorf("%s is %s, and was %s", sysctl, after, before)
	}
	if left, _ := filepath.Glob(filepath.Join(c.Env[len(c.Env)-1][len("TMPDIR="):], "*")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// inNamespace counts the processes of a network namespace.
func inNamespace(ns string) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, p := range all {
		if l, err := os.Readlink(p); err == nil && l == ns {
			n++
		}
	}
	return n
}
