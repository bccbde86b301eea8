package install

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

// recordOf is a record with one release of a bundle of this serial.
func recordOf(t *testing.T, serial int64) *release.Record {
	t.Helper()
	r := release.New("lan-1")
	one, err := r.Begin(release.Release{
		State: release.Running, Command: "install", Bundle: digest.FromString("another"), Serial: serial,
		Boxlift: "v1", By: "op@laptop", Config: strings.Repeat("a", 64), Components: []release.Component{}, Started: time.Unix(1000, 0),
	}, []byte("a lock"))
	if err != nil {
		t.Fatal(err)
	}
	r.Set(one.Number, release.Succeeded, "", time.Unix(2000, 0))
	return r
}

// openSmall opens a bundle with a serial.
func openSmall(t *testing.T, serial int64) *bundle.Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar")
	script := smallbundle.Component{
		Name: "k3s", Version: "v1.36.4+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: "#!/bin/sh\n"}},
	}
	smallbundle.Write(t, path, smallbundle.Bundle{
		Validity: lock.Validity{Serial: serial}, Components: []smallbundle.Component{script},
	})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// wantError wants an error of a kind that says this, or none when it is to say nothing.
func wantError(t *testing.T, name string, err, kind error, want string) {
	t.Helper()
	switch {
	case want == "" && err == nil:
	case want == "" || err == nil || !errors.Is(err, kind) || !strings.Contains(err.Error(), want):
		t.Errorf("%s: got %v, want %q", name, err, want)
	}
}

// fresh is a run with a bundle of this serial, on one server that is in a cluster which nobody can
// talk to.
func fresh(t *testing.T, serial int64) *installation {
	t.Helper()
	c := &config.Config{Cluster: config.Cluster{Name: "lan-1", Servers: []config.Host{{Host: "10.0.0.11"}}}}
	in := newRooms(Options{Config: c, Bundle: openSmall(t, serial), StatePath: filepath.Join(t.TempDir(), "state.json")})
	in.site.hosts = []*host{{member: true}}
	return in
}

func TestRefuseOlder(t *testing.T) {
	for _, c := range []struct {
		name   string
		serial int64
		change func(*installation, *release.Record)
		want   string
	}{
		{"an older one", 8, nil, "refused: the bundle has the serial 8, and the cluster has had one with the serial 9: it is"},
		{"one without a serial", 0, nil, "refused: the bundle has no serial, and the cluster has had one with the serial 9"},
		{"one of the same serial", 9, nil, ""},
		{"a newer one", 10, nil, ""},
		{"an older one that is accepted", 8, func(in *installation, _ *release.Record) { in.record.AcceptOlderBundle = true }, ""},
		{"a restore", 8, func(in *installation, _ *release.Record) { in.engine.restores = true }, ""},
		{"a rollback", 8, func(in *installation, _ *release.Record) {
			in.engine.upgrades, in.record.takesBack = true, 1
		}, ""},
		{"an upgrade", 8, func(in *installation, _ *release.Record) { in.engine.upgrades = true }, "it is older"},
		{"the run that is under way", 8, func(in *installation, r *release.Record) {
			r.Releases[0].State, r.Releases[0].Bundle = release.Running, in.site.Bundle.Digest()
		}, ""},
	} {
		in, r := fresh(t, c.serial), recordOf(t, 9)
		if c.change != nil {
			c.change(in, r)
		}
		wantError(t, c.name, in.record.refuseOlder(r), ErrRefused, c.want)
		if c.want == "" {
			continue
		}
		// No release of it comes into the record, whatever was found out before.
		if err := in.record.beginRelease(r, release.Running); !errors.As(err, new(*olderBundleError)) || len(r.Releases) != 1 {
			t.Errorf("%s: it is on record: %v", c.name, err)
		}
	}
}

// TestCheckFreshByCopy: where the cluster cannot be asked, the copy of its record tells.
func TestCheckFreshByCopy(t *testing.T) {
	write := func(t *testing.T, in *installation, r *release.Record) {
		t.Helper()
		if err := in.record.copyRecord(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		serial int64
		change func(*testing.T, *installation)
		want   string
	}{
		{"no copy", 8, func(*testing.T, *installation) {}, ""},
		{"a copy", 8, func(t *testing.T, in *installation) { write(t, in, recordOf(t, 9)) }, "it is older"},
		{"a newer bundle", 10, func(t *testing.T, in *installation) { write(t, in, recordOf(t, 9)) }, ""},
		{"an older one that is accepted", 8, func(t *testing.T, in *installation) {
			write(t, in, recordOf(t, 9))
			in.record.AcceptOlderBundle = true
		}, ""},
		{"hosts that are in no cluster", 8, func(t *testing.T, in *installation) {
			write(t, in, recordOf(t, 9))
			in.site.hosts[0].member = false
		}, ""},
		{"a copy that cannot be read", 8, func(t *testing.T, in *installation) {
			write(t, in, recordOf(t, 9))
			if err := os.WriteFile(in.record.recordCopy(), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, ""},
	} {
		in := fresh(t, c.serial)
		c.change(t, in)
		wantError(t, c.name, in.record.checkFresh(t.Context()), ErrRefused, c.want)
		if unread := strings.Contains(c.name, "cannot be read"); unread != (len(in.site.warnings) > 0) {
			t.Errorf("%s: warnings: %v", c.name, in.site.warnings)
		}
	}
}

// TestKeepSerial: a restore brings an old record back, and not the old serial.
func TestKeepSerial(t *testing.T) {
	in := fresh(t, 8)
	if err := in.record.copyRecord(recordOf(t, 9)); err != nil {
		t.Fatal(err)
	}
	r := recordOf(t, 5)
	if in.record.keepSerial(r); r.Serial != 5 {
		t.Errorf("without a restore it is %d", r.Serial)
	}
	in.engine.restores = true
	if in.record.keepSerial(r); r.Serial != 9 {
		t.Errorf("it is %d", r.Serial)
	}
	other := recordOf(t, 5)
	other.Cluster = "lan-2"
	if in.record.keepSerial(other); other.Serial != 5 {
		t.Errorf("that of another cluster is %d", other.Serial)
	}
}

func TestCheckAudience(t *testing.T) {
	for _, c := range []struct {
		audience []string
		want     string
	}{
		{nil, ""},
		{[]string{"lan-1"}, ""},
		{[]string{"site-7", "lan-*"}, ""},
		{[]string{"a", "lan-2"}, "the bundle is for the clusters a, lan-2, and install.yaml describes the cluster lan-1"},
	} {
		err := checkAudience(lock.Validity{Audience: c.audience}, "lan-1")
		wantError(t, strings.Join(c.audience, ","), err, ErrConfig, c.want)
	}
}

// TestRecordDifferences: status says that the bundle is older.
func TestRecordDifferences(t *testing.T) {
	for serial, want := range map[int64]bool{8: true, 9: false} {
		texts := strings.Join(fresh(t, serial).inspector.recordDifferences(recordOf(t, 9)), "\n")
		if strings.Contains(texts, "the bundle has the serial 8, and the cluster has had one with the serial 9") != want {
			t.Errorf("serial %d: %s", serial, texts)
		}
	}
}
