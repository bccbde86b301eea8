package build_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/upstream"
)

// TestGoesOnInsideBlobs has builds that end nine tenths into a download. The next one asks
// for the rest, and proves what was there.
func TestGoesOnInsideBlobs(t *testing.T) {
	layer := bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64")
	blobs := map[string]struct {
		digest digest.Digest
		path   string
	}{
		"file":  {bundletest.ChartDigest(t), upstream.FilePath(bundletest.ChartURL)},
		"layer": {layer, upstream.BlobPath(layer)},
	}
	tests := map[string]struct {
		fault upstream.Fault // in the next run
		// spoil changes what was left.
		spoil func(left []byte, e ocitar.Entry)
		// atMost is how much may come over the line in the next run, in tenths; at least
		// one tenth less does.
		atMost int64
	}{
		"rest":      {atMost: 2},
		"no ranges": {fault: upstream.IgnoreRange{}, atMost: 11},
		"shifted":   {fault: upstream.ShiftRange{By: -100}, atMost: 13},
		"another byte in what was left": {
			spoil: func(left []byte, e ocitar.Entry) { left[e.Offset+100] ^= 1 }, atMost: 12,
		},
		"a hole in what was left, as after a power cut": {
			spoil: func(left []byte, e ocitar.Entry) { clear(left[e.Offset : e.Offset+4096]) }, atMost: 12,
		},
		"garbage behind it": {
			spoil: func(left []byte, e ocitar.Entry) { left[e.Offset+e.Size-1] = 'x' }, atMost: 11,
		},
		"everything but the header": {
			spoil: func(left []byte, e ocitar.Entry) {
				r := bundletest.MustOpen(t, bundletest.Reference(t))
				if _, err := r.Whole().ReadAt(left[e.Offset:e.Offset+e.Size], e.Offset); err != nil {
					t.Fatal(err)
				}
			},
			atMost: 1,
		},
	}
	for place, blob := range blobs {
		for name, test := range tests {
			if place == "file" && test.spoil != nil {
				continue // what is left is the same
			}
			t.Run(place+"/"+name, func(t *testing.T) {
				s := bundletest.UpstreamServer(t)
				e, ok := bundletest.MustOpen(t, bundletest.Reference(t)).Tar().Blob(blob.digest)
				if !ok {
					t.Fatal("the reference bundle lacks it")
				}
				path := filepath.Join(t.TempDir(), "b.tar")
				s.Inject(upstream.Rule{Path: blob.path, Times: 1, Fault: upstream.Cut{After: e.Size * 9 / 10}})
				s.Inject(upstream.Rule{Path: blob.path, Skip: 1, Fault: upstream.Status{Code: 404}})
				if _, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), bundletest.NewClient(s), path,
					nil); err == nil {
					t.Fatal("it succeeded")
				}
				if test.spoil != nil {
					partials, err := build.Partials(path, "")
					if err != nil || len(partials) != 1 {
						t.Fatalf("%v, %v", partials, err)
					}
					left := bundletest.MustRead(t, partials[0])
					test.spoil(left, e)
					bundletest.MustWrite(t, partials[0], left)
				}
				s.Heal()
				s.ResetRequests()
				if test.fault != nil {
					s.Inject(upstream.Rule{Path: blob.path, Times: 1, Fault: test.fault})
				}
				bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
				bundletest.SameFiles(t, bundletest.Reference(t), path)
				var sent int64
				for _, r := range s.Requests() {
					if strings.HasSuffix(r.Path, blob.digest.String()) || strings.HasSuffix(r.Path, ".tgz") {
						sent += r.Bytes
					}
				}
				if sent > e.Size*test.atMost/10 || sent < e.Size*(test.atMost-3)/10 {
					t.Errorf("%d bytes came of something with %d", sent, e.Size)
				}
			})
		}
	}
}

