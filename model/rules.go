package model

import (
	"net/netip"
	"slices"
	"syscall"
)

func (s *State) rulesOf(f Family) *[]RuleEntry {
	if f == IPv6 {
		return &s.rules6
	}
	return &s.rules4
}

// rule follows fib_nl_newrule and fib_nl_delrule.
func (s *State) rule(o Rule) syscall.Errno {
	r := RuleEntry{Family: o.Family, Pref: o.Pref, From: anyIsNone(o.From), To: anyIsNone(o.To), Mark: o.Mark, IIF: o.IIF, OIF: o.OIF,
		Action: o.Action, Table: o.Table}
	if r.Action != RuleLookup {
		r.Table = 0
	}
	for _, p := range []netip.Prefix{r.From, r.To} {
		if p.IsValid() && FamilyOf(p.Addr()) != o.Family {
			return syscall.EINVAL
		}
	}
	if o.Del {
		return s.ruleDelete(r)
	}
	if r.Action == RuleLookup && r.Table == 0 {
		if o.Family == IPv6 {
			return syscall.EINVAL // fib6_rule_configure
		}
		r.Table = s.emptyTable4()
	}
	return s.ruleInsert(r)
}

// anyIsNone makes no prefix of a prefix of length 0: the kernel keeps no selector for it.
func anyIsNone(p netip.Prefix) netip.Prefix {
	if p.IsValid() && p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p
}

// emptyTable4 is fib_empty_table: the first table number that is not in use.
func (s *State) emptyTable4() uint32 {
	id := uint32(1)
	for s.fib4.tables[id] != nil {
		id++
	}
	return id
}

// touched notes that the rules are no longer the default ones.
func (s *State) touched(f Family) {
	if f == IPv6 {
		s.custom6 = true
	} else {
		s.separate = true
	}
}

// ruleInsert puts a rule behind the last one of its preference. It is EEXIST if there is an equal one; a prefix that is not given equals any
// (rule_exists, fib4_rule_compare).
func (s *State) ruleInsert(r RuleEntry) syscall.Errno {
	s.touched(r.Family)
	if r.Action == RuleLookup {
		if r.Family == IPv6 {
			s.fib6.create(r.Table)
		}
	}
	list := s.rulesOf(r.Family)
	at := 0
	for i, x := range *list {
		if x.Pref <= r.Pref {
			at = i + 1
		}
		if x.Action == r.Action && x.Table == r.Table && x.Pref == r.Pref && x.IIF == r.IIF && x.OIF == r.OIF && x.Mark == r.Mark && comparePrefixes(x, r) {
			return syscall.EEXIST
		}
	}
	*list = slices.Insert(*list, at, r)
	return 0
}

// comparePrefixes is the compare function of a family's rules.
func comparePrefixes(have, want RuleEntry) bool {
	return (!want.From.IsValid() || have.From == want.From) && (!want.To.IsValid() || have.To == want.To)
}

// ruleDelete deletes the first rule that has all that is given (rule_find).
func (s *State) ruleDelete(r RuleEntry) syscall.Errno {
	list := s.rulesOf(r.Family)
	i := slices.IndexFunc(*list, func(x RuleEntry) bool {
		switch {
		case x.Pref != r.Pref, r.Table != 0 && x.Table != r.Table, r.Mark != 0 && x.Mark != r.Mark, r.IIF != "" && x.IIF != r.IIF, r.OIF != "" && x.OIF != r.OIF,
			r.Action != RuleLookup && x.Action != r.Action:
			return false
		}
		return comparePrefixes(x, r)
	})
	if i < 0 {
		return syscall.ENOENT
	}
	s.touched(r.Family)
	*list = slices.Delete(*list, i, i+1)
	return 0
}
