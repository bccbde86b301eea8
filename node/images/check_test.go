//go:build linux

package images_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/containerd"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// image makes a pack of one image under a name: an index of two platforms, of which the
// pack holds this machine's.
func imagePack(t testing.TB, s nodelab.Store, component, name string, layers ...[]byte) wire.PackWant {
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
	config := s.Add(encode(object{"architecture": runtime.GOARCH, "os": "linux", "rootfs": object{"type": "layers"}}))
	blobs, list := []wire.Blob{config}, []object{}
	for _, l := range layers {
		b := s.Add(l)
		blobs, list = append(blobs, b), append(list, described("application/vnd.oci.image.layer.v1.tar+gzip", b))
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest := s.Add(encode(object{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": described("application/vnd.oci.image.config.v1+json", config), "layers": list,
	}))
	here := described(manifestType, manifest)
	there := described(manifestType, wire.Blob{Digest: digest.FromString("elsewhere"), Size: 9})
	here["platform"] = object{"os": "linux", "architecture": runtime.GOARCH}
	there["platform"] = object{"os": "linux", "architecture": "s390x"}
	const indexType = "application/vnd.oci.image.index.v1+json"
	all := s.Add(encode(object{"schemaVersion": 2, "mediaType": indexType, "manifests": []object{there, here}}))
	entry := described(indexType, all)
	entry["annotations"] = object{"io.containerd.image.name": name}
	index := encode(object{"schemaVersion": 2, "manifests": []object{entry}})
	return wire.PackWant{Name: wire.PackName(component, index), Index: index,
		Blobs: append([]wire.Blob{all, manifest}, blobs...)}
}

func TestCheckImages(t *testing.T) {
	d := containerd.Start(t)
	ctr, content := d.Ctr, d.Content
	l := nodelab.New(t)
	ask := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), ctr[0],
			slices.Concat(ctr[1:], []string{"-n", "k8s.io"}, args)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ctr %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	const one, two = "docker.io/rancher/one:1", "quay.io/cilium/two:v2"
	shared, layer := nodelab.Random(240, 300_000), nodelab.Random(241, 2_000_000)
	a := imagePack(t, l.Store, "a", one, layer, shared)
	b := imagePack(t, l.Store, "b", two, shared, nodelab.Random(242, 100_000))
	l.MustSend(t, l.Want(a, b))
	all := int64(0)
	for d, bytes := range l.Store {
		_ = d
		all += int64(len(bytes))
	}
	// As k3s imports: with pins of two kinds.
	importPack := func(p wire.PackWant, names ...string) {
		t.Helper()
		ask("images", "import", "--no-unpack", filepath.Join(l.Images, p.Name))
		for _, name := range names {
			ask("images", "label", name, "io.cri-containerd.pinned=pinned", "io.cattle.k3s.pinned=pinned")
		}
	}
	options := images.Options{ImagesDir: l.Images, Ctr: ctr, ContentDir: content,
		VerifiedFile: filepath.Join(l.Files, "verified.json")}
	check := func(change func(*images.Options)) images.Report {
		t.Helper()
		o := options
		if change != nil {
			change(&o)
		}
		r, err := images.Check(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.OK != (len(r.Problems) == 0) || r.Images != 2 {
			t.Errorf("%+v", r)
		}
		return r
	}
	full := func(o *images.Options) { o.Full = true }
	pin := func(o *images.Options) { o.Pin = true }
	repair := func(o *images.Options) { o.Repair = true }
	// expect compares kinds, images and blobs.
	expect := func(what string, r images.Report, packs []string, problems ...images.Problem) {
		t.Helper()
		if diff := cmp.Diff(problems, r.Problems, cmpopts.IgnoreFields(images.Problem{}, "Text"),
			cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(packs, r.Packs, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: packs (-want +got):\n%s", what, diff)
		}
	}

	// What is not up yet is waited for.
	pending := func(what, want string, change func(*images.Options)) {
		t.Helper()
		o := options
		o.Repair = true
		change(&o)
		r, err := images.Check(t.Context(), o)
		if err != nil || r.OK || !strings.Contains(r.Pending, want) || r.Imported != nil || r.Pinned != nil {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
	pending("no content", "no content yet", func(o *images.Options) { o.ContentDir = filepath.Join(l.Files, "none") })
	closed := []string{ctr[0], "--address", filepath.Join(t.TempDir(), "none")}
	pending("no containerd", "does not answer yet", func(o *images.Options) { o.ContentDir, o.Ctr = l.Images, closed })

	// Before anything was imported containerd has not even made the directory.
	if err := os.MkdirAll(content, 0o755); err != nil {
		t.Fatal(err)
	}
	r := check(nil)
	if len(r.Packs) != 2 || r.Problems[0].Kind != images.ProblemName {
		t.Errorf("nothing imported: %+v", r)
	}
	importPack(a, one)
	// Another process has the other pack open, as k3s has as long as it imports it.
	reader := exec.CommandContext(t.Context(), "sleep", "infinity")
	open, err := os.Open(filepath.Join(l.Images, b.Name))
	if err != nil {
		t.Fatal(err)
	}
	reader.ExtraFiles = []*os.File{open}
	if err := errors.Join(reader.Start(), open.Close()); err != nil {
		t.Fatal(err)
	}
	pending("an import", "k3s is importing "+b.Name, func(*images.Options) {})
	_ = errors.Join(reader.Process.Kill(), reader.Wait()) // killed
	importPack(b, two)
	r = check(nil)
	expect("all imported", r, nil)
	if r.Bytes != all || r.Read != all || r.Blobs != len(l.Store) {
		t.Errorf("%d blobs of %d bytes, of which %d were read; there are %d of %d", r.Blobs, r.Bytes, r.Read,
			len(l.Store), all)
	}
	if r = check(nil); r.Read != 0 || !r.OK {
		t.Errorf("once more: %+v", r)
	}
	if r = check(full); r.Read != all || !r.OK {
		t.Errorf("in full: %+v", r)
	}

	layerDigest, sharedDigest := digest.FromBytes(layer), digest.FromBytes(shared)
	lost := func(kind images.ProblemKind) images.Problem {
		return images.Problem{Kind: kind, Image: one, Pack: a.Name, Blob: layerDigest}
	}
	imported := func(what string, r images.Report, packs ...wire.PackWant) {
		t.Helper()
		var names []string
		for _, p := range packs {
			names = append(names, p.Name)
		}
		if diff := cmp.Diff(names, r.Imported); diff != "" || !r.OK {
			t.Errorf("%s: %+v\n%s", what, r, diff)
		}
	}

	// Deleted from containerd.
	ask("content", "rm", layerDigest.String())
	expect("deleted", check(nil), []string{a.Name}, lost(images.ProblemMissing))
	imported("deleted", check(repair), a)
	expect("deleted and repaired", check(full), nil)

	// Deleted from the disk, behind containerd's back.
	if err := os.Remove(filepath.Join(content, layerDigest.Encoded())); err != nil {
		t.Fatal(err)
	}
	expect("lost", check(nil), []string{a.Name}, lost(images.ProblemMissing))
	imported("lost", check(repair), a)

	// Changed on the disk, with its size and its times kept.
	blob := filepath.Join(content, layerDigest.Encoded())
	info, err := os.Stat(blob)
	if err != nil {
		t.Fatal(err)
	}
	nodelab.Flip(t, blob, 1_000_000)
	if err := os.Chtimes(blob, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	expect("damaged", check(nil), []string{a.Name}, lost(images.ProblemDamaged))
	expect("damaged, in full", check(full), []string{a.Name}, lost(images.ProblemDamaged))
	imported("damaged", check(repair), a)
	expect("damaged and repaired", check(full), nil)

	// Cut short, and part of two images.
	if err := os.Truncate(filepath.Join(content, sharedDigest.Encoded()), 1000); err != nil {
		t.Fatal(err)
	}
	expect("cut", check(nil), []string{a.Name, b.Name},
		images.Problem{Kind: images.ProblemDamaged, Image: one, Pack: a.Name, Blob: sharedDigest},
		images.Problem{Kind: images.ProblemDamaged, Image: two, Pack: b.Name, Blob: sharedDigest})
	imported("cut", check(repair), a, b)

	// The label.
	ask("images", "label", two, "io.cri-containerd.pinned=")
	expect("unpinned", check(nil), nil, images.Problem{Kind: images.ProblemPin, Image: two, Pack: b.Name})
	r = check(pin)
	expect("pinned", r, nil)
	if diff := cmp.Diff([]string{two}, r.Pinned); diff != "" || r.Imported != nil {
		t.Error(diff)
	}

	// The name.
	ask("images", "rm", "--sync", two)
	r = check(nil)
	if r.Problems[0].Kind != images.ProblemName || r.Problems[0].Image != two || len(r.Packs) != 1 {
		t.Errorf("name removed: %+v", r)
	}
	imported("name removed", check(repair), b)
	other := strings.Fields(ask("images", "ls", "name=="+one)[len("REF"):])
	ask("images", "tag", "--force", one, two)
	r = check(nil)
	if r.Problems[0].Kind != images.ProblemTarget ||
		!strings.Contains(strings.Join(other, " "), string(r.Problems[0].Blob)) {
		t.Errorf("other target: %+v", r)
	}
	imported("other target", check(repair), b)

	// The name with the digest, which k3s gives and ctr does not.
	digests := func(o *images.Options) { o.Digests = true }
	withDigest := func(name string) string {
		listed, err := images.ParseImages([]byte(ask("images", "ls", "name=="+name)))
		if err != nil {
			t.Fatal(err)
		}
		return name[:strings.LastIndex(name, ":")] + "@" + listed[name].String()
	}
	expect("without digests", check(digests), nil,
		images.Problem{Kind: images.ProblemDigest, Image: one, Pack: a.Name},
		images.Problem{Kind: images.ProblemDigest, Image: two, Pack: b.Name})
	ask("images", "tag", one, withDigest(two))
	ask("images", "rm", "--sync", one)
	r = check(func(o *images.Options) { o.Digests, o.Repair = true, true })
	imported("without digests", r, a)
	expect("with digests", check(digests), nil)
	pins := strings.Fields(ask("images", "ls", "-q", `labels."io.cri-containerd.pinned"==pinned`))
	if want := []string{one, withDigest(one), two, withDigest(two)}; !cmp.Equal(want, pins, sortStrings) {
		t.Errorf("pinned are %q, want %q", pins, want)
	}

	// Only the packs that are asked for count; a pack that is damaged promises nothing.
	ask("images", "rm", "--sync", two)
	o := options
	o.Packs = []string{a.Name}
	if r, err := images.Check(t.Context(), o); err != nil || !r.OK || r.Images != 1 {
		t.Errorf("one pack: %+v, %v", r, err)
	}
	nodelab.Flip(t, filepath.Join(l.Images, a.Name), int64(strings.Index(string(l.Bytes(t, a)), `"layers":`))+2)
	if r, err := images.Check(t.Context(), o); err != nil || r.OK || len(r.Problems) != 1 ||
		r.Problems[0].Kind != images.ProblemPack {
		t.Errorf("damaged pack: %+v, %v", r, err)
	}
	o.Packs = []string{"boxlift-none-0123456789ab.tar"}
	if r, err := images.Check(t.Context(), o); err != nil || r.OK || r.Problems[0].Kind != images.ProblemPack {
		t.Errorf("no pack: %+v, %v", r, err)
	}
	o.Packs, o.Ctr = nil, []string{"sh", "-c", "echo it is broken >&2; exit 3", "ctr"}
	if _, err := images.Check(t.Context(), o); err == nil || !strings.Contains(err.Error(), "it is broken") {
		t.Errorf("broken ctr: %v", err)
	}
}

func TestParseImages(t *testing.T) {
	const heading = "REF TYPE DIGEST SIZE PLATFORMS LABELS \n"
	d := digest.FromString("x")
	tests := []struct {
		name, input string
		want        map[string]digest.Digest
		err         string
	}{
		{"none", heading, map[string]digest.Digest{}, ""},
		{"two", heading + "a:1 application/x " + string(d) +
			" 10.0 MiB linux/amd64 io.cri-containerd.pinned=pinned,k=v w\nb:1  y  " + string(d) +
			" - - -\n", map[string]digest.Digest{"a:1": d, "b:1": d}, ""},
		{"nothing", "", nil, "printed nothing"},
		{"no heading", "a:1 x " + string(d) + "\n", nil, "expected the heading"},
		{"something before", "Welcome\n" + heading, nil, "expected the heading"},
		{"no digest", heading + "a:1 x y\n", nil, "expected a name"},
		{"too short", heading + "a:1\n", nil, "expected a name"},
		{"twice", heading + "a:1 x " + string(d) + "\na:1 x " + string(d) + "\n", nil, "twice"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := images.ParseImages([]byte(test.input))
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseImages(f *testing.F) {
	f.Add([]byte("REF TYPE DIGEST SIZE PLATFORMS LABELS\na:1 x " + string(digest.FromString("x")) + " 1 B - -\n"))
	f.Add([]byte("REF TYPE DIGEST\n\xff \x00 sha256:\n"))
	f.Fuzz(func(t *testing.T, input []byte) {
		listed, err := images.ParseImages(input)
		if err != nil {
			return
		}
		for name, d := range listed {
			if name == "" || strings.ContainsAny(name, " \n\t") || d.Validate() != nil {
				t.Fatalf("%q is %q", name, d)
			}
		}
	})
}

func FuzzParseVerified(f *testing.F) {
	f.Add([]byte(`{"version":1,"dir":"/x","blobs":{"` + string(digest.FromString("x")) +
		`":{"size":1,"inode":2,"device":3,"written":4,"changed":5}}}`))
	f.Add([]byte(`{"version":1,"blobs":{"../x":{}}}`))
	f.Add([]byte(`{"version":1,"blobs":null}{}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		blobs, err := images.ParseVerified(input)
		if err != nil {
			return
		}
		for _, d := range blobs {
			if d.Validate() != nil {
				t.Fatalf("%q was accepted", d)
			}
		}
	})
}

// Whatever lies where the results are kept, the content is read and the file made anew.
func TestVerifiedFileIsNotTrusted(t *testing.T) {
	d := containerd.Start(t)
	ctr, content := d.Ctr, d.Content
	l := nodelab.New(t)
	pack := imagePack(t, l.Store, "a", "docker.io/rancher/one:1", nodelab.Random(250, 100_000))
	l.MustSend(t, l.Want(pack))
	importOut, err := exec.CommandContext(t.Context(), ctr[0], slices.Concat(ctr[1:],
		[]string{"-n", "k8s.io", "images", "import", "--no-unpack", filepath.Join(l.Images, pack.Name)})...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, importOut)
	}
	o := images.Options{ImagesDir: l.Images, Ctr: ctr, ContentDir: content,
		VerifiedFile: filepath.Join(l.Files, "verified.json"), Pin: true}
	for _, text := range []string{"", "{", `{"version":9,"dir":"","blobs":{}}`, strings.Repeat(" ", 17<<20)} {
		if err := errors.Join(os.MkdirAll(l.Files, 0o755), os.WriteFile(o.VerifiedFile, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if r, err := images.Check(t.Context(), o); err != nil || !r.OK || r.Read != r.Bytes {
			t.Errorf("%.20q: %+v, %v", text, r, err)
		}
		if r, err := images.Check(t.Context(), o); err != nil || !r.OK || r.Read != 0 {
			t.Errorf("%.20q, then: %+v, %v", text, r, err)
		}
	}
	info, err := os.Stat(o.VerifiedFile)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if entries, err := os.ReadDir(l.Files); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

var sortStrings = cmpopts.SortSlices(strings.Compare)

// A pack may name what is no digest: then the pack is at fault, and the check of all others goes on.
func TestCheckImagesOfWrongDigests(t *testing.T) {
	const good = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for _, wrong := range []digest.Digest{
		"", "none", "../../etc/passwd", "sha256:../x", "sha512:" + digest.Digest(good[len("sha256:"):]),
	} {
		for _, manifest := range []string{
			`{"config":{"digest":"` + string(wrong) + `","size":1}}`,
			`{"config":{"digest":"` + good + `","size":1},"layers":[{"digest":"` + string(wrong) + `","size":1}]}`,
			"",
		} {
			l := nodelab.New(t)
			blob := l.Add([]byte(manifest))
			target := blob.Digest
			if manifest == "" {
				target = wrong
			}
			index := []byte(`{"manifests":[{"digest":"` + string(target) +
				`","size":1,"annotations":{"io.containerd.image.name":"docker.io/library/a:1"}}]}`)
			pack := wire.PackWant{Name: wire.PackName("a", index), Index: index, Blobs: []wire.Blob{blob}}
			if err := os.MkdirAll(l.Images, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(l.Images, pack.Name), l.Bytes(t, pack), 0o600); err != nil {
				t.Fatal(err)
			}
			// A containerd that has nothing.
			ctr := filepath.Join(t.TempDir(), "ctr")
			script := "#!/bin/sh\n[ \"$3 $4\" != \"images ls\" ] || [ \"$5\" = -q ] || echo REF TYPE DIGEST\n"
			if err := os.WriteFile(ctr, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			report, err := images.Check(t.Context(), images.Options{
				ImagesDir: l.Images, Ctr: []string{ctr}, ContentDir: l.Images, FilesDir: l.Files,
				VerifiedFile: filepath.Join(t.TempDir(), "verified.json"),
			})
			if err != nil || len(report.Problems) != 1 || report.Problems[0].Kind != images.ProblemPack {
				t.Errorf("%s in %s: %+v, %v", wrong, index, report, err)
			}
		}
	}
}
