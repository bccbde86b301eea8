package remote

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"github.com/liteboxd/boxlift/install/host"
)

// Get copies a file's content to w. A failure on the host is an *[host.ExitError].
//
// Get does not return while a Write to w is going on.
func (h *Host) Get(ctx context.Context, o host.GetOptions, w io.Writer) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("get %s: %w", o.Path, err)
		}
	}()
	if err := o.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, err := h.begin(ctx, host.Command{Title: "read file", Args: []string{"cat", o.Path}, Root: o.Root})
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err = io.Copy(io.MultiWriter(w, sum), p.stdout); err != nil {
		cancel(err)
	}
	if waitErr := p.wait(); waitErr != nil {
		return waitErr
	}
	if err != nil {
		return err
	}
	if err := o.Prove(sum.Sum(nil)); err != nil {
		return fmt.Errorf("%s: %w", h.Name(), err)
	}
	return nil
}
