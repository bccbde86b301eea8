package prepare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/node/wire"
)

// KeptFile is where a host keeps what was there before boxlift changed it: JSON, which only root can read.
const KeptFile = wire.FilesDir + "/prepared.json"

// keptFormat is the version of its form.
const keptFormat = 1

// errKept is wrapped by errors that say that KeptFile cannot be what boxlift has written.
var errKept = errors.New("it is not what boxlift has written")

// kept is what was there before.
type kept struct {
	Format int `json:"format"`
	// Sysctls has the values from before, and those that boxlift has set.
	Sysctls []keptSysctl `json:"sysctls,omitempty"`
	// Swaps were in use, Fstab are the lines of /etc/fstab that made swap, without their ends.
	Swaps []keptSwap `json:"swaps,omitempty"`
	Fstab []string   `json:"fstab,omitempty"`
	// Firewall are the rules that boxlift has added and that were not there.
	Firewall []string `json:"firewall,omitempty"`
	// Units were enabled, or active, or both.
	Units []keptUnit `json:"units,omitempty"`
	// Unread says that NetworkManager has not read yet what was written for it.
	Unread bool `json:"unread,omitempty"`
}

type keptSysctl struct {
	Name   string `json:"name"`
	Before string `json:"before"`
	Set    string `json:"set"`
}

type keptSwap struct {
	Device   string `json:"device"`
	Priority int    `json:"priority"` // below 0 for one that the kernel has chosen
}

type keptUnit struct {
	Name    string `json:"name"`
	Enabled bool   `json:"enabled,omitempty"`
	Active  bool   `json:"active,omitempty"`
}

// readKept is what the host keeps; nothing where boxlift has changed nothing.
func (o *onHost) readKept(ctx context.Context) (*kept, error) {
	content, isThere, err := machine.Content(ctx, o.Host, KeptFile)
	if err != nil || !isThere {
		return &kept{Format: keptFormat}, err
	}
	k, err := parseKept(content)
	if err != nil {
		err = fault.OnHost(fault.WithHint(fault.Host.Wrap(fmt.Errorf("read %s: %w", KeptFile, err)),
			"see what it says of the host from before boxlift, put that back by hand, and remove the file"), o.Name())
	}
	return k, err
}

// What commands get from the file.
var (
	sysctlName  = lazyregexp.New(`^[a-z0-9_]+(\.[a-zA-Z0-9_-]+)+$`)
	sysctlValue = lazyregexp.New(`^-?[0-9]{1,19}$`)
	unitName    = lazyregexp.New(`^nm-cloud-setup\.(service|timer)$`)
)

// parseKept reads the file strictly: what is in it decides what is done as root.
func parseKept(content []byte) (*kept, error) {
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	k := &kept{}
	if err := d.Decode(k); err != nil {
		return nil, fmt.Errorf("%w: %w", errKept, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more follows", errKept)
	}
	if k.Format != keptFormat {
		return nil, fmt.Errorf("%w: its format is %d, this boxlift knows %d", errKept, k.Format, keptFormat)
	}
	for _, s := range k.Sysctls {
		if !sysctlName.MatchString(s.Name) || !sysctlValue.MatchString(s.Before) || !sysctlValue.MatchString(s.Set) {
			return nil, fmt.Errorf("%w: the sysctl %.50q", errKept, s.Name)
		}
	}
	for _, s := range k.Swaps {
		if !path.IsAbs(s.Device) || strings.ContainsRune(s.Device, 0) {
			return nil, fmt.Errorf("%w: the swap %.50q", errKept, s.Device)
		}
	}
	for _, line := range k.Fstab {
		if strings.ContainsAny(line, "\n\x00") {
			return nil, fmt.Errorf("%w: the line %.50q", errKept, line)
		}
	}
	for _, text := range k.Firewall {
		if _, ok := parseRule(text); !ok {
			return nil, fmt.Errorf("%w: the rule %.50q", errKept, text)
		}
	}
	for _, u := range k.Units {
		if !unitName.MatchString(u.Name) {
			return nil, fmt.Errorf("%w: the unit %.50q", errKept, u.Name)
		}
	}
	return k, nil
}

// keep notes something, before it is changed.
func (o *onHost) keep(ctx context.Context, note func(*kept)) error {
	k, err := o.readKept(ctx)
	if err != nil {
		return err
	}
	before, err := k.encode()
	if err != nil {
		return err
	}
	note(k)
	after, err := k.encode()
	if err != nil || bytes.Equal(before, after) {
		return err
	}
	if _, err := o.root(ctx, "make boxlift's folders", "mkdir", "-p", "-m", "0755", path.Dir(KeptFile)); err != nil {
		return err
	}
	return machine.Write(ctx, o.Host, KeptFile, 0o600, after)
}

func (k *kept) encode() ([]byte, error) {
	content, err := json.MarshalIndent(k, "", "  ")
	return append(content, '\n'), err
}

// sysctl is what is kept of a sysctl.
func (k *kept) sysctl(name string) (keptSysctl, bool) {
	i := slices.IndexFunc(k.Sysctls, func(s keptSysctl) bool { return s.Name == name })
	if i < 0 {
		return keptSysctl{}, false
	}
	return k.Sysctls[i], true
}
