package iproute

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nlfuzz/nlfuzz/model"
)

// words is what is left to read of one line.
type words struct {
	cmd  string // what the line was recognised as, for errors: "ip link add"
	list []string
}

func (w *words) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s", w.cmd, fmt.Sprintf(format, args...))
}

func (w *words) more() bool { return len(w.list) > 0 }

// take returns the next word; "" at the end of the line (a word is never empty).
func (w *words) take() string {
	if len(w.list) == 0 {
		return ""
	}
	s := w.list[0]
	w.list = w.list[1:]
	return s
}

// need returns the next word, or the error that what is missing.
func (w *words) need(what string) (string, error) {
	s := w.take()
	if s == "" {
		return "", w.errorf("%s is missing at the end of the line", what)
	}
	return s, nil
}

// end refuses what is left of the line.
func (w *words) end() error {
	if w.more() {
		return w.errorf("unknown word %q after the end of the command", w.list[0])
	}
	return nil
}

// literal takes exactly these words.
func (w *words) literal(want ...string) error {
	for _, s := range want {
		if got := w.take(); got != s {
			if got == "" {
				got = "the end of the line"
			} else {
				got = strconv.Quote(got)
			}
			return w.errorf("%q is expected, not %s", strings.Join(want, " "), got)
		}
	}
	return nil
}

// A value reads the words that follow an option's name.
type value func(w *words) error

// option is a word with a meaning, and its synonyms. An option without names takes a word that is no other option.
type option struct {
	names []string
	value value
	many  bool // may be given more than once
}

func opt(v value, names ...string) option { return option{names: names, value: v} }

// options reads options in any order to the end of the line.
func (w *words) options(opts ...option) error {
	_, err := w.optionsUntil(nil, opts...)
	return err
}

// optionsUntil reads options in any order, to the end of the line or to a word that stop knows, which it takes and returns.
func (w *words) optionsUntil(stop []string, opts ...option) (string, error) {
	seen := make([]bool, len(opts))
	for w.more() {
		word := w.list[0]
		if slices.Contains(stop, word) {
			return w.take(), nil
		}
		i := slices.IndexFunc(opts, func(o option) bool { return slices.Contains(o.names, word) })
		if i >= 0 {
			w.take()
		} else if i = slices.IndexFunc(opts, func(o option) bool { return o.names == nil }); i < 0 || seen[i] {
			return "", w.errorf("unknown word %q (have %s)", word, known(stop, opts))
		}
		if seen[i] && !opts[i].many {
			return "", w.errorf("%q is given twice", word)
		}
		seen[i] = true
		if err := opts[i].value(w); err != nil {
			return "", err
		}
	}
	return "", nil
}

func known(stop []string, opts []option) string {
	var all []string
	for _, o := range opts {
		if o.names != nil {
			all = append(all, o.names[0])
		}
	}
	return strings.Join(append(all, stop...), ", ")
}

// oneOf takes one of some words, written out or abbreviated as iproute2's matches() lets people do: the first that begins with it counts.
func (w *words) oneOf(what string, have ...string) (string, error) {
	got, err := w.need(what + " (" + strings.Join(have, ", ") + ")")
	if err != nil {
		return "", err
	}
	for _, s := range have {
		if strings.HasPrefix(s, got) {
			return s, nil
		}
	}
	return "", w.errorf("unknown %s %q (have %s)", what, got, strings.Join(have, ", "))
}

func flag(dst *bool) value {
	return func(*words) error { *dst = true; return nil }
}

// device reads a device name into a place that is still empty, since "dev d0" and a bare "d0" are the same option.
func device(dst *string) value {
	return func(w *words) error {
		s, err := w.need("a device name")
		if err != nil {
			return err
		}
		if *dst != "" {
			return w.errorf("unknown word %q: the device is already %q", s, *dst)
		}
		if why := badName(s); why != "" {
			return w.errorf("%q is no device name: %s", s, why)
		}
		*dst = s
		return nil
	}
}

