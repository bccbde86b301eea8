package ciliumvalues

import (
	"os"
	"strings"
	"testing"
)

// The page of install.yaml names all values that boxlift sets itself.
func TestOverridesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/install-yaml.md")
	if err != nil {
		t.Fatal(err)
	}
	for key := range overrides {
		if !strings.Contains(string(page), "`"+key+"`") {
			t.Errorf("the page does not say that boxlift sets %s", key)
		}
	}
}
