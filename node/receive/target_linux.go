package receive

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/wire"
)

// target is a pack or a file that is to be on the node. Its bytes are a sequence of
// segments: blobs, and between them what follows from the blobs' names and sizes.
type target struct {
	// name is the operator's word for it: a pack's name, a file's path.
	name string
	// root and rel say where it will be.
	root *os.Root
	rel  string
	mode fs.FileMode
	size int64
	// digest is that of a file's content; "" for a pack.
	digest digest.Digest
	// layout, blobs and index make up a pack; layout is nil for a file. The blobs are the
	// layout's entries from the third one on.
	layout *ocitar.Layout
	blobs  []wire.Blob
	index  []byte

	// file is the unfinished file, whose first position() bytes are right: all segments
	// before current, and inCurrent bytes of that one, which hash has taken in. For the
	// latter, right means only that nothing has shown the contrary yet.
	file      *os.File
	current   int
	inCurrent int64
	hash      hash.Hash
	// flushed is the position up to which the kernel has been asked to write.
	flushed int64
	state   targetState

	// shelf, unless nil, is told of each step, and keeps in shown what it was told.
	shelf *shelf
	shown shown
}

type targetState int

const (
	unfinished targetState = iota
	// held: it was there before.
	held
	// complete: all bytes are written.
	complete
)

// segment is a blob at its place, or, when digest is empty, fixed bytes.
type segment struct {
	offset, size int64
	digest       digest.Digest
	fixed        []byte
}

func (t *target) segments() int {
	if t.layout == nil {
		return 1
	}
	return 2*len(t.layout.Entries) + 1
}

// segment makes the segments as they are needed: the fixed bytes of a pack with many
// small blobs would fill the memory. Even segments of a pack are what stands before a
// member (the padding of the one before, and the header), odd ones are the contents.
func (t *target) segment(i int) segment {
	if t.layout == nil || i%2 == 1 {
		return t.content(i)
	}
	entries := t.layout.Entries
	var s segment
	if i > 0 {
		before := entries[i/2-1]
		s.offset = before.Offset + before.Size
	}
	if i/2 == len(entries) {
		s.size = t.size - s.offset
		s.fixed = make([]byte, s.size)
		return s
	}
	e := entries[i/2]
	header, err := ocitar.Header(e.Member)
	if err != nil {
		panic(err) // the layout was made from the same member
	}
	s.size = e.Offset - s.offset
	s.fixed = append(make([]byte, s.size-ocitar.BlockSize, s.size), header...)
	return s
}

// content is segment for those that are contents; the others are empty.
func (t *target) content(i int) segment {
	if t.layout == nil {
		return segment{size: t.size, digest: t.digest}
	}
	if i%2 == 0 {
		return segment{}
	}
	e := t.layout.Entries[i/2]
	s := segment{offset: e.Offset, size: e.Size}
	switch i / 2 {
	case 0:
		s.fixed = []byte(ocitar.LayoutContent)
	case 1:
		s.fixed = t.index
	default:
		s.digest = t.blobs[i/2-2].Digest
	}
	return s
}

// eachBlob goes through the blobs in their order.
func (t *target) eachBlob(do func(i int, b segment)) {
	if t.layout == nil {
		do(0, t.content(0))
		return
	}
	for i := range t.blobs {
		at := 2*(i+2) + 1
		do(at, t.content(at))
	}
}

// step tells the shelf how far the target is.
func (t *target) step() {
	if t.shelf != nil {
		t.shelf.show(t)
	}
}

// position is how many bytes of the file are there.
func (t *target) position() int64 {
	if t.current == t.segments() {
		return t.size
	}
	return t.segment(t.current).offset + t.inCurrent
}

// part returns the name of the unfinished file. It tells what the content will be, so
// that bytes of one content are never taken for the beginning of another: a pack's name
// says it already.
func (t *target) part() string {
	if t.layout != nil {
		return t.rel + wire.PartSuffix
	}
	return t.rel + "." + t.digest.Encoded()[:12] + wire.PartSuffix
}

func (t *target) dir() string { return path.Dir(t.rel) }

