package invariants

import (
	"maps"
	"slices"
	"strings"

	"github.com/nlfuzz/nlfuzz/model"
)

// registeredPin tells a device that may be removed later; it then must be able to reach the route.
func registeredPin(p Pin) bool { return p.Name != "" && p.Reg == registered }

// stale tells a device that is no more (or on its way out) while something still points to it.
func stale(p Pin) bool { return p.Name != "" && p.Reg > registered && p.Reg != 5 }

// checkOrphan finds routes in use which the removal of a device that they pin can't reach: they keep it for ever, or as long as a packet or a socket
// keeps them. The kernel finds out when the device is removed and says so after ten seconds.
func checkOrphan(o *Observation, _ Expected) *Violation {
	if o.Memory == nil {
		return nil
	}
	marks, devices := map[string]bool{}, map[string]bool{}
	var detail []string
	for _, d := range o.Memory.Dsts {
		pins := orphaned(d)
		if len(pins) == 0 {
			continue
		}
		for _, p := range []Pin{d.Dev, d.Idev, d.Via} {
			if p.Name != "" {
				devices[p.Name] = true
			}
		}
		name := "ipv6 dst"
		if d.Family == model.IPv4 {
			name = "ipv4 dst"
		}
		marks[name+" ("+strings.Join(pins, ", ")+")"] = true
		if len(detail) < maxOrphans {
			detail = append(detail, name+" that its device can't let go of ("+strings.Join(pins, ", ")+"): "+d.Text)
		}
	}
	if len(marks) == 0 {
		return nil
	}
	var kinds []string
	for m := range marks {
		kinds = append(kinds, m)
	}
	slices.Sort(kinds)
	return &Violation{Fingerprint: "orphan/" + strings.Join(kinds, "+"), Detail: append([]string{"after: " + o.after()}, detail...), Devices: slices.Sorted(maps.Keys(devices))}
}

const maxOrphans = 10 // described in a violation

// orphaned says by which of its pins a route is out of reach.
func orphaned(d Dst) (pins []string) {
	unlisted := d.Where == Nowhere || d.Where == InQuarant
	for _, p := range []struct {
		name string
		pin  Pin
		lost bool
	}{
		{"dst.dev", d.Dev, unlisted},
		{"rt6i_idev", d.Idev, unlisted},
		// No list leads from a device to the route of a removed nexthop, wherever the dst is: rt6_uncached_list_flush_dev looks at dst.dev and rt6i_idev.
		{"from->nexthop", d.Via, true},
	} {
		switch {
		case stale(p.pin):
			pins = append(pins, p.name+" of an unregistered device")
		case p.lost && registeredPin(p.pin):
			pins = append(pins, p.name)
		}
	}
	return pins
}
