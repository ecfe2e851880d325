package guest

import (
	"encoding/binary"

	"github.com/nlfuzz/nlfuzz/invariants"
)

// maxNoteTypes bounds the kinds of announcement in an observation; rtnetlink has some sixty.
const maxNoteTypes = 256

// appendNotes writes announcements as numbers: 0 for none heard of, else 1 + the number of types; whether some were lost; type and count of each.
func appendNotes(b []byte, n *invariants.Notes) []byte {
	if n == nil {
		return binary.AppendUvarint(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(1+len(n.Heard)))
	lost := uint64(0)
	if n.Lost {
		lost = 1
	}
	b = binary.AppendUvarint(b, lost)
	for _, h := range n.Heard {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(h.Type)), uint64(h.Count))
	}
	return b
}

// readNotes reads what appendNotes wrote. What num can't read it remembers as its error, and gives 0.
func readNotes(num func() uint64) *invariants.Notes {
	types := num()
	if types == 0 {
		return nil
	}
	n := &invariants.Notes{Lost: num() != 0}
	for range min(types-1, maxNoteTypes) {
		n.Heard = append(n.Heard, invariants.Note{Type: uint16(num()), Count: int(num())})
	}
	return n
}
