package live

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/internal/rtnl"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// End releases what the sequence holds (sockets, and packets that wait in qdiscs, since they pin the namespace), deletes the namespace and waits until it is gone.
func (t *Target) End(context.Context) (*invariants.Observation, error) {
	if t.netns == nil {
		return nil, fmt.Errorf("end: no namespace was begun")
	}
	t.release()
	id, err := t.home.Assign(int(t.netns.Fd()))
	if err != nil {
		return nil, err
	}
	o := &invariants.Observation{Net: invariants.NetState{Deleted: true}}
	start, net, inum := time.Now(), t.net, t.inum
	var devices []invariants.Device
	if t.cfg.Memory != nil {
		if devices, err = t.cfg.Memory.Devices(net); err != nil {
			return nil, fmt.Errorf("read the devices: %w", err)
		}
	}
	t.drop()
	t.devices = devices // those that the namespace's end waits for
	defer func() { t.devices = nil }()
	if o.Net.Gone, err = t.wait(id); err != nil {
		return nil, err
	}
	if o.Net.Gone {
		// The kernel has begun with it. A namespace that is dropped now comes after it: see rtnl.NSIDs.
		if o.Net.Gone, err = t.probe(); err != nil {
			return nil, err
		}
	}
	o.Net.Took = time.Since(start)
	if !o.Net.Gone && t.cfg.Memory != nil {
		t.holders(o, net)
	}
	if o.Net.Gone && t.cfg.Memory != nil && !t.inexact {
		for pause := time.Millisecond; ; pause *= 2 { // a socket is freed some RCU callbacks after its close
			freed, err := t.cfg.Memory.Freed(net, inum)
			if err != nil {
				return nil, err
			}
			if o.Net.Kept = !freed; freed || pause > freedLimit {
				break
			}
			time.Sleep(pause)
		}
	}
	o.Log = t.log.read()
	return o, nil
}

// Release releases what the sequence holds, as End does, and observes the namespace after a barrier.
func (t *Target) Release(context.Context) (*invariants.Observation, error) {
	if t.netns == nil {
		return nil, fmt.Errorf("release: no namespace was begun")
	}
	t.release()
	if !t.inexact {
		if err := t.settle(); err != nil {
			return nil, err
		}
	}
	o := &invariants.Observation{}
	if err := t.observe(o); err != nil {
		return nil, err
	}
	return o, t.audit(o, false)
}

// probe makes an empty namespace, drops it, and waits until the kernel begins to take it apart.
func (t *Target) probe() (bool, error) {
	var id int32
	err := t.thread.do(func() error {
		if err := t.thread.enterNew(); err != nil {
			return err
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer f.Close()
		if id, err = t.home.Assign(int(f.Fd())); err != nil {
			return err
		}
		return t.thread.goHome()
	})
	if err != nil {
		return false, err
	}
	return t.wait(id)
}

// wait waits until the kernel begins to take a namespace apart. It gives up at the limit, or before, when kernel memory shows twice that a device of the
// namespace that was dropped is unregistered and still held: the kernel ends one namespace after the other, and that one waits.
func (t *Target) wait(id int32) (bool, error) {
	stuck := map[uint64]int{}
	for looks := 1; ; looks++ {
		gone, err := t.home.Wait(id, lookEvery)
		if gone || err != nil || time.Duration(looks)*lookEvery >= netnsLimit {
			return gone, err
		}
		if looks < firstLook || t.cfg.Memory == nil {
			continue
		}
		now := t.waitedFor()
		for dev, refs := range now {
			if stuck[dev] == refs {
				return false, nil
			}
		}
		stuck = now
	}
}

// release closes the held sockets and deletes the qdiscs that hold packets.
func (t *Target) release() {
	for _, fd := range t.sockets {
		unix.Close(fd)
	}
	clear(t.sockets)
	if t.observer == nil {
		return
	}
	dumps, err := t.observer.DumpAll()
	if err != nil {
		return // what stays pinned is seen by the wait for the namespace
	}
	tables, _, err := rtnl.Decode(dumps)
	if err != nil {
		return
	}
	names, err := rtnl.LinkIndexes(dumps[0].Data)
	if err != nil {
		return
	}
	for _, q := range tables.Qdiscs {
		if q.Parent != "" {
			continue // goes with its root
		}
		if req, _, ok := rtnl.Encode(model.Qdisc{Verb: model.QdiscDel, Dev: q.Dev}, func(n string) (int, bool) { i, ok := names[n]; return i, ok }); ok && req != nil {
			t.observer.Do(req)
		}
	}
}

// drop lets go of the namespace without waiting for it.
func (t *Target) drop() {
	for _, fd := range t.sockets {
		unix.Close(fd)
	}
	switch {
	case t.pending != nil: // a blocked operation still uses it
		go func(op *rtnl.Conn, done chan answer) { <-done; op.Close() }(t.op, t.pending)
	case t.op != nil:
		t.op.Close()
	}
	if t.observer != nil {
		t.observer.Close()
	}
	if t.notes != nil {
		t.notes.close()
	}
	if t.netns != nil {
		t.netns.Close()
		t.thread.do(t.thread.goHome)
	}
	t.op, t.observer, t.notes, t.netns, t.net = nil, nil, nil, nil, 0
	t.last, t.index, t.sockets, t.devices, t.pending = nil, nil, nil, nil, nil
}

// Recover makes a target good again whose operation is blocked, where the kernel can't be thrown away: it releases the holders and waits until the
// operation returns and the namespace is gone.
func (t *Target) Recover(ctx context.Context) error {
	if t.netns == nil {
		return nil
	}
	t.release()
	if t.pending != nil {
		select {
		case <-t.pending:
			t.pending = nil
		case <-time.After(releaseLimit):
			return fmt.Errorf("an operation is still blocked %v after its holders were released; this kernel must be rebooted", releaseLimit)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	o, err := t.End(ctx)
	if err == nil && !o.Net.Gone {
		err = fmt.Errorf("the namespace stays; this kernel must be rebooted")
	}
	return err
}
