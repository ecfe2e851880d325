package kernel

import (
	"os/exec"
	"testing"
)

// sign is how `dpkg --compare-versions` names an order.
func sign(c int) string {
	switch {
	case c < 0:
		return "lt"
	case c > 0:
		return "gt"
	}
	return "eq"
}

func TestCompareVersions(t *testing.T) {
	tests := []struct{ a, b, want string }{
		{"6.1.192-3", "6.1.192-3", "eq"},
		{"6.1.192-3", "6.1.192-10", "lt"},
		{"6.1.99-1", "6.1.192-1", "lt"},
		{"6.12.117-1~deb12u1", "6.12.117-1", "lt"},
		{"7.3.4-1~bpo13+1", "7.3.4-1", "lt"},
		{"7.3.4-1~bpo13+1", "7.2.13-1", "gt"},
		{"7.3~rc5-1~exp1", "7.3-1", "lt"},
		{"7.3~rc5-1", "7.3~rc10-1", "lt"},
		{"1:1.0-1", "9.0-1", "gt"},
		{"1.0", "1.0-0", "eq"},
		{"1.0-1", "1.0+dfsg-1", "lt"},
		{"1.0a-1", "1.0+-1", "lt"},
		{"1.007", "1.7", "eq"},
		{"1.0~~", "1.0~", "lt"},
	}
	dpkg, err := exec.LookPath("dpkg")
	if err != nil {
		t.Log("not compared with dpkg, which is not installed")
	}
	for _, test := range tests {
		if got := sign(compareVersions(test.a, test.b)); got != test.want {
			t.Errorf("compareVersions(%q, %q) is %s, want %s", test.a, test.b, got, test.want)
		}
		if got := sign(-compareVersions(test.b, test.a)); got != test.want {
			t.Errorf("compareVersions(%q, %q) is not the reverse", test.b, test.a)
		}
		if dpkg != "" {
			if err := exec.Command(dpkg, "--compare-versions", test.a, test.want, test.b).Run(); err != nil {
				t.Errorf("dpkg does not agree that %s %s %s: %v", test.a, test.want, test.b, err)
			}
		}
	}
}

func TestMatches(t *testing.T) {
	tests := []struct {
		version, want string
		ok            bool
	}{
		{"6.1.192-3", "6.1", true},
		{"6.1.192-3", "6.1.192", true},
		{"6.1.192-3", "6.1.192-3", true},
		{"6.1.192-3", "6.1.19", false},
		{"6.12.117-1", "6.1", false},
		{"7.3-1~exp1", "7.3", true},
		{"7.3.4-1~bpo13+1", "7.3.4-1", false},
	}
	for _, test := range tests {
		if got := matches(test.version, test.want); got != test.ok {
			t.Errorf("matches(%q, %q) is %v", test.version, test.want, got)
		}
	}
	if got := series("7.3.4-1~bpo13+1"); got != "7.3" {
		t.Errorf("series is %q, want 7.3", got)
	}
}
