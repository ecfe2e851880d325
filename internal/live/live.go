// Package live runs operations in a fresh network namespace of the kernel that it runs on, and observes what they do.
package live

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/kmem"
	"github.com/nlfuzz/nlfuzz/internal/rtnl"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Memory reads kernel memory: *kmem.Reader.
type Memory interface {
	Net(inum uint32) (kmem.Net, bool, error)
	Devices(net kmem.Net) ([]invariants.Device, error)
	Recheck(prev invariants.Device) (now invariants.Device, same bool, err error)
	Holders(net kmem.Net, dev uint64) ([]invariants.Holder, error)
	Audit(net kmem.Net, fresh bool) (*invariants.Memory, error)
	Freed(net kmem.Net, inum uint32) (bool, error)
}

// Config says how a Target works. The zero value is good.
type Config struct {
	Memory Memory        // nil: nothing is read from kernel memory
	Limit  time.Duration // an operation that takes longer is blocked; 0: DefaultLimit
	Guest  bool          // this kernel is under test and nobody else uses it: its own sysctls may be set
}

// Limits of waits. A delete of one device takes some milliseconds, in an emulated guest up to a hundred.
const (
	DefaultLimit = 1500 * time.Millisecond
	lookEvery    = 100 * time.Millisecond // for devices whose references stay, from look number firstLook on
	firstLook    = 4
	messageLimit = 1500 * time.Millisecond // for the kernel's message about a blocked delete, which it repeats every second
	netnsLimit   = 5 * time.Second         // for a namespace to go away
	freedLimit   = 500 * time.Millisecond  // the longest pause in the wait for a struct net to be freed
	releaseLimit = 10 * time.Second        // for a blocked operation to return after its holders were released
)

// Target is a namespace of this kernel, made anew by each Begin. It is used by one goroutine at a time.
type Target struct {
	cfg     Config
	thread  *thread
	home    *rtnl.NSIDs
	scratch *rtnl.Conn // in a namespace of its own, for the barrier
	log     *klog
	inexact bool // no barriers and no exact counts

	// Of the current namespace; nil and zero between End and Begin.
	op, observer *rtnl.Conn
	notes        *listener
	netns        *os.File
	net          kmem.Net
	inum         uint32 // its number
	last         []invariants.Dump
	index        map[string]int
	sockets      map[string]int
	devices      []invariants.Device // before the last delete
	pending      chan answer         // of an operation that is blocked
}

type answer struct {
	errno  syscall.Errno
	extack string
	err    error
}

// New prepares a target. It needs the rights of root.
func New(cfg Config) (*Target, error) {
	if cfg.Limit == 0 {
		cfg.Limit = DefaultLimit
	}
	t := &Target{cfg: cfg, log: openLog()}
	var err error
	if t.thread, err = newThread(); err != nil {
		return nil, err
	}
	err = t.thread.do(func() (err error) {
		if t.home, err = rtnl.DialNSIDs(); err != nil {
			return err
		}
		if err := t.thread.enterNew(); err != nil {
			return err
		}
		if t.scratch, err = rtnl.Dial(); err != nil {
			return err
		}
		return t.thread.goHome()
	})
	if err != nil {
		t.Close()
		return nil, err
	}
	if cfg.Guest {
		if err := relax(); err != nil {
			t.Close()
			return nil, err
		}
		// Where this kernel has the knob, the message about a blocked delete comes after one second and not after ten.
		os.WriteFile("/proc/sys/net/core/netdev_unregister_timeout_secs", []byte("1"), 0)
	}
	return t, nil
}

// SetExact chooses whether exact counts are read, and waited for (on, the default). It is for measuring what they cost.
func (t *Target) SetExact(on bool) { t.inexact = !on }

// Close ends the target and what it still has.
func (t *Target) Close() error {
	t.drop()
	if t.scratch != nil {
		t.scratch.Close()
	}
	if t.home != nil {
		t.home.Close()
	}
	t.log.close()
	return t.thread.stop()
}

// sysctls make a namespace quiet and its state a function of the operations alone: no duplicate address detection, no router solicitations, no link-local
// addresses that depend on random MACs.
var sysctls = []struct{ name, value string }{
	{"ipv6/conf/all/accept_dad", "0"},
	{"ipv6/conf/default/accept_dad", "0"},
	{"ipv6/conf/all/router_solicitations", "0"},
	{"ipv6/conf/default/router_solicitations", "0"},
	{"ipv6/conf/all/addr_gen_mode", "1"},
	{"ipv6/conf/default/addr_gen_mode", "1"},
}

