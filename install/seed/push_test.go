package seed

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/registry/push"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/steptest"
	"github.com/liteboxd/boxlift/test/target"
)

// siteRegistry is a registry of the site's, which refuses everything once it has answered so many requests.
type siteRegistry struct {
	*target.Server
	left atomic.Int64 // below 0 it refuses nothing
}

const refusal = "the project is locked"

func newSiteRegistry(t *testing.T, o target.Options) *siteRegistry {
	t.Helper()
	s := &siteRegistry{Server: target.Start(t, o)}
	s.left.Store(-1)
	s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		for {
			left := s.left.Load()
			if left < 0 {
				return false
			}
			if left == 0 {
				target.Refuse(w, http.StatusForbidden, "DENIED", refusal)
				return true
			}
			if s.left.CompareAndSwap(left, left-1) {
				return false
			}
		}
	})
	return s
}

func (s *siteRegistry) BreakAfter(n int) { s.left.Store(int64(n)) }

func (s *siteRegistry) Lost(err error) bool {
	return err != nil && strings.Contains(err.Error(), "403 Forbidden") // an answer to HEAD has no text
}

// Snapshot is what the registry keeps, but for uploads that were broken off, which it clears away by itself.
func (s *siteRegistry) Snapshot(t testing.TB) string {
	t.Helper()
	var text strings.Builder
	err := filepath.WalkDir(s.Data(), func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // nothing was ever pushed
		}
		if err != nil || d.Name() == "_uploads" {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if d.IsDir() {
			return nil
		}
		content, err := os.ReadFile(path)
		text.WriteString(strings.TrimPrefix(path, s.Data()) + " " + string(content) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// The site's registry gets the images that it lacks; wherever that is broken off, no tag stands for half an image.
func TestPushStep(t *testing.T) {
	in, _ := shipping(t)
	options := func(s *siteRegistry) push.Options {
		return push.Options{Bundle: in.site.Bundle, Address: s.Address(), PlainHTTP: true, Reporter: progress.Discard}
	}
	for _, test := range []struct {
		name, why string
		is        func(*testing.T, *siteRegistry)
	}{
		{"an empty registry", "1 of 1 images are missing, such as ", func(*testing.T, *siteRegistry) {}},
		{"a registry that has them", "", func(t *testing.T, s *siteRegistry) {
			if _, err := push.Push(t.Context(), options(s)); err != nil {
				t.Fatal(err)
			}
		}},
		{"one whose tag somebody has removed", "1 of 1 images are missing", func(t *testing.T, s *siteRegistry) {
			if _, err := push.Push(t.Context(), options(s)); err != nil {
				t.Fatal(err)
			}
			tags := filepath.Join(s.Data(), "docker/registry/v2/repositories/rancher/mirrored-pause/_manifests/tags")
			if err := os.RemoveAll(tags); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.ProveIn(t, steptest.Wide{Why: test.why,
				Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
					s := newSiteRegistry(t, target.Options{PlainHTTP: true})
					test.is(t, s)
					return s, func() run.Step { return pushStep(s.Address(), options(s)) }
				}})
		})
	}
}

// A registry that does not let one in is told of by its name, without the login, and is no registry that lacks images.
func TestPushStepFails(t *testing.T) {
	in, _ := shipping(t)
	for _, test := range []struct {
		name   string
		target target.Options
		set    func(*siteRegistry, *push.Options)
		looks  bool // looking fails already
		want   string
	}{
		{name: "a wrong password", target: target.Options{PlainHTTP: true, Auth: target.Basic,
			Users: map[string]string{"robot": "right"}}, looks: true, want: "401",
			set: func(_ *siteRegistry, o *push.Options) { o.Username, o.Password = "robot", "wrong-pass" }},
		{name: "nobody may push", target: target.Options{PlainHTTP: true, ReadOnly: true}, want: "405"},
		{name: "it refuses", target: target.Options{PlainHTTP: true}, looks: true, want: refusal,
			set: func(s *siteRegistry, _ *push.Options) { s.BreakAfter(0) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSiteRegistry(t, test.target)
			o := push.Options{Bundle: in.site.Bundle, Address: s.Address(), PlainHTTP: true, Reporter: progress.Discard}
			if test.set != nil {
				test.set(s, &o)
			}
			step := pushStep(s.Address(), o)
			reason, err := step.Needed(t.Context())
			if (err != nil) != test.looks || (reason == "") != test.looks {
				t.Errorf("%q, %v", reason, err)
			}
			if err == nil {
				err = step.Run(t.Context())
			}
			if err == nil {
				t.Fatal("it is done")
			}
			text := kubetest.Explained(err)
			kubetest.Contains(t, text, s.Address(), test.want)
			if strings.Contains(text, "wrong-pass") {
				t.Errorf("the password is in %q", text)
			}
		})
	}
}
