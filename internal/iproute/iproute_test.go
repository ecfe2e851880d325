package iproute_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/iproute/opgen"
	"github.com/nlfuzz/nlfuzz/model"
)

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// TestEveryTypeIsGenerated fails when package model gets an operation that opgen, and so every test here, does not know.
func TestEveryTypeIsGenerated(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "../../model/op.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "Kind" && fn.Recv != nil {
			types = append(types, fn.Recv.List[0].Type.(*ast.Ident).Name)
		}
	}
	slices.Sort(types)
	if diff := cmp.Diff(types, opgen.Types()); diff != "" {
		t.Errorf("types with a method Kind (-) and in opgen (+):\n%s", diff)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, name := range opgen.Types() {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			op := opgen.OfType(name).Draw(t, "op")
			if got := fmt.Sprintf("%T", op); got != "model."+name {
				t.Fatalf("opgen.OfType(%q) made a %s", name, got)
			}
			text := iproute.Print(op)
			back, err := iproute.Parse(text)
			if err != nil {
				t.Fatalf("Print made %q, which Parse refuses: %v", text, err)
			}
			if diff := cmp.Diff(op, back, byValue); diff != "" {
				t.Fatalf("%q came back as another operation (-printed +parsed):\n%s", text, diff)
			}
		}))
	}
}

func TestSequenceRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		header := rapid.SliceOf(rapid.StringMatching(`([a-z#][a-z# ]{0,9}[a-z])?`)).Draw(t, "header")
		ops := rapid.SliceOfN(opgen.Op(), 0, 10).Draw(t, "ops")
		text := iproute.PrintSequence(header, ops)
		gotHeader, got, err := iproute.ParseSequence(strings.NewReader(text))
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if diff := cmp.Diff(ops, got, byValue, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("operations (-printed +parsed):\n%s", diff)
		}
		if diff := cmp.Diff(header, gotHeader, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("header (-printed +parsed):\n%s", diff)
		}
	})
}

func TestParseSequence(t *testing.T) {
	in := "# what it shows\n#\n#   kernel: 6.1\n\n\t# still header\r\nip link add d0 type dummy\r\n\n# not header\n  ip link set d0 up  \n"
	header, ops, err := iproute.ParseSequence(strings.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"what it shows", "", "  kernel: 6.1", "still header"}, header); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]model.Op{model.LinkAdd{Name: "d0", Type: model.Dummy}, model.LinkUp{Name: "d0"}}, ops); diff != "" {
		t.Error(diff)
	}
	for in, want := range map[string]string{
		"# x\n\nip link add foo type foo\n":            `line 3: ip link add: unknown kind "foo" (have dummy, veth, vrf, bridge, vlan, macvlan)`,
		"nlfuzz settle\n" + strings.Repeat("x", 1<<20): "line 2: bufio.Scanner: token too long",
	} {
		if _, ops, err := iproute.ParseSequence(strings.NewReader(in)); err == nil || err.Error() != want || ops != nil {
			t.Errorf("got %v and the error %v, want %s", ops, err, want)
		}
	}
}

// TestVariants: what people write, and the one form in which it is printed.
func TestVariants(t *testing.T) {
	for _, c := range readTable(t, "testdata/variants.txt") {
		op, err := iproute.Parse(c.line)
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		got := iproute.Print(op)
		if got != c.want {
			t.Errorf("%s\n got  %s\n want %s", c.line, got, c.want)
		}
		again, err := iproute.Parse(got)
		if err != nil || iproute.Print(again) != got {
			t.Errorf("%s: its canonical form %q is not stable: %v, %v", c.line, got, again, err)
		}
	}
}

// TestMalformed: each line has one error, which names the word and what is expected.
func TestMalformed(t *testing.T) {
	for _, c := range readTable(t, "testdata/malformed.txt") {
		op, err := iproute.Parse(c.line)
		if err == nil {
			t.Errorf("%s: parsed as %#v", c.line, op)
		} else if err.Error() != c.want {
			t.Errorf("%s\n got  %v\n want %s", c.line, err, c.want)
		} else if op != nil {
			t.Errorf("%s: an operation beside the error: %#v", c.line, op)
		}
	}
}

func TestEmptyLine(t *testing.T) {
	if op, err := iproute.Parse(" \t"); err == nil {
		t.Errorf("parsed as %#v", op)
	}
}

func FuzzParse(f *testing.F) {
	for _, file := range []string{"testdata/variants.txt", "testdata/malformed.txt"} {
		for _, c := range readTable(f, file) {
			f.Add(c.line)
		}
	}
	f.Fuzz(func(t *testing.T, line string) {
		op, err := iproute.Parse(line)
		if err != nil {
			return
		}
		text := iproute.Print(op)
		back, err := iproute.Parse(text)
		if err != nil {
			t.Fatalf("%q printed as %q, which Parse refuses: %v", line, text, err)
		}
		if diff := cmp.Diff(op, back, byValue); diff != "" {
			t.Fatalf("%q printed as %q, which is another operation:\n%s", line, text, diff)
		}
	})
}
