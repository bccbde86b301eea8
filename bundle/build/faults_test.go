package build_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/upstream"
)

// planned is the one blob that is fetched before a build: without an index, only its
// config says what platform an image is for.
func planned(t *testing.T) string {
	t.Helper()
	return bundletest.ImageOf(t, bundletest.WebRef).Platforms[0].Config.Digest.String()
}

// TestFaultsWhileFetching makes one download fail: the error names its entry, nothing
// goes by the final name, and the next run fetches that download and no other.
func TestFaultsWhileFetching(t *testing.T) {
	operator := bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64")
	config := bundletest.ImageOf(t, bundletest.PauseRef).Platforms[0].Config.Digest
	operatorPath := upstream.BlobPath(operator)
	chartPath := upstream.FilePath(bundletest.ChartURL)
	const tries = 5 // answers that bring nothing
	tests := map[string]struct {
		rule   upstream.Rule
		failed string // the download
		want   []string
		hits   int
	}{
		"wrong byte in a file": {
			upstream.Rule{Path: chartPath, Fault: upstream.WrongByte{At: 1000}}, bundletest.ChartURL[len("https://"):],
			[]string{"cilium: cilium-1.20.0.tgz: what upstream has now is not what was locked: the bytes that came " +
				"have sha256:"}, 1,
		},
		"wrong byte in a layer": {
			upstream.Rule{Path: operatorPath, Fault: upstream.WrongByte{At: 0}}, operator.String(),
			[]string{"cilium: " + bundletest.OperatorRef + " (linux/", "the lock says " + operator.String()}, 1,
		},
		"wrong byte in a config": {
			upstream.Rule{Path: upstream.BlobPath(config), Fault: upstream.WrongByte{At: 20}}, config.String(),
			[]string{"k3s: " + bundletest.PauseRef + " (linux/amd64)", "the lock says " + config.String()}, 1,
		},
		"connection cut each time": {
			upstream.Rule{Path: chartPath, Fault: upstream.Cut{After: 0}}, bundletest.ChartURL[len("https://"):],
			[]string{"cilium: cilium-1.20.0.tgz: get https://", "the connection broke"}, tries,
		},
		"layer cut each time": {
			upstream.Rule{Path: operatorPath, Fault: upstream.Cut{After: 100}}, operator.String(),
			[]string{"cilium: " + bundletest.OperatorRef, "the connection broke after 500 of "}, tries,
		},
		"idle": {
			upstream.Rule{Path: operatorPath, Fault: upstream.Slow{BytesPerSecond: 1}}, operator.String(),
			[]string{"cilium: " + bundletest.OperatorRef, "nothing arrived for 100ms"}, tries,
		},
		"server error": {
			upstream.Rule{Path: operatorPath, Fault: upstream.Status{Code: 500}}, operator.String(),
			[]string{"cilium: " + bundletest.OperatorRef, "the server answered 500 Internal Server Error"}, 2,
		},
		"not there": {
			upstream.Rule{Path: "^/helm.cilium.io/", Fault: upstream.Status{Code: 404}},
			bundletest.ChartURL[len("https://"):],
			[]string{"cilium: cilium-1.20.0.tgz: get https://",
				"/cilium-1.20.0.tgz: the server answered 404 Not Found"}, 1,
		},
		"forbidden": {
			upstream.Rule{Path: operatorPath, Fault: upstream.Status{Code: 403}}, operator.String(),
			[]string{"cilium: " + bundletest.OperatorRef, "the server answered 403 Forbidden"}, 1,
		},
		"rate limit": {
			upstream.Rule{Path: operatorPath, Fault: upstream.Status{Code: 429}}, operator.String(),
			[]string{"cilium: " + bundletest.OperatorRef, "the server answered 429 Too Many Requests"}, 2,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := bundletest.UpstreamServer(t)
			path := filepath.Join(t.TempDir(), "b.tar")
			fault := s.Inject(test.rule)
			client := bundletest.NewClient(s, func(o *source.Options) {
				if name == "idle" {
					o.IdleTimeout = 100 * time.Millisecond
				}
			})
			_, err := bundletest.Build(t.Context(), bundletest.SmallLock(t), client, path, nil)
			bundletest.WantError(t, err, test.want...)
			if strings.Count(fmt.Sprint(err), "\n") > 0 {
				t.Errorf("more than one thing failed:\n%v", err)
			}
			var upstreamError *source.Error
			if !errors.Is(err, format.ErrUpstream) && !errors.As(err, &upstreamError) {
				t.Errorf("%T is not an error of upstream", err)
			}
			if fault.Hits() != test.hits {
				t.Errorf("the fault was met %d times, expected %d", fault.Hits(), test.hits)
			}
			bundletest.NoFile(t, path)

			s.Heal()
			s.ResetRequests()
			result := bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil)
			if result.Reused == 0 {
				t.Error("nothing was kept of the first run")
			}
			got := bundletest.Downloads(s)
			delete(got, planned(t))
			if diff := cmp.Diff(map[string]int{strings.TrimPrefix(test.failed, "/"): 1}, trimmed(got)); diff != "" {
				t.Errorf("the second run fetched (-expected +got):\n%s", diff)
			}
			bundletest.SameFiles(t, bundletest.Reference(t), path)
		})
	}
}

