package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/foldertar"
)

// SaveFolder writes the files of a volume to w, in the form of package foldertar.
func SaveFolder(ctx context.Context, folder string, w io.Writer) error {
	_, err := foldertar.Write(ctx, folder, w)
	return err
}

// RestoreFolder makes the folder of a volume what the tar in r says, whose sha256 is given in hex; see
// [foldertar.Restore].
func RestoreFolder(ctx context.Context, r io.Reader, digest, folder string) (foldertar.Report, error) {
	return foldertar.Restore(ctx, r, digest, folder)
}

// claims gathers the files of those claims whose volumes are on this server. What keeps one from being gathered keeps
// nothing else from it.
func (g *gathering) claims(ctx context.Context, nodes []object) error {
	var gathered []backup.Claim
	for _, c := range g.Config.Claims {
		one, err := g.claim(ctx, c, nodes)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			g.without = append(g.without, "the files of the claim "+c.Namespace+"/"+c.Name+": "+shown(err))
		default:
			gathered = append(gathered, one)
		}
	}
	if gathered == nil {
		return nil
	}
	record, err := backup.EncodeClaims(gathered)
	if err != nil {
		return err
	}
	return g.write(backup.ClaimsRecord, record)
}

func (g *gathering) claim(ctx context.Context, c Claim, nodes []object) (backup.Claim, error) {
	found := backup.Claim{Workload: c.Workload, Namespace: c.Namespace, Name: c.Name, Node: g.Config.Node}
	claim, err := g.named(ctx, "/api/v1/namespaces/"+url.PathEscape(c.Namespace)+"/persistentvolumeclaims", c.Name)
	if err != nil {
		return found, err
	}
	if claim == nil || claim.Spec.VolumeName == "" {
		return found, errors.New("it has no volume")
	}
	volume, err := g.named(ctx, "/api/v1/persistentvolumes", claim.Spec.VolumeName)
	if err != nil {
		return found, err
	}
	if volume == nil {
		return found, fmt.Errorf("the volume %s has gone", claim.Spec.VolumeName)
	}
	folder := volume.Spec.HostPath.Path
	if folder == "" {
		folder = volume.Spec.Local.Path
	}
	found.Path = path.Clean(folder)
	if err := backup.CheckClaimFolder(c.Name, found.Path); err != nil {
		return found, err
	}
	if on := nodeOf(*volume, nodes); on != g.Config.Node {
		if on == "" {
			on = "another node"
		}
		return found, fmt.Errorf("it is on %s, and a server reaches the disks of no other host", on)
	}
	report, err := g.saveClaim(ctx, found)
	found.Entries, found.Bytes = report.Entries, report.Bytes
	return found, err
}

// saveClaim writes the files of a claim. Nothing is left of what fails.
func (g *gathering) saveClaim(ctx context.Context, c backup.Claim) (report foldertar.Report, err error) {
	to, err := g.path(backup.ClaimFiles(c.Namespace, c.Name))
	if err != nil {
		return report, err
	}
	const tries = 3 // a file that is cut once is whole the next time
	for range tries {
		if report, err = g.trySaveClaim(ctx, c, to); !errors.Is(err, foldertar.ErrChanged) {
			break
		}
	}
	if err != nil {
		err = errors.Join(err, os.Remove(to))
	}
	return report, err
}

func (g *gathering) trySaveClaim(ctx context.Context, c backup.Claim, to string) (report foldertar.Report, err error) {
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	room, err := roomFor(out)
	if err != nil {
		return report, err
	}
	return foldertar.Write(ctx, g.Root+c.Path, &bounded{out, room})
}

// roomFor is how much may be written to a file that a backup is made of: the backup is written beside it, and a tenth
// of the disk is for others.
func roomFor(f *os.File) (int64, error) {
	var space unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &space); err != nil {
		return 0, err
	}
	free := (int64(space.Bavail) - int64(space.Blocks)/10) * space.Bsize
	return min(max(0, free/2), backup.MaxClaimFiles), nil
}

// bounded takes no more than there is room for.
type bounded struct {
	io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errors.New("the disk has no room for it")
	}
	return b.Writer.Write(p)
}
