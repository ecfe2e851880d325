package invariants

import (
	"regexp"
	"strings"
)

// complaints are the kernel log lines that are findings, most telling first. Group 1, where present, is the place to name.
var complaints = []struct {
	name string
	re   *regexp.Regexp
}{
	{"panic", regexp.MustCompile(`Kernel panic - not syncing: (.*)`)},
	{"kasan", regexp.MustCompile(`BUG: KASAN: (\S+ in [A-Za-z0-9_.]+)`)},
	{"kfence", regexp.MustCompile(`BUG: KFENCE: (.* in [A-Za-z0-9_.]+)`)},
	{"ubsan", regexp.MustCompile(`UBSAN: (\S+ in \S+)`)},
	{"warning", regexp.MustCompile(`WARNING: (?:CPU: \d+ PID: \d+ at )?(?:\S+\.[ch]:\d+ at )?(?:\S+\.[ch]:\d+ )?([A-Za-z0-9_.]+)\+0x`)},
	{"lockdep", regexp.MustCompile(`WARNING: (possible .*|suspicious RCU usage|inconsistent lock state|bad unlock balance detected!)`)},
	{"warning", regexp.MustCompile(`WARNING: (.*)`)},
	{"bug", regexp.MustCompile(`kernel BUG at (\S+\.[ch])`)},
	{"bug", regexp.MustCompile(`BUG: (kernel NULL pointer dereference|unable to handle|sleeping function|scheduling while atomic|soft lockup|workqueue lockup|Bad page|Bad rss-counter)`)},
	{"bug", regexp.MustCompile(`BUG: (.*)`)},
	{"oops", regexp.MustCompile(`(?:Oops|general protection fault|stack segment|invalid opcode|divide error)[:, ]()`)},
	{"hung", regexp.MustCompile(`INFO: task (\S+):\d+ blocked for more than`)},
	{"rcu stall", regexp.MustCompile(`rcu: INFO: (\S+) (?:self-)?detected (?:expedited )?stall`)},
	{"refcount", regexp.MustCompile(`refcount_t: ([a-z -]+)`)},
	{"leak", regexp.MustCompile(`(?:kmemleak|ref_tracker): (.*)`)},
	{"exceptional", regexp.MustCompile(`(Attempt to release alive inet socket|BUG kmalloc|Objects remaining in|still referenced by)`)},
}

var (
	rip     = regexp.MustCompile(`RIP: \w+:([A-Za-z0-9_.]+)\+0x`)
	numbers = regexp.MustCompile(`0x[0-9a-f]+|\d+`)
)

func checkLog(o *Observation, _ Expected) *Violation { return JudgeLog(o.Log) }

// JudgeLog finds the first complaint in kernel log lines; nil if there is none. It serves the log of an observation and the console of a guest that died.
func JudgeLog(lines []string) *Violation {
	for i, l := range lines {
		for _, c := range complaints {
			m := c.re.FindStringSubmatch(l)
			if m == nil {
				continue
			}
			place := m[1]
			// An oops names its place some lines further down.
			if c.name == "oops" || c.name == "bug" || place == "" {
				for _, k := range lines[i:min(i+40, len(lines))] {
					if r := rip.FindStringSubmatch(k); r != nil {
						place = r[1]
						break
					}
				}
			}
			place = strings.TrimSpace(numbers.ReplaceAllString(place, "N"))
			return &Violation{
				Invariant:   "log",
				Fingerprint: "log/" + c.name + "/" + place,
				Detail:      lines[i:min(i+40, len(lines))],
			}
		}
	}
	return nil
}
