package rtnl

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// table is one dump: how it is asked for, and what its messages are.
type table struct {
	name    string
	typ     uint16 // of the dump request
	message uint16 // of the answer's messages
	body    []byte // fixed part of the request and its attributes
	fixed   int    // length of the fixed part of each answer
	// known are the attributes that the decoder reads or leaves out on purpose; any other is reported as unknown.
	known []uint16
}

// Tables are the dumps that make up an observation, in the order in which they are asked for. Links come first: all others name devices by ifindex.
var tables = []table{
	{"link", unix.RTM_GETLINK, unix.RTM_NEWLINK, linkDump, 16, span(1, 69)},
	{"addr", unix.RTM_GETADDR, unix.RTM_NEWADDR, make([]byte, 8), 8, span(1, 11)},
	{"route4", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, family(unix.AF_INET, 12), 12, routeAttrs},
	{"route6", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, family(unix.AF_INET6, 12), 12, routeAttrs},
	{"nexthop", unix.RTM_GETNEXTHOP, unix.RTM_NEWNEXTHOP, make([]byte, 8), 8, span(1, 16)},
	{"rule4", unix.RTM_GETRULE, unix.RTM_NEWRULE, family(unix.AF_INET, 12), 12, ruleAttrs},
	{"rule6", unix.RTM_GETRULE, unix.RTM_NEWRULE, family(unix.AF_INET6, 12), 12, ruleAttrs},
	{"neigh", unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, make([]byte, 12), 12, neighAttrs},
	{"proxy", unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, proxyDump(), 12, neighAttrs},
	{"qdisc", unix.RTM_GETQDISC, unix.RTM_NEWQDISC, make([]byte, 20), 20, span(1, 17)},
}

// Attributes that golang.org/x/sys/unix lacks.
const (
	rtaNHID     = 30 // RTA_NH_ID
	nhaFDB      = 11 // NHA_FDB
	ndaProtocol = 12 // NDA_PROTOCOL
	ndaFlagsExt = 15 // NDA_FLAGS_EXT
)

// Everything about a route but the encapsulations, which no operation makes.
var routeAttrs = []uint16{unix.RTA_DST, unix.RTA_IIF, unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_PRIORITY, unix.RTA_PREFSRC, unix.RTA_METRICS, unix.RTA_MULTIPATH, unix.RTA_FLOW,
	unix.RTA_CACHEINFO, unix.RTA_TABLE, unix.RTA_VIA, unix.RTA_PREF, unix.RTA_EXPIRES, rtaNHID}

var ruleAttrs = []uint16{unix.FRA_DST, unix.FRA_SRC, unix.FRA_IIFNAME, unix.FRA_PRIORITY, unix.FRA_FWMARK, unix.FRA_SUPPRESS_IFGROUP, unix.FRA_SUPPRESS_PREFIXLEN, unix.FRA_TABLE,
	unix.FRA_FWMASK, unix.FRA_OIFNAME, unix.FRA_L3MDEV, unix.FRA_PROTOCOL}

var neighAttrs = []uint16{unix.NDA_DST, unix.NDA_LLADDR, unix.NDA_CACHEINFO, unix.NDA_PROBES, unix.NDA_IFINDEX, ndaProtocol, ndaFlagsExt}

// span is the attribute numbers from a to b: all that the kernels had when the table was written.
func span(a, b uint16) (out []uint16) {
	for ; a <= b; a++ {
		out = append(out, a)
	}
	return out
}

func family(f byte, n int) []byte {
	b := make([]byte, n)
	b[0] = f
	return b
}

// rtextFilterSkipStats leaves the statistics out of a link dump (RTEXT_FILTER_SKIP_STATS): they are most of it.
const rtextFilterSkipStats = 1 << 3

var linkDump = func() []byte {
	r := link(unix.RTM_GETLINK, 0, 0, 0, 0)
	r.u32(unix.IFLA_EXT_MASK, rtextFilterSkipStats)
	return r.b[headerLen:]
}()

func proxyDump() []byte {
	b := make([]byte, 12)
	b[10] = unix.NTF_PROXY
	return b
}

// TableNames lists the dumps of an observation, in order.
func TableNames() (out []string) {
	for _, t := range tables {
		out = append(out, t.name)
	}
	return out
}

// Merge returns last with the dumps of changed in place of those with their names: an observation leaves out what did not change.
func Merge(last, changed []invariants.Dump) []invariants.Dump {
	out := slices.Clone(last)
	for _, d := range changed {
		i := slices.IndexFunc(out, func(o invariants.Dump) bool { return o.Table == d.Table })
		if i < 0 {
			out = append(out, d)
		} else {
			out[i] = d
		}
	}
	return out
}

// Changed returns the dumps of now that differ from last.
func Changed(last, now []invariants.Dump) (out []invariants.Dump) {
	for _, d := range now {
		i := slices.IndexFunc(last, func(o invariants.Dump) bool { return o.Table == d.Table })
		if i < 0 || !bytes.Equal(last[i].Data, d.Data) {
			out = append(out, d)
		}
	}
	return out
}

// LinkIndexes reads the names and ifindexes of a link dump.
func LinkIndexes(data []byte) (map[string]int, error) {
	d := &decoder{t: &model.Tables{}, names: map[int32]string{}, unknown: map[string]bool{}}
	if err := d.dump(&tables[0], data); err != nil {
		return nil, err
	}
	out := make(map[string]int, len(d.names))
	for i, n := range d.names {
		out[n] = int(i)
	}
	return out, nil
}
