package invariants

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/model"
)

// Notes are the announcements (netlink multicast messages) that were heard since the last observation, by their types.
type Notes struct {
	Heard []Note
	// Lost is set when the kernel or the listener dropped some: what was not heard then may have been said.
	Lost bool
}

// Note is a type of announcement and how many of it were heard.
type Note struct {
	Type  uint16 // RTM_NEWROUTE, ...
	Count int
}

// Add counts one announcement. There are few types, so a list is searched.
func (n *Notes) Add(typ uint16) {
	for i := range n.Heard {
		if n.Heard[i].Type == typ {
			n.Heard[i].Count++
			return
		}
	}
	n.Heard = append(n.Heard, Note{typ, 1})
}

func (n *Notes) has(typ uint16) bool {
	for _, h := range n.Heard {
		if h.Type == typ {
			return true
		}
	}
	return false
}

// announcements says which message an operation that succeeded and changed something must be announced by. The columns:
//
//	kind    of the operation, or the beginning of several kinds
//	typ     the message's type
//	except  a word in the operation's text with which the kernel is silent; empty if it never is
//
// Not here: operations on qdiscs and filters (their group is not subscribed to), traffic, and sockets, which change no table. An operation that succeeds
// and changes nothing may be silent, and some are: link up of a link that is up, an IPv4 route replaced by itself (fib_table_insert).
var announcements = []struct {
	kind   string
	typ    uint16
	except string
}{
	{"link add", unix.RTM_NEWLINK, ""},
	{"link del", unix.RTM_DELLINK, ""},
	{"link up", unix.RTM_NEWLINK, ""},
	{"link down", unix.RTM_NEWLINK, ""},
	{"link master", unix.RTM_NEWLINK, ""},
	{"link nomaster", unix.RTM_NEWLINK, ""},
	{"link mtu", unix.RTM_NEWLINK, ""},
	{"link rename", unix.RTM_NEWLINK, ""},
	{"addr add", unix.RTM_NEWADDR, ""},
	{"addr del", unix.RTM_DELADDR, ""},
	{"route del", unix.RTM_DELROUTE, ""},
	{"route ", unix.RTM_NEWROUTE, ""},
	{"nexthop del", unix.RTM_DELNEXTHOP, ""},
	{"nexthop ", unix.RTM_NEWNEXTHOP, ""},
	{"rule add", unix.RTM_NEWRULE, ""},
	{"rule del", unix.RTM_DELRULE, ""},
	{"neigh del", unix.RTM_DELNEIGH, "proxy"},
	{"neigh ", unix.RTM_NEWNEIGH, "proxy"}, // pneigh_create and pneigh_delete announce nothing
}

var messageNames = map[uint16]string{
	unix.RTM_NEWLINK: "RTM_NEWLINK", unix.RTM_DELLINK: "RTM_DELLINK", unix.RTM_NEWADDR: "RTM_NEWADDR", unix.RTM_DELADDR: "RTM_DELADDR",
	unix.RTM_NEWROUTE: "RTM_NEWROUTE", unix.RTM_DELROUTE: "RTM_DELROUTE", unix.RTM_NEWNEIGH: "RTM_NEWNEIGH", unix.RTM_DELNEIGH: "RTM_DELNEIGH",
	unix.RTM_NEWRULE: "RTM_NEWRULE", unix.RTM_DELRULE: "RTM_DELRULE", unix.RTM_NEWNEXTHOP: "RTM_NEWNEXTHOP", unix.RTM_DELNEXTHOP: "RTM_DELNEXTHOP",
}

func messageName(typ uint16) string {
	if n := messageNames[typ]; n != "" {
		return n
	}
	return fmt.Sprintf("message %d", typ)
}

// checkNotify abstains where nobody listened, where announcements were lost, and where the operation changed nothing.
func checkNotify(o *Observation, want Expected) *Violation {
	if o.Op == "" || o.Blocked || o.Errno != 0 || o.Notes == nil || o.Notes.Lost || want.Before == nil || want.Tables == nil {
		return nil
	}
	for _, a := range announcements {
		if !strings.HasPrefix(want.Kind, a.kind) {
			continue
		}
		if o.Notes.has(a.typ) || a.except != "" && strings.Contains(" "+o.Op+" ", " "+a.except+" ") {
			return nil
		}
		changes := model.Diff(want.Before, want.Tables)
		if len(changes) == 0 {
			return nil
		}
		heard := "nothing"
		if len(o.Notes.Heard) > 0 {
			var all []string
			for _, h := range o.Notes.Heard {
				all = append(all, fmt.Sprintf("%d x %s", h.Count, messageName(h.Type)))
			}
			heard = strings.Join(all, ", ")
		}
		return &Violation{
			Fingerprint: "notify/" + want.Kind + "/" + messageName(a.typ),
			Detail: append([]string{fmt.Sprintf("%s: it succeeded, but no %s was sent to those who listen; heard: %s", o.Op, messageName(a.typ), heard),
				"what the operation changed (- before, + after):"}, changes...),
		}
	}
	return nil
}
