package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/internal/kernel"
)

type doctorCmd struct {
	Kernel string `help:"Also boot this kernel and say what it can do." placeholder:"KERNEL"`
}

// check is one thing that the machine must or may have.
type check struct {
	name string
	// look returns what was found, or an error that says what would mend it.
	look func() (string, error)
	need bool
}

// needDisk is what a pulled kernel, its initramfs and a few snapshots take.
const needDisk = 2 << 30

var checks = []check{
	{"QEMU", func() (string, error) {
		p, err := exec.LookPath("qemu-system-x86_64")
		if err != nil {
			return "", errors.New("not found: apt-get install qemu-system-x86")
		}
		out, err := exec.Command(p, "--version").Output()
		if err != nil {
			return "", fmt.Errorf("%s --version: %w", p, err)
		}
		return strings.SplitN(string(out), "\n", 2)[0], nil
	}, true},
	{"KVM", func() (string, error) {
		f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
		if err != nil {
			return "", errors.New("/dev/kvm does not open: guests are emulated, some ten times slower")
		}
		f.Close()
		return "/dev/kvm opens", nil
	}, false},
	{"apt", func() (string, error) {
		for _, p := range []string{"apt-get", "dpkg-deb"} {
			if _, err := exec.LookPath(p); err != nil {
				return "", fmt.Errorf("%s not found: kernels can't be pulled; give a bzImage or a build tree with --kernel", p)
			}
		}
		return "kernels can be pulled", nil
	}, false},
	{"cache", func() (string, error) {
		dir, err := kernel.CacheDir("")
		if err != nil {
			return "", err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", fmt.Errorf("%w; choose another with NLFUZZ_CACHE", err)
		}
		return dir, enough(dir)
	}, true},
	{"scratch", func() (string, error) { return os.TempDir(), enough(os.TempDir()) }, true},
	{"host kernel", func() (string, error) {
		b, err := os.ReadFile("/proc/sys/kernel/osrelease")
		if err == nil && os.Geteuid() != 0 {
			return "", errors.New("not root: --kernel host can't be used; guests can")
		}
		return strings.TrimSpace(string(b)) + ", --kernel host can be used", err
	}, false},
}

func enough(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < needDisk {
		return fmt.Errorf("%s has %d MiB free, %d are needed; make room or choose another folder (NLFUZZ_CACHE, TMPDIR)", dir, free>>20, needDisk>>20)
	}
	return nil
}

// Run implements the verb.
func (c *doctorCmd) Run(ctx context.Context) error {
	var ill []string
	for _, k := range checks {
		found, err := k.look()
		switch {
		case err == nil:
			fmt.Printf("ok       %-12s %s\n", k.name, found)
		case k.need:
			fmt.Printf("MISSING  %-12s %v\n", k.name, err)
			ill = append(ill, k.name)
		default:
			fmt.Printf("without  %-12s %v\n", k.name, err)
		}
	}
	if len(ill) > 0 {
		return fmt.Errorf("missing: %s", strings.Join(ill, ", "))
	}
	if c.Kernel == "" {
		return nil
	}
	t := targetFlags{Kernel: c.Kernel, Memory: 256, CPUs: 1}
	env, err := t.open(ctx, newReporter(false), 1)
	if err != nil {
		return err
	}
	defer env.Close()
	k := env.runners[0].Kernel
	fmt.Printf("ok       %-12s %s\n", "boots", env.kernel)
	fmt.Printf("         %-12s %+v\n", "differences", k.Profile)
	if err := canaries(ctx, env); err != nil {
		return err
	}
	fmt.Printf("ok       %-12s every judge flags its planted fault, none the control\n", "canaries")
	return nil
}
