package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const qemuName = "qemu-system-x86_64"

// machine is one running QEMU.
type machine struct {
	cmd     *exec.Cmd
	agent   net.Conn // the virtio-serial port
	qmp     net.Conn
	qmpIn   *bufio.Reader
	exited  chan struct{}
	exitErr error

	mu      sync.Mutex
	console []string // the last lines of the serial console
	stderr  strings.Builder
}

// consoleLines bounds what is kept of a console: more than an oops with its stack.
const consoleLines = 300

// machineConfig is what a command line depends on.
type machineConfig struct {
	kernel, initrd, cmdline string
	memory, cpus            int
	kvm                     bool
	incoming                string // file in dir to restore from; empty: boot
	dir                     string // where QEMU runs
}

// kvmOpens tells whether guests can run at full speed.
func kvmOpens() bool {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	return err == nil
}

func (c machineConfig) args() []string {
	cpu, accel := "max", "tcg,thread=multi"
	if c.kvm {
		cpu, accel = "host", "kvm"
	}
	a := []string{
		"-machine", "q35", "-cpu", cpu, "-accel", accel, "-m", strconv.Itoa(c.memory) + "M", "-smp", strconv.Itoa(c.cpus),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", c.kernel, "-initrd", c.initrd, "-append", c.cmdline,
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,fd=4", "-device", "virtserialport,chardev=agent,name=" + portName,
	}
	if c.incoming != "" {
		a = append(a, "-incoming", "exec:cat "+c.incoming)
	}
	return a
}

// socketPair returns a connection and the file that the other side inherits.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "mine"), os.NewFile(uintptr(fds[1]), "theirs")
	defer mine.Close()
	c, err := net.FileConn(mine)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c, theirs, nil
}

// startMachine starts QEMU. It dies with this process, even when that is killed.
func startMachine(c machineConfig) (*machine, error) {
	path, err := exec.LookPath(qemuName)
	if err != nil {
		return nil, &EnvError{qemuName + " not found", "install it: apt-get install qemu-system-x86"}
	}
	m := &machine{exited: make(chan struct{})}
	qmp, qmpFile, err := socketPair()
	if err != nil {
		return nil, env("start a guest", err)
	}
	defer qmpFile.Close()
	agent, agentFile, err := socketPair()
	if err != nil {
		qmp.Close()
		return nil, env("start a guest", err)
	}
	defer agentFile.Close()
	m.qmp, m.agent, m.qmpIn = qmp, agent, bufio.NewReader(qmp)
	m.cmd = exec.Command(path, c.args()...)
	m.cmd.Dir = c.dir
	m.cmd.ExtraFiles = []*os.File{qmpFile, agentFile}
	// A group of its own: Ctrl-C in the terminal is for nlfuzz, which ends its guests in order.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, env("start a guest", err)
	}
	m.cmd.Stderr = &lockedWriter{m: m}
	started := make(chan error)
	go func() {
		// The death signal comes when the *thread* that started the child ends: this one stays until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		m.readConsole(out)
		m.exitErr = m.cmd.Wait()
		close(m.exited)
	}()
	if err := <-started; err != nil {
		qmp.Close()
		agent.Close()
		return nil, env("start "+path, err)
	}
	return m, nil
}

type lockedWriter struct{ m *machine }

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.m.stderr.Len() < 8<<10 {
		w.m.stderr.Write(p)
	}
	return len(p), nil
}

func (m *machine) readConsole(r io.Reader) {
	in := bufio.NewReaderSize(r, 4<<10)
	for {
		// A line that is longer than the buffer comes in parts: a guest gone mad must not fill the host's memory.
		b, _, err := in.ReadLine()
		if l := strings.TrimRight(string(b), "\r"); l != "" {
			m.mu.Lock()
			m.console = append(m.console, l)
			if len(m.console) > 2*consoleLines {
				m.console = append([]string(nil), m.console[consoleLines:]...)
			}
			m.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// lines returns the last lines of the console.
func (m *machine) lines() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.console[max(0, len(m.console)-consoleLines):]...)
}

// complaint is what QEMU itself said on its standard error, one line.
func (m *machine) complaint() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(strings.Fields(m.stderr.String()), " ")
}

// exitLimit is how long QEMU may take to go after it closed the agent's port.
const exitLimit = 3 * time.Second

