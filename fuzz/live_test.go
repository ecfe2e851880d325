package fuzz_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nlfuzz/nlfuzz/corpus"
	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/internal/guest"
	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/kernel"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// onEachKernel runs a test in a guest of each kernel that NLFUZZ_LIVE names, with the static binary NLFUZZ_BIN as init.
func onEachKernel(t *testing.T, test func(t *testing.T, r *fuzz.Runner)) {
	specs, bin := os.Getenv("NLFUZZ_LIVE"), os.Getenv("NLFUZZ_BIN")
	if specs == "" || bin == "" {
		t.Skip("needs guests: NLFUZZ_LIVE (kernels) and NLFUZZ_BIN (a static nlfuzz) are not set; make live sets them")
	}
	for _, spec := range strings.Split(specs, ",") {
		t.Run(spec, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			img, err := kernel.Resolve(ctx, spec, kernel.Options{})
			if err != nil {
				t.Fatal(err)
			}
			g, err := guest.Start(ctx, guest.Config{Image: img, Binary: bin})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			})
			k, err := fuzz.Probe(ctx, g)
			if err != nil {
				t.Fatal(err)
			}
			if len(k.Missing) > 0 {
				t.Errorf("%s lacks %v", img, k.Missing)
			}
			test(t, &fuzz.Runner{Target: g, Kernel: k})
		})
	}
}

// Each judge flags a fault planted on the live target; none flags the control.
func TestLiveCanaries(t *testing.T) {
	onEachKernel(t, func(t *testing.T, r *fuzz.Runner) {
		if err := fuzz.Canary(t.Context(), r); err != nil {
			t.Error(err)
		}
	})
}

// Every file of the corpus gets the verdict that it must get: known faults are seen, controls and fixed faults are not reported.
func TestLiveCorpus(t *testing.T) {
	entries, err := corpus.All()
	if err != nil {
		t.Fatal(err)
	}
	onEachKernel(t, func(t *testing.T, r *fuzz.Runner) {
		for _, e := range entries {
			t.Run(e.Name, func(t *testing.T) {
				out, err := r.Run(t.Context(), e.Ops)
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case out.Violation == nil && e.Expect != "":
					t.Errorf("%s: not seen, expected %s", e.Title, e.Expect)
				case out.Violation != nil && e.Expect == "":
					t.Errorf("%s: reported: %s\n%s", e.Title, out.Violation.Fingerprint, strings.Join(out.Violation.Detail, "\n"))
				case out.Violation != nil && !regexp.MustCompile(e.Expect).MatchString(out.Violation.Fingerprint):
					t.Errorf("%s: reported as %s, expected %s", e.Title, out.Violation.Fingerprint, e.Expect)
				}
			})
		}
	})
}

// knownFault is the one fault of current kernels that random sequences meet (docs/known-faults.md); anything else is news.
var knownFault = regexp.MustCompile(`^(blocked|orphan)/.*ipv6 dst`)

// A short campaign in its smallest honest form: no sequence diverges from the model, and the known fault is found by generation and reduced.
func TestLiveCampaign(t *testing.T) {
	onEachKernel(t, func(t *testing.T, r *fuzz.Runner) {
		found := 0
		c := &fuzz.Campaign{Seed: 1, Ops: fuzz.DefaultOps, Time: 90 * time.Second, Limits: fuzz.DefaultLimits, Runners: []*fuzz.Runner{r},
			Found: func(f *fuzz.Finding) error {
				if knownFault.MatchString(f.Violation.Fingerprint) {
					found++
					t.Logf("the known fault after %s, reduced to %d operations in %s", f.Took.Round(time.Second), len(f.Ops), f.Reduction.Round(time.Second))
					return nil
				}
				t.Errorf("unexpected:\n%s", f.Text())
				return nil
			}}
		if err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d sequences, %d operations, %d resets, known fault met %d times", c.Stats.Sequences.Load(), c.Stats.Ops.Load(), c.Resets(), int64(found)+c.Stats.Repeats.Load())
		if c.Stats.Sequences.Load() == 0 {
			t.Error("no sequence ran")
		}
	})
}

// The references that the model predicts are those that each kernel counts, operation by operation (model/testdata/ledger.txt has the numbers).
func TestLiveLedger(t *testing.T) {
	b, err := os.ReadFile("../model/testdata/ledger.txt")
	if err != nil {
		t.Fatal(err)
	}
	var ops []model.Op
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "@ "):
			ops = append(ops, model.Settle{})
		case strings.HasPrefix(line, "$ "):
			op, err := iproute.Parse(line[2:])
			if err != nil {
				t.Fatal(err)
			}
			ops = append(ops, op)
		}
	}
	onEachKernel(t, func(t *testing.T, r *fuzz.Runner) {
		read := 0
		r.Step = func(_ int, _ model.Op, _ invariants.Expected, got *invariants.Observation) {
			if got.Memory != nil {
				read++
			}
		}
		out, err := r.Run(t.Context(), ops)
		if err != nil {
			t.Fatal(err)
		}
		if v := out.Violation; v != nil {
			t.Errorf("after operation %d: %s\n%s", out.At, v.Fingerprint, strings.Join(v.Detail, "\n"))
		}
		if read < 50 {
			t.Errorf("the counts were read %d times only: can this kernel's memory be read?", read)
		}
	})
}
