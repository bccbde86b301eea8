package relocation

import (
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/recovery"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

const boxSite = `cluster:
  name: example
  servers: [{host: 10.0.0.11, name: first, password: p, agent: true}]
network: {cni: cilium}
liteboxd: {}
`

// day is a time of backups.
func day(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }

// onSite is a site with an empty folder for its state.
func onSite(t *testing.T) *site.Site {
	t.Helper()
	s := sitetest.Example(t, boxSite)
	s.StatePath = filepath.Join(t.TempDir(), "state.json")
	return s
}

// folderBackup is the folder of a backup from before a change of LiteBoxd.
func folderBackup(t *testing.T, s *site.Site, made time.Time, edit func(dir string, b *liteboxd.Backup)) string {
	t.Helper()
	dir := filepath.Join(s.Beside("liteboxd-backups"), made.Format("20060102T150405.000Z"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, liteboxd.BackupDatabase)
	db, err := sql.Open("sqlite", file)
	if err == nil {
		_, err = db.ExecContext(t.Context(), "CREATE TABLE templates (id TEXT PRIMARY KEY)")
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	sum, err := hostfile.Digest(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	b := &liteboxd.Backup{Format: 1, Cluster: "example", Time: made, To: "v0.6.11", SHA256: sum}
	write(t, filepath.Join(dir, "sandbox-token-encryption-key"), "the-key")
	if edit != nil {
		edit(dir, b)
	}
	document, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "backup.json"), string(document))
	return dir
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The newest backup that is proven is taken; newer ones that are not are told, and those that a restore made of what it
// was to take the place of are none.
func TestNewest(t *testing.T) {
	s := onSite(t)
	folderBackup(t, s, day(1), nil)
	wanted := folderBackup(t, s, day(2), nil)
	damaged := folderBackup(t, s, day(3), func(dir string, _ *liteboxd.Backup) {
		write(t, filepath.Join(dir, liteboxd.BackupDatabase), "no database")
	})
	folderBackup(t, s, day(4), func(_ string, b *liteboxd.Backup) { b.To = beforeRestore + "x on the node first" })
	unreadable := folderBackup(t, s, day(5), nil)
	write(t, filepath.Join(unreadable, "backup.json"), "{")
	clusters := recovery.BackupsDir(s.StatePath, "example")
	if err := os.MkdirAll(clusters, 0o700); err != nil {
		t.Fatal(err)
	}
	sealed := filepath.Join(clusters, "example-20260106T000000Z.tar.age")
	write(t, sealed, "age-encryption.org/v1\n")
	var told []string
	source, closing, err := Newest(t.Context(), s, nil, func(text string) { told = append(told, text) })
	if err != nil {
		t.Fatal(err)
	}
	defer closing() //nolint:errcheck // it was only read
	if source.Path != wanted || string(source.Key) != "the-key" || !source.Time.Equal(day(2)) {
		t.Errorf("%+v", source)
	}
	kubetest.Contains(t, strings.Join(told, "\n"), damaged+" of 2026-01-03", "the database has the sha256", unreadable, sealed,
		"the backup is encrypted")
	if _, _, err := Newest(t.Context(), onSite(t), nil, func(text string) { t.Error(text) }); !errors.Is(err, site.ErrRefused) {
		t.Errorf("where there is none: %v", err)
	}
}

// A backup of another cluster, without a database or a key, or with another database, is not put back.
func TestSourceRefused(t *testing.T) {
	for _, test := range []struct {
		name, want string
		edit       func(dir string, b *liteboxd.Backup)
	}{
		{"another cluster", `of the cluster "other"`, func(_ string, b *liteboxd.Backup) { b.Cluster = "other" }},
		{"no database", "has no database", func(_ string, b *liteboxd.Backup) { b.SHA256 = "" }},
		{"no key", "read the key", func(dir string, _ *liteboxd.Backup) {
			if err := os.Remove(filepath.Join(dir, "sandbox-token-encryption-key")); err != nil {
				t.Fatal(err)
			}
		}},
		{"another database", "expected", func(_ string, b *liteboxd.Backup) { b.SHA256 = strings.Repeat("0", 64) }},
	} {
		s := onSite(t)
		_, err := OfFolder(t.Context(), folderBackup(t, s, day(1), test.edit), "example")
		if !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	r := sitetest.OpenBackup(t, backup.Manifest{Cluster: "example", K3s: "v1"}, sitetest.FullToken)
	for cluster, want := range map[string]string{"example": "has no database of LiteBoxd's", "other": `describes "other"`} {
		if _, err := OfCluster(r, cluster); !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("a backup without LiteBoxd for %s: %v", cluster, err)
		}
	}
}

// Only folders that bear the name of LiteBoxd's claim are removed: what a volume names comes from the API.
func TestRemoveFolder(t *testing.T) {
	r := &Relocation{Site: onSite(t)}
	for _, folder := range []string{"", "/", "/etc", "/var/lib/rancher/k3s/storage", "relative/liteboxd-api-data/x/y",
		"/liteboxd-api-data", "/var/lib/liteboxd-api-data/..", "/srv/data/pvc-1_shop_data"} {
		v := &corev1.PersistentVolume{}
		v.Name, v.Spec.Local = "pvc-1", &corev1.LocalVolumeSource{Path: folder}
		if err := r.remove(t.Context(), v, true); !errors.Is(err, site.ErrRefused) {
			t.Errorf("%q: %v", folder, err)
		}
	}
}
