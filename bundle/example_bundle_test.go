package bundle_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

// TestExampleBundle checks that the bundle of the examples is what its description makes. With
// -update it is made anew, signed with a key that nobody keeps.
func TestExampleBundle(t *testing.T) {
	example := smallbundle.Bundle{
		Validity: lock.Validity{Serial: 3},
		Components: []smallbundle.Component{{
			Name: "tools", Version: "v1",
			Files: []smallbundle.File{{Name: "hello.sh", Content: "#!/bin/sh\necho hello\n"}},
			Images: []smallbundle.Image{{Ref: "docker.io/example/hello:v1", Platforms: []smallbundle.Platform{
				{Name: "linux/amd64", Layers: [][]byte{[]byte("hello on amd64")}},
				{Name: "linux/arm64", Layers: [][]byte{[]byte("hello on arm64")}},
			}}},
		}},
	}
	const path = "testdata/example.tar"
	if flag.Lookup("update").Value.String() == "true" {
		private, public, err := signature.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		signed := example
		if signed.Signer, err = signature.LoadSigner(private, nil); err != nil {
			t.Fatal(err)
		}
		smallbundle.Write(t, path, signed)
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/example.pub", public, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	again := filepath.Join(t.TempDir(), "again.tar")
	smallbundle.Write(t, again, example)
	if is, made := digestOf(t, path), digestOf(t, again); is != made {
		t.Errorf("%s has the digest %s, its description makes %s", path, is, made)
	}
}

func digestOf(t *testing.T, path string) string {
	t.Helper()
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return r.Digest().String()
}
