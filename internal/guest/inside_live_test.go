package guest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// inside runs a test of internal/live, by itself, in a guest: with the kernel under test below it and iproute2 beside it. The test's binary travels behind
// the script that unpacks it.
func inside(t *testing.T, cfg Config, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "live.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-trimpath", "-ldflags=-s -w", "-o", file, "github.com/nlfuzz/nlfuzz/internal/live")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the tests of internal/live: %v\n%s", err, out)
	}
	binary, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var script bytes.Buffer
	script.WriteString("sed '1,/^DATA$/d' \"$0\" >/tmp/live.test && chmod +x /tmp/live.test\n/tmp/live.test -test.v -test.run \"$1\"\nexit\nDATA\n")
	script.Write(binary)
	t.Setenv("NLFUZZ_CACHE", "") // the userland is in the common cache
	out, exit, err := RunScript(t.Context(), cfg, script.Bytes(), "^"+name+"$")
	if err != nil {
		t.Fatal(err)
	}
	if exit != 0 || !strings.Contains(string(out), "--- PASS: "+name) {
		t.Errorf("%s in the guest: exit code %d:\n%s", name, exit, out)
	}
	return string(out)
}

// In every kernel an ICMP error that the namespace sends itself makes an exception, which ip route get shows.
func TestLivePTB(t *testing.T) {
	onEachKernel(t, func(t *testing.T, cfg Config) {
		t.Log(inside(t, cfg, "TestPTB"))
		t.Log(inside(t, cfg, "TestPTBInVRF"))
	})
}
