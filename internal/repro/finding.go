package repro

import (
	"regexp"
	"strings"
	"syscall"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/invariants"
)

// Render returns the script of a finding.
func Render(f *fuzz.Finding) []byte { return Of(f).Render() }

// Of makes a script's parts of a finding.
func Of(f *fuzz.Finding) Script {
	s := Script{
		Title: f.Violation.Invariant, Fingerprint: f.Violation.Fingerprint, Kernel: f.Kernel, Found: f.Command,
		Ops: f.Ops, Check: checkOf(f), Observed: f.Violation.Detail,
	}
	for _, in := range invariants.All {
		if in.Name == f.Violation.Invariant {
			s.Title = "This should hold and does not: " + in.Claim + "."
		}
	}
	for _, a := range f.Answers {
		if a.Unjudged {
			s.Expect = append(s.Expect, Any)
		} else {
			s.Expect = append(s.Expect, a.Errno)
		}
	}
	return s
}

// waitingLine is what the kernel says of a device whose references are not given back (netdev_wait_allrefs_any).
const waitingLine = "unregister_netdevice: waiting for"

func checkOf(f *fuzz.Finding) Check {
	end := f.At >= len(f.Ops)
	switch f.Violation.Invariant {
	case "blocked":
		if !end {
			return Blocked{OpIndex: f.At}
		}
		return NetnsStuck{}
	case "waiting":
		return Log{OpIndex: f.At, Pattern: waitingLine}
	case "errno":
		if !end {
			return errnoOf(f)
		}
	case "state":
		c := State{OpIndex: f.At}
		for _, l := range f.Violation.Detail {
			if line, ok := strings.CutPrefix(l, "- "); ok {
				c.Missing = append(c.Missing, line)
			} else if line, ok := strings.CutPrefix(l, "+ "); ok {
				c.Unexpected = append(c.Unexpected, line)
			}
		}
		return c
	case "netns":
		return NetnsStuck{}
	}
	c := Log{OpIndex: f.At, Pattern: "WARNING:|BUG:|Oops"}
	if len(f.Violation.Detail) > 0 {
		c.Pattern = pattern(f.Violation.Detail[0])
	}
	return c
}

func errnoOf(f *fuzz.Finding) Check {
	c := Errno{OpIndex: f.At}
	if f.At < len(f.Answers) {
		c.Want = f.Answers[f.At].Errno
	}
	if f.Seen != nil {
		c.Got, c.Extack = f.Seen.Errno, f.Seen.Extack
	}
	return c
}

// Any stands in Script.Expect for an operation whose answer does not matter.
const Any = ^syscall.Errno(0)

var (
	stamp   = regexp.MustCompile(`^\[ *\d+\.\d+\] *`)
	numbers = regexp.MustCompile(`0x[0-9a-f]+|\d+`)
)

// pattern makes an extended regular expression of a line of the kernel's log: numbers may be others.
func pattern(line string) string {
	parts := numbers.Split(stamp.ReplaceAllString(line, ""), -1)
	for i := range parts {
		parts[i] = literal(parts[i])
	}
	return strings.Join(parts, "[0-9a-fx]+")
}
