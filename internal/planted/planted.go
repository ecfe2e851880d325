// Package planted holds a kernel patch with faults that can be switched on one by one, so that the checker itself can be checked.
package planted

import (
	_ "embed"
	"slices"
)

// Series is the kernel series that the patch is for.
const Series = "7.3"

//go:embed 7.3.diff
var patch []byte

// Patch is the patch for the source of Series. With it the kernel reads the mask of faults, one bit each, from /sys/kernel/debug/nlfuzz/faults; at
// boot the mask is 0.
func Patch() []byte { return slices.Clone(patch) }

// Kind says what a fault spoils, and so which judge ought to see it.
type Kind string

// The kinds of faults.
const (
	Reference    Kind = "reference"    // a device, address or route stays held
	Dst          Kind = "dst"          // a cached route stays
	Netns        Kind = "netns"        // a network namespace stays
	State        Kind = "state"        // what is shown afterwards is wrong
	Errno        Kind = "errno"        // a request is answered with the wrong error
	Notification Kind = "notification" // a message to listeners is missing
	Time         Kind = "time"         // the answer is right but late
)

// Fault is one planted fault.
type Fault struct {
	Bit   uint   // in the mask; never reused for another fault
	Name  string // short and stable
	Kind  Kind
	Where string // the kernel function that it is in
	What  string // one sentence: what goes wrong
}

// Mask is the mask with this fault only.
func (f Fault) Mask() uint64 { return 1 << f.Bit }

// Find returns the fault of that name.
func Find(name string) (Fault, bool) {
	i := slices.IndexFunc(Faults, func(f Fault) bool { return f.Name == name })
	if i < 0 {
		return Fault{}, false
	}
	return Faults[i], true
}
