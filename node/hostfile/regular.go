package hostfile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
)

// Names of files that boxlift gives their own names only when they are whole begin or end
// like this. Such a file has no other use: whoever made it makes another one the next time.
const (
	PutPrefix = ".boxlift-put-"
	NewSuffix = ".boxlift-new"
)

// Names lists what is in a directory, sorted.
func Names(root *os.Root, name string) ([]string, error) {
	d, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer CloseRead(d)
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// Open opens a file that must be a regular one: opening a pipe would block. flag is that
// of [os.OpenFile].
func Open(root *os.Root, name string, flag int) (*os.File, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: expected a regular file, found %s", path.Join(root.Name(), name), info.Mode())
	}
	return root.OpenFile(name, flag, 0)
}

// CloseRead closes a file that was only read, where an error means nothing.
func CloseRead(f *os.File) { _ = f.Close() }

// Digest returns the sha256 of a regular file in hex, and "" when it is not there.
// Go hashes with the processor's instructions for it, which many a sha256sum does not:
// for a program as large as k3s that is a second less of each run on each host.
func Digest(ctx context.Context, name string) (string, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look at a file: %w", err)
	}
	defer CloseRead(f)
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(fmt.Errorf("look at %s: it is no regular file", name), err)
	}
	stop := context.AfterFunc(ctx, func() { CloseRead(f) })
	defer stop()
	h := sha256.New()
	// Only what hides ReadFrom and WriteTo makes CopyBuffer use its buffer.
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 1<<20)); err != nil {
		return "", errors.Join(fmt.Errorf("look at %s: %w", name, err), ctx.Err())
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
