package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nlfuzz/nlfuzz/fuzz"
	"github.com/nlfuzz/nlfuzz/internal/repro"
)

type scriptCmd struct {
	targetFlags
	File   string `arg:"" help:"Sequence file or folder of a finding." type:"path"`
	Output string `short:"o" help:"Where the script goes; - is standard output." default:"-"`
	Prove  bool   `help:"Run the script by itself in a guest: it must fail there, and pass with --control."`
}

// Run implements the verb. It runs the sequence once to learn how it fails: the script checks for just that.
func (c *scriptCmd) Run(ctx context.Context) error {
	f, rep, env, err := c.failing(ctx, c.File)
	if err != nil {
		return err
	}
	defer env.Close()
	if c.Output == "-" {
		os.Stdout.Write(scriptOf(f))
	} else if err := writeScript(f, c.Output); err != nil {
		return err
	}
	if !c.Prove {
		return nil
	}
	if env.image == nil {
		return usageError{fmt.Errorf("--prove needs a guest kernel, not --kernel host")}
	}
	dir, err := os.MkdirTemp("", "nlfuzz-script-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return proveScripts(ctx, rep, env, []foundOne{{f, dir}})
}

func scriptOf(f *fuzz.Finding) []byte { return repro.Render(f) }

func writeScript(f *fuzz.Finding, path string) error { return fuzz.WriteFile(path, scriptOf(f), 0o755) }

// scriptRun is one way to run a script, and the exit code that it must have.
type scriptRun struct {
	name string
	args []string
	want int
}

// proveScripts runs the script of each finding by itself in a fresh guest without nlfuzz's own agent: it must fail there, and pass when the
// holder is released first. What they printed is kept beside the script.
func proveScripts(ctx context.Context, rep *reporter, env *environment, found []foundOne) error {
	rep.say("running the scripts by themselves in a guest with Debian's bash and iproute2")
	for _, f := range found {
		ways := []scriptRun{{"script", nil, 1}}
		if f.Violation.Invariant == "blocked" { // only there is a holder that can be released first
			ways = append(ways, scriptRun{"control", []string{"--control"}, 0})
		}
		for _, how := range ways {
			out, exit, err := env.runScript(ctx, scriptOf(f.Finding), how.args...)
			if err != nil {
				return err
			}
			if err := fuzz.WriteFile(filepath.Join(f.dir, how.name+".log"), out, 0o644); err != nil {
				return err
			}
			verdict := "as it must"
			if exit != how.want {
				verdict = fmt.Sprintf("but %d was expected", how.want)
			}
			rep.say("  %s %s: exit %d, %s", filepath.Join(f.dir, "repro.sh"), strings.Join(how.args, " "), exit, verdict)
			rep.event("script", map[string]any{"fingerprint": f.Violation.Fingerprint, "args": how.args, "exit": exit, "want": how.want})
			for _, l := range tail(string(out), 12) {
				rep.say("    | %s", l)
			}
		}
	}
	return nil
}

func tail(s string, n int) []string {
	l := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return l[max(0, len(l)-n):]
}
