//go:build linux

package images_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/containerd"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// releaseID is the digest of the bundle of that name.
func releaseID(name string) digest.Digest { return digest.FromString(name) }

// pruneLab is a host with packs, and a containerd if a test needs one.
type pruneLab struct {
	*nodelab.Lab
	options images.PruneOptions
	content string
}

// withoutContainerd is a host whose containerd must not be asked.
func withoutContainerd(t *testing.T) *pruneLab {
	l := nodelab.New(t)
	return &pruneLab{Lab: l, options: images.PruneOptions{ImagesDir: l.Images, FilesDir: l.Files,
		Ctr: []string{"/none/k3s", "ctr"}}}
}

func withContainerd(t *testing.T) *pruneLab {
	d := containerd.Start(t)
	ctr, content := d.Ctr, d.Content
	l := withoutContainerd(t)
	l.options.Ctr, l.content = ctr, content
	return l
}

func (l *pruneLab) ask(t *testing.T, args ...string) string {
	t.Helper()
	ctr := l.options.Ctr
	out, err := exec.CommandContext(t.Context(), ctr[0],
		slices.Concat(ctr[1:], []string{"-n", "k8s.io"}, args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// member is an image of a pack: its name, and what is in its layers.
type member struct {
	name   string
	layers [][]byte
}

// bring makes a pack of images that containers can be made from, ships it, and imports it
// as k3s does.
func (l *pruneLab) bring(t *testing.T, component string, members ...member) wire.PackWant {
	t.Helper()
	type object = map[string]any
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	described := func(mediaType string, b wire.Blob) object {
		return object{"mediaType": mediaType, "digest": b.Digest, "size": b.Size}
	}
	var pack wire.PackWant
	var entries []object
	add := func(b wire.Blob) wire.Blob {
		if !slices.Contains(pack.Blobs, b) {
			pack.Blobs = append(pack.Blobs, b)
		}
		return b
	}
	for _, m := range members {
		var layers []object
		var ids []digest.Digest
		for i, content := range m.layers {
			plain, packed := layerOf(t, fmt.Sprintf("file%d", i), content)
			layers = append(layers, described("application/vnd.oci.image.layer.v1.tar+gzip", add(l.Add(packed))))
			ids = append(ids, digest.FromBytes(plain))
		}
		config := add(l.Add(encode(object{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": object{"Cmd": []string{"/" + m.name}}, "rootfs": object{"type": "layers", "diff_ids": ids},
		})))
		const manifestType = "application/vnd.oci.image.manifest.v1+json"
		manifest := add(l.Add(encode(object{
			"schemaVersion": 2, "mediaType": manifestType,
			"config": described("application/vnd.oci.image.config.v1+json", config), "layers": layers,
		})))
		entry := described(manifestType, manifest)
		entry["annotations"] = object{"io.containerd.image.name": m.name}
		entries = append(entries, entry)
	}
	pack.Index = encode(object{"schemaVersion": 2, "manifests": entries})
	pack.Name = wire.PackName(component, pack.Index)
	l.MustSend(t, l.Want(pack))
	if l.content == "" {
		return pack
	}
	l.ask(t, "images", "import", "--no-unpack", filepath.Join(l.Images, pack.Name))
	for _, m := range members {
		l.pin(t, m.name)
	}
	return pack
}

func (l *pruneLab) pin(t *testing.T, name string) {
	t.Helper()
	l.ask(t, "images", "label", name, "io.cri-containerd.pinned=pinned", "io.cattle.k3s.pinned=pinned")
}

// layerOf packs a file.
func layerOf(t *testing.T, name string, content []byte) (plain, packed []byte) {
	t.Helper()
	var archive, zipped bytes.Buffer
	w, z := tar.NewWriter(&archive), gzip.NewWriter(&zipped)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}), func() error {
		_, err := w.Write(content)
		return err
	}(), w.Close()); err != nil {
		t.Fatal(err)
	}
	_, err := z.Write(archive.Bytes())
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes(), zipped.Bytes()
}

// store writes a file as boxlift keeps those of bundles.
func (l *pruneLab) store(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join(l.Files, "files", name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("1234"), 0o755)); err != nil {
		t.Fatal(err)
	}
}

func release(name string, packs []wire.PackWant, files ...string) *images.Needs {
	r := &images.Needs{ID: releaseID(name), Files: files}
	for _, p := range packs {
		r.Packs = append(r.Packs, p.Name)
	}
	return r
}

