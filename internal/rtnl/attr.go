// Package rtnl turns operations into rtnetlink requests, and dumps of rtnetlink into the tables of the model.
package rtnl

import (
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/nlfuzz/nlfuzz/model"
)

// le is the byte order of netlink on the machines that nlfuzz runs on.
var le = binary.LittleEndian

// request builds one netlink message.
type request struct{ b []byte }

const headerLen = 16

func newRequest(typ, flags uint16) *request {
	r := &request{b: make([]byte, headerLen, 256)}
	le.PutUint16(r.b[4:], typ)
	le.PutUint16(r.b[6:], flags|flagRequest)
	return r
}

// put appends the fixed part of a message, field by field.
func (r *request) put(fields ...any) *request {
	for _, f := range fields {
		r.b, _ = binary.Append(r.b, le, f) // only fixed-size integers are given: can't fail
	}
	return r
}

// body appends the fixed part of a message for which rtnetlink has a type. The attributes are appended by this package: rtnetlink's encoders lack some that
// iproute2 sends and send some that it does not.
func (r *request) body(m encoding.BinaryMarshaler) *request {
	b, err := m.MarshalBinary()
	if err != nil {
		panic(err) // without attributes nothing can fail
	}
	r.b = append(r.b, b...)
	return r
}

func (r *request) attr(typ uint16, data []byte) {
	r.b = le.AppendUint16(r.b, uint16(4+len(data)))
	r.b = le.AppendUint16(r.b, typ)
	r.b = append(r.b, data...)
	for len(r.b)%4 != 0 {
		r.b = append(r.b, 0)
	}
}

func (r *request) u8(typ uint16, v uint8)   { r.attr(typ, []byte{v}) }
func (r *request) u16(typ uint16, v uint16) { r.attr(typ, le.AppendUint16(nil, v)) }
func (r *request) u32(typ uint16, v uint32) { r.attr(typ, le.AppendUint32(nil, v)) }
func (r *request) u64(typ uint16, v uint64) { r.attr(typ, le.AppendUint64(nil, v)) }
func (r *request) str(typ uint16, s string) { r.attr(typ, append([]byte(s), 0)) }
func (r *request) addr(typ uint16, a netip.Addr) {
	if a.IsValid() {
		r.attr(typ, a.AsSlice())
	}
}

// nest appends an attribute that holds others, which inner makes.
func (r *request) nest(typ uint16, inner func()) {
	start := len(r.b)
	r.attr(typ, nil)
	inner()
	le.PutUint16(r.b[start:], uint16(len(r.b)-start))
}

// finish fills in the length.
func (r *request) finish() []byte {
	le.PutUint32(r.b, uint32(len(r.b)))
	return r.b
}

// errShort is a message or attribute that is cut off.
var errShort = errors.New("message is cut off or malformed")

// attribute is one netlink attribute, its type without the flags.
type attribute struct {
	typ  uint16
	data []byte
}

// next splits the first attribute off b.
func nextAttr(b []byte) (a attribute, rest []byte, err error) {
	if len(b) < 4 {
		return a, nil, errShort
	}
	n := int(le.Uint16(b))
	if n < 4 || n > len(b) {
		return a, nil, errShort
	}
	a = attribute{le.Uint16(b[2:]) &^ 0xc000, b[4:n]}
	return a, b[min((n+3)&^3, len(b)):], nil
}

// each calls f for every attribute in b.
func each(b []byte, f func(a attribute) error) error {
	for len(b) > 0 {
		a, rest, err := nextAttr(b)
		if err != nil {
			return err
		}
		if err := f(a); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

func (a attribute) u8() (uint8, error) {
	if len(a.data) < 1 {
		return 0, errShort
	}
	return a.data[0], nil
}

func (a attribute) u16() (uint16, error) {
	if len(a.data) < 2 {
		return 0, errShort
	}
	return le.Uint16(a.data), nil
}

func (a attribute) u32() (uint32, error) {
	if len(a.data) < 4 {
		return 0, errShort
	}
	return le.Uint32(a.data), nil
}

func (a attribute) str() string {
	for i, c := range a.data {
		if c == 0 {
			return string(a.data[:i])
		}
	}
	return string(a.data)
}

// ip reads an address of family f.
func (a attribute) ip(f model.Family) (netip.Addr, error) {
	ip, ok := netip.AddrFromSlice(a.data)
	if !ok || model.FamilyOf(ip) != f {
		return netip.Addr{}, fmt.Errorf("an address of %d bytes in family %d: %w", len(a.data), f, errShort)
	}
	return ip, nil
}

// prefix makes a prefix of an address and a length that came in different fields.
func prefix(ip netip.Addr, bits uint8) (netip.Prefix, error) {
	p := netip.PrefixFrom(ip, int(bits))
	if !p.IsValid() {
		return p, fmt.Errorf("address %s with a length of %d: %w", ip, bits, errShort)
	}
	return p, nil
}
