package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
)

// DecodeStrictly reads one JSON document of at most limit bytes, and refuses unknown fields
// and whatever follows the document.
func DecodeStrictly(document []byte, limit int, to any) error {
	if len(document) > limit {
		return fmt.Errorf("it has %d bytes, more than %d", len(document), limit)
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the document")
	}
	return nil
}

// ValidateDigest reports what is wrong with a digest, which must be a sha256.
func ValidateDigest(d digest.Digest) error {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("%.100q is not a sha256 digest", string(d))
	}
	return nil
}