// prune runs once, and proves that what is reported is what was done.
func (l *pruneLab) prune(t *testing.T, request images.PruneRequest) images.PruneReport {
	t.Helper()
	request.Version = images.PruneVersion
	before := l.disk(t)
	report, err := images.Prune(t.Context(), l.options, request)
	if err != nil {
		t.Fatal(err)
	}
	document, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := images.ParsePruneReport(document); err != nil || !cmp.Equal(report, again) {
		t.Errorf("the report cannot be read back: %v\n%s", err, document)
	}
	if report.Removed != request.Remove {
		t.Errorf("removed: %t, asked for: %t", report.Removed, request.Remove)
	}
	want := before
	if request.Remove {
		want = slices.DeleteFunc(slices.Clone(before), func(name string) bool {
			return slices.ContainsFunc(report.Items,
				func(i images.PruneItem) bool { return i.Remove && i.Kind != images.PruneImage && i.Name == name })
		})
	}
	if diff := cmp.Diff(want, l.disk(t), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("packs and files on the disk (-want +got):\n%s", diff)
	}
	if l.content != "" && request.Remove {
		names := strings.Fields(l.ask(t, "images", "ls", "-q"))
		for _, i := range report.Items {
			if i.Kind == images.PruneImage && slices.Contains(names, i.Name) == i.Remove {
				t.Errorf("image %s is to go: %t; containerd has %v", i.Name, i.Remove, names)
			}
		}
	}
	return report
}

// disk lists packs and files.
func (l *pruneLab) disk(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, dir := range []string{l.Images, filepath.Join(l.Files, "files")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

// gone lists what goes, stay has the reasons of what stays.
func gone(r images.PruneReport) []string {
	var names []string
	for _, i := range r.Items {
		if i.Remove {
			names = append(names, i.Name)
		}
	}
	return names
}

func reasonOf(t *testing.T, r images.PruneReport, name string) string {
	t.Helper()
	for _, i := range r.Items {
		if i.Name == name {
			return i.Reason
		}
	}
	t.Errorf("%s is not among the items: %+v", name, r.Items)
	return ""
}

func wantGone(t *testing.T, r images.PruneReport, names ...string) {
	t.Helper()
	if diff := cmp.Diff(names, gone(r), cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("what goes (-want +got):\n%s", diff)
	}
}

// TestPruneReleases: the packs of two releases stay, and containerd is not asked as long as
// nothing can go.
func TestPruneReleases(t *testing.T) {
	l := withoutContainerd(t)
	one := l.bring(t, "k3s", member{"a:1", [][]byte{nodelab.Random(300, 1000)}})
	const k3s1, k3s2, k3s3 = "k3s-000000000001", "k3s-000000000002", "k3s-000000000003"
	l.store(t, k3s1)
	l.store(t, "notes")
	first := release("1", []wire.PackWant{one}, k3s1)
	r := l.prune(t, images.PruneRequest{Release: first, Current: true, Remove: true})
	wantGone(t, r)
	if r.Current != releaseID("1") || r.Previous != "" {
		t.Errorf("recorded: %s, %s", r.Current, r.Previous)
	}
	record := filepath.Join(l.Files, "releases.json")
	info, err := os.Stat(record)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}

	// The next one, and again: the second time nothing is written.
	l.store(t, k3s2)
	second := release("2", []wire.PackWant{one}, k3s2)
	var written []time.Time
	for range 2 {
		r = l.prune(t, images.PruneRequest{Release: second, Current: true, Remove: true})
		wantGone(t, r)
		if r.Current != releaseID("2") || r.Previous != releaseID("1") ||
			reasonOf(t, r, k3s1) != "the previous release needs it" {
			t.Errorf("%+v", r)
		}
		info, err := os.Stat(record)
		if err != nil {
			t.Fatal(err)
		}
		written = append(written, info.ModTime())
	}
	if !written[0].Equal(written[1]) {
		t.Errorf("the record was written again: %v", written)
	}
	before, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}

	// What is only asked changes nothing.
	r = l.prune(t, images.PruneRequest{})
	wantGone(t, r)
	r = l.prune(t, images.PruneRequest{DropPrevious: true})
	wantGone(t, r, k3s1)
	if after, err := os.ReadFile(record); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the record has changed: %s, %v", after, err)
	}

	// A bundle that is about to be installed keeps what it has brought.
	l.store(t, k3s3)
	wantGone(t, l.prune(t, images.PruneRequest{}), k3s3)
	third := release("3", []wire.PackWant{one}, k3s3)
	wantGone(t, l.prune(t, images.PruneRequest{Release: third}))
	r = l.prune(t, images.PruneRequest{Release: third, Current: true, Remove: true})
	wantGone(t, r, k3s1)
	if got := r.Bytes(); got != 4 || r.Count(images.PruneFile) != 1 {
		t.Errorf("%d bytes in %d files", got, r.Count(images.PruneFile))
	}

	// Without the previous one there is none in the record either.
	r = l.prune(t, images.PruneRequest{DropPrevious: true, Remove: true})
	wantGone(t, r, k3s2)
	if r.Previous != "" {
		t.Errorf("still recorded: %s", r.Previous)
	}
	wantGone(t, l.prune(t, images.PruneRequest{DropPrevious: true, Remove: true}))
}

