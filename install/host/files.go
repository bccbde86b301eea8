package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
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

// FirstThere is the first of some files and folders that is there, as messages have it, "" for none. title says what is
// looked for.
func FirstThere(ctx context.Context, h Host, title string, names ...string) (string, error) {
	const script = `for f in "$@"; do [ ! -e "$f" ] || { echo "$f"; exit; }; done`
	out, err := Root(ctx, h, title, append([]string{"/bin/sh", "-c", script, "sh"}, names...)...)
	if err != nil {
		return "", err
	}
	return printable.Short(strings.TrimSpace(string(out)), 200), nil
}

// Write puts a small file of root's, which only root can read unless mode says otherwise.
func Write(ctx context.Context, h Host, name string, mode uint32, content []byte) error {
	_, err := PutBytes(ctx, h, PutOptions{Path: name, Mode: fs.FileMode(mode) & fs.ModePerm, Root: true}, content)
	return err
}

// Content returns what is in a small file of others, byte by byte, and whether there is one. A link is followed. One
// that is larger than [MaxKept], or no file, is an error.
func Content(ctx context.Context, h Host, name string) (content []byte, isThere bool, err error) {
	const mark = "there\n"
	const script = `if [ -f "$1" ]; then echo there; exec cat "$1"; fi
[ ! -e "$1" ] || { echo "it is no file" >&2; exit 1; }`
	result, err := h.Run(ctx, Command{
		Title: "read " + name, Args: []string{"/bin/sh", "-c", script, "sh", name}, Root: true, HideOutput: true,
	})
	if err != nil {
		return nil, false, err
	}
	if result.Truncated {
		err := fault.Host.Errorf("read %s: it is larger than %d bytes", name, MaxKept)
		return nil, false, fault.OnHost(fault.WithHint(err, "see what has made it so large, and take out what nobody needs"),
			h.Name())
	}
	content, isThere = bytes.CutPrefix(result.Stdout, []byte(mark))
	if !isThere && len(result.Stdout) > 0 {
		err := fault.Host.Errorf("read %s: instead of it came %.50q", name, result.Stdout)
		return nil, false, fault.OnHost(fault.WithHint(err, "see what else prints where root runs a command on the host, "+
			"such as a wrapper of sh or sudo"), h.Name())
	}
	return content, isThere, nil
}

// Replace gives a file of others, which is there, another content: at once, by rename, with the mode, the owner and the
// SELinux label that it has. It fails without changing anything where the file is a link, or has not the content before
// (any more).
func Replace(ctx context.Context, h Host, name string, before, after []byte) error {
	draft := name + ".boxlift-new"
	if err := Write(ctx, h, draft, 0o600, after); err != nil {
		return err
	}
	const script = `set -e
trap 'rm -f "$2"' EXIT
[ ! -L "$1" ] || { echo "$1 is a link: edit what it leads to" >&2; exit 1; }
sum=$(sha256sum "$1")
[ "${sum%% *}" = "$3" ] || { echo "$1 was changed meanwhile: run the same command again" >&2; exit 1; }
chown "$(stat -c %u:%g "$1")" "$2"
chmod "$(stat -c %a "$1")" "$2"
sync "$2"
mv -f "$2" "$1"
if command -v restorecon >/dev/null 2>&1; then restorecon "$1" || :; fi`
	sum := sha256.Sum256(before)
	_, err := Root(ctx, h, "replace "+name, "/bin/sh", "-c", script, "sh", name, draft, hex.EncodeToString(sum[:]))
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
