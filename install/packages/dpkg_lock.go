package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/install/apt"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
)

// othersTime is how long others that work with the host's packages are waited for.
const othersTime = 10 * time.Minute

// awaitOthers waits until nobody else works with the host's packages.
func (r *Room) awaitOthers(ctx context.Context, h machine.Host) error {
	var last error
	held := func(ctx context.Context) (bool, error) {
		who, err := holders(ctx, h)
		switch {
		case ctx.Err() != nil && last != nil: // it is the end of the wait that err tells of
			return false, last
		case err != nil || who == "":
			return true, err
		}
		last = fault.OnHost(&heldError{who}, h.Name())
		return false, last
	}
	if done, err := held(ctx); done {
		return err
	}
	limit := min(r.Site.Config.Runtime.CommandTimeout, othersTime)
	return r.Site.WaitingFor(ctx, limit, "wait for others that work with the packages of "+h.Name(),
		func(ctx context.Context) error { return site.Poll(ctx, held) })
}

// finish finishes what dpkg was interrupted with. Packages of boxlift's own that cannot be finished, since something
// that they depend on is not there yet, are left to the installation.
func (r *Room) finish(ctx context.Context, h machine.Host) error {
	if err := r.awaitOthers(ctx, h); err != nil {
		return err
	}
	failed := r.Site.Meter.Wait(func() error { return locked(ctx, h, "dpkg --configure -a", finishScript) })
	var exit *machine.ExitError
	if failed != nil && !errors.As(failed, &exit) {
		return failed
	}
	seen, err := look(ctx, h)
	if err != nil {
		return err
	}
	mark, err := readMark(ctx, h)
	if err != nil {
		return err
	}
	own := mark.names()
	var left []string
	for _, p := range seen.Unfinished() {
		if !slices.Contains(own, p.Name) {
			left = append(left, p.Name)
		}
	}
	switch {
	case len(left) > 0:
		err := fmt.Errorf("%w: dpkg cannot finish what it was interrupted with, which is %s", ErrPackages, apt.List(left))
		if failed != nil {
			err = fmt.Errorf("%w: %w", err, failed)
		}
		return fault.WithHint(err, "these are not boxlift's: mend them on the host (`dpkg --audit` and `dpkg --configure "+
			"-a` say what is wrong); then the same command goes on")
	case seen.Journal && failed != nil:
		return explain(failed)
	}
	return nil
}

func hexOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
