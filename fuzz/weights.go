package fuzz

import "github.com/nlfuzz/nlfuzz/model"

// weights says how often each kind of operation is drawn, relative to the sum of all. The columns:
//
//	weight  relative frequency
//	make    draws the operation's arguments from the state reached (or, one time in wildOneIn, from anywhere)
//
// Devices, addresses and routes are what the project is about and take about three quarters. Deleting weighs a little less than adding, so that a
// state grows over some ten operations. Traffic, queues and held sockets take a tenth: they are what can hold a reference while something is deleted.
var weights = []struct {
	weight int
	make   func(*gen) model.Op
}{
	{10, (*gen).linkAddDummy},
	{5, (*gen).linkAddVeth},
	{6, (*gen).linkAddVRF},
	{3, (*gen).linkAddBridge},
	{4, (*gen).linkAddVLAN},
	{4, (*gen).linkAddMACVLAN},
	{6, (*gen).linkDel},
	{16, (*gen).linkUp},
	{6, (*gen).linkDown},
	{8, (*gen).linkMaster},
	{3, (*gen).linkNoMaster},
	{3, (*gen).linkMTU},
	{2, (*gen).linkRename},

	{16, (*gen).addrAdd},
	{5, (*gen).addrDel},

	{16, (*gen).routeAdd},
	{5, (*gen).routeAppend},
	{2, (*gen).routePrepend},
	{6, (*gen).routeReplace},
	{3, (*gen).routeChange},
	{8, (*gen).routeDel},

	{10, (*gen).nexthopAdd},
	{5, (*gen).groupAdd},
	{4, (*gen).nexthopReplace},
	{4, (*gen).nexthopDel},

	{3, (*gen).ruleAdd},
	{2, (*gen).ruleDel},
	{3, (*gen).neighAdd},
	{2, (*gen).neighDel},
	{7, (*gen).qdiscAdd},
	{2, (*gen).qdiscDel},
	{8, (*gen).filter},

	{10, (*gen).sendRaw6},
	{6, (*gen).sendUDP},
	{4, (*gen).sendLearned},
	{5, (*gen).hold},
	{6, (*gen).ptb},
	{1, (*gen).release},
	{1, (*gen).settle},
}

// wildOneIn: one operation in so many is drawn without regard to the state, so most of these are refused by the kernel.
const wildOneIn = 7

var totalWeight = func() (n int) {
	for _, w := range weights {
		n += w.weight
	}
	return n
}()
