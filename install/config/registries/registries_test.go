package registries

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/config/schema"
)

var update = flag.Bool("update", false, "write the golden files")

func testEnv(name string) (string, bool) {
	value, ok := map[string]string{"PASS": "from the environment", "WORD": "word", "YES": "true"}[name]
	return value, ok
}

// read has a function look at a text, which must be without problems.
func read(t *testing.T, text string, look func(schema.Node)) {
	t.Helper()
	if problems, _ := schema.Read("f", []byte(text), testEnv, look).Problems(); len(problems) > 0 {
		t.Fatalf("%s\n%v", text, problems)
	}
}

func TestRender(t *testing.T) {
	section, err := os.ReadFile("../testdata/valid/registries.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file *File
	read(t, string(section), func(root schema.Node) {
		root.Mapping(
			schema.Optional("cluster", "", func(schema.Node) {}),
			schema.Optional("registries", "", func(n schema.Node) { file = Read(n) }),
		)
	})
	got, err := file.Render()
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/registries.golden"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
	for range 20 { // maps have another order each time
		again, err := file.Render()
		if err != nil || string(again) != string(got) {
			t.Fatalf("rendered again: %v\n%s", err, again)
		}
	}
	// What k3s reads must be what was written, secrets in their places.
	var back struct {
		Mirrors map[string]struct {
			Endpoint []string
			Rewrite  map[string]string
		}
		Configs map[string]struct {
			Auth struct {
				Username, Password, Auth string
				IdentityToken            string `yaml:"identity_token"`
			}
		}
	}
	if err := yaml.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	found := []any{
		len(back.Mirrors), back.Mirrors["docker.io"].Rewrite["^x/(?P<name>.*)$"],
		back.Configs["registry.lan:5000"].Auth.Password,
		back.Configs["word.lan"].Auth.Auth, back.Configs["*"].Auth.IdentityToken,
	}
	if diff := cmp.Diff([]any{4, "y/${name}", "from the environment", "dXNlcjpwYXNzd29yZA==", "a token"},
		found); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

// TestReadRefuses has one mistake each.
func TestReadRefuses(t *testing.T) {
	const want = "expected an address such as https://registry.lan:5000"
	for text, report := range map[string]string{
		"{mirrors: {Docker.io: {}}}": "expected a registry's name in " +
			"lower case without https://",
		"{mirrors: {a.lan:0: {}}}":                           "expected a port from 1 to 65535",
		"{mirrors: {a/b: {}}}":                               "expected a registry such as docker.io",
		`{mirrors: {a: {endpoint: ["ftp://b"]}}}`:            want,
		`{mirrors: {a: {endpoint: ["https://u:CANARY@b"]}}}`: "without user and password",
		`{mirrors: {a: {endpoint: ["https://b?c"]}}}`:        "without ? and #",
		`{mirrors: {a: {endpoint: ["https://b:70000"]}}}`:    "expected a port",
		`{mirrors: {a: {endpoint: ["https://b:0"]}}}`:        "expected a port",
		"{mirrors: {a: {rewrite: {'(': b}}}}":                "expected a regular expression of Go",
		"{configs: {a: {auth: {username: b}}}}": "found one of username and " +
			"password, expected both",
		"{configs: {a: {auth: {username: b, password: CANARY, auth: CANARY}}}}": "found username and auth, expected " +
			"one of them",
		"{configs: {a: {auth: {}}}}": "no login, expected username and " +
			"password",
		"{configs: {a: {tls: {cert_file: /a}}}}": "found one of cert_file and " +
			"key_file, expected both",
		"{configs: {a: {tls: {ca_file: a}}}}": "expected an absolute path",
		"{configs: {a: {auth: b}}}":           "found text, expected a mapping with",
	} {
		problems, _ := schema.Read("f", []byte(text), testEnv, func(n schema.Node) { Read(n) }).Problems()
		if len(problems) != 1 || !strings.Contains(problems[0].Text, report) ||
			strings.Contains(problems[0].Text, "CANARY") {
			t.Errorf("%s: got %v, want one with %q", text, problems, report)
		}
	}
}

func TestSecrets(t *testing.T) {
	var none *File
	if none.Secrets() != nil {
		t.Error("no file has secrets")
	}
	var file *File
	read(t, "{configs: {a: {auth: {username: u, password: p}}, b: {tls: {}}}}", func(n schema.Node) { file = Read(n) })
	var got []string
	for _, s := range file.Secrets() {
		if !s.IsEmpty() {
			got = append(got, s.Reveal())
		}
	}
	if diff := cmp.Diff([]string{"p"}, got); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
}
