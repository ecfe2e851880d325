package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// userlandSuite is old enough for its libc to run on every kernel that Resolve knows.
const userlandSuite = "bookworm"

// userlandRevision is part of the cached tree's name: raise it when what is pulled or trimmed changes.
const userlandRevision = "1"

// userlandPackages are what scripts in a guest call: reproducers use ip, tc, sysctl, unshare, ping and python3's socket module.
var userlandPackages = []string{
	"bash", "coreutils", "grep", "sed", "mawk", "iproute2", "iputils-ping", "procps", "mount", "util-linux", "python3",
}

// leftOut are packages that the wanted ones depend on only for being installed and upgraded.
var leftOut = []string{
	"debconf", "dpkg", "tar", "dash", "debianutils", "install-info", "init-system-helpers", "media-types", "tzdata", "sysvinit-utils", "base-passwd",
	"base-files", "usrmerge", "perl", "perl-base", "perl-modules-5.36", "libperl5.36", "libgdbm6", "libgdbm-compat4", "libnumber-compare-perl",
	"libtext-glob-perl", "libfile-find-rule-perl", "login", "util-linux-extra", "readline-common", "libpam-modules", "libpam-runtime",
	"libssl3", "libsqlite3-0", "libnsl2", "libdb5.3", "libreadline8", "libncursesw6", // for programs that are unwanted and parts of python3
}

// Userland pulls a small Debian userland (bash, coreutils, grep, sed, awk, iproute2, ping, procps, util-linux, python3) for scripts in a guest and
// returns the folder of its tree, made to be one of InitramfsSpec.Trees. A pulled tree is used offline.
func Userland(ctx context.Context, opts Options) (string, error) {
	dir, err := userland(ctx, opts)
	if err != nil {
		return "", fmt.Errorf("userland: %w", err)
	}
	return dir, nil
}

func userland(ctx context.Context, opts Options) (string, error) {
	cache, err := opts.cacheDir()
	if err != nil {
		return "", err
	}
	parent, name := filepath.Join(cache, "userland"), userlandSuite+"-"+userlandRevision
	tree := filepath.Join(parent, name, "root")
	if isDir(tree) && !opts.Refresh {
		return tree, nil
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	unlock, err := lock(ctx, cache, opts)
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(tree) && !opts.Refresh {
		return tree, nil
	}
	a, err := newApt(ctx, filepath.Join(cache, "apt"), func(line string) { opts.progress("%s", line) })
	if err != nil {
		return "", err
	}
	trouble, err := a.update(ctx, []string{userlandSuite, userlandSuite + "-security"})
	if err != nil {
		return "", err
	}
	packages, err := a.closure(ctx, userlandPackages)
	if err != nil {
		return "", cmp.Or(trouble, err)
	}
	err = makeDir(parent, name, func(dir string) error { return fetchUserland(ctx, a, packages, dir, opts) })
	if err != nil {
		return "", err
	}
	return tree, nil
}

var installLine = regexp.MustCompile(`(?m)^Inst (\S+) \((\S+) `)

// closure lists the packages with all that they depend on, by a simulated installation on an empty system.
func (a *apt) closure(ctx context.Context, names []string) ([]Package, error) {
	out, stderr, err := a.run(ctx, a.dir, "apt-get", a.args(append([]string{"-q", "-s", "install"}, names...)...)...)
	if err != nil {
		return nil, a.failure("resolve the dependencies", stderr, err)
	}
	packages := parseInstall(out)
	if len(packages) == 0 {
		return nil, errors.New("apt-get -s install named no packages")
	}
	return packages, nil
}

// parseInstall reads the `Inst name (version suite [arch])` lines of a simulated installation, without what is left out.
func parseInstall(out string) []Package {
	var packages []Package
	for _, m := range installLine.FindAllStringSubmatch(out, -1) {
		name, _, _ := strings.Cut(m[1], ":")
		if !slices.Contains(leftOut, name) {
			packages = append(packages, Package{Name: name, Version: m[2]})
		}
	}
	return packages
}

// fetchUserland downloads the packages and unpacks them into dir/root.
func fetchUserland(ctx context.Context, a *apt, packages []Package, dir string, opts Options) error {
	const need = 200 << 20 // downloads and tree together
	if err := needSpace(dir, need); err != nil {
		return err
	}
	opts.progress("pulling a userland of %d packages (about 15 MB)", len(packages))
	debs, root := filepath.Join(dir, "debs"), filepath.Join(dir, "root")
	for _, d := range []string{debs, root} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return diskError("make the tree", err)
		}
	}
	if err := a.download(ctx, debs, packages); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(files) != len(packages) {
		return fmt.Errorf("apt-get download left %d files for %d packages", len(files), len(packages))
	}
	if err := userlandBase(root); err != nil {
		return diskError("make the tree", err)
	}
	for _, deb := range files {
		if err := unpackDeb(ctx, deb, root, userlandFile, mergeUsr); err != nil {
			return err
		}
	}
	if err := userlandLinks(root); err != nil {
		return diskError("make the tree", err)
	}
	var list strings.Builder
	for _, p := range packages {
		fmt.Fprintf(&list, "%s %s\n", p.Name, p.Version)
	}
	if err := os.WriteFile(filepath.Join(dir, "packages"), []byte(list.String()), 0o644); err != nil {
		return diskError("write the list of packages", err)
	}
	return os.RemoveAll(debs)
}

