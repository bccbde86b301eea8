package recovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/images"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/manifests"
	nodeimages "github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/wire"
)

// Settings say where a backup is put, and for whom.
type Settings struct {
	// Dir is the folder where the backup is put, which is made (0700) if need be; "" means that
	// beside the state.
	Dir string
	// Recipients are whom the backup is encrypted to; without any it is in the clear.
	Recipients []age.Recipient
	// Boxlift is the version of this program.
	Boxlift string
}

// BackupsDir is where the backups of a cluster are, beside its state: an absolute path, if
// that can be found out.
func BackupsDir(statePath, cluster string) string {
	dir := filepath.Join(filepath.Dir(statePath), "backups", cluster)
	if absolute, err := filepath.Abs(dir); err == nil {
		return absolute
	}
	return dir
}

// backupDir is the folder that a backup is put in, made if need be.
func (rv *Recovery) backupDir(o Settings) (string, error) {
	dir := o.Dir
	if dir == "" {
		dir = BackupsDir(rv.Site.StatePath, rv.Site.Config.Cluster.Name)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("%w: make the folder for the backup: %w", site.ErrRefused, err)
	}
	return dir, nil
}

// CheckBackupDir refuses what is there and cannot hold a backup, before any host is asked.
func CheckBackupDir(dir string) error {
	info, err := os.Stat(dir)
	if dir == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a folder", dir)
	}
	if err != nil {
		return fmt.Errorf("%w: the folder for the backup: %w", site.ErrRefused, err)
	}
	return nil
}

// unfinishedBackup begins the names of the folders that backups are gathered in.
const unfinishedBackup = ".unfinished-"

// CreateBackup makes a backup of the cluster that in.api leads to. The state is locked.
func (rv *Recovery) CreateBackup(ctx context.Context, o Settings) (_ *backup.Report, err error) {
	dir, err := rv.backupDir(o)
	if err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(dir, unfinishedBackup+rv.Site.Config.Cluster.Name+"-*"))
	if err != nil {
		return nil, err
	}
	for _, folder := range left { // of runs that were killed
		if err := os.RemoveAll(folder); err != nil {
			return nil, err
		}
	}
	staging, err := os.MkdirTemp(dir, unfinishedBackup+rv.Site.Config.Cluster.Name+"-*")
	if err != nil {
		return nil, fmt.Errorf("make a folder to gather the backup in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(staging)) }()
	task := rv.Site.Reporter.Task("back up the cluster", 0)
	g := &gathering{recovery: rv, dir: staging, manifest: backup.Manifest{Cluster: rv.Site.Config.Cluster.Name,
		Boxlift: o.Boxlift}}
	err = g.gather(ctx)
	var report *backup.Report
	if err == nil {
		name := g.manifest.FileName(len(o.Recipients) > 0)
		report, err = backup.Write(ctx, filepath.Join(dir, name), g.manifest, staging, o.Recipients...)
	}
	task.Done(err)
	return report, err
}

// gathering brings the parts of a backup into a folder.
type gathering struct {
	recovery *Recovery
	dir      string
	manifest backup.Manifest
}

// path is where an entry is gathered.
func (g *gathering) path(entry string) (string, error) {
	name := filepath.Join(g.dir, filepath.FromSlash(entry))
	return name, os.MkdirAll(filepath.Dir(name), 0o700)
}

func (g *gathering) write(entry string, content []byte) error {
	name, err := g.path(entry)
	if err != nil {
		return err
	}
	return ownfile.Replace(name, content, 0o600)
}

func (g *gathering) gather(ctx context.Context) error {
	nodes, err := g.recovery.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		g.manifest.Nodes = append(g.manifest.Nodes, n.Name)
	}
	slices.Sort(g.manifest.Nodes)
	if err := g.nodePasswords(ctx, nodes); err != nil {
		return err
	}
	// What LiteBoxd's database tells of the cluster is in the cluster by then.
	if err := g.liteboxd(ctx); err != nil {
		return err
	}
	if err := g.claims(ctx); err != nil {
		return err
	}
	server, err := g.chooseServer(ctx, nodes)
	if err != nil {
		return err
	}
	if err := g.server(ctx, server); err != nil {
		return fault.OnHost(err, server.Name)
	}
	// As it is: what it says of the cluster is for people who have lost it.
	data, _, err := g.recovery.Site.API.VersionedSecret(ctx, release.SecretNamespace, release.SecretName)
	if record := data[release.SecretKey]; err == nil && len(record) > 0 {
		err = g.write(backup.ReleaseRecord, record)
	}
	return err
}

