//go:build linux

package images

import "github.com/opencontainers/go-digest"

// ParseImages is what the check of images reads from ctr.
func ParseImages(out []byte) (map[string]digest.Digest, error) { return parseImages(out) }

// ParseVerified returns the blobs that are remembered.
func ParseVerified(raw []byte) ([]digest.Digest, error) {
	v, err := parseVerified(raw)
	if err != nil {
		return nil, err
	}
	blobs := []digest.Digest{}
	for d := range v.Blobs {
		blobs = append(blobs, d)
	}
	return blobs, nil
}

// StartTicks is what Arrived reads from /proc.
func StartTicks(stat string) (int64, error) { return startTicks(stat) }
