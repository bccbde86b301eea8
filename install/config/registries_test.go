package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

func TestRenderRegistries(t *testing.T) {
	cfg := mustParse(t, "f", mustRead(t, "testdata/valid/registries.yaml"))
	got, err := cfg.Registries.Render()
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "testdata/registries.golden", string(got))
	for range 20 { // maps have another order each time
		again, err := cfg.Registries.Render()
		if err != nil || string(again) != string(got) {
			t.Fatalf("rendered again: %v\n%s", err, again)
		}
	}
	// What k3s reads must be what was written, secrets in their places.
	var read struct {
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
	if err := yaml.Unmarshal(got, &read); err != nil {
		t.Fatal(err)
	}
	found := []any{
		len(read.Mirrors), read.Mirrors["docker.io"].Rewrite["^x/(?P<name>.*)$"],
		read.Configs["registry.lan:5000"].Auth.Password,
		read.Configs["word.lan"].Auth.Auth, read.Configs["*"].Auth.IdentityToken,
	}
	if diff := cmp.Diff([]any{4, "y/${name}", "from the environment", "dXNlcjpwYXNzd29yZA==", "a token"},
		found); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}
