package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/internal/iproute"
	"github.com/nlfuzz/nlfuzz/internal/kernel"
	"github.com/nlfuzz/nlfuzz/internal/kmem"
	"github.com/nlfuzz/nlfuzz/internal/live"
	"github.com/nlfuzz/nlfuzz/invariants"
)

// portName is the virtio-serial port that the host and the agent talk over.
const portName = "nlfuzz.agent"

// Init is process 1 of a guest: it mounts what is needed, loads the modules, and serves the host until the guest is ended. It does not return.
func Init() {
	debug.SetGCPercent(400) // memory is plentiful, emulated CPU is not
	err := serve()
	fmt.Println("nlfuzz: the agent ends:", err)
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

var mounts = []struct{ source, target, kind string }{
	{"proc", "/proc", "proc"},
	{"sysfs", "/sys", "sysfs"},
	{"devtmpfs", "/dev", "devtmpfs"},
	{"tmpfs", "/run", "tmpfs"},
	{"tmpfs", "/tmp", "tmpfs"},
	{"debugfs", "/sys/kernel/debug", "debugfs"},
	{"tracefs", "/sys/kernel/tracing", "tracefs"},
	{"securityfs", "/sys/kernel/security", "securityfs"},
}

func serve() error {
	var h hello
	for _, m := range mounts {
		os.MkdirAll(m.target, 0o755)
		if err := unix.Mount(m.source, m.target, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
			h.Trouble = append(h.Trouble, fmt.Sprintf("mount %s: %v", m.target, err))
		}
	}
	h.Trouble = append(h.Trouble, loadModules()...)
	os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	os.Setenv("HOME", "/root")
	var uts unix.Utsname
	unix.Uname(&uts)
	h.Release = unix.ByteSliceToString(uts.Release[:])
	port, err := openPort()
	if err != nil {
		return err
	}
	a := &agent{port: port, hello: h}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	if !strings.Contains(string(cmdline), "nlfuzz.mode=script") {
		cfg := live.Config{Guest: true}
		mem, err := kmem.Open()
		if err == nil {
			cfg.Memory = mem
		} else {
			a.hello.Degraded = err.Error()
		}
		if a.target, err = live.New(cfg); err != nil {
			return err
		}
	}
	return a.loop()
}

// loadModules loads the modules of the initramfs in their order and says what went wrong.
func loadModules() (trouble []string) {
	list, err := os.ReadFile(kernel.ModuleList)
	if err != nil {
		return nil // a kernel with everything built in
	}
	for _, path := range strings.Fields(string(list)) {
		f, err := os.Open(path)
		if err == nil {
			// numdummies: the module would make dummy0 in the initial namespace.
			params := ""
			if strings.HasSuffix(path, "-dummy.ko") {
				params = "numdummies=0"
			}
			err = unix.FinitModule(int(f.Fd()), params, 0)
			f.Close()
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			trouble = append(trouble, fmt.Sprintf("load %s: %v", filepath.Base(path), err))
		}
	}
	return trouble
}

// portLimit is how long the virtio driver may take to make the port.
const portLimit = 20 * time.Second

// openPort opens the virtio-serial port by its name.
func openPort() (*os.File, error) {
	for end := time.Now().Add(portLimit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == portName {
				fd, err := unix.Open(filepath.Join("/dev", filepath.Base(filepath.Dir(n))), unix.O_RDWR|unix.O_CLOEXEC, 0)
				if err != nil {
					return nil, fmt.Errorf("open the port: %w", err)
				}
				return os.NewFile(uintptr(fd), portName), nil
			}
		}
	}
	return nil, fmt.Errorf("no virtio port %s for %v: is virtio_console in the kernel or among the modules?", portName, portLimit)
}

type agent struct {
	port   *os.File
	hello  hello
	target *live.Target // nil in script mode
	faults uint64       // that are on
}

// faultsFile switches the planted faults of a kernel built for that.
const faultsFile = "/sys/kernel/debug/nlfuzz/faults"

