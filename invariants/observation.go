// Package invariants judges what was seen of a kernel against what the model says it must be.
//
// A judge is a pure function over one Observation; so each can be tested with a recorded observation that it must flag and one that it must not.
package invariants

import (
	"syscall"
	"time"

	"github.com/nlfuzz/nlfuzz/model"
)

// Observation is what was seen after one operation. It is plain data: it can be recorded, sent and judged again.
type Observation struct {
	// Op is the operation's text; empty for an observation without one.
	Op string
	// Errno is the kernel's answer, 0 for success.
	Errno syscall.Errno
	// Extack is the kernel's explanation; for people, never compared.
	Extack string
	// Took is how long the operation ran, on the target's clock.
	Took time.Duration
	// Blocked is set when the operation did not return within its limit. What follows was then read while it was still blocked.
	Blocked bool
	// Dumps are the raw netlink answers, one a table; a table that is byte for byte the same as at the observation before is left out by live and
	// filled in again by the guest.
	Dumps []Dump
	// Tables are the decoded dumps; nil where the dumps were not read.
	Tables *model.Tables
	// Unknown lists netlink attributes in the dumps that the decoder does not know.
	Unknown []string
	// Log holds the kernel's log lines since the last observation.
	Log []string
	// Devices are the namespace's devices as read from kernel memory, including those that are being unregistered; empty where memory can't be read.
	Devices []Device
	// Memory is the exact reading after a barrier: after nlfuzz settle, and at the namespace's begin and end; nil otherwise, and where memory can't be read.
	Memory *Memory
	// Notes are the announcements that the operation caused; nil where nobody listened.
	Notes *Notes
	// Net says what became of the namespace; only in the observation that End returns.
	Net NetState
}

// Dump is the raw answer to one dump request: whole netlink messages, without the closing NLMSG_DONE.
type Dump struct {
	Table string // "link", "addr", "route4", "route6", "nexthop", "rule4", "rule6", "neigh", "proxy", "qdisc"
	Data  []byte
}

// Device is one net_device as kernel memory has it.
type Device struct {
	Name    string
	Ifindex int
	Addr    uint64 // of the struct net_device
	// State is net_device.reg_state: 0 uninitialised, 1 registered, 2 unregistering, 3 unregistered, 4 released, 5 dummy.
	State uint8
	// Refs is the reference count, summed over the CPUs (netdev_refcnt_read).
	Refs int
	// Linkwatch is set while a queued link watch event holds one of them.
	Linkwatch bool `json:",omitempty"`
	// Holders is what was found to hold references; filled only for devices that a blocked delete waits for, and for those whose ledger is wrong.
	Holders []Holder `json:",omitempty"`
	// Neighbours, Dsts and Detached count references that come and go by themselves: those of neighbour entries, of routes in use whose dst.dev is the
	// device, and of removed objects (an IPv6 route, an inet6_dev) that only a route in use keeps. Filled only in a Memory.
	Neighbours int `json:",omitempty"`
	Dsts       int `json:",omitempty"`
	Detached   int `json:",omitempty"`
}

// Holder is one kind of object that holds references on a device.
type Holder struct {
	// Kind is free of numbers and names, e.g. "ipv6 dst (dst.dev)", "ipv6 dst (rt6i_idev)", "ipv6 dst (from->nexthop)", "ipv4 dst (dst.dev)".
	Kind string
	// Count is how many of them were found.
	Count int
	// Detail is for people: addresses, flags, on which list the first of them are.
	Detail string
}

// NetState says what became of a namespace after its deletion.
type NetState struct {
	Deleted bool          // the deletion was asked for
	Gone    bool          // it was seen to be gone
	Kept    bool          // but its struct net is still there (seen only where memory can be read)
	Took    time.Duration // until it was gone, or until the wait was given up
}

// Record is an observation with what was expected of it: a case for the judges.
type Record struct {
	Expected Expected
	Seen     Observation
}
