package kernel

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The forms of the package that holds the kernel. Up to 6.18 linux-image has the modules too; later it is an empty package that depends on
// linux-binary, linux-modules and linux-base. The cloud flavour is the smallest one with all devices of a network fuzzer.
var (
	imageName  = regexp.MustCompile(`^linux-image-([0-9][^ ]*-cloud-amd64)(-unsigned)?$`)
	binaryName = regexp.MustCompile(`^linux-binary-([0-9][^ ]*-cloud-amd64)$`)
	partName   = regexp.MustCompile(`^linux-(?:modules|base)-([0-9][^ ]*-cloud-amd64)$`)
)

// emptyPackage is the installed size, in KiB, below which a linux-image package holds no kernel.
const emptyPackage = 10 << 10

// pullTimeout limits a pull: waiting for the lock, lists, download and unpacking.
const pullTimeout = 30 * time.Minute

// candidate is one kernel in the archive, with all packages that make it.
type candidate struct {
	version   string
	packages  []Package // the one with the kernel first
	installed int64     // bytes when unpacked
}

func (c *candidate) size() (total int64) {
	for _, p := range c.packages {
		total += p.Size
	}
	return total
}

// kernelPackage says whether a package name matters for candidates.
func kernelPackage(name string) bool {
	return imageName.MatchString(name) || binaryName.MatchString(name) || partName.MatchString(name)
}

// candidates groups control data (of `apt-cache show`) into kernels, the newest version first. A kernel whose modules are no longer in the
// archive is left out; of two packages with one version, the unsigned one is first.
func candidates(stanzas []map[string]string) []candidate {
	known := map[string]Package{}
	installed := map[string]int64{}
	key := func(name, version string) string { return name + "=" + version }
	for _, s := range stanzas {
		kib, _ := strconv.ParseInt(s["installed-size"], 10, 64)
		p := parsePackage(s)
		known[key(p.Name, p.Version)] = p
		installed[key(p.Name, p.Version)] = kib << 10
	}
	var all []candidate
	for k, p := range known {
		abi, parts := "", []string{"linux-base-"}
		if m := imageName.FindStringSubmatch(p.Name); m != nil && installed[k] >= emptyPackage<<10 {
			abi = m[1]
		} else if m := binaryName.FindStringSubmatch(p.Name); m != nil {
			abi, parts = m[1], append(parts, "linux-modules-")
			if _, ok := known[key("linux-modules-"+abi, p.Version)]; !ok {
				continue
			}
		} else {
			continue
		}
		c := candidate{version: p.Version, packages: []Package{p}, installed: installed[k]}
		for _, part := range parts {
			k := key(part+abi, p.Version)
			if q, ok := known[k]; ok {
				c.packages = append(c.packages, q)
				c.installed += installed[k]
			}
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(compareVersions(b.version, a.version), cmp.Compare(b.packages[0].Name, a.packages[0].Name))
	})
	return slices.CompactFunc(all, func(a, b candidate) bool { return a.version == b.version })
}

// parsePackage reads the control data of one package.
func parsePackage(stanza map[string]string) Package {
	size, _ := strconv.ParseInt(stanza["size"], 10, 64)
	return Package{Name: stanza["package"], Version: stanza["version"], SHA256: stanza["sha256"], Size: size}
}

// pick is the newest candidate for `debian:want`.
func pick(all []candidate, want string) (candidate, bool) {
	i := slices.IndexFunc(all, func(c candidate) bool { return matches(c.version, want) })
	if i < 0 {
		return candidate{}, false
	}
	return all[i], true
}

