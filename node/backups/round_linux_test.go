package backups

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/node/database"
	"github.com/liteboxd/boxlift/test/need"
)

// server is a server's files below a folder, with a k3s that answers as k3s does.
type server struct {
	Options
	t        *testing.T
	identity age.Identity
	now      time.Time
}

// k3sScript is a k3s whose API has the answers in files, by what is asked for.
const k3sScript = `#!/bin/sh
api=@api@
case "$1 $2" in
"--version ") echo "k3s version v1.36.4+k3s1 (abcdef)" ;;
"kubectl get")
    [ ! -e "$api/down" ] || { echo "The connection to the server 127.0.0.1:6443 was refused" >&2; exit 1; }
    [ ! -e "$api/hangs" ] || { echo >"$api/hanging"; exec sleep 600; }
    file="$api/$(printf %s "$4" | tr '/?=&%,!' '_______')"
    if [ -e "$file" ]; then cat "$file"; else echo '{"items":[]}'; fi ;;
"etcd-snapshot save")
    echo "saving"
    cp "$api/snapshot" "$6/$4-node-1-1772600767" ;;
"etcd-snapshot delete") echo "$5" >>"$api/forgotten" ;;
*) echo "unknown command $*" >&2; exit 1 ;;
esac
`

func newServer(t *testing.T) *server {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	s := &server{t: t, identity: identity, now: time.Date(2026, 3, 4, 2, 30, 7, 0, time.UTC)}
	s.Options = Options{
		Root: root, K3s: root + "/usr/local/bin/k3s", Now: func() time.Time { return s.now },
		Bundle: func(context.Context) string { return "sha256:" + strings.Repeat("a", 64) },
		CopyDatabase: func(ctx context.Context, source, target string) error {
			_, err := database.Copy(ctx, database.Options{Source: source, Target: target})
			return err
		},
		Device: func(path string) (uint64, error) {
			_, err := os.Stat(path)
			return uint64(len(strings.Split(path, "/media/"))), err
		},
		Config: Config{Format: Format, Cluster: "lan-1", Node: "node-1", KeepDays: 14,
			Recipients: []string{identity.Recipient().String()},
			NotWhile:   []string{"/var/lib/boxlift/restoring"},
			Release:    Secret{"kube-system", "boxlift-releases", "record.json"}},
	}
	s.write("/usr/local/bin/k3s", strings.ReplaceAll(k3sScript, "@api@", s.api("")))
	if err := os.Chmod(s.K3s, 0o755); err != nil { // #nosec G302
		t.Fatal(err)
	}
	s.write("/var/lib/rancher/k3s/server/token", "K10aa::server:secret\n")
	s.write("/var/lib/rancher/k3s/server/agent-token", "K10aa::node:agents\n")
	s.write("/etc/rancher/k3s/config.yaml", "cluster-init: true\n")
	s.write("/var/lib/rancher/k3s/server/tls/ca.crt", "a certificate")
	s.write("/etc/rancher/node/password", "of-node-1\n")
	s.write(PasswordsDir+"/node-2", "of-node-2\n")
	s.database("/var/lib/rancher/k3s/server/db/state.db", "kine")
	s.answer("/api/v1/nodes", nil, `{"items":[`+node("node-1", "host-1")+`,`+node("node-2", "host-2")+`]}`)
	return s
}

