// Package testbed sets up what a whole run of boxlift needs on the connected side:
// boxlift's own programs, the stand-in for the internet, a completed lock, a key pair
// and a signed bundle. End-to-end tests, the demonstration and benchmarks share it.
//
// Everything is done by the real programs, as their users would do it.
package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/liteboxd/boxlift/test/upstream"
)

// KeyPassword is the password of the testbed's signing key. It is a canary: nothing
// but the key's own file may ever show it.
const KeyPassword = "canary-key-password-7d1f"

// Testbed is a connected host. Its folder holds versions.lock, boxlift.key, boxlift.pub
// and, once built, bundle.tar.
type Testbed struct {
	// Dir is the folder that commands run in.
	Dir string
	// Programs holds boxlift and, by platform, the programs that travel.
	Programs string
	Upstream *upstream.Server
}

// Options of a testbed. Dir is required.
type Options struct {
	// Dir is an existing folder.
	Dir  string
	Size upstream.Size
	// Releases are what upstream offers; none means the quick one, which no cluster can be
	// made of.
	Releases []upstream.Release
	// Programs is a folder that `make programs` has filled; empty means one in the cache,
	// which is brought up to date first.
	Programs string
	// Logf is told of slow steps; nil discards them.
	Logf func(format string, args ...any)
}

// New starts a testbed. Close ends it.
func New(ctx context.Context, o Options) (*Testbed, error) {
	t := &Testbed{Dir: o.Dir, Programs: o.Programs}
	var err error
	if t.Programs == "" {
		if t.Programs, err = BuildPrograms(ctx); err != nil {
			return nil, err
		}
	}
	t.Upstream, err = upstream.Start(ctx, upstream.Options{Size: o.Size, Releases: o.Releases, Dir: o.Dir, Logf: o.Logf})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Close stops the servers; the folder stays.
func (t *Testbed) Close() error { return t.Upstream.Close() }

// Boxlift is the path of the operator's program.
func (t *Testbed) Boxlift() string { return filepath.Join(t.Programs, "boxlift") }

// LockFile is the path of the lock.
func (t *Testbed) LockFile() string { return filepath.Join(t.Dir, "versions.lock") }

// PrivateKey is the path of the key that signs.
func (t *Testbed) PrivateKey() string { return filepath.Join(t.Dir, "boxlift.key") }

// PublicKey is the path of the key that verifies.
func (t *Testbed) PublicKey() string { return filepath.Join(t.Dir, "boxlift.pub") }

// Bundle is the path of the bundle.
func (t *Testbed) Bundle() string { return filepath.Join(t.Dir, "bundle.tar") }

// Command is boxlift on the connected host: it trusts the stand-in's certificate and
// knows the key's password.
func (t *Testbed) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, t.Boxlift(), args...)
	endInOrder(c)
	c.Dir = t.Dir
	c.Env = append(os.Environ(), "SSL_CERT_FILE="+t.Upstream.CAFile(), "BOXLIFT_KEY_PASSWORD="+KeyPassword, "DOCKER_CONFIG="+t.Dir)
	return c
}

// endInOrder lets a command end by itself, as after Ctrl-C, when its context does.
func endInOrder(c *exec.Cmd) {
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 10 * time.Second
}

// MirrorFlags send requests for the real upstream hosts to the stand-in.
func (t *Testbed) MirrorFlags() []string {
	var flags []string
	for _, m := range t.Upstream.Mirrors() {
		flags = append(flags, "--mirror", m)
	}
	return flags
}

// LockCommand fills in the lock's pins.
func (t *Testbed) LockCommand(ctx context.Context) *exec.Cmd {
	return t.Command(ctx, append([]string{"bundle", "lock", "-f", "versions.lock"}, t.MirrorFlags()...)...)
}

// KeyCommand makes the key pair.
func (t *Testbed) KeyCommand(ctx context.Context) *exec.Cmd {
	return t.Command(ctx, "key", "generate", "--output-prefix", "boxlift")
}

// BuildCommand builds and signs the bundle, with more flags than are needed.
func (t *Testbed) BuildCommand(ctx context.Context, more ...string) *exec.Cmd {
	args := append([]string{"bundle", "build", "-f", "versions.lock", "-o", "bundle.tar", "--key", "boxlift.key"}, more...)
	return t.Command(ctx, append(args, t.MirrorFlags()...)...)
}

// MakeBundle runs the three commands on a lock without any pins, the last of them with more flags.
func (t *Testbed) MakeBundle(ctx context.Context, o upstream.LockOptions, more ...string) error {
	if err := os.WriteFile(t.LockFile(), t.Upstream.LockYAML(o), 0o644); err != nil {
		return err
	}
	commands := []*exec.Cmd{t.LockCommand(ctx), t.BuildCommand(ctx, more...)}
	if _, err := os.Stat(t.PrivateKey()); err != nil {
		commands = append([]*exec.Cmd{t.KeyCommand(ctx)}, commands...)
	}
	for _, c := range commands {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("boxlift %s: %w:\n%s", strings.Join(c.Args[1:3], " "), err, out)
		}
	}
	return nil
}

// BuildPrograms runs `make programs` into the cache, and returns the folder.
func BuildPrograms(ctx context.Context) (dir string, err error) {
	cache := os.Getenv("BOXLIFT_CACHE")
	if cache == "" {
		if cache, err = os.UserCacheDir(); err != nil {
			return "", err
		}
		cache = filepath.Join(cache, "boxlift")
	}
	dir = filepath.Join(cache, "programs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock := flock.New(filepath.Join(cache, "programs.lock"))
	if err := lock.Lock(); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	root, err := Root()
	if err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, "make", "--no-print-directory", "-C", root, "programs", "BIN="+dir)
	// A make above this one would pass on its own flags.
	c.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("make programs: %w:\n%s", err, out.Bytes())
	}
	return dir, nil
}

// Root is the folder of the repository: that of the working directory or one above it which has
// boxlift's go.mod. Tests and what `go run` runs begin somewhere below it.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(content, []byte("module github.com/liteboxd/boxlift\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the repository: no folder above %s has boxlift's go.mod", start)
		}
	}
}
