//go:build linux

package images

import "github.com/opencontainers/go-digest"

// ParseContainers returns names and images in turn.
func ParseContainers(out []byte) ([]string, error) {
	list, err := parseContainers(out)
	var texts []string
	for _, c := range list {
		texts = append(texts, c.name, c.image)
	}
	return texts, err
}

// ParseImageID is what prune reads of a container.
func ParseImageID(out []byte) digest.Digest { return parseImageID(out) }

// ParseRecord returns the releases that are recorded.
func ParseRecord(raw []byte) (current Needs, previous *Needs, err error) {
	r, err := parseRecord(raw)
	if err != nil {
		return Needs{}, nil, err
	}
	return r.Current, r.Previous, nil
}

// ParseSnapshotUsage is what the use of the disk reads from ctr.
func ParseSnapshotUsage(out []byte) (int64, error) { return parseSnapshotUsage(out) }