// chooseServer finds a server that runs and has its datastore itself.
func (g *gathering) chooseServer(ctx context.Context, nodes []kube.Node) (*site.Host, error) {
	const script = `if [ -d "$1/etcd/member" ]; then echo etcd; elif [ -f "$1/state.db" ]; then echo sqlite; fi`
	for _, h := range g.recovery.Site.Servers() {
		if h.Conn == nil {
			continue
		}
		n := g.recovery.Site.NodeOf(h, nodes)
		state, err := machine.FindService(ctx, h.Conn, site.Unit(config.Server))
		if err != nil || n == nil || !state.IsReady() {
			continue
		}
		out, err := h.Root(ctx, "look for k3s' datastore", "/bin/sh", "-c", script, "sh", k3s.K3sDatabases)
		if err != nil {
			return nil, err
		}
		switch d := backup.Datastore(strings.TrimSpace(string(out))); d {
		case backup.Etcd, backup.SQLite:
			g.manifest.Datastore, g.manifest.Server = d, n.Name
			return h, nil
		}
		return nil, fmt.Errorf("%w: %s keeps the cluster in no datastore of k3s' own: a database elsewhere is backed "+
			"up with its own tools", site.ErrRefused, h.Name)
	}
	return nil, errors.New("no server that can be logged in to runs k3s")
}

// nodePasswords gathers what nodes show to servers: without them, hosts that were set up
// anew are refused under their old names.
func (g *gathering) nodePasswords(ctx context.Context, nodes []kube.Node) error {
	passwords := make([]string, len(g.recovery.Site.Hosts))
	_ = g.recovery.Engine.EachHost(ctx, g.recovery.Site.Hosts, func(ctx context.Context, h *site.Host) (err error) {
		if h.Conn == nil {
			if err := g.recovery.Site.Connect(ctx, h); err != nil {
				return err
			}
		}
		passwords[slices.Index(g.recovery.Site.Hosts, h)], err = h.Read(ctx, k3s.K3sNodePassword)
		return err
	})
	for i, h := range g.recovery.Site.Hosts {
		n := g.recovery.Site.NodeOf(h, nodes)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case h.Err != nil:
			// A host that is down is one more reason to make a backup.
			g.recovery.Site.Warn("%v; the backup is without that host's node password: after a restore to a host "+
				"that was set up anew, delete its node first", h.Err)
			h.Err = nil
		case n == nil || passwords[i] == "":
		default:
			if err := g.write(backup.NodePassword(n.Name), []byte(passwords[i]+"\n")); err != nil {
				return err
			}
		}
	}
	return nil
}

