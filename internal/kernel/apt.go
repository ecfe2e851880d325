package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// apt is a private state of apt: own sources, lists and cache; the machine's configuration is only read.
type apt struct {
	dir      string // everything lies below it
	machine  []source
	keyring  string
	progress func(string)
}

// aptTimeout limits one run of an apt command, a download included.
const aptTimeout = 20 * time.Minute

// newApt prepares the private state in dir.
func newApt(ctx context.Context, dir string, progress func(string)) (*apt, error) {
	for _, tool := range []string{"apt-get", "apt-cache", "apt-config", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%s is not installed: Debian kernels are pulled with apt and dpkg; give the path of a kernel instead", tool)
		}
	}
	a := &apt{dir: dir, progress: progress}
	var err error
	if a.machine, err = machineSources("/etc/apt"); err != nil {
		return nil, err
	}
	if _, err := os.Stat(archiveKeyring); err == nil {
		a.keyring = archiveKeyring
	}
	for _, sub := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, diskError("make apt's private folders", err)
		}
	}
	dump, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return nil, fmt.Errorf("apt-config dump: %w", err)
	}
	for name, text := range map[string]string{"apt.conf": aptConfig(dir, string(dump)), "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, diskError("write apt's private configuration", err)
		}
	}
	return a, nil
}

// keptSettings are the machine's settings about how an archive is reached. All others, such as hooks that run after an update, are left out.
var keptSettings = []string{"Acquire::http", "Acquire::https", "Acquire::ftp", "Acquire::Check-", "Acquire::ForceIP", "Acquire::Max-FutureTime"}

// aptConfig is the private configuration file, given to apt by $APT_CONFIG, which apt reads before it looks for the machine's.
func aptConfig(dir, machine string) string {
	var b strings.Builder
	for line := range strings.Lines(machine) {
		if slices.ContainsFunc(keptSettings, func(key string) bool { return strings.HasPrefix(line, key) }) {
			b.WriteString(line)
		}
	}
	settings := [][2]string{
		{"Dir::Etc::main", "/dev/null"}, {"Dir::Etc::parts", "/dev/null"}, {"Dir::Etc::sourceparts", "/dev/null"},
		{"Dir::Etc::preferences", "/dev/null"}, {"Dir::Etc::preferencesparts", "/dev/null"},
		{"Dir::State", filepath.Join(dir, "state")}, {"Dir::State::status", filepath.Join(dir, "status")},
		{"Dir::Cache", filepath.Join(dir, "cache")}, {"Dir::Log", filepath.Join(dir, "log")},
		{"APT::Architecture", "amd64"}, {"APT::Architectures", "amd64"},
		{"APT::Install-Recommends", "false"}, {"APT::Get::List-Cleanup", "false"},
		// The cache folder may lie where the user _apt cannot go.
		{"APT::Sandbox::User", "root"},
		{"Acquire::Languages", "none"}, {"Acquire::Retries", "2"}, {"Acquire::GzipIndexes", "true"},
	}
	for _, s := range settings {
		fmt.Fprintf(&b, "%s %q;\n", s[0], s[1])
	}
	return b.String()
}

// run runs an apt command in workdir and returns what it printed. LC_ALL=C keeps its messages readable for aptError.
func (a *apt) run(ctx context.Context, workdir, tool string, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, aptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Dir = workdir
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	// Apt ends its download methods when it is told to end; killed, it would leave them and its lock behind.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("%s: %w", tool, context.Cause(ctx))
	}
	return out.String(), errOut.String(), err
}

// use makes the state know exactly these suites.
func (a *apt) use(suites []string) error {
	list := sourcesList(a.machine, suites, a.keyring)
	if err := os.WriteFile(filepath.Join(a.dir, "sources.list"), []byte(list), 0o644); err != nil {
		return diskError("write apt's private sources", err)
	}
	return nil
}

