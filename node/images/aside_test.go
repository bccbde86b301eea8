//go:build linux

package images_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/registry"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// restart does to containerd what k3s does when it starts: it takes the pins away that it has set itself, and imports
// the archives in the order of their names.
func (l *pruneLab) restart(t *testing.T, packs ...wire.PackWant) {
	t.Helper()
	const own = "io.cattle.k3s.pinned"
	for name := range strings.FieldsSeq(l.ask(t, "images", "ls", "-q", `labels."`+own+`"==pinned`)) {
		l.ask(t, "images", "label", name, own+"=", "io.cri-containerd.pinned=")
	}
	slices.SortFunc(packs, func(a, b wire.PackWant) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range packs {
		archive := filepath.Join(l.Images, p.Name)
		if _, err := os.Stat(archive); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		l.ask(t, "images", "import", "--no-unpack", archive)
		for name := range targetsOf(t, p) {
			l.pin(t, name)
		}
	}
}

// targetsOf are the images of a pack.
func targetsOf(t *testing.T, p wire.PackWant) map[string]digest.Digest {
	t.Helper()
	var index struct {
		Manifests []struct {
			Digest      digest.Digest
			Annotations map[string]string
		}
	}
	if err := json.Unmarshal(p.Index, &index); err != nil {
		t.Fatal(err)
	}
	targets := make(map[string]digest.Digest)
	for _, m := range index.Manifests {
		targets[m.Annotations["io.containerd.image.name"]] = m.Digest
	}
	return targets
}

// TestMovedTag: a name that two bundles share means the image of the release that runs, whichever of their packs k3s
// imports last, through an upgrade, a rollback and every start of k3s.
func TestMovedTag(t *testing.T) {
	for _, test := range []struct{ name, older, newer string }{
		{"the newer pack is imported last", "a", "b"},
		{"the older pack is imported last", "b", "a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := withContainerd(t)
			const moved = "docker.io/library/ubuntu:24.04"
			const ownOld, ownNew = "docker.io/liteboxd/api:v1", "docker.io/liteboxd/api:v2"
			old := l.bring(t, test.older,
				member{moved, [][]byte{nodelab.Random(300, 5000)}}, member{ownOld, [][]byte{nodelab.Random(301, 5000)}})
			check := func(repair bool, current ...wire.PackWant) images.Report {
				t.Helper()
				o := images.Options{
					ImagesDir: l.Images, FilesDir: l.Files, Ctr: l.options.Ctr, ContentDir: l.content,
					VerifiedFile: filepath.Join(l.Files, "verified.json"), Repair: repair,
				}
				for _, p := range current {
					o.Current = append(o.Current, p.Name)
				}
				r, err := images.Check(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			right := func(what string, p wire.PackWant, r images.Report) {
				t.Helper()
				if want, got := targetsOf(t, p)[moved], l.target(t, moved); got != want || !r.OK {
					t.Errorf("%s: %s is %s, want %s: %+v", what, moved, got, want, r)
				}
				// Agents that pull get the same from the servers' packs.
				if want, got := targetsOf(t, p)[moved], l.served(t, moved); got != want {
					t.Errorf("%s: in boxlift's registry %s is %s, want %s", what, moved, got, want)
				}
			}
			right("one release", old, check(false, old))

			// An upgrade: both packs are there, and k3s has imported the newer one when it came.
			newer := l.bring(t, test.newer,
				member{moved, [][]byte{nodelab.Random(302, 5000)}}, member{ownNew, [][]byte{nodelab.Random(303, 5000)}})
			if r := check(false, newer); r.OK || r.Problems[0].Kind != images.ProblemOrder || r.Problems[0].Pack != old.Name {
				t.Errorf("both packs are imported: %+v", r)
			}
			r := check(true, newer)
			right("upgraded", newer, r)
			if diff := cmp.Diff([]string{old.Name}, r.SetAside); diff != "" {
				t.Error(diff)
			}
			l.restart(t, old, newer)
			// What the pack that waits has besides is kept, too.
			if l.served(t, ownOld) == "" {
				t.Errorf("boxlift's registry has no %s", ownOld)
			}
			right("started again", newer, check(false, newer))

			// That k3s does it wrong is seen and mended.
			l.ask(t, "images", "tag", "--force", ownOld, moved)
			if r := check(false, newer); r.OK || r.Problems[0].Kind != images.ProblemTarget || r.Problems[0].Pack != newer.Name {
				t.Errorf("the name of another image: %+v", r)
			}
			right("mended", newer, check(true, newer))
			l.ask(t, "images", "rm", "--sync", ownOld)
			if r := check(false, newer); r.OK || r.Problems[0].Kind != images.ProblemName || r.Problems[0].Image != ownOld {
				t.Errorf("an image of the pack that waits is gone: %+v", r)
			}
			r = check(true, newer)
			right("imported from the pack that waits", newer, r)
			if diff := cmp.Diff([]string{old.Name, newer.Name}, r.Imported); diff != "" {
				t.Error(diff)
			}

			// The host knows by itself which release is the current one.
			id := images.PruneRequest{Release: release("old", []wire.PackWant{old}), Current: true}
			l.prune(t, id)
			id.Release = release("newer", []wire.PackWant{newer})
			if r := l.prune(t, id); len(gone(r)) > 0 {
				t.Errorf("the previous release loses %q", gone(r))
			}
			right("by the record", newer, check(false))

			// A rollback: the pack comes back without a byte of it being sent.
			if report := l.MustSend(t, l.Want(old)); report.Bytes != 0 {
				t.Errorf("%d bytes were sent", report.Bytes)
			}
			r = check(true, old)
			right("rolled back", old, r)
			if diff := cmp.Diff([]string{newer.Name}, r.SetAside); diff != "" {
				t.Error(diff)
			}
			l.restart(t, old, newer)
			right("rolled back and started again", old, check(false, old))

			// What no release needs goes under whatever name it has.
			id.Release = release("old", []wire.PackWant{old})
			id.Version, id.DropPrevious, id.Remove = images.PruneVersion, true, true
			report, err := images.Prune(t.Context(), l.options, id)
			if err != nil || !slices.Contains(gone(report), newer.Name) {
				t.Errorf("%+v, %v", report, err)
			}
			if diff := cmp.Diff([]string{old.Name}, l.disk(t)); diff != "" {
				t.Error(diff)
			}
			if _, err := os.Stat(filepath.Join(l.Images, newer.Name+".aside")); !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			right("alone", old, check(false, old))
		})
	}
}

// target is the digest that a name stands for in containerd.
func (l *pruneLab) target(t *testing.T, name string) digest.Digest {
	t.Helper()
	listed, err := images.ParseImages([]byte(l.ask(t, "images", "ls", "name=="+name)))
	if err != nil {
		t.Fatal(err)
	}
	return listed[name]
}

// served is what a name stands for in boxlift's registry, which serves the packs in the folder.
func (l *pruneLab) served(t *testing.T, name string) digest.Digest {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	packs := registry.OpenPacks(l.Images, pack.IsStored, log)
	defer packs.Close()
	repository, tag, _ := strings.Cut(strings.TrimPrefix(name, "docker.io/"), ":")
	answer := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodHead, "/v2/"+repository+"/manifests/"+tag+"?ns=docker.io", nil)
	registry.New(packs, registry.Options{Log: log}).ServeHTTP(answer, request)
	return digest.Digest(answer.Header().Get("Docker-Content-Digest"))
}

// TestPulledTag: a name that was pulled for another release is forgotten, and one that is right or on nobody's list is
// left alone.
func TestPulledTag(t *testing.T) {
	l := withContainerd(t)
	const moved, same = "docker.io/library/ubuntu:24.04", "docker.io/library/nginx:alpine"
	const foreign, pause = "docker.io/library/mine:1", "docker.io/rancher/pause:3"
	pulled := l.bring(t, "pulled", member{moved, [][]byte{nodelab.Random(310, 5000)}}, member{same, nil},
		member{foreign, nil})
	boot := l.bring(t, "boot", member{pause, nil})
	if err := os.Remove(filepath.Join(l.Images, pulled.Name)); err != nil {
		t.Fatal(err)
	}
	o := images.Options{
		ImagesDir: l.Images, FilesDir: l.Files, Ctr: l.options.Ctr, ContentDir: l.content,
		VerifiedFile: filepath.Join(l.Files, "verified.json"), Current: []string{boot.Name},
		Images: map[string]digest.Digest{
			moved: digest.FromString("the next one"), same: targetsOf(t, pulled)[same],
			"docker.io/library/none:1": digest.FromString("x"), pause: targetsOf(t, boot)[pause],
		},
	}
	r, err := images.Check(t.Context(), o)
	if err != nil || len(r.Problems) != 1 || r.Problems[0].Image != moved || r.Problems[0].Kind != images.ProblemTarget {
		t.Errorf("%+v, %v", r, err)
	}
	o.Repair = true
	r, err = images.Check(t.Context(), o)
	if err != nil || !r.OK || r.Imported != nil || !cmp.Equal(r.Forgotten, []string{moved}) {
		t.Errorf("%+v, %v", r, err)
	}
	want := []string{foreign, same, pause}
	if diff := cmp.Diff(want, strings.Fields(l.ask(t, "images", "ls", "-q")), sortStrings); diff != "" {
		t.Error(diff)
	}
	o.Images = map[string]digest.Digest{"-x": ""}
	if _, err := images.Check(t.Context(), o); err == nil {
		t.Error("a flag is the name of an image")
	}
}
