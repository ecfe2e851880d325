package rtnl

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/invariants"
)

// Conn is a rtnetlink socket in the namespace in which it was dialled, whatever namespace its user is in later. It is used by one goroutine at a time.
//
// The socket is made and kept by mdlayher/netlink; requests and answers pass through buffers of its own, since in an emulated guest the allocations of a
// message each cost more than the kernel's work.
type Conn struct {
	nl  *netlink.Conn
	raw syscall.RawConn
	buf []byte
	seq uint32
}

// answerLimit is how long an answer may take after the request was accepted: netlink answers before sendto returns, so this is never waited for.
const answerLimit = 10 * time.Second

// Dial opens a socket in the namespace of the calling thread, with extended errors and strict checking of dump requests.
func Dial() (*Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("open a rtnetlink socket: %w", err)
	}
	for _, o := range []netlink.ConnOption{netlink.ExtendedAcknowledge, netlink.GetStrictCheck} {
		if err := c.SetOption(o, true); err != nil {
			c.Close()
			return nil, fmt.Errorf("rtnetlink socket option %d: %w", o, err)
		}
	}
	c.SetReadBuffer(4 << 20) // a large dump fits; where the limit is lower the dump comes in parts all the same
	raw, err := c.SyscallConn()
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("rtnetlink socket: %w", err)
	}
	return &Conn{nl: c, raw: raw, buf: make([]byte, 256<<10)}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.nl.Close() }

// send sends one request under a new sequence number. It blocks as long as the kernel works on it.
func (c *Conn) send(req []byte) (err error) {
	c.seq++
	le.PutUint32(req[8:], c.seq)
	cerr := c.raw.Control(func(fd uintptr) {
		err = unix.Sendto(int(fd), req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	})
	return errors.Join(cerr, err)
}

// receive reads one datagram into the buffer.
func (c *Conn) receive() (n int, err error) {
	end := time.Now().Add(answerLimit)
	cerr := c.raw.Control(func(fd uintptr) {
		for {
			n, _, err = unix.Recvfrom(int(fd), c.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
			if n > len(c.buf) {
				err = fmt.Errorf("an answer of %d bytes is longer than the buffer", n)
			}
			if err != unix.EAGAIN && err != unix.EINTR {
				return
			}
			left := time.Until(end)
			if left <= 0 {
				err = fmt.Errorf("no answer for %v", answerLimit)
				return
			}
			unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		}
	})
	return n, errors.Join(cerr, err)
}

// Do sends a request and returns the kernel's answer to it: its errno, 0 for success, and its explanation. An error means that there was no answer.
func (c *Conn) Do(req []byte) (errno syscall.Errno, extack string, err error) {
	if err := c.send(req); err != nil {
		return 0, "", fmt.Errorf("send to rtnetlink: %w", err)
	}
	for {
		n, err := c.receive()
		if err != nil {
			return 0, "", fmt.Errorf("answer of rtnetlink: %w", err)
		}
		for b := c.buf[:n]; len(b) >= headerLen; {
			l := int(le.Uint32(b))
			if l < headerLen || l > len(b) {
				return 0, "", fmt.Errorf("answer of rtnetlink: %w", errShort)
			}
			if le.Uint32(b[8:]) == c.seq && le.Uint16(b[4:]) == unix.NLMSG_ERROR {
				return ack(le.Uint16(b[6:]), b[headerLen:l])
			}
			b = b[min((l+3)&^3, len(b)):]
		}
	}
}

// Attributes and flags of an extended acknowledgement, linux/netlink.h.
const (
	flagCapped  = 0x100 // NLM_F_CAPPED: the request is not repeated
	flagAckTLVs = 0x200 // NLM_F_ACK_TLVS
	attrMessage = 1     // NLMSGERR_ATTR_MSG
)

func ack(flags uint16, b []byte) (syscall.Errno, string, error) {
	if len(b) < 4+headerLen {
		return 0, "", errShort
	}
	errno := syscall.Errno(-int32(le.Uint32(b)))
	if flags&flagAckTLVs == 0 {
		return errno, "", nil
	}
	rest := b[4+headerLen:]
	if flags&flagCapped == 0 {
		skip := (int(le.Uint32(b[4:])) - headerLen + 3) &^ 3
		if skip < 0 || skip > len(rest) {
			return errno, "", nil
		}
		rest = rest[skip:]
	}
	text := ""
	err := each(rest, func(a attribute) error {
		if a.typ == attrMessage {
			text = a.str()
		}
		return nil
	})
	return errno, text, err
}

// dumpTries bounds how often a dump that was interrupted by a change is asked for again.
const dumpTries = 5

// Dump asks for one table and returns the messages as they came.
func (c *Conn) dump(t *table) ([]byte, error) {
	req := newRequest(t.typ, unix.NLM_F_DUMP)
	req.b = append(req.b, t.body...)
	for range dumpTries {
		data, torn, err := c.dumpOnce(req.finish())
		if err != nil {
			return nil, fmt.Errorf("dump %s: %w", t.name, err)
		}
		if !torn {
			return data, nil
		}
	}
	return nil, fmt.Errorf("dump %s: changed under the dump %d times in a row", t.name, dumpTries)
}

func (c *Conn) dumpOnce(req []byte) (data []byte, torn bool, err error) {
	if err := c.send(req); err != nil {
		return nil, false, err
	}
	for {
		n, err := c.receive()
		if err != nil {
			return nil, false, err
		}
		for b := c.buf[:n]; len(b) >= headerLen; {
			l := int(le.Uint32(b))
			if l < headerLen || l > len(b) {
				return nil, false, errShort
			}
			step := min((l+3)&^3, len(b))
			if le.Uint32(b[8:]) == c.seq {
				torn = torn || le.Uint16(b[6:])&unix.NLM_F_DUMP_INTR != 0
				switch le.Uint16(b[4:]) {
				case unix.NLMSG_DONE:
					return data, torn, nil
				case unix.NLMSG_ERROR:
					if len(b) >= headerLen+4 {
						if e := syscall.Errno(-int32(le.Uint32(b[headerLen:]))); e != 0 {
							return nil, false, e
						}
					}
				default:
					// Sequence numbers would make equal dumps differ.
					start := len(data)
					data = append(data, b[:step]...)
					le.PutUint32(data[start+8:], 0)
				}
			}
			b = b[step:]
		}
	}
}

// DumpAll returns all tables of an observation.
func (c *Conn) DumpAll() ([]invariants.Dump, error) {
	out := make([]invariants.Dump, 0, len(tables))
	for i := range tables {
		data, err := c.dump(&tables[i])
		if err != nil {
			return nil, err
		}
		out = append(out, invariants.Dump{Table: tables[i].name, Data: data})
	}
	return out, nil
}

// Indexes returns the names and ifindexes of the namespace's devices.
func (c *Conn) Indexes() (map[string]int, error) {
	data, err := c.dump(&tables[0])
	if err != nil {
		return nil, err
	}
	return LinkIndexes(data)
}
