package kmem

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// One array map of a single value carries requests to the programs and answers back; it is mapped into this process. Its layout:
//
//	0     how many requests of a batch to serve; the CPU number for the environment program; the result of a symbol lookup
//	8     environment: current task, 16: the per-CPU map, 24: its element on that CPU
//	8     symbol lookup: the address found; the name is at 128
//	32    walk: list head, 40: node to wanted bytes, 48: bytes a node, 52: bytes a record, 56: most nodes
//	60    walk: nodes found, 64: result of the last read, 68: 1 when the list's end was reached, 72: current node, 80: next node
//	88    walk: the link that ends the list: the head of a ring, 0 for a chain
//	4096  batch: requests of 16 bytes (address, length, offset of the answer)
//	2 MiB answers
const (
	bufSize  = 8 << 20
	reqOff   = 4096
	maxReqs  = 1 << 16
	outOff   = 2 << 20
	outBytes = 4 << 20
	outMask  = outBytes - 1
	lenMask  = 0xffff
	symOff   = 128
	symBytes = 64
)

var le = binary.LittleEndian

// memory reads kernel memory. It is not safe for concurrent use.
type memory struct {
	buf, percpu      *ebpf.Map
	mem              []byte
	batch, env, walk *ebpf.Program
	symbol           *ebpf.Program
}

type request struct {
	addr uint64
	size uint32
}

