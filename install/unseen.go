package install

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/internal/printable"
)

// unseen are the findings on hosts that could not be looked at: nobody can judge them, but
// they are as far from being installed as those that were judged.
func (sv *Surveyor) unseen() []preflight.Finding {
	var list []preflight.Finding
	for _, h := range sv.site.hosts {
		var judged findingsError
		if h.err != nil && !errors.As(h.err, &judged) {
			list = append(list, sv.unseenHost(h))
		}
	}
	return list
}

func (sv *Surveyor) unseenHost(h *host) preflight.Finding {
	f := preflight.Finding{
		Host: h.name, Severity: preflight.Error, Found: printable.Text(strings.TrimPrefix(h.err.Error(), h.name+": ")),
		Check: preflight.CheckFacts, Needed: "a host that boxlift can log in to, and that says what it is like",
		Hint: "mend that, and run `boxlift preflight` again",
	}
	var notRun *notRunError
	var taken *takenError
	var copied *copiedError
	platforms := sv.site.contents.Platforms()
	switch {
	case errors.As(h.err, &taken):
		f.Check, f.Needed = preflight.CheckHostname, "a name of its own for every node"
	case errors.As(h.err, &copied):
		f.Check, f.Needed = preflight.CheckMachineID, "an identity of its own for every host"
	case errors.As(h.err, &notRun):
		f.Check, f.Needed = preflight.CheckNoExec, "to run programs from "+path.Dir(path.Dir(helperPath))
	case errors.Is(h.err, remote.ErrNotRoot), errors.Is(h.err, remote.ErrSudo), errors.Is(h.err, remote.ErrSudoPassword):
		f.Check, f.Needed = preflight.CheckRoot, "root, directly or through sudo"
	case h.hostname != "" && !slices.Contains(platforms, h.platform): // it has said who it is
		f.Check, f.Needed = preflight.CheckPlatform, "one of the platforms that the bundle carries: "+platformsText(platforms)
		f.Hint = "build a bundle for the host's platform, if boxlift has it, or choose another host"
	}
	var hinted remote.HintError
	if errors.As(h.err, &hinted) && hinted.Hint() != "" {
		f.Hint = hinted.Hint()
	}
	return f
}

// notRunError says that the helper lies on a host, and that the host does not run it.
type notRunError struct{ err error }

// cannotExecute is the exit code of a shell that finds a program and cannot run it (POSIX).
const cannotExecute = 126

// helperError makes a notRunError of an error of the helper, if it is one.
func helperError(err error) error {
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == cannotExecute {
		return &notRunError{err}
	}
	return err
}

func (e *notRunError) Error() string { return e.err.Error() }
func (e *notRunError) Unwrap() error { return e.err }

// Hint names the usual cause.
func (e *notRunError) Hint() string {
	folder := path.Dir(path.Dir(helperPath))
	return fmt.Sprintf("programs in %s have to run; findmnt -T %[1]s shows whether it is mounted noexec: remount that with mount -o remount,exec, and remove noexec from its line in /etc/fstab", folder)
}
