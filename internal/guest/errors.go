package guest

import (
	"errors"
	"fmt"
	"strings"
	"time"

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
	// A program that QEMU runs says it in words only.
	if errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), "No space left on device") {
		next = "make room, or choose another folder with TMPDIR and NLFUZZ_CACHE"
	}
	return &EnvError{fmt.Sprintf("%s: %v", step, err), next}
}

// Died says that the kernel under test died or hung: a finding.
type Died struct {
	Op      string        // the operation's text; "begin", "observe" or "end" for those
	Hung    bool          // it gave no answer within the limit
	After   time.Duration // how long the operation had run
	How     string        // how QEMU ended, or what came instead of an answer: tells a kernel that powered off from an emulator that was killed
	Console []string      // the last lines of its console
}

func (d *Died) Error() string {
	after := d.After.Round(10 * time.Millisecond)
	if d.Hung {
		return fmt.Sprintf("the guest gave no answer for %v", after)
	}
	return fmt.Sprintf("the guest died after %v: %s", after, d.How)
}

// LastWords are the last lines of the console.
func (d *Died) LastWords() []string { return d.Console }

func lastLines(lines []string, n int) string {
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