// update fetches the package lists of the suites. What could not be reached is told by trouble; lists of an earlier update then still serve.
func (a *apt) update(ctx context.Context, suites []string) (trouble, err error) {
	if err := a.use(suites); err != nil {
		return nil, err
	}
	a.progress("apt: fetching the package lists of " + strings.Join(suites, ", "))
	_, stderr, err := a.run(ctx, a.dir, "apt-get", a.args("-q", "update")...)
	if ctx.Err() != nil {
		return nil, err
	}
	if err != nil || aptMessage(stderr) != "" {
		trouble = a.failure("fetch the package lists", stderr, err)
		if errors.Is(trouble, errDiskFull) {
			return nil, trouble
		}
	}
	return trouble, nil
}

// args puts the private sources before the arguments of an apt command: the name depends on Dir::Etc, which stays the machine's for auth.conf.
func (a *apt) args(args ...string) []string {
	return append([]string{"-o", "Dir::Etc::sourcelist=" + filepath.Join(a.dir, "sources.list")}, args...)
}

// show returns the control data of all versions of the packages whose names the filter wants.
func (a *apt) show(ctx context.Context, prefix string, want func(name string) bool) ([]map[string]string, error) {
	out, stderr, err := a.run(ctx, a.dir, "apt-cache", a.args("pkgnames", prefix)...)
	if err != nil {
		return nil, a.failure("list the packages", stderr, err)
	}
	var names []string
	for name := range strings.Lines(out) {
		if name = strings.TrimSpace(name); want(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	slices.Sort(names)
	out, stderr, err = a.run(ctx, a.dir, "apt-cache", a.args(append([]string{"show"}, names...)...)...)
	if err != nil && out == "" {
		return nil, a.failure("read the package lists", stderr, err)
	}
	return parseStanzas(out), nil
}

// download fetches packages, checked by apt against the signed lists, into dir.
func (a *apt) download(ctx context.Context, dir string, packages []Package) error {
	args := []string{"-q", "download"}
	for _, p := range packages {
		args = append(args, p.Name+"="+p.Version)
	}
	if _, stderr, err := a.run(ctx, dir, "apt-get", a.args(args...)...); err != nil {
		return a.failure("download "+packages[0].Name+" "+packages[0].Version, stderr, err)
	}
	return nil
}

var errDiskFull = errors.New("no space left on device")

// failure is aptError, which also says where the disk is full.
func (a *apt) failure(what, stderr string, err error) error {
	err = aptError(what, stderr, err)
	if errors.Is(err, errDiskFull) {
		return fmt.Errorf("%w (%s)", err, filepath.Dir(a.dir))
	}
	return err
}

// aptError makes one line of what apt printed.
func aptError(what, stderr string, err error) error {
	if strings.Contains(stderr, "No space left on device") || strings.Contains(stderr, "enough free space") {
		return fmt.Errorf("%s: %w", what, errDiskFull)
	}
	if message := aptMessage(stderr); message != "" {
		return fmt.Errorf("%s: %s", what, message)
	}
	if err == nil {
		err = errors.New("apt said nothing")
	}
	return fmt.Errorf("%s: %w", what, err)
}

// aptMessage is the first error, or else the first failed fetch, of apt's output.
func aptMessage(stderr string) string {
	var fetch string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "E: "); ok {
			if !strings.HasPrefix(text, "Some index files failed") && !strings.HasPrefix(text, "Unable to fetch some archives") {
				return text
			}
		}
		if text, ok := strings.CutPrefix(line, "W: "); ok && fetch == "" &&
			(strings.HasPrefix(text, "Failed to fetch") || strings.Contains(text, "GPG error") || strings.Contains(text, "signature")) {
			fetch = text
		}
	}
	return fetch
}

// diskError names a full disk plainly; other errors pass with what was tried.
func diskError(what string, err error) error {
	if err == nil {
		return nil
	}
	if isDiskFull(err) {
		return fmt.Errorf("%s: %w", what, errDiskFull)
	}
	return fmt.Errorf("%s: %w", what, err)
}
