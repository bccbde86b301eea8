// Package setup has the steps that files and services of a host are set up with, whatever they are for.
//
// A file is compared by digest, mode and owner, and written to a temporary name that is renamed. A service is
// started again when what it runs with is not what it was last started with: a file on the host holds the
// fingerprint of that.
package setup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Differs says why a file with a digest, or "" when it is missing, is not the wanted one.
func Differs(name, digest, wanted string) string {
	switch digest {
	case "":
		return name + " is missing"
	case wanted:
		return ""
	}
	return name + " differs"
}

// FileReason says why a file has to be written, "" when it has its content and mode, and is root's.
func FileReason(ctx context.Context, h machine.Host, name string, mode fs.FileMode, content []byte) (string, error) {
	digests, err := machine.Digests(ctx, h, name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	if reason := Differs(name, digests[name], hex.EncodeToString(sum[:])); reason != "" {
		return reason, nil
	}
	is, err := machine.Root(ctx, h, "look at "+name, "stat", "-c", "%a %u", name)
	if err == nil && strings.TrimSpace(string(is)) != fmt.Sprintf("%o 0", mode) {
		return name + " has another mode or owner", nil
	}
	return "", err
}

// FileStep writes a file that only root can read.
func FileStep(h *site.Host, title, name string, content []byte) run.Step {
	return run.Step{
		ID: FileID(name), Title: title,
		Needed: func(ctx context.Context) (string, error) { return FileReason(ctx, h.Conn, name, 0o600, content) },
		Run: func(ctx context.Context) error {
			folder := path.Dir(name)
			if _, err := h.Root(ctx, "make "+folder, "mkdir", "-p", "-m", "0755", folder); err != nil {
				return err
			}
			return h.Put(ctx, name, 0o600, content)
		},
	}
}

// UnitStep writes a unit of systemd's, which is no secret. unit is its name, with its ending.
func UnitStep(h *site.Host, unit string, content []byte) run.Step {
	name := site.UnitDir + unit
	return run.Step{
		ID: FileID(name), Title: "write the unit " + unit,
		Needed: func(ctx context.Context) (string, error) { return FileReason(ctx, h.Conn, name, 0o644, content) },
		Run:    func(ctx context.Context) error { return h.Put(ctx, name, 0o644, content) },
	}
}

// ProgramStep keeps a copy of the bundle's boxlift-node on a host, which a service runs: boxlift-node itself is
// replaced before anything else.
func ProgramStep(s *site.Site, h *site.Host, id, title, name string) run.Step {
	return run.Step{
		ID: id, Title: title,
		Needed: func(ctx context.Context) (string, error) {
			program, ok := s.Contents.File(bundle.ProgramsComponent, bundle.NodeProgram, h.Platform)
			if !ok {
				return "", fault.OnHost(fault.Bundle.Errorf("the bundle carries no %s for %s", bundle.NodeProgram,
					h.Platform), h.Name)
			}
			digests, err := machine.Digests(ctx, h.Conn, name)
			return Differs(name, digests[name], program.Digest.Encoded()), err
		},
		Run: func(ctx context.Context) error { return CopyProgram(ctx, h, site.HelperPath, name) },
	}
}

// CopyProgram copies a program on the host, and puts it in its place by rename, because a
// running program cannot be written to.
func CopyProgram(ctx context.Context, h *site.Host, from, to string) error {
	const script = `set -e
mkdir -p "$(dirname "$2")"
tmp="$2.boxlift-new"
trap 'rm -f "$tmp"' EXIT
cp "$1" "$tmp"
chmod 0755 "$tmp"
sync "$tmp"
mv -f "$tmp" "$2"`
	_, err := h.Root(ctx, "copy a program to "+to, "/bin/sh", "-c", script, "sh", from, to)
	return err
}

// StartError adds the last lines of the service's journal.
func StartError(ctx context.Context, h *site.Host, service, text string, redact func(string) string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	out, err := h.Root(ctx, "read the journal", "journalctl", "--no-pager", "-o", "cat", "-n", "300", "-u", service)
	if err != nil {
		return fmt.Errorf("%s; its journal cannot be read: %w", text, err)
	}
	return &ServiceError{Text: text, Service: service, Lines: LastLines(redact(string(out)))}
}

// LastLines are those of a service's journal that say why it ended, fit to be shown: 6 kB at most. The journal is one
// without secrets, which would not be known any more by their halves. Where containers go on running, systemd says of
// each of their processes that it is there at every end and new start.
func LastLines(journal string) string {
	const most, maxLine = 15, 400
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(journal)), func(line string) bool {
		return strings.Contains(line, "Found left-over process") ||
			strings.HasSuffix(strings.TrimSpace(line), "remains running after unit stopped.") ||
			strings.HasPrefix(line, "This usually indicates unclean termination of a previous run")
	})
	lines = lines[max(0, len(lines)-most):]
	for i, line := range lines {
		lines[i] = printable.Short(strings.TrimRight(line, "\r\n"), maxLine)
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// ServiceError says what k3s said before it ended.
type ServiceError struct{ Text, Service, Lines string }

func (e *ServiceError) Error() string {
	return e.Text + "; the last lines of its journal:\n    " + strings.ReplaceAll(e.Lines, "\n", "\n    ")
}

// Hint says where the service's journal is.
func (e *ServiceError) Hint() string {
	return "see `journalctl -u " + e.Service + "` on the host; mend the cause and run the same command again"
}

// FileID is the id of the step that writes a file.
func FileID(name string) string { return "file:" + name }

// StartTitle names the step that starts a service.
func StartTitle(service string) string { return "start " + service }

// ChangedMark stands for what an adopted k3s was started with, from when boxlift is about to change it until it is
// started. One that boxlift has not changed has nothing there: it runs with what it was found with.
const ChangedMark = "changed"
