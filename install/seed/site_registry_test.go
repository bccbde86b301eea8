package seed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/authority"
	"github.com/liteboxd/boxlift/install/config"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/registry/push"
	"github.com/liteboxd/boxlift/test/ocilayout"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// What the site's registry lacks is counted, and what it has under other digests is told.
func TestWhatTheSitesRegistryHas(t *testing.T) {
	image := func(name string, state push.State, target string) push.Image {
		i := push.Image{Name: "docker.io/" + name, Target: "harbor.lan/plant/" + name,
			Digest: digest.FromString(name), State: state}
		if target != "" {
			i.TargetDigest = digest.FromString(target)
		}
		return i
	}
	for _, test := range []struct {
		name           string
		images         []push.Image
		lacks, warning string
	}{
		{"nothing is asked for", nil, "", ""},
		{"all as they are", []push.Image{image("a:1", push.Present, "a:1"), image("b:1", push.Present, "b:1")}, "", ""},
		{"one is missing", []push.Image{image("a:1", push.Present, "a:1"), image("b:1", push.Missing, "")},
			"1 of 2 images are missing, such as harbor.lan/plant/b:1", ""},
		{"one is another one", []push.Image{image("a:1", push.Present, "a:1"), image("b:1", push.Present, "reduced")},
			"", "keep the digests of 1 image, "},
		{"many are", []push.Image{
			image("a:1", push.Present, "x"), image("b:1", push.Present, "x"), image("c:1", push.Present, "x"),
			image("d:1", push.Present, "x"), image("e:1", push.Present, "x"),
		}, "",
			"docker.io/a:1, docker.io/b:1, docker.io/c:1 and 2 more are found by tag"},
	} {
		in := seeded(t, sitetest.ExampleConfig+sitetest.Harbor)
		result := &push.Result{Registry: "harbor.lan", Images: test.images}
		if got := lackingImages(result, nil); got != test.lacks {
			t.Errorf("%s: %q, want %q", test.name, got, test.lacks)
		}
		in.seeder.warnOfDigests(result)
		if got := strings.Join(in.site.Warnings, "\n"); (got == "") != (test.warning == "") ||
			!strings.Contains(got, test.warning) {
			t.Errorf("%s: it warns of %q, want %q", test.name, got, test.warning)
		}
	}
	if got := lackingImages(nil, errors.New("no answer")); got != "" {
		t.Errorf("of a registry that does not answer: %q", got)
	}
}