func node(name, host string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"kubernetes.io/hostname":%q}}}`, name, host)
}

func (s *server) api(name string) string { return filepath.Join(s.Root, "api", name) }

func (s *server) write(name, content string) {
	s.t.Helper()
	file := s.Root + name
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

// answer is what the API says when it is asked for something.
func (s *server) answer(path string, query url.Values, answer string) {
	if query != nil {
		path += "?" + query.Encode()
	}
	s.write("/api/"+strings.Map(func(r rune) rune {
		if strings.ContainsRune("/?=&%,!", r) {
			return '_'
		}
		return r
	}, path), answer)
}

func (s *server) database(name, table string) {
	s.t.Helper()
	s.write(name, "")
	db, err := sql.Open("sqlite", s.Root+name)
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = db.ExecContext(s.t.Context(), "CREATE TABLE "+table+" (id TEXT PRIMARY KEY); INSERT INTO "+table+" VALUES ('one')")
	if err := errors.Join(err, db.Close()); err != nil {
		s.t.Fatal(err)
	}
}

// etcd gives the server etcd instead of SQLite.
func (s *server) etcd() {
	s.t.Helper()
	s.write(backup.Databases+"/etcd/member/x", "")
	file := s.api("snapshot")
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{PageSize: 4096, NoSync: true})
	if err != nil {
		s.t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range []string{"key", "meta"} {
			b, err := tx.CreateBucket([]byte(name))
			if err != nil {
				return err
			}
			if err := b.Put([]byte("a"), []byte("b")); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		s.t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	if err := os.WriteFile(file, append(content, sum[:]...), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// liteboxd deploys LiteBoxd, with its volume on a host.
func (s *server) liteboxd(host string) {
	s.t.Helper()
	s.Config.LiteBoxd = &LiteBoxd{ReleaseNamespace: "kube-system", ReleaseName: "liteboxd", Namespace: "lb",
		Claim: "data", Database: "liteboxd.db", Tables: []string{"templates"}, Key: Secret{"lb", "keys", "KEY"},
		Sandboxes: "boxes", SandboxLabels: "app=liteboxd"}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write([]byte(`{"manifest":"kind: Deployment\n"}`))
	if err := errors.Join(err, w.Close()); err != nil {
		s.t.Fatal(err)
	}
	once := base64.StdEncoding.EncodeToString(packed.Bytes())
	s.answer("/api/v1/namespaces/kube-system/secrets",
		url.Values{"labelSelector": {"owner=helm,status=deployed,name=liteboxd"}},
		`{"items":[{"metadata":{"name":"a","labels":{"version":"3"}},"data":{"release":"`+
			base64.StdEncoding.EncodeToString([]byte(once))+`"}}]}`)
	named := func(name string) url.Values { return url.Values{"fieldSelector": {"metadata.name=" + name}} }
	s.answer("/api/v1/namespaces/lb/secrets", named("keys"), `{"items":[{"data":{"KEY":"dGhlLWtleQ=="}}]}`)
	s.answer("/api/v1/namespaces/boxes/pods", url.Values{"labelSelector": {"app=liteboxd"}},
		`{"items":[{"metadata":{"name":"box","uid":"u1"},"spec":{"nodeName":"node-2"},`+
			`"status":{"containerStatuses":[{"restartCount":2}]}}]}`)
	s.answer("/api/v1/namespaces/lb/persistentvolumeclaims", named("data"), `{"items":[{"spec":{"volumeName":"pv-1"}}]}`)
	s.answer("/api/v1/persistentvolumes", named("pv-1"), `{"items":[{"spec":{"hostPath":{"path":"/storage/pv-1"},`+
		`"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname",`+
		`"operator":"In","values":["`+host+`"]}]}]}}}}]}`)
	s.answer("/api/v1/namespaces/kube-system/secrets", named("boxlift-releases"),
		`{"items":[{"data":{"record.json":"e30="}}]}`)
	s.database("/storage/pv-1/liteboxd.db", "templates")
}

// round makes one round, which goes well.
func (s *server) round() *Status {
	s.t.Helper()
	status, err := Run(s.t.Context(), s.Options)
	if err != nil {
		s.t.Fatalf("%s: %v", s.now.Format(time.DateOnly), err)
	}
	return status
}

// files are the names in a folder of the host, sorted.
func (s *server) files(dir string) []string {
	s.t.Helper()
	entries, err := os.ReadDir(s.Root + dir)
	if err != nil {
		s.t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

const own = Folder + "/lan-1"

// open opens and proves a backup.
func (s *server) open(name string) *backup.Reader {
	s.t.Helper()
	r, err := backup.Open(s.Root+name, s.identity)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { r.Close() })
	if _, err := r.Verify(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// What a round makes is a backup as backup create makes it, whole, for its recipients alone.
func TestRun(t *testing.T) {
	const kept = "lan-1-20260304T023007Z.tar.age"
	for _, test := range []struct {
		name    string
		set     func(*server)
		entries []string
		without []string
	}{
		{"SQLite", func(*server) {}, []string{"k3s/agent-token", "k3s/server.tar", "k3s/state.db", "k3s/token",
			"nodes/node-1/password", "nodes/node-2/password"}, nil},
		{"etcd", (*server).etcd, []string{"k3s/agent-token", "k3s/etcd-snapshot", "k3s/server.tar", "k3s/token",
			"nodes/node-1/password", "nodes/node-2/password"}, nil},
		{"LiteBoxd here", func(s *server) { s.liteboxd("host-1") }, []string{"k3s/agent-token", "k3s/server.tar",
			"k3s/state.db", "k3s/token", "liteboxd/backup.json", "liteboxd/liteboxd.db", "liteboxd/objects.yaml",
			"liteboxd/sandbox-token-encryption-key", "nodes/node-1/password", "nodes/node-2/password", "release.json"}, nil},
		{"LiteBoxd elsewhere", func(s *server) { s.liteboxd("host-2") }, []string{"k3s/agent-token", "k3s/server.tar",
			"k3s/state.db", "k3s/token", "liteboxd/backup.json", "liteboxd/objects.yaml",
			"liteboxd/sandbox-token-encryption-key", "nodes/node-1/password", "nodes/node-2/password", "release.json"},
			[]string{"LiteBoxd's database, which is on node-2"}},
		{"a password that was not brought", func(s *server) {
			if err := os.Remove(s.Root + PasswordsDir + "/node-2"); err != nil {
				s.t.Fatal(err)
			}
		}, []string{"k3s/agent-token", "k3s/server.tar", "k3s/state.db", "k3s/token", "nodes/node-1/password"},
			[]string{"the passwords of the nodes node-2, which boxlift install brings here"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer(t)
			test.set(s)
			status := s.round()
			if diff := cmp.Diff([]string{kept}, s.files(own)); diff != "" {
				t.Fatal(diff)
			}
			m := s.open(own + "/" + kept).Manifest()
			var entries []string
			for _, e := range m.Entries {
				entries = append(entries, e.Name)
			}
			if diff := cmp.Diff(test.entries, entries); diff != "" {
				t.Error(diff)
			}
			if m.Cluster != "lan-1" || m.K3s != "v1.36.4+k3s1" || m.Server != "node-1" ||
				!slices.Equal(m.Nodes, []string{"node-1", "node-2"}) || !strings.HasPrefix(m.Bundle, "sha256:aaa") {
				t.Errorf("%+v", m)
			}
			k := status.Newest()
			if k == nil || k.File != kept || !k.Proven.Equal(s.now) || !k.Time.Equal(s.now) {
				t.Fatalf("%+v", status)
			}
			if diff := cmp.Diff(test.without, k.Without); diff != "" {
				t.Error(diff)
			}
			if _, err := backup.Open(s.Root + own + "/" + kept); !errors.Is(err, backup.ErrEncrypted) {
				t.Errorf("it is opened without a key: %v", err)
			}
			info, err := os.Stat(s.Root + own)
			if err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			document, err := os.ReadFile(s.Root + StatusFile)
			if err != nil {
				t.Fatal(err)
			}
			read, err := ParseStatus(document)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(status, read); diff != "" {
				t.Error(diff)
			}
		})
	}
	s := newServer(t)
	s.etcd()
	s.round()
	forgotten, err := os.ReadFile(s.api("forgotten"))
	if err != nil || !strings.Contains(string(forgotten), "boxlift-20260304023007-node-1-") {
		t.Errorf("k3s was told to forget %q, %v", forgotten, err)
	}
}

// LiteBoxd's part of a backup is what is put back from it.
func TestLiteBoxd(t *testing.T) {
	s := newServer(t)
	s.liteboxd("host-1")
	r := s.open(own + "/" + s.round().Backups[0].File)
	content, err := r.ReadSmall(backup.LiteBoxdRecord, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var b backup.LiteBoxd
	if err := json.Unmarshal(content, &b); err != nil {
		t.Fatal(err)
	}
	e, _ := r.Manifest().Entry(backup.LiteBoxdDatabase)
	want := backup.LiteBoxd{Format: 1, Cluster: "lan-1", Time: s.now, From: 3, SHA256: e.SHA256,
		Rows:      map[string][]string{"templates": {"'one'"}},
		Sandboxes: []backup.Sandbox{{Name: "box", UID: "u1", Node: "node-2", Restarts: 2}}}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Error(diff)
	}
	for entry, want := range map[string]string{backup.LiteBoxdKey: "the-key", backup.LiteBoxdObjects: "kind: Deployment\n",
		backup.ReleaseRecord: "{}"} {
		if got, err := r.ReadSmall(entry, 1<<20); string(got) != want || err != nil {
			t.Errorf("%s: %q, %v", entry, got, err)
		}
	}
	l := r.Manifest().LiteBoxd
	if l == nil || l.Path != "/storage/pv-1/liteboxd.db" || l.Node != "node-1" || l.File.Mode != 0o600 {
		t.Errorf("%+v", l)
	}
}

// A round that fails says why, leaves nothing half, and touches no earlier backup.
func TestRunFails(t *testing.T) {
	for _, test := range []struct {
		name string
		set  func(*server)
		want string
	}{
		{"the API is down", func(s *server) { s.write("/api/down", "") }, "127.0.0.1:6443 was refused"},
		{"a restore is under way", func(s *server) { s.write("/var/lib/boxlift/restoring", "id") },
			"/var/lib/boxlift/restoring is there: a restore is under way"},
		{"no token", func(s *server) { s.write("/var/lib/rancher/k3s/server/token", "") }, "no backup can be restored"},
		{"a damaged datastore", func(s *server) {
			s.write("/var/lib/rancher/k3s/server/db/state.db", strings.Repeat("no database", 1000))
		}, "state.db"},
		{"a damaged snapshot", func(s *server) { s.etcd(); s.write("/api/snapshot", strings.Repeat("x", 1056)) },
			"not a sound backup"},
		{"no datastore", func(s *server) {
			if err := os.RemoveAll(s.Root + backup.Databases); err != nil {
				s.t.Fatal(err)
			}
		}, "no datastore of k3s' own"},
		{"another answer", func(s *server) { s.answer("/api/v1/nodes", nil, "no JSON") }, "ask the API for /api/v1/nodes"},
		{"another node", func(s *server) { s.Config.Node = "node-9" }, "the cluster has no node node-9"},
		{"a node with a path for a name", func(s *server) {
			s.answer("/api/v1/nodes", nil, `{"items":[`+node("node-1", "a")+`,`+node("../../x", "b")+`]}`)
		}, `a node with the name "../../x"`},
		{"LiteBoxd without its key", func(s *server) {
			s.liteboxd("host-1")
			s.answer("/api/v1/namespaces/lb/secrets", url.Values{"fieldSelector": {"metadata.name=keys"}}, `{"items":[]}`)
		}, "the Secret lb/keys has no key"},
		{"recipients that are none", func(s *server) { s.Config.Recipients = []string{"age1x"} }, "read the recipients"},
		{"nothing to run", func(s *server) { s.K3s = "/none/k3s" }, "no such file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer(t)
			s.round()
			before := s.files(own)
			s.now = s.now.AddDate(0, 0, 20) // it would be removed by now
			test.set(s)
			status, err := Run(t.Context(), s.Options)
			if err == nil || status == nil || !strings.Contains(status.Error, test.want) {
				t.Fatalf("%+v, %v", status, err)
			}
			if diff := cmp.Diff(before, s.files(own)); diff != "" {
				t.Error(diff)
			}
			if len(status.Backups) != 1 || !status.Backups[0].Sound() {
				t.Errorf("%+v", status.Backups)
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(status.Error, "secret") {
				t.Errorf("it tells a secret: %v", err)
			}
		})
	}
}

// A round that is ended in the middle leaves nothing, and one that was killed nothing for long.
func TestEnded(t *testing.T) {
	s := newServer(t)
	s.write("/api/hangs", "")
	s.write(own+"/.unfinished-1/k3s/token", "of a round that was killed")
	if err := errors.Join(os.Chmod(s.Root+Folder, 0o700), os.Chmod(s.Root+own, 0o700)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(s.api("hanging")); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := Run(ctx, s.Options); err == nil {
		t.Fatal("it goes on")
	}
	if diff := cmp.Diff([]string{}, s.files(own)); diff != "" {
		t.Error(diff)
	}
}

// Over the days, old backups go, and a target that was away gets what it lacks; of each place the newest always stay.
func TestDays(t *testing.T) {
	s := newServer(t)
	s.Config.KeepDays = 5
	s.Config.Targets = []Target{{Name: "disk", Folder: "/media/disk"}}
	if err := os.MkdirAll(s.Root+"/media/disk", 0o755); err != nil {
		t.Fatal(err)
	}
	const there = "/media/disk/lan-1/node-1"
	first := s.now
	s.round()
	// Names that are nearly those of backups are somebody else's.
	others := []string{"lan-1-20200101T000000Z.tar", "lan-1-20200101T000000Z.tar.age.old", "lan-10-20200101T000000Z.tar.age",
		"lan-1-20201301T000000Z.tar.age", ".lan-1-20200101T000000Z.tar.age"}
	for _, name := range others {
		s.write(own+"/"+name, "x")
		s.write(there+"/"+name, "x")
	}
	s.write(there+"/.lan-1-20260304T023007Z.tar.age.part", "of a round that was killed")
	backups := func(dir string) (days []int) {
		for _, name := range s.files(dir) {
			if at, ok := s.Config.timeOf(name); ok {
				days = append(days, int(at.Sub(first)/(24*time.Hour)))
			}
		}
		return days
	}
	day := func(n int) { s.now = first.AddDate(0, 0, n) }
	for n := 1; n <= 7; n++ {
		day(n)
		s.round()
	}
	if diff := cmp.Diff([]int{2, 3, 4, 5, 6, 7}, backups(own)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int{2, 3, 4, 5, 6, 7}, backups(there)); diff != "" {
		t.Error(diff)
	}
	// The disk is taken out for three days.
	if err := os.Rename(s.Root+"/media/disk", s.Root+"/away"); err != nil {
		t.Fatal(err)
	}
	for n := 8; n <= 10; n++ {
		day(n)
		status, err := Run(t.Context(), s.Options)
		if err == nil || status.Error != "" || len(status.Targets) != 1 || status.Targets[0].Error == "" ||
			!status.Targets[0].Newest.Equal(first.AddDate(0, 0, 7)) || status.Targets[0].Files != 6 {
			t.Errorf("day %d: %+v, %v", n, status, err)
		}
	}
	if diff := cmp.Diff([]int{5, 6, 7, 8, 9, 10}, backups(own)); diff != "" {
		t.Error(diff)
	}
	if err := os.Rename(s.Root+"/away", s.Root+"/media/disk"); err != nil {
		t.Fatal(err)
	}
	day(11)
	status := s.round()
	if diff := cmp.Diff([]int{6, 7, 8, 9, 10, 11}, backups(there)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]TargetStatus{{Name: "disk", Files: 6, Newest: s.now}}, status.Targets); diff != "" {
		t.Error(diff)
	}
	// Nothing is made for a month: all stay, and then three at least.
	s.write("/api/down", "")
	for n := 12; n < 42; n += 10 {
		day(n)
		if _, err := Run(t.Context(), s.Options); err == nil {
			t.Error("the API is down, and a backup was made")
		}
	}
	if diff := cmp.Diff([]int{6, 7, 8, 9, 10, 11}, backups(own)); diff != "" {
		t.Error(diff)
	}
	if err := os.Remove(s.api("down")); err != nil {
		t.Fatal(err)
	}
	day(42)
	s.round()
	for _, dir := range []string{own, there} {
		if diff := cmp.Diff([]int{10, 11, 42}, backups(dir)); diff != "" {
			t.Errorf("%s: %s", dir, diff)
		}
		for _, name := range others {
			if !slices.Contains(s.files(dir), name) {
				t.Errorf("%s of somebody else has gone from %s", name, dir)
			}
		}
	}
	s.open(there + "/" + status.Backups[0].File)
	if slices.Contains(s.files(there), ".lan-1-20260304T023007Z.tar.age.part") {
		t.Error("what a killed round has left stays")
	}
}

// A backup that changed since it was made is told of, is carried nowhere, and does not count as one that is kept.
func TestDamaged(t *testing.T) {
	s := newServer(t)
	first := s.round().Backups[0].File
	file := s.Root + own + "/" + first
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s.Config.Targets = []Target{{Name: "disk", Folder: "/media/disk"}}
	if err := os.MkdirAll(s.Root+"/media/disk", 0o755); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.AddDate(0, 0, 1)
	status, err := Run(t.Context(), s.Options)
	if err == nil || !strings.Contains(err.Error(), first+": it is not what it was when it was made") {
		t.Errorf("%v", err)
	}
	if k := status.Backups[1]; k.Sound() || status.Newest().File != status.Backups[0].File {
		t.Errorf("%+v", status)
	}
	if diff := cmp.Diff([]string{status.Backups[0].File}, s.files("/media/disk/lan-1/node-1")); diff != "" {
		t.Error(diff)
	}
}

// A folder whose mount is away is a folder of the disk that the backups are to outlive.
func TestNotMounted(t *testing.T) {
	s := newServer(t)
	s.Device = nil
	s.Config.Targets = []Target{{Name: "disk", Folder: "/mnt/disk"}}
	if err := os.MkdirAll(s.Root+"/mnt/disk", 0o755); err != nil {
		t.Fatal(err)
	}
	status, err := Run(t.Context(), s.Options)
	if err == nil || !strings.Contains(status.Targets[0].Error, "nothing is mounted there") || status.Error != "" {
		t.Errorf("%+v, %v", status, err)
	}
	if names := s.files("/mnt/disk"); len(names) != 0 {
		t.Errorf("%q was written there", names)
	}
}

// A full disk is said to be full, and the backups that are there stay.
func TestDiskFull(t *testing.T) {
	need.Root(t, "a filesystem of its own is mounted")
	s := newServer(t)
	if err := os.MkdirAll(s.Root+Folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", s.Root+Folder, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.Root+Folder, 0); err != nil {
			t.Error(err)
		}
	})
	made := s.round().Backups[0].File
	fill := func(room int64) {
		var space unix.Statfs_t
		if err := unix.Statfs(s.Root+Folder, &space); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.Root+Folder+"/ballast", make([]byte, int64(space.Bavail)*space.Bsize-room), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.now = s.now.AddDate(0, 0, 1)
	for _, room := range []int64{0, 8 << 10, 40 << 10} {
		fill(room)
		status, err := Run(t.Context(), s.Options)
		if err == nil || !strings.HasPrefix(status.Error, "the disk is full, and the backups that there are stay: ") {
			t.Errorf("with %d bytes: %+v, %v", room, status, err)
		}
		if diff := cmp.Diff([]string{"ballast", "lan-1"}, s.files(Folder)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{made}, s.files(own)); diff != "" {
			t.Error(diff)
		}
		if err := os.Remove(s.Root + Folder + "/ballast"); err != nil {
			t.Fatal(err)
		}
	}
	s.open(own + "/" + made)
	if status := s.round(); len(status.Backups) != 2 {
		t.Errorf("%+v", status)
	}
}

// Two rounds at once would carry the same.
func TestBusy(t *testing.T) {
	s := newServer(t)
	bundle := s.Bundle
	s.Bundle = func(ctx context.Context) string {
		if _, err := Run(ctx, s.Options); !errors.Is(err, errBusy) {
			t.Errorf("a second round: %v", err)
		}
		return bundle(ctx)
	}
	s.round()
}

// Of a folder that others can enter nothing is used.
func TestFolder(t *testing.T) {
	s := newServer(t)
	if err := os.MkdirAll(s.Root+own, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), s.Options); err == nil || !strings.Contains(err.Error(), "only root can enter") {
		t.Error(err)
	}
	if _, err := os.Stat(s.Root + StatusFile); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
