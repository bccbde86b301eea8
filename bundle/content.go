package bundle

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/pieces"
)

// Content returns the bytes of a blob, from beginning to end. Where the blob is not what
// its digest and size say, reading fails with an error that wraps [ErrInvalid] in the place
// of the last bytes: nothing may be done with those before. So whoever has read size bytes
// without an error has read the blob. It fails with a [*MissingError] when a delta leaves
// the blob out.
//
// What was proven by another read, such as that of [Reader.Verify], says nothing about this
// one, as the file may have changed since. So all that gives bytes of a blob proves them in
// the same read: this, [Reader.ContentFrom], and what decodes a blob, as [Reader.ReadJSON]
// does. The exceptions are [Reader.Unproven] and [Reader.Whole], for those who prove
// themselves what they take; who may call them is in TestUnprovenReads.
func (r *Reader) Content(d digest.Digest, size int64) (io.Reader, error) {
	c, err := r.open(d)
	if err != nil {
		return nil, err
	}
	if c.left != size {
		return nil, fmt.Errorf("bundle %s: %w: blob %s has %d bytes, its descriptor says %d",
			r.path, ErrInvalid, d, c.left, size)
	}
	return c, nil
}

// ContentFrom is Content without the first offset bytes, for who has them: they are read and
// count for the proof.
func (r *Reader) ContentFrom(d digest.Digest, offset int64) (io.Reader, error) {
	c, err := r.open(d)
	if err != nil {
		return nil, err
	}
	buffer := pieces.Take()
	defer pieces.Give(buffer)
	// The buffer is larger than that of io.Discard.
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(c, offset), *buffer)
	if err != nil {
		return nil, err
	}
	if n < offset {
		return nil, fmt.Errorf("bundle %s: %w: blob %s has %d bytes and no byte %d", r.path, ErrInvalid, d, n, offset)
	}
	return c, nil
}

func (r *Reader) open(d digest.Digest) (*content, error) {
	e, ok := r.tar.Blob(d)
	if !ok {
		return nil, fmt.Errorf("bundle %s: %w: it has no blob %s", r.path, ErrInvalid, d)
	}
	blob, err := r.find(e.Member)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", r.path, err)
	}
	return &content{bundle: r.path, blob: blob, want: d, left: blob.Size(), hash: sha256.New()}, nil
}

// content compares a blob with its digest while it is read.
type content struct {
	bundle string
	blob   io.Reader
	want   digest.Digest
	left   int64
	hash   hash.Hash
	err    error // what all further reads return
}

func (c *content) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.blob.Read(p[:min(int64(len(p)), c.left)])
	_, _ = c.hash.Write(p[:n]) // never fails
	c.left -= int64(n)
	switch {
	case c.left == 0:
		c.err = io.EOF
		if got := digest.NewDigest(digest.SHA256, c.hash); got != c.want {
			c.err = fmt.Errorf("bundle %s: %w: blob %s holds other bytes, with the digest %s", c.bundle, ErrInvalid,
				c.want, got)
		}
		if n > 0 && errors.Is(c.err, io.EOF) {
			return n, nil
		}
		return 0, c.err
	case errors.Is(err, io.EOF):
		c.err = fmt.Errorf("bundle %s: %w: blob %s ends %d bytes too early", c.bundle, ErrInvalid, c.want, c.left)
		return 0, c.err
	case err != nil:
		c.err = fmt.Errorf("bundle %s: read blob %s: %w", c.bundle, c.want, err)
		return 0, c.err
	}
	return n, nil
}
