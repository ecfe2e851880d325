package invariants

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/nlfuzz/nlfuzz/model"
)

// Each row is a reading of the exact counts, and the fingerprint that it must get; empty where no judge may speak.
func TestExactJudges(t *testing.T) {
	links := []model.Link{{Name: "lo"}, {Name: "d0", Type: model.Dummy}, {Name: "red", Type: model.VRF}}
	mem := func(devices ...Device) *Memory { return &Memory{Devices: devices, NetRefs: 4} }
	routes := func(dsts ...Dst) *Memory { return &Memory{Dsts: dsts} }
	d0, red, gone := Pin{"d0", 1}, Pin{"red", 1}, Pin{"d0", 3}
	right := Expected{Links: links, Ledgers: Ledgers{"d0": 10, "red": 9}}
	for _, c := range []struct {
		name string
		mem  *Memory
		want Expected
		is   string
	}{
		{"memory was not read", nil, right, ""},
		{"as predicted", mem(Device{Name: "d0", Refs: 10}, Device{Name: "red", Refs: 9}), right, ""},
		{"neighbours, routes in use, removed objects and link watch come and go", mem(Device{Name: "d0", Refs: 20, Neighbours: 3, Dsts: 4, Detached: 2, Linkwatch: true}), right, ""},
		{"one too many", mem(Device{Name: "d0", Refs: 11}, Device{Name: "red", Refs: 9}), right, "ledger/+dummy"},
		{"one too many, but not all could be read", &Memory{Devices: []Device{{Name: "d0", Refs: 11}}, Trouble: []string{"the slabs can't be searched"}}, right, ""},
		{"one too few", mem(Device{Name: "d0", Refs: 10}, Device{Name: "red", Refs: 8}), right, "ledger/-vrf"},
		{"one too many, on a device that may have its multicast route or not", mem(Device{Name: "d0", Refs: 11}), Expected{Links: links, Ledgers: Ledgers{"d0": 10},
			Loose: map[string]bool{"d0": true}}, ""},
		{"two too many, on such a device", mem(Device{Name: "d0", Refs: 12}), Expected{Links: links, Ledgers: Ledgers{"d0": 10},
			Loose: map[string]bool{"d0": true}}, "ledger/+dummy"},
		{"both", mem(Device{Name: "d0", Refs: 12}, Device{Name: "red", Refs: 8}), right, "ledger/+dummy,-vrf"},
		{"a device that the model does not have is the state's matter", mem(Device{Name: "x", Refs: 1}), right, ""},
		{"not predicted, not undone, no other way", mem(Device{Name: "d0", Refs: 11}), Expected{Links: links}, ""},
		{"undone, but one stays", mem(Device{Name: "d0", Refs: 11}), Expected{Links: links, Undone: &Earlier{Ledgers: Ledgers{"d0": 10}, How: "ip link set dev d0 up"}}, "undo/+dummy"},
		{"undone", mem(Device{Name: "d0", Refs: 10}), Expected{Links: links, Undone: &Earlier{Ledgers: Ledgers{"d0": 10}}}, ""},
		{"another way left more", mem(Device{Name: "d0", Refs: 9}), Expected{Links: links, Other: &Earlier{Ledgers: Ledgers{"d0": 10}}}, "path/-dummy"},
		{"another way left the same", mem(Device{Name: "d0", Refs: 10}), Expected{Links: links, Other: &Earlier{Ledgers: Ledgers{"d0": 10}}}, ""},
		{"the namespace is held", mem(), Expected{NetRefs: 3}, "netrefs/+"},
		{"the namespace lost one", mem(), Expected{NetRefs: 5}, "netrefs/-"},
		{"the namespace is as it was", mem(), Expected{NetRefs: 4}, ""},

		{"on the uncached list both devices reach it", routes(Dst{Family: model.IPv6, Where: OnUncached, Dev: red, Idev: d0}), right, ""},
		{"cached by a nexthop", routes(Dst{Family: model.IPv6, Where: InNexthop, Dev: d0, Idev: d0}), right, ""},
		{"an exception", routes(Dst{Family: model.IPv4, Where: InException, Dev: d0}), right, ""},
		{"a VRF's own", routes(Dst{Family: model.IPv4, Where: OfVRF, Dev: red}), right, ""},
		{"the owner can't be looked for", routes(Dst{Family: model.IPv4, Where: Unknown, Dev: d0}), right, ""},
		{"on no list, but moved to the blackhole device", routes(Dst{Family: model.IPv6, Where: Nowhere}), right, ""},
		{"on no list", routes(Dst{Family: model.IPv6, Where: Nowhere, Dev: d0, Idev: d0}), right, "orphan/ipv6 dst (dst.dev, rt6i_idev)"},
		{"one device flushed it and left the other's pin", routes(Dst{Family: model.IPv6, Where: Nowhere, Dev: red}), right, "orphan/ipv6 dst (dst.dev)"},
		{"the same on 6.1", routes(Dst{Family: model.IPv6, Where: InQuarant, Idev: d0}), right, "orphan/ipv6 dst (rt6i_idev)"},
		{"IPv4", routes(Dst{Family: model.IPv4, Where: Nowhere, Dev: d0}), right, "orphan/ipv4 dst (dst.dev)"},
		{"it keeps the device of a removed route", routes(Dst{Family: model.IPv6, Where: OnUncached, Via: d0}), right, "orphan/ipv6 dst (from->nexthop)"},
		{"it points to an unregistered device", routes(Dst{Family: model.IPv4, Where: OnUncached, Dev: gone}), right, "orphan/ipv4 dst (dst.dev of an unregistered device)"},
	} {
		t.Run(c.name, func(t *testing.T) { verdict(t, Observation{Op: "nlfuzz settle", Memory: c.mem}, c.want, c.is) })
	}
}

