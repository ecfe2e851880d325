package kmem

import (
	"reflect"
	"testing"

	"github.com/nlfuzz/nlfuzz/invariants"
)

func TestParseTrackers(t *testing.T) {
	const text = `netdev@ffff888008e4c5b8 has 2/3 users at
     fib6_nh_init+0x6d6/0x9e0
     ip6_route_info_create_nh+0x1f0/0x3c0
     ip6_route_add+0x35/0xc0
     inet6_rtm_newroute+0x12e/0x1c0
     rtnetlink_rcv_msg+0x2a3/0x360
     netlink_rcv_skb+0x57/0x100

netdev@ffff888008e4c5b8 has 1/3 users at
     neigh_alloc+0x1/0x2

netdev@ffff888008e4c5b8 skipped reports about 1/3 users.
`
	want := []invariants.Holder{
		{Kind: "fib6_nh_init:ip6_route_info_create_nh:ip6_route_add:inet6_rtm_newroute:rtnetlink_rcv_msg", Count: 2,
			Detail: "fib6_nh_init < ip6_route_info_create_nh < ip6_route_add < inet6_rtm_newroute < rtnetlink_rcv_msg < netlink_rcv_skb"},
		{Kind: "neigh_alloc", Count: 1, Detail: "neigh_alloc"},
	}
	if got := parseTrackers(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, bad := range []string{"", "no tracker\n", "netdev@1 has x/y users at\n"} {
		if got := parseTrackers(bad); len(got) != 0 {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}