// Begin makes a fresh namespace.
func (t *Target) Begin(context.Context) (*invariants.Observation, error) {
	t.drop()
	t.sockets = map[string]int{}
	err := t.thread.do(func() (err error) {
		if err := t.thread.enterNew(); err != nil {
			return err
		}
		for _, s := range sysctls {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", s.name), []byte(s.value), 0); err != nil {
				return fmt.Errorf("set up the namespace: %w", err)
			}
		}
		if t.netns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		if t.op, err = rtnl.Dial(); err != nil {
			return err
		}
		if t.observer, err = rtnl.Dial(); err != nil {
			return err
		}
		t.notes, err = listen()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("begin a namespace: %w", err)
	}
	if t.cfg.Memory != nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(t.netns.Fd()), &st); err != nil {
			return nil, err
		}
		net, ok, err := t.cfg.Memory.Net(uint32(st.Ino))
		if err != nil || !ok {
			return nil, fmt.Errorf("find the namespace in kernel memory (found: %t): %w", ok, err)
		}
		t.net, t.inum = net, uint32(st.Ino)
	}
	o := &invariants.Observation{}
	if err := t.observe(o); err != nil {
		return nil, err
	}
	if err := t.audit(o, true); err != nil {
		return nil, err
	}
	for name := range t.index {
		if name != "lo" {
			return nil, fmt.Errorf("a fresh namespace has the device %s, which no operation made: load no tunnel modules, or set net.core.fb_tunnels_only_for_init_net to 2", name)
		}
	}
	return o, nil
}

// observe fills in the dumps that changed and the log.
func (t *Target) observe(o *invariants.Observation) error {
	now, err := t.observer.DumpAll()
	if err != nil {
		return err
	}
	o.Dumps = rtnl.Changed(t.last, now)
	for _, d := range o.Dumps {
		if d.Table == "link" {
			if t.index, err = rtnl.LinkIndexes(d.Data); err != nil {
				return err
			}
		}
	}
	t.last = now
	o.Log = append(o.Log, t.log.read()...)
	return nil
}

// Observe observes the namespace without an operation.
func (t *Target) Observe(context.Context) (*invariants.Observation, error) {
	if t.netns == nil {
		return nil, fmt.Errorf("observe: no namespace was begun")
	}
	o := &invariants.Observation{}
	return o, t.observe(o)
}

// Apply runs one operation. If it does not return within the limit, the observation says so and who holds the devices that are being unregistered; the
// target must then be thrown away or recovered.
func (t *Target) Apply(ctx context.Context, op model.Op) (*invariants.Observation, error) {
	switch {
	case t.netns == nil:
		return nil, fmt.Errorf("%s: no namespace was begun", iproute.Print(op))
	case t.pending != nil:
		return nil, fmt.Errorf("%s: an earlier operation is still blocked; recover the target or throw it away", iproute.Print(op))
	}
	o := &invariants.Observation{Op: iproute.Print(op)}
	if _, del := op.(model.LinkDel); del && t.cfg.Memory != nil {
		devices, err := t.cfg.Memory.Devices(t.net)
		if err != nil {
			return nil, fmt.Errorf("read the devices: %w", err)
		}
		t.devices = devices
	}
	done := make(chan answer, 1)
	start := time.Now()
	go func() { done <- t.run(op) }()
	a, returned, err := t.await(ctx, done)
	o.Took = time.Since(start)
	switch {
	case err != nil:
		t.pending = done
		return nil, err
	case !returned:
		t.pending = done
		o.Blocked = true
		t.explain(o)
		return o, nil
	case a.err != nil:
		return nil, fmt.Errorf("%s: %w", o.Op, a.err)
	}
	o.Errno, o.Extack = a.errno, a.extack
	o.Notes = t.notes.hear()
	if err := t.observe(o); err != nil {
		return nil, err
	}
	if _, settle := op.(model.Settle); settle {
		return o, t.audit(o, false)
	}
	return o, nil
}

// await waits for an operation's answer until the limit, or until kernel memory shows that it waits for a device whose references stay.
func (t *Target) await(ctx context.Context, done <-chan answer) (a answer, returned bool, err error) {
	limit := time.NewTimer(t.cfg.Limit)
	defer limit.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	stuck := map[uint64]int{} // devices that are waited for, with their count, at the look before
	for looks := 0; ; {
		select {
		case a := <-done:
			return a, true, nil
		case <-ctx.Done():
			return a, false, ctx.Err()
		case <-limit.C:
			return a, false, nil
		case <-look.C:
			if looks++; looks < firstLook || t.cfg.Memory == nil {
				continue
			}
			now := t.waitedFor()
			for dev, refs := range now {
				if stuck[dev] == refs {
					return a, false, nil
				}
			}
			stuck = now
		}
	}
}