func openMemory() (m *memory, err error) {
	m = &memory{}
	defer func() {
		if err != nil {
			m.close()
			m = nil
		}
	}()
	m.buf, err = ebpf.NewMap(&ebpf.MapSpec{Name: "kmem_buf", Type: ebpf.Array, KeySize: 4, ValueSize: bufSize, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	if err != nil {
		return m, fmt.Errorf("create the buffer map: %w", err)
	}
	// The map's address minus its element's address on a CPU is that CPU's __per_cpu_offset: no symbol is needed.
	m.percpu, err = ebpf.NewMap(&ebpf.MapSpec{Name: "kmem_cpu", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return m, fmt.Errorf("create the per-CPU map: %w", err)
	}
	if m.mem, err = unix.Mmap(m.buf.FD(), 0, bufSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return m, fmt.Errorf("map the buffer: %w", err)
	}
	fd := m.buf.FD()
	if m.batch, err = load("kmem_batch", batchProgram(fd)); err != nil {
		return m, err
	}
	if m.env, err = load("kmem_env", envProgram(fd, m.percpu.FD())); err != nil {
		return m, err
	}
	if m.walk, err = load("kmem_walk", walkProgram(fd)); err != nil {
		return m, err
	}
	if m.symbol, err = load("kmem_symbol", symbolProgram(fd)); err != nil {
		return m, err
	}
	return m, nil
}

func (m *memory) close() error {
	var errs []error
	if m.mem != nil {
		errs = append(errs, unix.Munmap(m.mem))
		m.mem = nil
	}
	for _, p := range []*ebpf.Program{m.batch, m.env, m.walk, m.symbol} {
		errs = append(errs, p.Close())
	}
	for _, b := range []*ebpf.Map{m.buf, m.percpu} {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

func load(name string, ins asm.Instructions) (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.Syscall, License: "GPL", Flags: unix.BPF_F_SLEEPABLE, Instructions: ins})
	if err != nil {
		return nil, fmt.Errorf("load program %s: %w", name, err)
	}
	return p, nil
}

func run(p *ebpf.Program) error {
	if _, err := p.Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("run a program: %w", err)
	}
	return nil
}

// function marks the first instruction of a function; callbacks of bpf_loop must be static.
func function(name string, linkage btf.FuncLinkage, first asm.Instruction) asm.Instruction {
	i32 := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	ptr := &btf.Pointer{Target: &btf.Void{}}
	proto := &btf.FuncProto{Return: i32}
	if linkage == btf.StaticFunc {
		proto.Params = []btf.FuncParam{{Name: "i", Type: i32}, {Name: "ctx", Type: ptr}}
	} else {
		proto.Params = []btf.FuncParam{{Name: "ctx", Type: ptr}}
	}
	return btf.WithFuncMetadata(first.WithSymbol(name), &btf.Func{Name: name, Linkage: linkage, Type: proto})
}

// loop calls bpf_loop(R1 times, callback).
func loop(callback string) asm.Instructions {
	ins := asm.LoadImm(asm.R2, 0, asm.DWord).WithReference(callback)
	ins.Src = asm.PseudoFunc
	ins.Constant = -1
	return asm.Instructions{ins, asm.Mov.Imm(asm.R3, 0), asm.Mov.Imm(asm.R4, 0), asm.FnLoop.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}
}

// batchProgram serves requests; each request's length is replaced by the result of its read.
func batchProgram(fd int) asm.Instructions {
	ins := asm.Instructions{
		function("kmem_batch", btf.GlobalFunc, asm.LoadMapValue(asm.R6, fd, 0)),
		asm.LoadMem(asm.R1, asm.R6, 0, asm.Word),
	}
	ins = append(ins, loop("serve")...)
	return append(ins,
		function("serve", btf.StaticFunc, asm.LoadMapValue(asm.R6, fd, 0)),
		asm.And.Imm(asm.R1, maxReqs-1),
		asm.LSh.Imm(asm.R1, 4),
		asm.Mov.Reg(asm.R7, asm.R6),
		asm.Add.Reg(asm.R7, asm.R1),
		asm.LoadMem(asm.R3, asm.R7, reqOff, asm.DWord),
		asm.LoadMem(asm.R2, asm.R7, reqOff+8, asm.Word),
		asm.And.Imm(asm.R2, lenMask),
		asm.LoadMem(asm.R8, asm.R7, reqOff+12, asm.Word),
		asm.And.Imm(asm.R8, outMask),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Add.Imm(asm.R1, outOff),
		asm.Add.Reg(asm.R1, asm.R8),
		asm.FnProbeReadKernel.Call(),
		asm.StoreMem(asm.R7, reqOff+8, asm.R0, asm.Word),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	)
}

// envProgram reports the current task and where a per-CPU map's element lies on one CPU.
func envProgram(fd, percpu int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapValue(asm.R6, fd, 0),
		asm.FnGetCurrentTask.Call(),
		asm.StoreMem(asm.R6, 8, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, percpu),
		asm.StoreMem(asm.R6, 16, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R2, 0),
		asm.StoreMem(asm.RFP, -8, asm.R2, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.LoadMem(asm.R3, asm.R6, 0, asm.Word),
		asm.FnMapLookupPercpuElem.Call(),
		asm.StoreMem(asm.R6, 24, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
}

// walkProgram follows a list_head or hlist_head and copies bytes at a fixed distance from each node.
func walkProgram(fd int) asm.Instructions {
	ins := asm.Instructions{
		function("kmem_walk", btf.GlobalFunc, asm.LoadMapValue(asm.R6, fd, 0)),
		asm.LoadMem(asm.R1, asm.R6, 32, asm.DWord),
		asm.StoreMem(asm.R6, 72, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R6, 56, asm.Word),
	}
	ins = append(ins, loop("step")...)
	return append(ins,
		function("step", btf.StaticFunc, asm.LoadMapValue(asm.R6, fd, 0)),
		asm.Mov.Reg(asm.R9, asm.R1),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Add.Imm(asm.R1, 80),
		asm.Mov.Imm(asm.R2, 8),
		asm.LoadMem(asm.R3, asm.R6, 72, asm.DWord),
		asm.FnProbeReadKernel.Call(),
		asm.StoreMem(asm.R6, 64, asm.R0, asm.Word),
		asm.JNE.Imm(asm.R0, 0, "stop"),
		asm.LoadMem(asm.R7, asm.R6, 80, asm.DWord),
		asm.LoadMem(asm.R1, asm.R6, 88, asm.DWord),
		asm.JEq.Reg(asm.R7, asm.R1, "end"),
		asm.StoreMem(asm.R6, 72, asm.R7, asm.DWord),
		asm.LoadMem(asm.R1, asm.R6, 52, asm.Word),
		asm.Mul.Reg(asm.R9, asm.R1),
		asm.And.Imm(asm.R9, outMask),
		asm.Mov.Reg(asm.R8, asm.R6),
		asm.Add.Imm(asm.R8, outOff),
		asm.Add.Reg(asm.R8, asm.R9),
		asm.StoreMem(asm.R8, 0, asm.R7, asm.DWord),
		asm.LoadMem(asm.R1, asm.R6, 40, asm.DWord),
		asm.Add.Reg(asm.R7, asm.R1),
		asm.Mov.Reg(asm.R3, asm.R7),
		asm.LoadMem(asm.R2, asm.R6, 48, asm.Word),
		asm.And.Imm(asm.R2, lenMask),
		asm.Mov.Reg(asm.R1, asm.R8),
		asm.Add.Imm(asm.R1, 8),
		asm.FnProbeReadKernel.Call(),
		asm.LoadMem(asm.R1, asm.R6, 60, asm.Word),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R6, 60, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
		asm.Mov.Imm(asm.R1, 1).WithSymbol("end"),
		asm.StoreMem(asm.R6, 68, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("stop"),
		asm.Return(),
	)
}

// symbolProgram looks a symbol's address up: a hundred times faster than reading /proc/kallsyms since 6.2.
func symbolProgram(fd int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapValue(asm.R6, fd, 0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Add.Imm(asm.R1, symOff),
		asm.Mov.Imm(asm.R2, symBytes),
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Reg(asm.R4, asm.R6),
		asm.Add.Imm(asm.R4, 8),
		asm.FnKallsymsLookupName.Call(),
		asm.StoreMem(asm.R6, 0, asm.R0, asm.Word),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
}

// symbols returns the addresses of data; a name is missing where the kernel has no CONFIG_KALLSYMS_ALL or hides it (kptr_restrict).
func (m *memory) symbols(names ...string) (map[string]uint64, error) {
	out := map[string]uint64{}
	for _, name := range names {
		clear(m.mem[symOff : symOff+symBytes])
		copy(m.mem[symOff:symOff+symBytes-1], name)
		if err := run(m.symbol); err != nil {
			return nil, err
		}
		if addr := le.Uint64(m.mem[8:]); le.Uint32(m.mem) == 0 && addr != 0 {
			out[name] = addr
		}
	}
	return out, nil
}

// environ runs the environment program for one CPU.
func (m *memory) environ(cpu int) (task, mapAddr, elem uint64, err error) {
	le.PutUint32(m.mem, uint32(cpu))
	if err := run(m.env); err != nil {
		return 0, 0, 0, err
	}
	return le.Uint64(m.mem[8:]), le.Uint64(m.mem[16:]), le.Uint64(m.mem[24:]), nil
}

// each reads all requests and calls f for each in order; data is nil where the memory is not mapped and valid only during the call.
func (m *memory) each(reqs []request, f func(i int, data []byte)) error {
	for base := 0; base < len(reqs); {
		n, off := 0, uint32(0)
		for base+n < len(reqs) && n < maxReqs-1 {
			r := reqs[base+n]
			if r.size > lenMask {
				return fmt.Errorf("a read of %d bytes is longer than %d", r.size, lenMask)
			}
			if off+r.size > outBytes {
				break
			}
			p := m.mem[reqOff+n*16:]
			le.PutUint64(p, r.addr)
			le.PutUint32(p[8:], r.size)
			le.PutUint32(p[12:], off)
			off += (r.size + 7) &^ 7
			n++
		}
		le.PutUint32(m.mem, uint32(n))
		if err := run(m.batch); err != nil {
			return err
		}
		for i := range n {
			p := m.mem[reqOff+i*16:]
			var data []byte
			if le.Uint32(p[8:]) == 0 {
				at := outOff + le.Uint32(p[12:])
				data = m.mem[at : at+reqs[base+i].size]
			}
			f(base+i, data)
		}
		base += n
	}
	return nil
}

// read returns a copy of size bytes.
func (m *memory) read(addr uint64, size int) ([]byte, error) {
	var out []byte
	err := m.each([]request{{addr, uint32(size)}}, func(_ int, data []byte) { out = append(out, data...) })
	if err == nil && len(out) != size {
		err = fmt.Errorf("kernel memory at %#x is not readable: the object went away or an offset is wrong", addr)
	}
	return out, err
}

func (m *memory) u64(addr uint64) (uint64, error) {
	b, err := m.read(addr, 8)
	if err != nil {
		return 0, err
	}
	return le.Uint64(b), nil
}

func (m *memory) u32(addr uint64) (uint32, error) {
	b, err := m.read(addr, 4)
	if err != nil {
		return 0, err
	}
	return le.Uint32(b), nil
}

// words reads many words at once; a word is 0 where the address is 0 or not readable.
func (m *memory) words(addrs []uint64) ([]uint64, error) {
	out := make([]uint64, len(addrs))
	reqs := make([]request, len(addrs))
	for i, a := range addrs {
		reqs[i].addr = a // of size 0 where the address is: nothing is read
		if a != 0 {
			reqs[i].size = 8
		}
	}
	err := m.each(reqs, func(i int, data []byte) {
		if len(data) == 8 {
			out[i] = le.Uint64(data)
		}
	})
	return out, err
}

// field returns the address of a field of an object, 0 for no object.
func field(object, off uint64) uint64 {
	if object == 0 {
		return 0
	}
	return object + off
}

type node struct {
	addr uint64
	data []byte
}

// ring walks a list_head and reads size bytes at node+delta.
func (m *memory) ring(what string, head uint64, delta int64, size, limit int) ([]node, error) {
	return m.list(what, head, head, delta, size, limit)
}

// chain walks a hlist_head, or any pointer to objects that are linked by their first word, and reads size bytes at node+delta.
func (m *memory) chain(what string, head uint64, delta int64, size, limit int) ([]node, error) {
	return m.list(what, head, 0, delta, size, limit)
}

// list is the common part. No lock is held, so a node may move while it is visited: a walk that faults or doesn't come to the list's end is tried again,
// and reported after three attempts.
func (m *memory) list(what string, head, end uint64, delta int64, size, limit int) (out []node, err error) {
	stride := (size + 8 + 7) &^ 7
	limit = min(limit, outBytes/stride-1)
	for range 3 {
		le.PutUint64(m.mem[32:], head)
		le.PutUint64(m.mem[40:], uint64(delta))
		le.PutUint32(m.mem[48:], uint32(size))
		le.PutUint32(m.mem[52:], uint32(stride))
		le.PutUint32(m.mem[56:], uint32(limit+1)) // the last step only sees the end
		clear(m.mem[60:72])
		le.PutUint64(m.mem[88:], end)
		if err := run(m.walk); err != nil {
			return nil, err
		}
		n := int(le.Uint32(m.mem[60:]))
		switch {
		case le.Uint32(m.mem[64:]) != 0:
			err = fmt.Errorf("the walk of %s ran into unreadable memory after %d entries, three times", what, n)
		case le.Uint32(m.mem[68:]) == 0:
			err = fmt.Errorf("the walk of %s did not come to an end within %d entries, three times", what, limit)
		default:
			for i := range n {
				p := m.mem[outOff+i*stride:]
				out = append(out, node{le.Uint64(p), append([]byte(nil), p[8:8+size]...)})
			}
			return out, nil
		}
	}
	return nil, err
}
