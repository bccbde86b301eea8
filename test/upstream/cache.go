package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

func cacheDir(given string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	if root := os.Getenv("BOXLIFT_CACHE"); root != "" {
		return filepath.Abs(filepath.Join(root, "upstream"))
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w", err)
	}
	return filepath.Join(user, "boxlift", "upstream"), nil
}

// once sees to it that the folder dir exists with what fill puts into it. fill works in a
// folder of another name, which is renamed when it is complete; of several processes one
// does the work and the others wait.
func once(ctx context.Context, dir string, fill func(ctx context.Context, dir string) error) error {
	if exists(dir) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	lock := flock.New(dir + ".lock")
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		return fmt.Errorf("wait for another process that makes %s: %w", dir, err)
	}
	defer func() { _ = lock.Unlock() }() // ends with the process at the latest
	if exists(dir) {
		return nil
	}
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return err
	}
	if err := fill(ctx, partial); err != nil {
		return errors.Join(err, os.RemoveAll(partial))
	}
	return os.Rename(partial, dir)
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

func readJSON(name string, v any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

func saveJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}
