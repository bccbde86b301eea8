package backup_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/liteboxd/boxlift/internal/backup"
)

// manifest is that of a small cluster.
func manifest(d backup.Datastore) backup.Manifest {
	return backup.Manifest{
		Cluster: "lan-1", Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Boxlift: "v1.2.3", K3s: "v1.34.4+k3s1",
		Bundle: "sha256:0123", Datastore: d, Server: "one", Nodes: []string{"one", "two"},
		LiteBoxd: &backup.Location{
			Node: "two", Path: "/var/lib/rancher/k3s/storage/pvc-1/liteboxd.db",
			File: backup.Ownership{UID: 1000, GID: 1000, Mode: 0o644}, Folder: backup.Ownership{Mode: 0o777},
		},
	}
}

// parts makes the files of a backup.
func parts(t testing.TB, d backup.Datastore) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		backup.Token: "K10abc::server:secret\n", backup.AgentToken: "other\n",
		backup.ServerFiles: "no tar, which nobody looks into", backup.NodePassword("one"): "p1",
		backup.NodePassword("two"): "p2", backup.LiteBoxdRecord: "{}", backup.LiteBoxdFolder + "/objects.yaml": "", backup.ReleaseRecord: "{}",
	} {
		write(t, filepath.Join(dir, name), []byte(content))
	}
	writeDatabase(t, filepath.Join(dir, backup.LiteBoxdDatabase))
	if d == backup.SQLite {
		writeDatabase(t, filepath.Join(dir, backup.SQLiteDatabase))
	} else {
		writeSnapshot(t, filepath.Join(dir, backup.EtcdSnapshot), "key", "meta")
	}
	return dir
}

func write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func writeDatabase(t testing.TB, path string) {
	t.Helper()
	write(t, path, nil)
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `CREATE TABLE templates (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO templates VALUES (1, 'a')`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// writeSnapshot makes what etcd makes: its database and, behind it, the database's sha256.
func writeSnapshot(t testing.TB, path string, buckets ...string) {
	t.Helper()
	write(t, path, nil)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: 4096, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range buckets {
			b, err := tx.CreateBucketIfNotExists([]byte(name))
			if err != nil {
				return err
			}
			for i := range 3 {
				if err := b.Put(fmt.Append(nil, i), []byte("value")); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	appendDigest(t, path)
}

func appendDigest(t testing.TB, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	write(t, path, append(content, sum[:]...))
}

func TestRoundTrip(t *testing.T) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	quantum, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	to, err := age.NewScryptRecipient("correct horse")
	if err != nil {
		t.Fatal(err)
	}
	to.SetWorkFactor(4) // quick
	phrase, err := age.NewScryptIdentity("correct horse")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name       string
		datastore  backup.Datastore
		recipients []age.Recipient
		identities []age.Identity
		wrong      []age.Identity
		refusal    error
	}{
		{name: "etcd", datastore: backup.Etcd},
		{name: "sqlite", datastore: backup.SQLite},
		{"key", backup.Etcd, []age.Recipient{key.Recipient()}, []age.Identity{key}, nil, backup.ErrEncrypted},
		{"another key", backup.Etcd, []age.Recipient{key.Recipient()}, []age.Identity{other, key}, []age.Identity{other}, backup.ErrWrongKey},
		{"post-quantum key", backup.Etcd, []age.Recipient{quantum.Recipient()}, []age.Identity{key, quantum}, []age.Identity{key}, backup.ErrWrongKey},
		{"passphrase", backup.SQLite, []age.Recipient{to}, []age.Identity{phrase}, []age.Identity{key}, backup.ErrWrongKey},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := manifest(test.datastore)
			dir := parts(t, test.datastore)
			path := filepath.Join(t.TempDir(), m.FileName(len(test.recipients) > 0))
			written, err := backup.Write(t.Context(), path, m, dir, test.recipients...)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			if test.refusal != nil {
				if _, err := backup.Open(path, test.wrong...); !errors.Is(err, test.refusal) {
					t.Errorf("got %v, want %v", err, test.refusal)
				}
				content, err := os.ReadFile(path)
				if err != nil || bytes.Contains(content, []byte("secret")) {
					t.Errorf("it is in the clear, %v", err)
				}
			}
			r, err := backup.Open(path, test.identities...)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			read, err := r.Verify(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(written, read); diff != "" {
				t.Error(diff)
			}
			token, err := r.ReadSmall(backup.Token, 100)
			if err != nil || string(token) != "K10abc::server:secret\n" {
				t.Errorf("%q, %v", token, err)
			}
			if test.datastore == backup.Etcd && read.Revisions != 3 {
				t.Errorf("%d revisions", read.Revisions)
			}
		})
	}
}