// newDevice reads the name of a device to be made: as device, without the % that lets the kernel choose a name.
func newDevice(dst *string) value {
	return func(w *words) error {
		if err := device(dst)(w); err != nil {
			return err
		}
		if strings.Contains(*dst, "%") {
			return w.errorf("%q is no device name: with a %% the kernel chooses the name itself", *dst)
		}
		return nil
	}
}

// badName says why the kernel does not take a name for a device (dev_valid_name); empty if it does.
func badName(s string) string {
	switch {
	case len(s) > 15:
		return "it has more than 15 characters"
	case s == "." || s == "..":
		return "it is a folder's"
	}
	for i := range len(s) { // bytes, as the kernel looks at them: 0xa0 is a space to its isspace
		if c := s[i]; c == '/' || c == ':' || c == 0 || c == 0xa0 {
			return fmt.Sprintf("it has the character %q", c)
		}
	}
	return ""
}

// number reads a number between bounds: decimal or, with 0x, hexadecimal.
func number[T ~uint16 | ~uint32](dst *T, what string, low, high T) value {
	return func(w *words) error {
		s, err := w.need(what)
		if err != nil {
			return err
		}
		n, err := parseUint(s)
		if err != nil || n < uint64(low) || n > uint64(high) {
			return w.errorf("%s %q must be a number from %d to %d", what, s, low, high)
		}
		*dst = T(n)
		return nil
	}
}

// parseUint refuses what iproute2 (strtoul with base 0) reads as octal.
func parseUint(s string) (uint64, error) {
	if h, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		return strconv.ParseUint(h, 16, 64)
	}
	if len(s) > 1 && s[0] == '0' {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(s, 10, 64)
}

var tableNames = map[string]uint32{"default": 253, "main": 254, "local": 255}

// table reads a routing table's number or one of the names that every machine has.
func table(dst *uint32, low uint32) value {
	return func(w *words) error {
		s, err := w.need("a table")
		if err != nil {
			return err
		}
		if t, ok := tableNames[s]; ok {
			*dst = t
			return nil
		}
		n, err := parseUint(s)
		if err != nil || n < uint64(low) || n > 1<<32-1 {
			return w.errorf("table %q must be main, local, default or a number from %d to %d", s, low, uint32(1<<32-1))
		}
		*dst = uint32(n)
		return nil
	}
}

// address reads an address of a family; of any with Unspec.
func address(dst *netip.Addr, f model.Family) value {
	return func(w *words) error {
		s, err := w.need("an address")
		if err != nil {
			return err
		}
		a, err := parseAddr(s)
		if err != nil {
			return w.errorf("%q is no address", s)
		}
		if f != model.Unspec && model.FamilyOf(a) != f {
			return w.errorf("%q is no %s address", s, familyName(f))
		}
		*dst = a
		return nil
	}
}

// parsePrefix reads a prefix, or an address as the prefix that holds it alone. Host bits are kept.
func parsePrefix(w *words, s string, f model.Family) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if !strings.Contains(s, "/") {
		var a netip.Addr
		a, err = parseAddr(s)
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if err != nil {
		return p, w.errorf("%q is no prefix, address/length", s)
	}
	if f != model.Unspec && model.FamilyOf(p.Addr()) != f {
		return p, w.errorf("%q is no %s prefix", s, familyName(f))
	}
	return p, nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		err = strconv.ErrSyntax
	}
	return a, err
}

func familyName(f model.Family) string {
	switch f {
	case model.IPv4:
		return "IPv4"
	case model.IPv6:
		return "IPv6"
	}
	return "known"
}

// mac reads an Ethernet address into its canonical form.
func mac(dst *string) value {
	return func(w *words) error {
		s, err := w.need("a link layer address")
		if err != nil {
			return err
		}
		m, err := net.ParseMAC(s)
		if err != nil || len(m) != 6 || m.String() != strings.ToLower(s) {
			return w.errorf("%q is no Ethernet address, such as 02:00:00:00:00:01", s)
		}
		*dst = m.String()
		return nil
	}
}
