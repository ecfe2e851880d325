package live

import (
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/model"
)

// discard is the port that datagrams go to.
const discard = 9

// socketOp runs send, hold, release and ptb on the namespace's thread. The answer is the errno of the first system call that failed.
func (t *Target) socketOp(op model.Op) syscall.Errno {
	var err error
	switch o := op.(type) {
	case model.Send:
		err = send(o)
	case model.PTB:
		err = tooBig(o)
	case model.Hold:
		if _, held := t.sockets[o.Name]; held {
			return unix.EEXIST
		}
		var fd int
		if fd, err = hold(o); err == nil {
			t.sockets[o.Name] = fd
		}
	case model.Release:
		fd, held := t.sockets[o.Name]
		if !held {
			return unix.ENOENT
		}
		delete(t.sockets, o.Name)
		err = unix.Close(fd)
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	return errno
}

func sockaddr(a netip.Addr, port int, dev string) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	s := &unix.SockaddrInet6{Port: port, Addr: a.As16()}
	if dev != "" && (a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast()) {
		s.ZoneId = zone(dev)
	}
	return s
}

// zone is the ifindex of a device in the namespace of the calling thread, 0 if there is none.
func zone(dev string) uint32 {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(dev)
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr) != nil {
		return 0
	}
	return ifr.Uint32()
}

// open makes a socket and binds it to a device if one is named.
func open(p model.SendProto, dev string) (fd int, err error) {
	switch p {
	case model.Raw6:
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	case model.UDP4:
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	default:
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	}
	if err != nil {
		return -1, err
	}
	switch p {
	case model.Raw6:
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_HDRINCL, 1)
	case model.UDP4:
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	}
	if err == nil && dev != "" {
		err = unix.BindToDevice(fd, dev)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func send(o model.Send) error {
	fd, err := open(o.Proto, o.Dev)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	port, data := discard, []byte("nlfuzz")
	if o.Proto == model.Raw6 {
		port, data = 0, header6(o.From, o.To)
	} else if o.From.IsValid() {
		if err := unix.Bind(fd, sockaddr(o.From, 0, o.Dev)); err != nil {
			return err
		}
	}
	for range max(o.Count, 1) {
		if err := unix.Sendto(fd, data, unix.MSG_DONTWAIT, sockaddr(o.To, port, o.Dev)); err != nil {
			return err
		}
	}
	return nil
}

func hold(o model.Hold) (int, error) {
	fd, err := open(o.Proto, o.Dev)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, sockaddr(o.To, discard, o.Dev)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// header6 is an IPv6 header and nothing after it (next header 59).
func header6(from, to netip.Addr) []byte {
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, 59, 64
	f, d := from.As16(), to.As16()
	copy(h[8:], f[:])
	copy(h[24:], d[:])
	return h
}
