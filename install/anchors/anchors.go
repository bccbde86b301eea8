// Package anchors brings the site's roots into the trust stores of hosts, and takes out again those that are not asked
// for any more.
//
// Contract: each root is a file of its own, named after its sha256, where the distribution wants those that the
// administrator adds (Debian: update-ca-certificates(8); Red Hat and its kin: update-ca-trust(8)). Which of the two a
// host has is found out from it. Files of others are left alone. A root is in its place when the store that programs
// read has it, not when its file is there.
package anchors

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Phase is the name of the phase that keeps trust stores.
const Phase = "authority"

// ErrNoStore says that a host has no trust store that boxlift knows.
var ErrNoStore = fault.NewKind(fault.Host, "no trust store was found")

// Keeper keeps the trust stores of the hosts.
type Keeper struct {
	Site   *site.Site
	Engine *run.Engine
}

// Keep brings the site's roots to all hosts, before anything relies on them there.
func (k *Keeper) Keep(ctx context.Context) error {
	authority, err := k.Site.Authority()
	if err != nil {
		return err
	}
	var roots []*x509.Certificate
	if authority != nil {
		roots = authority.Roots
	}
	return k.Engine.EachHost(ctx, k.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		return k.Engine.RunSteps(ctx, Phase, &h.Subject, []run.Step{step(h, roots)})
	})
}

// step brings a host's trust store to these roots.
func step(h *site.Host, roots []*x509.Certificate) run.Step {
	title := "trust the site's authority"
	if len(roots) == 0 {
		title = "trust the site's authority no more"
	}
	return run.Step{
		ID: "keep-trust-store", Title: title, Alone: true,
		Needed: func(ctx context.Context) (string, error) {
			s, err := look(ctx, h, roots)
			if err != nil {
				return "", err
			}
			return s.reason(roots)
		},
		Run: func(ctx context.Context) error {
			s, err := look(ctx, h, roots)
			if err != nil {
				return err
			}
			return s.bring(ctx, h, roots)
		},
	}
}

// kind is a distribution's way to keep trust.
type kind struct {
	program string // brings what programs read up to date
	folder  string // of what the administrator adds
	bundle  string // what programs read
}

// kinds are tried in this order.
var kinds = []kind{
	{"update-ca-certificates", "/usr/local/share/ca-certificates", "/etc/ssl/certs/ca-certificates.crt"},
	{"update-ca-trust", "/etc/pki/ca-trust/source/anchors", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"},
}

// The names that boxlift gives its files, and no others, as a pattern of the shell's and of [path.Match]: the shell
// takes a range such as a-f by the host's locale.
const (
	digit       = "[0123456789abcdef]"
	fourDigits  = digit + digit + digit + digit
	filePattern = "boxlift-" + fourDigits + fourDigits + fourDigits + fourDigits + ".crt"
)

// fileName is the name of a root's file.
func fileName(root *x509.Certificate) string {
	sum := sha256.Sum256(root.Raw)
	return "boxlift-" + hex.EncodeToString(sum[:8]) + ".crt"
}

// isFileName reports whether boxlift gives a file such a name.
func isFileName(name string) bool {
	matched, err := path.Match(filePattern, name)
	return matched && err == nil
}

// pending is there while a trust store is being changed.
const pending = "/var/lib/boxlift/trust-store-changes"

// store is a host's trust store as it was found.
type store struct {
	kind  *kind    // nil for none
	files []string // of boxlift, sorted
	// effective are those of the wanted roots that programs see, by the names of their files.
	effective map[string]bool
	pending   bool
}

// lookScript prints what there is: the program, boxlift's files, and the roots that programs see. Its parameters are
// the kinds, three each, a line --, and the roots, each the name of its file and its base64.
const lookScript = `while [ "$1" != -- ]; do
    if [ -z "${bundle-}" ] && command -v "$1" >/dev/null 2>&1 && [ -d "$2" ]; then
        bundle=$3
        echo "store $1"
        for f in "$2"/` + filePattern + `; do
            [ ! -e "$f" ] || echo "file ${f##*/}"
        done
    fi
    shift 3
done
shift
[ ! -e "$1" ] || echo pending
shift
while [ $# -gt 0 ]; do
    if [ -n "${bundle-}" ] && [ -e "$bundle" ] && tr -d '\n' <"$bundle" | grep -qF "$2"; then
        echo "sees $1"
    fi
    shift 2
done`

func look(ctx context.Context, h *site.Host, roots []*x509.Certificate) (*store, error) {
	args := []string{"/bin/sh", "-c", lookScript, "sh"}
	for _, k := range kinds {
		args = append(args, k.program, k.folder, k.bundle)
	}
	args = append(args, "--", pending)
	for _, root := range roots {
		args = append(args, fileName(root), base64.StdEncoding.EncodeToString(root.Raw))
	}
	out, err := h.Root(ctx, "look at the trust store", args...)
	if err != nil {
		return nil, err
	}
	s, err := parse(string(out))
	if err != nil {
		return nil, fault.OnHost(fault.Host.Wrap(fmt.Errorf("look at the trust store: %w", err)), h.Conn.Name())
	}
	return s, nil
}

// maxFiles bounds how many roots a host may have of boxlift.
const maxFiles = 64

// parse reads what lookScript prints.
func parse(out string) (*store, error) {
	s := &store{effective: make(map[string]bool)}
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		word, rest, _ := strings.Cut(line, " ")
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.program == rest })
		switch {
		case line == "pending":
			s.pending = true
		case word == "store" && i >= 0 && s.kind == nil:
			s.kind = &kinds[i]
		case word == "file" && isFileName(rest) && len(s.files) < maxFiles:
			s.files = append(s.files, rest)
		case word == "sees" && isFileName(rest) && len(s.effective) < maxFiles:
			s.effective[rest] = true
		default:
			return nil, fmt.Errorf("found %q, expected what is in it", printable.Short(line, 100))
		}
	}
	slices.Sort(s.files)
	return s, nil
}

