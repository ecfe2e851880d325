package live

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// slack is how late a timer of this process may come (timerslack_ns), in nanoseconds.
const slack = "2000000"

// relax lets the timers of this process come late. Go's monitor thread sleeps for 20 us at a time while the program is busy; in an emulated guest with one CPU
// each of these wake-ups costs as much as a netlink request, and together they take half of the time. Threads that are started later take it over.
func relax() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		err := os.WriteFile(filepath.Join("/proc", t.Name(), "timerslack_ns"), []byte(slack), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set the timer slack of this process's threads: %w", err)
		}
	}
	return nil
}
