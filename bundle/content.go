package bundle

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/opencontainers/go-digest"
)

// Content returns the bytes of a blob, from beginning to end. Where the blob is not what
// its digest and size say, reading ends with an error that wraps [ErrInvalid] rather than
// with io.EOF: nothing may be done with the bytes before that.
func (r *Reader) Content(d digest.Digest, size int64) (io.Reader, error) {
	blob, err := r.Blob(d)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", r.path, err)
	}
	return &content{bundle: r.path, blob: blob, want: d, left: size, hash: sha256.New()}, nil
}

// content compares a blob with its digest while it is read.
type content struct {
	bundle string
	blob   io.Reader
	want   digest.Digest
	left   int64
	hash   hash.Hash
}

func (c *content) Read(p []byte) (int, error) {
	n, err := c.blob.Read(p)
	_, _ = c.hash.Write(p[:n]) // never fails
	if c.left -= int64(n); c.left < 0 {
		return 0, fmt.Errorf("bundle %s: %w: blob %s is larger than its descriptor says", c.bundle, ErrInvalid, c.want)
	}
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	if got := digest.NewDigest(digest.SHA256, c.hash); got != c.want || c.left != 0 {
		return n, fmt.Errorf("bundle %s: %w: blob %s holds other bytes, with the digest %s", c.bundle, ErrInvalid, c.want, got)
	}
	return n, err
}
