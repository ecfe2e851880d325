package repro

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/model"
)

// command is an operation as a shell command, with a delay that every tc takes. The words of nlfuzz are functions of the script; a socket that is only to be judged is not kept.
func command(op model.Op, judged bool) string {
	if q, ok := op.(model.Qdisc); ok && q.Delay > iproute.MaxDelay {
		q.Delay = iproute.MaxDelay
		op = q
	}
	words := strings.Fields(iproute.Print(op))
	switch o := op.(type) {
	case model.Send, model.PTB, model.Settle:
		words = words[1:]
	case model.Hold:
		words = words[1:]
		if judged {
			words = append([]string{"connect", string(o.Proto)}, words[3:]...)
		}
	case model.Release:
		words = []string{"close_socket", o.Name}
	}
	for i, w := range words {
		words[i] = quote(w)
	}
	return strings.Join(words, " ")
}

// quote makes one word of the shell.
func quote(s string) string {
	s = strings.ReplaceAll(s, "\x00", "") // which bash can't hold
	plain := s != ""
	for _, c := range []byte(s) {
		plain = plain && (c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("_./:,@%+-", c) >= 0)
	}
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// comment makes a comment of a text: the lines after the first are indented.
func comment(s string) string {
	return strings.NewReplacer("\n", "\n#   ", "\x00", "").Replace(strings.TrimSpace(s))
}

// place is where a qdisc hangs.
type place struct{ dev, parent string }

// release returns the commands that let go of all that holds references after the operations: netem's queues, and sockets.
func release(ops []model.Op, expect func(int) syscall.Errno) (commands []string, holds bool) {
	var netem []place
	without := func(drop func(place) bool) {
		var rest []place
		for _, p := range netem {
			if !drop(p) {
				rest = append(rest, p)
			}
		}
		netem = rest
	}
	sockets := false
	for i, op := range ops {
		if expect(i) != 0 {
			continue
		}
		switch o := op.(type) {
		case model.Qdisc:
			// A qdisc at the root takes those below it away.
			without(func(p place) bool { return p.dev == o.Dev && (p.parent == o.Parent || o.Parent == "") })
			if o.Verb != model.QdiscDel && o.Type == model.Netem {
				netem = append(netem, place{o.Dev, o.Parent})
			}
		case model.LinkDel:
			without(func(p place) bool { return p.dev == o.Name })
		case model.LinkRename:
			for i := range netem {
				if netem[i].dev == o.Name {
					netem[i].dev = o.New
				}
			}
		case model.Hold:
			sockets = true
		}
	}
	for _, p := range netem {
		commands = append(commands, fmt.Sprintf("try %s", command(model.Qdisc{Verb: model.QdiscDel, Dev: p.dev, Parent: p.parent}, false)))
	}
	if sockets {
		commands = append(commands, "try close_sockets")
	}
	return commands, len(commands) > 0
}
