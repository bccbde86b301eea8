package run

import (
	"context"
	"errors"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/site"
)

// CheckHelper makes sure that the helper is there: this command puts nothing on hosts.
func (en *Engine) CheckHelper(ctx context.Context, h *site.Host) error {
	_, err := h.Root(ctx, "look for boxlift-node", "test", "-x", site.HelperPath)
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == 1 {
		return errNoHelper
	}
	return err
}

var errNoHelper = errors.New("there is no " + site.HelperPath + ": boxlift install brings it")
