package invariants

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Ledgers is the ledger of each device, by name.
type Ledgers map[string]int

// Earlier is a reading of the same state as the model sees it, reached in another way.
type Earlier struct {
	Ledgers Ledgers
	How     string // for people: by which operations it was reached
}

// ledgers returns the observed ones.
func (m *Memory) ledgers() Ledgers {
	out := make(Ledgers, len(m.Devices))
	for i := range m.Devices {
		out[m.Devices[i].Name] = m.Devices[i].Ledger()
	}
	return out
}

// Ledgers returns what was read, nil for none.
func (m *Memory) Ledgers() Ledgers {
	if m == nil {
		return nil
	}
	return m.ledgers()
}

// checkLedger compares every device's references with what the model says that the namespace's objects hold.
func checkLedger(o *Observation, want Expected) *Violation {
	if o.Memory == nil || want.Ledgers == nil {
		return nil
	}
	return compareLedgers("ledger", o, want, want.Ledgers, "the model says")
}

// checkUndo compares with an earlier moment of the same sequence: operations that cancel out must leave every reference as it was.
func checkUndo(o *Observation, want Expected) *Violation {
	if o.Memory == nil || want.Undone == nil {
		return nil
	}
	return compareLedgers("undo", o, want, want.Undone.Ledgers, "before "+want.Undone.How+", which cancels out, there were")
}

// checkPath compares with another sequence: two that reach the same state must leave the same references.
func checkPath(o *Observation, want Expected) *Violation {
	if o.Memory == nil || want.Other == nil {
		return nil
	}
	return compareLedgers("path", o, want, want.Other.Ledgers, "the same state, reached by "+want.Other.How+", has")
}

// compareLedgers makes a violation of the differences. Its fingerprint names the kinds of device with too many (+) or too few (-) references.
func compareLedgers(judge string, o *Observation, want Expected, right Ledgers, says string) *Violation {
	if len(o.Memory.Trouble) > 0 {
		return nil // some routes in use may not have been seen, so the count is not exact
	}
	var marks, detail, devices []string
	for _, name := range slices.Sorted(maps.Keys(right)) {
		d := o.Memory.Device(name)
		if d == nil || d.Ledger() == right[name] {
			continue // a device that is missing is the state's matter
		}
		delta, kind := d.Ledger()-right[name], linkKind(want.Links, name)
		if want.Loose[name] && (delta == 1 || delta == -1) {
			continue
		}
		sign := "+"
		if delta < 0 {
			sign = "-"
		}
		marks, devices = append(marks, sign+kind), append(devices, name)
		detail = append(detail, fmt.Sprintf("%s %s has %d references, %s %d: %+d (%d counted, less %d of neighbours, %d of routes in use, %d of removed objects that these keep)",
			kind, name, d.Ledger(), says, right[name], delta, d.Refs, d.Neighbours, d.Dsts, d.Detached))
		for _, h := range d.Holders {
			detail = append(detail, fmt.Sprintf("  held by %d %s: %s", h.Count, h.Kind, h.Detail))
		}
	}
	if len(marks) == 0 {
		return nil
	}
	slices.Sort(marks)
	return &Violation{Fingerprint: judge + "/" + strings.Join(slices.Compact(marks), ","), Detail: append([]string{"after: " + o.after()}, detail...), Devices: devices}
}
