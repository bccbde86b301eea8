package preflight

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The page lists the catalogue.
func TestDocs(t *testing.T) {
	const name = "../../docs/preflight.md"
	const head = "| check | looks at | findings |\n|---|---|---|\n"
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), head)
	if !found {
		t.Fatalf("%s has no table that begins with %q", name, head)
	}
	rows, after, _ := strings.Cut(rest, "\n\n")
	var want strings.Builder
	for _, c := range Catalogue() {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", c.ID, c.Title, c.Doc)
	}
	if *update {
		if err := os.WriteFile(name, []byte(before+head+want.String()+"\n"+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want.String(), rows+"\n"); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
}
