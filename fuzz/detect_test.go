package fuzz

import (
	"strings"
	"testing"
	"time"

	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// A fault is detected if a judge speaks with it on and not with it off; what is wrong either way is known, and no detection.
func TestDetect(t *testing.T) {
	leak := func(ran []model.Op, o *invariants.Observation) {
		added := false
		for _, op := range ran {
			_, is := op.(model.AddrAdd)
			added = added || is
		}
		if o.Memory != nil && added {
			o.Memory.Device("lo").Refs++
		}
	}
	wrong := func(ran []model.Op, o *invariants.Observation) {
		if _, ok := ran[len(ran)-1].(model.LinkUp); ok {
			o.Errno = 1
		}
	}
	for _, c := range []struct {
		name   string
		always bool
		spoil  func([]model.Op, *invariants.Observation)
		found  string
		known  bool
	}{
		{"a leak", false, leak, "ledger", false},
		{"a wrong answer", false, wrong, "errno", false},
		{"wrong with the fault off as well", true, wrong, "", true},
		{"nothing is wrong", false, nil, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{t: t}
			r := &Runner{Target: f, Kernel: Kernel{Profile: model.DefaultProfile()}}
			d, err := Detect(t.Context(), r, 1, time.Second, func(on bool) {
				if f.spoil = nil; on || c.always {
					f.spoil = c.spoil
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if d.Judge != c.found || d.Found != (c.found != "") || (len(d.Known) > 0) != c.known {
				t.Errorf("%+v", d)
			}
			if c.found == "ledger" && !strings.HasPrefix(d.Cause, "ip addr add ") {
				t.Errorf("the cause is %q, want the first address that was added", d.Cause)
			}
			if f.spoil != nil && !c.always {
				t.Error("the fault is still on")
			}
		})
	}
}
