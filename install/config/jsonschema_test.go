package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// compiledSchema is what Schema returns, in the hands of another implementation, which
// checks it against the meta-schema first.
func compiledSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("install.schema.json", document); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("install.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// validate reads YAML as editors do, and checks it. invalid is the schema's verdict.
func validate(s *jsonschema.Schema, text string) (invalid, err error) {
	var document any
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		return nil, err
	}
	return s.Validate(document), nil
}

func TestSchemaGolden(t *testing.T) {
	compareGolden(t, "testdata/schema.golden", string(Schema()))
}

func TestSchemaAcceptsWhatIsValid(t *testing.T) {
	s := compiledSchema(t)
	files, err := filepath.Glob("testdata/valid/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "testdata/example.yaml") {
		invalid, err := validate(s, mustRead(t, file))
		if err != nil || invalid != nil {
			t.Errorf("%s: %v, %v", file, err, invalid)
		}
	}
}

// beyondSchema are the invalid files that no schema can tell from valid ones: they break
// rules about values, not about keys and types.
var beyondSchema = []string{
	"alias", "api-endpoint", "backups", "bastion-default-circle", "bastion-row", "duplicate-hosts", "env", "front-one", "front-single", "hardening", "liteboxd-same",
	"local", "local-bastion", "names-ingress", "names-serve-nobody", "packages", "password-flow-no-space",
	"password-in-host", "pod-cidr-ipv6", "pod-cidr-room", "pod-cidr-room-mask", "pod-cidr-room-none",
	"pod-cidr-services", "pod-cidr-small", "seeding-modes",
	"seeding-no-external", "seeding-registries", "seeding-rewrites",
	"service-networks", "time-upstream", "two-documents",
}

func TestSchemaRefusesWhatIsInvalid(t *testing.T) {
	s := compiledSchema(t)
	files, err := filepath.Glob("testdata/invalid/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		invalid, err := validate(s, mustRead(t, file))
		switch {
		case err != nil: // no YAML at all
		case invalid == nil && !slices.Contains(beyondSchema, name):
			t.Errorf("%s is accepted", file)
		case invalid != nil && slices.Contains(beyondSchema, name):
			t.Errorf("%s is refused now: take it from the list\n%v", file, invalid)
		case invalid != nil:
			refused++
		}
	}
	if refused < 20 {
		t.Errorf("only %d files were refused", refused)
	}
}

// TestSchemaNamesProblems checks one mistake at a time, where whole files hold many.
func TestSchemaNamesProblems(t *testing.T) {
	s := compiledSchema(t)
	const start = "cluster: {master: {host: a, agent: true"
	tests := []struct {
		text  string
		valid bool
	}{
		{start + "}}", true},
		{"{}", false},
		{"cluster: {agents: []}", false},
		{start + "}, servers: []}", false},
		{"cluster: {master: {host: a}}", false},
		{"cluster: {master: {agent: true}}", false},
		{"cluster: {servers: [{local: true}]}", true},
		{"cluster: {servers: [{local: yes please}]}", false},
		{start + ", prot: 22}}", false},
		{start + ", port: 70000}}", false},
		{start + `, port: "22"}}`, false},
		{start + `, port: "${PORT}"}}`, true},
		{start + `, sudo: "${YES}"}}`, true},
		{start + `, sudo: "yes"}}`, false},
		{start + ", name: 7}}", false},
		{start + ", bastion: none}}", true},
		{start + ", bastion: {host: b, agent: true, bastion: {host: c, agent: true}}}}", true},
		{start + ", bastion: {host: b, agent: true, bastion: {host: c, agent: true, nmame: x}}}}", false},
		{start + ", bastion: {host: b, agent: true, sudo: true}}}", false},
		{start + `, labels: {a.b/c: "", d: x}}}`, true},
		{start + ", labels: {a: 1}}}", false},
		{start + `, labels: {"a b": x}}}`, false},
		{start + ", taints: [a:NoExecute, {key: b, effect: NoSchedule}]}}", true},
		{start + ", taints: [{key: b, effect: Never}]}}", false},
		{start + ", taints: [{key: b}]}}", false},
		{start + ", k3s: {config: {a: 1, b+: [x, 2, true], c: false}}}}", true},
		{start + ", k3s: {config: {a: {b: c}}}}}", false},
		{start + ", k3s: {config: {tlsSAN: x}}}}", false},
		{"cluster: {master: {host: a, agent: true}, agents: [{host: b, agent: true, k3s: {version: x}}]}", false},
		{start + "}}\nnetwork: {cni: cilium, cilium: {values: {a: [{b: null}]}}}", true},
		{start + "}}\nnetwork: {cni: none}", false},
		{start + "}}\nregistries: {mirrors: {a: , b: {endpoint: [x]}}}", true},
		{start + "}}\nregistries: {mirrors: {a: {endpoint: x}}}", false},
		{start + "}}\nregistries: {configs: {a: {auth: {user: x}}}}", false},
		{start + "}}\nruntime: {drainTimeoutSeconds: 0}", false},
	}
	for _, tt := range tests {
		invalid, err := validate(s, tt.text)
		if err != nil || (invalid == nil) != tt.valid {
			t.Errorf("%s\n%v, %v", tt.text, err, invalid)
		}
	}
}

