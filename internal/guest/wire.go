package guest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/nlfuzz/nlfuzz/invariants"
)

// The wire between the host and the agent: frames of
//
//	length u32 | id u32 | kind u8 | payload
//
// all little-endian; length counts what follows it. The host asks, the agent answers each request once, under its id. After a restored snapshot the host
// is another one: it drops answers to ids that it did not ask.
const (
	kindPing  byte = iota + 1
	kindBegin      // payload: JSON beginRequest
	kindApply      // payload: the operation's text
	kindObserve
	kindEnd
	kindScript // payload: JSON scriptRequest
	kindPanic  // for tests: crash the kernel
	kindRelease
	kindExplain // payload: JSON names of devices; answer: JSON devices with their holders
	kindOK      // answer: an observation, or what the request's kind says
	kindFailed  // answer: the error's text
)

// maxFrame bounds a frame. The dumps of a namespace with 10,000 routes take some 2 MB.
const maxFrame = 64 << 20

type frame struct {
	id      uint32
	kind    byte
	payload []byte
}

// name is what a request asks for, for people.
func (f frame) name() string {
	switch f.kind {
	case kindApply:
		return string(f.payload)
	case kindBegin:
		return "begin"
	case kindObserve:
		return "observe"
	case kindEnd:
		return "end"
	case kindScript:
		return "run a script"
	case kindPanic:
		return "panic"
	case kindExplain:
		return "explain"
	case kindRelease:
		return "release"
	}
	return "greet"
}

func writeFrame(w io.Writer, f frame) error {
	b := make([]byte, 9, 9+len(f.payload))
	binary.LittleEndian.PutUint32(b, uint32(5+len(f.payload)))
	binary.LittleEndian.PutUint32(b[4:], f.id)
	b[8] = f.kind
	b = append(b, f.payload...)
	_, err := w.Write(b)
	return err
}

func readFrame(r io.Reader) (f frame, err error) {
	var h [4]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return f, err
	}
	n := binary.LittleEndian.Uint32(h[:])
	if n < 5 || n > maxFrame {
		return f, fmt.Errorf("frame of %d bytes: not between 5 and %d", n, maxFrame)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return f, err
	}
	return frame{binary.LittleEndian.Uint32(b), b[4], b[5:]}, nil
}

// encodeObservation is compact and cheap, since the agent runs in an emulated guest: JSON is only for what is rare.
func encodeObservation(o *invariants.Observation) []byte {
	size := 256
	for _, d := range o.Dumps {
		size += len(d.Data) + 32
	}
	b := make([]byte, 0, size)
	str := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	str(o.Op)
	b = binary.AppendUvarint(b, uint64(o.Errno))
	str(o.Extack)
	b = binary.AppendUvarint(b, uint64(o.Took))
	blocked := uint64(0)
	if o.Blocked {
		blocked = 1
	}
	b = binary.AppendUvarint(b, blocked)
	b = binary.AppendUvarint(b, uint64(len(o.Dumps)))
	for _, d := range o.Dumps {
		str(d.Table)
		b = append(binary.AppendUvarint(b, uint64(len(d.Data))), d.Data...)
	}
	b = binary.AppendUvarint(b, uint64(len(o.Log)))
	for _, l := range o.Log {
		str(l)
	}
	b = appendNotes(b, o.Notes)
	rare := ""
	if len(o.Devices) > 0 || o.Net.Deleted || o.Memory != nil {
		j, _ := json.Marshal(rarely{o.Devices, o.Net, o.Memory}) // plain data: can't fail
		rare = string(j)
	}
	str(rare)
	return b
}

type rarely struct {
	Devices []invariants.Device
	Net     invariants.NetState
	Memory  *invariants.Memory
}

var errCut = errors.New("observation is cut off")

func decodeObservation(b []byte) (o *invariants.Observation, err error) {
	num := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err = errCut
			return 0
		}
		b = b[n:]
		return v
	}
	bytes := func() []byte {
		n := num()
		if err != nil || n > uint64(len(b)) {
			err = errCut
			return nil
		}
		s := b[:n]
		b = b[n:]
		return s
	}
	o = &invariants.Observation{Op: string(bytes()), Errno: syscall.Errno(num()), Extack: string(bytes()), Took: time.Duration(num()), Blocked: num() != 0}
	for n := num(); n > 0 && err == nil; n-- {
		o.Dumps = append(o.Dumps, invariants.Dump{Table: string(bytes()), Data: bytes()})
	}
	for n := num(); n > 0 && err == nil; n-- {
		o.Log = append(o.Log, string(bytes()))
	}
	o.Notes = readNotes(num)
	if rare := bytes(); err == nil && len(rare) > 0 {
		var r rarely
		if err := json.Unmarshal(rare, &r); err != nil {
			return nil, fmt.Errorf("observation: %w", err)
		}
		o.Devices, o.Net, o.Memory = r.Devices, r.Net, r.Memory
	}
	if err == nil && len(b) > 0 {
		err = fmt.Errorf("observation: %d bytes too many", len(b))
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

// beginRequest says what is different from now on.
type beginRequest struct {
	Faults  uint64 // mask of planted faults
	Inexact bool   // exact counts are not read
}

type scriptRequest struct {
	Script []byte
	Args   []string
	Limit  time.Duration
}

type scriptAnswer struct {
	Output []byte
	Exit   int
}

// hello is the agent's answer to a ping.
type hello struct {
	Release  string
	Degraded string // why kernel memory can't be read; empty if it can
	Trouble  []string
}