// TestPruneSameRelease: what the same bundle does not bring to a host any more stays until
// the next release.
func TestPruneSameRelease(t *testing.T) {
	l := withoutContainerd(t)
	for _, name := range []string{"old-00000000000a", "a-00000000000b", "b-00000000000c", "new-00000000000d"} {
		l.store(t, name)
	}
	current := func(id string, files ...string) images.PruneReport {
		return l.prune(t, images.PruneRequest{Release: release(id, nil, files...), Current: true})
	}
	current("1", "old-00000000000a", "a-00000000000b", "b-00000000000c", "new-00000000000d")
	r := current("2", "a-00000000000b", "b-00000000000c", "new-00000000000d")
	wantGone(t, r)
	r = current("2", "a-00000000000b")
	wantGone(t, r)
	if r.Previous != releaseID("1") {
		t.Errorf("previous: %s", r.Previous)
	}
	wantGone(t, current("2", "a-00000000000b", "b-00000000000c"))
	wantGone(t, l.prune(t, images.PruneRequest{DropPrevious: true}), "new-00000000000d", "old-00000000000a")
	wantGone(t, current("3", "new-00000000000d"), "old-00000000000a")

	// Of a first release as well.
	l = withoutContainerd(t)
	l.store(t, "a-00000000000b")
	current("1", "a-00000000000b", "lost-00000000000e")
	r = current("1")
	wantGone(t, r)
	if r.Previous != releaseID("1") {
		t.Errorf("previous: %s", r.Previous)
	}
	wantGone(t, l.prune(t, images.PruneRequest{DropPrevious: true}), "a-00000000000b")
}

// TestPruneRecordIsNotTrusted: on a host without a record that can be used nothing goes but
// what is asked for.
func TestPruneRecordIsNotTrusted(t *testing.T) {
	const file, other = "k3s-000000000001", "k3s-000000000002"
	records := map[string]func(name string) error{
		"none":    func(string) error { return nil },
		"damaged": func(name string) error { return os.WriteFile(name, []byte(`{"version":1,`), 0o600) },
		"huge":    func(name string) error { return os.WriteFile(name, bytes.Repeat([]byte(" "), 2<<20), 0o600) },
		"other":   func(name string) error { return os.WriteFile(name, []byte(`{"version":2,"current":{}}`), 0o600) },
		"paths": func(name string) error {
			return os.WriteFile(name, []byte(`{"version":1,"current":{"id":"`+releaseID("1").String()+`",`+
				`"files":["../../../etc/passwd"]}}`), 0o600)
		},
		"folder": func(name string) error { return os.Mkdir(name, 0o700) },
		"link":   func(name string) error { return os.Symlink("/etc/passwd", name) },
	}
	for name, write := range records {
		t.Run(name, func(t *testing.T) {
			l := withoutContainerd(t)
			l.store(t, file)
			l.store(t, other)
			record := filepath.Join(l.Files, "releases.json")
			if err := write(record); err != nil {
				t.Fatal(err)
			}
			if _, err := images.Prune(t.Context(), l.options, images.PruneRequest{Version: images.PruneVersion,
				Remove: true}); err == nil || !strings.Contains(err.Error(), record) {
				t.Errorf("error %v", err)
			}
			given := release("1", nil, file)
			r := l.prune(t, images.PruneRequest{Release: given, Remove: true})
			wantGone(t, r)
			if (r.Note == "") != (name == "none") || !strings.Contains(reasonOf(t, r, other), "before releases were recorded") {
				t.Errorf("%+v", r)
			}
			if name == "folder" { // it can be replaced by nothing
				if _, err := images.Prune(t.Context(), l.options,
					images.PruneRequest{Version: images.PruneVersion, Release: given, Current: true}); err == nil {
					t.Error("a record was made in place of a folder")
				}
				return
			}
			wantGone(t, l.prune(t, images.PruneRequest{Release: given, Current: true, Remove: true}))
			r = l.prune(t, images.PruneRequest{DropPrevious: true, Remove: true})
			wantGone(t, r, other)
			if r.Note != "" {
				t.Errorf("note %q", r.Note)
			}
		})
	}
}

