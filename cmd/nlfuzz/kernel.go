package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/nlfuzz/nlfuzz/internal/kernel"
)

type kernelCmd struct {
	List  kernelListCmd  `cmd:"" help:"List pulled kernels and those that can be pulled."`
	Pull  kernelPullCmd  `cmd:"" help:"Pull kernels into the cache."`
	Build kernelBuildCmd `cmd:"" help:"Build a kernel for guests from Debian's source, with patches if wanted."`
}

type kernelListCmd struct{}

// Run implements the verb.
func (c *kernelListCmd) Run(ctx context.Context) error {
	list, err := kernel.List(ctx, kernel.Options{Progress: progress})
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KERNEL\tHERE\tSIZE\tPACKAGE")
	for _, k := range list {
		here := "-"
		if k.Image != nil {
			here = "pulled"
		}
		fmt.Fprintf(w, "%s\t%s\t%.0f MB\t%s %s\n", k.Spec, here, float64(k.Size)/1e6, k.Package, k.Version)
	}
	w.Flush()
	return err
}

type kernelPullCmd struct {
	Kernels []string `arg:"" help:"What to pull: debian:7.3, debian:6.1.192-3, ..."`
	Refresh bool     `help:"Ask the archive for a newer package even if one is here."`
}

// Run implements the verb.
func (c *kernelPullCmd) Run(ctx context.Context) error {
	for _, spec := range c.Kernels {
		img, err := kernel.Resolve(ctx, spec, kernel.Options{Progress: progress, Refresh: c.Refresh})
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s, sha256 %s\n", spec, img, img.SHA256)
	}
	return nil
}

func progress(s string) { fmt.Fprintln(os.Stderr, s) }
