package kernel

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	buildReport = 20 * time.Second // between two lines of progress
	buildTail   = 15               // lines of the log that are shown when a build fails
)

// buildLog takes what make prints: all of it into a file, and of the whole lines the last ones and how many there were.
type buildLog struct {
	file *os.File

	mu    sync.Mutex
	open  []byte // the line that has not ended yet
	last  []string
	lines int
}

func newBuildLog(path string) (*buildLog, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, diskError("make the log", err)
	}
	return &buildLog{file: f}, nil
}

// Write implements io.Writer.
func (l *buildLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, p...)
	for {
		line, rest, ok := bytes.Cut(l.open, []byte("\n"))
		if !ok {
			break
		}
		l.open = rest
		l.lines++
		l.last = append(l.last, strings.TrimSpace(string(line)))
		l.last = l.last[max(0, len(l.last)-buildTail):]
	}
	return l.file.Write(p)
}

// Close closes the file.
func (l *buildLog) Close() error { return l.file.Close() }

// tail is what came last.
func (l *buildLog) tail() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.last...)
}

// report tells the progress now and then, without the name of the tree, until stop is called.
func (l *buildLog) report(opts Options, tree string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() {
		defer close(ended)
		ticker := time.NewTicker(buildReport)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			l.mu.Lock()
			lines, now := l.lines, ""
			if len(l.last) > 0 {
				now = strings.ReplaceAll(l.last[len(l.last)-1], tree+"/", "")
			}
			l.mu.Unlock()
			opts.progress("compiling: %s, %d steps, now %s", time.Since(start).Round(time.Second), lines, strings.Join(strings.Fields(now), " "))
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
