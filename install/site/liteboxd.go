package site

import (
	"fmt"
	"io"

	"github.com/liteboxd/boxlift/bundle"
)

// ReadFile reads a small file of the bundle, proven by its digest.
func (s *Site) ReadFile(f bundle.File, most int64) ([]byte, error) {
	if f.Size > most {
		return nil, fmt.Errorf("%w: the bundle's %s has %d bytes, %d is the most", ErrConfig, f.Name, f.Size, most)
	}
	content, err := s.Bundle.Content(f.Digest, f.Size)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(content)
}

// Login is the first user of LiteBoxd.
type Login struct {
	Username string `json:"username"`
	Password string `json:"password"`
}
