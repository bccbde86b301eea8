package bundle

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/pieces"
	"github.com/liteboxd/boxlift/bundle/volume"
	"github.com/liteboxd/boxlift/test/upstream"
)

// chartDigest is that of Cilium's chart in the reference bundle.
func chartDigest(t *testing.T) digest.Digest {
	t.Helper()
	contents, err := mustOpen(t, reference(t)).Contents()
	if err != nil {
		t.Fatal(err)
	}
	f, ok := contents.File("cilium", "cilium-1.20.0.tgz", "")
	if !ok {
		t.Fatal("no chart")
	}
	return f.Digest
}

// TestGoesOnInsideBlobs has builds that end nine tenths into a download. The next one asks
// for the rest, and proves what was there.
func TestGoesOnInsideBlobs(t *testing.T) {
	layer := layerOf(t, operatorRef, "linux/arm64")
	blobs := map[string]struct {
		digest digest.Digest
		path   string
	}{
		"file":  {chartDigest(t), upstream.FilePath(chartURL)},
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
				r := mustOpen(t, reference(t))
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
				s := upstreamServer(t)
				e, ok := mustOpen(t, reference(t)).Tar().Blob(blob.digest)
				if !ok {
					t.Fatal("the reference bundle lacks it")
				}
				path := filepath.Join(t.TempDir(), "b.tar")
				s.Inject(upstream.Rule{Path: blob.path, Times: 1, Fault: upstream.Cut{After: e.Size * 9 / 10}})
				s.Inject(upstream.Rule{Path: blob.path, Skip: 1, Fault: upstream.Status{Code: 404}})
				if _, err := build(t.Context(), smallLock(t), newClient(s), path, nil); err == nil {
					t.Fatal("it succeeded")
				}
				if test.spoil != nil {
					partials, err := Partials(path, "")
					if err != nil || len(partials) != 1 {
						t.Fatalf("%v, %v", partials, err)
					}
					left := mustRead(t, partials[0])
					test.spoil(left, e)
					mustWrite(t, partials[0], left)
				}
				s.Heal()
				s.ResetRequests()
				if test.fault != nil {
					s.Inject(upstream.Rule{Path: blob.path, Times: 1, Fault: test.fault})
				}
				mustBuild(t, smallLock(t), newClient(s), path, nil)
				sameFiles(t, reference(t), path)
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

// reusing lets a build take blobs from older bundles.
func reusing(t *testing.T, paths ...string) func(*PlanOptions) {
	t.Helper()
	var older []*Reader
	for _, path := range paths {
		older = append(older, mustOpen(t, path))
	}
	return func(o *PlanOptions) { o.Reuse = older }
}

// blobBytes is the size of all blobs in a bundle that are not made by every build.
func blobBytes(t *testing.T, path string) int64 {
	t.Helper()
	var n int64
	for _, e := range mustOpen(t, path).Tar().Layout().Entries {
		if e.Digest() != "" {
			n += e.Size
		}
	}
	return n
}

// TestReuse builds from what an older bundle holds.
func TestReuse(t *testing.T) {
	s := upstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	plan := func(o *PlanOptions) { reusing(t, reference(t))(o) }
	result := mustBuild(t, smallLock(t), newClient(s), path, nil, plan)
	sameFiles(t, reference(t), path)
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
	mustBuild(t, smallLock(t), newClient(s), signed, signerOf(t, 0), plan)
	if err := mustOpen(t, signed).Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if got := downloads(s); len(got) > 0 {
		t.Errorf("fetched %v", got)
	}
}

// TestReuseOfDamaged fetches what is not in an older bundle as it ought to be.
func TestReuseOfDamaged(t *testing.T) {
	s := upstreamServer(t)
	damaged := filepath.Join(t.TempDir(), "damaged.tar")
	content := mustRead(t, reference(t))
	layer := layerOf(t, operatorRef, "linux/arm64")
	r := mustOpen(t, reference(t))
	e, _ := r.Tar().Blob(layer)
	content[e.Offset+e.Size/2] ^= 1
	// And a manifest, of which the descriptor says what it is.
	web := imageOf(t, webRef)
	m, _ := r.Tar().Blob(web.Digest)
	content[m.Offset+1] ^= 1
	mustWrite(t, damaged, content)
	path := filepath.Join(t.TempDir(), "b.tar")
	var told recorder
	mustBuild(t, smallLock(t), newClient(s), path, nil, reusing(t, damaged), func(o *PlanOptions) { o.Reporter = &told })
	sameFiles(t, reference(t), path)
	got := downloads(s)
	if len(got) > 2 || got[layer.String()] != 1 {
		t.Errorf("fetched %v", got)
	}
	if !slices.ContainsFunc(told.all(), func(m string) bool {
		return strings.Contains(m, "an older bundle cannot supply "+ocitar.BlobName(layer))
	}) {
		t.Errorf("the user was told %q", told.all())
	}

	// The second of two has it.
	s.ResetRequests()
	path = filepath.Join(t.TempDir(), "b.tar")
	mustBuild(t, smallLock(t), newClient(s), path, nil, reusing(t, damaged, reference(t)))
	sameFiles(t, reference(t), path)
	if got := downloads(s); len(got) > 0 {
		t.Errorf("fetched %v", got)
	}
}

// TestReuseOfItself replaces the bundle that it is taken from, which is there to the end.
func TestReuseOfItself(t *testing.T) {
	s := upstreamServer(t)
	path := filepath.Join(t.TempDir(), "b.tar")
	mustWrite(t, path, mustRead(t, reference(t)))
	mustBuild(t, smallLock(t), newClient(s), path, signerOf(t, 0), reusing(t, path))
	if err := mustOpen(t, path).Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// TestCancelledReuse stops at once.
func TestCancelledReuse(t *testing.T) {
	s := upstreamServer(t)
	o, err := planOptions(smallLock(t), newClient(s))
	if err != nil {
		t.Fatal(err)
	}
	reusing(t, reference(t))(&o)
	plan, err := NewPlan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b.tar")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := plan.Build(ctx, BuildOptions{Path: path}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	noFile(t, path)
}

// TestWrittenLength finds the end of what was written, also where it is in several volumes.
func TestWrittenLength(t *testing.T) {
	const size = 3 * pieces.Size
	for _, split := range []int64{0, size / 2} {
		f, err := volume.NewDraft(volume.DraftOptions{Path: filepath.Join(t.TempDir(), "b.tar"), Suffix: ".partial", Size: 2 * size, VolumeSize: split})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if err := f.Allocate(); err != nil {
			t.Fatal(err)
		}
		b := &builder{file: f}
		for _, n := range []int64{0, 1, 511, 4096, pieces.Size - 1, pieces.Size, pieces.Size + 1, size} {
			const offset = 1536
			if _, err := f.WriteAt(bytes.Repeat([]byte("x"), int(n)), offset); err != nil {
				t.Fatal(err)
			}
			got, err := b.writtenLength(offset, size)
			if err != nil || got != n {
				t.Errorf("%d bytes in volumes of %d: got %d, %v", n, split, got, err)
			}
			if err := b.erase(ocitar.Entry{Member: ocitar.Member{Size: n}, Offset: offset}); err != nil {
				t.Fatal(err)
			}
			if got, err := b.writtenLength(offset, size); err != nil || got != 0 {
				t.Errorf("%d bytes in volumes of %d, erased: got %d, %v", n, split, got, err)
			}
		}
	}
}