// stale are boxlift's files that are of none of these roots.
func (s *store) stale(roots []*x509.Certificate) []string {
	wanted := make(map[string]bool)
	for _, root := range roots {
		wanted[fileName(root)] = true
	}
	return slices.DeleteFunc(slices.Clone(s.files), func(name string) bool { return wanted[name] })
}

// reason says why the store has to be changed, "" when it has not.
func (s *store) reason(roots []*x509.Certificate) (string, error) {
	if s.kind == nil {
		if len(roots) == 0 {
			return "", nil
		}
		programs := make([]string, len(kinds))
		for i, k := range kinds {
			programs[i] = k.program + " with " + k.folder
		}
		return "", fault.WithHint(fmt.Errorf("%w: expected %s", ErrNoStore, strings.Join(programs, ", or ")),
			"install the package ca-certificates on the host")
	}
	for _, root := range roots {
		if !s.effective[fileName(root)] || !slices.Contains(s.files, fileName(root)) {
			return "the host does not trust " + printable.Short(root.Subject.String(), 100), nil
		}
	}
	if stale := s.stale(roots); len(stale) > 0 {
		return path.Join(s.kind.folder, stale[0]) + " is there, and install.yaml does not ask for it", nil
	}
	if s.pending {
		return "a change of the trust store was broken off", nil
	}
	return "", nil
}

// bring changes the store.
func (s *store) bring(ctx context.Context, h *site.Host, roots []*x509.Certificate) error {
	if s.kind == nil {
		_, err := s.reason(roots)
		return err
	}
	if _, err := h.Root(ctx, "note that the trust store changes", "/bin/sh", "-c",
		`mkdir -p "${1%/*}" && : >"$1"`, "sh", pending); err != nil {
		return err
	}
	files := make(map[string]*x509.Certificate)
	for _, root := range roots {
		files[fileName(root)] = root
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := h.Put(ctx, path.Join(s.kind.folder, name), 0o644, ca.Encode([]*x509.Certificate{files[name]}))
		if err != nil {
			return err
		}
	}
	args := []string{"/bin/sh", "-c", updateScript, "sh", s.kind.program, s.kind.folder, pending}
	_, err := h.Root(ctx, "bring the trust store up to date", append(args, s.stale(roots)...)...)
	return err
}

// updateScript removes boxlift's files that are of no use any more, and has programs see what there is. Debian's
// program leaves links to files that are gone unless it begins anew.
const updateScript = `set -e
program=$1 folder=$2 pending=$3
shift 3
fresh=
for name in "$@"; do
    rm -f "$folder/$name"
    [ "$program" != update-ca-certificates ] || fresh=--fresh
done
"$program" $fresh >&2
rm -f "$pending"`

// RemoveScript takes all of boxlift's roots out of a host's trust store. It may have been done before.
const RemoveScript = `for pair in update-ca-certificates:/usr/local/share/ca-certificates update-ca-trust:/etc/pki/ca-trust/source/anchors; do
    program=${pair%%:*} folder=${pair#*:}
    set -- "$folder"/` + filePattern + `
    [ -e "$1" ] || [ -e ` + pending + ` ] || continue
    rm -f "$@"
    command -v "$program" >/dev/null 2>&1 || continue
    if [ "$program" = update-ca-certificates ]; then "$program" --fresh; else "$program"; fi >/dev/null ||
        echo "the site's authority may still be trusted" >&2
done
rm -f ` + pending + `
`
