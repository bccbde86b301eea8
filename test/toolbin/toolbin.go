// Package toolbin builds programs for tests: those of others that they check boxlift against, which tool
// directives name in test/tools, a module of its own so that their dependencies stay out of boxlift's; and
// those of boxlift's that are modules of their own for the same reason.
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

// BuildOwn builds a program of boxlift's that is a module of its own, such as "cmd/boxlift-keys", and returns the
// folder that has it alone. The test is left out as with [Build].
func BuildOwn(t testing.TB, module string) (folder string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("building %s takes minutes, not done with -short", module)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	folder = t.TempDir()
	if err := buildOwn(ctx, module, folder); err != nil {
		need.LeaveOut(t, err.Error())
	}
	return folder
}

func buildOwn(ctx context.Context, module, folder string) error {
	unlock, err := lock(ctx)
	if err != nil {
		return fmt.Errorf("build %s: %w", module, err)
	}
	defer unlock()
	root, err := root(ctx)
	if err == nil {
		_, err = run(ctx, filepath.Join(root, module), "build", "-buildvcs=false", "-o", folder+"/", ".")
	}
	if err != nil {
		return fmt.Errorf("build %s: %w", module, err)
	}
	return nil
}

// root is the folder of boxlift's module.
func root(ctx context.Context) (string, error) {
	mod, err := run(ctx, ".", "env", "GOMOD")
	return filepath.Dir(mod), err
}

// Path is Build outside of tests.
func Path(ctx context.Context, name string) (string, error) {
	unlock, err := lock(ctx)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	defer unlock()
	root, err := root(ctx)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	// go tool -n builds the tool if needed and prints where it is.
	path, err := run(ctx, filepath.Join(root, "test", "tools"), "tool", "-n", name)
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
