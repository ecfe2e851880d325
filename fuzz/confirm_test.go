package fuzz

import (
	"testing"
	"time"

	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Each row names the operations that are slow, run by run.
func TestSlowIsConfirmed(t *testing.T) {
	ops := []model.Op{
		model.LinkAdd{Name: "d0", Type: model.Dummy}, model.LinkAdd{Name: "d1", Type: model.Dummy}, model.LinkUp{Name: "d0"},
		model.LinkDel{Name: "d0"}, model.LinkDel{Name: "d1"},
	}
	for _, c := range []struct {
		name    string
		slow    [][]int // of each run
		is      string
		at      int
		hiccups int64
	}{
		{"never", nil, "", 5, 0},
		{"each time", [][]int{{3}, {3}, {3}}, "slow/link del", 3, 0},
		{"once", [][]int{{3}}, "", 5, 1},
		{"twice", [][]int{{3}, {3}}, "", 5, 1},
		{"another one of the same kind", [][]int{{3}, {4}, {3}}, "", 5, 1},
		{"one by chance, one each time", [][]int{{0, 4}, {2, 4}, {1, 4}}, "slow/link del", 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := -1
			f := &fake{t: t, spoil: func(ran []model.Op, o *invariants.Observation) {
				if len(ran) == 1 {
					run++
				}
				if run < len(c.slow) {
					for _, i := range c.slow[run] {
						if i == len(ran)-1 {
							o.Took = time.Second
						}
					}
				}
			}}
			r := &Runner{Target: f, Kernel: Kernel{Profile: model.DefaultProfile()}}
			steps := 0
			r.Step = func(int, model.Op, invariants.Expected, *invariants.Observation) { steps++ }
			out, err := r.Run(t.Context(), ops)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if out.Violation != nil {
				got = out.Violation.Fingerprint
			}
			if got != c.is || out.At != c.at || r.Hiccups.Load() != c.hiccups {
				t.Errorf("%q at %d, %d hiccups; want %q at %d, %d", got, out.At, r.Hiccups.Load(), c.is, c.at, c.hiccups)
			}
			if got != "" && (len(out.Ran) != c.at+1 || len(out.Answers) != c.at+1 || out.Seen == nil) {
				t.Errorf("the outcome has %d operations, %d answers, the observation %v", len(out.Ran), len(out.Answers), out.Seen)
			}
			if steps != len(ops) || r.Step == nil {
				t.Errorf("%d steps were told of, of %d operations", steps, len(ops))
			}
			if run > 2 {
				t.Errorf("%d runs", run+1)
			}
		})
	}
}

// What else is wrong, in the same run or in one that was to confirm, is not hidden by a slow operation before it.
func TestSlowHidesNothing(t *testing.T) {
	for _, second := range []bool{false, true} {
		run := -1
		f := &fake{t: t, spoil: func(ran []model.Op, o *invariants.Observation) {
			if len(ran) == 1 {
				run++
				o.Took = time.Second
			}
			if len(ran) == 2 && (run == 1 || !second) {
				o.Errno = 1
			}
		}}
		r := &Runner{Target: f, Kernel: Kernel{Profile: model.DefaultProfile()}}
		out, err := r.Run(t.Context(), []model.Op{model.LinkUp{Name: "lo"}, model.LinkDown{Name: "lo"}})
		if err != nil || out.Violation == nil || out.Violation.Invariant != "errno" || out.At != 1 {
			t.Errorf("in the second run: %t: %+v, %v", second, out, err)
		}
	}
}

func TestPace(t *testing.T) {
	var p pace
	for range 3 * paceSize {
		p.note(paceUsual / 2)
	}
	if p.now != 0.5 {
		t.Errorf("a fast target has the pace %v", p.now)
	}
	for i := range paceSize {
		took := 5 * paceUsual
		if i%4 == 0 { // one kind with a fault of its own
			took = time.Second
		}
		p.note(took)
	}
	if p.now != 5 {
		t.Errorf("a slow target has the pace %v", p.now)
	}
	if len(p.took) != paceSize {
		t.Errorf("%d times are kept", len(p.took))
	}
}