func trimmed(m map[string]int) map[string]int {
	result := make(map[string]int)
	for name, n := range m {
		result[strings.TrimPrefix(name, "/")] += n
	}
	return result
}

// TestFaultsThatPass are overcome within one run.
func TestFaultsThatPass(t *testing.T) {
	operator := upstream.BlobPath(bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64"))
	manifest := "/v2/quay.io/cilium/operator-generic/manifests/sha256:"
	tests := map[string]struct {
		rule upstream.Rule
		says string // what the user is told
	}{
		"500":                {upstream.Rule{Path: operator, Times: 1, Fault: upstream.Status{Code: 500}}, ""},
		"500 for a manifest": {upstream.Rule{Path: manifest, Times: 1, Fault: upstream.Status{Code: 503}}, ""},
		"cut": {upstream.Rule{Path: operator, Times: 3, Fault: upstream.Cut{After: 3000}},
			"the connection broke after 3000 of "},
		"cut at once": {upstream.Rule{Path: upstream.FilePath(bundletest.ChartURL), Times: 1,
			Fault: upstream.Cut{After: 0}}, "cilium-1.20.0.tgz: the connection broke after 0 of "},
		"manifest cut": {upstream.Rule{Path: manifest, Method: "GET", Times: 1, Fault: upstream.Cut{After: 20}}, ""},
		"slow manifest": {upstream.Rule{Path: manifest, Method: "GET", Times: 1,
			Fault: upstream.Slow{BytesPerSecond: 1}}, ""},
		"redirect": {upstream.Rule{Path: "/blobs/", Fault: upstream.Redirect{}}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := bundletest.UpstreamServer(t)
			path := filepath.Join(t.TempDir(), "b.tar")
			fault := s.Inject(test.rule)
			var told bundletest.Recorder
			client := bundletest.NewClient(s, func(o *source.Options) {
				o.IdleTimeout = 300 * time.Millisecond
				o.Retrying = func(err error, _ time.Duration) { told.Message(err.Error()) }
			})
			bundletest.MustBuild(t, bundletest.SmallLock(t), client, path, nil)
			bundletest.SameFiles(t, bundletest.Reference(t), path)
			if fault.Hits() == 0 || test.rule.Times > 0 && fault.Hits() != test.rule.Times {
				t.Errorf("the fault was met %d times", fault.Hits())
			}
			if test.says != "" && !slices.ContainsFunc(told.All(), func(m string) bool {
				return strings.Contains(m, test.says)
			}) {
				t.Errorf("the user was told %q, expected %q", told.All(), test.says)
			}
		})
	}
}

