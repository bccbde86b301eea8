package timekeeping

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/packages"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/wire"
)

// KeptFile is where a host keeps what its chrony did before boxlift changed it: JSON, which only root can read.
const KeptFile = wire.FilesDir + "/time.json"

// keptVersion is the form of the file.
const keptVersion = 1

// kept is what the host's chrony did before. One that boxlift has installed did nothing.
type kept struct {
	Version int  `json:"version"`           // keptVersion
	Enabled bool `json:"enabled,omitempty"` // it started with the host
	Active  bool `json:"active,omitempty"`  // it ran
}

// parseKept reads the file strictly. A host may have anything in its place.
func parseKept(content []byte) (kept, error) {
	var k kept
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	err := d.Decode(&k)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more follows")
		}
	}
	if err == nil && k.Version != keptVersion {
		err = fmt.Errorf("version %d, and %d can be read", k.Version, keptVersion)
	}
	if err != nil {
		return kept{}, fault.WithHint(fmt.Errorf("%w: %s, which says what chrony did before boxlift, cannot be "+
			"read: %s", ErrClock, KeptFile, printable.Short(err.Error(), 200)), "remove it: boxlift then takes chrony "+
			"for one that did not run before")
	}
	return k, nil
}

// readKept is what the host keeps, and whether there is anything.
func readKept(ctx context.Context, h machine.Host) (kept, bool, error) {
	content, isThere, err := machine.Content(ctx, h, KeptFile)
	if err != nil || !isThere {
		return kept{}, false, err
	}
	k, err := parseKept(content)
	if err != nil {
		err = fault.OnHost(err, h.Name())
	}
	return k, true, err
}

// note notes what chrony does, before boxlift changes it for the first time.
func note(ctx context.Context, h machine.Host) error {
	if _, isThere, err := readKept(ctx, h); isThere || err != nil {
		return err
	}
	k := kept{Version: keptVersion}
	placed, err := packages.Placed(ctx, h)
	if err != nil {
		return err
	}
	changed, err := machine.FirstThere(ctx, h, "look for chrony's files", ConfigurationFile, UnitFile)
	if err != nil {
		return err
	}
	// What runs by a file of boxlift's, of which it is not known any more what was before, is boxlift's.
	if changed == "" && !slices.Contains(placed, Package) {
		state, err := machine.FindService(ctx, h, service)
		if err != nil {
			return err
		}
		k.Enabled, k.Active = state.Enabled, state.Active == "active"
	}
	content, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if _, err := machine.Root(ctx, h, "make boxlift's folders", "mkdir", "-p", "-m", "0755",
		path.Dir(KeptFile)); err != nil {
		return err
	}
	return machine.Write(ctx, h, KeptFile, 0o600, append(content, '\n'))
}

// TakeAway has a host that leaves, or whose time boxlift is not to keep any more, do with chrony what it did before.
func (k *Keeper) TakeAway(h machine.Host) run.Step {
	return run.Step{
		ID: "give-time-back", Title: "put back what was done with the host's time",
		Needed: func(ctx context.Context) (string, error) {
			name, err := machine.FirstThere(ctx, h, "look for chrony's files", ConfigurationFile, UnitFile, KeptFile)
			if err != nil || name == "" {
				return "", err
			}
			return name + " is there, and the host does not keep time with boxlift any more", nil
		},
		Run: func(ctx context.Context) error { return giveBack(ctx, h) },
	}
}

// giveBack removes boxlift's files and has chrony do what it did before. What says what that was goes last.
func giveBack(ctx context.Context, h machine.Host) error {
	before, _, err := readKept(ctx, h)
	if err != nil {
		return err
	}
	const remove = `set -e
rm -f "$1" "$1.boxlift-new" "$2"
folder=${2%/*}
[ ! -d "$folder" ] || rmdir --ignore-fail-on-non-empty "$folder"
systemctl daemon-reload`
	if _, err := machine.Root(ctx, h, "remove chrony's files", "/bin/sh", "-c", remove, "sh", ConfigurationFile,
		UnitFile); err != nil {
		return err
	}
	state, err := machine.FindService(ctx, h, service)
	if err != nil {
		return err
	}
	if state.Load != "not-found" {
		const script = `set -e
if [ "$2" = true ]; then systemctl enable --quiet "$1"; else systemctl disable --quiet "$1"; fi
if [ "$3" = true ]; then systemctl restart "$1"; else systemctl stop "$1"; fi`
		if _, err := machine.Root(ctx, h, "put chrony back", "/bin/sh", "-c", script, "sh", service+".service",
			strconv.FormatBool(before.Enabled), strconv.FormatBool(before.Active)); err != nil {
			return err
		}
	}
	_, err = machine.Root(ctx, h, "forget what chrony did before", "rm", "-f", startedFile, KeptFile)
	return err
}
