// Package toolbin gives tests the programs of others that they check boxlift against:
// those named by tool directives in test/tools, a module of its own so that their
// dependencies stay out of boxlift's.
package toolbin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/liteboxd/boxlift/test/need"
)

// timeout bounds one build. Cold, on two busy cores, the largest (cosign) takes 4 minutes.
const timeout = 15 * time.Minute

// Build returns the path of a tool, for example "cosign". It is built at first use and
// stays in the build cache of go. With -short, or when it cannot be built (no network, no
// module cache), the test is left out.
func Build(t testing.TB, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("building %s takes minutes, not done with -short", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	path, err := Path(ctx, name)
	if err != nil {
		need.LeaveOut(t, err.Error())
	}
	return path
}

// Path is Build outside of tests.
func Path(ctx context.Context, name string) (string, error) {
	unlock, err := lock(ctx)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	defer unlock()
	mod, err := run(ctx, ".", "env", "GOMOD")
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	// go tool -n builds the tool if needed and prints where it is.
	path, err := run(ctx, filepath.Join(filepath.Dir(mod), "test", "tools"), "tool", "-n", name)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return path, nil
}

// lock keeps the packages under test, which run at the same time, from compiling the same
// tool twice: go shares what is finished, not what is under way.
func lock(ctx context.Context) (unlock func(), err error) {
	dir := os.Getenv("BOXLIFT_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(base, "boxlift")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	l := flock.New(filepath.Join(dir, "toolbin.lock"))
	if _, err := l.TryLockContext(ctx, 200*time.Millisecond); err != nil {
		return nil, fmt.Errorf("lock %s: %w", l.Path(), err)
	}
	return func() { _ = l.Close() }, nil // the lock ends with the process at the latest
}

// run runs go in dir and returns what it prints, trimmed.
func run(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// No C compiler is needed; with the flags of make build, packages are compiled once
	// for both.
	cmd.Env = append(cmd.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-trimpath '-ldflags=-s -w'")
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}