// ending waits until QEMU is gone, since only then the console is complete, and says how it ended, or what err came instead.
func (m *machine) ending(err error) string {
	select {
	case <-m.exited:
	case <-time.After(exitLimit):
		return fmt.Sprintf("its agent broke off: %v", err)
	}
	how := "its kernel switched it off"
	if m.exitErr != nil {
		how = "QEMU ended: " + m.exitErr.Error()
	}
	if c := m.complaint(); c != "" {
		how += " (" + c + ")"
	}
	return how
}

// kill ends QEMU with its children, which read and write snapshots, and waits for them.
func (m *machine) kill() {
	select {
	case <-m.exited:
	default:
		syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL) // Setpgid: it leads a group of its own
	}
	select {
	case <-m.exited:
	case <-time.After(10 * time.Second): // a killed process that does not go: nothing more can be done
	}
	m.qmp.Close()
	m.agent.Close()
}

// qmpLimit bounds one QMP command.
const qmpLimit = 10 * time.Second

// command runs one QMP command and decodes its return value into out, if that is not nil.
func (m *machine) command(name string, args, out any) error {
	m.qmp.SetDeadline(time.Now().Add(qmpLimit))
	req := map[string]any{"execute": name}
	if args != nil {
		req["arguments"] = args
	}
	if err := json.NewEncoder(m.qmp).Encode(req); err != nil {
		return fmt.Errorf("QMP %s: %w", name, err)
	}
	for {
		line, err := m.qmpIn.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("QMP %s: %w: %s", name, err, m.complaint())
		}
		var ans struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := json.Unmarshal(line, &ans); err != nil {
			return fmt.Errorf("QMP %s: %w", name, err)
		}
		switch {
		case ans.Error != nil:
			return fmt.Errorf("QMP %s: %s", name, ans.Error.Desc)
		case ans.Return != nil:
			if out == nil {
				return nil
			}
			return json.Unmarshal(ans.Return, out)
		}
		// the greeting, or an event
	}
}

// saveLimit bounds saving and restoring a snapshot: half a second on a quiet machine.
const saveLimit = 30 * time.Second

// save stops the guest and writes its state into a file in QEMU's folder.
func (m *machine) save(ctx context.Context, file string) error {
	if err := m.command("stop", nil, nil); err != nil {
		return err
	}
	if err := m.command("migrate-set-parameters", map[string]any{"max-bandwidth": int64(8) << 30}, nil); err != nil {
		return err
	}
	// QEMU can say "completed" while cat still writes, and does not ask whether cat failed: the file has its name when it is complete, and none of the
	// names when it is not.
	part := file + ".part"
	uri := fmt.Sprintf("exec:touch %[1]s && cat > %[1]s && mv %[1]s %[2]s || rm -f %[1]s", part, file)
	if err := m.command("migrate", map[string]any{"uri": uri}, nil); err != nil {
		return err
	}
	var st struct {
		Status    string
		ErrorDesc string `json:"error-desc"`
	}
	err := m.poll(ctx, "query-migrate", &st, func() (bool, error) {
		if st.Status == "failed" || st.Status == "cancelled" {
			return false, fmt.Errorf("%s %s %s", st.Status, st.ErrorDesc, m.complaint())
		}
		if st.Status != "completed" {
			return false, nil
		}
		if _, err := os.Stat(filepath.Join(m.cmd.Dir, file)); err == nil {
			return true, nil
		}
		if _, err := os.Stat(filepath.Join(m.cmd.Dir, part)); err == nil {
			return false, nil
		}
		// It may have been renamed between the two.
		_, err := os.Stat(filepath.Join(m.cmd.Dir, file))
		if err != nil {
			return false, fmt.Errorf("the file could not be written: %s", m.complaint())
		}
		return true, nil
	})
	return err
}

// resume waits until an incoming snapshot is loaded and lets the guest run.
func (m *machine) resume(ctx context.Context) error {
	if err := m.command("qmp_capabilities", nil, nil); err != nil {
		return err
	}
	var st struct{ Status string }
	err := m.poll(ctx, "query-status", &st, func() (bool, error) { return st.Status != "inmigrate", nil })
	if err != nil {
		return err
	}
	return m.command("cont", nil, nil)
}

// poll repeats a query until done says so. QEMU has no event for both that comes in time.
func (m *machine) poll(ctx context.Context, query string, out any, done func() (bool, error)) error {
	for end := time.Now().Add(saveLimit); ; {
		if err := m.command(query, nil, out); err != nil {
			return err
		}
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: not done after %v", query, saveLimit)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.exited:
			return errors.New("QEMU ended: " + m.complaint())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