// waitedFor returns the devices that are unregistered but still held (netdev_wait_allrefs_any), with their counts.
func (t *Target) waitedFor() map[uint64]int {
	out := map[uint64]int{}
	for _, prev := range t.devices {
		if now, same, err := t.cfg.Memory.Recheck(prev); err == nil && same && now.State == unregistered && now.Refs > 1 {
			out[now.Addr] = now.Refs
		}
	}
	return out
}

// unregistered is NETREG_UNREGISTERED: everybody was told to let go of the device.
const unregistered = 3

// explain reads, while an operation is blocked, what the kernel says and which devices wait for whom.
func (t *Target) explain(o *invariants.Observation) {
	if t.cfg.Memory != nil {
		o.Log = append(o.Log, t.log.read()...)
		t.holders(o, t.net)
		return
	}
	for end := time.Now().Add(messageLimit); ; t.log.wait(time.Until(end)) {
		o.Log = append(o.Log, t.log.read()...)
		said := slices.ContainsFunc(o.Log, func(l string) bool { return strings.Contains(l, "unregister_netdevice: waiting") })
		if said || len(o.Log) >= logLines || time.Now().After(end) {
			break
		}
	}
}

// holders reads who holds the devices that are being unregistered.
func (t *Target) holders(o *invariants.Observation, net kmem.Net) {
	for _, prev := range t.devices {
		now, same, err := t.cfg.Memory.Recheck(prev)
		if err != nil || !same {
			continue
		}
		if now.State != 1 {
			if now.Holders, err = t.cfg.Memory.Holders(net, now.Addr); err != nil {
				o.Log = append(o.Log, "nlfuzz: the holders can't be read: "+err.Error())
			}
		}
		o.Devices = append(o.Devices, now)
	}
}

// Explain reads what holds references on devices.
func (t *Target) Explain(_ context.Context, names []string) ([]invariants.Device, error) {
	if t.netns == nil || t.cfg.Memory == nil {
		return nil, fmt.Errorf("explain: no namespace was begun, or its memory can't be read")
	}
	devices, err := t.cfg.Memory.Devices(t.net)
	if err != nil {
		return nil, err
	}
	devices = slices.DeleteFunc(devices, func(d invariants.Device) bool { return !slices.Contains(names, d.Name) })
	for i, d := range devices {
		if devices[i].Holders, err = t.cfg.Memory.Holders(t.net, d.Addr); err != nil {
			return nil, err
		}
	}
	return devices, nil
}

// run makes one operation happen and returns its answer.
func (t *Target) run(op model.Op) answer {
	switch o := op.(type) {
	case model.Send, model.Hold, model.Release, model.PTB:
		var errno syscall.Errno
		err := t.thread.do(func() error { errno = t.socketOp(op); return nil })
		return answer{errno: errno, err: err}
	case model.Settle:
		if t.inexact {
			return answer{}
		}
		return answer{err: t.settle()}
	default:
		req, errno, ok := rtnl.Encode(o, func(name string) (int, bool) { i, ok := t.index[name]; return i, ok })
		if !ok {
			return answer{err: fmt.Errorf("%T can't be run", op)}
		}
		if req == nil {
			return answer{errno: errno}
		}
		errno, extack, err := t.op.Do(req)
		return answer{errno, extack, err}
	}
}

// settle is the barrier: deleting a veth waits for the RCU callbacks that were queued before it (rcu_barrier in netdev_run_todo). Link watch events, which
// the kernel delays by up to a second, are not waited for: an exact count knows whether one holds a reference (invariants.Device.Linkwatch).
func (t *Target) settle() error {
	none := func(string) (int, bool) { return 0, false }
	req, _, _ := rtnl.Encode(model.LinkAdd{Name: barrier, Type: model.Veth, Peer: barrier + "peer"}, none)
	if errno, _, err := t.scratch.Do(req); err != nil || errno != 0 {
		return fmt.Errorf("barrier: add a veth: %w", first(err, errno))
	}
	index, err := t.scratch.Indexes()
	if err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	req, _, _ = rtnl.Encode(model.LinkDel{Name: barrier}, func(n string) (int, bool) { i, ok := index[n]; return i, ok })
	if errno, _, err := t.scratch.Do(req); err != nil || errno != 0 {
		return fmt.Errorf("barrier: delete the veth: %w", first(err, errno))
	}
	return nil
}

// audit reads the exact counts; it comes after a barrier.
func (t *Target) audit(o *invariants.Observation, fresh bool) (err error) {
	if t.cfg.Memory == nil || t.inexact {
		return nil
	}
	if o.Memory, err = t.cfg.Memory.Audit(t.net, fresh); err != nil {
		return fmt.Errorf("read the reference counts: %w", err)
	}
	return nil
}

// barrier is the device that settle makes and deletes.
const barrier = "barrier"

func first(err error, errno syscall.Errno) error {
	if err != nil {
		return err
	}
	return errno
}
