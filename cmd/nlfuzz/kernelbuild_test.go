package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadPatches(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"2-b.patch", "1-a.diff", "README", "0.diff~"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readPatches(dir)
	if err != nil || len(got) != 2 || got[0].Name != "1-a.diff" || got[1].Name != "2-b.patch" || string(got[1].Text) != "2-b.patch" {
		t.Errorf("read %+v, %v", got, err)
	}
	if got, err := readPatches(""); got != nil || err != nil {
		t.Errorf("of no folder: %+v, %v", got, err)
	}
	if _, err := readPatches(t.TempDir()); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "no *.diff or *.patch in") {
		t.Errorf("of an empty folder: %v", err)
	}
}

func TestBuildOtherSeriesWithFaults(t *testing.T) {
	if code := run([]string{"kernel", "build", "--faults", "--series", "6.12"}); code != exitUsage {
		t.Errorf("exit %d, want %d", code, exitUsage)
	}
}
