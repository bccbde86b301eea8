package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install"
)

// Whoever adopts a cluster of somebody else's is told what stays, and what install.yaml asks for in vain.
func TestPrintForeignAdoption(t *testing.T) {
	const kept = "boxlift did not set up k3s on 10.0.0.11, 10.0.0.12: it is adopted, and stays as it is; boxlift install --dry-run shows what else would change\n"
	for _, test := range []struct {
		adoption install.Adoption
		want     string
	}{
		{install.Adoption{}, ""},
		{install.Adoption{Adopted: []string{"10.0.0.11", "10.0.0.12"}}, kept},
		{
			install.Adoption{Adopted: []string{"10.0.0.11", "10.0.0.12"}, Differences: map[string][]string{"10.0.0.12": {"one", "two"}, "10.0.0.11": {"three"}}},
			kept + "warning: 10.0.0.11: three\nwarning: 10.0.0.12: one\nwarning: 10.0.0.12: two\n",
		},
	} {
		var b strings.Builder
		test.adoption.New, test.adoption.Cilium, test.adoption.Cluster = true, "1.18.12", "lan-1"
		if err := printAdoption(&b, &test.adoption, "table"); err != nil {
			t.Fatal(err)
		}
		_, got, ok := strings.Cut(b.String(), "cluster lan-1 is recorded as release 0, of bundle \n")
		if diff := cmp.Diff(test.want, got); diff != "" || !ok {
			t.Errorf("%s\n%s", &b, diff)
		}
	}
}