// part is as much of a JSON schema as schemaKeys walks.
type part struct {
	Description          string
	Ref                  string `json:"$ref"`
	AllOf, AnyOf         []*part
	Properties           map[string]*part
	Items                *part
	AdditionalProperties json.RawMessage // false or a part
	Definitions          map[string]*part
}

// schemaKeys returns the paths of all keys of the schema, lists and definitions passed over.
func schemaKeys(t *testing.T) []string {
	t.Helper()
	root := &part{}
	if err := json.Unmarshal(Schema(), root); err != nil {
		t.Fatal(err)
	}
	var keys []string
	seen := map[string]bool{}
	below := func(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }
	var walk func(path string, s *part)
	walk = func(path string, s *part) {
		if s == nil {
			return
		}
		for _, inner := range slices.Concat(s.AllOf, s.AnyOf) {
			walk(path, inner)
		}
		if name, ok := strings.CutPrefix(s.Ref, "#/definitions/"); ok && !seen[path+name] &&
			strings.Count(path, "bastion") < 2 {
			seen[path+name] = true
			walk(path, root.Definitions[name])
		}
		for key, value := range s.Properties {
			keys = append(keys, below(path, key))
			if value.Description == "" {
				t.Errorf("%s is not described", below(path, key))
			}
			walk(below(path, key), value)
		}
		walk(path, s.Items)
		var more *part
		if json.Unmarshal(s.AdditionalProperties, &more) == nil {
			walk(path+".*", more)
		}
	}
	walk("", root)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// TestSchemaAndDecoderHaveTheSameKeys asks the decoder for the keys of every mapping, by
// giving it one that does not exist, and compares with the schema.
func TestSchemaAndDecoderHaveTheSameKeys(t *testing.T) {
	const wrong = "zzzzzzzzzzzzzzzz"
	keys := schemaKeys(t)
	byParent := map[string][]string{}
	for _, k := range keys {
		parent, key := "", k
		if i := strings.LastIndex(k, "."); i >= 0 {
			parent, key = k[:i], k[i+1:]
		}
		byParent[parent] = append(byParent[parent], key)
	}
	if len(keys) < 100 || len(byParent) < 15 {
		t.Fatalf("only %d keys in %d mappings", len(keys), len(byParent))
	}
	expected := regexp.MustCompile(`: unknown key, expected one of (.*)`)
	for parent, want := range byParent {
		var path []string
		if parent != "" {
			path = strings.Split(parent, ".")
		}
		text := rebuild(path, wrong)
		_, _, err := Parse("f", []byte(text), testEnv)
		var invalid *InvalidError
		if !errors.As(err, &invalid) {
			t.Fatalf("%s: %v", text, err)
		}
		var got []string
		for _, p := range invalid.Problems {
			if m := expected.FindStringSubmatch(": " + p.Text); m != nil && strings.HasSuffix(p.Path, wrong) {
				got = strings.Split(m[1], ", ")
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("keys of %q: schema - decoder:\n%s\n%s\n%v", parent, diff, text, err)
		}
	}
}

// rebuild makes the file that has the wrong key in the mapping at a path.
func rebuild(path []string, wrong string) string {
	if len(path) == 0 {
		return "{" + wrong + ": 1}"
	}
	inner := rebuild(path[1:], wrong)
	switch path[0] {
	case "servers", "agents", "workloads", "taints", "rewrites", "requireAttestations", "to":
		return "{" + path[0] + ": [" + inner + "]}"
	case "*":
		return "{x: " + inner + "}"
	}
	return "{" + path[0] + ": " + inner + "}"
}
