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
	"path"
	"slices"
	"strings"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
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

// FileStep writes a file that only root can read.
func FileStep(h *site.Host, title, name string, content []byte) run.Step {
	return run.Step{
		ID: FileID(name), Title: title,
		Needed: func(ctx context.Context) (string, error) {
			sum := sha256.Sum256(content)
			digests, err := machine.Digests(ctx, h.Conn, name)
			if err != nil {
				return "", err
			}
			reason := Differs(name, digests[name], hex.EncodeToString(sum[:]))
			if reason != "" {
				return reason, nil
			}
			mode, err := h.Root(ctx, "look at "+name, "stat", "-c", "%a %u", name)
			if err == nil && strings.TrimSpace(string(mode)) != "600 0" {
				reason = name + " has another mode or owner"
			}
			return reason, err
		},
		Run: func(ctx context.Context) error {
			if _, err := h.Root(ctx, "make k3s' config folder", "mkdir", "-p", "-m", "0755",
				path.Dir(name)); err != nil {
				return err
			}
			return h.Put(ctx, name, 0o600, content)
		},
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
	return &ServiceError{Text: text, Service: service,
		Lines: printable.Text(strings.TrimSpace(redact(LastLines(string(out)))))}
}

// LastLines are those of a service's journal that say why it ended. Where containers go on
// running, systemd says of each of their processes that it is there at every end and new start.
func LastLines(journal string) string {
	const most = 15
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(journal)), func(line string) bool {
		return strings.Contains(line, "Found left-over process") ||
			strings.HasSuffix(strings.TrimSpace(line), "remains running after unit stopped.") ||
			strings.HasPrefix(line, "This usually indicates unclean termination of a previous run")
	})
	return strings.Join(lines[max(0, len(lines)-most):], "")
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
