package kernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// Offsets of the compressed kernel in a bzImage (Documentation/arch/x86/boot.rst).
const (
	bootSectors       = 0x1f1 // u8: sectors of the real-mode code, less one
	bootPayloadOffset = 0x248 // u32, from the start of the protected-mode code
	bootPayloadLength = 0x24c // u32; the last four bytes of the payload are the length when decompressed
)

// maxVmlinux bounds a decompressed kernel.
const maxVmlinux = 1 << 30

// Vmlinux decompresses the kernel of a bzImage into the cache and returns the path of the ELF file, which an emulator starts by its PVH entry. It
// boots about a second sooner under TCG than the bzImage, which would decompress itself in the guest. It has no KASLR. An error means that the
// compression (xz, lzma, lzo, bzip2) or the lack of a PVH entry forbids it: then boot Image.Kernel. An Image that is a vmlinux is its own answer.
func (img *Image) Vmlinux(opts Options) (string, error) {
	data, err := os.ReadFile(img.Kernel)
	if err != nil {
		return "", fmt.Errorf("vmlinux: %w", err)
	}
	if bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
		return img.Kernel, checkPVH(data, img.Kernel)
	}
	cache, err := opts.cacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "vmlinux", img.SHA256)
	if isFile(path) {
		return path, nil
	}
	out, err := decompressKernel(data)
	if err != nil {
		return "", fmt.Errorf("vmlinux: %s: %w", img.Kernel, err)
	}
	if err := checkPVH(out, img.Kernel); err != nil {
		return "", err
	}
	return path, diskError("vmlinux", writeAtomic(path, out))
}

// writeAtomic writes a file that has its name only when it is complete.
func writeAtomic(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), temporary)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// decompressKernel takes the payload out of a bzImage.
func decompressKernel(image []byte) ([]byte, error) {
	if len(image) < bootHeader || string(image[bootMagic:bootMagic+4]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	start := (int64(image[bootSectors])+1)*512 + int64(binary.LittleEndian.Uint32(image[bootPayloadOffset:]))
	length := int64(binary.LittleEndian.Uint32(image[bootPayloadLength:]))
	if length < 8 || start+length > int64(len(image)) {
		return nil, errors.New("the payload is not in the file: is it cut short?")
	}
	payload := image[start : start+length]
	size := binary.LittleEndian.Uint32(payload[length-4:])
	if size > maxVmlinux {
		return nil, fmt.Errorf("the payload claims to be %d bytes when decompressed", size)
	}
	var r io.Reader
	switch {
	case bytes.HasPrefix(payload, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(bytes.NewReader(payload), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxVmlinux))
		if err != nil {
			return nil, err
		}
		defer d.Close()
		r = d
	case bytes.HasPrefix(payload, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(bytes.NewReader(payload))
		if err != nil {
			return nil, err
		}
		r = z
	case bytes.HasPrefix(payload, []byte{0x02, 0x21, 0x4c, 0x18}):
		return unpackLZ4(payload[4:length-4], int(size))
	default:
		return nil, fmt.Errorf("its compression (%x) is not one of zstd, gzip and lz4", payload[:4])
	}
	out := make([]byte, size)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return out, nil
}

var errLZ4 = errors.New("decompress: damaged lz4 block")

// unpackLZ4 reads the legacy frame of lz4: blocks, each after its length.
func unpackLZ4(frame []byte, size int) ([]byte, error) {
	out := make([]byte, 0, size)
	for len(out) < size {
		if len(frame) < 4 {
			return nil, errLZ4
		}
		n := int(binary.LittleEndian.Uint32(frame))
		if n > len(frame)-4 {
			return nil, errLZ4
		}
		var ok bool
		if out, ok = unpackLZ4Block(out, frame[4:4+n], size); !ok {
			return nil, errLZ4
		}
		frame = frame[4+n:]
	}
	return out, nil
}

// unpackLZ4Block appends one block: sequences of literals and a match in what the block itself has produced before.
func unpackLZ4Block(out, in []byte, size int) ([]byte, bool) {
	start := len(out)
	// length extends a 4-bit number of 15 by bytes up to the first below 255.
	length := func(n int) (int, bool) {
		for more := n == 15; more; {
			if len(in) == 0 {
				return 0, false
			}
			n, more = n+int(in[0]), in[0] == 255
			in = in[1:]
		}
		return n, true
	}
	for len(in) > 0 {
		token := in[0]
		in = in[1:]
		n, ok := length(int(token >> 4))
		if !ok || n > len(in) || len(out)+n > size {
			return nil, false
		}
		out, in = append(out, in[:n]...), in[n:]
		if len(in) == 0 {
			return out, true // the last sequence has literals only
		}
		if len(in) < 2 {
			return nil, false
		}
		offset := int(binary.LittleEndian.Uint16(in))
		in = in[2:]
		if n, ok = length(int(token & 15)); !ok || offset == 0 || offset > len(out)-start || len(out)+n+4 > size {
			return nil, false
		}
		for from := len(out) - offset; n+4 > 0; n-- {
			out = append(out, out[from]) // the match may overlap what it produces
			from++
		}
	}
	return out, true
}

// checkPVH looks for the note XEN_ELFNOTE_PHYS32_ENTRY, without which an emulator cannot start a vmlinux.
func checkPVH(vmlinux []byte, path string) error {
	f, err := elf.NewFile(bytes.NewReader(vmlinux))
	if err != nil {
		return fmt.Errorf("vmlinux: %s: %w", path, err)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE || p.Filesz > 1<<20 {
			continue
		}
		notes := make([]byte, p.Filesz)
		if _, err := p.ReadAt(notes, 0); err != nil {
			return fmt.Errorf("vmlinux: %s: %w", path, err)
		}
		const physEntry = 18
		if bytes.Contains(notes, append([]byte{physEntry, 0, 0, 0}, "Xen\x00"...)) {
			return nil
		}
	}
	return fmt.Errorf("vmlinux: %s: built without CONFIG_PVH", path)
}