// TestRefusedPlans are errors before the first large download.
func TestRefusedPlans(t *testing.T) {
	pinned := bundletest.SmallLock(t)
	tests := map[string]struct {
		fault func(*upstream.Server)
		lock  func([]byte) []byte
		want  []string
	}{
		"moved tag": {
			fault: func(s *upstream.Server) { s.MoveTag(bundletest.BusyboxRef) },
			want: []string{"k3s: " + bundletest.BusyboxRef + ": versions.lock:",
				"the tag has moved: it was locked as sha256:", "and is now sha256:"},
		},
		"two moved tags": {
			fault: func(s *upstream.Server) { s.MoveTag(bundletest.BusyboxRef); s.MoveTag(bundletest.WebRef) },
			want:  []string{"k3s: " + bundletest.BusyboxRef, "liteboxd: " + bundletest.WebRef},
		},
		"manifest with a wrong byte": {
			fault: func(s *upstream.Server) {
				s.Inject(upstream.Rule{Method: "GET", Path: "pause/manifests/", Fault: upstream.WrongByte{At: 30}})
			},
			want: []string{"k3s: " + bundletest.PauseRef + ": versions.lock:",
				"the bytes that came have the digest sha256:"},
		},
		"config with a wrong byte": {
			fault: func(s *upstream.Server) {
				s.Inject(upstream.Rule{Method: "GET", Path: "/web/blobs/", Fault: upstream.WrongByte{At: 30}})
			},
			want: []string{"liteboxd: " + bundletest.WebRef, "the bytes that came have the digest sha256:"},
		},
		"no such tag": {
			fault: func(s *upstream.Server) {
				s.Inject(upstream.Rule{Path: "pause/manifests/3.10.2", Fault: upstream.Status{Code: 404}})
			},
			want: []string{"k3s: " + bundletest.PauseRef, "/manifests/3.10.2: the server answered 404 Not Found"},
		},
		"no credentials": {
			fault: func(s *upstream.Server) {
				s.RequireAuth(upstream.Auth{Prefix: "quay.io/cilium", Username: "u", Password: "p"})
			},
			want: []string{"cilium: " + bundletest.OperatorRef, "401"},
		},
		"platform that is not published": {
			lock: func(b []byte) []byte { return bundletest.Replaced(t, b, "    platforms: [linux/amd64]\n", "") },
			want: []string{
				"liteboxd: " + bundletest.GatewayRef, "liteboxd: " + bundletest.WebRef, "versions.lock:",
				"the image is not published for linux/arm64, only for [linux/amd64]",
			},
		},
		"stalled manifest": {
			fault: func(s *upstream.Server) {
				s.Inject(upstream.Rule{Method: "GET", Path: "pause/manifests/",
					Fault: upstream.Slow{BytesPerSecond: 1}})
			},
			want: []string{"k3s: " + bundletest.PauseRef, "nothing arrived for 300ms"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := bundletest.UpstreamServer(t)
			content := pinned
			if test.lock != nil {
				content = test.lock(bytes.Clone(pinned))
			}
			if test.fault != nil {
				test.fault(s)
			}
			path := filepath.Join(t.TempDir(), "b.tar")
			client := bundletest.NewClient(s, func(o *source.Options) { o.IdleTimeout = 300 * time.Millisecond })
			_, err := bundletest.Build(t.Context(), content, client, path, nil)
			bundletest.WantError(t, err, test.want...)
			var upstreamError *source.Error
			if !errors.Is(err, format.ErrUpstream) && !errors.As(err, &upstreamError) {
				t.Errorf("%v is not an error of upstream", err)
			}
			bundletest.NoFile(t, path)
			if left, err := build.Partials(path, ""); err != nil || len(left) > 0 {
				t.Errorf("left over: %v, %v", left, err)
			}
			for name := range bundletest.Downloads(s) {
				if name != planned(t) {
					t.Errorf("%s was fetched in vain", name)
				}
			}
			if test.lock != nil {
				return
			}
			s.Heal()
			bundletest.MustBuild(t, content, bundletest.NewClient(s), path, nil)
			bundletest.SameFiles(t, bundletest.Reference(t), path)
		})
	}
}

func TestAllowMovedTags(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	s.MoveTag(bundletest.BusyboxRef)
	path := filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, nil,
		func(o *plan.Options) { o.AllowMovedTags = true })
	bundletest.SameFiles(t, bundletest.Reference(t), path)
}

func TestWrongSizeInLock(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	size := int64(0)
	for _, f := range s.Files() {
		if f.URL == bundletest.InstallURL {
			size = f.Size
		}
	}
	content := bundletest.Replaced(t, bundletest.SmallLock(t), fmt.Sprintf("size: %d", size),
		fmt.Sprintf("size: %d", size-1))
	path := filepath.Join(t.TempDir(), "b.tar")
	_, err := bundletest.Build(t.Context(), content, bundletest.NewClient(s), path, nil)
	bundletest.WantError(t, err, fmt.Sprintf(
		"k3s: install.sh: what upstream has now is not what was locked: %d bytes came, the lock says %d", size, size-1))
	if !errors.Is(err, format.ErrUpstream) {
		t.Error("not ErrUpstream")
	}
	bundletest.NoFile(t, path)
}

