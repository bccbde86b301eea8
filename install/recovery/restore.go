package recovery

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/printable"
)

// A backup is restored by an installation: what a host lacks is brought as always, and
// between setting k3s up and starting it, its data is put back in the order that upstream
// documents (k3s documentation, "Backup and Restore" and "Roll Back"): k3s and all
// containers end on every host; the first server takes the datastore back and starts; the
// others forget theirs and join it.

// Restore says what to bring a cluster back from.
type Restore struct {
	// Backup has been verified by the caller.
	Backup *backup.Reader
	// Replace lets hosts lose the cluster that they have now. Without it, one that has any
	// is refused.
	Replace bool
}

// restoring is a restore that is going on.
type restoring struct {
	*backup.Reader
	// Id tells this restore from others, also of the same backup. One that is gone on with
	// keeps its id, so that no host is restored twice.
	ID string
}

// CheckRestore makes sure that the bundle brings what the backup was made of, and reads
// what is needed before any host is asked.
func (rv *Recovery) CheckRestore() error {
	if rv.Restore == nil {
		return nil
	}
	r := rv.Restore.Backup
	m := r.Manifest()
	switch {
	case rv.Engine.Scope != run.Everything || rv.Engine.Only != nil:
		return fmt.Errorf("%w: a backup is restored as a whole, to all hosts of install.yaml", site.ErrRefused)
	case m.Cluster != rv.Site.Config.Cluster.Name:
		return fmt.Errorf("%w: the backup is of the cluster %q, install.yaml describes %q", site.ErrRefused, m.Cluster,
			rv.Site.Config.Cluster.Name)
	case m.K3s != rv.Site.K3s:
		return fmt.Errorf("%w: the backup was made with k3s %s, the bundle carries %s: give the bundle %s, which the "+
			"cluster ran then", site.ErrRefused, m.K3s, rv.Site.K3s, site.OrUnknown(site.Short(m.Bundle)))
	case m.Datastore == backup.SQLite && len(rv.Site.Servers()) > 1:
		return fmt.Errorf("%w: the backup is of one server with SQLite, install.yaml has %s: restore it to one "+
			"server, and add the others after that", site.ErrRefused, printable.Counted(len(rv.Site.Servers()), "server"))
	}
	if m.Bundle == "" {
		rv.Site.Warn("the backup does not say which bundle the cluster ran then: Cilium and LiteBoxd are brought to " +
			"this one's versions")
	} else if digest := rv.Site.Bundle.Digest().String(); m.Bundle != digest {
		rv.Site.Warn("the backup was made when the cluster ran the bundle %s, this one is %s: Cilium and LiteBoxd "+
			"are brought to this one's versions", site.Short(m.Bundle), site.Short(digest))
	}
	const most = 4 << 10
	full, err := r.ReadSmall(backup.Token, most)
	if err != nil {
		return err
	}
	_, password, ok := strings.Cut(strings.TrimSpace(string(full)), "::server:")
	if !ok || password == "" || strings.ContainsAny(password, " \n") {
		return fmt.Errorf("%w: %s has no token of a server", backup.ErrInvalid, backup.Token)
	}
	encrypts, err := rv.checkSecrets(r)
	if err != nil {
		return err
	}
	if err := rv.checkClaims(r); err != nil {
		return err
	}
	rv.Restoring = &restoring{Reader: r, ID: r.Digest()}
	rv.Cluster.Restoration = &k3s.Restoration{Token: password, Encrypts: encrypts, Step: func(n *k3s.Node) run.Step {
		return (&hostRestore{recovery: rv, host: n.Host, node: n}).step()
	}}
	if !r.Has(backup.AgentToken) {
		return nil
	}
	agents, err := r.ReadSmall(backup.AgentToken, most)
	if err != nil {
		return err
	}
	rv.Cluster.Restoration.AgentToken = strings.TrimSpace(string(agents))
	if rv.Cluster.Restoration.AgentToken == "" || strings.ContainsAny(rv.Cluster.Restoration.AgentToken, " \n:") {
		return fmt.Errorf("%w: %s has no password of agents", backup.ErrInvalid, backup.AgentToken)
	}
	return nil
}

