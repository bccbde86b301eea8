package members

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/localdata"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/manifests"
)

// What a host holds that no other has is lost with it, or waits for it. So nothing is drained, deleted or
// uninstalled before that was looked at, for all hosts of a command before the first is touched, and again
// before each step that cannot be taken back.

const (
	// LocalStorage is where k3s' provisioner makes volumes (k3s v1.36).
	LocalStorage = site.K3sDataDir + "/storage"
	// sandboxClaims is what the claims of persistent sandboxes begin with (v0.6.10).
	sandboxClaims = "sandbox-data-"
	// giveUpFlag is the flag with which data is given up.
	giveUpFlag = "--give-up-the-data-on"
)

// StorageFacts is what the API says of volumes.
func (m *Members) StorageFacts(ctx context.Context) (localdata.Facts, error) {
	s, err := m.Site.API.Storage(ctx)
	if err != nil {
		return localdata.Facts{}, err
	}
	return m.factsOf(s), nil
}

// factsOf adds what claims mean to what the API says.
func (m *Members) factsOf(s kube.Storage) localdata.Facts {
	facts := localdata.Facts{
		Nodes: s.Nodes, Volumes: s.Volumes, Pods: s.Pods, DatabaseClaim: manifests.DataClaim,
		SandboxClaims: sandboxClaims,
	}
	if box := m.Site.Config.LiteBoxd; box != nil {
		facts.DatabaseNamespace, facts.SandboxNamespace = box.NamespaceSystem, box.NamespaceSandbox
	}
	return facts
}

// name is what messages and the state call the host that leaves.
func (r *removal) name() string {
	switch {
	case r.host != nil:
		return r.host.Name
	case len(r.node.Addresses) > 0: // the state is to say where it is when the node is gone
		return r.node.Name + " (" + r.node.Addresses[0] + ")"
	}
	return r.node.Name
}

// isCalled reports whether the host that leaves goes by a name or address.
func (r *removal) isCalled(name string) bool {
	return name != "" && (name == r.node.Name || slices.Contains(r.node.Addresses, name) ||
		r.host != nil && site.IsCalled(r.host.Config, name))
}

// givesUpData reports whether the operator gives up what the host holds.
func (r *removal) givesUpData() bool { return slices.ContainsFunc(r.members.GiveUpDataOn, r.isCalled) }

// checkGivenUp refuses to give up the data of a host that the command does not remove: it may be a slip.
func (m *Members) checkGivenUp(removals []*removal) error {
	for _, name := range m.GiveUpDataOn {
		if !slices.ContainsFunc(removals, func(r *removal) bool { return r.isCalled(name) }) {
			return fmt.Errorf("%w: %s %s: it is none of the hosts to remove", site.ErrRefused, giveUpFlag, name)
		}
	}
	return nil
}

// judgeData refuses removals of hosts with data that is on no other host, unless it is given up. What is given
// up is noted in the removals. Nothing is changed.
func (m *Members) judgeData(ctx context.Context, removals []*removal) error {
	if len(removals) == 0 {
		return nil
	}
	facts, err := m.StorageFacts(ctx)
	if err != nil {
		return err
	}
	var leaving []localdata.Host
	for _, r := range removals {
		if r.seen, err = r.lookForData(ctx, facts); err != nil {
			return err
		}
		leaving = append(leaving, r.seen)
	}
	var refused []localdata.Holding
	held := localdata.Judge(facts, leaving)
	for _, r := range removals {
		r.company = nil
		r.held = slices.DeleteFunc(slices.Clone(held), func(d localdata.Holding) bool { return d.Host != r.name() })
		for _, other := range removals {
			if other != r {
				r.company = append(r.company, localdata.Host{Name: other.name(), Node: other.node.Name})
			}
		}
		if !r.givesUpData() {
			refused = append(refused, r.held...)
		}
	}
	if len(refused) > 0 {
		return &heldError{refused}
	}
	return nil
}

// JudgeLeaving judges the absent agents that this run would remove, as far as the cluster tells of them
// already. Once all hosts have joined they are judged again.
func (m *Members) JudgeLeaving(ctx context.Context) error {
	api, through, err := m.Engine.Answering(ctx)
	if api == nil {
		return err // most likely there is no cluster yet
	}
	m.Site.API, m.Site.APIServer = api, through
	// What comes next finds its own way: this server may be started again, and nodes may come.
	warnings := slices.Clone(m.Site.Warnings)
	defer func() { m.Site.API, m.Site.APIServer, m.Site.Warnings = nil, nil, warnings }()
	nodes, err := m.Site.API.Nodes(ctx)
	if err != nil {
		return err
	}
	removals, err := m.absentRemovals(ctx, nodes)
	if err != nil {
		return err
	}
	return m.judgeData(ctx, removals)
}

