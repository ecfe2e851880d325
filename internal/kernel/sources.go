package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is one line of an apt configuration: where, which suites, and which key signs them.
type source struct {
	uri        string
	suites     []string
	components []string
	signedBy   string // path of a keyring; empty if not given as a path
	trusted    bool
}

// Mirrors and keyring for a machine whose apt configuration names no Debian archive.
const (
	defaultMirror   = "http://deb.debian.org/debian"
	defaultSecurity = "http://deb.debian.org/debian-security"
	archiveKeyring  = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// allSuites are the suites in which Debian kernels for guests are looked for.
var allSuites = []string{
	"bookworm", "bookworm-security", "bookworm-backports", "trixie", "trixie-security", "trixie-backports", "sid",
}

// likelySuites are those which hold a series; the others are asked only if these have nothing, because their lists are large.
func likelySuites(series string) []string {
	switch series {
	case "6.1":
		return []string{"bookworm", "bookworm-security"}
	case "6.12":
		return []string{"trixie", "trixie-security", "bookworm-backports"}
	}
	return []string{"trixie-backports", "sid"}
}

// machineSources reads all apt sources below dir (/etc/apt), in both formats.
func machineSources(dir string) ([]source, error) {
	oneLine, _ := filepath.Glob(filepath.Join(dir, "sources.list.d", "*.list"))
	oneLine = append([]string{filepath.Join(dir, "sources.list")}, oneLine...)
	stanzas, _ := filepath.Glob(filepath.Join(dir, "sources.list.d", "*.sources"))
	var all []source
	for _, path := range append(oneLine, stanzas...) {
		text, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("apt sources: %w", err)
		}
		if strings.HasSuffix(path, ".sources") {
			all = append(all, parseDeb822(string(text))...)
		} else {
			all = append(all, parseOneLine(string(text))...)
		}
	}
	return all, nil
}

// parseOneLine reads lines like `deb [signed-by=K arch=amd64] URI SUITE COMPONENT...`; other lines are skipped.
func parseOneLine(text string) []source {
	var all []source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || rest == "" || (rest[0] != ' ' && rest[0] != '\t' && rest[0] != '[') {
			continue
		}
		rest = strings.TrimSpace(rest)
		var s source
		if options, after, ok := strings.Cut(rest, "]"); ok && strings.HasPrefix(options, "[") {
			rest = after
			for _, option := range strings.Fields(options[1:]) {
				key, value, _ := strings.Cut(option, "=")
				s.set(key, value)
			}
		}
		if fields := strings.Fields(rest); len(fields) >= 2 {
			s.uri, s.suites, s.components = fields[0], fields[1:2], fields[2:]
			all = append(all, s)
		}
	}
	return all
}

// parseDeb822 reads stanzas of `Key: value` lines (sources.list(5)); a stanza that is not enabled or has no binary packages is skipped.
func parseDeb822(text string) []source {
	var all []source
	for _, stanza := range parseStanzas(text) {
		if strings.EqualFold(stanza["enabled"], "no") || !slices.Contains(strings.Fields(stanza["types"]), "deb") {
			continue
		}
		for _, uri := range strings.Fields(stanza["uris"]) {
			s := source{uri: uri, suites: strings.Fields(stanza["suites"]), components: strings.Fields(stanza["components"])}
			s.set("signed-by", stanza["signed-by"])
			s.set("trusted", stanza["trusted"])
			all = append(all, s)
		}
	}
	return all
}

// parseStanzas reads paragraphs of the control file format: keys in lower case, continuation lines joined by newlines, comments dropped.
func parseStanzas(text string) []map[string]string {
	var all []map[string]string
	current, key := map[string]string{}, ""
	for line := range strings.Lines(text + "\n\n") {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "":
			if len(current) > 0 {
				all = append(all, current)
			}
			current, key = map[string]string{}, ""
		case line[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			if key != "" {
				current[key] += "\n" + strings.TrimSpace(line)
			}
		default:
			name, value, ok := strings.Cut(line, ":")
			if !ok {
				continue
			}
			key = strings.ToLower(name)
			current[key] = strings.TrimSpace(value)
		}
	}
	return all
}

func (s *source) set(key, value string) {
	switch strings.ToLower(key) {
	case "signed-by":
		// A key may stand in the stanza itself; then it is left to the archive's own keyring.
		if strings.HasPrefix(value, "/") && !strings.ContainsAny(value, " \n") {
			s.signedBy = value
		}
	case "trusted":
		s.trusted = strings.EqualFold(value, "yes")
	}
}

// mirrorFor picks the machine's mirror for a Debian suite: the security archive for *-security, the main archive for all else.
func mirrorFor(machine []source, suite string) source {
	security := strings.HasSuffix(suite, "-security")
	for _, s := range machine {
		if !s.debian() {
			continue
		}
		for _, have := range s.suites {
			if debianSuite(have) && strings.HasSuffix(have, "-security") == security {
				return s
			}
		}
	}
	if security {
		return source{uri: defaultSecurity}
	}
	return source{uri: defaultMirror}
}

// debian says whether this looks like a mirror of Debian and not like somebody's repository with packages for it, which often has a suite
// called bookworm or stable too.
func (s *source) debian() bool {
	named := strings.Contains(s.uri, "debian") || strings.Contains(s.signedBy, "debian-archive") || strings.HasPrefix(s.uri, "mirror+file:")
	return named && slices.Contains(s.components, "main")
}

// debianSuite says whether a suite is one of Debian's own, so that its mirror has the suites wanted here too.
func debianSuite(name string) bool {
	base, kind, _ := strings.Cut(name, "-")
	switch kind {
	case "", "updates", "security", "backports", "proposed-updates":
	default:
		return false
	}
	switch base {
	case "bullseye", "bookworm", "trixie", "forky", "duke", "sid", "stable", "oldstable", "oldoldstable", "testing", "unstable":
		return true
	}
	return false
}

// sourcesList is the private sources.list for these suites.
func sourcesList(machine []source, suites []string, keyring string) string {
	var b strings.Builder
	for _, suite := range suites {
		mirror := mirrorFor(machine, suite)
		options := []string{"arch=amd64"}
		if key := mirror.signedBy; key != "" {
			options = append(options, "signed-by="+key)
		} else if keyring != "" {
			options = append(options, "signed-by="+keyring)
		}
		if mirror.trusted {
			options = append(options, "trusted=yes")
		}
		fmt.Fprintf(&b, "deb [%s] %s %s main\n", strings.Join(options, " "), mirror.uri, suite)
	}
	return b.String()
}