// BeginRestore notes the restore as a run. One of the same backup that was broken off is
// gone on with unasked: to begin anew would undo what the cluster has done since.
func (rv *Recovery) BeginRestore(run journal.Run, last journal.State) error {
	sum := sha256.Sum256([]byte(run.Config + "\n" + rv.Restoring.Digest()))
	run.Config = hex.EncodeToString(sum[:])
	file, err := filepath.Abs(rv.Restoring.Path())
	if err != nil {
		return fmt.Errorf("find the folder of the backup: %w", err)
	}
	run.BackupFile = file
	begin := func() error { return rv.Engine.Journal.Begin(run) }
	if last.Unfinished() && last.Verb == run.Verb && last.Command == run.Command && last.Config == run.Config &&
		last.Bundle == run.Bundle {
		begin = func() error { return rv.Engine.Journal.Resume(run.Flags) }
	}
	if err := begin(); err != nil {
		return err
	}
	rv.Restoring.ID = rv.Restoring.Digest() + " " + rv.Engine.Journal.State().Started.Format(time.RFC3339Nano)
	return nil
}

// CheckRestoring keeps runs away from a host that waits for its data: started without it,
// k3s would go on with what was there before, beside servers that no longer have it.
func (rv *Recovery) CheckRestoring(ctx context.Context, h *site.Host) error {
	switch {
	case rv.Restoring == nil && h.AwaitsRestore:
		return rv.Engine.RestoringError()
	case rv.Restoring == nil:
		return nil
	}
	restored, err := h.Read(ctx, run.RestoredFile)
	if err != nil || restored == rv.Restoring.ID {
		return err
	}
	if !rv.Restore.Replace && !h.AwaitsRestore && (h.Member || h.Joined != "") {
		return fmt.Errorf("%w: the host has a cluster already, which it would lose: boxlift backup restore replaces a "+
			"cluster by a backup of it", site.ErrRefused)
	}
	return rv.checkRoom(ctx, h)
}

// UnfinishedRestore is the backup of a restore with a bundle that began on hosts and did not
// end, "" for none. Of a state that cannot be read, nothing is known.
func UnfinishedRestore(statePath string, bundle digest.Digest) string {
	last, err := journal.Read(statePath)
	if err != nil || !run.RestoreBegan(last) || last.Bundle != bundle.String() {
		return ""
	}
	return last.BackupFile
}

// StopToRestore ends k3s on all hosts, agents first, with all that runs in it: what goes on
// would be of another time than the data.
func (rv *Recovery) StopToRestore(ctx context.Context) error {
	if rv.Restoring == nil {
		return nil
	}
	for _, hosts := range [][]*site.Host{rv.Site.Agents(), rv.Site.Servers()} {
		if err := rv.Engine.EachHost(ctx, hosts, func(ctx context.Context, h *site.Host) error {
			return rv.Engine.RunSteps(ctx, run.RestorePhase, &h.Subject, []run.Step{rv.stopStep(h)})
		}); err != nil && !rv.Engine.GoesOn(err) {
			return err
		}
	}
	// The first server begins the cluster once more, whichever one began it first.
	for i, h := range rv.Site.Servers() {
		h.Joined, h.Member = "", i == 0
	}
	for _, h := range rv.Site.Agents() {
		h.Joined = ""
	}
	return nil
}

