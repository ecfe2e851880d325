package iproute_test

import (
	"os"
	"strings"
	"testing"
)

type row struct{ line, want string }

// readTable reads a file of pairs of lines, a line and, indented, what becomes of it. Empty lines and comments separate them.
func readTable(t testing.TB, file string) (rows []row) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(data)) {
		text = strings.TrimSuffix(text, "\n")
		switch {
		case text == "" || strings.HasPrefix(text, "#"):
		case strings.HasPrefix(text, "\t"):
			for i := len(rows) - 1; i >= 0 && rows[i].want == ""; i-- {
				rows[i].want = text[1:]
			}
		default:
			rows = append(rows, row{line: text})
		}
	}
	if len(rows) == 0 || rows[len(rows)-1].want == "" {
		t.Fatalf("%s has no rows or ends within one", file)
	}
	return rows
}
