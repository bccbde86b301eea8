package liteboxd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/registries"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/database"
	"github.com/liteboxd/boxlift/manifests"
)

const BoxConfig = `cluster:
  name: example
  servers: [{host: 10.0.0.11, agent: true, k3s: {config: {disable: [%s]}}}]
liteboxd: {extraImages: ["registry.lan/team/python:3.13"]}
`

var ones = strings.Repeat("1", 64)

// Images of install.yaml are what its workloads run: LiteBoxd's network controller is in the image of its API.
func TestImagesOfTheSite(t *testing.T) {
	in := carrying(t, "", "v1.34.4+k3s1")
	own := config.Images{API: "registry.lan/a/api:1", Gateway: "registry.lan/a/gateway:2", Web: "registry.lan/a/web:3",
		Helper: "registry.lan/a/helper:4"}
	in.site.Config.LiteBoxd.Images = own
	p, err := in.deployer.ManifestParameters()
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: p})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string][]string)
	for _, use := range rendered.Images() {
		got[use.Image] = append(got[use.Image], use.Object)
	}
	for image, names := range map[string][]string{
		own.API: {manifests.API, manifests.NetworkController}, own.Gateway: {manifests.Gateway}, own.Web: {"liteboxd-web"},
		own.Helper: {"liteboxd-config"},
	} {
		for _, name := range names {
			if !slices.ContainsFunc(got[image], func(object string) bool { return strings.HasSuffix(object, "/"+name) }) {
				t.Errorf("%s is not what %s runs, but %q", image, name, got[image])
			}
		}
	}
	for image, objects := range got {
		if !strings.HasPrefix(image, "registry.lan/a/") {
			t.Errorf("%q have the image %s", objects, image)
		}
	}
}

func TestManifestImages(t *testing.T) {
	in := carrying(t, "", "v1.34.4+k3s1", "ghcr.io/fslongjin/liteboxd-server:v0.6.10", "ghcr.io/fslongjin/liteboxd-gateway:v0.6.10", "ghcr.io/fslongjin/web:v0.6.10", "docker.io/library/ubuntu:24.04")
	p, err := in.deployer.ManifestParameters()
	if err != nil {
		t.Fatal(err)
	}
	want := manifests.Images{
		API: "ghcr.io/fslongjin/liteboxd-server:v0.6.10", Gateway: "ghcr.io/fslongjin/liteboxd-gateway:v0.6.10",
		Web: "ghcr.io/fslongjin/web:v0.6.10", Helper: "docker.io/library/ubuntu:24.04",
	}
	if diff := cmp.Diff(want, p.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	// One that install.yaml lists besides is missing, on every platform or on one.
	err = in.deployer.CheckImages([]manifests.ImageUse{{Image: p.Images.API, Object: "Deployment a/b", Container: "api"}})
	if !errors.Is(err, site.ErrConfig) || !strings.Contains(err.Error(), "install.yaml (liteboxd.extraImages) needs the image registry.lan/team/python:3.13") {
		t.Errorf("an extra image that is missing: %v", err)
	}
	rendered, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: p})
	if err != nil {
		t.Fatal(err)
	}
	in.deployer.Deployment = &Deployment{Rendered: rendered}
	in.site.Config.LiteBoxd.ExtraImages = nil
	if err := in.deployer.CheckPlatform("linux/amd64"); err != nil {
		t.Error(err)
	}
	if err := in.deployer.CheckPlatform("linux/arm64"); err == nil || !strings.Contains(err.Error(), "the host is linux/arm64") || !strings.Contains(err.Error(), "liteboxd-gateway") {
		t.Errorf("a host of another platform: %v", err)
	}
	in.site.Contents.Images = in.site.Contents.Images[1:]
	if _, err := in.deployer.ManifestParameters(); !errors.Is(err, site.ErrConfig) || !strings.Contains(err.Error(), "carries 0 images called liteboxd-server") {
		t.Errorf("without an image of the API: %v", err)
	}
}

