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
	family  uint8  // of each answer; 0 is any
	known   attrs
}

// attrs are the attributes that the decoder reads or leaves out on purpose; any other is reported as unknown.
type attrs []uint16

// Tables are the dumps that make up an observation, in the order in which they are asked for. Links come first: all others name devices by ifindex.
var tables = []table{
	{"link", unix.RTM_GETLINK, unix.RTM_NEWLINK, linkDump, 16, 0, linkAttrs},
	{"addr", unix.RTM_GETADDR, unix.RTM_NEWADDR, make([]byte, 8), 8, 0, addrAttrs},
	{"route4", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, family(unix.AF_INET, 12), 12, unix.AF_INET, routeAttrs},
	{"route6", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, family(unix.AF_INET6, 12), 12, unix.AF_INET6, routeAttrs},
	{"nexthop", unix.RTM_GETNEXTHOP, unix.RTM_NEWNEXTHOP, make([]byte, 8), 8, 0, nexthopAttrs},
	{"rule4", unix.RTM_GETRULE, unix.RTM_NEWRULE, family(unix.AF_INET, 12), 12, unix.AF_INET, ruleAttrs},
	{"rule6", unix.RTM_GETRULE, unix.RTM_NEWRULE, family(unix.AF_INET6, 12), 12, unix.AF_INET6, ruleAttrs},
	{"neigh", unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, make([]byte, 12), 12, 0, neighAttrs},
	{"proxy", unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, proxyDump(), 12, 0, neighAttrs},
	{"qdisc", unix.RTM_GETQDISC, unix.RTM_NEWQDISC, make([]byte, 20), 20, 0, qdiscAttrs},
}

// Attributes that golang.org/x/sys/unix lacks.
const (
	iflaPacingHorizon   = 66 // IFLA_MAX_PACING_OFFLOAD_HORIZON
	iflaNetnsImmutable  = 67 // IFLA_NETNS_IMMUTABLE
	iflaHeadroom        = 68 // IFLA_HEADROOM
	iflaTailroom        = 69 // IFLA_TAILROOM
	ifaProto            = 11 // IFA_PROTO
	rtaNHID             = 30 // RTA_NH_ID
	nhaFDB              = 11 // NHA_FDB
	nhaOpFlags          = 14 // NHA_OP_FLAGS
	ndaProtocol         = 12 // NDA_PROTOCOL
	ndaFlagsExt         = 15 // NDA_FLAGS_EXT
	macvlanBCCutoff     = 9  // IFLA_MACVLAN_BC_CUTOFF
	macvlanBCQueueInUse = 8  // IFLA_MACVLAN_BC_QUEUE_LEN_USED
)