func (rv *Recovery) stopStep(h *site.Host) run.Step {
	service := site.Unit(h.Config.Role)
	// The host waits for its data from the first note on, and has been stopped only with the second one: who breaks it
	// off in between leaves pods that go on.
	const script = `set -e
id=$(cat)
note() {
    printf '%s\n' "$1" >"$2.boxlift-new"
    mv "$2.boxlift-new" "$2"
    sync
}
mkdir -p "$(dirname "$2")"
note stopping "$2"
[ ! -e "/etc/systemd/system/$1.service" ] || systemctl disable --now --quiet "$1.service"
if [ -x /usr/local/bin/k3s-killall.sh ]; then
` + members.TakeCiliumOut + `
    /usr/local/bin/k3s-killall.sh >/dev/null 2>&1 </dev/null || :
fi
note "$id" "$2"`
	return run.Step{
		ID: "stop-k3s", Title: "stop " + service + " and all that runs in it",
		Needed: func(ctx context.Context) (string, error) {
			restored, err := h.Read(ctx, run.RestoredFile)
			if err != nil || restored == rv.Restoring.ID {
				return "", err
			}
			waiting, err := h.Read(ctx, run.RestoringFile)
			if err != nil {
				return "", err
			}
			state, err := machine.FindService(ctx, h.Conn, service)
			// What systemd does not say, or a stop that goes on, is none.
			if err != nil || waiting == rv.Restoring.ID && (state.Active == "inactive" || state.Active == "failed") {
				return "", err
			}
			return "the backup of " + rv.Restoring.Manifest().Time.Format(time.RFC3339) + " is to be restored", nil
		},
		Run: func(ctx context.Context) error {
			return rv.Site.Meter.Wait(func() error {
				_, err := h.Conn.Run(ctx, machine.Command{
					Title: "stop " + service, Args: []string{"/bin/sh", "-c", script, "sh", service, run.RestoringFile},
					Root:  true,
					Stdin: strings.NewReader(rv.Restoring.ID + "\n"),
				})
				return err
			})
		},
	}
}

// hostRestore brings back what a backup has of one host.
type hostRestore struct {
	recovery *Recovery
	host     *site.Host
	node     *k3s.Node
}

// step brings back what the backup has of a host. It comes right before k3s starts.
func (r *hostRestore) step() run.Step {
	return run.Step{
		ID: "restore-backup", Title: "restore the backup",
		Needed: func(ctx context.Context) (string, error) {
			restored, err := r.host.Read(ctx, run.RestoredFile)
			if err != nil || restored == r.recovery.Restoring.ID {
				return "", err
			}
			return "it is of " + r.recovery.Restoring.Manifest().Time.Format(time.RFC3339), nil
		},
		Run: func(ctx context.Context) error {
			for _, part := range []func(context.Context) error{r.restoreDatastore, r.restorePassword,
				r.restoreLiteBoxd, r.restoreClaims} {
				if err := part(ctx); err != nil {
					return err
				}
			}
			if err := r.host.Put(ctx, run.RestoringFile, 0o600, []byte(r.recovery.Restoring.ID+"\n")); err != nil {
				return err
			}
			// At once: a host that has been restored and waits would do so for ever.
			_, err := r.host.Root(ctx, "end the restore", "/bin/sh", "-c", `rm -rf "$3" && mv -f "$1" "$2" && sync`, "sh",
				run.RestoringFile, run.RestoredFile, run.RestoreDir)
			return err
		},
	}
}

// restoreDatastore gives the first server its data, and takes it from the others.
func (r *hostRestore) restoreDatastore(ctx context.Context) error {
	if r.host.Config.Role != config.Server {
		return nil
	}
	datastore := r.recovery.Restoring.Manifest().Datastore
	switch {
	case r.host != r.recovery.Site.Servers()[0]:
		_, err := r.host.Root(ctx, "remove k3s' old data", "rm", "-rf", k3s.K3sDatabases)
		return err
	case datastore == backup.SQLite:
		if _, err := r.host.Root(ctx, "remove k3s' old data", "/bin/sh", "-c", `rm -rf "$1" && mkdir -p -m 0700 "$1"`,
			"sh", k3s.K3sDatabases); err != nil {
			return err
		}
		return r.putEntry(ctx, backup.SQLiteDatabase, k3s.K3sStateDB)
	}
	if _, err := r.host.Root(ctx, "make a folder for the snapshot", "mkdir", "-p", "-m", "0700",
		run.RestoreDir); err != nil {
		return err
	}
	snapshot := path.Join(run.RestoreDir, path.Base(backup.EtcdSnapshot))
	if err := r.putEntry(ctx, backup.EtcdSnapshot, snapshot); err != nil {
		return err
	}
	return r.resetCluster(ctx, snapshot)
}

