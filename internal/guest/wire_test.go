package guest

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nlfuzz/nlfuzz/invariants"
)

func TestFrame(t *testing.T) {
	var b bytes.Buffer
	frames := []frame{{1, kindPing, nil}, {0xffffffff, kindApply, []byte("ip link add name d0 type dummy")}, {7, kindOK, bytes.Repeat([]byte{0xa5}, 1<<20)}}
	for _, f := range frames {
		if err := writeFrame(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range frames {
		got, err := readFrame(&b)
		if err != nil || got.id != want.id || got.kind != want.kind || !bytes.Equal(got.payload, want.payload) {
			t.Errorf("frame %d: got id %d kind %d with %d bytes, %v", want.id, got.id, got.kind, len(got.payload), err)
		}
	}
	if _, err := readFrame(&b); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestFrameRefused(t *testing.T) {
	length := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	for _, test := range []struct {
		name string
		in   []byte
		want string
	}{
		{"shorter than its header", length(4), "frame of 4 bytes"},
		{"over the limit", length(maxFrame + 1), "not between 5 and"},
		{"all ones", length(1<<32 - 1), "not between 5 and"},
		{"cut in the length", []byte{1, 0}, io.ErrUnexpectedEOF.Error()},
		{"cut in the payload", append(length(6), 1, 2, 3), io.ErrUnexpectedEOF.Error()},
		{"nothing after the length", length(6), io.EOF.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			if f, err := readFrame(bytes.NewReader(test.in)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, %v; want an error with %q", f, err, test.want)
			}
		})
	}
}

var observations = map[string]*invariants.Observation{
	"empty": {},
	"answer": {Op: "ip route add 10.0.0.0/8 dev d0", Errno: syscall.ENETUNREACH, Extack: "Nexthop has invalid gateway.", Took: 1234567,
		Dumps: []invariants.Dump{{Table: "link", Data: []byte{1, 2, 3}}, {Table: "rule6"}}, Log: []string{"", "a line"}},
	"blocked": {Op: "ip link del dev vrf0", Took: 1500 * time.Millisecond, Blocked: true,
		Log: []string{"unregister_netdevice: waiting for vrf0 to become free. Usage count = 11"},
		Devices: []invariants.Device{{Name: "vrf0", Ifindex: 4, Addr: 0xffff888003c0a000, State: 2, Refs: 11, Linkwatch: true,
			Holders: []invariants.Holder{{Kind: "ipv6 dst (dst.dev)", Count: 10, Detail: "fd00::1"}}}}},
	"announced": {Op: "ip link del dev d0", Notes: &invariants.Notes{Heard: []invariants.Note{{Type: 17, Count: 2}, {Type: 25, Count: 3000}}, Lost: true}},
	"silent":    {Op: "ip link set dev d0 up", Notes: &invariants.Notes{}},
	"gone":      {Net: invariants.NetState{Deleted: true, Gone: true, Took: time.Second}},
}

func TestObservation(t *testing.T) {
	for name, want := range observations {
		t.Run(name, func(t *testing.T) {
			b := encodeObservation(want)
			got, err := decodeObservation(b)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("it came back as another (-sent +got):\n%s", d)
			}
			for n := range b {
				if got, err := decodeObservation(b[:n]); err == nil {
					t.Errorf("cut to %d of %d bytes it was taken: %+v", n, len(b), got)
				}
			}
			if _, err := decodeObservation(append(b, 0)); err == nil {
				t.Error("with a byte too many it was taken")
			}
		})
	}
}

func FuzzFrame(f *testing.F) {
	var b bytes.Buffer
	writeFrame(&b, frame{7, kindOK, []byte("payload")})
	f.Add(b.Bytes())
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := readFrame(bytes.NewReader(in))
		if err != nil {
			return
		}
		var out bytes.Buffer
		writeFrame(&out, got)
		if !bytes.HasPrefix(in, out.Bytes()) {
			t.Errorf("read %x and wrote %x", in, out.Bytes())
		}
	})
}

// Whatever a guest sends, the host must live; and what it takes, it must take the same again.
func FuzzObservation(f *testing.F) {
	for _, o := range observations {
		f.Add(encodeObservation(o))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		first, err := decodeObservation(in)
		if err != nil {
			return
		}
		again, err := decodeObservation(encodeObservation(first))
		if err != nil {
			t.Fatal(err)
		}
		// Devices travel only when there are some, a namespace's fate only when it was deleted.
		if len(first.Devices) == 0 && !first.Net.Deleted {
			first.Net = invariants.NetState{}
		}
		if d := cmp.Diff(first, again, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("it came back as another (-first +again):\n%s", d)
		}
	})
}
