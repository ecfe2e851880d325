package corpus

import (
	"strings"
	"testing"
)

func TestAll(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]int{}
	for _, e := range all {
		folder, _, _ := strings.Cut(e.Name, "/")
		folders[folder]++
		if len(e.Ops) == 0 {
			t.Errorf("%s: no operations", e.Name)
		}
		if fault := folder == "faults"; fault != (e.Expect != "") {
			t.Errorf("%s: faults say what to expect, and only they", e.Name)
		}
	}
	for _, f := range []string{"faults", "controls", "regressions"} {
		if folders[f] == 0 {
			t.Errorf("no %s", f)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for what, text := range map[string]string{
		"no header":            "ip link set dev lo up\n",
		"a bad expression":     "# t\n# expect: (\nip link set dev lo up\n",
		"an unknown operation": "# t\nip frobnicate\n",
	} {
		if _, err := parse("x", []byte(text)); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
}
