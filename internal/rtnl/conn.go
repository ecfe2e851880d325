package rtnl

import (
	"errors"
	"fmt"
	"syscall"
	"time"
	"unsafe"

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
	// hint is how long each table was when it was last read: the next one is likely as long.
	hint [16]int
}

// bufSize is NLMSG_GOODSIZE. With a larger buffer netlink_dump makes larger messages, whose memory (32 KiB each) it clears first: that costs more than the
// dump of a small table.
const bufSize = 8 << 10

// maxBufSize bounds to what a buffer grows for a message of more than bufSize.
const maxBufSize = 1 << 20

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
	return &Conn{nl: c, raw: raw, buf: make([]byte, bufSize)}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.nl.Close() }

// send sends one request under a new sequence number. It blocks as long as the kernel works on it.
func (c *Conn) send(req []byte) (err error) {
	c.seq++
	le.PutUint32(req[8:], c.seq)
	cerr := c.raw.Control(func(fd uintptr) {
		_, err = unix.Write(int(fd), req) // a netlink socket that is not connected writes to the kernel
	})
	if cerr != nil {
		return cerr
	}
	return err
}

// receive reads one datagram into the buffer.
func (c *Conn) receive() (n int, err error) {
	var end time.Time
	for {
		cerr := c.raw.Control(func(fd uintptr) { n, err = receive(fd, c.buf) })
		if cerr != nil {
			return 0, cerr
		}
		switch {
		case err == unix.EINTR:
			continue
		case err != unix.EAGAIN:
			return n, err
		case end.IsZero():
			end = time.Now().Add(answerLimit)
		case time.Now().After(end):
			return 0, fmt.Errorf("no answer for %v", answerLimit)
		}
		if _, err := c.poll(time.Until(end)); err != nil {
			return 0, err
		}
	}
}

// errTruncated is a datagram that is longer than the buffer.
var errTruncated = errors.New("an answer is longer than the buffer")

// receive is recv(2) without blocking. A raw system call: it takes microseconds, and telling the scheduler of it costs as much in an emulated guest.
func receive(fd uintptr, buf []byte) (int, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
	switch {
	case e != 0:
		return 0, e
	case int(n) > len(buf):
		return 0, errTruncated
	}
	return int(n), nil
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

// Dump asks for one table by its name and returns the messages as they came, with sequence numbers of 0.
func (c *Conn) Dump(name string) ([]byte, error) {
	i := tableIndex(name)
	if i == len(tables) {
		return nil, fmt.Errorf("dump: no table is called %q (have %v)", name, TableNames())
	}
	return c.dump(i)
}

func (c *Conn) dump(i int) ([]byte, error) {
	t := &tables[i]
	req := newRequest(t.typ, unix.NLM_F_DUMP)
	req.b = append(req.b, t.body...)
	for range dumpTries {
		data, torn, err := c.dumpOnce(req.finish(), c.hint[i])
		if err != nil {
			return nil, fmt.Errorf("dump %s: %w", t.name, err)
		}
		if !torn {
			c.hint[i] = len(data)
			return data, nil
		}
	}
	return nil, fmt.Errorf("dump %s: changed under the dump %d times in a row", t.name, dumpTries)
}

func (c *Conn) dumpOnce(req []byte, hint int) (data []byte, torn bool, err error) {
	data = make([]byte, 0, hint)
	if err := c.send(req); err != nil {
		return nil, false, err
	}
	for {
		n, err := c.receive()
		if err == errTruncated && len(c.buf) < maxBufSize {
			// Read on to the end, as the kernel starts no other dump before, and try again.
			c.buf, torn = make([]byte, 4*len(c.buf)), true
			continue
		}
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
		data, err := c.dump(i)
		if err != nil {
			return nil, err
		}
		out = append(out, invariants.Dump{Table: tables[i].name, Data: data})
	}
	return out, nil
}

// Indexes returns the names and ifindexes of the namespace's devices.
func (c *Conn) Indexes() (map[string]int, error) {
	data, err := c.dump(0)
	if err != nil {
		return nil, err
	}
	return LinkIndexes(data)
}
