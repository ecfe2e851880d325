package live

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// logLines bounds what one observation takes over from the kernel's log; what is left comes with the next.
const logLines = 400

// klog reads the kernel's log from where it stood at the start.
type klog struct {
	fd  int
	buf []byte
}

func openLog() *klog {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &klog{fd: -1} // not for everyone; the log is then empty
	}
	unix.Seek(fd, 0, unix.SEEK_END)
	return &klog{fd, make([]byte, 8<<10)} // CONSOLE_EXT_LOG_MAX: a longer line does not come
}

// read returns the lines that came since the last call, without their prefix.
func (k *klog) read() (out []string) {
	if k.fd < 0 {
		return nil
	}
	for len(out) < logLines {
		n, err := unix.Read(k.fd, k.buf)
		if err == unix.EPIPE || err == unix.EINTR {
			continue // overwritten before it was read: the next read goes on behind the gap
		}
		if err != nil || n <= 0 {
			break
		}
		if l, ok := logText(string(k.buf[:n])); ok {
			out = append(out, l)
		}
	}
	return out
}

// logText is the text of a record "6,1234,5678,-;text\n KEY=value\n".
func logText(record string) (string, bool) {
	_, text, ok := strings.Cut(record, ";")
	text, _, _ = strings.Cut(text, "\n")
	return text, ok
}

// wait waits until there is something to read, at most limit.
func (k *klog) wait(limit time.Duration) {
	if k.fd < 0 {
		time.Sleep(limit)
		return
	}
	unix.Poll([]unix.PollFd{{Fd: int32(k.fd), Events: unix.POLLIN}}, int(max(0, limit).Milliseconds())+1)
}

func (k *klog) close() {
	if k.fd >= 0 {
		unix.Close(k.fd)
	}
}
