package helm

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/kube"
)

var update = flag.Bool("update", false, "write golden files anew")

func TestUnifiedDiff(t *testing.T) {
	const is = `apiVersion: v1
kind: %KIND
metadata:
  name: login
  namespace: sys
  uid: 1-2-3
  resourceVersion: "7"
  generation: 2
  creationTimestamp: "2026-01-01T00:00:00Z"
  managedFields: [{manager: x}]
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "s3cret", a: b}
data: {gone: s3cret-1, same: s3cret-2, changed: s3cret-3}
status: {phase: x}
`
	const want = `apiVersion: v1
kind: %KIND
metadata: {name: login, namespace: sys, annotations: {a: "c\e[2Jd"}}
data: {same: s3cret-2, changed: s3cret-4, new: s3cret-5}
stringData: [s3cret-6]
`
	var all strings.Builder
	for _, kind := range []string{"Secret", "ConfigMap"} {
		before, err := decodeManifest(strings.ReplaceAll(is, "%KIND", kind))
		if err != nil {
			t.Fatal(err)
		}
		after, err := decodeManifest(strings.ReplaceAll(want, "%KIND", kind))
		if err != nil {
			t.Fatal(err)
		}
		o := kube.Object{Kind: kind, Namespace: "sys", Name: "login"}
		for _, text := range []func() (string, error){
			func() (string, error) { return unifiedDiff(o, before[0], after[0]) },
			func() (string, error) { return unifiedDiff(o, nil, after[0]) },
			func() (string, error) { return unifiedDiff(o, before[0], nil) },
		} {
			text, err := text()
			if err != nil {
				t.Fatal(err)
			}
			if kind == "Secret" && strings.Contains(text, "s3cret") {
				t.Errorf("a Secret's data is shown:\n%s", text)
			}
			all.WriteString(text)
		}
	}
	golden(t, "diff.golden", all.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it anew):\n%s", file, diff)
	}
}
