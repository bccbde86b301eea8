package seed

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	bundleplan "github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/test/ocilayout"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

func openBundle(t *testing.T, path string) *bundle.Reader {
	t.Helper()
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// sh runs a script that is meant for hosts on this machine.
func sh(t *testing.T, script string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", script, "sh"}, args...)...).Output()
	return string(out), err
}

// TestPacksScript reads what the tar of this machine prints of packs.
func TestPacksScript(t *testing.T) {
	dir := t.TempDir()
	if out, err := sh(t, packsScript, dir); err != nil || out != "" {
		t.Errorf("without packs: %q, %v", out, err)
	}
	for name, content := range map[string][]byte{
		"boxlift-a-0123456789ab.tar":      ocilayout.Pack(t, []byte("{}"), []byte("a"), []byte("bb")),
		"boxlift-b-0123456789ab.tar":      ocilayout.Pack(t, []byte("{}"), []byte("bb"), []byte("ccc")),
		"boxlift-c-0123456789ab.tar.part": []byte("not finished"),
		"other.tar":                       []byte("not ours"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := sh(t, packsScript, dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseMembers(out)
	if err != nil {
		t.Fatal(err)
	}
	want := map[digest.Digest]int64{digest.FromString("a"): 1, digest.FromString("bb"): 2, digest.FromString("ccc"): 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "boxlift-d-0123456789ab.tar"), []byte("no tar"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sh(t, packsScript, dir); err == nil {
		t.Error("a pack that tar cannot read is passed over")
	}
}

// TestFilesScript reads what sha256sum and stat of this machine print.
func TestFilesScript(t *testing.T) {
	dir := t.TempDir()
	helper := filepath.Join(t.TempDir(), "boxlift-node")
	got := make(map[digest.Digest]int64)
	out, err := sh(t, filesScript, dir, helper)
	if err := errors.Join(err, parseFiles(out, got)); err != nil || len(got) > 0 {
		t.Errorf("without files: %v, %v", got, err)
	}
	for name, content := range map[string]string{filepath.Join(dir, "k3s-0123456789ab"): "k3s", filepath.Join(dir, "a b"): "", helper: "helper"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err = sh(t, filesScript, dir, helper)
	if err := errors.Join(err, parseFiles(out, got)); err != nil {
		t.Fatal(err)
	}
	want := map[digest.Digest]int64{digest.FromString("k3s"): 3, digest.FromString(""): 0, digest.FromString("helper"): 6}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseMembers(t *testing.T) {
	if got, err := parseMembers(""); err != nil || len(got) != 0 {
		t.Errorf("of nothing: %v, %v", got, err)
	}
	name := "blobs/sha256/" + digest.FromString("a").Encoded()
	for _, line := range []string{"tar: error", "-rw-r--r-- 0/0 1 1970-01-01 " + name, "-rw-r--r-- 0/0 x 1970-01-01 00:00 " + name, "-rw-r--r-- 0/0 -1 1970-01-01 00:00 " + name} {
		if got, err := parseMembers(line + "\n"); err == nil {
			t.Errorf("%q: %v", line, got)
		}
	}
}

func TestParseFiles(t *testing.T) {
	sum := digest.FromString("a").Encoded()
	for listing, want := range map[string]map[digest.Digest]int64{
		"":                          {},
		"5\n" + sum + "  -\n":       {digest.FromString("a"): 5},
		"5\n":                       nil,
		"x\n" + sum + "  -\n":       nil,
		"-5\n" + sum + "  -\n":      nil,
		"5\n" + sum[1:] + "  -\n":   nil,
		"5\n" + sum + "  -\n\n\n\n": nil,
	} {
		got := make(map[digest.Digest]int64)
		err := parseFiles(listing, got)
		if (err == nil) != (want != nil) || err == nil && !cmp.Equal(want, got) {
			t.Errorf("%q: %v, %v", listing, got, err)
		}
	}
}

func TestRecordedBundles(t *testing.T) {
	one, two := digest.FromString("1"), digest.FromString("2")
	for record, want := range map[string][]digest.Digest{
		"":   nil,
		"{}": nil,
		`{"version":1,"current":{"id":"` + one.String() + `"}}`:                                          {one},
		`{"version":1,"current":{"id":"` + one.String() + `"},"previous":{"id":"` + two.String() + `"}}`: {one, two},
		`{"version":1,"current":{"id":"` + one.String() + `"},"previous":{"id":"","packs":["x"]}}`:       {one},
		`{"version":1,"current":{"id":"x"},"previous":{"id":"` + one.String() + `"}}`:                    {one},
		`{"version":1,"current":{"id":"` + one.String() + `"},"previous":{"id":"` + one.String() + `"}}`: {one},
		`{"version":1,"current":{"id":["` + one.String() + `"]}}`:                                        nil,
	} {
		if diff := cmp.Diff(want, recordedBundles(record)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", record, diff)
		}
	}
}

// TestDeltaWithoutItsBase stops before any host is asked, when the operator lacks something.
func TestDeltaWithoutItsBase(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	dir := t.TempDir()
	whole := smallbundle.Bundle{Components: []smallbundle.Component{
		{Name: "k3s", Version: "v1.0.0", Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3", Platforms: []smallbundle.Platform{{Name: "linux/amd64", Layers: [][]byte{[]byte("a layer")}}, {Name: "linux/arm64"}}}}},
		{Name: "cilium", Version: "1.0.0", Charts: []smallbundle.File{{Name: "cilium.tgz", Content: "a chart"}}},
	}}
	smallbundle.Build(t, filepath.Join(dir, "old.tar"), whole, nil)
	base := &bundleplan.Base{}
	base.AddBundle(openBundle(t, filepath.Join(dir, "old.tar")))
	smallbundle.Build(t, filepath.Join(dir, "delta.tar"), whole, base)
	in.site.Bundle = openBundle(t, filepath.Join(dir, "delta.tar"))
	var err error
	if in.site.Contents, err = in.site.Bundle.Contents(); err != nil {
		t.Fatal(err)
	}
	err = in.seeder.CheckDelta()
	var missing *bundle.MissingError
	if !errors.As(err, &missing) || len(missing.Blobs) != 1 || !strings.Contains(missing.Blobs[0].Of, "cilium.tgz") {
		t.Fatalf("the chart is left out: %v", err)
	}
	layer := in.site.Contents.Images[0].Platforms[0].Layers[0].Digest
	err = in.seeder.LackingError(map[digest.Digest][]string{layer: {"b", "a"}})
	if !errors.Is(err, bundle.ErrIncomplete) || !strings.Contains(err.Error(), layer.String()) || !strings.Contains(err.Error(), ", which is not on a, b either") {
		t.Errorf("a layer that two hosts lack: %v", err)
	}
	if err := in.seeder.LackingError(nil); err != nil {
		t.Error(err)
	}
}
