package main

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install"
)

// Whoever adopts a cluster of somebody else's is told what that is good for.
func TestPrintForeignAdoption(t *testing.T) {
	for _, test := range []struct {
		foreign []string
		want    string
	}{
		{nil, ""},
		{[]string{"10.0.0.11", "10.0.0.12"}, "boxlift did not set up k3s on 10.0.0.11, 10.0.0.12: "},
	} {
		var b strings.Builder
		if err := printAdoption(&b, &install.Adoption{Cluster: "lan-1", New: true, Foreign: test.foreign}, "table"); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); strings.Contains(got, "warning: ") != (test.want != "") || !strings.Contains(got, test.want) {
			t.Errorf("%v: %s", test.foreign, got)
		}
	}
}
