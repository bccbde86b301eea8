package liteboxd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/kube/probe"
	"github.com/liteboxd/boxlift/install/kube/wait"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/database"
	"github.com/liteboxd/boxlift/internal/ownfile"
	"github.com/liteboxd/boxlift/manifests"
	nodedatabase "github.com/liteboxd/boxlift/node/database"
	"github.com/liteboxd/boxlift/node/wire"
)

// Names beside the state. Everything there is the operator's alone (0700, 0600).
const (
	backupsDir       = "liteboxd-backups" // a folder for each backup of LiteBoxd, named by its time
	backupRecord     = "backup.json"
	BackupDatabase   = "liteboxd.db"
	backupKeyFile    = "sandbox-token-encryption-key"
	backupObjects    = "objects.yaml" // what ran then
	backupTimeFormat = "20060102T150405.000Z"
	unfinishedSuffix = ".unfinished"
)

// DatabaseFile is what LiteBoxd calls its database in its volume (v0.6.10).
const DatabaseFile = "liteboxd.db"

// sandboxSelector is that of all pods of sandboxes (v0.6.10), without those that stand in for
// one while the platform's health is looked at.
const sandboxSelector = "app=" + SandboxApp + ",!" + probe.Label

// SandboxApp is the label app of sandboxes' pods; network policies go by it.
const SandboxApp = "liteboxd"

// Backup is the record of a backup of LiteBoxd: of what was kept before it was changed. It is a folder, and not the
// file with a whole cluster that package backup makes.
type Backup = backup.LiteBoxd

// Sandbox is a sandbox's pod.
type Sandbox = backup.Sandbox

// Change changes LiteBoxd under running sandboxes.
type Change struct {
	Deployer          *Deployer
	System, Sandboxes string // namespaces
	target            string // what it is to become
	// seen says when a pod was first seen to leave, by UID; the zero time once it was cut off.
	seen map[string]time.Time
	// DatabaseHost and databaseFolder say where the database is read; nil and "" is where its claim says.
	DatabaseHost   *site.Host
	DatabaseFolder string
}

// UpgradeTo is a change of LiteBoxd to a version or revision.
func (l *Deployer) UpgradeTo(target string) *Change {
	box := l.Site.Config.LiteBoxd
	return &Change{Deployer: l, System: box.NamespaceSystem, Sandboxes: box.NamespaceSandbox, target: target}
}

// changeSteps are a change of LiteBoxd and what has to come after it, also in a run that
// goes on after one that was broken off in between.
func (u *Change) changeSteps(change run.Step) []run.Step {
	apply := change.Run
	change.Run = func(ctx context.Context) error { return u.roll(ctx, apply) }
	return []run.Step{change, u.drainStep(), u.CompareStep()}
}

