package bundle

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

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/source"
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
func disturbedForms(t *testing.T, s *upstream.Server) map[string]func(t *testing.T, dir string, client *source.Client) (map[string][]byte, error) {
	identity := newIdentity(t)
	half := filepath.Join(t.TempDir(), "half.tar")
	from, to := bytes.Index(smallLock(t), []byte("  cilium:\n")), bytes.Index(smallLock(t), []byte("  liteboxd:\n"))
	mustBuild(t, append(bytes.Clone(smallLock(t)[:from]), smallLock(t)[to:]...), newClient(s), half, nil)
	built := func(plan func(*PlanOptions), output func(*BuildOptions)) func(*testing.T, string, *source.Client) (map[string][]byte, error) {
		return func(t *testing.T, dir string, client *source.Client) (map[string][]byte, error) {
			o, err := planOptions(smallLock(t), client)
			if err != nil {
				return nil, err
			}
			plan(&o)
			p, err := NewPlan(t.Context(), o)
			if err != nil {
				return nil, err
			}
			options := BuildOptions{Path: filepath.Join(dir, "b.tar")}
			output(&options)
			if _, err := p.Build(t.Context(), options); err != nil {
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
	asItIs, toOneFile := func(*PlanOptions) {}, func(*BuildOptions) {}
	return map[string]func(*testing.T, string, *source.Client) (map[string][]byte, error){
		"split": built(asItIs, func(o *BuildOptions) { o.VolumeSize = volumeSize }),
		"encrypted": built(asItIs, func(o *BuildOptions) {
			o.Recipients, o.Identities = []age.Recipient{identity.Recipient()}, []age.Identity{identity}
		}),
		"delta": built(func(o *PlanOptions) {
			o.Since = &Base{}
			o.Since.AddBundle(mustOpen(t, half))
		}, toOneFile),
		"reuse of half": built(reusing(t, half), toOneFile),
		"sbom":          built(listing, toOneFile),
		"lock":          resolveAnew,
	}
}

// resolveAnew fills in what a lock has lost but for the checksums that upstream publishes. What
// was found stays for the next run.
func resolveAnew(t *testing.T, dir string, client *source.Client) (map[string][]byte, error) {
	t.Helper()
	path := filepath.Join(dir, LockFile)
	if len(readFiles(t, dir)) == 0 {
		mustWrite(t, path, regexp.MustCompile(`, (size: \d+|digest: sha256:[0-9a-f]+)`).ReplaceAll(smallLock(t), nil))
	}
	document, err := lock.ParseDocument(LockFile, mustRead(t, path))
	if err != nil {
		return nil, err
	}
	err = Resolve(t.Context(), ResolveOptions{Document: document, Source: client})
	mustWrite(t, path, document.Bytes())
	return readFiles(t, dir), err
}

// TestDisturbed has upstream do everything wrong that the stand-in for it can, once to three
// times, to all ways of making something of its bytes: the same command, repeated when it
// failed, makes what it makes of an upstream that does nothing wrong.
func TestDisturbed(t *testing.T) {
	s := upstreamServer(t)
	large := upstream.BlobPath(layerOf(t, operatorRef, "linux/arm64")) + "|" + upstream.FilePath(chartURL)
	path := large + "|/operator-generic/manifests/|/web/blobs/"
	for form, run := range disturbedForms(t, s) {
		want, err := run(t, t.TempDir(), newClient(s))
		if err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		for name, d := range disturbances {
			for times := 1; times <= 3; times++ {
				t.Run(fmt.Sprintf("%s/%s/%d", form, name, times), func(t *testing.T) {
					s.Heal()
					fault := s.Inject(upstream.Rule{Path: path, Times: times, Fault: d.fault})
					if d.cuts {
						s.Inject(upstream.Rule{Method: "GET", Path: large, Times: times, Fault: upstream.Cut{After: 3000}})
					}
					client := newClient(s, func(o *source.Options) {
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