// TestPruneWithoutContainerd: when it cannot be found out what is used, nothing goes.
func TestPruneWithoutContainerd(t *testing.T) {
	l := withoutContainerd(t)
	l.bring(t, "k3s", member{"a:1", nil})
	l.store(t, "k3s-000000000001")
	before := l.disk(t)
	_, err := images.Prune(t.Context(), l.options,
		images.PruneRequest{Version: images.PruneVersion, Release: release("1", nil), DropPrevious: true, Remove: true})
	if err == nil || !strings.Contains(err.Error(), "which images are used") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(before, l.disk(t)); diff != "" {
		t.Error(diff)
	}
}

// TestPruneBeside: another process that takes content from packs keeps them.
func TestPruneBeside(t *testing.T) {
	l := withoutContainerd(t)
	l.store(t, "k3s-000000000001")
	want := l.Want(l.Pack(t, "a", nodelab.Random(310, 1000)))
	p := l.Start(t)
	if err := wire.WriteFrame(p.In, wire.Message{Want: &want}); err != nil {
		t.Fatal(err)
	}
	if _, err := wire.ReadFrame(p.Out); err != nil {
		t.Fatal(err)
	}
	_, err := images.Prune(t.Context(), l.options,
		images.PruneRequest{Version: images.PruneVersion, Release: release("1", nil), DropPrevious: true, Remove: true})
	if err == nil || !strings.Contains(err.Error(), "another boxlift-node is at work") {
		t.Errorf("error %v", err)
	}
	if err := p.In.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil {
		t.Error("the receiver says that it has finished")
	}
}

