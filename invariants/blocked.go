package invariants

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nlfuzz/nlfuzz/model"
)

// registered is net_device.reg_state of a device in use (NETREG_REGISTERED).
const registered = 1

// baseRefs is what an unregistered device keeps for itself: netdev_wait_allrefs_any waits until no more than this is left.
const baseRefs = 1

func checkBlocked(o *Observation, want Expected) *Violation {
	if !o.Blocked {
		return nil
	}
	v := &Violation{Detail: []string{fmt.Sprintf("%s: did not return within %v", o.Op, o.Took.Round(time.Millisecond))}}
	var parts, unknown []string
	for _, d := range o.Devices {
		if d.State == registered || d.Refs <= baseRefs && len(d.Holders) == 0 {
			continue
		}
		kind := linkKind(want.Links, d.Name)
		var holders []string
		for _, h := range d.Holders {
			holders = append(holders, h.Kind)
		}
		slices.Sort(holders)
		holders = slices.Compact(holders)
		if len(holders) > 0 {
			parts = append(parts, kind+"/"+strings.Join(holders, "+"))
		} else {
			unknown = append(unknown, kind+"/"+orUnknown(""))
		}
		v.Detail = append(v.Detail, fmt.Sprintf("%s %s is unregistered and can't be freed: %d references", kind, d.Name, d.Refs))
		for _, h := range d.Holders {
			v.Detail = append(v.Detail, fmt.Sprintf("  held by %d %s: %s", h.Count, h.Kind, h.Detail))
		}
	}
	if len(parts) == 0 {
		// A device without holders that were found waits for a device on it, if there is one with holders: that one is the cause.
		parts = unknown
	}
	for _, l := range o.Log {
		if m := waiting.FindStringSubmatch(l); m != nil {
			v.Detail = append(v.Detail, "kernel log: "+m[0])
			if len(parts) == 0 { // memory can't be read: the message is the only witness
				parts = append(parts, linkKind(want.Links, m[1])+"/"+orUnknown(""))
			}
		}
	}
	if len(parts) == 0 {
		parts = []string{want.Kind}
	}
	slices.Sort(parts)
	v.Fingerprint = "blocked/" + strings.Join(slices.Compact(parts), ",")
	return v
}

var waiting = regexp.MustCompile(`unregister_netdevice: waiting for (\S+) to become free\. Usage count = (-?\d+)`)

// checkWaiting finds a device that is waited for although no operation was seen to block: the namespace's own end, say.
func checkWaiting(o *Observation, want Expected) *Violation {
	for _, l := range o.Log {
		if m := waiting.FindStringSubmatch(l); m != nil {
			return &Violation{Fingerprint: "waiting/" + linkKind(want.Links, m[1]), Detail: []string{"kernel log: " + m[0]}}
		}
	}
	return nil
}

func linkKind(links []model.Link, name string) string {
	for _, l := range links {
		if l.Name == name && l.Type != "" {
			return string(l.Type)
		}
	}
	if name == "lo" {
		return "lo"
	}
	return "device"
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown holder"
	}
	return s
}