// BackupStep keeps what an upgrade could destroy: the database, whose form moves forward
// only, and the key, without which its tokens are worth nothing.
func (u *Change) BackupStep(differs func() (string, error)) run.Step {
	var from int
	return run.Step{
		ID: "back-up-liteboxd", Title: "back up LiteBoxd",
		Needed: func(ctx context.Context) (string, error) {
			if u.Deployer.Site.API == nil {
				return "", nil
			}
			running, err := helm.Current(ctx, u.Deployer.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
			if err != nil || running == nil {
				return "", err
			}
			from = running.Revision
			reason, err := differs()
			if err != nil || reason == "" {
				return "", err
			}
			if made, dir, err := u.uncompared(); err != nil || made != nil && u.Deployer.Engine.Resume {
				u.Deployer.Site.Backup = dir
				return "", err
			}
			return "LiteBoxd is about to be changed: " + reason, nil
		},
		Run: func(ctx context.Context) error { return u.backUp(ctx, from) },
	}
}

// backUp keeps all that is needed to go back.
func (u *Change) backUp(ctx context.Context, from int) error {
	now := time.Now().UTC().Truncate(time.Millisecond)
	return u.MakeBackup(ctx, &Backup{Format: 1, Cluster: u.Deployer.Site.Config.Cluster.Name, Time: now, From: from,
		To: u.target})
}

// MakeBackup makes the folder of a backup of LiteBoxd. It has its name only when it is complete.
func (u *Change) MakeBackup(ctx context.Context, b *Backup) error {
	dir := filepath.Join(u.Deployer.Site.Beside(backupsDir), b.Time.Format(backupTimeFormat))
	unfinished := dir + unfinishedSuffix
	left, err := filepath.Glob(filepath.Join(u.Deployer.Site.Beside(backupsDir), "*"+unfinishedSuffix))
	if err != nil {
		return err
	}
	for _, folder := range left { // of runs that were killed; the state is locked
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(unfinished, 0o700); err != nil {
		return err
	}
	if err := u.FillBackup(ctx, b, unfinished); err != nil {
		return errors.Join(err, os.RemoveAll(unfinished))
	}
	if err := os.Rename(unfinished, dir); err != nil {
		return err
	}
	u.Deployer.Site.Backup = dir
	return nil
}

// FillBackup brings what a backup of LiteBoxd consists of into a folder, and writes its record.
func (u *Change) FillBackup(ctx context.Context, b *Backup, dir string) error {
	var err error
	if b.Sandboxes, err = u.ListSandboxes(ctx); err != nil {
		return err
	}
	keys, err := u.Deployer.Site.API.Secret(ctx, u.System, manifests.KeysSecret)
	if err != nil {
		return err
	}
	objects, err := helm.Manifest(ctx, u.Deployer.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease)
	if err != nil && !errors.Is(err, helm.ErrNoRevision) {
		return err
	}
	if len(keys[keyVariable]) == 0 {
		return fmt.Errorf("the Secret %s/%s has no key: without it a backup of the database is worth nothing; put "+
			"the key of an earlier backup there", u.System, manifests.KeysSecret)
	}
	for name, content := range map[string][]byte{backupKeyFile: keys[keyVariable], backupObjects: objects} {
		if err := ownfile.Replace(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	if b.SHA256, b.Rows, err = u.CopyDatabase(ctx, filepath.Join(dir, BackupDatabase)); err != nil {
		return err
	}
	return writeBackup(b, dir)
}

// writeBackup writes the record of a backup of LiteBoxd into its folder.
func writeBackup(b *Backup, dir string) error {
	content, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return ownfile.Replace(filepath.Join(dir, backupRecord), append(content, '\n'), 0o600)
}

// LastBackup is the newest of those that are wanted, and its folder; nil when there is none.
func (l *Deployer) LastBackup(wanted func(*Backup) bool) (*Backup, string, error) {
	folders, err := BackupFolders(l.Site)
	if err != nil {
		return nil, "", err
	}
	for _, dir := range slices.Backward(folders) {
		b, err := ReadBackup(dir)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, "", err
		case wanted(b):
			return b, dir, nil
		}
	}
	return nil, "", nil
}

// BackupFolders are those of the backups of LiteBoxd beside the state, the newest last.
func BackupFolders(s *site.Site) ([]string, error) {
	entries, err := os.ReadDir(s.Beside(backupsDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []string
	for _, e := range entries { // sorted by name, which is the time
		if !strings.HasSuffix(e.Name(), unfinishedSuffix) {
			all = append(all, filepath.Join(s.Beside(backupsDir), e.Name()))
		}
	}
	return all, nil
}

// ReadBackup reads the record of the backup of LiteBoxd in a folder.
func ReadBackup(dir string) (*Backup, error) {
	content, err := os.ReadFile(filepath.Join(dir, backupRecord))
	var b Backup
	if err == nil {
		err = json.Unmarshal(content, &b)
	}
	if err != nil {
		return nil, fmt.Errorf("read the backup of LiteBoxd in %s: %w", dir, err)
	}
	return &b, nil
}

// ListSandboxes lists the pods of sandboxes.
func (u *Change) ListSandboxes(ctx context.Context) ([]Sandbox, error) {
	pods, err := u.Deployer.Site.API.Pods(ctx, u.Sandboxes, sandboxSelector)
	if err != nil {
		return nil, err
	}
	list := make([]Sandbox, 0, len(pods))
	for _, p := range pods {
		list = append(list, Sandbox{Name: p.Name, UID: p.UID, Node: p.Node, Restarts: p.Restarts})
	}
	return list, nil
}

// CopyDatabase brings a consistent copy of the database here and proves that it is sound.
// Without a database yet, all it returns is empty.
func (u *Change) CopyDatabase(ctx context.Context, to string) (digest string, rows database.Keys, err error) {
	h, folder, err := u.findDatabase(ctx)
	if err != nil || h == nil {
		return "", nil, err
	}
	source := folder + "/" + DatabaseFile
	digests, err := machine.Digests(ctx, h.Conn, source)
	if err != nil || digests[source] == "" {
		return "", nil, err
	}
	if digest, err = FetchDatabase(ctx, h, source, to); err != nil {
		return "", nil, fmt.Errorf("copy LiteBoxd's database: %w", err)
	}
	if rows, err = database.Read(ctx, to, backup.KeptTables()...); err != nil {
		return "", nil, fmt.Errorf("LiteBoxd's database: %w", err)
	}
	return digest, rows, nil
}

// findDatabase finds the host and the folder of the volume with the database; the host is nil when there is no
// volume yet.
func (u *Change) findDatabase(ctx context.Context) (h *site.Host, folder string, err error) {
	if u.DatabaseHost != nil {
		return u.DatabaseHost, u.DatabaseFolder, nil
	}
	claim, err := u.Deployer.Site.API.Claim(ctx, u.System, manifests.DataClaim)
	if err != nil || claim == nil || claim.Volume == "" {
		return nil, "", err
	}
	if claim.Path == "" {
		return nil, "", fmt.Errorf("the volume %s of %s/%s, which is %s, cannot be read on any node now: "+
			"for a volume that is not a folder of a node, a pod has to run that mounts it",
			claim.Volume, u.System, manifests.DataClaim, claim.Phase)
	}
	h, err = u.Deployer.Site.HostOf(ctx, claim.Node)
	if err != nil {
		return nil, "", fmt.Errorf("find the volume of %s/%s: %w", u.System, manifests.DataClaim, err)
	}
	return h, claim.Path, nil
}

// FetchDatabase brings a consistent copy of a SQLite database that is in use here.
func FetchDatabase(ctx context.Context, h *site.Host, source, to string) (digest string, err error) {
	snapshot, err := snapshot(ctx, h, source)
	if err != nil {
		return "", err
	}
	err = h.Fetch(ctx, snapshotTarget, to, snapshot.SHA256)
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), site.CleanTimeout)
	defer cancel()
	if _, removeErr := h.Root(removing, "remove the copy of the database", "rm", "-f", snapshotTarget); err == nil {
		err = removeErr
	}
	return snapshot.SHA256, err
}

// snapshot lets the helper copy a database that is in use.
func snapshot(ctx context.Context, h *site.Host, source string) (s nodedatabase.Report, err error) {
	out, err := h.Root(ctx, "copy a database", site.HelperPath, "snapshot-sqlite", "--source", source, "--target",
		snapshotTarget)
	if err != nil {
		return s, err
	}
	if err = json.Unmarshal(out, &s); err == nil && s.SHA256 == "" { // without one, any content would be taken
		err = errors.New("it has no sha256")
	}
	if err != nil {
		return s, fmt.Errorf("the answer of boxlift-node cannot be read: %w", err)
	}
	return s, nil
}

// snapshotTarget is where copies of databases lie until they have been fetched, under a name
// that the helper takes for a temporary file.
const snapshotTarget = wire.FilesDir + "/.boxlift-put-liteboxd.db"

// roll applies a change.
func (u *Change) roll(ctx context.Context, apply func(context.Context) error) error {
	task := u.Deployer.Site.Reporter.Task("wait for LiteBoxd", 0)
	stop := u.forceLater(ctx)
	err := apply(ctx)
	stop()
	task.Done(err)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// Nothing follows a step that failed, and what was lost has to be told all the same.
	before, dir, readErr := u.uncompared()
	if before == nil {
		return errors.Join(err, readErr)
	}
	return errors.Join(err, u.compareWith(ctx, before, dir))
}

// drainStep waits until the pods that were replaced have ended: they let their users'
// connections go on for a while.
func (u *Change) drainStep() run.Step {
	return run.Step{
		ID: "drain-liteboxd", Title: "let the replaced pods of LiteBoxd end", Proves: true,
		Run: func(ctx context.Context) error {
			if reason, err := u.drainReason(ctx); err != nil || reason == "" {
				return err
			}
			stop := u.forceLater(ctx)
			defer stop()
			task := u.Deployer.Site.Reporter.Task("wait for the replaced pods", 0)
			err := u.Deployer.Site.Meter.Wait(func() error { return u.awaitDrained(ctx) })
			task.Done(err)
			return err
		},
	}
}

// drainReason says which pods are still to end, "" for none.
func (u *Change) drainReason(ctx context.Context) (string, error) {
	leaving, err := u.leaving(ctx)
	if len(leaving) == 0 {
		return "", err
	}
	return podNames(leaving) + " still have connections", err
}

// uncompared is the backup that was made for this change, until the cluster was compared
// with it; nil when there is none.
func (u *Change) uncompared() (*Backup, string, error) {
	// One that was made before data was given up is of no change.
	b, dir, err := u.Deployer.LastBackup(func(b *Backup) bool { return b.To != "" })
	if b != nil && (b.Compared || b.To != u.target || b.Cluster != u.Deployer.Site.Config.Cluster.Name) {
		b = nil
	}
	return b, dir, err
}

// CloseBackup notes that nothing is to be compared any more with the backup that was made for this change: who goes on
// makes another one.
func (u *Change) CloseBackup() error {
	b, dir, err := u.uncompared()
	if err != nil || b == nil {
		return err
	}
	b.Compared = true
	return writeBackup(b, dir)
}

// awaitDrained waits until no pod of the control plane is on its way out.
func (u *Change) awaitDrained(ctx context.Context) error {
	const margin = time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, u.Deployer.Site.Config.LiteBoxd.TerminationGrace+margin,
		errors.New("they take longer than they are given"))
	defer cancel()
	leaving, err := u.leaving(ctx)
	if err != nil {
		return err
	}
	return wait.Gone(ctx, u.Deployer.Site.API, leaving, u.Deployer.Site.Awaits(""))
}

// leaving are the pods of the control plane that have been told to end. Nobody ends those on
// nodes that are left out.
func (u *Change) leaving(ctx context.Context) ([]kube.Pod, error) {
	pods, err := u.Deployer.Site.API.Pods(ctx, u.System, "")
	pods = slices.DeleteFunc(pods, func(p kube.Pod) bool { return p.Terminating.IsZero() })
	if err != nil || len(pods) == 0 {
		return nil, err
	}
	nodes, err := u.Deployer.Site.API.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	return podsBeside(u.Deployer.Site.LeftOut(nodes), pods), nil
}

// podsBeside are the pods that are on none of the nodes.
func podsBeside(nodes []kube.Node, pods []kube.Pod) []kube.Pod {
	return slices.DeleteFunc(pods, func(p kube.Pod) bool {
		return slices.ContainsFunc(nodes, func(n kube.Node) bool { return n.Name == p.Node })
	})
}

// forceLater ends pods that still have connections when the operator's patience with them
// ends.
func (u *Change) forceLater(ctx context.Context) (stop func()) {
	if u.Deployer.ForceAfter <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = site.Poll(ctx, func(ctx context.Context) (bool, error) {
			u.endOverdue(ctx)
			return false, nil // until it is told to stop
		})
	}()
	return func() {
		cancel()
		<-done
	}
}

// endOverdue ends the pods that were seen to leave for longer than they may take. What fails
// is tried again, and the wait for them will say what is wrong.
func (u *Change) endOverdue(ctx context.Context) {
	leaving, err := u.leaving(ctx)
	if err != nil {
		return
	}
	if u.seen == nil {
		u.seen = make(map[string]time.Time)
	}
	var overdue []kube.Pod
	for _, p := range leaving {
		since, known := u.seen[p.UID]
		switch {
		case !known:
			u.seen[p.UID] = time.Now()
		case !since.IsZero() && time.Since(since) >= u.Deployer.ForceAfter:
			overdue = append(overdue, p)
		}
	}
	if len(overdue) == 0 {
		return
	}
	u.Deployer.Site.Reporter.Message(fmt.Sprintf("%v are over: cutting off the connections of %s",
		u.Deployer.ForceAfter, podNames(overdue)))
	const grace = time.Second
	if err := u.Deployer.Site.API.EndPods(ctx, overdue, grace); err != nil {
		return
	}
	for _, p := range overdue {
		u.seen[p.UID] = time.Time{} // once is enough
	}
}

func podNames(pods []kube.Pod) string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// CompareStep proves that the change has left sandboxes and data alone.
func (u *Change) CompareStep() run.Step {
	return run.Step{
		ID: "compare-liteboxd", Title: "compare LiteBoxd with its backup", Proves: true,
		Run: func(ctx context.Context) error {
			before, dir, err := u.uncompared()
			if before == nil {
				return err
			}
			u.Deployer.Site.Backup = dir
			return u.compareWith(ctx, before, dir)
		},
	}
}

// compareWith says what was lost, once: no further run would bring it back.
func (u *Change) compareWith(ctx context.Context, before *Backup, dir string) error {
	lost, err := u.Compare(ctx, before, dir)
	if err != nil {
		return err
	}
	before.Compared = true
	if err := writeBackup(before, dir); err != nil {
		return err
	}
	if len(lost) > 0 {
		return fmt.Errorf("since LiteBoxd was changed, %s; what was there before is in %s", strings.Join(lost, "; "),
			dir)
	}
	return nil
}

// Compare lists what was lost since a backup, and warns of what users may have done themselves. In dir a copy of the
// database lies meanwhile.
func (u *Change) Compare(ctx context.Context, before *Backup, dir string) ([]string, error) {
	now, err := u.ListSandboxes(ctx)
	if err != nil {
		return nil, err
	}
	since := before.Time.Format(time.RFC3339)
	gone, restarted := lostSandboxes(before.Sandboxes, now, u.Deployer.Engine.Restores)
	if len(gone) > 0 {
		u.Deployer.Site.Warn("since %s these sandboxes are gone: %s; that is well if their time was up or a user has "+
			"ended them",
			since, strings.Join(gone, ", "))
	}
	if before.SHA256 == "" {
		return restarted, nil
	}
	after := filepath.Join(dir, "after.db")
	_, rows, err := u.CopyDatabase(ctx, after)
	if err != nil {
		return nil, err
	}
	deleted, emptied := lostRows(before.Rows, rows)
	if len(deleted) > 0 {
		u.Deployer.Site.Warn("since %s these rows of LiteBoxd's database are gone: %s; that is well if a user has "+
			"deleted them",
			since, strings.Join(deleted, ", "))
	}
	if err := os.Remove(after); err != nil && !errors.Is(err, fs.ErrNotExist) { // there is none where it has gone
		return nil, err
	}
	return slices.Concat(restarted, emptied), nil
}

// lostRows compares the rows of the tables that a change of LiteBoxd leaves alone. Users go on working
// meanwhile, and may delete some; that none is left of a table's rows, where there were several, is
// not their work.
func lostRows(before, now database.Keys) (deleted, emptied []string) {
	for _, table := range slices.Sorted(maps.Keys(before)) {
		rows := len(before[table])
		missing := database.Keys{table: before[table]}.Missing(now)
		if len(missing) == rows && rows > 1 {
			emptied = append(emptied, fmt.Sprintf("all %d rows of the table %s of the database are gone", rows, table))
			continue
		}
		deleted = append(deleted, missing...)
	}
	return deleted, emptied
}

// lostSandboxes compares sandboxes by what makes a pod this one and no other. Those that are
// gone may have been ended by a user meanwhile, or by their time; a change of LiteBoxd ends
// none. A restore ends every container: there it is no loss that one was started again.
func lostSandboxes(before, now []Sandbox, restoring bool) (gone, restarted []string) {
	for _, b := range before {
		i := slices.IndexFunc(now, func(s Sandbox) bool { return s.UID == b.UID })
		switch {
		case i < 0:
			gone = append(gone, fmt.Sprintf("%s on %s", b.Name, b.Node))
		case now[i].Restarts > b.Restarts && !restoring:
			restarted = append(restarted, fmt.Sprintf("the sandbox %s on %s was started again", b.Name, b.Node))
		}
	}
	return gone, restarted
}
