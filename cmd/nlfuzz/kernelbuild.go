package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/nlfuzz/nlfuzz/internal/kernel"
	"github.com/nlfuzz/nlfuzz/internal/planted"
)

type kernelBuildCmd struct {
	Faults  bool   `help:"With the planted faults that nlfuzz is checked against, all of them off at boot."`
	Series  string `help:"Which Debian source package: linux-source-SERIES." default:"7.3"`
	Patches string `help:"Folder of patches (*.diff and *.patch, applied in the order of their names)." type:"existingdir" placeholder:"DIR"`
	Jobs    int    `help:"Jobs of make (0: one for each CPU)." placeholder:"N"`
	Source  string `help:"Folder of an unpacked pristine kernel source, in place of Debian's." type:"existingdir" placeholder:"DIR"`
	Refresh bool   `help:"Build again, from the newest source, even if the image is here."`
}

// Run implements the verb.
func (c *kernelBuildCmd) Run(ctx context.Context) error {
	opts := kernel.BuildOptions{
		Options: kernel.Options{Progress: progress, Refresh: c.Refresh},
		Name:    kernel.BuildPlain, Series: c.Series, Source: c.Source, Jobs: c.Jobs,
	}
	if c.Faults {
		if c.Series != planted.Series {
			return usageError{fmt.Errorf("the planted faults are for series %s, not %s", planted.Series, c.Series)}
		}
		opts.Name = kernel.BuildPlanted
		opts.Patches = []kernel.Patch{{Name: "planted faults", Text: planted.Patch()}}
	}
	more, err := readPatches(c.Patches)
	if err != nil {
		return err
	}
	opts.Patches = append(opts.Patches, more...)
	img, err := kernel.Build(ctx, opts)
	if err != nil {
		return err
	}
	fmt.Printf("%s:%s: %s, sha256 %s\n%s\n", opts.Name, opts.Series, img, img.SHA256, img.Kernel)
	return nil
}

// readPatches reads the patches of a folder in the order of their names; none if dir is empty.
func readPatches(dir string) ([]kernel.Patch, error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, usageError{fmt.Errorf("patches: %w", err)}
	}
	var all []kernel.Patch
	for _, e := range entries {
		if !slices.Contains([]string{".diff", ".patch"}, filepath.Ext(e.Name())) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("patches: %w", err)
		}
		all = append(all, kernel.Patch{Name: e.Name(), Text: text})
	}
	if len(all) == 0 {
		return nil, usageError{fmt.Errorf("patches: no *.diff or *.patch in %s", dir)}
	}
	return all, nil
}