func (a *agent) begin(ctx context.Context, payload []byte) (*invariants.Observation, error) {
	var req beginRequest
	if err := json.Unmarshal(payload, &req); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if req.Faults != a.faults {
		if err := os.WriteFile(faultsFile, fmt.Appendf(nil, "%#x", req.Faults), 0); err != nil {
			return nil, fmt.Errorf("switch planted faults: %w; this kernel has none: build one with nlfuzz kernel build --faults", err)
		}
		a.faults = req.Faults
	}
	a.target.SetExact(!req.Inexact)
	return a.target.Begin(ctx)
}

// patient reads from the port; while no host is connected (between a snapshot and its restoration) there is nothing to read yet.
type patient struct{ *os.File }

func (p patient) Read(b []byte) (int, error) {
	for {
		n, err := p.File.Read(b)
		if n > 0 || err != nil && err != io.EOF && !errors.Is(err, unix.EINTR) {
			return n, err
		}
		time.Sleep(time.Millisecond)
	}
}

func (a *agent) loop() error {
	for {
		f, err := readFrame(patient{a.port})
		if err != nil {
			return fmt.Errorf("read from the host: %w", err)
		}
		payload, err := a.handle(f)
		answer := frame{f.id, kindOK, payload}
		if err != nil {
			answer = frame{f.id, kindFailed, []byte(err.Error())}
		}
		if err := writeFrame(a.port, answer); err != nil {
			return fmt.Errorf("write to the host: %w", err)
		}
	}
}

func (a *agent) handle(f frame) ([]byte, error) {
	ctx := context.Background()
	switch f.kind {
	case kindPing:
		return json.Marshal(a.hello)
	case kindScript:
		return a.script(f.payload)
	case kindPanic:
		return nil, os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	}
	if a.target == nil {
		return nil, fmt.Errorf("this guest runs scripts only")
	}
	var o *invariants.Observation
	var err error
	switch f.kind {
	case kindExplain:
		var names []string
		if err := json.Unmarshal(f.payload, &names); err != nil {
			return nil, err
		}
		devices, err := a.target.Explain(ctx, names)
		if err != nil {
			return nil, err
		}
		return json.Marshal(devices)
	case kindBegin:
		o, err = a.begin(ctx, f.payload)
	case kindApply:
		op, perr := iproute.Parse(string(f.payload))
		if perr != nil {
			return nil, perr
		}
		o, err = a.target.Apply(ctx, op)
	case kindObserve:
		o, err = a.target.Observe(ctx)
	case kindRelease:
		o, err = a.target.Release(ctx)
	case kindEnd:
		o, err = a.target.End(ctx)
	default:
		return nil, fmt.Errorf("unknown request %d", f.kind)
	}
	if err != nil {
		return nil, err
	}
	return encodeObservation(o), nil
}

// scriptOutput bounds what is kept of a script's output.
const scriptOutput = 1 << 20

// script runs a bash script and returns what it printed and its exit code; 124, as timeout(1), when it took too long.
func (a *agent) script(payload []byte) ([]byte, error) {
	var req scriptRequest
	if err := json.Unmarshal(payload, &req); err != nil {
		return nil, err
	}
	if err := os.WriteFile("/tmp/script.sh", req.Script, 0o755); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), req.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/bash", append([]string{"/tmp/script.sh"}, req.Args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second
	cmd.Dir = "/tmp"
	var out bounded
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	ans := scriptAnswer{Output: out.b}
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		// It ended well and left something behind that holds its output, a blocked `ip link del &` for instance.
	case ctx.Err() != nil:
		ans.Exit = 124
	case errors.As(err, &exit):
		ans.Exit = exit.ExitCode()
	case err != nil:
		return nil, fmt.Errorf("run the script: %w", err)
	}
	return json.Marshal(ans)
}

// bounded keeps the first scriptOutput bytes.
type bounded struct{ b []byte }

func (w *bounded) Write(p []byte) (int, error) {
	w.b = append(w.b, p[:min(len(p), scriptOutput-len(w.b))]...)
	return len(p), nil
}
