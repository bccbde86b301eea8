package registries

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config/secret"
)

func TestSources(t *testing.T) {
	login := Config{Auth: &Auth{Username: "puller", Password: secret.New("canary")}}
	f := &File{
		Mirrors: map[string]Mirror{
			"docker.io": {Endpoints: []string{"https://registry.lan:5000", "http://other.lan/v2/hub/"},
				Rewrites: map[string]string{"^library/(.*)": "mirror/$1"}},
			"registry.lan": {}, "*": {Endpoints: []string{"all.lan"}},
		},
		Configs: map[string]Config{"registry.lan:5000": login, "own.lan": login},
	}
	for _, c := range []struct {
		name                 string
		file                 *File
		registry, repository string
		askItself            bool
		want                 []Source
	}{
		{"no file", nil, "docker.io", "a/b", true, nil},
		{"an empty file", &File{}, "docker.io", "a/b", true, nil},
		{"the embedded registry's", &File{Mirrors: map[string]Mirror{"*": {}}}, "docker.io", "a/b", true, nil},
		{"endpoints, rewritten", f, "docker.io", "library/ubuntu", false, []Source{
			{URL: "https://registry.lan:5000/v2", Repository: "mirror/ubuntu", Config: login},
			{URL: "http://other.lan/v2/hub", Repository: "mirror/ubuntu"},
		}},
		{"and the registry itself, which is not", f, "docker.io", "library/ubuntu", true, []Source{
			{URL: "https://registry.lan:5000/v2", Repository: "mirror/ubuntu", Config: login},
			{URL: "http://other.lan/v2/hub", Repository: "mirror/ubuntu"},
			{URL: "https://registry-1.docker.io/v2", Repository: "library/ubuntu"},
		}},
		{"an entry without endpoints", f, "registry.lan", "a/b", false, []Source{
			{URL: "https://registry.lan/v2", Repository: "a/b"}}},
		{"one that has a login alone", f, "own.lan", "a/b", false, []Source{
			{URL: "https://all.lan/v2", Repository: "a/b"}, {URL: "https://own.lan/v2", Repository: "a/b", Config: login}}},
		{"all others", f, "quay.io", "a/b", false, []Source{{URL: "https://all.lan/v2", Repository: "a/b"}}},
	} {
		got := c.file.Sources(c.registry, c.repository, c.askItself)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