// TestFaultsInArchives has one archive as the only source of 24 blobs.
func TestFaultsInArchives(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	content, err := s.PinnedLockYAML(
		upstream.LockOptions{Components: []string{"k3s"}, Platforms: []string{"linux/amd64"}})
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustBuild(t, content, bundletest.NewClient(s), want, nil)
	size := int64(0)
	for _, f := range s.Files() {
		if f.URL == bundletest.ArchiveURL {
			size = f.Size
		}
	}
	tests := map[string]struct {
		fault  upstream.Fault
		times  int    // 0: each time; negative: that often, and cut at once ever after
		want   string // "" when the run succeeds all the same
		reused bool   // whether the next run has something to build on
	}{
		"wrong byte in front":  {upstream.WrongByte{At: 1}, 0, "the bytes that came have sha256:", false},
		"wrong byte inside":    {upstream.WrongByte{At: size / 2}, 0, "the bytes that came have sha256:", true},
		"wrong byte at end":    {upstream.WrongByte{At: size - 1}, 0, "the bytes that came have sha256:", true},
		"cut in front":         {upstream.Cut{After: 0}, 0, "the connection broke", false},
		"cut inside each time": {upstream.Cut{After: size / 5}, 0, "", false},
		"cut inside for good":  {upstream.Cut{After: size / 2}, -1, "the connection broke", true},
		"cut inside once":      {upstream.Cut{After: size / 2}, 1, "", false},
		"cut at end once":      {upstream.Cut{After: size - 1}, 1, "", false},
		"idle":                 {upstream.Slow{BytesPerSecond: 1}, 1, "", false},
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		test := tests[name]
		t.Run(name, func(t *testing.T) {
			s := bundletest.UpstreamServer(t)
			times := test.times
			if times < 0 {
				times = -times
				s.Inject(upstream.Rule{Path: upstream.FilePath(bundletest.ArchiveURL), Skip: times,
					Fault: upstream.Cut{After: 0}})
			}
			s.Inject(upstream.Rule{Path: upstream.FilePath(bundletest.ArchiveURL), Times: times, Fault: test.fault})
			path := filepath.Join(t.TempDir(), "b.tar")
			client := bundletest.NewClient(s, func(o *source.Options) { o.IdleTimeout = 300 * time.Millisecond })
			_, err := bundletest.Build(t.Context(), content, client, path, nil)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				bundletest.SameFiles(t, want, path)
				return
			}
			bundletest.WantError(t, err, "k3s: k3s-airgap-images-amd64.tar.zst (linux/amd64): ", test.want)
			bundletest.NoFile(t, path)
			s.Heal()
			result := bundletest.MustBuild(t, content, bundletest.NewClient(s), path, nil)
			// The k3s binary and install.sh are there in any case.
			if inArchive := result.Reused > fileSizes(t, want); inArchive != test.reused {
				t.Errorf("%d bytes were kept, of which from the archive: %t", result.Reused, inArchive)
			}
			bundletest.SameFiles(t, want, path)
		})
	}
}

// fileSizes is what a bundle of files only holds.
func fileSizes(t *testing.T, path string) int64 {
	t.Helper()
	r := bundletest.MustOpen(t, path)
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	seen := make(map[digest.Digest]bool)
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			for _, d := range append(p.Blobs(), ocispec.Descriptor{Digest: image.Digest}) {
				seen[d.Digest] = true
			}
		}
	}
	for _, e := range r.Tar().Layout().Entries {
		if d := e.Digest(); d != "" && !seen[d] {
			n += e.Size
		}
	}
	return n
}

// TestRetryAfter does as the server says.
func TestRetryAfter(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	fault := s.Inject(upstream.Rule{Path: "pause/blobs/", Times: 1,
		Fault: upstream.Status{Code: http.StatusTooManyRequests, RetryAfter: time.Second}})
	var pauses []time.Duration
	client := bundletest.NewClient(s, func(o *source.Options) {
		o.Retrying = func(err error, pause time.Duration) {
			if strings.Contains(err.Error(), "429") {
				pauses = append(pauses, pause)
			}
		}
	})
	path := filepath.Join(t.TempDir(), "b.tar")
	bundletest.MustBuild(t, bundletest.SmallLock(t), client, path, nil)
	if diff := cmp.Diff([]time.Duration{time.Second}, pauses); diff != "" || fault.Hits() != 1 {
		t.Errorf("pauses (-expected +got), %d hits:\n%s", fault.Hits(), diff)
	}
}
