package planted

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var use = regexp.MustCompile(`nlfuzz_fault\(([0-9]+)\)`)

// TestBits checks that the table and the patch know the same faults.
func TestBits(t *testing.T) {
	used := map[uint]int{}
	for line := range strings.Lines(string(Patch())) {
		if !strings.HasPrefix(line, "+") {
			continue
		}
		for _, m := range use.FindAllStringSubmatch(line, -1) {
			bit, err := strconv.ParseUint(m[1], 10, 6)
			if err != nil {
				t.Fatalf("%s: %v", m[0], err)
			}
			used[uint(bit)]++
		}
	}
	for i, f := range Faults {
		if f.Bit != uint(i) {
			t.Errorf("%s: bit %d at place %d of the table", f.Name, f.Bit, i)
		}
		if used[f.Bit] == 0 {
			t.Errorf("%s: bit %d is not in the patch", f.Name, f.Bit)
		}
		if used[f.Bit] > 1 {
			t.Errorf("%s: bit %d is in the patch %d times", f.Name, f.Bit, used[f.Bit])
		}
		delete(used, f.Bit)
	}
	for bit := range used {
		t.Errorf("bit %d of the patch is not in the table", bit)
	}
}

func TestTable(t *testing.T) {
	kinds := []Kind{Reference, Dst, Netns, State, Errno, Notification, Time}
	name := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)
	seen := map[string]bool{}
	for _, f := range Faults {
		if seen[f.Name] || !name.MatchString(f.Name) {
			t.Errorf("%q: a second time, or not a good name", f.Name)
		}
		seen[f.Name] = true
		if !slices.Contains(kinds, f.Kind) {
			t.Errorf("%s: kind %q", f.Name, f.Kind)
		}
		if f.Where == "" || !strings.HasSuffix(f.What, ".") || strings.Contains(f.What, "\n") {
			t.Errorf("%s: where %q, what %q", f.Name, f.Where, f.What)
		}
		if got, ok := Find(f.Name); !ok || got != f || got.Mask() != 1<<f.Bit {
			t.Errorf("Find(%q) = %v, %v", f.Name, got, ok)
		}
	}
	if f, ok := Find("no-such-fault"); ok {
		t.Errorf("Find(no-such-fault) = %v", f)
	}
}

// TestPatchForm checks the line counts of every hunk, so that an edit by hand does not break the patch.
func TestPatchForm(t *testing.T) {
	numbers := regexp.MustCompile(`^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@`)
	count := func(s string) int {
		if s == "" {
			return 1
		}
		n, _ := strconv.Atoi(s)
		return n
	}
	left, right, hunks := 0, 0, 0
	for i, line := range strings.Split(strings.TrimSuffix(string(Patch()), "\n"), "\n") {
		m := numbers.FindStringSubmatch(line)
		switch {
		case m != nil && left == 0 && right == 0:
			left, right, hunks = count(m[1]), count(m[2]), hunks+1
		case left == 0 && right == 0 && (strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "+++ ")):
		case strings.HasPrefix(line, " "):
			left, right = left-1, right-1
		case strings.HasPrefix(line, "-"):
			left--
		case strings.HasPrefix(line, "+"):
			right--
		default:
			t.Fatalf("line %d does not fit: %q", i+1, line)
		}
		if left < 0 || right < 0 {
			t.Fatalf("line %d: the hunk is longer than it says", i+1)
		}
	}
	if left != 0 || right != 0 || hunks == 0 {
		t.Fatalf("%d hunks; the last one lacks %d and %d lines", hunks, left, right)
	}
}
