package invariants

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/model"
)

// Expected is what the model says of one operation: the right answer, and what the namespace must be after it.
type Expected struct {
	Kind   string // the operation's kind (model.Op.Kind); empty for the end of a sequence
	Answer model.Answer
	Tables *model.Tables // nil where the state is not judged
	// Before is what the namespace was before the operation; nil where there was none.
	Before *model.Tables
	// Pace is how slow the target is, as a multiple of the usual; below 1 counts as 1.
	Pace float64
	// Links are the links before the operation: they tell what kind a device is that a delete waits for.
	Links []model.Link
	// Ledgers are the references that each device must have; nil where they are not judged. Undone and Other are readings of the same state, earlier in
	// the sequence and in another one; nil if there is none.
	Ledgers Ledgers
	Undone  *Earlier
	Other   *Earlier
	// Loose are devices whose ledger may be one more or less: up without carrier, they may have their route for multicast or not (model.Tables.Canonical).
	Loose map[string]bool
	// NetRefs is how many references the namespace must have at its end; 0 where it is not known.
	NetRefs int
	// Known, if set, tells fingerprints of the exact judges that need no further report: they are passed over, so that what else is wrong is seen.
	Known func(fingerprint string) bool
}

// Violation is an invariant's verdict on an observation.
type Violation struct {
	Invariant string
	// Fingerprint is stable for one cause: invariant, kind of kernel object, holder; free of numbers and names.
	Fingerprint string
	// Detail is for people: what was expected and what was seen, a line each.
	Detail []string
	// Devices are the devices whose references are wrong or out of reach: who holds them is worth asking.
	Devices []string
}

// Invariant is one judge: what it claims, and the pure function that checks it. A nil result means that the claim held.
type Invariant struct {
	Name  string
	Claim string
	Check func(o *Observation, want Expected) *Violation
}

// Exact tells the judges of exact counts, which need a barrier: what they object to may be on its way and is worth another reading.
func Exact(invariant string) bool {
	return slices.Contains([]string{"orphan", "ledger", "undo", "path", "netrefs"}, invariant)
}

// All are the judges in the order in which they are asked. The first ones explain more than those after them.
var All = []Invariant{
	{"log", "the kernel's log shows no warning, bug, oops, stall or lockdep report", checkLog},
	{"blocked", "an operation returns within its limit: no reference keeps a device from being freed", checkBlocked},
	{"waiting", "no device is waited for in unregister_netdevice", checkWaiting},
	{"errno", "the kernel's answer is the one that the model predicts", checkErrno},
	{"state", "the tables of the namespace are the ones that the model predicts", checkState},
	{"notify", "an operation that changes a table is announced to those who listen", checkNotify},
	{"orphan", "the removal of each device that a route in use pins can reach the route", checkOrphan},
	{"ledger", "the references on each device are those of the objects that the model knows", checkLedger},
	{"undo", "operations that cancel out leave every reference as it was", checkUndo},
	{"path", "two ways to the same state leave the same references", checkPath},
	{"netrefs", "the references on the namespace are those that it had when it was fresh", checkNetRefs},
	{"netns", "a deleted namespace goes away, with everything that refers to it", checkNetns},
	{"slow", "an operation takes no longer than its kind may", checkSlow},
}

// Judge asks all invariants and returns the first violation, nil if there is none. One fault often breaks several
// claims (a blocked delete also leaves a wrong state); the order of All decides which one names it.
func Judge(o *Observation, want Expected) *Violation {
	for _, in := range All {
		v := in.Check(o, want)
		if v == nil || want.Known != nil && Exact(in.Name) && want.Known(v.Fingerprint) {
			continue
		}
		v.Invariant = in.Name
		return v
	}
	return nil
}

// ErrnoName returns the C name of an errno: "EEXIST", and "ok" for success.
func ErrnoName(e syscall.Errno) string {
	switch e {
	case 0:
		return "ok"
	case unix.EOPNOTSUPP:
		return "EOPNOTSUPP" // the same number as ENOTSUP; the kernel says this one
	}
	if n := unix.ErrnoName(e); n != "" {
		return n
	}
	return fmt.Sprintf("errno %d", int(e))
}

func checkErrno(o *Observation, want Expected) *Violation {
	if o.Op == "" || o.Blocked || want.Answer.Unjudged || o.Errno == want.Answer.Errno {
		return nil
	}
	w, g := ErrnoName(want.Answer.Errno), ErrnoName(o.Errno)
	d := []string{fmt.Sprintf("%s: the model says %s, the kernel answers %s", o.Op, w, g)}
	if o.Extack != "" {
		d = append(d, "extack: "+o.Extack)
	}
	return &Violation{Fingerprint: "errno/" + want.Kind + "/" + w + "/" + g, Detail: d}
}

func checkState(o *Observation, want Expected) *Violation {
	if want.Tables == nil || o.Tables == nil || o.Blocked {
		return nil
	}
	diff := model.Diff(want.Tables, o.Tables)
	if len(diff) == 0 {
		return nil
	}
	// The fingerprint is the set of (sign, table) pairs: which kinds of object are missing or too many.
	var marks []string
	seen := map[string]bool{}
	for _, l := range diff {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		if m := f[0] + f[1]; !seen[m] {
			seen[m] = true
			marks = append(marks, m)
		}
	}
	return &Violation{
		Fingerprint: "state/" + want.Kind + "/" + strings.Join(marks, ","),
		Detail:      append([]string{"after: " + o.Op + "   (- only the model has it, + only the kernel has it)"}, diff...),
	}
}

// checkNetRefs compares the references that keep the namespace alive with those when it was fresh, once everything that a sequence holds is released.
func checkNetRefs(o *Observation, want Expected) *Violation {
	if o.Memory == nil || want.NetRefs == 0 || o.Memory.NetRefs == want.NetRefs {
		return nil
	}
	sign := "+"
	if o.Memory.NetRefs < want.NetRefs {
		sign = "-"
	}
	return &Violation{Fingerprint: "netrefs/" + sign, Detail: []string{"after: " + o.after(),
		fmt.Sprintf("the namespace has %d references, at its begin it had %d", o.Memory.NetRefs, want.NetRefs)}}
}

func checkNetns(o *Observation, _ Expected) *Violation {
	switch {
	case !o.Net.Deleted:
		return nil
	case !o.Net.Gone:
		v := &Violation{Fingerprint: "netns/stays", Detail: []string{fmt.Sprintf("the namespace was deleted and is still there after %v", o.Net.Took)}}
		for _, d := range o.Devices {
			if d.State != registered && d.Refs > baseRefs {
				v.Detail = append(v.Detail, fmt.Sprintf("%s is unregistered and can't be freed: %d references", d.Name, d.Refs))
				for _, h := range d.Holders {
					v.Detail = append(v.Detail, fmt.Sprintf("  held by %d %s: %s", h.Count, h.Kind, h.Detail))
				}
			}
		}
		return v
	case o.Net.Kept:
		return &Violation{Fingerprint: "netns/kept", Detail: []string{"the namespace was taken apart, but passive references keep its struct net"}}
	}
	return nil
}
