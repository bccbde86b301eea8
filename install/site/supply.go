package site

import (
	"context"
	"fmt"

	"github.com/liteboxd/boxlift/bundle"
	machine "github.com/liteboxd/boxlift/install/host"
)

// HasHelper tells whether the helper on the host is this one.
func (h *Host) HasHelper(ctx context.Context, file bundle.File) (bool, error) {
	digests, err := machine.Digests(ctx, h.Conn, HelperPath)
	if err != nil {
		return false, fmt.Errorf("look for boxlift-node: %w", err)
	}
	return digests[HelperPath] == file.Digest.Encoded(), nil
}