// Others find their way in a backup too.
func TestForm(t *testing.T) {
	m := manifest(backup.Etcd)
	path := filepath.Join(t.TempDir(), "b.tar")
	if _, err := backup.Write(t.Context(), path, m, parts(t, backup.Etcd)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var names []string
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fs.FileMode(h.Mode).String()+" "+h.Name)
	}
	want := []string{
		"-rw------- manifest.json", "-rw------- k3s/agent-token", "-rw------- k3s/etcd-snapshot", "-rw------- k3s/server.tar", "-rw------- k3s/token", "-rw------- liteboxd/backup.json",
		"-rw------- liteboxd/liteboxd.db", "-rw------- liteboxd/objects.yaml", "-rw------- nodes/one/password", "-rw------- nodes/two/password", "-rw------- release.json",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

// What cannot be restored is not written, and nothing is left of it.
func TestWriteRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, m *backup.Manifest, dir string)
		want   string
	}{
		{"no token", func(t *testing.T, _ *backup.Manifest, dir string) { remove(t, dir, backup.Token) }, "k3s/token is missing"},
		{"no datastore", func(t *testing.T, _ *backup.Manifest, dir string) { remove(t, dir, backup.EtcdSnapshot) }, "k3s/etcd-snapshot is missing"},
		{"no database", func(t *testing.T, _ *backup.Manifest, dir string) { remove(t, dir, backup.LiteBoxdDatabase) }, "LiteBoxd's database is missing"},
		{"a database from nowhere", func(_ *testing.T, m *backup.Manifest, _ string) { m.LiteBoxd = nil }, "where LiteBoxd's database belongs"},
		{"cut", func(t *testing.T, _ *backup.Manifest, dir string) {
			truncate(t, filepath.Join(dir, backup.EtcdSnapshot), 32)
		}, "which no snapshot of etcd has"},
		{"changed", func(t *testing.T, _ *backup.Manifest, dir string) {
			flip(t, filepath.Join(dir, backup.EtcdSnapshot), 4096)
		}, "its own end says"},
		{"no etcd", func(t *testing.T, _ *backup.Manifest, dir string) {
			remove(t, dir, backup.EtcdSnapshot)
			writeSnapshot(t, filepath.Join(dir, backup.EtcdSnapshot), "other")
		}, "it is no database of etcd"},
		{"pages of nonsense", func(t *testing.T, _ *backup.Manifest, dir string) {
			path := filepath.Join(dir, backup.EtcdSnapshot)
			truncate(t, path, 32)
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := 2 * 4096; i < len(content); i++ {
				content[i] = 0xa5
			}
			write(t, path, content)
			appendDigest(t, path)
		}, "etcd's database in it"},
		{"no SQLite", func(t *testing.T, _ *backup.Manifest, dir string) {
			write(t, filepath.Join(dir, backup.LiteBoxdDatabase), []byte("SQLite format 3\x00 and no more"))
		}, "liteboxd/liteboxd.db"},
		{"a name", func(t *testing.T, _ *backup.Manifest, dir string) {
			write(t, filepath.Join(dir, "k3s", "..token"), nil)
		}, "no name of an entry"},
		{"a node", func(_ *testing.T, m *backup.Manifest, _ string) { m.Nodes = []string{"../one"} }, "no name of a node"},
		{"a place", func(_ *testing.T, m *backup.Manifest, _ string) { m.LiteBoxd.Path = "/var/../etc/shadow" }, "no place for a database"},
		{"a mode", func(_ *testing.T, m *backup.Manifest, _ string) { m.LiteBoxd.File.Mode = 0o4755 }, "has the mode"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m, dir, to := manifest(backup.Etcd), parts(t, backup.Etcd), t.TempDir()
			test.change(t, &m, dir)
			_, err := backup.Write(t.Context(), filepath.Join(to, "b.tar"), m, dir)
			if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if left, err := os.ReadDir(to); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string, by int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-by); err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, path string, at int) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[at] ^= 1
	write(t, path, content)
}

// One byte that is another one is found wherever content is.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar")
	if _, err := backup.Write(t.Context(), path, manifest(backup.Etcd), parts(t, backup.Etcd)); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(content []byte) error {
		write(t, path, content)
		r, err := backup.Open(path)
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = r.Verify(t.Context())
		return err
	}
	find := func(text string) int {
		i := bytes.Index(whole, []byte(text))
		if i < 0 {
			t.Fatalf("there is no %q", text)
		}
		return i
	}
	for _, at := range []int{find(`"format"`) + 11, find(`"size"`) + 8, find("K10abc"), find("p1"), find("SQLite format 3"), find("k3s/server.tar\x00")} {
		changed := bytes.Clone(whole)
		changed[at] ^= 1
		if err := verify(changed); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("changed at %d: %v", at, err)
		}
	}
	for _, size := range []int{0, 1, 511, 512, 2000, len(whole) / 2, len(whole) - 1024, len(whole) - 1} {
		if err := verify(whole[:size]); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("cut to %d of %d: %v", size, len(whole), err)
		}
	}
	for _, more := range [][]byte{{0}, make([]byte, 512), []byte("more")} {
		if err := verify(append(bytes.Clone(whole), more...)); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("with %d bytes more: %v", len(more), err)
		}
	}
	if err := verify(whole); err != nil {
		t.Error(err)
	}
}

func TestList(t *testing.T) {
	dir := t.TempDir()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	m, from := manifest(backup.Etcd), parts(t, backup.Etcd)
	for i, recipients := range [][]age.Recipient{nil, {key.Recipient()}} {
		m.Time = m.Time.Add(time.Duration(i) * time.Hour)
		if _, err := backup.Write(t.Context(), filepath.Join(dir, m.FileName(i > 0)), m, from, recipients...); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "other.tar"), []byte("something else"))
	write(t, filepath.Join(dir, "notes.txt"), nil)
	list, err := backup.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range list {
		got = append(got, fmt.Sprintf("%s %t %t %t", filepath.Base(one.Path), one.Encrypted, one.Manifest != nil, one.Problem != ""))
	}
	want := []string{"lan-1-20260304T050607Z.tar false true false", "lan-1-20260304T060607Z.tar.age true false false", "other.tar false false true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if list, err := backup.List(filepath.Join(dir, "none")); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}
