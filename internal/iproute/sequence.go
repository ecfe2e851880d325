package iproute

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/nlfuzz/nlfuzz/model"
)

// maxLine is how long a line of a file may be: beyond any that a person or nlfuzz writes, a multipath route of hundreds of legs included.
const maxLine = 64 << 10

// ParseSequence reads a file of operations, one a line. Empty lines and lines that start with # are skipped; the text of the comments
// before the first operation is returned as the header. An error names the line.
func ParseSequence(r io.Reader) (header []string, ops []model.Op, err error) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	n := 0
	for s.Scan() {
		n++
		text := strings.TrimFunc(s.Text(), isSpace)
		if comment, ok := strings.CutPrefix(text, "#"); ok {
			if ops == nil {
				header = append(header, strings.TrimPrefix(comment, " "))
			}
			continue
		}
		if text == "" {
			continue
		}
		op, err := Parse(text)
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", n, err)
		}
		ops = append(ops, op)
	}
	if err := s.Err(); err != nil {
		return nil, nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	return header, ops, nil
}

// PrintSequence returns the text of a file of operations with a header of comments.
func PrintSequence(header []string, ops []model.Op) string {
	var b strings.Builder
	for _, h := range header {
		for l := range strings.SplitSeq(h, "\n") {
			b.WriteString(strings.TrimRight("# "+l, " ") + "\n")
		}
	}
	if len(header) > 0 && len(ops) > 0 {
		b.WriteByte('\n')
	}
	for _, op := range ops {
		b.WriteString(Print(op) + "\n")
	}
	return b.String()
}