// resetCluster lets k3s make a cluster of one server from a snapshot. It runs as a unit of
// its own: what an earlier run has left running would be in its way.
func (r *hostRestore) resetCluster(ctx context.Context, snapshot string) error {
	// k3s refuses to reset twice without a start in between, for which it keeps this file.
	const script = `set -e
systemctl stop "$1.service" 2>/dev/null || :
systemctl reset-failed "$1.service" 2>/dev/null || :
rm -f "$2/reset-flag"
systemd-run --quiet --collect --wait --unit "$1" -- "$3" server --cluster-reset --cluster-reset-restore-path="$4"`
	begin := time.Now()
	err := r.recovery.Site.Meter.Wait(func() error {
		_, err := r.host.Root(ctx, "reset the cluster to the snapshot", "/bin/sh", "-c", script, "sh", run.RestoreUnit,
			k3s.K3sDatabases, site.K3sBinary, snapshot)
		return err
	})
	var exit *machine.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	since := fmt.Sprintf("-%ds", int(time.Since(begin).Seconds())+1)
	out, journalErr := r.host.Root(ctx, "read the journal", "journalctl", "--no-pager", "-o", "cat", "-n", "300",
		"--since", since, "-u", run.RestoreUnit)
	if journalErr != nil {
		return errors.Join(err, journalErr)
	}
	return &setup.ServiceError{Text: "k3s does not restore the snapshot (" + err.Error() + ")",
		Service: run.RestoreUnit, Lines: setup.LastLines(r.node.Redact(string(out)))}
}

// putEntry writes an entry of the backup to the host, for root alone.
func (r *hostRestore) putEntry(ctx context.Context, entry, to string) error {
	content, e, err := r.recovery.Restoring.Open(entry)
	if err != nil {
		return err
	}
	_, err = r.host.Conn.Put(ctx, machine.PutOptions{Path: to, Mode: 0o600, Size: e.Size, SHA256: e.SHA256, Root: true},
		content)
	return err
}

// restorePassword lets the host be taken for the node that it was.
func (r *hostRestore) restorePassword(ctx context.Context) error {
	entry := backup.NodePassword(r.host.NodeName())
	if !r.recovery.Restoring.Has(entry) {
		return nil
	}
	if _, err := r.host.Root(ctx, "make a folder for the node's password", "mkdir", "-p",
		path.Dir(k3s.K3sNodePassword)); err != nil {
		return err
	}
	return r.putEntry(ctx, entry, k3s.K3sNodePassword)
}

// restoreLiteBoxd puts LiteBoxd's database where it was, before anything can use it there.
func (r *hostRestore) restoreLiteBoxd(ctx context.Context) error {
	l := r.recovery.Restoring.Manifest().LiteBoxd
	if l == nil || l.Node != r.host.NodeName() {
		return nil
	}
	content, e, err := r.recovery.Restoring.Open(backup.LiteBoxdDatabase)
	if err != nil {
		return err
	}
	return liteboxd.Place(ctx, r.host, l, e.Size, e.SHA256, content)
}

// Losses is what is lost when a cluster is replaced by a backup of it.
type Losses struct {
	Cluster string    `json:"cluster"`
	Since   time.Time `json:"since"`
	// Unknown is why the cluster could not be asked what it has since then; "" when it was.
	Unknown string `json:"unknown,omitempty"`
	// Releases have changed the cluster since, Nodes have joined, Objects are those of the kinds
	// that people make, no more than maxLostObjects, of which MoreObjects are left. Rows are the
	// templates and the like in LiteBoxd's database that are new, Sandboxes were begun.
	Releases    []string `json:"releases,omitempty"`
	Nodes       []string `json:"nodes,omitempty"`
	Objects     []string `json:"objects,omitempty"`
	MoreObjects int      `json:"moreObjects,omitempty"`
	Rows        []string `json:"rows,omitempty"`
	Sandboxes   []string `json:"sandboxes,omitempty"`
	// Claims are those whose files become what they were.
	Claims []string `json:"claims,omitempty"`
}

