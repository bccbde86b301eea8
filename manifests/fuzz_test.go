package manifests_test

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/liteboxd/boxlift/manifests"
)

// FuzzUnpack: what unpacks is small, has both bases, and packs again.
func FuzzUnpack(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, err := manifests.Unpack(data)
		if err != nil {
			if !errors.Is(err, manifests.ErrInvalid) {
				t.Errorf("%v is not ErrInvalid", err)
			}
			return
		}
		total := 0
		for name, content := range contents(t, tree) {
			if total += len(content); !fs.ValidPath(name) {
				t.Errorf("file %q", name)
			}
		}
		if total > len(data) {
			t.Errorf("%d bytes out of %d", total, len(data))
		}
		packed, err := manifests.Pack(tree)
		if err != nil {
			t.Fatal(err)
		}
		again, err := manifests.Unpack(packed)
		if err != nil {
			t.Fatal(err)
		}
		repacked, err := manifests.Pack(again)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(packed, repacked) {
			t.Error("packed again it differs")
		}
	})
}

// fine fails on an error that blames nobody or everybody, or that a terminal cannot show.
func fine(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, manifests.ErrSite) || errors.Is(err, manifests.ErrInvalid) {
		t.Errorf("%v does not blame the folder alone", err)
	}
	if strings.ContainsFunc(err.Error(), unicode.IsControl) {
		t.Errorf("%q has control characters", err)
	}
}

// FuzzValues: values that are taken reach the ConfigMap as they are written, and no others.
func FuzzValues(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := manifests.ParseValues(data)
		if err != nil {
			if strings.ContainsFunc(err.Error(), unicode.IsControl) || !strings.HasPrefix(err.Error(), "values.env") {
				t.Errorf("%q", err)
			}
			return
		}
		for key, value := range values {
			if !bytes.Contains(data, []byte(key)) || !bytes.Contains(data, []byte(value)) {
				t.Errorf("%s=%s is not in the file", key, value)
			}
			switch key {
			case "SANDBOX_TOKEN_ENCRYPTION_KEY", "ADMIN_PASSWORD", "ADMIN_INITIAL_PASSWORD", "SANDBOX_NAMESPACE", "CONTROL_NAMESPACE":
				t.Errorf("%s was taken", key)
			}
		}
	})
}

// FuzzSite: a folder is refused with a reason, or what is rendered keeps its promises. The
// input is a txtar archive of the folder.
func FuzzSite(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 16<<10 {
			t.Skip("more than a mutation needs")
		}
		files := folder(string(txtar.Format(txtar.Parse(data))))
		for name := range files {
			if !fs.ValidPath(name) {
				t.Skip("no folder has such a file")
			}
		}
		r, err := try(files, nil)
		if err != nil {
			fine(t, err)
			return
		}
		seen := map[string]bool{}
		for _, object := range r.Objects() {
			name := manifests.Name(object)
			id := object.GroupVersionKind().Group + name
			if object.GetName() == "" || object.GetAPIVersion() == "" || seen[id] {
				t.Errorf("%q has no name, no API, or is there twice", name)
			}
			seen[id] = true
			if name[:min(len(name), 7)] == "Secret " && object.GetAPIVersion() == "v1" {
				t.Errorf("%s was rendered", name)
			}
		}
		for _, use := range r.Images() {
			if strings.HasPrefix(use.Image, "boxlift.invalid/") {
				t.Errorf("%v", use)
			}
		}
		if !bytes.Contains(r.YAML(), []byte("SANDBOX_NAMESPACE")) {
			t.Error("the programs have no environment")
		}
		again, err := try(files, nil)
		if err != nil || !bytes.Equal(again.YAML(), r.YAML()) {
			t.Errorf("rendered again it differs: %v", err)
		}
	})
}

// FuzzBuild: a kustomize folder is refused with a reason, or its objects are there once, and the
// same again. The input is a txtar archive of the folder.
func FuzzBuild(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 16<<10 {
			t.Skip("more than a mutation needs")
		}
		files := folder(string(txtar.Format(txtar.Parse(data))))
		for name := range files {
			if !fs.ValidPath(name) {
				t.Skip("no folder has such a file")
			}
		}
		objects, err := manifests.Build(files, ".")
		if err != nil {
			if !errors.Is(err, manifests.ErrFolder) || strings.ContainsFunc(err.Error(), unicode.IsControl) {
				t.Errorf("%q", err)
			}
			return
		}
		uses := append(manifests.ImagesOf(objects), manifests.PossibleImagesOf(objects)...)
		again, err := manifests.Build(files, ".")
		if err != nil {
			t.Fatalf("built again: %v", err)
		}
		if diff := cmp.Diff(objects, again) + cmp.Diff(uses, append(manifests.ImagesOf(again), manifests.PossibleImagesOf(again)...)); diff != "" {
			t.Errorf("built again it differs: %s", diff)
		}
	})
}
