package survey

import (
	"errors"
	"path"
	"slices"

	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Unseen are the findings on hosts that could not be looked at: nobody can judge them, but
// they are as far from being installed as those that were judged.
func (sv *Surveyor) Unseen() []preflight.Finding {
	var list []preflight.Finding
	for _, h := range sv.Site.Hosts {
		var judged findingsError
		if h.Err != nil && !errors.As(h.Err, &judged) {
			list = append(list, sv.unseenHost(h))
		}
	}
	return list
}

func (sv *Surveyor) unseenHost(h *site.Host) preflight.Finding {
	f := preflight.Finding{
		Host: h.Name, Severity: preflight.Error, Found: printable.Text(fault.WithoutHost(h.Err)),
		Check: preflight.CheckFacts, Needed: "a host that boxlift can log in to, and that says what it is like",
		Hint: "mend that, and run `boxlift preflight` again",
	}
	var notRun *site.NotRunError
	var taken *takenError
	var copied *copiedError
	platforms := sv.Site.Contents.Platforms()
	switch {
	case errors.As(h.Err, &taken):
		f.Check, f.Needed = preflight.CheckHostname, "a name of its own for every node"
	case errors.As(h.Err, &copied):
		f.Check, f.Needed = preflight.CheckMachineID, "an identity of its own for every host"
	case errors.As(h.Err, &notRun):
		f.Check, f.Needed = preflight.CheckNoExec, "to run programs from "+path.Dir(path.Dir(site.HelperPath))
	case errors.Is(h.Err, remote.ErrNotRoot), errors.Is(h.Err, remote.ErrSudo), errors.Is(h.Err,
		remote.ErrSudoPassword):
		f.Check, f.Needed = preflight.CheckRoot, "root, directly or through sudo"
	case h.Hostname != "" && !slices.Contains(platforms, h.Platform): // it has said who it is
		f.Check, f.Needed = preflight.CheckPlatform, "one of the platforms that the bundle carries: "+
			site.PlatformsText(platforms)
		f.Hint = "build a bundle for the host's platform, if boxlift has it, or choose another host"
	}
	if hints := fault.Hints(h.Err); len(hints) > 0 {
		f.Hint = hints[0]
	}
	return f
}
