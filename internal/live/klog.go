package live

import (
	"strings"

	"golang.org/x/sys/unix"
)

// logLines bounds what one observation takes over from the kernel's log; more is counted.
const logLines = 400

// klog reads the kernel's log from where it stood at the start.
type klog struct{ fd int }

func openLog() *klog {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &klog{fd: -1}
	}
	unix.Seek(fd, 0, unix.SEEK_END)
	return &klog{fd: fd}
}

// read returns the lines that came since the last call, without their prefix.
func (k *klog) read() (out []string) {
	if k.fd < 0 {
		return nil
	}
	buf := make([]byte, 8<<10)
	for len(out) < logLines {
		n, err := unix.Read(k.fd, buf)
		if err == unix.EPIPE || err == unix.EINTR {
			continue // overwritten before it was read: the next read goes on behind the gap
		}
		if err != nil || n <= 0 {
			break
		}
		// "6,1234,5678,-;text\n KEY=value": the text ends with the line.
		_, text, ok := strings.Cut(string(buf[:n]), ";")
		if !ok {
			continue
		}
		text, _, _ = strings.Cut(text, "\n")
		out = append(out, text)
	}
	return out
}

func (k *klog) close() {
	if k.fd >= 0 {
		unix.Close(k.fd)
	}
}