// TestImagesFromElsewhere lets images be in the site's own registry, where install.yaml says that nodes pull from there.
func TestImagesFromElsewhere(t *testing.T) {
	const image = "registry.lan:5000/team/api:1"
	named := &registries.File{Mirrors: map[string]registries.Mirror{"registry.lan:5000": {}}}
	for _, c := range []struct {
		name    string
		file    *registries.File
		seeding config.Seeding
		image   string
		want    string // of the error
	}{
		{"nowhere", nil, config.Seeding{Mode: config.SeedImages}, image, "it is not carried: add `- {ref: " + image + "}`"},
		{"a registry of the site's", named, config.Seeding{Mode: config.SeedImages}, image, ""},
		{"and another one", named, config.Seeding{Mode: config.SeedRegistry}, "other.lan/team/api:1", "it is not carried"},
		{"k3s' embedded registry is no other place", &registries.File{Mirrors: map[string]registries.Mirror{"*": {}}},
			config.Seeding{Mode: config.SeedImages}, image, "it is not carried"},
		{"the external registry", nil, config.Seeding{Mode: config.SeedExternal,
			External: &config.ExternalRegistry{Address: "harbor.lan"}}, image, ""},
		{"no name", named, config.Seeding{Mode: config.SeedImages}, "registry.lan:5000/A b", "could not parse reference"},
	} {
		in := carrying(t, "", "v1.34.4+k3s1")
		in.site.Config.LiteBoxd.ExtraImages, in.site.Config.Registries, in.site.Config.Seeding = nil, c.file, c.seeding
		err := in.deployer.CheckImages([]manifests.ImageUse{{Image: c.image, Object: "Deployment a/b", Container: "api"}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestNamespacesStay(t *testing.T) {
	in := carrying(t, "", "v1.34.4+k3s1")
	running := func(system, sandbox string) []kube.Object {
		return []kube.Object{
			{Kind: "Deployment", Namespace: system, Name: "liteboxd-api"}, {Kind: "NetworkPolicy", Namespace: sandbox, Name: "default-deny-all"},
			{Kind: "NetworkPolicy", Namespace: "elsewhere", Name: "of-the-site"},
		}
	}
	for _, c := range []struct {
		running []kube.Object
		want    string
	}{
		{nil, ""},
		{running("liteboxd-system", "liteboxd-sandbox"), ""},
		{running("plant", "liteboxd-sandbox"), "is in the namespace plant, and liteboxd.namespaceSystem in install.yaml says liteboxd-system"},
		{running("liteboxd-system", "plant"), "is in the namespace plant, and liteboxd.namespaceSandbox in install.yaml says liteboxd-sandbox"},
	} {
		err := in.deployer.checkNamespaces(c.running)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v", c.running, err)
		}
	}
}

func TestLostSandboxes(t *testing.T) {
	a, b := Sandbox{Name: "sandbox-a", UID: "1", Node: "first"}, Sandbox{Name: "sandbox-b", UID: "2", Node: "first", Restarts: 1}
	c := Sandbox{Name: "sandbox-c", UID: "3", Node: "second"}
	again, anew := b, a
	again.Restarts, anew.UID = 2, "9"
	for name, one := range map[string]struct {
		now             []Sandbox
		restoring       bool
		gone, restarted []string
	}{
		"the same":                 {[]Sandbox{c, b, a}, false, nil, nil},
		"one more":                 {[]Sandbox{a, b, c, {Name: "sandbox-d", UID: "4"}}, false, nil, nil},
		"one less":                 {[]Sandbox{a, b}, false, []string{"sandbox-c on second"}, nil},
		"restarted":                {[]Sandbox{a, again, c}, false, nil, []string{"the sandbox sandbox-b on first was started again"}},
		"another of the same name": {[]Sandbox{anew, b, c}, false, []string{"sandbox-a on first"}, nil},
		"restarted by a restore":   {[]Sandbox{a, again}, true, []string{"sandbox-c on second"}, nil},
	} {
		gone, restarted := lostSandboxes([]Sandbox{a, b, c}, one.now, one.restoring)
		if diff := cmp.Diff([][]string{one.gone, one.restarted}, [][]string{gone, restarted}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A row that a user may have deleted is no loss; a table that was emptied is.
func TestLostRows(t *testing.T) {
	before := database.Keys{"templates": {"'a'", "'b'", "'c'"}, "image_prepulls": {"'p'"}, "template_versions": nil}
	for name, one := range map[string]struct {
		now              database.Keys
		deleted, emptied []string
	}{
		"the same": {before, nil, nil},
		"more":     {database.Keys{"templates": {"'a'", "'b'", "'c'", "'d'"}, "image_prepulls": {"'p'"}, "template_versions": {"1"}}, nil, nil},
		"deleted by users": {database.Keys{"templates": {"'c'", "'d'"}},
			[]string{"image_prepulls 'p'", "templates 'a'", "templates 'b'"}, nil},
		"begun anew": {database.Keys{"templates": {"'x'"}, "image_prepulls": {"'p'"}},
			nil, []string{"all 3 rows of the table templates of the database are gone"}},
		"no tables": {nil, []string{"image_prepulls 'p'"}, []string{"all 3 rows of the table templates of the database are gone"}},
	} {
		deleted, emptied := lostRows(before, one.now)
		if diff := cmp.Diff([][]string{one.deleted, one.emptied}, [][]string{deleted, emptied}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// What was broken off is gone on with; what belongs to something else is left alone.
func TestUncompared(t *testing.T) {
	in := carrying(t, "", "v1.34.4+k3s1")
	in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
	u := in.deployer.UpgradeTo("v0.6.11")
	write := func(name string, b Backup) {
		dir := filepath.Join(in.site.Beside(backupsDir), name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := writeBackup(&b, dir); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, want string) {
		t.Helper()
		b, dir, err := u.uncompared()
		if got := filepath.Base(dir); err != nil || (b == nil) != (want == "") || b != nil && got != want {
			t.Errorf("%s: %v in %s, %v; want %q", what, b, got, err, want)
		}
	}
	check("none", "")
	mine := Backup{Format: 1, Cluster: "example", Time: time.Now(), To: "v0.6.11"}
	write("20260101T000000Z", mine)
	check("one", "20260101T000000Z")
	write("20260102T000000Z.unfinished", Backup{Cluster: "example", To: "v0.6.12"})
	check("an unfinished one after it", "20260101T000000Z")
	compared := mine
	compared.Compared = true
	write("20260103T000000Z", compared)
	check("a newer one that is done with", "")
	write("20260104T000000Z", Backup{Cluster: "example", To: "v0.6.10"})
	check("one for something else", "")
	write("20260105T000000Z", Backup{Cluster: "another", To: "v0.6.11"})
	check("one of another cluster", "")
}

// A bundle that somebody has built elsewhere is refused as well.
func TestOldLiteBoxd(t *testing.T) {
	in := example(t, strings.Replace(BoxConfig, "%s", "", 1), "k3s=v1.34.4+k3s1", "liteboxd=v0.6.8")
	in.site.Misfit = site.ErrConfig
	_, err := in.deployer.RenderLiteBoxd()
	if !errors.Is(err, site.ErrConfig) || !strings.Contains(err.Error(), "LiteBoxd v0.6.8 has no network-controller") {
		t.Errorf("%v", err)
	}
}

// A rollout that failed says what became of the database, and where it is as it was before.
func TestSayDatabase(t *testing.T) {
	failed, dir := errors.New("rolled back to revision 3"), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, BackupDatabase), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		err    error
		backup string
		says   bool
	}{
		{"it went well", nil, dir, false},
		{"a first rollout", failed, "", false},
		{"no database by then", failed, t.TempDir(), false},
		{"a database", failed, dir, true},
	} {
		got := sayDatabase(test.err, test.backup)
		if !errors.Is(got, test.err) || got != nil && strings.Contains(got.Error(), filepath.Join(dir, BackupDatabase)) != test.says {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
