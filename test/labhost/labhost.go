// Package labhost has what tests of rooms of install do with hosts of package lab: a LAN that goes with the test, hosts
// as boxlift reaches them, boxlift-node on them, and packages of Debian's as a bundle would have them.
package labhost

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/apt"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/lab"
)

// New makes a LAN of a name that no other test has. Where hosts cannot be made, the test is left out.
func New(ctx context.Context, t *testing.T, name string) *lab.Lab {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(ctx, lab.Options{Name: name, Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Make makes a host.
func Make(ctx context.Context, t *testing.T, l *lab.Lab, o lab.HostOptions) *lab.Host {
	t.Helper()
	h, err := l.Host(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// KnownHosts writes a file with the keys of hosts, and returns its name.
func KnownHosts(t *testing.T, hosts ...*lab.Host) string {
	t.Helper()
	var all strings.Builder
	for _, h := range hosts {
		known, err := h.KnownHosts()
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(known)
	}
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, []byte(all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Connect logs in to a host as root, until the test ends.
func Connect(ctx context.Context, t *testing.T, l *lab.Lab, h *lab.Host) *remote.Host {
	t.Helper()
	conn, err := remote.Dial(ctx, remote.Target{Host: h.Address.String(), User: "root", IdentityFile: l.KeyFile(),
		Dial: l.Dial, KnownHosts: []string{KnownHosts(t, h)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is lost
	return conn
}

// Must runs a program on a host and returns what it prints.
func Must(ctx context.Context, t *testing.T, h *lab.Host, args ...string) string {
	t.Helper()
	out, err := h.Exec(ctx, args...)
	if err != nil {
		t.Fatalf("%s: %q: %v: %s", h.Name, args, err, out)
	}
	return string(out)
}

// Put writes a file on a host. It does not go through this machine's file system: the host may have mounted over it.
func Put(ctx context.Context, t *testing.T, h *lab.Host, name, mode string, content []byte) {
	t.Helper()
	const script = `mkdir -p "${1%/*}" && cat >"$1" && chmod "$2" "$1"`
	if out, err := h.ExecInput(ctx, content, "sh", "-c", script, "sh", name, mode); err != nil {
		t.Fatalf("%s: write %s: %v: %s", h.Name, name, err, out)
	}
}

// NodeProgram is boxlift-node for this machine.
func NodeProgram(ctx context.Context, t *testing.T) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "boxlift-node")
	build := exec.CommandContext(ctx, "go", "build", "-o", file, "github.com/liteboxd/boxlift/cmd/boxlift-node")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Deb is a package of Debian's, as a bundle has it.
type Deb struct {
	Name, Version, Architecture string
	Filename                    string
	// Control is its control file.
	Control string
	SHA256  digest.Digest
	Content []byte
}

// ReadDeb reads what a package says of itself.
func ReadDeb(t *testing.T, filename string, content []byte) Deb {
	t.Helper()
	control, err := apt.ReadControl(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	fields := make(map[string]string)
	for line := range strings.Lines(control) {
		key, value, _ := strings.Cut(line, ": ")
		fields[key] = strings.TrimSpace(value)
	}
	return Deb{Name: fields["Package"], Version: fields["Version"], Architecture: fields["Architecture"],
		Filename: filename, Control: control, SHA256: digest.FromBytes(content), Content: content}
}

// Debs are packages of a host's release, and all that they take on that host.
func Debs(ctx context.Context, t *testing.T, h *lab.Host, suite string, names ...string) []Deb {
	t.Helper()
	cache, err := lab.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	files, err := debian.Download(ctx, filepath.Join(cache, "packages"), suite,
		filepath.Join(h.Root, "var/lib/dpkg/status"), names...)
	if err != nil {
		t.Fatal(err)
	}
	debs := make([]Deb, 0, len(files))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		debs = append(debs, ReadDeb(t, filepath.Base(file), content))
	}
	return debs
}
