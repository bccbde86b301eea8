package recovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/config/workloads"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/foldertar"
	"github.com/liteboxd/boxlift/internal/progress"
)

// claims gathers the files of the claims that install.yaml names, each from the node that has its volume.
func (g *gathering) claims(ctx context.Context) error {
	var gathered []backup.Claim
	for _, w := range g.recovery.Site.Config.Workloads {
		for _, name := range w.BackupClaims {
			c, err := g.claim(ctx, w, name)
			if err != nil {
				return fmt.Errorf("workload %s: %w", w.Name, err)
			}
			if c != nil {
				gathered = append(gathered, *c)
			}
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

// claim gathers the files of a claim. It is nil, and told of, for one that is not there yet, or whose host is down: a
// host that is down is one more reason to make a backup.
func (g *gathering) claim(ctx context.Context, w workloads.Workload, name string) (*backup.Claim, error) {
	c := &backup.Claim{Workload: w.Name, Namespace: w.Namespace, Name: name}
	found, err := g.recovery.Site.API.Claim(ctx, c.Namespace, name)
	if err != nil {
		return nil, err
	}
	if found == nil || found.Volume == "" {
		g.recovery.Site.Warn(
			"the backup is without the files of the claim %s, which workloads of install.yaml name: it has "+
				"no volume", c)
		return nil, nil //nolint:nilnil // there is nothing to be had
	}
	c.Node, c.Path = found.Node, found.Path
	if err := backup.CheckClaimFolder(name, c.Path); err != nil {
		return nil, fault.WithHint(
			fmt.Errorf("%w: back up the claim %s: %w", site.ErrRefused, c, err), "take it out of "+
				"backup.claims of the workload in install.yaml, and back it up with the storage's own tools")
	}
	h, err := g.recovery.Site.HostOf(ctx, c.Node)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		g.recovery.Site.Warn("the backup is without the files of the claim %s: %v", c, err)
		return nil, nil //nolint:nilnil // there is nothing to be had
	}
	to, err := g.path(backup.ClaimFiles(c.Namespace, name))
	if err == nil {
		err = saveClaim(ctx, h, c, to)
	}
	if err != nil {
		return nil, fmt.Errorf("back up the claim %s: %w", c, err)
	}
	return c, nil
}

// saveClaim brings the files of a claim here, and counts them.
func saveClaim(ctx context.Context, h *site.Host, c *backup.Claim, to string) error {
	cmd := machine.Command{Title: "copy the files of the claim " + c.String(),
		Args: []string{site.HelperPath, "save-folder", "-dir", c.Path}, Root: true}
	const tries = 3 // a file that is cut once is whole the next time
	for i := range tries {
		err := h.FetchOutput(ctx, cmd, to, backup.MaxClaimFiles)
		if err == nil {
			break
		}
		if i == tries-1 || !strings.Contains(err.Error(), foldertar.ErrChanged.Error()) {
			return olderHelper(err)
		}
	}
	f, err := os.Open(to)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	report, err := foldertar.Check(ctx, f)
	c.Entries, c.Bytes = report.Entries, report.Bytes
	return err
}

// olderHelper tells of a boxlift-node that does not know a command yet.
func olderHelper(err error) error {
	const usageExit = 2
	var exit *machine.ExitError
	if errors.As(err, &exit) && exit.Code == usageExit {
		return fault.WithHint(err, "boxlift-node on the host is of an older boxlift: install with a bundle that this boxlift "+
			"built, or take backup.claims out of install.yaml")
	}
	return err
}

// isAsked reports whether install.yaml names a claim to be backed up.
func (rv *Recovery) isAsked(c backup.Claim) bool {
	return slices.ContainsFunc(rv.Site.Config.Workloads, func(w workloads.Workload) bool {
		return w.Namespace == c.Namespace && slices.Contains(w.BackupClaims, c.Name)
	})
}

// checkClaims makes sure that a backup has the files of all claims that install.yaml names: on new hosts their
// workloads would begin without them.
func (rv *Recovery) checkClaims(r *backup.Reader) error {
	for _, w := range rv.Site.Config.Workloads {
		for _, name := range w.BackupClaims {
			if !slices.ContainsFunc(r.Claims(), func(c backup.Claim) bool {
				return c.Namespace == w.Namespace && c.Name == name
			}) {
				return fault.WithHint(
					fmt.Errorf("%w: the backup has no files of the claim %s/%s, which the workload %s of "+
						"install.yaml names", site.ErrRefused, w.Namespace, name, w.Name), "take a backup that has them; to "+
						"restore without, take the claim out of backup.claims in install.yaml")
			}
		}
	}
	return nil
}

// CheckClaimNodes makes sure that the nodes that claims of a backup belong to are there. What is known of the hosts by
// now tells their nodes.
func (rv *Recovery) CheckClaimNodes() error {
	if rv.Restoring == nil {
		return nil
	}
	for _, c := range rv.Restoring.Claims() {
		if slices.ContainsFunc(rv.Site.Hosts, func(h *site.Host) bool { return h.NodeName() == c.Node }) {
			continue
		}
		if !rv.isAsked(c) {
			rv.Site.Warn(
				"the files of the claim %s are not brought back: they belong to the node %s, which is that of no host "+
					"of install.yaml", c, c.Node)
			continue
		}
		return fault.WithHint(
			fmt.Errorf("%w: the files of the claim %s belong to the node %s, which is that of no host of "+
				"install.yaml", site.ErrRefused, c, c.Node), "give a host the node's name; to restore without these files, take "+
				"the claim out of backup.claims in install.yaml")
	}
	return nil
}

// checkRoom makes sure that the files of claims fit onto a host beside what is there.
func (rv *Recovery) checkRoom(ctx context.Context, h *site.Host) error {
	const script = `dir=$1
while [ ! -d "$dir" ]; do dir=${dir%/*}; done
df -Pk "${dir:-/}"`
	const perEntry = 4096 // bytes of the file system's own
	needed, free := make(map[string]int64), make(map[string]int64)
	for _, c := range rv.Restoring.Claims() {
		if c.Node != h.NodeName() {
			continue
		}
		if there, err := rv.isBack(ctx, h, c); err != nil {
			return err
		} else if there {
			continue
		}
		out, err := h.Root(ctx, "look for room for the claim "+c.String(), "/bin/sh", "-c", script, "sh", c.Path)
		if err != nil {
			return err
		}
		disk, left, err := parseFree(string(out))
		if err != nil {
			return fmt.Errorf("look for room for the claim %s: %w", c, err)
		}
		needed[disk] += c.Bytes + int64(c.Entries)*perEntry
		if free[disk] = left; needed[disk] > left {
			return fault.OnHost(fmt.Errorf(
				"%w: the files of the claim %s have no room: %s are needed on %s beside what is "+
					"there, and %s are free", site.ErrRefused, c, progress.Bytes(needed[disk]), disk, progress.Bytes(left)), h.Name)
		}
	}
	return nil
}

// parseFree reads what df -Pk prints (POSIX): the device, and how many bytes are free.
func parseFree(text string) (device string, free int64, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if fields := strings.Fields(lines[len(lines)-1]); len(lines) == 2 && len(fields) >= 6 {
		const most = 1 << 50 // KiB
		if kib, err := strconv.ParseInt(fields[3], 10, 64); err == nil && kib >= 0 && kib < most {
			return fields[0], kib << 10, nil
		}
	}
	return "", 0, fmt.Errorf("df printed %.200q", text)
}

// backFile is the note that the files of a claim are back: who goes on after them needs no room for them once more.
func backFile(c backup.Claim) string {
	return path.Join(run.RestoreDir, "claim_"+c.Namespace+"_"+c.Name) // no name has an underscore
}

// isBack reports whether this restore has brought back the files of a claim.
func (rv *Recovery) isBack(ctx context.Context, h *site.Host, c backup.Claim) (bool, error) {
	id, err := h.Read(ctx, backFile(c))
	return id == rv.Restoring.ID, err
}

// restoreClaims puts the files of claims where they were, before anything can use them there.
func (r *hostRestore) restoreClaims(ctx context.Context) error {
	for _, c := range r.recovery.Restoring.Claims() {
		if c.Node != r.host.NodeName() {
			continue
		}
		if there, err := r.recovery.isBack(ctx, r.host, c); err != nil {
			return err
		} else if there {
			continue
		}
		content, e, err := r.recovery.Restoring.Open(backup.ClaimFiles(c.Namespace, c.Name))
		if err != nil {
			return err
		}
		if _, err := r.host.Conn.Run(ctx, machine.Command{
			Title: "bring back the files of the claim " + c.String(), Root: true, Stdin: content,
			Args: []string{site.HelperPath, "restore-folder", "-dir", c.Path, "-sha256", e.SHA256},
		}); err != nil {
			return olderHelper(err)
		}
		if _, err := r.host.Root(ctx, "make a folder for notes", "mkdir", "-p", "-m", "0700", run.RestoreDir); err != nil {
			return err
		}
		if err := r.host.Put(ctx, backFile(c), 0o600, []byte(r.recovery.Restoring.ID+"\n")); err != nil {
			return err
		}
	}
	return nil
}
