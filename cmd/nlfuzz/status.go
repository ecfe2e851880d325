package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nlfuzz/nlfuzz/fuzz"
)

// statusEvery is how often a campaign says how it goes.
const statusEvery = 3 * time.Second

// reporter prints for people (a status line that is written over on a terminal) or, with json, one object a line on standard output.
type reporter struct {
	mu     sync.Mutex
	out    io.Writer
	json   bool
	tty    bool
	onLine bool // the cursor stands behind a status line
}

func newReporter(asJSON bool) *reporter {
	r := &reporter{out: os.Stderr, json: asJSON}
	if fi, err := os.Stderr.Stat(); err == nil && fi.Mode()&os.ModeCharDevice != 0 {
		r.tty = true
	}
	return r
}

// say prints a line of progress.
func (r *reporter) say(format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.onLine {
		fmt.Fprintln(r.out)
		r.onLine = false
	}
	fmt.Fprintf(r.out, format+"\n", a...)
}

// event prints one object on standard output, if asked for.
func (r *reporter) event(kind string, fields map[string]any) {
	if !r.json {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fields["event"] = kind
	b, err := json.Marshal(fields)
	if err == nil {
		fmt.Println(string(b))
	}
}

// watch prints the status of a campaign every few seconds until ctx ends.
func (r *reporter) watch(ctx context.Context, c *fuzz.Campaign) {
	start := time.Now()
	t := time.NewTicker(statusEvery)
	defer t.Stop()
	var lastOps, lastSeqs int64
	last := start
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			s, o := c.Stats.Sequences.Load(), c.Stats.Ops.Load()
			d := now.Sub(last).Seconds()
			line := fmt.Sprintf("%d sequences (%.1f/s), %d ops (%.0f/s), %d resets, %d findings, %s", s, float64(s-lastSeqs)/d, o, float64(o-lastOps)/d,
				c.Resets(), c.Stats.Findings.Load(), now.Sub(start).Round(time.Second))
			if red := c.Stats.Reducing.Load(); red > 0 {
				line += fmt.Sprintf(", %d being reduced", red)
			}
			r.status(line)
			r.event("status", map[string]any{"sequences": s, "ops": o, "resets": c.Resets(), "findings": c.Stats.Findings.Load(), "seconds": now.Sub(start).Seconds()})
			last, lastSeqs, lastOps = now, s, o
		}
	}
}

func (r *reporter) status(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.tty {
		fmt.Fprintln(r.out, line)
		return
	}
	fmt.Fprintf(r.out, "\r%s\r%s", strings.Repeat(" ", 110), line)
	r.onLine = true
}
