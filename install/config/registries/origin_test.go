package registries

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/install/config/secret"
	"github.com/liteboxd/boxlift/registry/rewrite"
)

func mustRules(t *testing.T, rules ...rewrite.Rule) rewrite.Rules {
	t.Helper()
	parsed, err := rewrite.Parse(rules)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// readRegistries is the registries of an install.yaml.
func readRegistries(t *testing.T, text string) *File {
	t.Helper()
	if text == "" {
		return nil
	}
	var file *File
	read(t, text, func(n schema.Node) { file = Read(n) })
	return file
}

func TestMerge(t *testing.T) {
	own := Origin{
		Registries: []string{"docker.io", "quay.io"}, Endpoints: []string{"https://10.0.0.1:5443",
			"https://10.0.0.2:5443"},
		Login: &Login{"boxlift", secret.New("secret")}, CAFile: "/etc/ca.crt",
	}
	external := Origin{Registries: []string{"docker.io"}, Endpoints: []string{"https://h.lan"},
		Rewrites: mustRules(t, rewrite.Rule{Registry: "*", Match: "^", Replace: "plant/"},
			rewrite.Rule{Registry: "ghcr.io", Match: "^", Replace: "g/"})}
	peers := Origin{Registries: []string{"docker.io"}}
	ours := []string{"https://10.0.0.1:5443", "https://10.0.0.2:5443"}
	plant, g := map[string]string{"^": "plant/"}, map[string]string{"^": "g/"}
	login := Config{Auth: &Auth{Username: "boxlift", Password: secret.New("secret")},
		TLS: &TLS{CAFile: "/etc/ca.crt"}}
	logins := map[string]Config{"10.0.0.1:5443": login, "10.0.0.2:5443": login}
	with := func(host string, c Config) map[string]Config {
		return map[string]Config{"10.0.0.1:5443": login, "10.0.0.2:5443": login, host: c}
	}
	for _, test := range []struct {
		name, users string
		source      Origin
		want        *File
		fails       string
	}{
		{name: "the user has none", source: own, want: &File{
			Mirrors: map[string]Mirror{"docker.io": {Endpoints: ours}, "quay.io": {Endpoints: ours},
				"*": {Endpoints: ours}},
			Configs: logins,
		}},
		{name: "the user's endpoints follow, also those for all others", source: own,
			users: `{mirrors: {docker.io: {endpoint: ["https://m.lan", "https://10.0.0.2:5443"]}, "*": {endpoint: ` +
				`["https://all.lan"]}}}`,
			want: &File{
				Mirrors: map[string]Mirror{
					"docker.io": {Endpoints: append(ours[:2:2], "https://m.lan")},
					"quay.io":   {Endpoints: append(ours[:2:2], "https://all.lan")},
					"*":         {Endpoints: append(ours[:2:2], "https://all.lan")},
				},
				Configs: logins,
			}},
		{name: "a registry of the user's", source: own,
			users: `{mirrors: {own.lan: , other.lan: {endpoint: ["https://m.lan"], rewrite: {a: b}}}, configs: ` +
				`{own.lan: {auth: {auth: eA==}}}}`,
			want: &File{
				Mirrors: map[string]Mirror{
					"docker.io": {Endpoints: ours}, "quay.io": {Endpoints: ours}, "*": {Endpoints: ours},
					"own.lan": {Endpoints: []string{"own.lan"}}, "other.lan": {Endpoints: []string{"https://m.lan"},
						Rewrites: map[string]string{"a": "b"}},
				},
				Configs: with("own.lan", Config{Auth: &Auth{Auth: secret.New("eA==")}}),
			}},
		{name: "the same registry twice", source: own, users: `{mirrors: {docker.io: }}`, want: &File{
			Mirrors: map[string]Mirror{"docker.io": {Endpoints: ours}, "quay.io": {Endpoints: ours},
				"*": {Endpoints: ours}},
			Configs: logins,
		}},
		{name: "rewrites of the user's", source: own, users: `{mirrors: {docker.io: {rewrite: {a: b}}}}`,
			fails: `registries.mirrors["docker.io"] and seeding want different rewrites for docker.io`},
		{name: "rewrites of the user's for all others", source: own,
			users: `{mirrors: {"*": {endpoint: [m.lan], rewrite: {a: b}}}}`,
			fails: `registries.mirrors["*"] and seeding want different rewrites for docker.io`},
		{name: "a login of the user's", source: own, users: `{configs: {"10.0.0.2:5443": {auth: {auth: eA==}}}}`,
			fails: `registries.configs["10.0.0.2:5443"] has a login`},
		{name: "certificates of the user's", source: own,
			users: `{configs: {"10.0.0.2:5443": {tls: {insecure_skip_verify: true}}}}`,
			fails: `registries.configs["10.0.0.2:5443"] says how to check the certificate`},
		{name: "a client's certificate of the user's", source: own,
			users: `{configs: {"10.0.0.2:5443": {tls: {cert_file: /c, key_file: /k}}}}`, want: &File{
				Mirrors: map[string]Mirror{"docker.io": {Endpoints: ours}, "quay.io": {Endpoints: ours},
					"*": {Endpoints: ours}},
				Configs: with("10.0.0.2:5443", Config{Auth: login.Auth,
					TLS: &TLS{CAFile: "/etc/ca.crt", CertFile: "/c", KeyFile: "/k"}}),
			}},
		{name: "rewrites of the source's", source: external, want: &File{
			Mirrors: map[string]Mirror{
				"docker.io": {Endpoints: []string{"https://h.lan"},
					Rewrites: plant}, "ghcr.io": {Endpoints: []string{"https://h.lan"}, Rewrites: g},
				"*": {Endpoints: []string{"https://h.lan"}, Rewrites: plant},
			},
		}},
		{name: "rewrites of the source's, endpoints of the user's", source: external,
			users: `{mirrors: {ghcr.io: {endpoint: [m.lan]}}}`,
			fails: `registries.mirrors["ghcr.io"] and seeding want different rewrites for ghcr.io`},
		{name: "the same rewrites", source: external,
			users: `{mirrors: {docker.io: {endpoint: [m.lan], rewrite: {"^": plant/}}}}`, want: &File{
				Mirrors: map[string]Mirror{
					"docker.io": {Endpoints: []string{"https://h.lan", "m.lan"},
						Rewrites: plant}, "ghcr.io": {Endpoints: []string{"https://h.lan"}, Rewrites: g},
					"*": {Endpoints: []string{"https://h.lan"}, Rewrites: plant},
				},
			}},
		{name: "peers only", source: peers, want: &File{Mirrors: map[string]Mirror{"*": {}}}},
		{name: "peers and the user's", source: peers,
			users: `{mirrors: {own.lan: , "*": {endpoint: [m.lan], rewrite: {a: b}}}}`, want: &File{
				Mirrors: map[string]Mirror{"own.lan": {},
					"*": {Endpoints: []string{"m.lan"}, Rewrites: map[string]string{"a": "b"}}},
			}},
		{name: "no URL", source: Origin{Endpoints: []string{"10.0.0.1"}}, fails: `found endpoint "10.0.0.1"`},
		{name: "no URL of a registry", source: Origin{Endpoints: []string{"https://u@10.0.0.1"}},
			fails: "expected an address without user and password"},
		{name: "no registry", source: Origin{Registries: []string{"docker.io/library"},
			Endpoints: []string{"https://10.0.0.1"}}, fails: `found registry "docker.io/library"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			users, before := readRegistries(t, test.users), readRegistries(t, test.users)
			got, err := test.source.Merge(users)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Fatalf("got %v, want an error with %q", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("merged (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, users); diff != "" {
				t.Errorf("the user's were changed (-before +after):\n%s", diff)
			}
			if _, err := got.Render(); err != nil {
				t.Error(err)
			}
		})
	}
}