// TestPrune goes through three releases with a real containerd.
func TestPrune(t *testing.T) {
	l := withContainerd(t)
	shared, only1, only2 := nodelab.Random(320, 200_000), nodelab.Random(321, 300_000), nodelab.Random(322, 250_000)
	const pause = "docker.io/rancher/mirrored-pause:3.6"
	const one, two, three = "docker.io/library/app:1", "docker.io/library/app:2", "docker.io/library/app:3"
	p1 := l.bring(t, "k3s", member{pause, [][]byte{nodelab.Random(323, 100)}}, member{one, [][]byte{shared, only1}})
	p2 := l.bring(t, "k3s", member{pause, [][]byte{nodelab.Random(323, 100)}}, member{two, [][]byte{shared, only2}})
	p3 := l.bring(t, "k3s", member{pause, [][]byte{nodelab.Random(323, 100)}}, member{three, [][]byte{shared}})
	all := []wire.PackWant{p1, p2, p3}
	// As k3s and containerd do.
	target := func(name string) string { return strings.Fields(l.ask(t, "images", "ls", "name=="+name))[8] }
	id := func(p wire.PackWant, cmd string) string {
		for _, b := range p.Blobs {
			if bytes.Contains(l.Lab.Store[b.Digest], []byte(`"/`+cmd+`"`)) {
				return b.Digest.String()
			}
		}
		t.Fatalf("no configuration of %s", cmd)
		return ""
	}
	withDigest := "docker.io/library/app@" + target(one)
	const elsewhere = "registry.example.lan/library/app:1"
	for _, name := range []string{withDigest, elsewhere} {
		l.ask(t, "images", "tag", one, name)
		l.pin(t, name)
	}
	l.ask(t, "images", "tag", one, id(p1, one))
	l.ask(t, "images", "tag", pause, id(p1, pause))
	run := func(image, name string) {
		t.Helper()
		l.ask(t, "containers", "create", "--snapshotter", "native", image, name)
	}
	run(pause, "sandbox")

	for i, p := range all {
		r := l.prune(t, images.PruneRequest{Release: release(fmt.Sprint(i), []wire.PackWant{p}), Current: true})
		if want := []string{p1.Name, one, withDigest, elsewhere, id(p1, one)}; i == 2 {
			wantGone(t, r, want...)
		}
	}

	// Used: everything stays as it is, whatever the container does.
	run(one, "pod-container-with-a-long-name")
	r := l.prune(t, images.PruneRequest{Remove: true})
	wantGone(t, r)
	if got := reasonOf(t, r, p1.Name); got != "container pod-containe uses its image "+one {
		t.Errorf("it stays because %s", got)
	}
	l.ask(t, "containers", "rm", "pod-container-with-a-long-name")

	// A name that somebody else has given keeps the image, but not boxlift's own names.
	const foreign = "docker.io/user/copy:mine"
	l.ask(t, "images", "tag", one, foreign)
	r = l.prune(t, images.PruneRequest{})
	wantGone(t, r, p1.Name, one, withDigest, elsewhere)
	if got := reasonOf(t, r, foreign); !strings.Contains(got, "neither boxlift nor k3s") {
		t.Errorf("it stays because %s", got)
	}
	// So does a container that goes by it.
	run(foreign, "users")
	wantGone(t, l.prune(t, images.PruneRequest{Remove: true}))
	l.ask(t, "containers", "rm", "users")
	l.ask(t, "images", "rm", "--sync", foreign)

	// An image without a pin is the kubelet's.
	l.ask(t, "images", "label", one, "io.cri-containerd.pinned=")
	r = l.prune(t, images.PruneRequest{})
	wantGone(t, r, p1.Name)
	if got := reasonOf(t, r, one); !strings.Contains(got, "not pinned") {
		t.Errorf("it stays because %s", got)
	}
	l.pin(t, one)

	// An archive of somebody else's may bring the same.
	archive := filepath.Join(l.Images, "mine.tar.zst")
	if err := os.WriteFile(archive, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r = l.prune(t, images.PruneRequest{})
	wantGone(t, r, p1.Name)
	if got := reasonOf(t, r, one); !strings.Contains(got, "mine.tar.zst") {
		t.Errorf("it stays because %s", got)
	}
	if err := os.Remove(archive); err != nil {
		t.Fatal(err)
	}

	// Unused: it goes, with its content, and nothing else does.
	_, unique := layerOf(t, "file1", only1)
	_, common := layerOf(t, "file0", shared)
	there := func(content []byte) bool {
		_, err := os.Stat(filepath.Join(l.content, digest.FromBytes(content).Encoded()))
		return err == nil
	}
	if !there(unique) || !there(common) {
		t.Fatal("the layers are not in the content")
	}
	r = l.prune(t, images.PruneRequest{Remove: true})
	wantGone(t, r, p1.Name, one, withDigest, elsewhere, id(p1, one))
	if there(unique) || !there(common) {
		t.Errorf("unique layer: %t, common layer: %t", there(unique), there(common))
	}
	for _, i := range r.Items {
		if least := int64(len(unique)); i.Name == one && (i.Size < least || i.Size > least+2000) {
			t.Errorf("image %s has %d bytes of its own, the layer has %d", one, i.Size, least)
		}
	}
	o := images.Options{ImagesDir: l.Images, Ctr: l.options.Ctr, ContentDir: l.content,
		VerifiedFile: filepath.Join(l.Files, "verified.json"), Full: true}
	if report, err := images.Check(t.Context(), o); err != nil || !report.OK || report.Images != 4 {
		t.Errorf("what stays is not whole: %+v, %v", report, err)
	}
	if !strings.Contains(l.ask(t, "images", "ls", "-q"), id(p1, pause)) {
		t.Error("the ID of an image that stays is gone")
	}
	wantGone(t, l.prune(t, images.PruneRequest{Remove: true}))

	// A run that was cut short between images and pack is gone on with.
	l.ask(t, "images", "rm", "--sync", two)
	wantGone(t, l.prune(t, images.PruneRequest{DropPrevious: true, Remove: true}), p2.Name)
}

// TestPruneMovedName: a name that stands for another image now. Of a container that does
// not say which of the two it is made from, both are taken to be used.
func TestPruneMovedName(t *testing.T) {
	l := withContainerd(t)
	const name = "docker.io/library/ubuntu:24.04"
	p1 := l.bring(t, "liteboxd", member{name, [][]byte{nodelab.Random(330, 1000)}})
	l.ask(t, "containers", "create", "--snapshotter", "native", name, "sandbox")
	p2 := l.bring(t, "liteboxd", member{name, [][]byte{nodelab.Random(331, 1000)}})
	request := images.PruneRequest{Release: release("2", []wire.PackWant{p2}), DropPrevious: true, Remove: true}
	wantGone(t, l.prune(t, request))
	l.ask(t, "containers", "rm", "sandbox")
	wantGone(t, l.prune(t, request), p1.Name)
	if !strings.Contains(l.ask(t, "images", "ls", "-q"), name) {
		t.Errorf("%s is gone, which the current release needs", name)
	}
}

// TestPruneDamagedPack: nobody knows what it brings, so that it stays, and all images with it.
func TestPruneDamagedPack(t *testing.T) {
	l := withContainerd(t)
	good := l.bring(t, "a", member{"docker.io/library/a:1", nil})
	bad := l.bring(t, "b", member{"docker.io/library/b:1", nil})
	if err := os.Truncate(filepath.Join(l.Images, bad.Name), 700); err != nil {
		t.Fatal(err)
	}
	r := l.prune(t, images.PruneRequest{Release: release("1", nil), DropPrevious: true, Remove: true})
	wantGone(t, r, good.Name)
	if got := reasonOf(t, r, bad.Name); !strings.Contains(got, "cannot be read") {
		t.Errorf("it stays because %s", got)
	}
	if got := reasonOf(t, r, "docker.io/library/a:1"); !strings.Contains(got, bad.Name) {
		t.Errorf("it stays because %s", got)
	}
}

func TestParseContainers(t *testing.T) {
	tests := []struct {
		name, input string
		want        []string
		err         string
	}{
		{"none", "CONTAINER    IMAGE    RUNTIME    \n", nil, ""},
		{"two", "CONTAINER IMAGE RUNTIME\nab a:1 io.containerd.runc.v2\ncd - x\n", []string{"ab", "a:1", "cd", "-"}, ""},
		{"nothing", "", nil, "not even a heading"},
		{"no heading", "ab a:1 x\n", nil, "expected the heading"},
		{"no image", "CONTAINER IMAGE RUNTIME\nab\n", nil, "expected a container"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := images.ParseContainers([]byte(test.input))
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.EquateEmpty()); test.err == "" && diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseImageID(t *testing.T) {
	id := digest.FromString("x")
	info := func(metadata string) string {
		return `{"ID":"ab","Image":"a:1","Extensions":{"io.cri-containerd.container.metadata":{"type_url":"t","value":"` +
			base64.StdEncoding.EncodeToString([]byte(metadata)) + `"}},"Spec":{"ociVersion":"1.0.2"}}`
	}
	tests := []struct {
		name, input string
		want        digest.Digest
	}{
		{"from the kubelet", info(`{"Version":"v1","Metadata":{"ID":"ab","Config":{"image":{"image":"y"}},"ImageRef":"` +
			id.String() + `"}}`), id},
		{"another version", info(`{"Version":"v2","Metadata":{"ImageRef":"` + id.String() + `"}}`), ""},
		{"a name", info(`{"Version":"v1","Metadata":{"ImageRef":"docker.io/library/a:1"}}`), ""},
		{"a sandbox", info(`{"Version":"v1","Metadata":{"ID":"ab"}}`), ""},
		{"not from the kubelet", `{"ID":"ab","Extensions":null}`, ""},
		{"no document", `no such container`, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := images.ParseImageID([]byte(test.input)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestParsePruneReport(t *testing.T) {
	item := `{"kind":"pack","name":"a","size":1,"reason":"b"}`
	tests := []struct{ name, input, err string }{
		{"least", `{"version":1,"items":[]}`, ""},
		{"one", `{"version":1,"current":"` + releaseID("1").String() + `","items":[` + item + `]}`, ""},
		{"other version", `{"version":2,"items":[]}`, "its version is 2"},
		{"unknown field", `{"version":1,"items":[],"command":"rm"}`, "unknown field"},
		{"something follows", `{"version":1,"items":[]}{}`, "something follows"},
		{"no digest", `{"version":1,"current":"latest","items":[]}`, "not a sha256 digest"},
		{"negative", `{"version":1,"items":[` + strings.Replace(item, "1", "-1", 1) + `]}`, "Size is -1"},
		{"other kind", `{"version":1,"items":[` + strings.Replace(item, "pack", "disk", 1) + `]}`, "an item is a \"disk\""},
		{"no reason", `{"version":1,"items":[` + strings.Replace(item, `"b"`, `""`, 1) + `]}`, "no reason"},
		{"sums up to too much", `{"version":1,"items":[` +
			strings.Repeat(strings.Replace(item, `"size":1`, `"size":1000000000000000000`, 1)+",", 9) + item + `]}`, "together"},
		{"too many", `{"version":1,"items":[` + strings.Repeat(item+",", 4096) + item + `]}`, "4097 items"},
		{"too large", strings.Repeat(" ", images.MaxPruneReport+1), "more than"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := images.ParsePruneReport([]byte(test.input))
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

func TestParsePruneRequest(t *testing.T) {
	id := releaseID("1").String()
	tests := []struct{ name, input, err string }{
		{"least", `{"version":1}`, ""},
		{"whole", `{"version":1,"release":{"id":"` + id +
			`","packs":["boxlift-k3s-0123456789ab.tar"],"files":["k3s-0123456789ab"]},"current":true,"remove":true}`, ""},
		{"other version", `{"version":0}`, "speaks version 1"},
		{"nothing", ``, "EOF"},
		{"nothing to record", `{"version":1,"current":true}`, "no release to record"},
		{"nameless", `{"version":1,"release":{}}`, "which bundle"},
		{"other digest", `{"version":1,"release":{"id":"sha512:00"}}`, "not a sha256 digest"},
		{"path as pack", `{"version":1,"release":{"id":"` + id + `","packs":["../boxlift-k3s-0123456789ab.tar"]}}`,
			"not the name of a pack"},
		{"path as file", `{"version":1,"release":{"id":"` + id + `","files":["../k3s-0123456789ab"]}}`,
			"not the name of a file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := images.ParsePruneRequest([]byte(test.input))
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

func TestNeedsOf(t *testing.T) {
	r := images.NeedsOf(releaseID("1"), wire.Want{
		Packs: []wire.PackWant{{Name: "boxlift-k3s-0123456789ab.tar"}},
		Files: []wire.FileWant{{Path: wire.FilesDir + "/files/k3s-0123456789ab"},
			{Path: wire.FilesDir + "/bin/boxlift-node"}},
	})
	want := images.Needs{ID: releaseID("1"), Packs: []string{"boxlift-k3s-0123456789ab.tar"},
		Files: []string{"k3s-0123456789ab"}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}

func TestMeasureDisk(t *testing.T) {
	l := withContainerd(t)
	pack := l.bring(t, "k3s", member{"docker.io/library/a:1", [][]byte{nodelab.Random(340, 500_000)}})
	l.store(t, "k3s-000000000001")
	o := images.DiskOptions{ImagesDir: l.Images, FilesDir: l.Files, ContentDir: l.content,
		Ctr: slices.Concat(l.options.Ctr)}
	u := images.MeasureDisk(t.Context(), o)
	document, err := json.Marshal(u)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := images.ParseDiskUse(document); err != nil || !cmp.Equal(u, again) {
		t.Errorf("it cannot be read back: %v\n%s", err, document)
	}
	info, err := os.Stat(filepath.Join(l.Images, pack.Name))
	if err != nil {
		t.Fatal(err)
	}
	// Files take whole blocks.
	const slack = 64 << 10
	if u.Packs < info.Size() || u.Packs > info.Size()+slack || u.Content < 500_000 || u.Content > 500_000+slack ||
		u.Files < 4 || u.Files > slack {
		t.Errorf("%+v, the pack has %d bytes", u, info.Size())
	}
	if u.Total == 0 || u.Free > u.Total || u.Snapshots == nil || *u.Snapshots != 0 || u.Problems != nil {
		t.Errorf("%+v", u)
	}

	// What a container writes.
	l.ask(t, "snapshots", "prepare", "one of a container")
	upper, err := filepath.Glob(filepath.Join(l.content, "../../../io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs"))
	if err != nil || len(upper) != 1 {
		t.Fatalf("%v, %v", upper, err)
	}
	if err := os.WriteFile(filepath.Join(upper[0], "file"), nodelab.Random(341, 300_000), 0o600); err != nil {
		t.Fatal(err)
	}
	u = images.MeasureDisk(t.Context(), o)
	if u.Snapshots == nil || *u.Snapshots < 300_000 || *u.Snapshots > 300_000+slack {
		t.Errorf("%+v", u)
	}

	// No containerd: what the disk itself says is there all the same.
	o.Ctr = []string{"sh", "-c", "echo it is broken >&2; exit 3", "ctr"}
	u = images.MeasureDisk(t.Context(), o)
	if u.Packs == 0 || u.Content == 0 || u.Snapshots != nil || len(u.Problems) != 1 ||
		!strings.Contains(u.Problems[0], "it is broken") {
		t.Errorf("%+v", u)
	}
	none := filepath.Join(t.TempDir(), "none")
	u = images.MeasureDisk(t.Context(),
		images.DiskOptions{ImagesDir: none, FilesDir: none, ContentDir: filepath.Join(none, "deeper"), Ctr: o.Ctr})
	if u.Packs+u.Content+u.Files != 0 || u.Total == 0 || u.Problems != nil {
		t.Errorf("%+v", u)
	}
}

func TestParseSnapshotUsage(t *testing.T) {
	tests := []struct {
		name, input string
		want        int64
		err         string
	}{
		{"none", "KEY SIZE INODES \n", 0, ""},
		{"two", "KEY     SIZE  INODES\nsha256:0 4096  3\nk8s.io/1/a b 10 1\n", 4106, ""},
		{"nothing", "", 0, "not even a heading"},
		{"no heading", "a 1 1\n", 0, "expected the heading"},
		{"rounded", "KEY SIZE INODES\na 4.0 KiB 3\n", 0, "expected a snapshot"},
		{"negative", "KEY SIZE INODES\na -1 3\n", 0, "expected a snapshot"},
		{"too much", "KEY SIZE INODES\na 1000000000000000000 3\nb 1000000000000000000 3\n", 0, "expected a snapshot"},
		{"too short", "KEY SIZE INODES\na 1\n", 0, "expected a snapshot"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := images.ParseSnapshotUsage([]byte(test.input))
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if test.err == "" && got != test.want {
				t.Errorf("%d bytes, want %d", got, test.want)
			}
		})
	}
}

func FuzzPruneReport(f *testing.F) {
	f.Add([]byte(`{"version":1,"items":[{"kind":"image","name":"a:1","size":1,"remove":true,"reason":"b"}],` +
		`"removed":true,"note":"c"}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		r, err := images.ParsePruneReport(input)
		if err != nil {
			return
		}
		for _, i := range r.Items {
			if i.Size < 0 || strings.ContainsAny(i.Name+i.Reason, "\x00\x1b\n") {
				t.Fatalf("%+v was accepted", i)
			}
		}
		if r.Bytes() < 0 {
			t.Fatalf("%d bytes", r.Bytes())
		}
	})
}

func FuzzPruneRequest(f *testing.F) {
	f.Add([]byte(`{"version":1,"release":{"id":"` + string(releaseID("1")) +
		`","packs":["boxlift-k3s-0123456789ab.tar"],"files":["k3s-0123456789ab"]},"current":true}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		r, err := images.ParsePruneRequest(input)
		if err != nil || r.Release == nil {
			return
		}
		for _, name := range slices.Concat(r.Release.Packs, r.Release.Files) {
			if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
				t.Fatalf("%q was accepted", name)
			}
		}
	})
}

func FuzzPruneRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"current":{"id":"` + string(releaseID("1")) +
		`"},"previous":{"packs":["boxlift-k3s-0123456789ab.tar"],"files":["k3s-0123456789ab"]}}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		current, previous, err := images.ParseRecord(input)
		if err != nil {
			return
		}
		names := slices.Concat(current.Packs, current.Files)
		if previous != nil {
			names = slices.Concat(names, previous.Packs, previous.Files)
		}
		for _, name := range names {
			if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
				t.Fatalf("%q was accepted", name)
			}
		}
	})
}

func FuzzDiskUse(f *testing.F) {
	f.Add([]byte(`{"version":1,"packs":1,"files":2,"content":3,"snapshots":4,"free":5,"total":6,"problems":["x"]}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		u, err := images.ParseDiskUse(input)
		if err != nil {
			return
		}
		if u.Packs < 0 || u.Free < 0 || u.Free > u.Total || u.Snapshots != nil && *u.Snapshots < 0 {
			t.Fatalf("%+v was accepted", u)
		}
	})
}