// The attributes of each table: first those that are read, then those that are left out because no operation sets them or because they are counters,
// times, limits and defaults of the driver.
var (
	linkAttrs = attrs{unix.IFLA_IFNAME, unix.IFLA_MTU, unix.IFLA_CARRIER, unix.IFLA_MASTER, unix.IFLA_LINK, unix.IFLA_LINK_NETNSID, unix.IFLA_LINKINFO,
		unix.IFLA_ADDRESS, unix.IFLA_BROADCAST, unix.IFLA_PERM_ADDRESS, unix.IFLA_QDISC, unix.IFLA_STATS, unix.IFLA_STATS64, unix.IFLA_TXQLEN, unix.IFLA_MAP,
		unix.IFLA_OPERSTATE, unix.IFLA_LINKMODE, unix.IFLA_AF_SPEC, unix.IFLA_GROUP, unix.IFLA_PROMISCUITY, unix.IFLA_ALLMULTI, unix.IFLA_NUM_TX_QUEUES,
		unix.IFLA_NUM_RX_QUEUES, unix.IFLA_CARRIER_CHANGES, unix.IFLA_CARRIER_UP_COUNT, unix.IFLA_CARRIER_DOWN_COUNT, unix.IFLA_PROTO_DOWN, unix.IFLA_XDP,
		unix.IFLA_MIN_MTU, unix.IFLA_MAX_MTU, unix.IFLA_GSO_MAX_SEGS, unix.IFLA_GSO_MAX_SIZE, unix.IFLA_GRO_MAX_SIZE, unix.IFLA_TSO_MAX_SIZE, unix.IFLA_TSO_MAX_SEGS,
		unix.IFLA_GSO_IPV4_MAX_SIZE, unix.IFLA_GRO_IPV4_MAX_SIZE, unix.IFLA_DEVLINK_PORT, unix.IFLA_DPLL_PIN, iflaPacingHorizon, iflaNetnsImmutable, iflaHeadroom,
		iflaTailroom}
	linkInfoAttrs = attrs{unix.IFLA_INFO_KIND, unix.IFLA_INFO_DATA, unix.IFLA_INFO_SLAVE_KIND, unix.IFLA_INFO_SLAVE_DATA}
	addrAttrs     = attrs{unix.IFA_LOCAL, unix.IFA_ADDRESS, unix.IFA_FLAGS, unix.IFA_RT_PRIORITY, unix.IFA_LABEL, unix.IFA_BROADCAST, unix.IFA_CACHEINFO, ifaProto}
	routeAttrs    = attrs{unix.RTA_DST, unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_PRIORITY, unix.RTA_PREFSRC, unix.RTA_MULTIPATH, unix.RTA_TABLE, rtaNHID,
		unix.RTA_METRICS, unix.RTA_CACHEINFO, unix.RTA_PREF, unix.RTA_EXPIRES}
	legAttrs     = attrs{unix.RTA_GATEWAY, unix.RTA_VIA}
	nexthopAttrs = attrs{unix.NHA_ID, unix.NHA_OIF, unix.NHA_GATEWAY, unix.NHA_BLACKHOLE, nhaFDB, unix.NHA_GROUP, unix.NHA_GROUP_TYPE, nhaOpFlags}
	ruleAttrs    = attrs{unix.FRA_DST, unix.FRA_SRC, unix.FRA_IIFNAME, unix.FRA_OIFNAME, unix.FRA_PRIORITY, unix.FRA_FWMARK, unix.FRA_TABLE, unix.FRA_L3MDEV, unix.FRA_PROTOCOL,
		unix.FRA_FWMASK, unix.FRA_SUPPRESS_IFGROUP, unix.FRA_SUPPRESS_PREFIXLEN}
	neighAttrs = attrs{unix.NDA_DST, unix.NDA_LLADDR, unix.NDA_CACHEINFO, unix.NDA_PROBES, ndaProtocol, ndaFlagsExt}
	qdiscAttrs = attrs{unix.TCA_KIND, unix.TCA_OPTIONS, unix.TCA_STATS, unix.TCA_XSTATS, unix.TCA_STATS2, unix.TCA_HW_OFFLOAD}
)

// linkDataAttrs are the attributes of IFLA_INFO_DATA by kind; of a kind that is not listed (a bridge has some fifty settings) none is looked at.
var linkDataAttrs = map[model.LinkKind]attrs{
	model.VRF:  {unix.IFLA_VRF_TABLE},
	model.VLAN: {unix.IFLA_VLAN_ID, unix.IFLA_VLAN_FLAGS, unix.IFLA_VLAN_PROTOCOL},
	model.MACVLAN: {unix.IFLA_MACVLAN_MODE, unix.IFLA_MACVLAN_FLAGS, unix.IFLA_MACVLAN_MACADDR_COUNT, unix.IFLA_MACVLAN_BC_QUEUE_LEN,
		macvlanBCQueueInUse, macvlanBCCutoff},
	model.Dummy: {},
	model.Veth:  {},
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
	d := newDecoder()
	if err := d.dump(0, data); err != nil {
		return nil, err
	}
	out := make(map[string]int, len(d.names))
	for i, n := range d.names {
		out[n] = int(i)
	}
	return out, nil
}
