package provenance

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/toolbin"
)

var update = flag.Bool("update", false, "write the golden files")

func statementOf(t *testing.T, path string) []byte {
	t.Helper()
	smallbundle.Write(t, path, smallbundle.Bundle{Components: []smallbundle.Component{
		{
			Name: "k3s", Version: "v1.36.4+k3s1", Files: []smallbundle.File{{Name: "k3s", Platform: "linux/amd64", Content: "k3s"}},
			Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3.10", Platforms: []smallbundle.Platform{
				{Name: "linux/amd64", Layers: [][]byte{smallbundle.Layer(t, map[string]string{"pause": "pause"})}},
			}}},
		},
		{Name: "cilium", Version: "1.20.0", Charts: []smallbundle.File{{Name: "cilium", Content: "chart"}}},
	}})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	text, err := Statement(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestStatement(t *testing.T) {
	var got bytes.Buffer
	if err := json.Indent(&got, statementOf(t, filepath.Join(t.TempDir(), "b.tar")), "", "  "); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "statement.golden")
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Error(diff)
	}
}

// TestCosign has cosign verify both kinds of statements, and refuse them for another
// bundle, another key and another type.
func TestCosign(t *testing.T) {
	cosign := toolbin.Build(t, "cosign")
	dir := t.TempDir()
	path := filepath.Join(dir, "b.tar")
	text := statementOf(t, path)
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	bom, err := attestation.Make(r.Digest(), attestation.CycloneDX, json.RawMessage(`{"bomFormat":"CycloneDX","specVersion":"1.6"}`))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	signer := newSigner(t, write, "boxlift.pub")
	newSigner(t, write, "other.pub")
	for name, statement := range map[string][]byte{"provenance.json": text, "sbom.json": bom} {
		signed, err := signer.Attest(statement)
		if err != nil {
			t.Fatal(err)
		}
		write(name, signed)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-xf", path, "index.json").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	write("other.json", []byte("{}"))
	tests := []struct {
		name, key, kind, bundle, blob string
		accepted                      bool
	}{
		{"provenance", "boxlift.pub", "slsaprovenance1", "provenance.json", "index.json", true},
		{"sbom", "boxlift.pub", "cyclonedx", "sbom.json", "index.json", true},
		{"another bundle", "boxlift.pub", "slsaprovenance1", "provenance.json", "other.json", false},
		{"another key", "other.pub", "slsaprovenance1", "provenance.json", "index.json", false},
		{"another type", "boxlift.pub", "cyclonedx", "provenance.json", "index.json", false},
	}
	for _, test := range tests {
		c := exec.CommandContext(t.Context(), cosign, "verify-blob-attestation", "--key", test.key,
			"--insecure-ignore-tlog", "--type", test.kind, "--bundle", test.bundle, test.blob)
		c.Dir = dir
		// Whatever it would fetch, it does not get.
		c.Env = append(os.Environ(), "HOME="+dir, "HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1",
			"NO_PROXY=")
		if out, err := c.CombinedOutput(); (err == nil) != test.accepted {
			t.Errorf("%s: %v\n%s", test.name, err, out)
		}
	}
}

func newSigner(t *testing.T, write func(string, []byte), name string) *signature.Signer {
	t.Helper()
	private, public, err := signature.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	write(name, public)
	signer, err := signature.LoadSigner(private, nil)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}
