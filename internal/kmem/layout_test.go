package kmem

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

var (
	u32type = &btf.Int{Name: "unsigned int", Size: 4}
	ptrType = &btf.Pointer{Target: &btf.Void{}}
)

func structure(name string, size uint32, members ...btf.Member) *btf.Struct {
	return &btf.Struct{Name: name, Size: size, Members: members}
}

func at(name string, bytes uint32, typ btf.Type) btf.Member {
	return btf.Member{Name: name, Offset: btf.Bits(bytes * 8), Type: typ}
}

// spec writes types as a kernel has them in /sys/kernel/btf/vmlinux, and reads them.
func spec(t *testing.T, types ...btf.Type) *resolver {
	t.Helper()
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, &btf.MarshalOptions{Order: binary.LittleEndian})
	if err != nil {
		t.Fatal(err)
	}
	s, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return &resolver{spec: s}
}

func TestResolver(t *testing.T) {
	rcuref := &btf.Typedef{Name: "rcuref_t", Type: structure("", 4, at("refcnt", 0, u32type))}
	inner := structure("", 16, at("a", 0, ptrType), at("b", 8, ptrType))
	r := spec(t,
		structure("old_dst", 80, at("dev", 0, ptrType), at("__refcnt", 64, u32type)),
		structure("new_dst", 80, btf.Member{Name: "", Type: &btf.Union{Size: 8, Members: []btf.Member{at("dev", 0, ptrType), at("dev_rcu", 0, ptrType)}}},
			at("__rcuref", 68, rcuref)),
		structure("nested", 40, at("x", 0, u32type), at("", 8, inner), at("in", 24, inner)),
		&btf.Enum{Name: "state", Size: 4, Values: []btf.EnumValue{{Name: "FIRST", Value: 0}, {Name: "LINKWATCH", Value: 4}}},
	)
	for _, c := range []struct {
		typ   string
		paths []string
		want  uint64
	}{
		{"old_dst", []string{"__rcuref.refcnt", "__refcnt"}, 64}, // the second name is taken where the first is missing
		{"new_dst", []string{"__rcuref.refcnt", "__refcnt"}, 68}, // through a typedef
		{"new_dst", []string{"dev"}, 0},                          // in an anonymous union
		{"nested", []string{"b"}, 16},                            // in an anonymous struct
		{"nested", []string{"in.b"}, 32},
	} {
		if got := r.off(c.typ, c.paths...); got != c.want || r.err != nil {
			t.Errorf("off(%s, %q) = %d, %v; want %d", c.typ, c.paths, got, r.err, c.want)
		}
	}
	if got := r.size("nested"); got != 40 || r.err != nil {
		t.Errorf("size(nested) = %d, %v; want 40", got, r.err)
	}
	if got := r.enum("state", "LINKWATCH"); got != 4 || r.err != nil {
		t.Errorf("enum(state, LINKWATCH) = %d, %v; want 4", got, r.err)
	}
	for what, f := range map[string]func(*resolver){
		"struct nested has no field y": func(r *resolver) { r.off("nested", "y") },
		"struct missing":               func(r *resolver) { r.off("missing", "y") },
		"struct nothing":               func(r *resolver) { r.size("nothing") },
		"enum state has no OTHER":      func(r *resolver) { r.enum("state", "OTHER") },
	} {
		r := &resolver{spec: r.spec}
		f(r)
		f2 := r.err
		r.off("nested", "z") // a later failure doesn't replace the first
		if f2 == nil || r.err != f2 || !strings.Contains(f2.Error(), what) {
			t.Errorf("the failure is %v, then %v; want %q", f2, r.err, what)
		}
	}
}

func TestLayoutNamesWhatIsMissing(t *testing.T) {
	r := spec(t, structure("net", 8, at("other", 0, ptrType)))
	if _, err := newLayout(r.spec); err == nil || !strings.Contains(err.Error(), "struct net has no field list") {
		t.Errorf("newLayout = %v, want the first field that is missing", err)
	}
}

func TestPercpu(t *testing.T) {
	for _, section := range []string{".data..percpu", ".data.percpu", ".data"} {
		v := func(name string) *btf.Var { return &btf.Var{Name: name, Type: u32type, Linkage: btf.GlobalVar} }
		r := spec(t, &btf.Datasec{Name: section, Size: 128, Vars: []btf.VarSecinfo{
			{Type: v("runqueues"), Offset: 64, Size: 4}, {Type: v("rt_uncached_list"), Offset: 96, Size: 4}}})
		got := r.percpu("runqueues", "gone", "rt_uncached_list")
		want := []uint64{64, 0, 96}
		if section == ".data" {
			want = []uint64{0, 0, 0}
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: percpu = %v, want %v", section, got, want)
			}
		}
	}
}
