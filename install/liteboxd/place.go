package liteboxd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
)

// Locate says whose a file and its folder are.
func Locate(ctx context.Context, h *site.Host, nodeName, file string) (*backup.Location, error) {
	out, err := h.Root(ctx, "look at "+file, "stat", "-c", "%u %g %a", file, path.Dir(file))
	if err != nil {
		return nil, err
	}
	l := &backup.Location{Node: nodeName, Path: file}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 2 {
		return nil, fmt.Errorf("look at %s: stat printed %.200q", file, out)
	}
	for i, to := range []*backup.Ownership{&l.File, &l.Folder} {
		if *to, err = parseOwnership(lines[i]); err != nil {
			return nil, fmt.Errorf("look at %s: %w", file, err)
		}
	}
	return l, nil
}

// parseOwnership reads what stat prints: user, group and, in octal, mode.
func parseOwnership(line string) (o backup.Ownership, err error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return o, fmt.Errorf("stat printed %.200q", line)
	}
	for i, to := range []*uint32{&o.UID, &o.GID, &o.Mode} {
		n, err := strconv.ParseUint(fields[i], []int{10, 10, 8}[i], 32)
		if err != nil {
			return o, fmt.Errorf("stat printed %.200q", line)
		}
		*to = uint32(n)
	}
	// Setuid and the like mean nothing to a database.
	o.Mode &= 0o1777
	return o, nil
}

// placeFolderScript makes the folder of a volume, with its owner and mode. The folder above it is made
// as k3s' own provisioner leaves it: nobody but root gets to the volumes of others. What lies beside a
// database belongs to the one that it was.
const placeFolderScript = `set -e
[ -d "${1%/*}" ] || mkdir -p -m 0700 "${1%/*}"
mkdir -p "$1"
chown "$2:$3" "$1"
chmod "$4" "$1"
rm -f "$5" "$5-wal" "$5-shm" "$5-journal"`

// Place puts a database of a size and sha256 to where it belongs on a host, in place of the one that is there. Nothing
// may have that open.
func Place(ctx context.Context, h *site.Host, l *backup.Location, size int64, sha256 string, content io.Reader) error {
	owner := func(o backup.Ownership) []string {
		return []string{fmt.Sprint(o.UID), fmt.Sprint(o.GID), fmt.Sprintf("%o", o.Mode)}
	}
	args := append([]string{"/bin/sh", "-c", placeFolderScript, "sh", path.Dir(l.Path)}, owner(l.Folder)...)
	if _, err := h.Root(ctx, "make LiteBoxd's folder", append(args, l.Path)...); err != nil {
		return err
	}
	if _, err := h.Conn.Put(ctx, machine.PutOptions{Path: l.Path, Mode: 0o600, Size: size, SHA256: sha256, Root: true},
		content); err != nil {
		return err
	}
	const own = `chown "$2:$3" "$1" && chmod "$4" "$1"`
	_, err := h.Root(ctx, "give LiteBoxd its database",
		append([]string{"/bin/sh", "-c", own, "sh", l.Path}, owner(l.File)...)...)
	return err
}

// RecordIn reads what LiteBoxd was when a backup of the cluster was made; nil when the backup has none.
func RecordIn(r *backup.Reader) (*Backup, error) {
	if !r.Has(backup.LiteBoxdRecord) {
		return nil, nil //nolint:nilnil // no LiteBoxd
	}
	const most = 64 << 20
	content, err := r.ReadSmall(backup.LiteBoxdRecord, most)
	if err != nil {
		return nil, err
	}
	var b Backup
	if err := json.Unmarshal(content, &b); err != nil {
		return nil, fmt.Errorf("%w: read %s: %w", backup.ErrInvalid, backup.LiteBoxdRecord, err)
	}
	return &b, nil
}
