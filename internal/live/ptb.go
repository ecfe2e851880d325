package live

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nlfuzz/nlfuzz/model"
)

// icmp says how a path MTU error looks in one family (RFC 4443, RFC 792).
type icmp struct {
	proto      byte // in the IP header
	kind, code byte // packet too big; destination unreachable, fragmentation needed
	// echoReply is the type of the packet that is quoted. For IPv4 the kernel acts on the error only then: all other ICMP is a ping socket's (icmp_err).
	echoReply byte
}

var (
	icmp4 = icmp{unix.IPPROTO_ICMP, 3, 4, 0}
	icmp6 = icmp{unix.IPPROTO_ICMPV6, 2, 0, 129}
)

// tooBig sends the namespace an ICMP error, from and to an address of its own, so that the kernel makes a route exception for o.To.
func tooBig(o model.PTB) error {
	from := o.From
	if !from.IsValid() {
		var err error
		if from, err = source(o.To, o.Dev); err != nil {
			return err
		}
	}
	fd, err := rawSocket(from, o.Dev)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, pathMTUError(from, o.To, o.MTU), unix.MSG_DONTWAIT, sockaddr(from, 0, o.Dev))
}

// source is the address that the kernel takes for packets to another.
func source(to netip.Addr, dev string) (netip.Addr, error) {
	p := model.UDP6
	if to.Is4() {
		p = model.UDP4
	}
	fd, err := hold(model.Hold{Proto: p, To: to, Dev: dev})
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr), nil
	}
	return netip.Addr{}, unix.EAFNOSUPPORT
}

// rawSocket makes a socket that sends whole packets and receives none (IPPROTO_RAW).
func rawSocket(a netip.Addr, dev string) (int, error) {
	if !a.Is4() {
		return open(model.Raw6, dev)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err == nil && dev != "" {
		if err = unix.BindToDevice(fd, dev); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// pathMTUError is the packet from an address to itself which says that a packet from there was too long for the way to another.
func pathMTUError(from, to netip.Addr, mtu uint16) []byte {
	i := icmp6
	if from.Is4() {
		i = icmp4
	}
	quoted := packet(i, from, to, []byte{i.echoReply, 0, 0, 0, 0, 0, 0, 0})
	// The MTU is a field of 32 bits for IPv6, and the second half of it for IPv4.
	return packet(i, from, from, append([]byte{i.kind, i.code, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted...))
}

// packet is an IP header and an ICMP message with its checksum filled in. The message's length is even.
func packet(i icmp, from, to netip.Addr, message []byte) []byte {
	ends := append(from.AsSlice(), to.AsSlice()...)
	var head []byte
	var sum uint32
	if from.Is4() {
		head = append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, i.proto, 0, 0}, ends...)
		binary.BigEndian.PutUint16(head[2:], uint16(len(head)+len(message)))
		binary.BigEndian.PutUint16(head[10:], ^fold(add(0, head)))
	} else {
		head = append([]byte{0x60, 0, 0, 0, 0, 0, i.proto, 64}, ends...)
		binary.BigEndian.PutUint16(head[4:], uint16(len(message)))
		sum = add(uint32(len(message))+uint32(i.proto), ends) // the pseudo header
	}
	binary.BigEndian.PutUint16(message[2:], ^fold(add(sum, message)))
	return append(head, message...)
}

// add sums 16 bit words (RFC 1071); packets here are far too short for the sum to overflow.
func add(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
