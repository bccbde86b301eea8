package bundle_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

// script is a bundle of one file.
func script(content string, v lock.Validity) smallbundle.Bundle {
	return smallbundle.Bundle{Validity: v, Components: []smallbundle.Component{{
		Name: "k3s", Version: "v1.36.4+k3s1", Files: []smallbundle.File{{Name: "install.sh", Content: content}},
	}}}
}

// wantValidity opens a bundle and compares what it says of itself.
func wantValidity(t *testing.T, path string, want lock.Validity) *bundle.Reader {
	t.Helper()
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if diff := cmp.Diff(want, r.Validity()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
	return r
}

// TestValidity: what the lock says is in the index of the bundle and of a delta of it, and nothing
// is where it says nothing.
func TestValidity(t *testing.T) {
	dir := t.TempDir()
	old, all := lock.Validity{}, lock.Validity{
		Serial: 7, Audience: []string{"lan-1", "site-*"}, NotAfter: time.Date(2027, 6, 30, 0, 0, 0, 0, time.UTC),
	}
	plain, full, delta := filepath.Join(dir, "plain.tar"), filepath.Join(dir, "full.tar"), filepath.Join(dir,
		"delta.tar")
	smallbundle.Build(t, plain, script("#!/bin/sh\n", old), nil)
	base := wantValidity(t, plain, old)
	smallbundle.Build(t, full, script("#!/bin/sh\n", all), nil)
	whole := wantValidity(t, full, all)
	var since plan.Base
	since.AddBundle(base)
	smallbundle.Build(t, delta, script("#!/bin/sh\n", all), &since)
	part := wantValidity(t, delta, all)
	for _, r := range []*bundle.Reader{base, whole, part} {
		if err := r.Verify(t.Context(), progress.Discard); err != nil {
			t.Error(err)
		}
	}
	if part.Digest() != whole.Digest() || part.Delta() == nil {
		t.Errorf("the delta is of %s, the whole is %s", part.Digest(), whole.Digest())
	}
	d, err := bundle.Compare(base, whole)
	if err != nil {
		t.Fatal(err)
	}
	if !d.From.Validity.Equal(old) || !d.To.Validity.Equal(all) {
		t.Errorf("compared: %+v, %+v", d.From.Validity, d.To.Validity)
	}
}

// TestBundleBeforeSerials reads a bundle of a boxlift that knew no serials.
func TestBundleBeforeSerials(t *testing.T) {
	r := wantValidity(t, "testdata/no-serial.tar", lock.Validity{})
	if err := r.Verify(t.Context(), progress.Discard); err != nil {
		t.Error(err)
	}
	// Such a bundle is still made of a lock without a serial.
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, script("#!/bin/sh\n", lock.Validity{}))
	if same := wantValidity(t, path, lock.Validity{}); same.Digest() != r.Digest() {
		t.Errorf("its digest is %s, that of the same lock now %s", r.Digest(), same.Digest())
	}
}