// mergedDirs are the top folders that became links into /usr. Packages of this suite still have files under the old names.
var mergedDirs = []string{"bin", "sbin", "lib", "lib64"}

// mergeUsr is the place of a packaged file in a tree whose top folders are links into /usr.
func mergeUsr(name string) string {
	top, _, _ := strings.Cut(name, "/")
	if slices.Contains(mergedDirs, top) {
		return "usr/" + name
	}
	return name
}

// userlandBase makes what no package has: the links into /usr, and users, so that tools find a name for root.
func userlandBase(root string) error {
	for _, dir := range mergedDirs {
		if err := os.MkdirAll(filepath.Join(root, "usr", dir), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"passwd":        "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"group":         "root:x:0:\nnogroup:x:65534:\n",
		"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// userlandLinks makes the links that the packages' scripts would make.
func userlandLinks(root string) error {
	for name, target := range map[string]string{"sh": "bash", "awk": "mawk", "python": "python3"} {
		err := os.Symlink(target, filepath.Join(root, "usr/bin", name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// unwanted are parts of packages that scripts in a guest never touch, by prefix of their merged name.
var unwanted = prefixes(map[string]string{
	"": "usr/share/ usr/include/ usr/games/ var/ etc/init.d/ etc/cron etc/pam.d/ etc/security/ usr/bin/perl",
	"usr/lib/": "systemd/ udev/ locale/ valgrind/ mime/ python3/ x86_64-linux-gnu/gconv/ x86_64-linux-gnu/audit/ x86_64-linux-gnu/security/ " +
		"x86_64-linux-gnu/libmvec. x86_64-linux-gnu/libc_malloc_debug. x86_64-linux-gnu/libnss_hesiod. x86_64-linux-gnu/libnss_compat. x86_64-linux-gnu/libexpatw. " +
		"x86_64-linux-gnu/krb5/ x86_64-linux-gnu/tc/q_atm.",
	"usr/lib/python3.11/": "test/ lib2to3/ idlelib/ pydoc_data/ ensurepip/ distutils/ tkinter/ xmlrpc/ wsgiref/ sqlite3/ dbm/ curses/ unittest/ " +
		"venv/ turtle _pyrepl/ config-3.11- email/ http/ xml/ html/ asyncio/ mailbox. imaplib. nntplib. smtplib. smtpd. ftplib. doctest. pydoc. " +
		"pickletools. _pydecimal. zipfile. aifc. cgi telnetlib. poplib. webbrowser. plistlib. sunau. wave. xdrlib. crypt. chunk. sndhdr.",
	// Also those whose libraries are left out.
	"usr/lib/python3.11/lib-dynload/": "_codecs_ _test _xx xx _ctypes_test _ssl _hashlib _sqlite3 _dbm nis readline _curses _asyncio audioop ossaudiodev " +
		"_lsprof _multibytecodec",
	// Disks, logins and terminals, other families of networks.
	"usr/sbin/": "fsck mkfs mkswap swap blk zramctl losetup partx addpart delpart resizepart fstrim fsfreeze wipefs rdma devlink dcb tipc vdpa arpd " +
		"agetty getty sulogin cfdisk ldattach rtcwake chmem readprofile",
	"usr/bin/": "lsblk lsipc lslogins lsmem lsirq rdma slabtop top tload watch ptx csplit vdir pdb3 pydoc3 pygettext3 py3 bashbug mesg wdctl " +
		"partx addpart delpart resizepart utmpdump last b2sum basenc pinky shred factor fmt sha224sum sha384sum x86_64 i386 linux32 linux64 mkfs setterm whereis",
})

// prefixes joins each key with each word of its value.
func prefixes(words map[string]string) []string {
	var all []string
	for prefix, list := range words {
		for _, word := range strings.Fields(list) {
			all = append(all, prefix+word)
		}
	}
	return all
}

func userlandFile(name string) bool {
	name = mergeUsr(name)
	if slices.Contains(mergedDirs, strings.TrimPrefix(name, "usr/")) {
		return false // made by userlandBase
	}
	return !slices.ContainsFunc(unwanted, func(prefix string) bool { return strings.HasPrefix(name+"/", prefix) })
}