// offer names the newest version of each series that the archive has.
func offer(all []candidate) string {
	seen := map[string]bool{}
	var names []string
	for _, c := range all {
		if s := series(c.version); !seen[s] {
			seen[s] = true
			names = append(names, fmt.Sprintf("%s (%s)", s, upstream(c.version)))
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

var wantForm = regexp.MustCompile(`^[0-9]+\.[0-9]+[0-9A-Za-z.+~:-]*$`)

// resolveDebian finds `debian:want` in the cache or pulls it.
func resolveDebian(ctx context.Context, want string, opts Options) (*Image, error) {
	if !wantForm.MatchString(want) {
		return nil, fmt.Errorf("kernel debian:%s: want a series such as debian:7.3 or a version such as debian:6.1.192", want)
	}
	cache, err := opts.cacheDir()
	if err != nil {
		return nil, err
	}
	have := pulled(cache, want)
	if len(have) > 0 && !opts.Refresh {
		return have[0], nil
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	unlock, err := lock(ctx, cache, opts)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if have = pulled(cache, want); len(have) > 0 && !opts.Refresh {
		return have[0], nil // pulled by another process in the meantime
	}
	img, err := pullDebian(ctx, cache, want, have, opts)
	if err != nil && len(have) > 0 && ctx.Err() == nil {
		opts.progress("kernel debian:%s: no newer one: %v; using %s", want, err, have[0].Version)
		return have[0], nil
	}
	return img, err
}

// pullDebian asks the likely suites, then all, and pulls the newest match unless it is among those that the cache has.
func pullDebian(ctx context.Context, cache, want string, have []*Image, opts Options) (*Image, error) {
	a, err := newApt(ctx, filepath.Join(cache, "apt"), func(line string) { opts.progress("%s", line) })
	if err != nil {
		return nil, fmt.Errorf("kernel debian:%s: %w", want, err)
	}
	found, all, err := search(ctx, a, want)
	if err != nil {
		return nil, fmt.Errorf("kernel debian:%s: %w", want, err)
	}
	if found == nil {
		return nil, fmt.Errorf("kernel debian:%s is not in the archive (any more); it has %s", want, offer(all))
	}
	for _, img := range have {
		if img.Version == found.version {
			return img, nil
		}
	}
	name := found.packages[0].Name + "_" + found.version
	parent := filepath.Join(cache, "kernels")
	err = makeDir(parent, name, func(dir string) error { return fetch(ctx, a, *found, dir, opts) })
	if err != nil {
		return nil, fmt.Errorf("kernel debian:%s: %w", want, err)
	}
	return readManifest(filepath.Join(parent, name))
}

// search looks for want in the suites that may have it. When nothing is found it returns everything that is there instead.
func search(ctx context.Context, a *apt, want string) (found *candidate, all []candidate, err error) {
	for _, suites := range [][]string{likelySuites(series(want)), allSuites} {
		known, trouble, err := a.kernels(ctx, suites)
		if err != nil {
			return nil, nil, err
		}
		if c, ok := pick(known, want); ok {
			return &c, nil, nil
		}
		if trouble != nil && len(known) == 0 {
			return nil, nil, trouble
		}
		if trouble != nil && len(suites) == len(allSuites) {
			return nil, nil, fmt.Errorf("not found; without the missing lists the archive has %s: %w", offer(known), trouble)
		}
		all = known
	}
	return nil, all, nil
}

// kernels lists the candidates of the suites. Trouble is what kept lists from being fetched.
func (a *apt) kernels(ctx context.Context, suites []string) (all []candidate, trouble, err error) {
	if trouble, err = a.update(ctx, suites); err != nil {
		return nil, nil, err
	}
	stanzas, err := a.show(ctx, "linux-", kernelPackage)
	if err != nil {
		return nil, nil, cmp.Or(trouble, err)
	}
	return candidates(stanzas), trouble, nil
}

// fetch downloads and unpacks a candidate into dir and writes the manifest.
func fetch(ctx context.Context, a *apt, c candidate, dir string, opts Options) error {
	if err := needSpace(dir, c.size()+c.installed+16<<20); err != nil {
		return err
	}
	opts.progress("pulling %s %s (%.1f MB)", c.packages[0].Name, c.version, float64(c.size())/1e6)
	debs := filepath.Join(dir, "debs")
	if err := os.Mkdir(debs, 0o755); err != nil {
		return diskError("download", err)
	}
	if err := a.download(ctx, debs, c.packages); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(files) != len(c.packages) {
		return fmt.Errorf("apt-get download left %d files for %d packages", len(files), len(c.packages))
	}
	for _, deb := range files {
		opts.progress("unpacking %s", filepath.Base(deb))
		if err := unpackDeb(ctx, deb, dir, kernelFile, func(name string) string { return name }); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(debs); err != nil {
		return fmt.Errorf("remove the downloads: %w", err)
	}
	img, err := fromDir(dir)
	if err != nil {
		return err
	}
	img.Spec = "debian:" + c.version
	img.Package, img.Version, img.Packages = c.packages[0].Name, c.version, c.packages
	return writeManifest(dir, img)
}

// kernelFile says which files of the packages are kept: kernel, modules, configuration; no documentation.
func kernelFile(name string) bool {
	return !strings.HasPrefix(name, "usr/share")
}

// List returns the pulled images and those that can be pulled, the newest first. Without a network it returns the pulled ones and an error.
func List(ctx context.Context, opts Options) ([]Available, error) {
	cache, err := opts.cacheDir()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	var list []Available
	have := map[string]bool{}
	for _, img := range pulled(cache, "") {
		have[img.Version] = true
		a := Available{Spec: "debian:" + img.Version, Package: img.Package, Version: img.Version, Image: img}
		for _, p := range img.Packages {
			a.Size += p.Size
		}
		list = append(list, a)
	}
	for _, name := range []string{BuildPlanted, BuildPlain} {
		for _, img := range builds(cache, name, "") {
			list = append(list, Available{Spec: name + ":" + img.Version, Package: img.Package, Version: img.Version, Image: img})
		}
	}
	found, err := archive(ctx, cache, opts)
	for _, c := range found {
		if !have[c.version] {
			list = append(list, Available{Spec: "debian:" + c.version, Package: c.packages[0].Name, Version: c.version, Size: c.size()})
		}
	}
	slices.SortStableFunc(list, func(a, b Available) int { return compareVersions(b.Version, a.Version) })
	return list, err
}

// archive lists the candidates of all suites.
func archive(ctx context.Context, cache string, opts Options) ([]candidate, error) {
	unlock, err := lock(ctx, cache, opts)
	if err != nil {
		return nil, err
	}
	defer unlock()
	a, err := newApt(ctx, filepath.Join(cache, "apt"), func(line string) { opts.progress("%s", line) })
	if err != nil {
		return nil, err
	}
	all, trouble, err := a.kernels(ctx, allSuites)
	return all, cmp.Or(err, trouble)
}
