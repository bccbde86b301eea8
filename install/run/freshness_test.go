package run

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// wantError wants an error of a kind that says this, or none when it is to say nothing.
func wantError(t *testing.T, name string, err, kind error, want string) {
	t.Helper()
	switch {
	case want == "" && err == nil:
	case want == "" || err == nil || !errors.Is(err, kind) || !strings.Contains(err.Error(), want):
		t.Errorf("%s: got %v, want %q", name, err, want)
	}
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
		{"a restore", 8, func(in *installation, _ *release.Record) { in.engine.Restores = true }, ""},
		{"a rollback", 8, func(in *installation, _ *release.Record) {
			in.engine.Upgrades, in.record.TakesBack = true, 1
		}, ""},
		{"an upgrade", 8, func(in *installation, _ *release.Record) { in.engine.Upgrades = true }, "it is older"},
		{"the run that is under way", 8, func(in *installation, r *release.Record) {
			r.Releases[0].State, r.Releases[0].Bundle = release.Running, in.site.Bundle.Digest()
		}, ""},
	} {
		in, r := fresh(t, c.serial), sitetest.RecordOf(t, 9)
		if c.change != nil {
			c.change(in, r)
		}
		wantError(t, c.name, in.record.refuseOlder(r), site.ErrRefused, c.want)
		if c.want == "" {
			continue
		}
		// No release of it comes into the record, whatever was found out before.
		if err := in.record.beginRelease(r, release.Running); !errors.As(err, new(*olderBundleError)) || len(r.Releases) != 1 {
			t.Errorf("%s: it is on record: %v", c.name, err)
		}
	}
}

// TestCheckBundleByCopy: where the cluster cannot be asked, the copy of its record tells.
func TestCheckBundleByCopy(t *testing.T) {
	write := func(t *testing.T, in *installation, r *release.Record) {
		t.Helper()
		if err := in.record.CopyRecord(r); err != nil {
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
		{"a copy", 8, func(t *testing.T, in *installation) { write(t, in, sitetest.RecordOf(t, 9)) }, "it is older"},
		{"a newer bundle", 10, func(t *testing.T, in *installation) { write(t, in, sitetest.RecordOf(t, 9)) }, ""},
		{"an older one that is accepted", 8, func(t *testing.T, in *installation) {
			write(t, in, sitetest.RecordOf(t, 9))
			in.record.AcceptOlderBundle = true
		}, ""},
		{"hosts that are in no cluster", 8, func(t *testing.T, in *installation) {
			write(t, in, sitetest.RecordOf(t, 9))
			in.site.Hosts[0].Member = false
		}, ""},
		{"a copy that cannot be read", 8, func(t *testing.T, in *installation) {
			write(t, in, sitetest.RecordOf(t, 9))
			if err := os.WriteFile(in.record.RecordCopy(), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, ""},
	} {
		in := fresh(t, c.serial)
		c.change(t, in)
		wantError(t, c.name, in.record.CheckBundle(t.Context()), site.ErrRefused, c.want)
		if unread := strings.Contains(c.name, "cannot be read"); unread != (len(in.site.Warnings) > 0) {
			t.Errorf("%s: warnings: %v", c.name, in.site.Warnings)
		}
	}
}

// TestKeepNewest: a restore brings an old record back, and not the old serial.
func TestKeepNewest(t *testing.T) {
	in := fresh(t, 8)
	if err := in.record.CopyRecord(sitetest.RecordOf(t, 9)); err != nil {
		t.Fatal(err)
	}
	r := sitetest.RecordOf(t, 5)
	if in.record.keepNewest(r); r.Serial != 5 {
		t.Errorf("without a restore it is %d", r.Serial)
	}
	in.engine.Restores = true
	if in.record.keepNewest(r); r.Serial != 9 {
		t.Errorf("it is %d", r.Serial)
	}
	other := sitetest.RecordOf(t, 5)
	other.Cluster = "lan-2"
	if in.record.keepNewest(other); other.Serial != 5 {
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
		err := CheckAudience(lock.Validity{Audience: c.audience}, "lan-1")
		wantError(t, strings.Join(c.audience, ","), err, site.ErrConfig, c.want)
	}
}
