// Command nlfuzz finds faults of Linux's rtnetlink by random operations against a reference model, makes them small and prints them as scripts.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/nlfuzz/nlfuzz/internal/guest"
)

// The exit codes of every verb.
const (
	exitOK      = 0 // nothing found
	exitFinding = 1
	exitUsage   = 2 // wrong use
	exitEnv     = 3 // the environment can't; the message says what would mend it
)

type cli struct {
	Run    runCmd    `cmd:"" help:"Generate sequences and run them on a kernel until something is found or the time is over."`
	Replay replayCmd `cmd:"" help:"Run a sequence from a file, operation by operation, and say what the kernel and the model answer."`
	Reduce reduceCmd `cmd:"" help:"Make a sequence that fails smaller, on the live kernel."`
	Script scriptCmd `cmd:"" help:"Print a sequence that fails as a bash script that needs no nlfuzz."`
	Kernel kernelCmd `cmd:"" help:"List and pull kernels under test."`
	Bench  benchCmd  `cmd:"" help:"Measure nlfuzz itself."`
	Doctor doctorCmd `cmd:"" help:"Say what this machine and a kernel can do, and what would mend the rest."`
}

func main() {
	if os.Getpid() == 1 {
		guest.Init() // this binary is the init of the guest that it tests; it does not return
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	var c cli
	parser, err := kong.New(&c, kong.Name("nlfuzz"), kong.UsageOnError(),
		kong.Description("Find, minimise and script faults of the Linux kernel's devices, VRFs, routes and nexthops.\n\n"+
			"Exit codes: 0 nothing found, 1 a finding, 2 wrong use, 3 the environment can't (the message says what would mend it)."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		fmt.Fprintln(os.Stderr, "nlfuzz:", err)
		return exitUsage
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	cmd, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "nlfuzz: %v (nlfuzz --help lists the words)\n", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	cmd.BindTo(ctx, (*context.Context)(nil))
	return exitCode(cmd.Run())
}

// found ends a verb that has found something; what was found is printed already.
var errFound = errors.New("found")

// usageError is wrong use: exit 2.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// exitCode prints an error as one line and returns its exit code.
func exitCode(err error) int {
	var use usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errFound):
		return exitFinding
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "nlfuzz: interrupted; what was found is kept")
		return exitOK
	case errors.As(err, &use):
		fmt.Fprintln(os.Stderr, "nlfuzz:", err)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "nlfuzz:", err)
	return exitEnv
}
