package kernel

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Offsets of the x86 boot protocol (Documentation/arch/x86/boot.rst).
const (
	bootMagic    = 0x202 // "HdrS"
	bootVersion  = 0x20e // u16: where the version string lies, less 0x200
	bootLoadFlag = 0x236 // u16 xloadflags; bit 0: has a 64-bit entry
	bootHeader   = 0x268 // end of the header as of protocol 2.15
)

// releaseOf reads what `uname -r` will say from a bzImage or a vmlinux.
func releaseOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, bootHeader)
	if _, err := io.ReadFull(f, head); err != nil {
		return "", fmt.Errorf("%s: not a kernel: shorter than a boot header", path)
	}
	var release string
	switch {
	case string(head[bootMagic:bootMagic+4]) == "HdrS":
		release, err = bzImageRelease(f, head)
	case string(head[:4]) == elf.ELFMAG:
		release, err = vmlinuxRelease(f)
	default:
		err = errors.New("not a kernel: neither a bzImage nor an ELF file")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return release, nil
}

func bzImageRelease(r io.ReaderAt, head []byte) (string, error) {
	if binary.LittleEndian.Uint16(head[bootLoadFlag:])&1 == 0 {
		return "", errors.New("not a 64-bit x86 kernel")
	}
	offset := binary.LittleEndian.Uint16(head[bootVersion:])
	if offset == 0 {
		return "", errors.New("the boot header names no version")
	}
	text := make([]byte, 256)
	n, err := r.ReadAt(text, int64(offset)+0x200)
	if n == 0 {
		return "", fmt.Errorf("not a whole kernel: %w", err)
	}
	return firstWord(text[:n])
}

// vmlinuxRelease finds linux_banner (init/version-timestamp.c), which lies in .rodata.
func vmlinuxRelease(r io.ReaderAt) (string, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return "", fmt.Errorf("not a whole kernel: %w", err)
	}
	if f.Machine != elf.EM_X86_64 {
		return "", fmt.Errorf("not an x86-64 kernel but %v", f.Machine)
	}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_PROGBITS || s.Flags&elf.SHF_ALLOC == 0 || s.Flags&elf.SHF_EXECINSTR != 0 {
			continue
		}
		data, err := s.Data()
		if err != nil {
			return "", fmt.Errorf("not a whole kernel: section %s: %w", s.Name, err)
		}
		// The printf format of the same text is passed over: a release starts with a digit.
		for banner := []byte("Linux version "); ; {
			i := bytes.Index(data, banner)
			if i < 0 {
				break
			}
			data = data[i+len(banner):]
			if len(data) > 0 && digit(data[0]) {
				return firstWord(data[:min(len(data), 256)])
			}
		}
	}
	return "", errors.New("not a kernel: an ELF file without a \"Linux version\" text")
}

func firstWord(text []byte) (string, error) {
	if i := bytes.IndexAny(text, " \x00\n"); i > 0 && digit(text[0]) {
		return string(text[:i]), nil
	}
	return "", errors.New("the version text is damaged")
}
