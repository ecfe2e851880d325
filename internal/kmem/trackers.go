package kmem

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/nlfuzz/nlfuzz/invariants"
)

const (
	trackersDir   = "/sys/kernel/debug/ref_tracker"
	maxTrackers   = 1 << 20 // bytes read of one file
	stackFunction = 5       // how many name a holder: what the netdev list's tests take as well
)

// trackers returns who holds a device, by stack, where the kernel keeps that (CONFIG_NET_DEV_REFCNT_TRACKER, no_hash_pointers on its command line): the
// kind is the first functions of the stack, joined by ':'. It returns nil on other kernels.
func (r *Reader) trackers(dev uint64) []invariants.Holder {
	if r.l.devTracker == 0 {
		return nil
	}
	f, err := os.Open(filepath.Join(trackersDir, fmt.Sprintf("netdev@%016x", dev+r.l.devTracker)))
	if err != nil {
		return nil // hashed pointers, or no debugfs: the objects that hold it are found by walking
	}
	defer f.Close()
	text := make([]byte, maxTrackers)
	n, _ := f.Read(text)
	return parseTrackers(string(text[:n]))
}

// trackerHead is __ref_tracker_dir_pr_ostream's line before a stack.
var trackerHead = regexp.MustCompile(`@\S+ has (\d+)/\d+ users at$`)

func parseTrackers(text string) (out []invariants.Holder) {
	var functions []string
	flush := func() {
		if len(out) > 0 && out[len(out)-1].Kind == "" {
			h := &out[len(out)-1]
			h.Kind = strings.Join(functions[:min(len(functions), stackFunction)], ":")
			h.Detail = strings.Join(functions, " < ")
			if h.Kind == "" {
				h.Kind = "no stack"
			}
		}
		functions = nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := trackerHead.FindStringSubmatch(line); m != nil {
			flush()
			n, _ := strconv.Atoi(m[1])
			out = append(out, invariants.Holder{Count: n})
			continue
		}
		if name, _, ok := strings.Cut(line, "+0x"); ok && len(out) > 0 {
			functions = append(functions, name)
		}
	}
	flush()
	return out
}