// isHeld reports whether the target is in place. A pack is when its name, its size, its
// members and its index.json are the wanted ones: as it got its name only after every
// byte had been checked, reading it all again is left to Check. A file has no digest in
// its name and is hashed.
func (t *target) isHeld() (bool, error) {
	f, err := hostfile.Open(t.root, t.rel, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer hostfile.CloseRead(f)
	info, err := f.Stat()
	if err != nil || info.Size() != t.size {
		return false, err
	}
	if t.layout == nil {
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return false, err
		}
		if sum(h) != t.digest {
			return false, nil
		}
		if info.Mode().Perm() != t.mode {
			return true, f.Chmod(t.mode)
		}
		return true, nil
	}
	r, err := ocitar.NewReader(f, info.Size())
	if errors.Is(err, ocitar.ErrMalformed) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for i, e := range r.Layout().Entries {
		if i >= len(t.layout.Entries) || e != t.layout.Entries[i] {
			return false, nil
		}
	}
	index, err := r.ReadAll(ocitar.IndexFile, wire.MaxIndex)
	if err != nil {
		return false, err
	}
	return bytes.Equal(index, t.index), nil
}

// resume reads the unfinished file, if there is one, and finds how much of it is right.
// It changes nothing on the disk.
func (t *target) resume() error {
	f, err := hostfile.Open(t.root, t.part(), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	t.file = f
	info, err := f.Stat()
	if err != nil {
		return err
	}
	there := info.Size()
	for ; t.current < t.segments(); t.current++ {
		s := t.segment(t.current)
		n := min(s.size, there-s.offset)
		content := io.NewSectionReader(f, s.offset, max(n, 0))
		if s.digest == "" {
			got := make([]byte, len(s.fixed))
			if n < s.size {
				return nil // a few bytes, written again
			}
			if _, err := io.ReadFull(content, got); err != nil {
				return err
			}
			if !bytes.Equal(got, s.fixed) {
				return nil
			}
			continue
		}
		if n < 0 {
			return nil
		}
		t.hash = sha256.New()
		if _, err := io.Copy(t.hash, content); err != nil {
			return err
		}
		if n < s.size {
			t.inCurrent = n
			return nil
		}
		got := sum(t.hash)
		t.hash = nil
		if got != s.digest {
			return nil
		}
	}
	return nil
}

// begin makes the unfinished file ready to be appended to.
func (t *target) begin() error {
	if t.file == nil {
		f, err := t.root.OpenFile(t.part(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		t.file = f
	}
	return t.cutTo(t.position())
}

// cutTo drops everything after a position and goes on from there.
func (t *target) cutTo(position int64) error {
	if err := t.file.Truncate(position); err != nil {
		return err
	}
	_, err := t.file.Seek(position, io.SeekStart)
	t.flushed = min(t.flushed, position)
	return err
}

// dropBlob forgets what is there of the current blob.
func (t *target) dropBlob() error {
	if t.shelf != nil {
		t.shelf.drop(t)
	}
	t.inCurrent, t.hash = 0, nil
	return t.cutTo(t.position())
}

// write appends bytes of the current blob.
func (t *target) write(b []byte) error {
	if t.hash == nil {
		t.hash = sha256.New()
	}
	n, err := t.file.Write(b)
	if err != nil {
		// What was written of it is right as well, but its length is enough to know that.
		return fmt.Errorf("write %d bytes, of which %d went: %w", len(b), n, err)
	}
	_, _ = t.hash.Write(b) // never fails
	t.inCurrent += int64(n)
	t.step()
	return t.flush()
}

// errContent says that a blob's bytes do not have its digest.
var errContent = errors.New("the bytes do not match the digest")

// endBlob checks the current blob, of which all bytes are there. It is dropped when it
// is not right.
func (t *target) endBlob() error {
	if t.hash == nil {
		t.hash = sha256.New()
	}
	if got, s := sum(t.hash), t.segment(t.current); got != s.digest {
		return errors.Join(fmt.Errorf("%w: expected %s, got %s", errContent, s.digest, got), t.dropBlob())
	}
	t.current, t.inCurrent, t.hash = t.current+1, 0, nil
	t.step()
	return nil
}

// writeFixed appends the segments up to the next blob and returns that, or false at the
// end of the file.
func (t *target) writeFixed() (segment, bool, error) {
	for ; t.current < t.segments(); t.current++ {
		s := t.segment(t.current)
		if s.digest != "" {
			return s, true, nil
		}
		if _, err := t.file.Write(s.fixed); err != nil {
			return s, false, err
		}
	}
	return segment{}, false, nil
}

// finish puts the complete file on the disk and gives it its name.
func (t *target) finish() error {
	if err := t.file.Chmod(t.mode); err != nil {
		return err
	}
	if err := t.file.Sync(); err != nil {
		return err
	}
	if err := t.root.Rename(t.part(), t.rel); err != nil {
		return err
	}
	return hostfile.SyncDir(t.root, t.dir())
}

func (t *target) close() {
	if t.file != nil {
		// Either finish has synced it, or the next run looks at every byte of it.
		_ = t.file.Close()
	}
}
