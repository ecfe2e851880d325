// Package repro writes a finding as a shell script that shows the fault by itself: plain bash and iproute2, no nlfuzz.
package repro

import (
	"bytes"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/invariants"
	"github.com/nlfuzz/nlfuzz/model"
)

// Script is what a script is made of.
type Script struct {
	Title       string
	Fingerprint string
	Kernel      string // release and package version
	Found       string // the nlfuzz command, with its seed, that found it
	Ops         []model.Op
	Expect      []syscall.Errno // what the kernel answered to Ops; where it ends or is 0, success; Any where it does not matter
	Check       Check
	Observed    []string // what nlfuzz saw, for people
}

// Check is how a script tells that the fault is there: Blocked, Errno, State, Log, Notify, Slow or NetnsStuck.
type Check interface {
	// at is the operation after which the script looks; the number of operations for the namespace's end.
	at(ops int) int
}

// Blocked says that the operation did not return: it must within a limit.
type Blocked struct {
	OpIndex int
	Dev     string // the device that is waited for, if known
}

// Errno says that the operation was answered wrongly.
type Errno struct {
	OpIndex   int
	Want, Got syscall.Errno
	Extack    string // the kernel's words with Got, which ip and tc print instead of the errno
}

// State says that the tables are wrong after the operation. The lines are those of model.Tables.
type State struct {
	OpIndex             int
	Missing, Unexpected []string
}

// Log says that the kernel's log shows a complaint after the operation.
type Log struct {
	OpIndex int
	Pattern string // a line of it, as an extended regular expression
}

// Notify says that the operation was not announced to those who listen.
type Notify struct {
	OpIndex int
	Message string // the missing announcement: RTM_DELROUTE, ...
}

// Slow says that the operation took longer than it may, each time.
type Slow struct {
	OpIndex int
	Limit   time.Duration // of the operation alone: the script takes the start of the program off
}

// NetnsStuck says that the deleted namespace did not go away.
type NetnsStuck struct{}

func (c Blocked) at(int) int        { return c.OpIndex }
func (c Errno) at(int) int          { return c.OpIndex }
func (c State) at(int) int          { return c.OpIndex }
func (c Log) at(int) int            { return c.OpIndex }
func (c Notify) at(int) int         { return c.OpIndex }
func (c Slow) at(int) int           { return c.OpIndex }
func (c NetnsStuck) at(ops int) int { return ops }

//go:embed script.sh.tmpl
var text string

var script = template.Must(template.New("script").Funcs(template.FuncMap{"comment": comment, "quote": quote}).Parse(text))

// page is what the template sees.
type page struct {
	Script
	Kind     string   // of the check, lower case
	Steps    []string // shell commands before the fault
	Fault    string   // shell command that is judged; empty for the namespace's end
	Release  []string // shell commands
	Holds    bool     // there is something to release
	TC       bool
	Python   bool
	Limit    string // seconds
	Heard    string // extended regular expression of the first line with which ip monitor shows the announcement
	Program  string // ip or tc with its options, where the time of a command is taken; else empty
	Line     string // the judged command without them
	Idle     string // shell command that starts the same programs as the fault and does next to nothing
	Want     answer
	Got      answer
	Tables   []string // shell commands that show the tables in question
	Queries  []query
	Untold   []string // lines of a state that the script can't check
	FaultMay bool     // the judged operation may be refused: nlfuzz saw that too
}

// answer is an errno as iproute2 shows it.
type answer struct{ Name, Text string }

