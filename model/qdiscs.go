package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// qdisc is one queueing discipline that an operation made.
type qdisc struct {
	dev    int
	parent string // "" is root
	handle uint16 // 0: chosen by the kernel
	kind   QdiscKind
	filter bool // prio: has the flow classifier
}

// prioBands is how many classes a prio qdisc has by default.
const prioBands = 3

func (s *State) qdiscAt(dev int, parent string) int {
	return slices.IndexFunc(s.qdiscs, func(q qdisc) bool { return q.dev == dev && q.parent == parent })
}

func (s *State) qdiscByHandle(dev int, handle uint16) int {
	return slices.IndexFunc(s.qdiscs, func(q qdisc) bool { return q.dev == dev && handle != 0 && q.handle == handle })
}

// parentOf finds the qdisc that a class belongs to (qdisc_lookup) and the class's number.
func (s *State) parentOf(dev int, class string) (q int, minor uint64) {
	major, rest, _ := strings.Cut(class, ":")
	n, err := strconv.ParseUint(major, 16, 16)
	minor, err2 := strconv.ParseUint(rest, 16, 16)
	if err != nil || err2 != nil {
		return -1, 0
	}
	return s.qdiscByHandle(dev, uint16(n)), minor
}

// qdisc follows tc_modify_qdisc and tc_get_qdisc.
func (s *State) qdisc(o Qdisc) syscall.Errno {
	l := s.byName[o.Dev]
	if l == nil {
		return syscall.ENODEV
	}
	p, minor := -1, uint64(0)
	if o.Parent != "" {
		if p, minor = s.parentOf(l.index, o.Parent); p < 0 || !hasClass(s.qdiscs[p].kind, minor) {
			return syscall.ENOENT // qdisc_lookup, qdisc_leaf
		}
	}
	i := s.qdiscAt(l.index, o.Parent)
	if o.Verb == QdiscDel {
		return s.qdiscDelete(o, i, p)
	}
	n := qdisc{dev: l.index, parent: o.Parent, handle: o.Handle, kind: o.Type}
	replace := o.Verb == QdiscReplace
	if o.Handle != 0 && (i < 0 || s.qdiscs[i].handle != o.Handle) {
		if i >= 0 && !replace {
			return syscall.EEXIST // NLM_F_REPLACE needed to override
		}
		if s.qdiscByHandle(l.index, o.Handle) >= 0 {
			return syscall.EINVAL // Cannot move an existing qdisc to a different parent
		}
		s.graft(n)
		return 0
	}
	switch {
	case i < 0, o.Handle == 0 && s.qdiscs[i].kind != o.Type:
		// Another kind replaces what is there, whatever the flags.
		s.graft(n)
		return 0
	case !replace:
		return syscall.EEXIST // Exclusivity flag on, cannot modify
	case s.qdiscs[i].kind != o.Type:
		return syscall.EINVAL
	}
	return 0 // qdisc_change
}

// graft puts a qdisc at its place, where it destroys what was there (qdisc_graft).
func (s *State) graft(n qdisc) {
	s.qdiscRemove(n.dev, n.parent)
	s.qdiscs = append(s.qdiscs, n)
	if n.parent == "" {
		s.byIndex[n.dev].defaultQdisc = false
	}
}

// hasClass says whether a qdisc has a class: prio one a band, netem one (prio_find, netem_find).
func hasClass(kind QdiscKind, minor uint64) bool {
	if kind == Netem {
		return true // netem_find returns 1 for any
	}
	return minor >= 1 && minor <= prioBands
}

// qdiscRemove destroys a qdisc with all below it.
func (s *State) qdiscRemove(dev int, parent string) {
	i := s.qdiscAt(dev, parent)
	if i < 0 {
		return
	}
	q := s.qdiscs[i]
	s.qdiscs = slices.Delete(s.qdiscs, i, i+1)
	if q.handle == 0 {
		return
	}
	under := fmt.Sprintf("%x:", q.handle)
	for _, c := range slices.Clone(s.qdiscs) {
		if c.dev == dev && strings.HasPrefix(c.parent, under) {
			s.qdiscRemove(dev, c.parent)
		}
	}
}

func (s *State) qdiscDelete(o Qdisc, i, p int) syscall.Errno {
	if i < 0 {
		// A default qdisc: its handle is 0 and its kind none of those that can be named. Netem has none below itself.
		switch {
		case p >= 0 && s.qdiscs[p].kind == Netem:
			return syscall.ENOENT
		case o.Handle != 0, o.Type != "":
			return syscall.EINVAL
		}
		return syscall.ENOENT
	}
	q := s.qdiscs[i]
	if o.Handle != 0 && o.Handle != q.handle || o.Type != "" && o.Type != q.kind {
		return syscall.EINVAL
	}
	s.qdiscRemove(q.dev, q.parent)
	if l := s.byIndex[q.dev]; q.parent == "" {
		l.defaultQdisc = l.up // dev_activate; a device that is down gets it when it goes up
	}
	return 0
}

// filter follows tc_new_tfilter and tc_del_tfilter.
func (s *State) filter(o Filter) syscall.Errno {
	l := s.byName[o.Dev]
	if l == nil {
		return syscall.ENODEV
	}
	i := s.qdiscByHandle(l.index, o.Handle)
	switch {
	case i < 0:
		return syscall.EINVAL // Parent Qdisc doesn't exist
	case s.qdiscs[i].kind != Prio:
		return syscall.EOPNOTSUPP // Class doesn't support blocks
	case o.Del && !s.qdiscs[i].filter:
		return syscall.ENOENT
	case !o.Del && s.qdiscs[i].filter:
		return syscall.EEXIST
	}
	s.qdiscs[i].filter = !o.Del
	return 0
}
