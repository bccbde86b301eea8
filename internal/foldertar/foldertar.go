// Package foldertar keeps the files of a folder in a tar, and brings them back.
//
// Contract: the first entry is "./", the folder itself; whatever follows lies in it: folders, regular files and
// symbolic links, each folder before what is in it, and right before that (depth first). Owners and groups are numbers,
// modes have their setuid, setgid and sticky bits, times are to the nanosecond. A file with several names is there once
// for each, one with holes without them; extended attributes and ACLs are not there, nor are pipes, sockets and
// devices, nor lost+found and [Staging] at the top.
//
// Files are read one after the other while others may write to them, each as long as it was when it was opened: it is
// no copy of one moment. A file that became shorter while it was read ends the copy ([ErrChanged]).
//
// A tar that is read may come from anywhere: whatever is not as above is refused ([ErrInvalid]). No entry lies outside
// the folder, nothing is written through a link, and memory is bounded by how deep folders are.
package foldertar

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Staging is the folder in a folder that what is brought back lies in until all of it is there and proven.
const Staging = ".boxlift-restore"

// lostAndFound is the file system's own.
const lostAndFound = "lost+found"

// Bounds of a tar.
const (
	maxEntries = 1 << 22
	maxDepth   = 128
	maxPath    = 4096
	maxPart    = 255
	modeBits   = 0o7777
)

var (
	// ErrInvalid is wrapped by errors about tars that are not in this form.
	ErrInvalid = fault.NewKind(fault.Input, "not the files of a folder")
	// ErrChanged says that a file became shorter while it was read.
	ErrChanged = fault.NewKind(fault.Host, "it became shorter while it was read")
)

// Report counts what a tar has.
type Report struct {
	// Entries are folders, files and links, the folder itself among them; Bytes is what the files have in them.
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// isReserved reports whether a name at the top is left alone.
func isReserved(name string) bool { return name == Staging || name == lostAndFound }

// Check reads a tar to its end, and refuses one that could not be brought back.
func Check(ctx context.Context, r io.Reader) (Report, error) {
	return read(&interruptible{ctx, r}, func(e entry) error {
		_, err := io.Copy(io.Discard, e.content)
		return err
	})
}

// entry is one entry of a tar. name is "." for the folder itself, and without a slash at its end.
type entry struct {
	*tar.Header
	name    string
	content io.Reader
}

// read goes through a tar, whose entries it has checked when it passes them on.
func read(from io.Reader, use func(entry) error) (report Report, err error) {
	r := &ending{Reader: from}
	t := tar.NewReader(r)
	var within []string // the folders that the last entry is in, or is
	for {
		header, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return report, broken(err)
		}
		if report.Entries++; report.Entries > maxEntries {
			return report, invalid("it has more than %d entries", maxEntries)
		}
		e := entry{Header: header, name: strings.TrimSuffix(header.Name, "/"), content: t}
		if err := e.check(); err != nil {
			return report, err
		}
		if within, err = e.descend(within); err != nil {
			return report, err
		}
		report.Bytes += header.Size
		if err := use(e); err != nil {
			return report, broken(err)
		}
	}
	if report.Entries == 0 {
		return report, invalid("it is empty")
	}
	if n, err := io.Copy(io.Discard, r); err != nil || n > 0 {
		return report, errors.Join(err, invalid("something follows its end"))
	}
	if r.zeros < endSize || r.size%(endSize/2) != 0 {
		return report, invalid("it ends before its end")
	}
	return report, nil
}

// endSize are the bytes that end a tar, two blocks of zeros; archive/tar does not miss them.
const endSize = 1024

// ending notes how long a tar is, and how many zeros it ends with.
type ending struct {
	io.Reader
	size, zeros int64
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	e.size += int64(n)
	if rest := bytes.TrimRight(p[:n], "\x00"); len(rest) > 0 {
		e.zeros = int64(n - len(rest))
	} else {
		e.zeros += int64(n)
	}
	return n, err
}

// broken tells a tar that is none from a source that fails.
func broken(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) ||
		errors.Is(err, tar.ErrInsecurePath) {
		return invalid("it cannot be read: %w", err)
	}
	return err
}

// check refuses an entry that is none of a folder.
func (e *entry) check() error {
	if err := checkName(e.name, e.Header.Name); err != nil {
		return err
	}
	isFolder := strings.HasSuffix(e.Header.Name, "/")
	switch {
	case e.Typeflag == tar.TypeDir && isFolder && e.Size == 0 && e.Linkname == "":
	case e.Typeflag == tar.TypeReg && !isFolder && e.Size >= 0 && e.Linkname == "":
	case e.Typeflag == tar.TypeSymlink && !isFolder && e.Size == 0 && e.Linkname != "" && len(e.Linkname) < maxPath &&
		!strings.ContainsRune(e.Linkname, 0):
	default:
		return invalid("%.100q is neither a folder nor a file nor a symbolic link", e.Header.Name)
	}
	if e.Mode&^modeBits != 0 || !isID(e.Uid) || !isID(e.Gid) {
		return invalid("%.100q has the mode %o and belongs to %d:%d", e.Header.Name, e.Mode, e.Uid, e.Gid)
	}
	for key := range e.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse") {
			return invalid("%.100q is stored with holes", e.Header.Name)
		}
	}
	return nil
}

// isID reports whether a number can be that of a user or group: the largest one means "as it is" (chown(2)).
func isID(n int) bool { return n >= 0 && int64(n) < math.MaxUint32 }

// checkName refuses names that lead elsewhere, or that no file can have.
func checkName(name, full string) error {
	if name == "." && full == "./" {
		return nil
	}
	if len(name) >= maxPath || strings.Count(name, "/") >= maxDepth {
		return invalid("%.100q is too long, or too deep", full)
	}
	for i, part := range strings.Split(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxPart || strings.ContainsRune(part, 0) ||
			i == 0 && isReserved(part) {
			return invalid("%.100q is no name of a file", full)
		}
	}
	return nil
}

// descend makes sure that an entry is in a folder that is under way, and tells which ones are after it.
func (e *entry) descend(within []string) ([]string, error) {
	if (e.name == ".") != (within == nil) {
		return nil, invalid("%.100q comes at the wrong place: the folder itself comes first, and once", e.Header.Name)
	}
	if within == nil {
		return []string{"."}, nil
	}
	in := "."
	if i := strings.LastIndexByte(e.name, '/'); i >= 0 {
		in = e.name[:i]
	}
	for within[len(within)-1] != in {
		if within = within[:len(within)-1]; len(within) == 0 {
			return nil, invalid("%.100q is in no folder that comes right before it", e.Header.Name)
		}
	}
	if e.Typeflag == tar.TypeDir {
		within = append(within, e.name)
	}
	return within, nil
}

// interruptible ends with its context.
type interruptible struct {
	ctx context.Context
	io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, context.Cause(i.ctx)
	}
	return i.Reader.Read(p)
}