// Render returns the script. An operation beyond the one that the check looks at is left out.
func (s Script) Render() []byte {
	at := min(max(s.Check.at(len(s.Ops)), 0), len(s.Ops))
	p := page{Script: s, Limit: "5"}
	for i, op := range s.Ops[:at] {
		p.Steps = append(p.Steps, s.step(i, op))
	}
	p.Release, p.Holds = release(s.Ops[:at], s.expect)
	if at < len(s.Ops) {
		p.Fault = command(s.Ops[at], true)
		p.FaultMay = s.expect(at) != 0
	}
	switch c := s.Check.(type) {
	case Blocked:
		p.Kind = "blocked"
	case Errno:
		p.Kind = "errno"
		p.Want, p.Got = answerOf(c.Want, ""), answerOf(c.Got, c.Extack)
	case State:
		p.Kind, p.Limit = "state", "3"
		p.Queries, p.Untold = queries(c)
		for _, q := range p.Queries {
			if !slices.Contains(p.Tables, q.Show) {
				p.Tables = append(p.Tables, q.Show)
			}
		}
	case Log:
		p.Kind, p.Limit = "log", "10"
	case Notify:
		p.Kind, p.Limit = "notify", "2"
		p.Heard = heard(c.Message)
	case Slow:
		p.Kind, p.Limit = "slow", fmt.Sprintf("%.2f", c.Limit.Seconds())
		if at < len(s.Ops) {
			p.Program, p.Line = program(p.Fault)
			p.Idle = idle(s.Ops[at])
		}
	case NetnsStuck:
		p.Kind, p.Limit = "netns", "30"
	}
	for _, op := range s.Ops[:min(at+1, len(s.Ops))] {
		switch op.(type) {
		case model.Send, model.PTB, model.Hold:
			p.Python = true
		case model.Qdisc, model.Filter:
			p.TC = true
		}
	}
	var b bytes.Buffer
	if err := script.Execute(&b, p); err != nil {
		panic(fmt.Sprintf("repro: the template is wrong: %v", err)) // nothing in a Script can make it fail
	}
	return b.Bytes()
}

func (s Script) expect(i int) syscall.Errno {
	if i < len(s.Expect) {
		return s.Expect[i]
	}
	return 0
}

// step is one command of the way to the fault, which must succeed or, where nlfuzz saw it fail, must not.
func (s Script) step(i int, op model.Op) string {
	line := "step " + command(op, false)
	switch e := s.expect(i); e {
	case 0:
	case Any:
		line = "either " + command(op, false)
	default:
		line = "fails " + invariants.ErrnoName(e) + " " + command(op, false)
	}
	if q, ok := op.(model.Qdisc); ok && q.Delay > iproute.MaxDelay {
		line += fmt.Sprintf(" # %ds then, but tc takes no more", q.Delay)
	}
	return line
}

// answerOf returns the words with which iproute2 shows an errno, as an extended regular expression; it finds some errors itself, before the kernel.
func answerOf(e syscall.Errno, extack string) answer {
	a := answer{Name: invariants.ErrnoName(e)}
	if e == 0 {
		return a
	}
	texts := []string{literal(e.Error())}
	if e == syscall.ENODEV {
		texts = append(texts, "cannot find device", "device does not exist")
	}
	if extack != "" {
		texts = append(texts, literal(extack))
	}
	a.Text = strings.Join(texts, "|")
	return a
}

// heard returns how ip monitor, with labels, begins what it says of a message.
func heard(message string) string {
	if of, ok := strings.CutPrefix(message, "RTM_DEL"); ok {
		return `^\[` + literal(of) + `\]Deleted `
	}
	return `^\[` + literal(strings.TrimPrefix(message, "RTM_NEW")) + `\][^D]`
}

// program splits a command of ip or tc into the program with its options, which can be run for many commands, and the rest. It returns nothing for others.
func program(command string) (program, line string) {
	words := strings.Fields(command)
	if words[0] != "ip" && words[0] != "tc" {
		return "", ""
	}
	n := 1
	for n < len(words) && strings.HasPrefix(words[n], "-") {
		n++
	}
	return strings.Join(words[:n], " "), strings.Join(words[n:], " ")
}

// idle returns what starts the programs of an operation that ip and tc don't have, and does next to nothing: the start is not to count.
func idle(op model.Op) string {
	switch op.(type) {
	case model.Send, model.PTB, model.Hold:
		return "enter python3 -c 'import signal, socket, struct'"
	}
	return "true"
}

// literal escapes a text for use in an extended regular expression.
func literal(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune(`\.[]{}()*+?^$|`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
