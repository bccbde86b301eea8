package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
)

// Root runs a program as root and returns its output.
func Root(ctx context.Context, h Host, title string, args ...string) ([]byte, error) {
	result, err := h.Run(ctx, Command{Title: title, Args: args, Root: true})
	return result.Stdout, err
}

// Read returns the content of a small file, which only root may be able to read, without the space around it, or ""
// when the file is not there.
func Read(ctx context.Context, h Host, name string) (string, error) {
	result, err := h.Run(ctx, Command{
		Title: "read " + name, Args: []string{"/bin/sh", "-c", `[ ! -f "$1" ] || cat "$1"`, "sh", name}, Root: true,
		// Tokens and keys are among what is read.
		HideOutput: true,
	})
	return strings.TrimSpace(string(result.Stdout)), err
}

// Write puts a small file of root's, which only root can read unless mode says otherwise.
func Write(ctx context.Context, h Host, name string, mode uint32, content []byte) error {
	_, err := PutBytes(ctx, h, PutOptions{Path: name, Mode: fs.FileMode(mode) & fs.ModePerm, Root: true}, content)
	return err
}

// Digests returns the sha256 of files in hex, by path; those that are not there are missing from the result.
func Digests(ctx context.Context, h Host, paths ...string) (map[string]string, error) {
	const script = `for f in "$@"; do if [ -f "$f" ]; then sha256sum "$f" || exit 1; fi; done`
	out, err := Root(ctx, h, "look at files", append([]string{"/bin/sh", "-c", script, "sh"}, paths...)...)
	if err != nil {
		return nil, err
	}
	digests := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !ok || len(sum) != hex.EncodedLen(sha256.Size) {
			return nil, fmt.Errorf("look at files: sha256sum printed %.200q", line)
		}
		digests[name] = sum
	}
	return digests, nil
}

// Fingerprint sums up the contents of files, and which of them are there.
func Fingerprint(ctx context.Context, h Host, files ...string) (string, error) {
	digests, err := Digests(ctx, h, files...)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, f := range files {
		fmt.Fprintf(sum, "%s %s\n", f, digests[f])
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
