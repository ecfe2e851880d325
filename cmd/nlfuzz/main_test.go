package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stderrOf runs the command with its standard error caught.
func stderrOf(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	old := os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = w
	done := make(chan string)
	go func() { b, _ := io.ReadAll(r); done <- string(b) }()
	code = run(args)
	os.Stderr = old
	w.Close()
	return code, <-done
}

// Wrong use is exit 2, what the environment can't is exit 3; each is one line that names the thing.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	good := write("good.txt", "ip link set dev lo up\n")
	bad := write("bad.txt", "ip link set dev lo up\nip frobnicate d0\n")
	empty := write("empty.txt", "# nothing\n")
	junk := write("junk", strings.Repeat("junk", 1000))
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"unknown verb", []string{"frobnicate"}, exitUsage, "frobnicate"},
		{"unknown flag", []string{"run", "--frob"}, exitUsage, "--frob"},
		{"no file", []string{"replay"}, exitUsage, "<file>"},
		{"missing file", []string{"replay", filepath.Join(dir, "none")}, exitUsage, "no such file"},
		{"unknown operation", []string{"replay", bad}, exitUsage, "line 2: "},
		{"no operations", []string{"replay", empty}, exitUsage, "no operations"},
		{"never ends", []string{"run", "--time", "0"}, exitUsage, "never end"},
		{"no operations in a sequence", []string{"run", "--ops", "0"}, exitUsage, "--ops 0"},
		{"too little memory", []string{"replay", "--memory", "1", good}, exitUsage, "--memory 1"},
		{"a folder that can't be made", []string{"run", "--out", filepath.Join(good, "x")}, exitEnv, "--out"},
		{"a kernel that is none", []string{"replay", "--kernel", junk, good}, exitEnv, "not a kernel"},
		{"a kernel that is not there", []string{"replay", "--kernel", filepath.Join(dir, "none"), good}, exitEnv, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, said := stderrOf(t, c.args...)
			if code != c.code || !strings.Contains(said, c.says) || strings.Count(strings.TrimSpace(said), "\n") > 0 {
				t.Errorf("exit %d, want %d; said %q, want one line with %q", code, c.code, said, c.says)
			}
		})
	}
}