// blobBytes is the size of all blobs in a bundle that are not made by every build.
func blobBytes(t *testing.T, path string) int64 {
	t.Helper()
	var n int64
	for _, e := range bundletest.MustOpen(t, path).Tar().Layout().Entries {
		if e.Digest() != "" {
			n += e.Size
		}
	}
	return n
}

// TestReuse builds from what an older bundle holds.
func TestReuse(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	plan := func(o *plan.Options) { bundletest.Reusing(t, bundletest.Reference(t))(o) }
	result := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil, plan)
	bundletest.SameFiles(t, bundletest.Reference(t), path)
	// Tags may have moved: they are looked up all the same, and nothing else.
	for _, r := range s.Requests() {
		if r.Method != "HEAD" && r.Path != "/v2/" {
			t.Errorf("asked for %s %s", r.Method, r.Path)
		}
	}
	if result.Copied < blobBytes(t, path)*9/10 {
		t.Errorf("%d bytes were copied of %d", result.Copied, blobBytes(t, path))
	}

	// In a signed bundle everything lies elsewhere.
	signed := filepath.Join(t.TempDir(), "signed.tar")
	s.ResetRequests()
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), signed, bundletest.SignerOf(t, 0), plan)
	if err := bundletest.MustOpen(t, signed).Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if got := bundletest.Downloads(s); len(got) > 0 {
		t.Errorf("fetched %v", got)
	}
}

// TestReuseOfDamaged fetches what is not in an older bundle as it ought to be.
func TestReuseOfDamaged(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	damaged := filepath.Join(t.TempDir(), "damaged.tar")
	content := bundletest.MustRead(t, bundletest.Reference(t))
	layer := bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64")
	r := bundletest.MustOpen(t, bundletest.Reference(t))
	e, _ := r.Tar().Blob(layer)
	content[e.Offset+e.Size/2] ^= 1
	// And a manifest, of which the descriptor says what it is.
	web := bundletest.ImageOf(t, bundletest.WebRef)
	m, _ := r.Tar().Blob(web.Digest)
	content[m.Offset+1] ^= 1
	bundletest.MustWrite(t, damaged, content)
	path := filepath.Join(t.TempDir(), "b.tar")
	var told bundletest.Recorder
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil, bundletest.Reusing(t, damaged),
		func(o *plan.Options) { o.Reporter = &told })
	bundletest.SameFiles(t, bundletest.Reference(t), path)
	got := bundletest.Downloads(s)
	if len(got) > 2 || got[layer.String()] != 1 {
		t.Errorf("fetched %v", got)
	}
	if !slices.ContainsFunc(told.All(), func(m string) bool {
		return strings.Contains(m, "an older bundle cannot supply "+ocitar.BlobName(layer))
	}) {
		t.Errorf("the user was told %q", told.All())
	}

	// The second of two has it.
	s.ResetRequests()
	path = filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil,
		bundletest.Reusing(t, damaged, bundletest.Reference(t)))
	bundletest.SameFiles(t, bundletest.Reference(t), path)
	if got := bundletest.Downloads(s); len(got) > 0 {
		t.Errorf("fetched %v", got)
	}
}

// TestReuseOfItself replaces the bundle that it is taken from, which is there to the end.
func TestReuseOfItself(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustWrite(t, path, bundletest.MustRead(t, bundletest.Reference(t)))
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, bundletest.SignerOf(t, 0),
		bundletest.Reusing(t, path))
	if err := bundletest.MustOpen(t, path).Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// TestCancelledReuse stops at once.
func TestCancelledReuse(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	o, err := bundletest.PlanOptions(bundletest.SmallLock(t), bundletest.NewClient(s))
	if err != nil {
		t.Fatal(err)
	}
	bundletest.Reusing(t, bundletest.Reference(t))(&o)
	planned, err := plan.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b.tar")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := build.Write(ctx, planned, build.Options{Path: path}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	bundletest.NoFile(t, path)
}
