package kernel

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// fakeVmlinux is an ELF file with one note segment.
func fakeVmlinux(note string) []byte {
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			binary.Write(&b, binary.LittleEndian, v)
		}
	}
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	put(uint16(2), uint16(62), uint32(1), uint64(0), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(1), uint16(64), uint16(0), uint16(0))
	put(uint32(4), uint32(4), uint64(120), uint64(0), uint64(0), uint64(len(note)), uint64(len(note)), uint64(4))
	b.WriteString(note)
	return b.Bytes()
}

const pvhNote = "\x04\x00\x00\x00\x04\x00\x00\x00\x12\x00\x00\x00Xen\x00\x00\x00\x00\x01"

// withPayload makes a bzImage of a compressed kernel.
func withPayload(payload []byte) []byte {
	b := []byte(fakeBzImage("7.3.4"))
	b[bootSectors] = 7 // the payload follows the 4096 bytes
	binary.LittleEndian.PutUint32(b[bootPayloadLength:], uint32(len(payload)))
	return append(b, payload...)
}

func withSize(payload []byte, size int) []byte {
	return binary.LittleEndian.AppendUint32(payload, uint32(size))
}

// literalLZ4 is a legacy frame of one block with literals only; 15 < len(b).
func literalLZ4(b []byte) []byte {
	block := []byte{0xf0}
	n := len(b) - 15
	for ; n >= 255; n -= 255 {
		block = append(block, 255)
	}
	block = append(append(block, byte(n)), b...)
	return append(binary.LittleEndian.AppendUint32([]byte{0x02, 0x21, 0x4c, 0x18}, uint32(len(block))), block...)
}

func TestVmlinux(t *testing.T) {
	good, noPVH := fakeVmlinux(pvhNote+strings.Repeat("x", 400)), fakeVmlinux("nothing of the kind")
	pack := func(b []byte) []byte {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return withSize(w.EncodeAll(b, nil), len(b))
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(good); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		kernel []byte
		err    string
	}{
		"zstd":        {kernel: withPayload(pack(good))},
		"gzip":        {kernel: withPayload(zipped.Bytes())},
		"lz4":         {kernel: withPayload(withSize(literalLZ4(good), len(good)))},
		"no PVH":      {kernel: withPayload(pack(noPVH)), err: "without CONFIG_PVH"},
		"xz":          {kernel: withPayload([]byte("\xfd7zXZ\x00abcdef\x01\x00\x00\x00")), err: "its compression (fd377a58)"},
		"cut short":   {kernel: withPayload(pack(good))[:4150], err: "cut short"},
		"damaged lz4": {kernel: withPayload(withSize(literalLZ4(good)[:30], len(good))), err: "damaged lz4 block"},
		"wrong size":  {kernel: withPayload(withSize(pack(good), len(good)+1)), err: "decompress"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			img := &Image{Kernel: filepath.Join(dir, "bzImage"), SHA256: "sum"}
			writeFile(t, img.Kernel, string(test.kernel))
			path, err := img.Vmlinux(Options{Cache: filepath.Join(dir, "cache")})
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error is %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, good) {
				t.Errorf("%d bytes, want %d; %v", len(got), len(good), err)
			}
			self := &Image{Kernel: path}
			if again, err := self.Vmlinux(Options{}); err != nil || again != path {
				t.Errorf("vmlinux of a vmlinux is %s, %v", again, err)
			}
		})
	}
}

func TestUnpackLZ4Block(t *testing.T) {
	tests := []struct{ in, want string }{
		{"\x50hello", "hello"},
		{"\x33abc\x03\x00\x10!", "abcabcabca!"},                   // a match of 7 that overlaps itself
		{"\x1fa\x01\x00\x02\x10b", strings.Repeat("a", 22) + "b"}, // 1 literal, 15+2+4 by the match
		{"\x10a\x02\x00", ""},                                     // before the start
		{"\x10a\x00\x00", ""},                                     // offset 0
		{"\x50hel", ""},
		{"\xf0\xff", ""},
	}
	for _, test := range tests {
		got, ok := unpackLZ4Block(nil, []byte(test.in), 100)
		if ok != (test.want != "") || string(got) != test.want {
			t.Errorf("block %q is %q, %v; want %q", test.in, got, ok, test.want)
		}
	}
	if _, ok := unpackLZ4Block(nil, []byte("\x50hello"), 4); ok {
		t.Error("a block larger than the claimed size is taken")
	}
}