// checkData judges once more, before a step that cannot be taken back: a volume may have been made since. The
// host is looked at again when k3s is about to be uninstalled from it.
func (r *removal) checkData(ctx context.Context, again bool) error {
	if r.givesUpData() {
		return nil
	}
	facts, err := r.members.StorageFacts(ctx)
	if err != nil {
		return err
	}
	if again {
		if r.seen, err = r.lookForData(ctx, facts); err != nil {
			return err
		}
	}
	held := localdata.Judge(facts, append([]localdata.Host{r.seen}, r.company...))
	held = slices.DeleteFunc(held, func(d localdata.Holding) bool { return d.Host != r.seen.Name })
	if len(held) > 0 {
		return &heldError{held}
	}
	return nil
}

// lookForData looks at the host that leaves, as far as it is reached: whether it can be missed is not judged here.
func (r *removal) lookForData(ctx context.Context, facts localdata.Facts) (localdata.Host, error) {
	h := localdata.Host{Name: r.name(), Node: r.node.Name}
	if r.host != nil {
		for _, name := range []string{r.host.NodeName(), strings.ToLower(r.host.Hostname)} {
			if name != "" {
				h.Hostnames = append(h.Hostnames, name)
			}
		}
	}
	conn, err := r.connectTo(ctx)
	if ctx.Err() != nil {
		return h, context.Cause(ctx)
	}
	if err != nil {
		return h, nil //nolint:nilerr // the removal itself says that it is not reached
	}
	result, err := conn.Run(ctx, machine.Command{
		Title: "look for data", Args: []string{"/bin/sh", "-c", dataScript, "sh", LocalStorage}, Root: true,
		Stdin: strings.NewReader(strings.Join(localdata.Folders(facts, h), "\x00")),
	})
	if err != nil {
		return h, fmt.Errorf("%w: %w", site.ErrHosts, err)
	}
	h.Seen = true
	if h.Found, h.Stray, err = parseData(string(result.Stdout)); err != nil {
		err = fmt.Errorf("%w: %w", site.ErrHosts, fault.OnHost(fmt.Errorf("look for data: %w", err), h.Name))
	}
	return h, err
}

// dataScript says which of the folders on its input are there, with their file systems, and what is in the
// folder that it is given, unless that is empty.
const dataScript = `state() {
    if [ -d "$1" ]; then
        [ -n "$(ls -A "$1" | head -n 1)" ] && echo full || echo empty
    elif [ -f "$1" ] && [ ! -s "$1" ]; then
        echo empty
    else
        echo full
    fi
}
tr '\0' '\n' | while IFS= read -r f || [ -n "$f" ]; do
    [ ! -e "$f" ] || printf 'volume %s %s %s\0' "$(state "$f")" "$(stat -f -c %T "$f" | tr -d ' ')" "$f"
done
for f in "$1"/* "$1"/.[!.]*; do
    { [ ! -e "$f" ] && [ ! -L "$f" ]; } || [ "$(state "$f")" = empty ] || printf 'stray full - %s\0' "$f"
done
`

// parseData reads what dataScript prints.
func parseData(text string) (found []localdata.Folder, stray []string, err error) {
	// What stat calls file systems that other hosts have as well.
	networks := []string{
		"nfs", "ceph", "cifs", "smb", "smb2", "fuseblk", "lustre", "gpfs", "gfs/gfs2", "ocfs2", "afs", "v9fs",
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\x00"), "\x00") {
		fields := strings.SplitN(line, " ", 4)
		switch {
		case line == "":
		case len(fields) == 4 && fields[0] == "volume":
			found = append(found, localdata.Folder{
				Path: fields[3], Empty: fields[1] == "empty", Network: slices.Contains(networks, fields[2]),
			})
		case len(fields) == 4 && fields[0] == "stray":
			stray = append(stray, fields[3])
		default:
			return nil, nil, fmt.Errorf("the host printed %.200q", line)
		}
	}
	return found, stray, nil
}

// maxHeld bounds what is told of one host's data, in things.
const maxHeld = 20

// heldError says which data would be lost.
type heldError struct{ held []localdata.Holding }

func (e *heldError) Error() string {
	return fmt.Sprintf("%v: hosts are not drained, deleted or uninstalled that hold data which is on no other host:%s",
		site.ErrRefused, HeldText(e.held))
}

// HeldText lists data by host.
func HeldText(held []localdata.Holding) string {
	var b strings.Builder
	host, n := "", 0
	more := func() {
		if n > maxHeld {
			fmt.Fprintf(&b, "\n  %d more", n-maxHeld)
		}
	}
	for _, d := range held {
		if d.Host != host {
			more()
			host, n = d.Host, 0
			b.WriteString("\n" + printable.Line(host) + " holds")
		}
		if n++; n <= maxHeld {
			b.WriteString("\n  " + d.String())
		}
	}
	more()
	return b.String()
}

func (*heldError) Unwrap() error { return site.ErrRefused }