func verdict(t *testing.T, seen Observation, want Expected, is string) {
	t.Helper()
	v := Judge(&seen, want)
	got := ""
	if v != nil {
		got = v.Fingerprint
		if !strings.HasPrefix(got, v.Invariant+"/") || len(v.Detail) == 0 {
			t.Errorf("the fingerprint %q does not start with its invariant %q, or has no detail: %q", got, v.Invariant, v.Detail)
		}
		if strings.HasPrefix(got, "ledger/") != (len(v.Devices) > 0) && v.Invariant == "ledger" {
			t.Errorf("%q names the devices %q", got, v.Devices)
		}
	}
	if got != is {
		t.Errorf("verdict %q, want %q", got, is)
	}
}

// recorded are readings of real guests (nlfuzz replay --record): the verdict of each line of a file, empty for none.
var recorded = map[string][]string{
	// Devices, addresses, a held multicast route, neighbours and a queued packet come and go; last, an address goes whose route the packet keeps: the
	// known fault, seen before any device is deleted.
	"stock-6.1.json": {"", "", "", "", "orphan/ipv6 dst (from->nexthop)"},
	"stock-7.3.json": {"", "", "", "", "orphan/ipv6 dst (from->nexthop)"},
	// Planted faults: a deleted neighbour keeps its device; a deleted route keeps the device of its nexthop.
	"neighbour-not-put.json":    {"", "", "", "ledger/+dummy"},
	"ipv6-nexthop-not-put.json": {"ledger/+lo"},
}

func TestRecorded(t *testing.T) {
	for file, verdicts := range recorded {
		t.Run(file, func(t *testing.T) {
			f, err := os.Open("testdata/" + file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			sc := bufio.NewScanner(f)
			sc.Buffer(nil, 1<<22)
			n := 0
			for ; sc.Scan(); n++ {
				var r Record
				if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
					t.Fatal(err)
				}
				if n < len(verdicts) {
					verdict(t, r.Seen, r.Expected, verdicts[n])
				}
			}
			if sc.Err() != nil || n != len(verdicts) {
				t.Errorf("%d readings, %d verdicts, %v", n, len(verdicts), sc.Err())
			}
		})
	}
}
