package backups

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/database"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/hostfile"
)

// gathering brings the parts of a backup into a folder.
type gathering struct {
	*round
	dir      string
	manifest backup.Manifest
	without  []string
}

const (
	// apiTimeout is how long an answer of the API may take, snapshotTimeout a snapshot of etcd.
	apiTimeout      = 2 * time.Minute
	snapshotTimeout = time.Hour
	// maxAnswer bounds an answer of the API, and maxSmall a file with a token, both in bytes.
	maxAnswer = 256 << 20
	maxSmall  = 64 << 10
)

// readAtMost reads all of it, or fails where there is more.
func readAtMost(r io.Reader, most int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("it has more than %d bytes", most)
	}
	return content, err
}

// output runs a program and returns what it prints.
func output(ctx context.Context, timeout time.Duration, most int64, what string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	// Whatever else has its output does not keep it from ending.
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &last{&stderr}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	content, err := readAtMost(out, most)
	if err != nil {
		cancel()
	}
	if waitErr := cmd.Wait(); err == nil {
		err = waitErr
	}
	if err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, printable.Short(printable.Line(text), 300))
		}
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return content, nil
}

// last keeps the beginning of what a program says of its failure.
type last struct{ *bytes.Buffer }

func (l *last) Write(p []byte) (int, error) {
	const most = 4 << 10
	if room := most - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// write makes an entry.
func (g *gathering) write(entry string, content []byte) error {
	name, err := g.path(entry)
	if err != nil {
		return err
	}
	return os.WriteFile(name, content, 0o600)
}

// path is where an entry is gathered.
func (g *gathering) path(entry string) (string, error) {
	name := filepath.Join(g.dir, filepath.FromSlash(entry))
	return name, os.MkdirAll(filepath.Dir(name), 0o700)
}

// readSmall is a file of the host without the space around it, "" when it is not there.
func (g *gathering) readSmall(name string) (string, error) {
	f, err := os.Open(g.Root + name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer hostfile.CloseRead(f)
	content, err := readAtMost(f, maxSmall)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	return strings.TrimSpace(string(content)), nil
}

func (g *gathering) gather(ctx context.Context) error {
	nodes, err := g.nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		g.manifest.Nodes = append(g.manifest.Nodes, n.Metadata.Name)
	}
	slices.Sort(g.manifest.Nodes)
	if !slices.Contains(g.manifest.Nodes, g.Config.Node) {
		return fmt.Errorf("the cluster has no node %s", g.Config.Node)
	}
	if err := g.nodePasswords(); err != nil {
		return err
	}
	// What LiteBoxd's database tells of the cluster is in the cluster by then.
	if err := g.liteboxd(ctx, nodes); err != nil {
		return fmt.Errorf("LiteBoxd: %w", err)
	}
	if err := g.claims(ctx, nodes); err != nil {
		return err
	}
	if err := g.release(ctx); err != nil {
		return err
	}
	return g.server(ctx)
}

// object is as much of an object of Kubernetes as is looked at.
type object struct {
	Metadata struct {
		Name   string            `json:"name"`
		UID    string            `json:"uid"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Data map[string][]byte `json:"data"`
	Spec struct {
		NodeName   string `json:"nodeName"`
		VolumeName string `json:"volumeName"`
		HostPath   struct {
			Path string `json:"path"`
		} `json:"hostPath"`
		Local struct {
			Path string `json:"path"`
		} `json:"local"`
		NodeAffinity struct {
			Required struct {
				NodeSelectorTerms []struct {
					MatchExpressions []struct {
						Key      string   `json:"key"`
						Operator string   `json:"operator"`
						Values   []string `json:"values"`
					} `json:"matchExpressions"`
				} `json:"nodeSelectorTerms"`
			} `json:"required"`
		} `json:"nodeAffinity"`
	} `json:"spec"`
	Status struct {
		ContainerStatuses []struct {
			RestartCount int `json:"restartCount"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

// list asks the API for objects. One that is not there is an empty list.
func (g *gathering) list(ctx context.Context, path string, query url.Values) ([]object, error) {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	out, err := output(ctx, apiTimeout, maxAnswer, "ask the API for "+path, g.K3s, "kubectl", "get", "--raw", path)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Items []object `json:"items"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("ask the API for %s: %w", path, err)
	}
	return answer.Items, nil
}

// named asks for one object, nil when it is not there.
func (g *gathering) named(ctx context.Context, path, name string) (*object, error) {
	all, err := g.list(ctx, path, url.Values{"fieldSelector": {"metadata.name=" + name}})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

func secrets(namespace string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/secrets"
}

func (g *gathering) nodes(ctx context.Context) ([]object, error) {
	nodes, err := g.list(ctx, "/api/v1/nodes", nil)
	for _, n := range nodes {
		if !nodeName.MatchString(n.Metadata.Name) {
			return nil, fmt.Errorf("the cluster has a node with the name %.100q", n.Metadata.Name)
		}
	}
	return nodes, err
}

// nodePasswords gathers what nodes show to servers: this server's own, and those that boxlift has brought here.
func (g *gathering) nodePasswords() error {
	var missing []string
	for _, node := range g.manifest.Nodes {
		file := path.Join(PasswordsDir, node)
		if node == g.Config.Node {
			file = backup.NodePasswordFile
		}
		password, err := g.readSmall(file)
		if err != nil {
			return err
		}
		if password == "" {
			missing = append(missing, node)
			continue
		}
		if err := g.write(backup.NodePassword(node), []byte(password+"\n")); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		g.without = append(g.without, "the passwords of the nodes "+printable.Short(strings.Join(missing, ", "), 300)+
			", which boxlift install brings here")
	}
	return nil
}

// release gathers the record of releases, as it is.
func (g *gathering) release(ctx context.Context) error {
	s, err := g.named(ctx, secrets(g.Config.Release.Namespace), g.Config.Release.Name)
	if err != nil || s == nil || len(s.Data[g.Config.Release.Key]) == 0 {
		return err
	}
	return g.write(backup.ReleaseRecord, s.Data[g.Config.Release.Key])
}

// liteboxd gathers what is kept of LiteBoxd, if it is there.
func (g *gathering) liteboxd(ctx context.Context, nodes []object) error {
	l := g.Config.LiteBoxd
	if l == nil {
		return nil
	}
	revision, objects, err := g.helmRelease(ctx, l)
	if err != nil || revision == 0 {
		return err
	}
	b := &backup.LiteBoxd{Format: 1, Cluster: g.Config.Cluster, Time: g.Now().UTC().Truncate(time.Millisecond),
		From: revision, Sandboxes: []backup.Sandbox{}}
	pods, err := g.list(ctx, "/api/v1/namespaces/"+url.PathEscape(l.Sandboxes)+"/pods",
		url.Values{"labelSelector": {l.SandboxLabels}})
	if err != nil {
		return err
	}
	for _, p := range pods {
		s := backup.Sandbox{Name: p.Metadata.Name, UID: p.Metadata.UID, Node: p.Spec.NodeName}
		for _, c := range p.Status.ContainerStatuses {
			s.Restarts += c.RestartCount
		}
		b.Sandboxes = append(b.Sandboxes, s)
	}
	key, err := g.named(ctx, secrets(l.Key.Namespace), l.Key.Name)
	if err != nil {
		return err
	}
	if key == nil || len(key.Data[l.Key.Key]) == 0 {
		return fmt.Errorf("the Secret %s/%s has no key: without it a backup of the database is worth nothing",
			l.Key.Namespace, l.Key.Name)
	}
	for entry, content := range map[string][]byte{backup.LiteBoxdKey: key.Data[l.Key.Key],
		backup.LiteBoxdObjects: objects} {
		if err := g.write(entry, content); err != nil {
			return err
		}
	}
	if err := g.liteboxdDatabase(ctx, l, nodes, b); err != nil {
		return err
	}
	record, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return g.write(backup.LiteBoxdRecord, append(record, '\n'))
}

// helmRelease is the newest revision of the release that runs, and its objects; 0 for none. Helm keeps a revision in a
// Secret, as JSON that is packed with gzip and written as base64 (Helm v3 and v4, pkg/storage/driver).
func (g *gathering) helmRelease(ctx context.Context, l *LiteBoxd) (revision int, objects []byte, err error) {
	all, err := g.list(ctx, secrets(l.ReleaseNamespace),
		url.Values{"labelSelector": {"owner=helm,status=deployed,name=" + l.ReleaseName}})
	if err != nil {
		return 0, nil, err
	}
	var newest *object
	for i := range all {
		if n, err := strconv.Atoi(all[i].Metadata.Labels["version"]); err == nil && n > revision {
			revision, newest = n, &all[i]
		}
	}
	if newest == nil {
		return 0, nil, nil
	}
	packed, err := base64.StdEncoding.DecodeString(string(newest.Data["release"]))
	var content []byte
	if err == nil {
		var in *gzip.Reader
		if in, err = gzip.NewReader(bytes.NewReader(packed)); err == nil {
			content, err = readAtMost(in, maxAnswer)
		}
	}
	var release struct {
		Manifest string `json:"manifest"`
	}
	if err == nil {
		err = json.Unmarshal(content, &release)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("read revision %d of the release %s: %w", revision, l.ReleaseName, err)
	}
	return revision, []byte(release.Manifest), nil
}

// liteboxdDatabase copies the database, if this server has it.
func (g *gathering) liteboxdDatabase(ctx context.Context, l *LiteBoxd, nodes []object, b *backup.LiteBoxd) error {
	claim, err := g.named(ctx, "/api/v1/namespaces/"+url.PathEscape(l.Namespace)+"/persistentvolumeclaims", l.Claim)
	if err != nil || claim == nil || claim.Spec.VolumeName == "" {
		return err
	}
	volume, err := g.named(ctx, "/api/v1/persistentvolumes", claim.Spec.VolumeName)
	if err != nil {
		return err
	}
	const what = "LiteBoxd's database, "
	if volume == nil {
		return fmt.Errorf("the volume %s has gone", claim.Spec.VolumeName)
	}
	folder := volume.Spec.HostPath.Path
	if folder == "" {
		folder = volume.Spec.Local.Path
	}
	if folder == "" || !path.IsAbs(folder) {
		g.without = append(g.without, what+"whose volume is no folder of a node")
		return nil
	}
	if on := nodeOf(*volume, nodes); on != g.Config.Node {
		if on == "" {
			on = "another node"
		}
		g.without = append(g.without, what+"which is on "+printable.Short(on, 300))
		return nil
	}
	source := path.Join(path.Clean(folder), l.Database)
	if _, err := os.Lstat(g.Root + source); errors.Is(err, fs.ErrNotExist) {
		return nil // there is none yet
	}
	to, err := g.path(backup.LiteBoxdDatabase)
	if err != nil {
		return err
	}
	if err := g.CopyDatabase(ctx, g.Root+source, to); err != nil {
		return err
	}
	if b.Rows, err = database.Read(ctx, to, l.Tables...); err != nil {
		return err
	}
	if b.SHA256, err = hostfile.Digest(ctx, to); err != nil {
		return err
	}
	g.manifest.LiteBoxd, err = g.locate(source)
	return err
}

// nodeOf is the node that a volume is bound to, "" when it is not bound to just one of them.
func nodeOf(volume object, nodes []object) string {
	const hostname = "kubernetes.io/hostname"
	for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key != hostname || e.Operator != "In" || len(e.Values) != 1 ||
				len(volume.Spec.NodeAffinity.Required.NodeSelectorTerms) != 1 {
				continue
			}
			// The label is the host's name, which is not the node's name where that was given.
			for _, n := range nodes {
				if n.Metadata.Labels[hostname] == e.Values[0] {
					return n.Metadata.Name
				}
			}
		}
	}
	return ""
}

// locate says whose a database and its folder are.
func (g *gathering) locate(file string) (*backup.Location, error) {
	l := &backup.Location{Node: g.Config.Node, Path: file}
	for name, to := range map[string]*backup.Ownership{file: &l.File, path.Dir(file): &l.Folder} {
		var info syscall.Stat_t
		if err := syscall.Stat(g.Root+name, &info); err != nil {
			return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
		}
		// Setuid and the like mean nothing to a database.
		*to = backup.Ownership{UID: info.Uid, GID: info.Gid, Mode: info.Mode & 0o1777}
	}
	return l, nil
}

var versionText = lazyregexp.New(`^k3s version (v[0-9A-Za-z.+-]{1,100})( |\n|$)`)

// server gathers what the server has: its datastore last of all.
func (g *gathering) server(ctx context.Context) error {
	out, err := output(ctx, apiTimeout, maxSmall, "ask k3s for its version", g.K3s, "--version")
	if err != nil {
		return err
	}
	version := versionText.FindSubmatch(out)
	if version == nil {
		return fmt.Errorf("ask k3s for its version: it printed %.200q", out)
	}
	g.manifest.K3s, g.manifest.Bundle = string(version[1]), g.Bundle(ctx)
	if err := g.tokens(); err != nil {
		return err
	}
	if err := g.serverFiles(ctx); err != nil {
		return err
	}
	if g.manifest.Datastore, err = g.datastore(); err != nil {
		return err
	}
	to, err := g.path(g.manifest.Datastore.Entry())
	if err != nil {
		return err
	}
	g.manifest.Time = g.Now().UTC().Truncate(time.Second)
	if g.manifest.Datastore == backup.SQLite {
		return g.CopyDatabase(ctx, g.Root+backup.Databases+"/state.db", to)
	}
	return g.etcdSnapshot(ctx, to)
}

// tokens gathers what servers and agents join with.
func (g *gathering) tokens() error {
	token, err := g.readSmall(backup.ServerToken)
	if err != nil {
		return err
	}
	if token == "" {
		return fmt.Errorf("%s is missing or empty: without the token no backup can be restored", backup.ServerToken)
	}
	if err := g.write(backup.Token, []byte(token+"\n")); err != nil {
		return err
	}
	// The agents' own password, which k3s has in full where the file with it was lost.
	password, err := g.readSmall("/etc/rancher/k3s/boxlift-agent-token")
	if err == nil && password == "" {
		var full string
		full, err = g.readSmall("/var/lib/rancher/k3s/server/agent-token")
		_, password, _ = strings.Cut(full, "::node:")
	}
	if err != nil || password == "" {
		return err
	}
	return g.write(backup.AgentToken, []byte(password+"\n"))
}

// serverFiles gathers k3s' configuration, keys and unit, as they are.
func (g *gathering) serverFiles(ctx context.Context) error {
	to, err := g.path(backup.ServerFiles)
	if err != nil {
		return err
	}
	args := []string{"tar", "-C", g.Root + "/", "-cf", to}
	for _, p := range backup.ServerPaths() {
		if _, err := os.Lstat(g.Root + p); err == nil {
			args = append(args, strings.TrimPrefix(p, "/"))
		}
	}
	_, err = output(ctx, apiTimeout, maxSmall, "gather k3s' files", args...)
	return err
}

// datastore is what k3s keeps the cluster in.
func (g *gathering) datastore() (backup.Datastore, error) {
	for file, d := range map[string]backup.Datastore{"/etcd/member": backup.Etcd, "/state.db": backup.SQLite} {
		_, err := os.Lstat(g.Root + backup.Databases + file)
		if err == nil && d == backup.SQLite {
			// k3s leaves it there when it goes over to etcd.
			if _, err := os.Lstat(g.Root + backup.Databases + "/etcd/member"); err == nil {
				continue
			}
		}
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", errors.New("the cluster is in no datastore of k3s' own: a database elsewhere is backed up with its " +
		"own tools")
}

// etcdSnapshot lets k3s make a snapshot.
func (g *gathering) etcdSnapshot(ctx context.Context, to string) (err error) {
	dir := filepath.Join(g.dir, ".etcd-snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer func() {
		removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiTimeout)
		defer cancel()
		// k3s notes its snapshots in the cluster. That it cannot be told to forget one harms nothing.
		names, _ := os.ReadDir(dir)
		for _, n := range names {
			_, _ = output(removing, apiTimeout, maxSmall, "", g.K3s, "etcd-snapshot", "delete", "--dir", dir, n.Name())
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	// A name that no run before has left, so that k3s can be told to forget it.
	name := "boxlift-" + g.manifest.Time.Format("20060102150405")
	const most = 16 << 20
	if _, err := output(ctx, snapshotTimeout, most, "make a snapshot of etcd", g.K3s, "etcd-snapshot", "save", "--name",
		name, "--dir", dir); err != nil {
		return err
	}
	made, err := os.ReadDir(dir)
	switch {
	case err != nil:
		return err
	case len(made) != 1 || !made[0].Type().IsRegular():
		return fmt.Errorf("k3s made %d files, expected one snapshot", len(made))
	case strings.HasSuffix(made[0].Name(), ".zip"):
		return errors.New("k3s compresses its snapshots, which cannot be proven then: take etcd-snapshot-compress " +
			"out of k3s' config")
	}
	// A link: k3s is told to forget the snapshot by its own name.
	return os.Link(filepath.Join(dir, made[0].Name()), to)
}
