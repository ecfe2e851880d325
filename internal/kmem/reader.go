// Package kmem reads the exact reference counts of network devices, and what holds them, from the memory of a stock kernel through BPF programs.
package kmem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/nlfuzz/nlfuzz/invariants"
)

// The reasons why kernel memory can't be read. Each comes wrapped in a text that says which weaker judge takes over.
var (
	ErrNoBTF      = errors.New("the kernel does not describe its structures (no usable /sys/kernel/btf/vmlinux)")
	ErrLockdown   = errors.New("the kernel is locked down (lockdown=confidentiality) and refuses reads of its memory")
	ErrHidden     = errors.New("the kernel offers no bpf_probe_read_kernel: it lacks CONFIG_BPF_EVENTS, or it is locked down (mount securityfs and read lockdown)")
	ErrPermission = errors.New("no permission to read kernel memory by BPF programs (needs root, or CAP_BPF and CAP_PERFMON)")
	ErrNoBPF      = errors.New("the kernel can't run BPF syscall programs with bpf_loop (needs 5.17 or newer with CONFIG_BPF_SYSCALL)")
)

const (
	weaker      = "the kernel log and blocked deletes judge instead"
	maxNets     = 65536
	maxDevices  = 60000
	nameSize    = 16         // IFNAMSIZ
	maxRegState = 5          // NETREG_DUMMY
	firstInum   = 0xeffffff0 // the initial namespace has 0xeffffff9 (since 6.18) or a dynamic number, from PROC_DYNAMIC_FIRST = 0xf0000000
	lockdownSys = "/sys/kernel/security/lockdown"
)

// Net is the address of a struct net.
type Net uint64

// Reader reads one kernel's memory; its methods may be called concurrently.
type Reader struct {
	mu      sync.Mutex
	m       *memory
	l       *layout
	syms    map[string]uint64
	cpuOff  []uint64          // __per_cpu_offset
	lists   map[string]uint64 // the uncached lists, to which a CPU's offset is added
	ipv4Ops uint64            // ipv4_dst_ops, once known
	neigh   [2]uint64         // arp_tbl and nd_tbl, once known
}

// Open loads the programs, looks up the kernel's layout and proves that a read works. It takes 0.1 s, in an emulated guest a second: do it once, before
// a snapshot.
func Open() (*Reader, error) { return open((*memory).symbols) }

// open is Open with another way to look symbols up: a kernel may hide all of them.
func open(symbols func(m *memory, names ...string) (map[string]uint64, error)) (*Reader, error) {
	m, err := openMemory()
	if err != nil {
		return nil, refused(err)
	}
	r := &Reader{m: m, lists: map[string]uint64{}}
	if r.l, err = loadLayout(); err != nil {
		m.close()
		return nil, fmt.Errorf("%w: %w; %s", ErrNoBTF, err, weaker)
	}
	r.syms, err = symbols(m, "net_namespace_list", "rt6_uncached_list", "rt_uncached_list", "ipv4_dst_ops", "vmemmap_base", "page_offset_base")
	r.ipv4Ops = r.syms["ipv4_dst_ops"]
	if err == nil {
		err = r.prove()
	}
	if err != nil {
		m.close()
		return nil, fmt.Errorf("kernel memory does not read as expected: %w; %s", err, weaker)
	}
	return r, nil
}

// refused names why the kernel did not take the programs.
func refused(err error) error {
	state, stateErr := os.ReadFile(lockdownSys)
	return refusedIn(err, string(state), stateErr == nil)
}

// refusedIn is refused with the text of the lockdown file, if there is one.
func refusedIn(err error, lockdown string, known bool) error {
	missing := missingHelper(err)
	// bpf_base_func_proto hides the helper when security_locked_down(LOCKDOWN_BPF_READ_KERNEL) refuses, and without CAP_PERFMON. The library then
	// replaces bpf_probe_read_kernel by bpf_probe_read, which is hidden as well.
	hidden := strings.Contains(missing, " bpf_probe_read")
	kind := ErrNoBPF
	switch {
	case strings.Contains(lockdown, "[confidentiality]"):
		kind = ErrLockdown
	case hidden && !known:
		kind = ErrHidden
	case hidden, errors.Is(err, fs.ErrPermission):
		kind = ErrPermission
	}
	if missing != "" {
		err = fmt.Errorf("%w (%s)", err, missing)
	}
	return fmt.Errorf("%w: %w; %s", kind, err, weaker)
}

