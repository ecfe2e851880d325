package fuzz

// A property is steps in a fixed order, each drawn from the state it meets, with random operations in the gaps between them. The claim is always the same:
// whatever the gaps did, the model is right about it and everything can be deleted afterwards. A property only makes long stories likely; it names no fault.
var properties = []struct {
	name  string
	steps []step
}{
	{"a device is made, used and removed", []step{
		(*gen).linkAddDummy, (*gen).linkUp, (*gen).addrAdd, (*gen).sendUDP, (*gen).linkDel,
	}},
	{"a port moves through a VRF", []step{
		(*gen).linkAddVRF, (*gen).linkAddDummy, (*gen).linkUp, (*gen).linkMaster, (*gen).addrAdd, (*gen).linkUp, (*gen).linkNoMaster,
	}},
	{"routes by nexthop objects follow them", []step{
		(*gen).linkAddDummy, (*gen).linkUp, (*gen).addrAdd, (*gen).nexthopAdd, (*gen).groupAdd, (*gen).routeAdd, (*gen).nexthopReplace, (*gen).nexthopDel,
	}},
	{"a link flaps under its routes", []step{
		(*gen).linkAddVeth, (*gen).linkUp, (*gen).addrAdd, (*gen).routeAdd, (*gen).linkDown, (*gen).linkUp, (*gen).linkDown,
	}},
	{"packets wait in a queue", []step{
		(*gen).linkAddDummy, (*gen).linkUp, (*gen).linkUp, (*gen).addrAdd, (*gen).addrAdd, (*gen).qdiscAdd, (*gen).sendRaw6, (*gen).sendUDP, (*gen).sendRaw6,
	}},
	{"stacked devices share one below", []step{
		(*gen).linkAddDummy, (*gen).linkAddVLAN, (*gen).linkAddMACVLAN, (*gen).linkUp, (*gen).linkUp, (*gen).addrAdd, (*gen).linkMTU, (*gen).linkDel,
	}},
	{"a path MTU is learned before its route goes", []step{
		(*gen).linkUp, (*gen).linkAddDummy, (*gen).linkUp, (*gen).addrAdd, (*gen).routeAdd, (*gen).ptb, (*gen).sendLearned, (*gen).ptb, (*gen).sendLearned, (*gen).sendLearned, (*gen).routeDel,
		(*gen).addrDel,
	}},
	{"a group shrinks", []step{
		(*gen).linkAddDummy, (*gen).linkUp, (*gen).addrAdd, (*gen).nexthopAdd, (*gen).nexthopAdd, (*gen).nexthopAdd, (*gen).groupAdd, (*gen).nexthopDel, (*gen).nexthopDel,
	}},
	{"sockets outlive what they used", []step{
		(*gen).linkUp, (*gen).addrAdd, (*gen).hold, (*gen).hold, (*gen).hold, (*gen).routeAdd, (*gen).addrDel, (*gen).settle,
	}},
}
