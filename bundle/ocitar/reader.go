package ocitar

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/opencontainers/go-digest"
)

// Reader gives access to the members of one file. It holds their places, never their
// contents, and may be used by several goroutines at once.
type Reader struct {
	Places
	source io.ReaderAt
}

// Places say where the members of a file are. They give nothing of what is there.
type Places struct {
	layout Layout
	byName map[string]Entry
}

// NewReader finds the members of a file of size bytes by hopping over their headers.
// Every byte outside the contents is compared with the one value it may have; an error
// wraps [ErrMalformed] and says what is wrong at which offset, unless reading failed.
func NewReader(source io.ReaderAt, size int64) (*Reader, error) {
	r := &Reader{source: source, Places: Places{byName: make(map[string]Entry)}}
	r.layout.Size = size
	if size%BlockSize != 0 || size < TrailerSize {
		return nil, fmt.Errorf("%w: its length of %d bytes is not that of a tar file: it is cut off or something else",
			ErrMalformed, size)
	}
	var order orderCheck
	// One read takes the padding of the member before and the header after it.
	buffer := make([]byte, 2*BlockSize)
	for previous := (Entry{}); previous.End() < size-TrailerSize; {
		start := previous.Offset + previous.Size
		pad := int(padding(previous.Size))
		if err := r.readFull(buffer[:pad+BlockSize], start); err != nil {
			return nil, err
		}
		if !isZero(buffer[:pad]) {
			return nil, fmt.Errorf("%w: the padding after %s, at offset %d, is not zero", ErrMalformed, previous.Name,
				start)
		}
		header := buffer[pad : pad+BlockSize]
		member, err := parseHeader(header)
		if err == nil {
			err = order.next(member)
		}
		if err != nil {
			return nil, fmt.Errorf("tar header of member %d (%q) at offset %d: %w", len(r.layout.Entries)+1,
				headerName(header), previous.End(), err)
		}
		entry := Entry{Member: member, Offset: previous.End() + BlockSize}
		if entry.End() > size-TrailerSize {
			return nil, fmt.Errorf("%w: %s is to end at offset %d, but the file ends at %d: it is cut off",
				ErrMalformed, member.Name, entry.End(), size)
		}
		r.layout.Entries = append(r.layout.Entries, entry)
		r.byName[member.Name] = entry
		previous = entry
	}
	if err := order.end(); err != nil {
		return nil, err
	}
	last := r.layout.Entries[len(r.layout.Entries)-1]
	tail := buffer[:padding(last.Size)]
	if err := r.readFull(tail, last.Offset+last.Size); err != nil {
		return nil, err
	}
	if !isZero(tail) {
		return nil, fmt.Errorf("%w: the padding after %s, at offset %d, is not zero", ErrMalformed, last.Name,
			last.Offset+last.Size)
	}
	if err := r.readFull(buffer[:TrailerSize], size-TrailerSize); err != nil {
		return nil, err
	}
	if !isZero(buffer[:TrailerSize]) {
		return nil, fmt.Errorf("%w: the file does not end with two blocks of zeros: it is cut off or something was "+
			"appended", ErrMalformed)
	}
	if content, err := r.ReadAll(LayoutFile, BlockSize); err != nil {
		return nil, err
	} else if string(content) != LayoutContent {
		return nil, fmt.Errorf("%w: %s does not hold %s", ErrMalformed, LayoutFile, LayoutContent)
	}
	return r, nil
}

// Layout returns the members in the order of the file. The caller must not change it.
func (p *Places) Layout() *Layout { return &p.layout }

// Open returns the content of the member with that name, or false.
func (r *Reader) Open(name string) (*io.SectionReader, bool) {
	e, ok := r.byName[name]
	if !ok {
		return nil, false
	}
	return io.NewSectionReader(r.source, e.Offset, e.Size), true
}

// Blob returns the entry of a blob, or false.
func (p *Places) Blob(d digest.Digest) (Entry, bool) {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return Entry{}, false
	}
	e, ok := p.byName[BlobName(d)]
	return e, ok
}

// Section returns the bytes of an entry.
func (r *Reader) Section(e Entry) *io.SectionReader {
	return io.NewSectionReader(r.source, e.Offset, e.Size)
}

// ReadAll returns the whole content of a member that may have up to limit bytes.
func (r *Reader) ReadAll(name string, limit int64) ([]byte, error) {
	e, ok := r.byName[name]
	if !ok {
		return nil, fmt.Errorf("%w: it has no member %s", ErrMalformed, name)
	}
	if e.Size > limit {
		return nil, fmt.Errorf("%w: %s has %d bytes, more than the %d that are allowed", ErrMalformed, name, e.Size,
			limit)
	}
	content := make([]byte, e.Size)
	return content, r.readFull(content, e.Offset)
}

func (r *Reader) readFull(b []byte, offset int64) error {
	if _, err := io.ReadFull(io.NewSectionReader(r.source, offset, int64(len(b))), b); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: it ends within the %d bytes at offset %d", ErrMalformed, len(b), offset)
		}
		return fmt.Errorf("read %d bytes at offset %d: %w", len(b), offset, err)
	}
	return nil
}

// parseHeader takes name and size from a header and accepts it only if it is, byte for
// byte, the header that such a member has. Links, directories, other modes and owners
// and flipped bits all end here.
func parseHeader(header []byte) (Member, error) {
	if isZero(header) {
		return Member{}, fmt.Errorf("%w: a block of zeros stands where a member should follow", ErrMalformed)
	}
	switch kind := header[156]; kind {
	case '0':
	case '1', '2':
		return Member{}, fmt.Errorf("%w: it is a link", ErrMalformed)
	case '5':
		return Member{}, fmt.Errorf("%w: it is a directory", ErrMalformed)
	default:
		return Member{}, fmt.Errorf("%w: it has the type %q, not that of a regular file", ErrMalformed, kind)
	}
	size, err := parseSize(header[124:136])
	if err != nil {
		return Member{}, err
	}
	m := Member{Name: headerName(header), Size: size}
	canonical, err := Header(m)
	if err != nil {
		return Member{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if !bytes.Equal(header, canonical) {
		return Member{}, fmt.Errorf("%w: the header differs from the one that such a member must have: a byte has "+
			"changed, or another program wrote it", ErrMalformed)
	}
	return m, nil
}

func headerName(header []byte) string {
	name, _, _ := bytes.Cut(header[:100], []byte{0})
	return string(name)
}

// parseSize reads eleven octal digits or, as GNU tar writes large sizes, a big-endian
// number whose first bit is set.
func parseSize(field []byte) (int64, error) {
	if field[0] == 0x80 {
		n := binary.BigEndian.Uint64(field[4:])
		if !isZero(field[1:4]) || n > maxSize {
			return 0, fmt.Errorf("%w: its size is out of bounds", ErrMalformed)
		}
		return int64(n), nil
	}
	n, err := strconv.ParseInt(string(field[:11]), 8, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: its size field %q is not a number", ErrMalformed, string(field))
	}
	return n, nil
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