// missingHelper returns what the verifier said about a helper that it does not let programs call; its error shows only the last lines of its log.
func missingHelper(err error) string {
	var verdict *ebpf.VerifierError
	if errors.As(err, &verdict) {
		for _, line := range verdict.Log {
			if strings.Contains(line, "cannot use helper ") || strings.Contains(line, "unknown func ") {
				return line
			}
		}
	}
	return ""
}

// prove finds the per-CPU areas and reads the caller's own namespace, whose number is known from /proc.
func (r *Reader) prove() error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	_, mapAddr, _, err := r.m.environ(0)
	if err != nil {
		return err
	}
	base, err := r.m.u64(mapAddr + r.l.arrayPptrs)
	if err != nil {
		return err
	}
	for cpu := range cpus {
		_, _, elem, err := r.m.environ(cpu)
		if err != nil {
			return err
		}
		r.cpuOff = append(r.cpuOff, elem-base)
	}
	start, err := r.percpuStart()
	for name, off := range map[string]uint64{"rt6_uncached_list": r.l.percpu6, "rt_uncached_list": r.l.percpu4} {
		switch {
		case r.syms[name] != 0:
			r.lists[name] = r.syms[name]
		case err != nil:
			return fmt.Errorf("kallsyms shows no %s: %w", name, err)
		default:
			r.lists[name] = start + off
		}
	}
	nets, err := r.nets()
	if err != nil {
		return err
	}
	for _, net := range nets {
		if devs, err := r.devices(net); err == nil {
			for _, d := range devs {
				if d.Name == "lo" && d.Ifindex == 1 && d.State == 1 && d.Refs > 0 {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("none of %d namespaces has a loopback device with references", len(nets))
}

// percpuStart derives the address from which per-CPU symbols count: a task's run queue is &per_cpu(runqueues, cpu).
func (r *Reader) percpuStart() (uint64, error) {
	if r.l.runqueueErr != nil {
		return 0, r.l.runqueueErr
	}
	for range 3 { // the task may move to another CPU meanwhile
		task, _, _, err := r.m.environ(0)
		if err != nil {
			return 0, err
		}
		cfs, err := r.m.u64(task + r.l.taskRunqueue[0])
		if err != nil {
			return 0, err
		}
		rq, err := r.m.u64(cfs + r.l.taskRunqueue[1])
		if err != nil {
			return 0, err
		}
		cpu, err := r.m.u32(rq + r.l.taskRunqueue[2])
		if err == nil && int(cpu) < len(r.cpuOff) && r.l.taskRunqueue[3] != 0 {
			return rq - r.cpuOff[cpu] - r.l.taskRunqueue[3], nil
		}
	}
	return 0, errors.New("the start of the per-CPU section can't be derived from the current task's run queue")
}

// Close unloads the programs.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.close()
}

// Net finds a namespace by its number, the inode of /proc/PID/ns/net. A namespace that is being dismantled is no longer listed, so ask before deleting.
func (r *Reader) Net(inum uint32) (Net, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	nets, err := r.nets()
	if err != nil {
		return 0, false, err
	}
	net, ok := nets[inum]
	return net, ok, nil
}

// nets walks net_namespace_list. Where kallsyms doesn't show it, the ring is entered at the caller's namespace.
func (r *Reader) nets() (map[uint32]Net, error) {
	out := map[uint32]Net{}
	head := r.syms["net_namespace_list"]
	hidden := head == 0
	if hidden {
		task, _, _, err := r.m.environ(0)
		if err != nil {
			return nil, err
		}
		proxy, err := r.m.u64(task + r.l.taskNsproxy)
		if err != nil {
			return nil, err
		}
		own, err := r.m.u64(proxy + r.l.nsproxyNet)
		if err != nil {
			return nil, err
		}
		inum, err := r.m.u32(own + r.l.netInum)
		if err != nil {
			return nil, err
		}
		out[inum], head = Net(own), own+r.l.netList
	}
	nodes, err := r.m.ring("net_namespace_list", head, int64(r.l.netInum)-int64(r.l.netList), 4, maxNets)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		inum, net := le.Uint32(n.data), n.addr-r.l.netList
		if inum < firstInum || hidden && !r.isNet(net) {
			continue
		}
		out[inum] = Net(net)
	}
	return out, nil
}

// isNet tells a namespace from the head of their ring: its list of devices leads back to itself.
func (r *Reader) isNet(net uint64) bool {
	first, err := r.m.u64(net + r.l.netDevs)
	if err != nil || first == 0 {
		return false
	}
	back, err := r.m.u64(first + 8) // list_head.prev
	return err == nil && back == net+r.l.netDevs
}

// Devices reads the registered devices of a namespace.
func (r *Reader) Devices(net Net) ([]invariants.Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.devices(net)
}

func (r *Reader) devices(net Net) ([]invariants.Device, error) {
	nodes, err := r.m.ring("a namespace's devices", uint64(net)+r.l.netDevs, 0, 0, maxDevices)
	if err != nil {
		return nil, err
	}
	addrs := make([]uint64, len(nodes))
	for i, n := range nodes {
		addrs[i] = n.addr - r.l.devList
	}
	devs, err := r.readDevices(addrs)
	if err != nil {
		return nil, err
	}
	out := make([]invariants.Device, 0, len(devs))
	for _, d := range devs {
		if d != nil { // otherwise freed since the walk
			out = append(out, *d)
		}
	}
	return out, nil
}

// Device reads one device by its address, also while it is being unregistered and is listed nowhere. It fails where the memory no longer looks like a
// device; memory that was freed and used again for another device can be told only by Recheck.
func (r *Reader) Device(addr uint64) (invariants.Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, err := r.device(addr)
	if err == nil && d == nil {
		err = fmt.Errorf("there is no device at %#x: its memory was freed", addr)
	}
	if err != nil {
		return invariants.Device{}, err
	}
	return *d, nil
}

// device is Device, nil where the memory doesn't look like a device.
func (r *Reader) device(addr uint64) (*invariants.Device, error) {
	devs, err := r.readDevices([]uint64{addr})
	if err != nil {
		return nil, err
	}
	if d := devs[0]; d != nil && d.Name != "" && d.Ifindex > 0 && d.State <= maxRegState {
		return d, nil
	}
	return nil, nil
}

// Recheck reads one device again by its address, also while it is being unregistered and is listed nowhere. same is false when the memory was freed or
// now holds something else; now is then empty.
func (r *Reader) Recheck(prev invariants.Device) (now invariants.Device, same bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	devs, err := r.readDevices([]uint64{prev.Addr})
	if err != nil || devs[0] == nil || devs[0].Ifindex != prev.Ifindex || devs[0].Name != prev.Name {
		return invariants.Device{}, false, err
	}
	return *devs[0], true, nil
}

// readDevices reads net_devices; an entry is nil where the memory isn't readable or the counters were freed.
func (r *Reader) readDevices(addrs []uint64) ([]*invariants.Device, error) {
	const fields = 5
	reqs := make([]request, 0, len(addrs)*fields)
	for _, a := range addrs {
		reqs = append(reqs, request{a + r.l.devName, nameSize}, request{a + r.l.devIndex, 4}, request{a + r.l.devReg, 1},
			request{a + r.l.devState, 8}, request{a + r.l.devCnt, 8})
	}
	out := make([]*invariants.Device, len(addrs))
	counters := make([]uint64, len(addrs))
	for i, a := range addrs {
		out[i] = &invariants.Device{Addr: a}
	}
	err := r.m.each(reqs, func(i int, data []byte) {
		n := i / fields
		d := out[n]
		if d == nil || data == nil {
			out[n] = nil
			return
		}
		switch i % fields {
		case 0:
			d.Name = cstring(data)
		case 1:
			d.Ifindex = int(int32(le.Uint32(data)))
		case 2:
			d.State = data[0]
		case 3:
			d.Linkwatch = le.Uint64(data)>>r.l.linkwatch&1 != 0
		case 4:
			counters[n] = le.Uint64(data)
			d.Refs = int(int32(le.Uint32(data))) // netdev_refcnt_read without CONFIG_PCPU_DEV_REFCNT
		}
	})
	if err != nil || !r.l.devPercpu {
		return out, err
	}
	reqs = reqs[:0]
	cpus := len(r.cpuOff)
	for n, d := range out {
		if d != nil {
			d.Refs = 0
		}
		for _, off := range r.cpuOff {
			reqs = append(reqs, request{counters[n] + off, 4})
		}
	}
	err = r.m.each(reqs, func(i int, data []byte) {
		n := i / cpus
		switch {
		case out[n] == nil:
		case data == nil || counters[n] == 0: // free_netdev clears pcpu_refcnt
			out[n] = nil
		default:
			out[n].Refs += int(int32(le.Uint32(data)))
		}
	})
	return out, err
}

func cstring(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
