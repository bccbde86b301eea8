package k3sbuild

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// Prove runs the distribution's own tests on hosts, unless they have passed with just these
// sources: those of the distribution, of its tests, and of the hosts. It is the tool of other
// tests, and takes as long as several of them; proving it belongs to making it. The tests'
// output goes to out, and logf gets a line in either case.
func Prove(ctx context.Context, out io.Writer, logf func(format string, args ...any)) error {
	sources, err := Sources(ctx)
	if err != nil {
		return err
	}
	test := filepath.Dir(sources)
	version, err := goCommand(ctx, test, "env", "GOVERSION")
	if err != nil {
		return err
	}
	key, err := hashFiles(version, sources, filepath.Join(test, "k3sbuild"), filepath.Join(test, "lab"))
	if err != nil {
		return err
	}
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	lock := flock.New(filepath.Join(cache, "prove.lock"))
	if _, err := lock.TryLockContext(ctx, 200*time.Millisecond); err != nil {
		return fmt.Errorf("wait for another run of the distribution's tests: %w", err)
	}
	defer func() { _ = lock.Close() }() // the lock ends with the process at the latest
	stamp := filepath.Join(cache, "proven-"+key)
	if info, err := os.Stat(stamp); err == nil {
		logf("the distribution's own tests on hosts passed with these sources on %s (%s)", info.ModTime().UTC().Format(time.RFC3339), stamp)
		return nil
	}
	logf("running the distribution's own tests on hosts, which takes some minutes, once for these sources")
	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", "test", "-tags=distribution", "-count=1", "-timeout=40m", "-v", "./k3sbuild")
	cmd.Dir, cmd.Stdout, cmd.Stderr = test, out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that hosts are removed
	cmd.WaitDelay = time.Minute
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the distribution's own tests on hosts: %w", err)
	}
	logf("the distribution's own tests on hosts passed, in %s", time.Since(began).Round(time.Second))
	return errors.Join(os.WriteFile(stamp, nil, 0o644), prune(cache, "proven"))
}

// hashFiles sums up the files below folders, but for texts about them, and a text.
func hashFiles(text string, folders ...string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, text)
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || filepath.Ext(path) == ".md" {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(folder, path)
			fmt.Fprintf(hash, "%s %d\n%s", name, len(content), content)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(hash.Sum(nil)[:8]), nil
}
