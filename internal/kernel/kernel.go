// Package kernel finds, pulls and describes kernels under test, and makes the initramfs that they boot with.
package kernel

import "fmt"

// Options say where pulled things are kept and who is told what is being fetched. The zero value is good.
type Options struct {
	Cache    string       // folder of pulled images; empty: $NLFUZZ_CACHE, $XDG_CACHE_HOME/nlfuzz or ~/.cache/nlfuzz
	Refresh  bool         // ask the archive for a newer package even if a pulled image matches
	Progress func(string) // gets one line for each step that takes time; may be nil
}

// Image is a kernel that can be booted.
type Image struct {
	Spec      string    `json:"spec"`                 // what Resolve was asked for
	Release   string    `json:"release"`              // what `uname -r` says in the guest
	Package   string    `json:"package,omitempty"`    // Debian package that holds the kernel; empty for a file or tree
	Version   string    `json:"version,omitempty"`    // its full Debian version
	SHA256    string    `json:"sha256"`               // of the kernel file, in hex
	Kernel    string    `json:"kernel"`               // path of the bzImage or vmlinux
	ModuleDir string    `json:"module_dir,omitempty"` // folder below which the modules lie; empty if there are none
	Packages  []Package `json:"packages,omitempty"`   // everything that was pulled for it
	Build     string    `json:"build,omitempty"`      // name of the build if it was made by Build; empty for others
	BuildKey  string    `json:"build_key,omitempty"`  // checksum of what it was built from
}

// Package is one Debian package in the version that was pulled.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"`
}

// Available is a kernel that List knows.
type Available struct {
	Spec    string // what to give to Resolve for exactly this kernel
	Package string
	Version string
	Size    int64  // bytes to download
	Image   *Image // set if it is pulled already
}

// String is one line for people: the release, and the package it comes from.
func (img *Image) String() string {
	if img.Package != "" {
		return fmt.Sprintf("%s (%s %s)", img.Release, img.Package, img.Version)
	}
	return fmt.Sprintf("%s (%s)", img.Release, img.Kernel)
}
