package fuzz

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Finding is a violation with the smallest sequence that shows it, where it was seen and how reliably.
type Finding struct {
	Violation *invariants.Violation
	Ops       []model.Op              // minimal once reduced
	At        int                     // the operation after which it shows; len(Ops) for the namespace's end
	Answers   []model.Answer          // the model's, to Ops
	Seen      *invariants.Observation // the last observation that broke the claim; nil when the kernel died
	Original  Sequence                // as generated; its Ops are nil where the sequence was given
	Kernel    string                  // release and package version
	Command   string                  // that repeats the run that found it
	Failed    int                     // of Votes runs of Ops
	Votes     int
	Runs      int           // of the reduction
	Reduced   string        // why the reduction stopped early; empty if it was done
	Took      time.Duration // from the start of the campaign to the violation
	Reduction time.Duration
}

// Save writes the finding into a folder of its own below dir and returns the folder. The folder's name is the fingerprint's; a second finding with the
// same fingerprint on the same kernel replaces the first.
func (f *Finding) Save(dir string) (string, error) {
	to := filepath.Join(dir, Slug(f.Violation.Fingerprint))
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", fmt.Errorf("save the finding: %w", err)
	}
	j, err := json.MarshalIndent(f.record(), "", "  ")
	if err != nil {
		return "", fmt.Errorf("save the finding: %w", err)
	}
	files := map[string][]byte{"finding.json": append(j, '\n'), "sequence.txt": []byte(f.Text())}
	if f.Original.Ops != nil {
		files["original.txt"] = []byte(iproute.PrintSequence([]string{f.Violation.Fingerprint, "as generated: " + f.Command}, f.Original.Ops))
	}
	for name, data := range files {
		if err := WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			return "", err
		}
	}
	return to, nil
}

// Text is the finding as a corpus file: a header of comments and the operations.
func (f *Finding) Text() string {
	h := []string{f.Violation.Fingerprint, "kernel: " + f.Kernel}
	if f.Command != "" {
		h = append(h, "found by: "+f.Command)
	}
	if f.Votes > 0 {
		h = append(h, fmt.Sprintf("fails %d of %d times", f.Failed, f.Votes))
	}
	return iproute.PrintSequence(append(h, f.Violation.Detail...), f.Ops)
}

func (f *Finding) record() any {
	var lines []string
	for _, op := range f.Ops {
		lines = append(lines, iproute.Print(op))
	}
	r := struct {
		Fingerprint, Invariant, Kernel, Command string
		Detail, Ops                             []string
		At, Failed, Votes, ReductionRuns        int
		ReductionStopped                        string `json:",omitempty"`
		FoundAfterSeconds, ReductionSeconds     float64
		Seed                                    uint64
		Index                                   int
		Seen                                    *seen `json:",omitempty"`
	}{f.Violation.Fingerprint, f.Violation.Invariant, f.Kernel, f.Command, f.Violation.Detail, lines, f.At, f.Failed, f.Votes, f.Runs, f.Reduced,
		f.Took.Seconds(), f.Reduction.Seconds(), f.Original.Seed, f.Original.Index, nil}
	if o := f.Seen; o != nil {
		r.Seen = &seen{o.Op, invariants.ErrnoName(o.Errno), o.Extack, o.Took.Seconds(), o.Blocked, o.Devices, o.Log}
	}
	return r
}

// seen is an observation as a finding records it: without the dumps.
type seen struct {
	Op, Errno, Extack string
	TookSeconds       float64
	Blocked           bool
	Devices           []invariants.Device `json:",omitempty"`
	Log               []string            `json:",omitempty"`
}

var notSlug = regexp.MustCompile(`[^a-z0-9]+`)

// Slug is a fingerprint as the name of a folder.
func Slug(fingerprint string) string {
	s := strings.Trim(notSlug.ReplaceAllString(strings.ToLower(fingerprint), "-"), "-")
	return s[:min(len(s), 100)]
}

// WriteFile writes a whole file or none: a full disk or a kill leaves what was there before.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, werr := tmp.Write(data)
	err = errors.Join(werr, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
