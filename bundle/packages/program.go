package packages

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
)

const (
	elfMagic = "\x7fELF"

	// What Go's linker leaves in programs (debug/buildinfo): a header of 32 bytes, then two
	// strings with their lengths before them, the version of Go and the modules.
	infoMagic     = "\xff Go buildinf:"
	infoAlign     = 16
	infoHeader    = 32
	infoFlags     = 15
	infoInline    = 0x2
	maxGoVersion  = 256
	maxModules    = 4 << 20
	modulesMarker = 16 // bytes before and after the modules
	moduleStart   = "\x30\x77\xaf\x0c\x92\x74\x08\x02\x41\xe1\xc1\x07\xe6\xd6\x18\xe6"

	maxSegments = 64
)

// readProgram looks for what Go's linker leaves in programs. debug/buildinfo reads at
// random offsets; this finds the same in a stream, so that no program has to be held in
// memory or written to a disk.
func readProgram(name string, r *bufio.Reader, f *File) error {
	e := &executable{r: r}
	segments, err := e.segments()
	if err != nil || len(segments) == 0 {
		return ignoreShort(err)
	}
	for _, s := range segments {
		if err := e.skip(s.start - e.offset); err != nil {
			return ignoreShort(err)
		}
		version, modules, found, err := e.search(s.end)
		if err != nil {
			return ignoreShort(err)
		}
		if found {
			if modules == "" && version == "" {
				f.Notes = []string{fmt.Sprintf("%s was made by a Go before 1.18, whose programs are not read",
					shown(name))}
				return nil
			}
			f.Packages = goPackages(version, modules)
			return nil
		}
	}
	return nil
}

// executable is a program that is being read.
type executable struct {
	r      *bufio.Reader
	offset int64
}

// segment is a part of a file, in bytes.
type segment struct{ start, end int64 }

// segments returns the parts of an ELF file that become writable memory, in their order:
// there, and not in texts that only look like it, is what the linker leaves.
func (e *executable) segments() ([]segment, error) {
	head, err := e.r.Peek(4096)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(head) < 64 || string(head[:4]) != elfMagic {
		return nil, nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	if head[5] == 2 {
		order = binary.BigEndian
	}
	is64 := head[4] == 2
	var at uint64
	var size, count int
	if is64 {
		at, size, count = order.Uint64(head[32:]), int(order.Uint16(head[54:])), int(order.Uint16(head[56:]))
	} else {
		at, size, count = uint64(order.Uint32(head[28:])), int(order.Uint16(head[42:])), int(order.Uint16(head[44:]))
	}
	least := 32
	if is64 {
		least = 56
	}
	if size < least || size > 256 || count > maxSegments || at > uint64(len(head)) || int(at)+size*count > len(head) {
		return nil, nil
	}
	var segments []segment
	for i := range count {
		p := head[int(at)+i*size:]
		var flags uint32
		var start, length uint64
		if is64 {
			flags, start, length = order.Uint32(p[4:]), order.Uint64(p[8:]), order.Uint64(p[32:])
		} else {
			flags, start, length = order.Uint32(p[24:]), uint64(order.Uint32(p[4:])), uint64(order.Uint32(p[16:]))
		}
		const load, executes, writes = 1, 1, 2
		if order.Uint32(p) != load || flags&(executes|writes) != writes || length == 0 || start > 1<<40 ||
			length > 1<<40 {
			continue
		}
		s := segment{int64(start), int64(start + length)}
		// They come in the order of their addresses, which is that of the file.
		if len(segments) == 0 || s.start >= segments[len(segments)-1].end {
			segments = append(segments, s)
		}
	}
	return segments, nil
}

func (e *executable) skip(n int64) error {
	for n > 0 {
		done, err := e.r.Discard(int(min(n, 1<<30)))
		e.offset += int64(done)
		if n -= int64(done); err != nil {
			return err
		}
	}
	return nil
}

// search looks for the linker's header up to an offset of the file.
func (e *executable) search(end int64) (version, modules string, found bool, err error) {
	for e.offset < end {
		window, err := e.r.Peek(int(min(readSize/2, end-e.offset)))
		if err != nil && !errors.Is(err, io.EOF) {
			return "", "", false, err
		}
		at := bytes.Index(window, []byte(infoMagic))
		if at < 0 {
			if len(window) < readSize/2 {
				return "", "", false, nil
			}
			if err := e.skip(int64(len(window) - len(infoMagic) + 1)); err != nil {
				return "", "", false, err
			}
			continue
		}
		if err := e.skip(int64(at)); err != nil {
			return "", "", false, err
		}
		if e.offset%infoAlign == 0 {
			if version, modules, found, err := e.info(); found || err != nil {
				return version, modules, found, err
			}
		}
		if err := e.skip(1); err != nil {
			return "", "", false, err
		}
	}
	return "", "", false, nil
}

// info reads what the header at the present offset begins. It moves on only when that is
// what it looks like. Both strings are empty for the older form, which has addresses in
// their place.
func (e *executable) info() (version, modules string, found bool, err error) {
	head, err := e.r.Peek(infoHeader + 2*binary.MaxVarintLen64 + maxGoVersion + modulesMarker)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", "", false, err
	}
	if len(head) < infoHeader {
		return "", "", false, nil
	}
	if head[infoFlags]&infoInline == 0 {
		// Programs that read others have the bare magic among their data.
		isOld := (head[14] == 4 || head[14] == 8) && head[infoFlags] <= 1
		return "", "", isOld, nil
	}
	rest := head[infoHeader:]
	n, used := binary.Uvarint(rest)
	if used <= 0 || n > maxGoVersion || int(n) > len(rest)-used {
		return "", "", false, nil
	}
	version = string(rest[used : used+int(n)])
	if !strings.HasPrefix(version, "go") && !strings.HasPrefix(version, "devel") || !plausible(version) {
		return "", "", false, nil
	}
	rest = rest[used+int(n):]
	n, used = binary.Uvarint(rest)
	if used <= 0 || n > maxModules {
		return "", "", false, nil
	}
	if n < 2*modulesMarker+1 || !bytes.HasPrefix(rest[used:], []byte(moduleStart)) {
		return version, "", true, nil // built without modules
	}
	if err := e.skip(int64(len(head) - len(rest) + used)); err != nil {
		return "", "", false, err
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(e.r, text); err != nil {
		return "", "", false, err
	}
	return version, string(text[modulesMarker : n-modulesMarker]), true, nil
}

// goPackages lists the standard library, a program's own module, and those it was built
// with.
func goPackages(version, modules string) []Package {
	release, _, _ := strings.Cut(version, " ") // what follows are experiments
	packages := []Package{{Type: Go, Name: "stdlib", Version: strings.TrimPrefix(release, "go")}}
	info, err := debug.ParseBuildInfo(modules)
	if err != nil {
		return packages
	}
	add := func(m debug.Module) {
		if m.Replace != nil && m.Replace.Version != "" {
			m = *m.Replace // a replacement from a folder has no version, and no name that says anything
		}
		if m.Path == "" {
			return
		}
		p := Package{Type: Go, Name: m.Path, Version: m.Version}
		if p.Version == "(devel)" {
			p.Version = ""
		}
		packages = append(packages, p)
	}
	add(info.Main)
	for _, m := range info.Deps[:min(len(info.Deps), maxPackages)] {
		add(*m)
	}
	return packages
}
