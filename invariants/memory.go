package invariants

import "github.com/nlfuzz/nlfuzz/model"

// Memory is what kernel memory shows of a namespace after a barrier, when no RCU callback is on its way any more: its counts are exact.
type Memory struct {
	// Devices are the registered devices.
	Devices []Device
	// Dsts are the routes in use (dst_entry) that pin a device, but for those that a nexthop caches in the ordinary way, which are only counted
	// (Device.Dsts).
	Dsts []Dst
	// More is how many Dsts were left out for length.
	More int
	// NetRefs is the count of references that keep the namespace alive (net.ns.count).
	NetRefs int
	// Trouble says what could not be read; the judges that need it then abstain.
	Trouble []string
}

// Device returns the device of that name, nil if there is none.
func (m *Memory) Device(name string) *Device {
	for i := range m.Devices {
		if m.Devices[i].Name == name {
			return &m.Devices[i]
		}
	}
	return nil
}

// Where a Dst can be reached from.
const (
	OnUncached  = "uncached list" // walked by rt6_uncached_list_flush_dev and rt_flush_dev when a device goes
	InQuarant   = "quarantine"    // 6.1: where a flush puts what it has seen; no flush looks there
	InNexthop   = "nexthop"       // cached by a nexthop that is in use (rt6i_pcpu, nhc_pcpu_rth_output, nhc_rth_input)
	InException = "exception"     // an exception of a route that is in use (rt6i_exception_bucket, nhc_exceptions)
	OfVRF       = "vrf"           // the VRF device's own (net_vrf.rth, rt6)
	Nowhere     = "no list"
	Unknown     = "unknown" // where the owner can't be looked for on this kernel
)

// Dst is one route in use.
type Dst struct {
	Family model.Family
	Where  string
	Refs   int
	Dev    Pin // dst.dev
	Idev   Pin // rt6i_idev->dev
	Via    Pin // the device of the nexthop of the route that it was made from, where that route is no longer in any table: a pin that only the dst keeps
	Text   string
}

// Pin is a device that a Dst keeps. It is empty for none, and for the blackhole device, to which the kernel moves what must let go.
type Pin struct {
	Name string
	Reg  uint8 // net_device.reg_state: 1 is registered
}

// Ledger is the part of a device's references that the namespace's state explains: the count without what comes and goes by itself.
func (d *Device) Ledger() int {
	n := d.Refs - d.Neighbours - d.Dsts - d.Detached
	if d.Linkwatch {
		n--
	}
	return n
}

// after says after what an observation was made.
func (o *Observation) after() string {
	if o.Op != "" {
		return o.Op
	}
	return "the last operation, with all sockets closed and qdiscs deleted"
}
