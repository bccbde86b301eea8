package build_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/pins"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/upstream"
)

// disturbance is something that upstream does wrong a few times.
type disturbance struct {
	fault upstream.Fault
	// cuts break the line as often, where only that leads to requests that the fault is about.
	cuts bool
}

var disturbances = map[string]disturbance{
	"server error":  {fault: upstream.Status{Code: 500}},
	"rate limit":    {fault: upstream.Status{Code: 429}},
	"not there":     {fault: upstream.Status{Code: 404}},
	"redirect":      {fault: upstream.Redirect{}},
	"cut":           {fault: upstream.Cut{After: 3000}},
	"cut at once":   {fault: upstream.Cut{After: 0}},
	"wrong byte":    {fault: upstream.WrongByte{At: 1000}},
	"another tag":   {fault: upstream.NewETag{Tag: `"another"`}, cuts: true},
	"no tag":        {fault: upstream.NewETag{}, cuts: true},
	"slow":          {fault: upstream.Slow{BytesPerSecond: 1}},
	"no ranges":     {fault: upstream.IgnoreRange{}, cuts: true},
	"shifted range": {fault: upstream.ShiftRange{By: -100}, cuts: true},
}

// disturbedForms make something of upstream's bytes in a folder, and read what that is. Their
// errors are the user's to answer with the same command.
func disturbedForms(
	t *testing.T, s *upstream.Server,
) map[string]func(t *testing.T, dir string, client *source.Client) (map[string][]byte, error) {
	identity := bundletest.NewIdentity(t)
	half := filepath.Join(t.TempDir(), "half.tar")
	from, to := bytes.Index(bundletest.SmallLock(t), []byte("  cilium:\n")), bytes.Index(bundletest.SmallLock(t),
		[]byte("  liteboxd:\n"))
	bundletest.MustBuild(t, append(bytes.Clone(bundletest.SmallLock(t)[:from]), bundletest.SmallLock(t)[to:]...),
		bundletest.NewClient(s), half, nil)
	built := func(change func(*plan.Options), output func(*build.Options)) func(*testing.T, string,
		*source.Client) (map[string][]byte, error) {
		return func(t *testing.T, dir string, client *source.Client) (map[string][]byte, error) {
			o, err := bundletest.PlanOptions(bundletest.SmallLock(t), client)
			if err != nil {
				return nil, err
			}
			change(&o)
			p, err := plan.New(t.Context(), o)
			if err != nil {
				return nil, err
			}
			options := build.Options{Path: filepath.Join(dir, "b.tar")}
			output(&options)
			if _, err := build.Write(t.Context(), p, options); err != nil {
				return nil, err
			}
			if len(options.Recipients) == 0 {
				return readFiles(t, dir), nil
			}
			// Encryption itself is different each time.
			r := verified(t, options.Path, identity)
			whole, err := io.ReadAll(io.NewSectionReader(r.File(), 0, r.File().Size()))
			return map[string][]byte{"b.tar": whole}, err
		}
	}
	asItIs, toOneFile := func(*plan.Options) {}, func(*build.Options) {}
	return map[string]func(*testing.T, string, *source.Client) (map[string][]byte, error){
		"split": built(asItIs, func(o *build.Options) { o.VolumeSize = bundletest.VolumeSize }),
		"encrypted": built(asItIs, func(o *build.Options) {
			o.Recipients, o.Identities = []age.Recipient{identity.Recipient()}, []age.Identity{identity}
		}),
		"delta": built(func(o *plan.Options) {
			o.Since = &plan.Base{}
			o.Since.AddBundle(bundletest.MustOpen(t, half))
		}, toOneFile),
		"reuse of half": built(bundletest.Reusing(t, half), toOneFile),
		"sbom":          built(bundletest.Listing, toOneFile),
		"lock":          resolveAnew,
	}
}

// resolveAnew fills in what a lock has lost but for the checksums that upstream publishes. What
// was found stays for the next run.
func resolveAnew(t *testing.T, dir string, client *source.Client) (map[string][]byte, error) {
	t.Helper()
	path := filepath.Join(dir, bundle.LockFile)
	if len(readFiles(t, dir)) == 0 {
		bundletest.MustWrite(t, path, regexp.MustCompile(`, (size: \d+|digest: sha256:[0-9a-f]+)`).ReplaceAll(
			bundletest.SmallLock(t), nil))
	}
	document, err := lock.ParseDocument(bundle.LockFile, bundletest.MustRead(t, path))
	if err != nil {
		return nil, err
	}
	err = pins.Fill(t.Context(), pins.Options{Document: document, Source: client})
	bundletest.MustWrite(t, path, document.Bytes())
	return readFiles(t, dir), err
}

// TestDisturbed has upstream do everything wrong that the stand-in for it can, three times, to all ways of making
// something of its bytes: the same command, repeated when it failed, makes what it makes of an upstream that does
// nothing wrong. A client tries twice, and blobs are fetched at the same time: which of them meet it differs from run
// to run. Split bundles meet each once and twice as well.
func TestDisturbed(t *testing.T) {
	s := bundletest.UpstreamServer(t)
	large := upstream.BlobPath(bundletest.LayerOf(t, bundletest.OperatorRef, "linux/arm64")) + "|" +
		upstream.FilePath(bundletest.ChartURL)
	path := large + "|/operator-generic/manifests/|/web/blobs/"
	for form, run := range disturbedForms(t, s) {
		want, err := run(t, t.TempDir(), bundletest.NewClient(s))
		if err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		least := 3
		if form == "split" {
			least = 1
		}
		for name, d := range disturbances {
			for times := least; times <= 3; times++ {
				t.Run(fmt.Sprintf("%s/%s/%d", form, name, times), func(t *testing.T) {
					s.Heal()
					fault := s.Inject(upstream.Rule{Path: path, Times: times, Fault: d.fault})
					if d.cuts {
						s.Inject(
							upstream.Rule{Method: "GET", Path: large, Times: times, Fault: upstream.Cut{After: 3000}})
					}
					client := bundletest.NewClient(s, func(o *source.Options) {
						if name == "slow" {
							o.IdleTimeout = 200 * time.Millisecond
						}
					})
					dir := t.TempDir()
					got, err := run(t, dir, client)
					for runs := 1; err != nil; runs++ {
						if runs > 2*times {
							t.Fatalf("after %d runs: %v", runs, err)
						}
						got, err = run(t, dir, client)
					}
					if fault.Hits() == 0 {
						t.Error("nothing was wrong")
					}
					if !maps.EqualFunc(want, got, bytes.Equal) {
						t.Error("it is not what it is when nothing is wrong")
					}
				})
			}
		}
	}
}
