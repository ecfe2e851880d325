package fuzz

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// book remembers the ledgers of the states that were met, so that two ways to one state can be compared. It forgets all when it is full.
type book struct {
	seed  maphash.Seed
	pages map[uint64]invariants.Earlier
}

const (
	maxPages = 20000
	maxHow   = 12 // operations that tell how a state was reached
)

// visit is the book as one sequence uses it.
type visit struct {
	book    *book
	own     map[uint64]page // of this sequence
	netRefs int             // of the namespace when it was fresh; 0 if unknown
}

type page struct {
	at      int // how many operations came before
	ledgers invariants.Ledgers
}

func (b *book) begin() *visit {
	if b.pages == nil {
		b.seed, b.pages = maphash.MakeSeed(), map[uint64]invariants.Earlier{}
	}
	return &visit{book: b, own: map[uint64]page{}}
}

// key is equal for two states that the model can't tell apart, the references it predicts included.
func (v *visit) key(want invariants.Expected) uint64 {
	var h maphash.Hash
	h.SetSeed(v.book.seed)
	for _, l := range want.Tables.Lines() {
		h.WriteString(l)
		h.WriteByte('\n')
	}
	fmt.Fprint(&h, want.Ledgers) // fmt sorts maps
	return h.Sum64()
}

// recall adds earlier readings of the same state to what is expected.
func (v *visit) recall(want *invariants.Expected, before []model.Op) {
	k := v.key(*want)
	if p, ok := v.own[k]; ok {
		want.Undone = &invariants.Earlier{Ledgers: p.ledgers, How: describe(before[p.at:])}
	}
	if e, ok := v.book.pages[k]; ok {
		want.Other = &e
	}
}

// note keeps a reading that no judge objected to.
func (v *visit) note(want invariants.Expected, m *invariants.Memory, before []model.Op) {
	if m == nil {
		return
	}
	k, l := v.key(want), m.Ledgers()
	v.own[k] = page{len(before), l}
	if _, known := v.book.pages[k]; known {
		return
	}
	if len(v.book.pages) >= maxPages {
		clear(v.book.pages)
	}
	v.book.pages[k] = invariants.Earlier{Ledgers: l, How: describe(before)}
}

func describe(ops []model.Op) string {
	if len(ops) == 0 {
		return "nothing"
	}
	s := ""
	for i, op := range slices.All(ops[max(0, len(ops)-maxHow):]) {
		if i > 0 {
			s += "; "
		}
		s += iproute.Print(op)
	}
	return s
}
