// Package ocitar reads and lays out OCI image layouts in plain tar files, in the
// one form that boxlift writes.
//
// The form is canonical: from the names and sizes of the members every byte that is
// not content follows, so that
//
//   - the offset of each member is known before a byte of it is there, which lets
//     writers fill in members in any order ([NewLayout]);
//   - a reader finds all members by hopping from header to header, and any changed,
//     added or missing byte outside the contents is found in doing so ([NewReader]).
//
// Members come in this order: oci-layout, index.json, then both or neither of
// index.json.sigstore.json and index.json.sig, then trust.json or not, then
// blobs/sha256/<hex> without repetition. Headers are ustar with mode 0644, uid, gid and mtime 0 and no names; a
// member of 8 GiB or more has the GNU form of the size field. Contents are padded with
// zeros to 512 bytes; two blocks of zeros end the file, and nothing follows them.
//
// The package checks form, not content: whether a blob's bytes match its digest is for
// its callers to find out, before they use them.
package ocitar

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Names of the members that are not blobs.
const (
	LayoutFile         = "oci-layout"
	IndexFile          = "index.json"
	SigstoreBundleFile = "index.json.sigstore.json"
	SignatureFile      = "index.json.sig"
	TrustFile          = "trust.json"
)

// LayoutContent is the whole content of the oci-layout member (OCI image-spec 1.1,
// image-layout.md).
const LayoutContent = `{"imageLayoutVersion":"1.0.0"}`

// BlockSize is the unit of tar files, in bytes.
const BlockSize = 512

// TrailerSize is the length of the two blocks of zeros that end a file.
const TrailerSize = 2 * BlockSize

// MaxMembers bounds how many members a reader accepts.
const MaxMembers = 1 << 17

const (
	blobPrefix = "blobs/sha256/"
	// maxUSTARSize is the largest size that eleven octal digits hold.
	maxUSTARSize = 1<<33 - 1
	// maxSize keeps sums of sizes far from overflow: 8 PiB.
	maxSize = 1 << 53
)

// ErrMalformed is wrapped by every error that says that a file is not in the form that
// this package describes.
var ErrMalformed = fault.NewKind(fault.Bundle, "malformed bundle file")

// Member is the name and the size in bytes of one file in the tar.
type Member struct {
	Name string
	Size int64
}

// Blob returns the member for a blob.
func Blob(d digest.Digest, size int64) Member {
	return Member{Name: BlobName(d), Size: size}
}

// BlobName returns the name of the member that holds the blob with digest d, which
// must be a valid sha256 digest.
func BlobName(d digest.Digest) string { return blobPrefix + d.Encoded() }

// Digest returns the digest that the name of m states, or "" when m is not a blob.
func (m Member) Digest() digest.Digest {
	encoded, ok := strings.CutPrefix(m.Name, blobPrefix)
	if !ok {
		return ""
	}
	return digest.NewDigestFromEncoded(digest.SHA256, encoded)
}

// Entry is a member at its place: Offset is that of its first byte of content, which
// its header precedes.
type Entry struct {
	Member
	Offset int64
}

// HeaderOffset returns where the entry's header starts.
func (e Entry) HeaderOffset() int64 { return e.Offset - BlockSize }

// End returns where the entry's padded content ends and the next header starts.
func (e Entry) End() int64 { return e.Offset + e.Size + padding(e.Size) }

// Layout is a sequence of members with their places in the file.
type Layout struct {
	// Entries are in the order of the file.
	Entries []Entry
	// Size is the length of the whole file in bytes, trailer included.
	Size int64
}

// NewLayout gives each member its place. It refuses members that a reader would
// refuse.
func NewLayout(members []Member) (*Layout, error) {
	var order orderCheck
	l := &Layout{Entries: make([]Entry, 0, len(members))}
	end := int64(0)
	for _, m := range members {
		if err := order.next(m); err != nil {
			return nil, fmt.Errorf("lay out %s: %w", m.Name, err)
		}
		e := Entry{Member: m, Offset: end + BlockSize}
		l.Entries = append(l.Entries, e)
		end = e.End()
		if end > maxSize {
			return nil, fmt.Errorf("lay out %s: %w: larger than %d bytes", m.Name, ErrMalformed, int64(maxSize))
		}
	}
	if err := order.end(); err != nil {
		return nil, err
	}
	l.Size = end + TrailerSize
	return l, nil
}

// Header returns the one header that a member may have.
func Header(m Member) ([]byte, error) {
	h := tar.Header{
		Typeflag: tar.TypeReg,
		Name:     m.Name,
		Size:     m.Size,
		Mode:     0o644,
		ModTime:  time.Unix(0, 0),
		Format:   tar.FormatUSTAR,
	}
	if m.Size > maxUSTARSize {
		h.Format = tar.FormatGNU
	}
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		return nil, fmt.Errorf("make the tar header of %s: %w", m.Name, err)
	}
	if b.Len() != BlockSize {
		return nil, fmt.Errorf("make the tar header of %s: it does not fit into one block", m.Name)
	}
	return b.Bytes(), nil
}

func padding(size int64) int64 { return -size & (BlockSize - 1) }

// orderCheck accepts members one by one as long as their names, sizes and order are
// those of the package's form.
type orderCheck struct {
	count int
	last  string
	blobs map[string]struct{}
}

func (c *orderCheck) next(m Member) error {
	if m.Size < 0 || m.Size > maxSize {
		return fmt.Errorf("%w: its size of %d bytes is out of bounds", ErrMalformed, m.Size)
	}
	if c.count++; c.count > MaxMembers {
		return fmt.Errorf("%w: more than %d members", ErrMalformed, MaxMembers)
	}
	wanted := ""
	switch c.last {
	case "":
		wanted = LayoutFile
	case LayoutFile:
		wanted = IndexFile
	case SigstoreBundleFile:
		wanted = SignatureFile
	}
	if wanted != "" && m.Name != wanted {
		return fmt.Errorf("%w: expected the member %s here", ErrMalformed, wanted)
	}
	isSignature := c.last == IndexFile && m.Name == SigstoreBundleFile
	isTrust := (c.last == IndexFile || c.last == SignatureFile) && m.Name == TrustFile
	if wanted == "" && !isSignature && !isTrust {
		if err := c.blob(m.Name); err != nil {
			return err
		}
	}
	c.last = m.Name
	return nil
}

func (c *orderCheck) blob(name string) error {
	if name == TrustFile {
		return fmt.Errorf("%w: the member is there twice, or behind others: it stands once, before the blobs", ErrMalformed)
	}
	encoded, ok := strings.CutPrefix(name, blobPrefix)
	if !ok || digest.SHA256.Validate(encoded) != nil {
		return fmt.Errorf("%w: expected a member named %s<64 hexadecimal digits>", ErrMalformed, blobPrefix)
	}
	if _, ok := c.blobs[name]; ok {
		return fmt.Errorf("%w: the member is there twice", ErrMalformed)
	}
	if c.blobs == nil {
		c.blobs = make(map[string]struct{})
	}
	c.blobs[name] = struct{}{}
	return nil
}

func (c *orderCheck) end() error {
	if c.count < 2 || c.last == SigstoreBundleFile {
		return fmt.Errorf("%w: it ends too early, after %d members", ErrMalformed, c.count)
	}
	return nil
}
