package iproute_test

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/iproute/opgen"
)

// TestRealTools runs printed lines through ip and tc in a namespace of its own. The kernel may refuse them; the tools must not.
func TestRealTools(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s of iproute2: %v", tool, err)
		}
	}
	// The thread is never unlocked, so it and its namespace end with the test. Children start in it.
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Skipf("needs a network namespace of its own: unshare: %v", err)
	}

	var lines []string
	for _, c := range readTable(t, "testdata/variants.txt") {
		lines = append(lines, c.want)
	}
	for _, name := range opgen.Types() {
		for seed := range 25 {
			lines = append(lines, iproute.Print(opgen.OfType(name).Example(seed)))
		}
	}
	ran := map[string]int{}
	for _, l := range lines {
		if strings.HasPrefix(l, "nlfuzz ") || strings.Contains(l, "delay 1000s") {
			continue // tc of iproute2 6.1 has no word for more than iproute.MaxDelay
		}
		tool := strings.Fields(l)[0]
		ran[tool]++
		if out, code := runMakingDevices(t, l); code != 0 && code != kernelRefused {
			t.Errorf("%s\n exit code %d: %s", l, code, out)
		}
	}
	if ran["ip"] < 100 || ran["tc"] < 50 {
		t.Errorf("ran only %v lines", ran)
	}

	for _, l := range []string{"ip link set dev lo frob", "tc qdisc add dev lo root netem frob 1", "tc qdisc add dev lo root netem delay 275s"} {
		if out, code := runMakingDevices(t, l); code == 0 || code == kernelRefused {
			t.Errorf("%s: this test can't see that a tool refuses a line: exit code %d: %s", l, code, out)
		}
	}
}

// kernelRefused is the exit code of ip and tc where the kernel answered with an error.
const kernelRefused = 2

// noDevice matches what the tools say of a device that they must know to make a request.
var noDevice = regexp.MustCompile(`Cannot find device "(.*)"|argument "(.*)" is wrong: Device does not exist`)

// runMakingDevices runs a line, and again after it made a device that the tool did not find: some words are read only after the device's.
func runMakingDevices(t *testing.T, line string) (string, int) {
	t.Helper()
	for range 8 {
		out, code := run(strings.Fields(line))
		m := noDevice.FindStringSubmatch(out)
		if m == nil {
			return out, code
		}
		if out, code := run([]string{"ip", "link", "add", "name", m[1] + m[2], "type", "bridge"}); code != 0 {
			t.Skipf("needs a kernel with bridges: make %q: %s", m[1]+m[2], out)
		}
	}
	return "no end of missing devices", -1
}

func run(argv []string) (string, int) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err == nil {
		return string(out), 0
	}
	if e, ok := err.(*exec.ExitError); ok {
		return string(out), e.ExitCode()
	}
	return err.Error(), -1
}