// Losses finds out what the cluster has that a backup has not.
func (rv *Recovery) Losses(ctx context.Context, r *backup.Reader) (*Losses, error) {
	m := r.Manifest()
	losses := &Losses{Cluster: m.Cluster, Since: m.Time}
	for _, c := range r.Claims() {
		losses.Claims = append(losses.Claims, c.String())
	}
	before, err := liteboxd.RecordIn(r)
	if err != nil {
		return nil, err
	}
	err = rv.Engine.ConnectServers(ctx, nil)
	if err == nil {
		err = rv.lostReleases(ctx, r, losses)
	}
	if err == nil {
		err = rv.lostObjects(ctx, losses)
	}
	if err == nil {
		err = rv.compareWithBackup(ctx, r, before, losses)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		losses.Unknown = printable.Text(err.Error())
	}
	return losses, nil
}

// lostReleases are those on record that a backup does not have, or not as they are now.
func (rv *Recovery) lostReleases(ctx context.Context, r *backup.Reader, losses *Losses) error {
	now, _, err := run.ReadRecord(ctx, rv.Site.API)
	if err != nil {
		return err
	}
	var before *release.Record
	if r.Has(backup.ReleaseRecord) {
		document, err := r.ReadSmall(backup.ReleaseRecord, release.MaxSize)
		if err != nil {
			return err
		}
		// One that cannot be read has been of no use then: all of them are told.
		before, _ = release.Decode(document)
	}
	losses.Releases = releasesSince(before, now)
	return nil
}

// releasesSince says which releases a record has that an earlier one has not, or in another state.
func releasesSince(before, now *release.Record) []string {
	if now == nil {
		return nil
	}
	var texts []string
	for i := range now.Releases {
		one := &now.Releases[i]
		was := before.Find(one.Number)
		// another one has taken it back
		if was == nil || was.Attempts != one.Attempts || was.State != one.State && one.State != release.RolledBack {
			texts = append(texts, fmt.Sprintf("%d (%s, k3s %s, %s)", one.Number, one.Command,
				site.OrUnknown(one.Version(site.K3sComponent)), one.State))
		}
	}
	return texts
}

// maxLostObjects bounds the objects that are named.
const maxLostObjects = 50

// lostObjects are those that were made since. LiteBoxd's own are brought back by boxlift, and its
// sandboxes are told as such.
func (rv *Recovery) lostObjects(ctx context.Context, losses *Losses) error {
	but := kube.Exceptions{Releases: []kube.ReleaseName{{Namespace: seed.ReleasesNamespace,
		Name: seed.LiteBoxdRelease}}}
	if rv.Site.Config.LiteBoxd != nil {
		but.Namespaces = []string{rv.Site.Config.LiteBoxd.NamespaceSandbox}
	}
	objects, err := rv.Site.API.CreatedSince(ctx, losses.Since, but)
	if err != nil {
		return err
	}
	losses.MoreObjects = max(0, len(objects)-maxLostObjects)
	for _, o := range objects[:len(objects)-losses.MoreObjects] {
		losses.Objects = append(losses.Objects, printable.Text(o.String()))
	}
	return nil
}

func (rv *Recovery) compareWithBackup(ctx context.Context, r *backup.Reader, before *liteboxd.Backup,
	losses *Losses) error {
	m := r.Manifest()
	nodes, err := rv.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if !slices.Contains(m.Nodes, n.Name) {
			losses.Nodes = append(losses.Nodes, n.Name)
		}
	}
	if before == nil || rv.Site.Config.LiteBoxd == nil {
		return nil
	}
	u := rv.Deployer.UpgradeTo("")
	now, err := u.ListSandboxes(ctx)
	if err != nil {
		return err
	}
	for _, s := range now {
		if !slices.ContainsFunc(before.Sandboxes, func(b liteboxd.Sandbox) bool { return b.UID == s.UID }) {
			losses.Sandboxes = append(losses.Sandboxes, fmt.Sprintf("%s on %s", s.Name, s.Node))
		}
	}
	dir, remove, err := backup.ClearFolder(filepath.Dir(r.Path()))
	if err != nil {
		return err
	}
	defer remove() //nolint:errcheck // a copy that nobody needs any more, and the next run removes it
	_, rows, err := u.CopyDatabase(ctx, filepath.Join(dir, liteboxd.BackupDatabase))
	losses.Rows = rows.Missing(before.Rows)
	return err
}
