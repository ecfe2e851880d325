package guest

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// EnvError says that the environment can't run guests, and what would mend it.
type EnvError struct{ What, Next string }

func (e *EnvError) Error() string {
	if e.Next == "" {
		return e.What
	}
	return e.What + "; " + e.Next
}

// env makes an EnvError of a failed step.
func env(step string, err error) error {
	next := ""
	if errors.Is(err, unix.ENOSPC) {
		next = "make room, or choose another folder with TMPDIR and NLFUZZ_CACHE"
	}
	return &EnvError{fmt.Sprintf("%s: %v", step, err), next}
}

// Died says that the kernel under test died or hung: a finding.
type Died struct {
	Op      string   // the request that was under way
	Hung    bool     // it gave no answer within the limit
	Console []string // the last lines of its console
}

func (d *Died) Error() string {
	if d.Hung {
		return fmt.Sprintf("the guest gave no answer for %v", callLimit)
	}
	return "the guest died"
}

// LastWords are the last lines of the console.
func (d *Died) LastWords() []string { return d.Console }

func lastLines(lines []string, n int) string {
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
