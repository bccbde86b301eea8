package packages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/liteboxd/boxlift/install/apt"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// mark is which packages boxlift has put on a host, as MarkFile has it.
type mark struct {
	Version  int      `json:"version"` // markVersion
	Packages []marked `json:"packages"`
	// Renewed are packages that apt had as automatically installed, and that apt-get was asked for by name to get newer
	// versions of them: that may make them manually installed ones, until boxlift has taken it back.
	Renewed []string `json:"renewed,omitempty"`
	// Removed are packages of the host's own that went because those of boxlift's conflict with them.
	Removed []string `json:"removed,omitempty"`
}

// markVersion is the form of the file.
const markVersion = 1

// marked is one package.
type marked struct {
	Name         string `json:"name"`
	Architecture string `json:"architecture"`
	// Automatic tells that it came because another one needs it.
	Automatic bool `json:"automatic,omitempty"`
	// KeepsConfig tells that configuration of the package was there before, which stays.
	KeepsConfig bool `json:"keepsConfig,omitempty"`
}

func (m mark) names() []string {
	names := make([]string, 0, len(m.Packages))
	for _, p := range m.Packages {
		names = append(names, p.Name)
	}
	return names
}

// parseMark reads the file. A host may have anything in its place.
func parseMark(text string) (mark, error) {
	if text == "" {
		return mark{Version: markVersion}, nil
	}
	var m mark
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	err := d.Decode(&m)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more follows")
		}
	}
	switch {
	case err != nil:
	case m.Version != markVersion:
		err = fmt.Errorf("version %d, and %d can be read", m.Version, markVersion)
	default:
		for _, p := range m.Packages {
			if !apt.IsName(p.Name) || !apt.IsArchitecture(p.Architecture) {
				err = fmt.Errorf("a package %q of %q", printable.Short(p.Name, 40), printable.Short(p.Architecture, 40))
			}
		}
		for _, name := range slices.Concat(m.Renewed, m.Removed) {
			if !apt.IsName(name) {
				err = fmt.Errorf("a renewed or removed package %q", printable.Short(name, 40))
			}
		}
	}
	if err != nil {
		return mark{}, fault.WithHint(fmt.Errorf("%w: %s, which says what boxlift has installed, cannot be read: %s",
			ErrPackages, MarkFile, printable.Short(err.Error(), 200)), "if it was damaged, move it away: boxlift then takes "+
			"all packages of the host for the host's own, and removes none of them")
	}
	return m, nil
}

func readMark(ctx context.Context, h machine.Host) (mark, error) {
	text, err := machine.Read(ctx, h, MarkFile)
	if err != nil {
		return mark{}, err
	}
	return parseMark(text)
}

func (m mark) write(ctx context.Context, h machine.Host) error {
	slices.SortFunc(m.Packages, func(a, b marked) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Architecture, b.Architecture))
	})
	content, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return machine.Write(ctx, h, MarkFile, 0o600, append(content, '\n'))
}

// noteAdded notes, before it happens, which packages come to a host, which ones of the host's go for them, and which of
// those that came because another one needed them are asked for by name now: apt-get makes them manually installed ones,
// which nobody else has done then.
// manual are the packages that apt has as asked for by name before.
func (m mark) noteAdded(ctx context.Context, h machine.Host, o apt.Outlook, manual map[string]bool) (mark, error) {
	lacking := o.Lacking()
	isChanged := false
	for i, p := range m.Packages {
		if p.Automatic && slices.Contains(o.Wanted, p.Name) && slices.Contains(lacking, p.Name) {
			m.Packages[i].Automatic, isChanged = false, true
		}
	}
	for _, name := range lacking {
		if !slices.Contains(o.Wanted, name) && !manual[name] && !slices.Contains(m.Renewed, name) {
			m.Renewed, isChanged = append(m.Renewed, name), true
		}
	}
	for _, c := range o.Trial.Added() {
		p := o.Host.Find(c.Name)
		same := func(p marked) bool { return p.Name == c.Name }
		if p.There() || slices.ContainsFunc(m.Packages, same) {
			continue
		}
		isChanged = true
		m.Packages = append(m.Packages, marked{Name: c.Name, Architecture: c.Architecture,
			Automatic: !slices.Contains(o.Wanted, c.Name), KeepsConfig: p.State == apt.ConfigFiles})
	}
	for _, name := range o.Trial.Remove {
		if !slices.Contains(m.Removed, name) {
			m.Removed, isChanged = append(m.Removed, name), true
		}
	}
	if !isChanged {
		return m, nil
	}
	return m, m.write(ctx, h)
}
