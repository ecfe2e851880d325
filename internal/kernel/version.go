package kernel

import (
	"strconv"
	"strings"
)

// compareVersions orders two Debian versions by Debian policy 5.6.12, as `dpkg --compare-versions` does: negative if a is older than b.
func compareVersions(a, b string) int {
	ea, ra := splitEpoch(a)
	eb, rb := splitEpoch(b)
	if ea != eb {
		return ea - eb
	}
	ua, da := splitRevision(ra)
	ub, db := splitRevision(rb)
	if c := comparePart(ua, ub); c != 0 {
		return c
	}
	return comparePart(da, db)
}

// splitEpoch cuts the number before the colon off; without one it is 0.
func splitEpoch(v string) (epoch int, rest string) {
	if e, r, ok := strings.Cut(v, ":"); ok {
		if n, err := strconv.Atoi(e); err == nil {
			return n, r
		}
	}
	return 0, v
}

// splitRevision cuts a version without epoch at its last hyphen.
func splitRevision(v string) (upstream, revision string) {
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		return v[:i], v[i+1:]
	}
	return v, ""
}

// comparePart compares alternating runs of non-digits and digits. A tilde sorts before the end of the string, letters before all other signs.
func comparePart(a, b string) int {
	for a != "" || b != "" {
		for (a != "" && !digit(a[0])) || (b != "" && !digit(b[0])) {
			if c := weight(a) - weight(b); c != 0 {
				return c
			}
			a, b = a[1:], b[1:]
		}
		na, nb := digits(a), digits(b)
		a, b = a[len(na):], b[len(nb):]
		na, nb = strings.TrimLeft(na, "0"), strings.TrimLeft(nb, "0")
		if len(na) != len(nb) {
			return len(na) - len(nb)
		}
		if c := strings.Compare(na, nb); c != 0 {
			return c
		}
	}
	return 0
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// digits is the run of digits that s starts with.
func digits(s string) string {
	n := 0
	for n < len(s) && digit(s[n]) {
		n++
	}
	return s[:n]
}

// weight of the first sign of s inside a run of non-digits; a digit or the end of the string ends the run and weighs 0.
func weight(s string) int {
	switch {
	case s == "" || digit(s[0]):
		return 0
	case s[0] == '~':
		return -1
	case s[0] >= 'A' && s[0] <= 'Z', s[0] >= 'a' && s[0] <= 'z':
		return int(s[0])
	default:
		return int(s[0]) + 256
	}
}

// upstream is a package version without epoch and revision: 6.1.192 for 6.1.192-3.
func upstream(version string) string {
	_, v := splitEpoch(version)
	u, _ := splitRevision(v)
	return u
}

// series is the first two numbers of a version: 6.1 for 6.1.192-3.
func series(version string) string {
	parts := strings.SplitN(upstream(version), ".", 3)
	if len(parts) < 2 {
		return parts[0]
	}
	return parts[0] + "." + digits(parts[1])
}

// matches says whether a package version is one that `debian:want` names: the series, the exact upstream version, or the full version.
func matches(version, want string) bool {
	u := upstream(version)
	return version == want || u == want || strings.HasPrefix(u, want+".")
}