// liteboxd gathers LiteBoxd's database and key, if it is there.
func (g *gathering) liteboxd(ctx context.Context) error {
	if g.recovery.Site.Config.LiteBoxd == nil {
		return nil
	}
	running, err := helm.Current(ctx, g.recovery.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
	if err != nil || running == nil {
		return err
	}
	folder := filepath.Join(g.dir, backup.LiteBoxdFolder)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	b := &liteboxd.Backup{Format: 1, Cluster: g.recovery.Site.Config.Cluster.Name,
		Time: time.Now().UTC().Truncate(time.Millisecond), From: running.Revision}
	u := g.recovery.Deployer.UpgradeTo("")
	if err := u.FillBackup(ctx, b, folder); err != nil || b.SHA256 == "" {
		return err
	}
	claim, err := g.recovery.Site.API.Claim(ctx, u.System, manifests.DataClaim)
	if err != nil {
		return err
	}
	if claim == nil || claim.Path == "" {
		return fmt.Errorf("the volume of %s/%s has gone meanwhile: run the command again", u.System,
			manifests.DataClaim)
	}
	h, err := g.recovery.Site.HostOf(ctx, claim.Node)
	if err != nil {
		return err
	}
	g.manifest.LiteBoxd, err = liteboxd.Locate(ctx, h, claim.Node, path.Join(claim.Path, liteboxd.DatabaseFile))
	return err
}

// server gathers what a server has: its datastore last of all.
func (g *gathering) server(ctx context.Context, h *site.Host) error {
	var err error
	if g.manifest.K3s, err = h.K3sVersion(ctx); err != nil {
		return err
	}
	if report, err := images.Prune(ctx, h, nodeimages.PruneRequest{Version: nodeimages.PruneVersion}); err == nil {
		g.manifest.Bundle = report.Current.String()
	}
	token, err := h.Read(ctx, k3s.K3sServerToken)
	if err != nil {
		return err
	}
	if token == "" {
		return fmt.Errorf("%s is missing or empty: without the token no backup can be restored", k3s.K3sServerToken)
	}
	if err := g.write(backup.Token, []byte(token+"\n")); err != nil {
		return err
	}
	agents, err := k3s.OwnAgentToken(ctx, h)
	if err != nil {
		return err
	}
	if agents != "" {
		if err := g.write(backup.AgentToken, []byte(agents+"\n")); err != nil {
			return err
		}
	}
	if err := g.serverFiles(ctx, h); err != nil {
		return err
	}
	to, err := g.path(g.manifest.Datastore.Entry())
	if err != nil {
		return err
	}
	g.manifest.Time = time.Now().UTC().Truncate(time.Second)
	if g.manifest.Datastore == backup.SQLite {
		_, err := liteboxd.FetchDatabase(ctx, h, k3s.K3sStateDB, to)
		return err
	}
	return g.etcdSnapshot(ctx, h, to)
}

// mostServerFiles bounds the tar of k3s' files, in bytes.
const mostServerFiles = 1 << 30

// serverFiles gathers k3s' configuration, keys and unit, as they are.
func (g *gathering) serverFiles(ctx context.Context, h *site.Host) error {
	const script = `cd / && for f in "$@"; do [ ! -e "$f" ] || printf '%s\0' "$f"; done | tar -cf - --null -T -`
	var paths []string
	for _, p := range backup.ServerPaths() {
		paths = append(paths, strings.TrimPrefix(p, "/"))
	}
	to, err := g.path(backup.ServerFiles)
	if err != nil {
		return err
	}
	return h.FetchOutput(ctx, machine.Command{Title: "gather k3s' files",
		Args: append([]string{"/bin/sh", "-c", script, "sh"}, paths...), Root: true}, to, mostServerFiles)
}

// snapshotsDir is where snapshots of etcd lie until they have been fetched.
const snapshotsDir = wire.FilesDir + "/etcd-snapshot"

// etcdSnapshot lets k3s make a snapshot in a folder of boxlift's own, and brings it here.
func (g *gathering) etcdSnapshot(ctx context.Context, h *site.Host, to string) (err error) {
	// A name that no run before has left, so that k3s can be told to forget it.
	name := "boxlift-" + g.manifest.Time.Format("20060102150405")
	// What it says is of no use where it goes well, and k3s writes it all to one place.
	const script = `set -e
rm -rf "$1"
mkdir -m 0700 "$1"
"$2" etcd-snapshot save --name "$3" --dir "$1" >&2
find "$1" -type f`
	defer func() {
		removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), site.CleanTimeout)
		defer cancel()
		const script = `for f in "$1"/*; do [ ! -f "$f" ] || "$2" etcd-snapshot delete --dir "$1" "${f##*/}" >/dev/null 2>&1 || :; done; rm -rf "$1"`
		_, removeErr := h.Root(removing, "remove the snapshot", "/bin/sh", "-c", script, "sh", snapshotsDir,
			site.K3sBinary)
		err = errors.Join(err, removeErr)
	}()
	out, err := h.Root(ctx, "make a snapshot of etcd", "/bin/sh", "-c", script, "sh", snapshotsDir, site.K3sBinary,
		name)
	if err != nil {
		return err
	}
	file := strings.TrimSpace(string(out))
	switch {
	case strings.HasSuffix(file, ".zip"):
		return fmt.Errorf("%w: k3s compresses its snapshots, which cannot be proven then: take "+
			"etcd-snapshot-compress out of k3s' config", site.ErrRefused)
	case file == "" || strings.Contains(file, "\n") || path.Dir(file) != snapshotsDir:
		return fmt.Errorf("k3s made no snapshot, but %.200q", file)
	}
	digests, err := machine.Digests(ctx, h.Conn, file)
	if err != nil {
		return err
	}
	return h.Fetch(ctx, file, to, digests[file])
}
