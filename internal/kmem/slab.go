package kmem

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// maxPages limits a slab scan to 64 GiB of memory: more would take seconds.
const maxPages = 64 << 30 >> 12

// slab is how a slab cache lays its objects out.
type slab struct{ size, pad, objects uint64 }

func (r *Reader) slabOf(cache uint64) (s slab, err error) {
	size, err := r.m.u32(cache + r.l.cacheSize)
	if err != nil {
		return s, err
	}
	order, err := r.m.u32(cache + r.l.cacheOrder)
	if err != nil {
		return s, err
	}
	s.size, s.objects = uint64(size), uint64(order&0xffff) // kmem_cache_order_objects: the low 16 bits count objects
	if r.l.cachePad != 0 {
		pad, err := r.m.u32(cache + r.l.cachePad)
		if err != nil {
			return s, err
		}
		s.pad = uint64(pad)
	}
	return s, nil
}

// slots returns the address of every object slot, used or free, of each of some slab caches: it scans the struct page array for their slabs.
func (r *Reader) slots(caches ...uint64) ([][]uint64, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("objects that are on no list can be found only on amd64, not on %s", runtime.GOARCH)
	}
	// Where the kernel has no such variables or hides them, the addresses without randomisation (CONFIG_RANDOMIZE_MEMORY) are tried.
	vmemmap, direct := uint64(0xffffea0000000000), uint64(0xffff888000000000)
	if caches[0] < 0xffff800000000000 { // five levels of page tables
		vmemmap, direct = 0xffd4000000000000, 0xff11000000000000
	}
	for name, v := range map[string]*uint64{"vmemmap_base": &vmemmap, "page_offset_base": &direct} {
		if a := r.syms[name]; a != 0 {
			base, err := r.m.u64(a)
			if err != nil {
				return nil, err
			}
			*v = base
		}
	}
	ranges, err := systemRAM()
	if err != nil {
		return nil, err
	}
	last := ranges[len(ranges)-1][1]
	layouts := make([]slab, len(caches))
	for i, cache := range caches {
		if cache < direct || (cache-direct)>>12 >= last {
			return nil, fmt.Errorf("slab cache %#x lies outside the direct map at %#x: the kernel randomises its memory map and kallsyms doesn't show page_offset_base", cache, direct)
		}
		if layouts[i], err = r.slabOf(cache); err != nil {
			return nil, err
		}
	}
	const chunk = 512 // struct pages a read
	var reqs []request
	var first []uint64
	for _, ram := range ranges {
		for p := ram[0]; p < ram[1]; p += chunk {
			reqs = append(reqs, request{vmemmap + p*r.l.pageSize, uint32(min(chunk, ram[1]-p) * r.l.pageSize)})
			first = append(first, p)
		}
	}
	out := make([][]uint64, len(caches))
	readable := 0
	err = r.m.each(reqs, func(i int, data []byte) {
		if data != nil {
			readable++
		}
		for j := uint64(0); (j+1)*r.l.pageSize <= uint64(len(data)); j++ {
			word := le.Uint64(data[j*r.l.pageSize+r.l.slabCache:])
			for c, cache := range caches {
				if word != cache {
					continue
				}
				at := direct + (first[i]+j)<<12
				for n := range layouts[c].objects {
					out[c] = append(out[c], at+layouts[c].pad+n*layouts[c].size)
				}
			}
		}
	})
	if err == nil && readable*2 < len(reqs) {
		err = fmt.Errorf("only %d of %d parts of the page array at %#x are readable", readable, len(reqs), vmemmap)
	}
	return out, err
}

// systemRAM returns the page ranges of memory, in order.
func systemRAM() (out [][2]uint64, err error) {
	f, err := os.Open("/proc/iomem")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	total := uint64(0)
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		line := sc.Text()
		var lo, hi uint64
		if strings.HasPrefix(line, " ") || !strings.HasSuffix(line, " : System RAM") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &lo, &hi); err != nil {
			return nil, fmt.Errorf("/proc/iomem: line %q: %w", line, err)
		}
		if from, to := (lo+4095)>>12, (hi+1)>>12; from < to {
			out = append(out, [2]uint64{from, to})
			total += to - from
		}
	}
	if err := sc.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("/proc/iomem shows no System RAM (it hides addresses without CAP_SYS_ADMIN)")
	}
	if total > maxPages {
		return nil, fmt.Errorf("a scan of %d MiB of memory for objects on no list is over the limit of %d MiB", total>>8, maxPages>>8)
	}
	return out, nil
}
