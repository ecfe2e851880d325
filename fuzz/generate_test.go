package fuzz

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nlfuzz/nlfuzz/model"
)

func netipAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestOneSeedOneSequence(t *testing.T) {
	for i := range 50 {
		a, b := Generate(7, i, DefaultOps), Generate(7, i, DefaultOps)
		if text(a.Ops) != text(b.Ops) {
			t.Fatalf("sequence %d differs between two runs", i)
		}
		if c := Generate(8, i, DefaultOps); text(a.Ops) == text(c.Ops) {
			t.Errorf("sequence %d is the same for two seeds", i)
		}
	}
}

// The generator's claims, over many sequences: every maker in the weights is drawn, most operations make sense, each sequence deletes all it made.
func TestGeneratedSequences(t *testing.T) {
	kinds := map[string]int{}
	var good, bad int
	for i := range 400 {
		st := model.New(model.DefaultProfile())
		for _, op := range Generate(1, i, DefaultOps).Ops {
			kinds[op.Kind()]++
			if st.Apply(op).Errno == 0 {
				good++
			} else {
				bad++
			}
		}
		for _, l := range st.Tables().Links {
			if l.Name != "lo" {
				t.Errorf("sequence %d leaves %s", i, l.Name)
			}
		}
	}
	for _, k := range []string{
		"link add dummy", "link add veth", "link add vrf", "link add bridge", "link add vlan", "link add macvlan", "link del", "link up", "link down", "link master",
		"link nomaster", "link mtu", "link rename", "addr add", "addr del", "route add", "route append", "route prepend", "route replace", "route change", "route del",
		"nexthop add", "nexthop replace", "nexthop del", "rule add", "rule del", "neigh add", "neigh replace", "neigh change", "neigh del", "qdisc add", "qdisc replace",
		"qdisc del", "filter add", "filter del", "send raw6", "send udp4", "send udp6", "hold udp4", "hold udp6", "release", "ptb", "settle",
	} {
		if kinds[k] == 0 {
			t.Errorf("never drawn: %s", k)
		}
	}
	if share := float64(bad) / float64(good+bad); share < 0.05 || share > 0.25 {
		t.Errorf("%.0f %% of the operations fail on the model, about one in %d should", 100*share, wildOneIn)
	}
}

func TestFilteredDropsWhatDepends(t *testing.T) {
	ops := []model.Op{
		model.LinkAdd{Name: "d0", Type: model.Dummy},
		model.LinkAdd{Name: "d1", Type: model.Dummy},
		model.LinkUp{Name: "d0"},
		model.LinkUp{Name: "d1"},
		model.LinkUp{Name: "nodev"}, // fails before and after: stays
		model.AddrAdd{Dev: "d0", Prefix: mustPrefix(netipAddr("10.0.0.1"), 24)},
		model.LinkDel{Name: "d0"},
	}
	got := without(model.DefaultProfile(), ops, 0, 1)
	if want := []model.Op{ops[1], ops[3], ops[4]}; !slices.Equal(got, want) {
		t.Errorf("left:\n%s", text(got))
	}
	k := Kernel{Profile: model.DefaultProfile(), Missing: map[string]string{"dummy": "EOPNOTSUPP"}}
	if got := k.Supported(ops); len(got) != 1 {
		t.Errorf("without dummies:\n%s", text(got))
	}
}
