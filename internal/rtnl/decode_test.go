package rtnl_test

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/internal/rtnl"
	"github.com/nlfuzz/nlfuzz/invariants"
)

// recorded reads the dumps of a kernel.
func recorded(t testing.TB, file string) (dumps []invariants.Dump) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(string(b), "\n") {
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		name, text, _ := strings.Cut(l, " ")
		data, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		dumps = append(dumps, invariants.Dump{Table: name, Data: data})
	}
	return dumps
}

func files(t testing.TB) []string {
	t.Helper()
	out, err := filepath.Glob("testdata/dumps-*.txt")
	if err != nil || len(out) == 0 {
		t.Fatalf("no recorded dumps: %v", err)
	}
	return out
}

// Dumps of two kernels are decoded to the same tables, those of testdata/tables.txt, with no attribute unknown.
func TestDecode(t *testing.T) {
	b, err := os.ReadFile("testdata/tables.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(b)), "\n")
	for _, f := range files(t) {
		dumps := recorded(t, f)
		for range 2 {
			tables, unknown, err := rtnl.Decode(dumps)
			if err != nil || len(unknown) > 0 {
				t.Fatalf("%s: unknown %v, error %v", f, unknown, err)
			}
			if d := cmp.Diff(want, tables.Lines()); d != "" {
				t.Errorf("%s (-want +got):\n%s", f, d)
			}
			slices.Reverse(dumps) // names are found wherever the links stand
		}
	}
}

// extend appends an attribute to the first message of a dump.
func extend(data []byte, typ uint16) []byte {
	n := binary.LittleEndian.Uint32(data)
	out := slices.Clone(data[:n])
	out = append(out, 8, 0, byte(typ), byte(typ>>8), 1, 2, 3, 4)
	binary.LittleEndian.PutUint32(out, n+8)
	return append(out, data[n:]...)
}

func TestDecodeUnknown(t *testing.T) {
	for _, table := range rtnl.TableNames() {
		dumps := recorded(t, "testdata/dumps-7.3.txt")
		want, _, err := rtnl.Decode(dumps)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(dumps, func(d invariants.Dump) bool { return d.Table == table })
		dumps[i].Data = extend(dumps[i].Data, 200)
		got, unknown, err := rtnl.Decode(dumps)
		if err != nil || !slices.Equal(unknown, []string{table + " attribute 200"}) {
			t.Errorf("%s: unknown %v, error %v", table, unknown, err)
		}
		if d := cmp.Diff(want.Lines(), got.Lines()); d != "" {
			t.Errorf("%s: what is unknown changes what is known:\n%s", table, d)
		}
	}
}

// A dump that ends anywhere but between messages is an error; between messages it has fewer of them.
func TestDecodeCutOff(t *testing.T) {
	dumps := recorded(t, "testdata/dumps-7.3.txt")
	for _, d := range dumps {
		bounds := map[int]bool{0: true}
		for at := 0; at < len(d.Data); {
			at += (int(binary.LittleEndian.Uint32(d.Data[at:])) + 3) &^ 3
			bounds[at] = true
		}
		for n := range d.Data {
			_, _, err := rtnl.Decode([]invariants.Dump{{Table: d.Table, Data: d.Data[:n]}})
			if (err == nil) != bounds[n] {
				t.Fatalf("%s cut off at %d of %d: error %v", d.Table, n, len(d.Data), err)
			}
		}
	}
	// A message that says it is shorter than its attributes.
	for _, d := range dumps {
		data := slices.Clone(d.Data)
		binary.LittleEndian.PutUint32(data, binary.LittleEndian.Uint32(data)-4)
		if _, _, err := rtnl.Decode([]invariants.Dump{{Table: d.Table, Data: data}}); err == nil {
			t.Errorf("%s: a message without its last 4 bytes is decoded", d.Table)
		}
	}
}

func TestDecodeForeign(t *testing.T) {
	d := recorded(t, "testdata/dumps-7.3.txt")
	for _, c := range []struct {
		name string
		dump invariants.Dump
	}{
		{"a table that does not exist", invariants.Dump{Table: "frob"}},
		{"addresses among the links", invariants.Dump{Table: "link", Data: d[1].Data}},
		{"IPv6 among IPv4", invariants.Dump{Table: "route4", Data: d[3].Data}},
	} {
		if _, _, err := rtnl.Decode([]invariants.Dump{c.dump}); err == nil {
			t.Errorf("%s: no error", c.name)
		}
	}
}

// What a decoder of dumps leaves out on purpose.
func TestDecodeLeavesOut(t *testing.T) {
	route := make([]byte, 12)
	route[0], route[7] = unix.AF_INET6, 1
	neigh := make([]byte, 12)
	neigh[0], neigh[8] = unix.AF_INET, unix.NUD_REACHABLE
	for _, c := range []struct {
		table string
		typ   uint16
		body  []byte
		set   func(b []byte)
	}{
		{"route6", unix.RTM_NEWROUTE, route, func(b []byte) { binary.LittleEndian.PutUint32(b[8:], unix.RTM_F_CLONED) }},
		{"neigh", unix.RTM_NEWNEIGH, append(neigh, 8, 0, 1, 0, 192, 0, 2, 1), func([]byte) {}},
		{"qdisc", unix.RTM_NEWQDISC, make([]byte, 20), func([]byte) {}},
	} {
		data := make([]byte, 16, 64)
		data = append(data, c.body...)
		binary.LittleEndian.PutUint32(data, uint32(len(data)))
		binary.LittleEndian.PutUint16(data[4:], c.typ)
		count := func() int {
			tables, _, err := rtnl.Decode([]invariants.Dump{{Table: c.table, Data: data}})
			if err != nil {
				t.Fatalf("%s: %v", c.table, err)
			}
			return len(tables.Lines())
		}
		if c.table == "route6" && count() != 1 {
			t.Errorf("%s: a route is left out", c.table)
		}
		c.set(data[16:])
		if n := count(); n != 0 {
			t.Errorf("%s: %d entries, want none", c.table, n)
		}
	}
}

func TestMergeChanged(t *testing.T) {
	a := []invariants.Dump{{Table: "link", Data: []byte{1}}, {Table: "addr", Data: []byte{2}}}
	b := []invariants.Dump{{Table: "link", Data: []byte{1}}, {Table: "addr", Data: []byte{3}}}
	c := rtnl.Changed(a, b)
	if d := cmp.Diff([]invariants.Dump{b[1]}, c); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(b, rtnl.Merge(a, c)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(a, rtnl.Merge(nil, a)); d != "" {
		t.Error(d)
	}
}

// No input makes the decoder panic or hang.
func FuzzDecode(f *testing.F) {
	for _, file := range files(f) {
		for i, d := range recorded(f, file) {
			f.Add(uint8(i), d.Data)
		}
	}
	names := rtnl.TableNames()
	f.Fuzz(func(t *testing.T, table uint8, data []byte) {
		name := names[int(table)%len(names)]
		tables, _, err := rtnl.Decode([]invariants.Dump{{Table: name, Data: data}})
		if (err == nil) == (tables == nil) {
			t.Errorf("%s: tables %v with error %v", name, tables, err)
		}
		if err == nil {
			tables.Lines()
		}
	})
}
