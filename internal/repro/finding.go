package repro

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Render returns the script of a finding.
func Render(f *fuzz.Finding) []byte { return Of(f).Render() }

// Of makes a script's parts of a finding.
func Of(f *fuzz.Finding) Script {
	s := Script{
		Title: f.Violation.Invariant, Fingerprint: f.Violation.Fingerprint, Kernel: f.Kernel, Found: f.Command,
		Ops: f.Ops, Observed: f.Violation.Detail,
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
	var more []model.Op
	s.Check, more = checkOf(f)
	for _, op := range more {
		for len(s.Expect) < len(s.Ops) {
			s.Expect = append(s.Expect, 0) // the answers can end early
		}
		e := syscall.Errno(0)
		if _, ok := op.(model.Release); ok {
			e = Any // whether the socket was made is not predicted
		}
		s.Ops, s.Expect = append(slices.Clip(s.Ops), op), append(s.Expect, e)
	}
	return s
}

// waitingLine is what the kernel says of a device whose references are not given back (netdev_wait_allrefs_any).
const waitingLine = "unregister_netdevice: waiting for"

// checkOf returns the check that shows a finding's fault, and the operations that it needs after those of the finding.
func checkOf(f *fuzz.Finding) (Check, []model.Op) {
	end := f.At >= len(f.Ops)
	switch f.Violation.Invariant {
	case "blocked":
		if !end {
			return Blocked{OpIndex: f.At}, nil
		}
		return NetnsStuck{}, nil
	case "waiting":
		return Log{OpIndex: f.At, Pattern: waitingLine}, nil
	case "errno":
		if !end {
			return errnoOf(f), nil
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
		return c, nil
	case "ledger", "undo", "path", "orphan":
		return kept(f)
	case "netrefs", "netns":
		_, more := released(f)
		return NetnsStuck{}, more
	case "notify":
		if !end {
			fp := f.Violation.Fingerprint
			return Notify{OpIndex: f.At, Message: fp[strings.LastIndexByte(fp, '/')+1:]}, nil
		}
	case "slow":
		if !end {
			return Slow{OpIndex: f.At, Limit: limitOf(f)}, nil
		}
	}
	c := Log{OpIndex: f.At, Pattern: "WARNING:|BUG:|Oops"}
	if len(f.Violation.Detail) > 0 {
		c.Pattern = pattern(f.Violation.Detail[0])
	}
	return c, nil
}

// kept returns the proof that a device's references are wrong: a delete of the device, which then does not return. A script can't count references. The
// loopback device can't be deleted, so its proof is the namespace's end.
func kept(f *fuzz.Finding) (Check, []model.Op) {
	st, more := released(f)
	for _, name := range f.Violation.Devices {
		if _, ok := st.Link(name); ok && name != "lo" {
			return Blocked{OpIndex: len(f.Ops) + len(more), Dev: name}, append(more, model.LinkDel{Name: name})
		}
	}
	return NetnsStuck{}, more
}

// released returns the operations that let go of all that the sequence rightly holds, where nlfuzz did so before it looked, and the state after them.
func released(f *fuzz.Finding) (st *model.State, ops []model.Op) {
	st = model.New(model.DefaultProfile())
	sockets := map[string]bool{}
	for _, op := range f.Ops {
		st.Apply(op)
		switch o := op.(type) {
		case model.Hold:
			sockets[o.Name] = true
		case model.Release:
			delete(sockets, o.Name)
		}
	}
	if f.At < len(f.Ops) {
		return st, nil
	}
	for _, name := range slices.Sorted(maps.Keys(sockets)) {
		ops = append(ops, model.Release{Name: name})
	}
	for _, q := range st.Qdiscs() {
		if q.Parent == "" {
			ops = append(ops, model.Qdisc{Verb: model.QdiscDel, Dev: q.Dev})
		}
	}
	for _, op := range ops {
		st.Apply(op)
	}
	return st, ops
}

// usualLimit is for a violation that does not tell its limit; it is above all those of the judge at the usual pace.
const usualLimit = 250 * time.Millisecond

var limitWords = regexp.MustCompile(`(\S+) is the limit for its kind`)

// limitOf returns how long nlfuzz let the operation take: that depends on the pace of the target.
func limitOf(f *fuzz.Finding) time.Duration {
	for _, l := range f.Violation.Detail {
		if m := limitWords.FindStringSubmatch(l); m != nil {
			if d, err := time.ParseDuration(m[1]); err == nil && d > 0 {
				return d
			}
		}
	}
	return usualLimit
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