// The site's registry is spoken to as install.yaml says.
func TestPushOptions(t *testing.T) {
	ca, err := authority.Open(authority.Options{Dir: t.TempDir(), Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"ca.crt": string(ca.CA()), "none.crt": "no certificate"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := seeded(t, sitetest.ExampleConfig+sitetest.Harbor)
	e := in.site.Config.Seeding.External
	for name, want := range map[string]string{"": "", "ca.crt": "", "none.crt": "holds no certificate in PEM",
		"missing.crt": "no such file"} {
		if e.CAFile = name; name != "" {
			e.CAFile = filepath.Join(dir, name)
		}
		got, err := externalCA(e)
		if want == "" && (err != nil || (got == nil) != (name == "")) ||
			want != "" && (!errors.Is(err, site.ErrConfig) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %d bytes, %v, want %q", name, len(got), err, want)
		}
	}
	e.PlainHTTP = true
	o, err := in.seeder.pushOptions(e, e.Pull, []byte("ca"))
	if err != nil || o.Username != "robot$pull" || o.Password != "the-password" || o.Address != "harbor.lan" ||
		!o.PlainHTTP || o.InsecureSkipTLSVerify {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := in.seeder.pushOptions(e, nil, nil); err != nil || o.Username != "" || o.Password != "" {
		t.Errorf("without a login: %+v, %v", o, err)
	}
	e.Rewrites[0].Match = "("
	if _, err := in.seeder.pushOptions(e, nil, nil); !errors.Is(err, site.ErrConfig) {
		t.Errorf("a rewrite that cannot be: %v", err)
	}
}

// Where this machine has lost what nodes log in with, the first server that knows it tells.
func TestFindPassword(t *testing.T) {
	const password = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
	const known = "configs: {'10.0.0.13:5443': {auth: {username: boxlift, password: " + password + "}}}"
	for _, test := range []struct {
		name  string
		files []string // of the servers; "-" is one that is not connected to
		want  string
	}{
		{"no server has pulled", []string{"", "", ""}, ""},
		{"the first one", []string{known, "", ""}, password},
		{"the last one", []string{"", "mirrors: {}", known}, password},
		{"one is not there", []string{"-", "-", known}, password},
		{"one that cannot be read", []string{"configs: [" + password, "\x00", known}, password},
		{"somebody else's", []string{strings.Replace(known, "boxlift", "robot", 1), "", ""}, ""},
		{"one that is none", []string{strings.Replace(known, password, "../../x", 1), "", ""}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := seeded(t, sitetest.ThreeServers+sitetest.OwnRegistry)
			in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
			for i, h := range in.site.Servers() {
				f := hosttest.New(t, h.Name)
				if test.files[i] == "-" {
					continue
				}
				h.Conn = f
				f.WriteFile(t, site.K3sRegistries, test.files[i], 0o600)
			}
			if in.seeder.FindPassword(t.Context()); in.seeder.registryCA.password != test.want {
				t.Errorf("%q", in.seeder.registryCA.password)
			}
			if a, err := in.seeder.authority(); err != nil || test.want != "" && a.Password() != test.want ||
				in.seeder.WithoutSecrets("it is "+a.Password()) != "it is [secret]" {
				t.Errorf("the authority has another password: %v", err)
			}
		})
	}
	in := seeded(t, sitetest.ExampleConfig)
	if in.site.Config.Seeding.Mode == config.SeedRegistry {
		t.Fatal("the example has boxlift's registry")
	}
	in.seeder.FindPassword(t.Context()) // it would ask a server that is not there
}

// What is wrong with a node's registries.yaml is said without what it holds.
func TestNodeRegistries(t *testing.T) {
	many := "mirrors:\n"
	for i := range 2000 {
		many += fmt.Sprintf("  s3cret%d: {}\n", i)
	}
	for text, want := range map[string]string{
		many:                        "cannot be read",
		"":                          "",
		"configs: {a.lan: {}}":      "",
		"configs: {a.lan: {auth: [": "cannot be read",
		"password: s3cret: x":       "cannot be read",
		"configs: {a.lan: {auth: {password: [s3cret]}}}": "cannot be read",
		"mirrors: s3cret":               "cannot be read",
		"mirrors: s3cret\x1b[2J":        "cannot be read",
		strings.Repeat("s3cret", 1<<18): "cannot be read",
	} {
		f := hosttest.New(t, "a")
		if text != "" {
			f.WriteFile(t, site.K3sRegistries, text, 0o600)
		}
		_, err := NodeRegistries(t.Context(), &site.Host{Conn: f})
		if (err == nil) != (want == "") ||
			err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%.100q: %v", text, err)
		}
	}
}

// What a host holds is what its packs, its files and its boxlift-node are, by their contents.
func TestHeld(t *testing.T) {
	f := hosttest.New(t, "a")
	h := &site.Host{Conn: f}
	held, err := HeldBlobs(t.Context(), h)
	if err := errors.Join(err, addFiles(t.Context(), h, held)); err != nil || len(held) != 0 {
		t.Errorf("an empty host: %v, %v", held, err)
	}
	for name, blob := range map[string]string{"a-0123456789ab.tar": "a", "b-0123456789ab.tar.aside": "bb"} {
		content := ocilayout.Pack(t, []byte("{}"), []byte(blob))
		f.WriteFile(t, wire.ImagesDir+"/boxlift-"+name, string(content), 0o600)
	}
	f.WriteFile(t, wire.ImagesDir+"/boxlift-c-0123456789ab.tar.part", "half a pack", 0o600)
	f.WriteFile(t, wire.FilesDir+"/files/k3s-0123456789ab", "k3s", 0o755)
	f.WriteFile(t, site.HelperPath, "helper", 0o755)
	before := f.Snapshot(t)
	if held, err = HeldBlobs(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if err := addFiles(t.Context(), h, held); err != nil {
		t.Fatal(err)
	}
	want := map[digest.Digest]int64{digest.FromString("a"): 1, digest.FromString("bb"): 2,
		digest.FromString("k3s"): 3, digest.FromString("helper"): 6}
	if diff := cmp.Diff(want, held); diff != "" || f.Snapshot(t) != before {
		t.Errorf("looking has changed the host, or: %s", diff)
	}
	f.WriteFile(t, wire.ImagesDir+"/boxlift-d-0123456789ab.tar", "no tar", 0o600)
	var failed *machine.ExitError
	if _, err := HeldBlobs(t.Context(), h); !errors.As(err, &failed) {
		t.Errorf("a pack that tar cannot read: %v", err)
	}
	// What a host says besides is no blob, and an error where it cannot be told apart.
	name := "blobs/sha256/" + digest.FromString("a").Encoded()
	for answer, want := range map[string]int{
		"": 0,
		"-rw-r--r-- 0/0 7 1970-01-01 00:00 " + name + "\n":                  1,
		"-rw-r--r-- 0/0 7 1970-01-01 00:00 blobs/sha256/../../etc/passwd\n": 0,
		"-rw-r--r-- 0/0 -7 1970-01-01 00:00 " + name + "\n":                 -1,
		"tar: \x1b[2Jcannot\n":     -1,
		strings.Repeat("x", 2<<20): -1,
	} {
		h.Conn = hosttest.Liar{Output: []byte(answer)}
		got, err := HeldBlobs(t.Context(), h)
		if (err != nil) != (want < 0) || err == nil && len(got) != want ||
			err != nil && (len(err.Error()) > 1000 || strings.Contains(err.Error(), "\x1b")) {
			t.Errorf("%.100q: %v, %v", answer, got, err)
		}
	}
}
