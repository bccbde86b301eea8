package config

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func mustExample(t *testing.T, servers, agents []string) string {
	t.Helper()
	text, err := Example(servers, agents)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestExampleIsValid(t *testing.T) {
	noEnvironment := func(string) (string, bool) { return "", false }
	tests := []struct{ servers, agents []string }{
		{[]string{"10.0.0.1"}, nil},
		{[]string{"10.0.0.1"}, []string{"10.0.0.2", "fd00::3", "Agent-3.lan"}},
		{[]string{"a", "b", "c"}, []string{"d"}},
	}
	for _, tt := range tests {
		text := mustExample(t, tt.servers, tt.agents)
		cfg, warnings, err := Parse("install.yaml", []byte(text), noEnvironment)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%v, %v\n%s", err, warnings, text)
		}
		if len(cfg.Cluster.Servers) != len(tt.servers) || len(cfg.Cluster.Agents) != len(tt.agents) {
			t.Errorf("%v became %v", tt, cfg.Hosts())
		}
		if invalid, err := validate(compiledSchema(t), text); err != nil || invalid != nil {
			t.Errorf("the schema: %v, %v", err, invalid)
		}
	}
}

func TestExampleWithoutServers(t *testing.T) {
	text := mustExample(t, nil, nil)
	_, _, err := Parse("install.yaml", []byte(text), testEnv)
	if err == nil || strings.Count(err.Error(), "\n") != 0 ||
		!strings.Contains(err.Error(), `cluster.servers[0].host: found "<address of the server>"`) {
		t.Errorf("got %v, want the host to be filled in as the only problem", err)
	}
	filled := strings.Replace(text, "<address of the server>", "10.0.0.1", 1)
	if _, _, err := Parse("install.yaml", []byte(filled), testEnv); err != nil {
		t.Errorf("filled in: %v", err)
	}
}

func TestExampleRefusesHosts(t *testing.T) {
	for want, hosts := range map[string][]string{
		`the host "a b", expected an IP address or a DNS name`: {"a b"},
		"found 2 servers, expected an odd number":              {"a", "b"},
		"found the host a twice":                               {"a", "b", "A"},
		"the port has a key of its own":                        {"a:22"},
	} {
		if _, err := Example(hosts, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", hosts, err, want)
		}
	}
	if _, err := Example([]string{"a"}, []string{"a"}); err == nil {
		t.Error("a server that is an agent too is accepted")
	}
}

// TestExampleHasEveryKey takes the # away from every key that is commented out.
func TestExampleHasEveryKey(t *testing.T) {
	env := func(name string) (string, bool) {
		if name == "LITEBOXD_KEY" {
			return "0123456789abcdef", true
		}
		return "value-of-" + name, true
	}
	text := regexp.MustCompile(`(?m)^( *)#([^ \n])`).ReplaceAllString(mustExample(t, []string{"10.0.0.11", "10.0.0.14", "10.0.0.15"}, nil),
		"$1$2")
	present := map[string]bool{"master": true} // the short form of what is there
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				present[key] = true
				walk(value)
			}
		case []any:
			for _, item := range v {
				walk(item)
			}
		}
	}
	// The sections of the modes of seeding exclude each other.
	for mode, other := range map[string]string{"registry": "external", "external": "registry"} {
		section := regexp.MustCompile(`(?m)^  ` + other + `:\n(    .*\n|  #.*\n)+`)
		text := section.ReplaceAllString(strings.Replace(text, "mode: images", "mode: "+mode, 1), "")
		if _, _, err := Parse("install.yaml", []byte(text), env); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		var document any
		if err := yaml.Unmarshal([]byte(text), &document); err != nil {
			t.Fatal(err)
		}
		walk(document)
	}
	for _, path := range schemaKeys(t) {
		if key := path[strings.LastIndex(path, ".")+1:]; !present[key] {
			t.Errorf("the example does not show %s", path)
		}
	}
}

// TestDocumentation checks that the page for users knows every key, and that its examples
// are valid.
func TestDocumentation(t *testing.T) {
	page := mustRead(t, filepath.FromSlash("../../docs/install-yaml.md"))
	var tables []string
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "|") {
			tables = append(tables, strings.SplitN(line, "|", 3)[1])
		}
	}
	for _, path := range schemaKeys(t) {
		key := path[strings.LastIndex(path, ".")+1:]
		in := regexp.MustCompile("[`.]" + key + "`")
		if !slices.ContainsFunc(tables, in.MatchString) {
			t.Errorf("no table has %s", path)
		}
	}
	for _, reserved := range []map[string]string{ownedKeys, reservedFlags} {
		for key := range reserved {
			if len(key) > 1 && !strings.Contains(page, "`"+key+"`") {
				t.Errorf("the page does not say that %s cannot be given to k3s", key)
			}
		}
	}
	for _, c := range critical {
		if !strings.Contains(page, "`"+c.key+"`") {
			t.Errorf("the page does not say that all servers need the same %s", c.key)
		}
	}
	env := func(name string) (string, bool) {
		if name == "HOME" {
			return "/home/op", true
		}
		return "secret-" + name, true
	}
	examples := 0
	for i, part := range strings.Split(page, "```yaml\n")[1:] {
		text, _, _ := strings.Cut(part, "```")
		if !strings.HasPrefix(text, "cluster:") {
			// A section, or keys of one: put where they belong.
			continue
		}
		examples++
		if _, _, err := Parse("install.yaml", []byte(text), env); err != nil {
			t.Errorf("example %d: %v\n%s", i, err, text)
		}
	}
	if examples < 5 {
		t.Errorf("only %d whole examples", examples)
	}
	design, err := os.ReadFile("testdata/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page, strings.TrimSpace(string(design))) {
		t.Error("the page does not have testdata/example.yaml")
	}
}
