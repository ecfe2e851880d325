package rtnl

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Attributes of RTM_NEWNSID, linux/net_namespace.h; and its multicast group.
const (
	nsidAttrID = 1  // NETNSA_NSID
	nsidAttrFD = 3  // NETNSA_FD
	groupNSID  = 28 // RTNLGRP_NSID
)

// NSIDs gives namespaces ids in the namespace of its socket, and hears when the kernel has taken one apart.
//
// The kernel sends RTM_DELNSID when the work item cleanup_net begins with the namespace (unhash_nsid). That work item handles one batch after the other, so
// the message for a namespace that was dropped after another one's message came proves that the other one is gone altogether.
type NSIDs struct {
	c    *Conn
	next int32
	gone map[int32]bool
}

// DialNSIDs opens a socket in the namespace of the calling thread.
func DialNSIDs() (*NSIDs, error) {
	c, err := Dial()
	if err != nil {
		return nil, err
	}
	if err := c.nl.JoinGroup(groupNSID); err != nil {
		c.Close()
		return nil, fmt.Errorf("join the multicast group of namespace ids: %w", err)
	}
	return &NSIDs{c: c, next: 1 << 20, gone: map[int32]bool{}}, nil
}

// Close closes the socket.
func (n *NSIDs) Close() error { return n.c.Close() }

// Assign gives the namespace of a file descriptor an id.
func (n *NSIDs) Assign(fd int) (id int32, err error) {
	n.next++
	r := newRequest(unix.RTM_NEWNSID, flagAck).put(uint32(0))
	r.u32(nsidAttrID, uint32(n.next))
	r.u32(nsidAttrFD, uint32(fd))
	errno, text, err := n.c.Do(r.finish())
	if err == nil && errno != 0 {
		err = fmt.Errorf("%w %s", errno, text)
	}
	if err != nil {
		return 0, fmt.Errorf("assign a namespace id: %w", err)
	}
	return n.next, nil
}

// Wait waits until the kernel begins to take the namespace with this id apart; false when it did not within the limit.
func (n *NSIDs) Wait(id int32, limit time.Duration) (bool, error) {
	end := time.Now().Add(limit)
	for !n.gone[id] {
		left := time.Until(end)
		if left <= 0 {
			return false, nil
		}
		ready, err := n.c.poll(left)
		if err != nil {
			return false, err
		}
		if !ready {
			continue
		}
		k, err := n.c.receive()
		if err == syscall.ENOBUFS {
			return false, fmt.Errorf("messages about namespace ids were lost: %w", err)
		}
		if err != nil {
			return false, err
		}
		for b := n.c.buf[:k]; len(b) >= headerLen; {
			l := int(le.Uint32(b))
			if l < headerLen+4 || l > len(b) {
				return false, errShort
			}
			if le.Uint16(b[4:]) == unix.RTM_DELNSID {
				each(b[headerLen+4:l], func(a attribute) error {
					if v, err := a.u32(); a.typ == nsidAttrID && err == nil {
						n.gone[int32(v)] = true
					}
					return nil
				})
			}
			b = b[min((l+3)&^3, len(b)):]
		}
	}
	delete(n.gone, id)
	return true, nil
}

// poll waits until there is something to read.
func (c *Conn) poll(limit time.Duration) (ready bool, err error) {
	cerr := c.raw.Control(func(fd uintptr) {
		var k int
		k, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, limit).Milliseconds())+1)
		if err == unix.EINTR {
			err = nil
		}
		ready = k > 0
	})
	if cerr != nil {
		return false, cerr
	}
	return ready, err
}
