// Package corpus holds sequences as files, each with the verdict that it must get.
package corpus

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/model"
)

//go:embed faults controls regressions
var files embed.FS

// Entry is one sequence of the corpus.
type Entry struct {
	Name   string // "faults/vrf-deleted-before-its-port"
	Title  string // the first line of its header
	Expect string // a regular expression that the violation's fingerprint must match; empty: nothing may be reported
	Ops    []model.Op
}

// All returns the corpus, sorted by name. A folder is a purpose: faults of current kernels, controls that look like them and are none, and
// regressions: public faults that are fixed.
//
// A file's header may hold one line "expect: REGEXP"; without it nothing may be reported.
func All() ([]Entry, error) {
	var out []Entry
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		e, err := parse(strings.TrimSuffix(path, ".txt"), b)
		if err != nil {
			return fmt.Errorf("corpus: %s: %w", path, err)
		}
		out = append(out, e)
		return nil
	})
	return out, err
}

func parse(name string, b []byte) (Entry, error) {
	header, ops, err := iproute.ParseSequence(bytes.NewReader(b))
	e := Entry{Name: name, Ops: ops}
	if err != nil {
		return e, err
	}
	if len(header) == 0 {
		return e, fmt.Errorf("no header that says what it shows")
	}
	e.Title = header[0]
	for _, h := range header {
		if x, ok := strings.CutPrefix(h, "expect: "); ok {
			if _, err := regexp.Compile(x); err != nil {
				return e, err
			}
			e.Expect = x
		}
	}
	return e, nil
}
