package names

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// The lines around the block. The second one to begin with says that the line before it had no end, which the block
// then gives it: without the block, it has none again.
const (
	beginLine   = "# begin boxlift: names of install.yaml. What is written between these lines is lost"
	beginAppend = "# begin boxlift, after a line without an end: names of install.yaml. What is written between " +
		"these lines is lost"
	endLine = "# end boxlift"
)

// errBlock is wrapped by errors that say that the lines around the block are not as boxlift writes them.
var errBlock = errors.New("the lines of boxlift in it are not in their order")

// parts are a hosts file before, in and after the block. Joined, with the lines around it, they are the file.
type parts struct {
	before, block, after []byte
	there                bool // there is a block
	appended             bool // before ends without a newline, which the block gave it
}

// split finds the block.
func split(content []byte) (parts, error) {
	var p parts
	state := 0 // before, in and after the block
	for line := range bytes.Lines(content) {
		text := strings.TrimSuffix(string(line), "\n")
		begins, ends := text == beginLine || text == beginAppend, text == endLine
		switch {
		case begins && state == 0:
			state = 1
			p.there = true
			if p.appended = text == beginAppend; p.appended {
				if !bytes.HasSuffix(p.before, []byte("\n")) {
					return parts{}, fmt.Errorf("%w: %q begins the file", errBlock, text)
				}
				p.before = p.before[:len(p.before)-1]
			}
		case ends && state == 1:
			state = 2
		case begins, ends:
			return parts{}, fmt.Errorf("%w: %q", errBlock, text)
		case state == 0:
			p.before = append(p.before, line...)
		case state == 1:
			p.block = append(p.block, line...)
		default:
			p.after = append(p.after, line...)
		}
	}
	if state == 1 {
		return parts{}, fmt.Errorf("%w: there is no %q", errBlock, endLine)
	}
	return p, nil
}

// with is the file with a block of these lines in the place of the one that is there, or else at its end. What is
// outside stays byte by byte.
func (p parts) with(lines []string) []byte {
	begin, appended := beginLine, p.appended
	if !p.there && len(p.before) > 0 && !bytes.HasSuffix(p.before, []byte("\n")) {
		appended = true
	}
	content := bytes.Clone(p.before)
	if appended {
		begin = beginAppend
		content = append(content, '\n')
	}
	content = append(content, begin+"\n"...)
	for _, line := range lines {
		content = append(content, line+"\n"...)
	}
	content = append(content, endLine+"\n"...)
	return append(content, p.after...)
}

// without is the file without the block.
func (p parts) without() []byte {
	content := bytes.Clone(p.before)
	// Somebody has written below a block that came after a line without an end.
	if p.appended && len(p.after) > 0 {
		content = append(content, '\n')
	}
	return append(content, p.after...)
}

// entry is an address of a hosts file (hosts(5)) with its names, in lower case.
type entry struct {
	address netip.Addr
	names   []string
}

// entries reads the lines of a hosts file. What is no line of such a file is left out.
func entries(content []byte) []entry {
	var list []entry
	for line := range bytes.Lines(content) {
		text, _, _ := strings.Cut(string(line), "#")
		fields := strings.Fields(text)
		if len(fields) < 2 {
			continue
		}
		address, err := netip.ParseAddr(fields[0])
		if err != nil {
			continue
		}
		e := entry{address: address.Unmap()}
		for _, name := range fields[1:] {
			e.names = append(e.names, strings.ToLower(name))
		}
		list = append(list, e)
	}
	return list
}