// Hint says how to go on, by what is held.
func (e *heldError) Hint() string {
	has := func(uses ...localdata.Use) bool {
		return slices.ContainsFunc(e.held, func(d localdata.Holding) bool { return slices.Contains(uses, d.Use) })
	}
	ways := []string{"keep the host"}
	if has(localdata.Database) {
		ways = append(ways, "bring LiteBoxd's database to another node first with boxlift liteboxd move --to NODE, and "+
			"then boxlift liteboxd move --confirm; if the host is gone for good, with boxlift backup restore --only "+
			"liteboxd")
	}
	if has(localdata.Former) {
		ways = append(ways, "have what is kept since LiteBoxd's database was moved removed with boxlift liteboxd move "+
			"--confirm")
	}
	if has(localdata.Sandbox) {
		ways = append(ways, "have persistent sandboxes that nobody needs deleted in LiteBoxd")
	}
	if has(localdata.Claimed, localdata.Unclaimed, localdata.Stray) {
		ways = append(ways, "copy what is needed elsewhere, and delete claims, volumes and folders that nobody needs")
	}
	text := strings.Join(ways, "; or ") + "; then run the command again. To LOSE the data for good, give " +
		giveUpFlag + " with the host's name"
	if has(localdata.Database) {
		text += ": a backup of LiteBoxd is made first then, and LiteBoxd does not run until it has a database again"
	}
	return text
}

// backUpGivenUp makes a backup of LiteBoxd before its database is lost. It is done before any host is touched.
func (m *Members) backUpGivenUp(ctx context.Context, removals []*removal) error {
	for _, r := range removals {
		for _, d := range r.held {
			if d.Use != localdata.Database {
				continue
			}
			if err := m.Engine.RunSteps(ctx, r.phase, &m.Engine.Cluster, []run.Step{r.backupStep(d)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// backupStep makes a backup of LiteBoxd, whose database goes with the host. Each run that comes to it makes one.
func (r *removal) backupStep(d localdata.Holding) run.Step {
	return run.Step{
		ID: "back-up-liteboxd", Title: "back up LiteBoxd",
		Needed: func(context.Context) (string, error) { return "its database is given up with " + r.name(), nil },
		Run:    func(ctx context.Context) error { return r.backUpDatabase(ctx, d) },
	}
}

// backUpDatabase makes a backup of LiteBoxd with the database on the host that leaves. Of a host that is gone
// for good there is none to be made.
func (r *removal) backUpDatabase(ctx context.Context, d localdata.Holding) error {
	conn, err := r.connectTo(ctx)
	if err != nil && r.forgetUnreachable && ctx.Err() == nil {
		_, dir, lastErr := r.members.Deployer.LastBackup(func(b *liteboxd.Backup) bool { return b.SHA256 != "" })
		r.members.Site.Warn("NO BACKUP of LiteBoxd's database was made, since its host is not reached: %v; "+
			"the last one beside the state is %s", errors.Join(err, lastErr), site.OrUnknown(dir))
		return nil
	}
	if err != nil {
		return &unreachableError{node: r.name(), err: err}
	}
	h := r.host
	if h == nil {
		h = &site.Host{Subject: site.Subject{Name: r.name()}}
	}
	h.Conn = conn
	u := &liteboxd.Change{Deployer: r.members.Deployer, System: d.Namespace}
	if box := r.members.Site.Config.LiteBoxd; box != nil {
		u.Sandboxes = box.NamespaceSandbox
	}
	if d.Path != "" {
		u.DatabaseHost, u.DatabaseFolder = h, d.Path
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	b := &liteboxd.Backup{Format: 1, Cluster: r.members.Site.Config.Cluster.Name, Time: now, Compared: true}
	if running, err := helm.Current(ctx, r.members.Site.API, seed.ReleasesNamespace, seed.LiteBoxdRelease); err != nil {
		return err
	} else if running != nil {
		b.From = running.Revision
	}
	if err := u.MakeBackup(ctx, b); err != nil {
		return fmt.Errorf("%w: LiteBoxd's database is not given up without a backup, and none could be made; "+
			"no host was touched: %w", site.ErrRefused, err)
	}
	if _, err := os.Stat(filepath.Join(u.Deployer.Site.Backup, liteboxd.BackupDatabase)); errors.Is(err,
		fs.ErrNotExist) {
		r.members.Site.Warn("the backup of LiteBoxd in %s has NO DATABASE: %s has none", u.Deployer.Site.Backup, d.Path)
	}
	return nil
}

// tellGivenUp says what has gone with a host, and what waits for it in vain.
func (r *removal) tellGivenUp() {
	for _, d := range r.held {
		if d.Use == localdata.Stray {
			continue
		}
		what := "given up with " + d.Host + ": " + d.String()
		switch {
		case d.Use == localdata.Database:
			what += "; boxlift backup restore --only liteboxd brings LiteBoxd back on another node"
		case len(d.Pods) > 0:
			what += "; pods with this claim wait until claim and volume are deleted"
		}
		r.members.Site.Warn("%s", what)
	}
}
