package live

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/invariants"
)

// announced are the multicast groups that a listener joins: those of the tables that operations change.
var announced = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP,
}

const (
	noteBatch   = 32      // messages that one system call reads; few operations make more
	noteRounds  = 2048    // batches after one operation; more are not counted
	noteBuffer  = 4 << 20 // bytes that wait in the kernel: a link with thousands of routes goes in one operation
	noteHeader  = 16      // of a message only the header is read
	noteTypeOff = 4
)

// listener is a netlink socket that hears what the kernel announces in a namespace. The kernel queues an announcement before it answers the operation
// that caused it, so what an operation announced is there when it has returned.
type listener struct {
	fd      int
	msgs    [noteBatch]mmsghdr
	iovs    [noteBatch]unix.Iovec
	headers [noteBatch][noteHeader]byte
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// listen opens a listener in the namespace of the calling thread.
func listen() (*listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a socket for notifications: %w", err)
	}
	l := &listener{fd: fd}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, noteBuffer) != nil {
		// Without the right to it there is less room: what does not fit is noted as lost.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, noteBuffer)
	}
	if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err == nil {
		for _, g := range announced {
			if err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
				break
			}
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to notifications: %w", err)
	}
	for i := range l.msgs {
		l.iovs[i].Base = &l.headers[i][0]
		l.iovs[i].SetLen(noteHeader)
		l.msgs[i].hdr.Iov = &l.iovs[i]
		l.msgs[i].hdr.SetIovlen(1)
	}
	return l, nil
}

func (l *listener) close() { unix.Close(l.fd) }

// hear reads what was announced since the last call, without waiting. Each announcement is a datagram of its own, of which the header is enough: the kernel
// drops the rest.
func (l *listener) hear() *invariants.Notes {
	notes := &invariants.Notes{}
	for range noteRounds {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(l.fd), uintptr(unsafe.Pointer(&l.msgs)), noteBatch, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return notes
		default: // ENOBUFS: the kernel had no room and says so before it goes on with what it kept
			notes.Lost = true
			continue
		}
		for i := range n {
			if l.msgs[i].len == noteHeader {
				notes.Add(binary.NativeEndian.Uint16(l.headers[i][noteTypeOff:]))
			}
		}
		if n < noteBatch {
			return notes
		}
	}
	notes.Lost = true
	return notes
}
