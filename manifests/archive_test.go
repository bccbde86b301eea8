package manifests_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/manifests"
)

func contents(t *testing.T, tree fs.FS) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(tree, name)
		all[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPackUnpack(t *testing.T) {
	packed, err := manifests.Pack(manifests.Embedded())
	if err != nil {
		t.Fatal(err)
	}
	again, err := manifests.Pack(manifests.Embedded())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(packed, again) {
		t.Error("two packs of the same files differ")
	}
	unpacked, err := manifests.Unpack(packed)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(contents(t, manifests.Embedded()), contents(t, unpacked)); diff != "" {
		t.Errorf("(-packed +unpacked):\n%s", diff)
	}
	repacked, err := manifests.Pack(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(packed, repacked) {
		t.Error("what was unpacked packs to other bytes")
	}
}

// entry is one of a tar that somebody else has made.
type entry struct {
	name string
	kind byte
	data string
}

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Typeflag: e.kind, Size: int64(len(e.data)), Mode: 0o644, Linkname: "x"}
		if e.kind == tar.TypeXGlobalHeader {
			header = &tar.Header{Name: e.name, Typeflag: e.kind, PAXRecords: map[string]string{"comment": e.data}}
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if e.kind == tar.TypeXGlobalHeader {
			continue
		}
		if _, err := w.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestUnpackErrors(t *testing.T) {
	system, sandbox := entry{"system/kustomization.yaml", tar.TypeReg, "{}"}, entry{"sandbox/kustomization.yaml", tar.TypeReg, "{}"}
	many := []entry{system, sandbox}
	for i := range 999 {
		many = append(many, entry{fmt.Sprintf("system/%d", i), tar.TypeReg, ""})
	}
	large := strings.Repeat("x", 1<<20)
	var total []entry
	for i := range 9 {
		total = append(total, entry{fmt.Sprintf("system/%d", i), tar.TypeReg, large})
	}
	good := archive(t, system, sandbox)
	if _, err := manifests.Unpack(good); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":        {nil, "0 bytes"},
		"empty tar":      {archive(t), "there is no system/kustomization.yaml"},
		"half":           {archive(t, system), "there is no sandbox/kustomization.yaml"},
		"cut":            {good[:len(good)-512], "cut short"},
		"cut in a file":  {good[:1024+512+1], "unexpected EOF"},
		"more after it":  {append(bytes.Clone(good), good...), "something was added"},
		"no tar":         {bytes.Repeat([]byte("x"), 1024), "invalid tar header"},
		"outside":        {archive(t, system, sandbox, entry{"../x", tar.TypeReg, ""}), `entry "../x" is not a clean relative path`},
		"absolute":       {archive(t, system, sandbox, entry{"/x", tar.TypeReg, ""}), "not a clean relative path"},
		"link":           {archive(t, system, sandbox, entry{"x", tar.TypeSymlink, ""}), `entry "x" is not a regular file`},
		"folder":         {archive(t, system, sandbox, entry{"x/", tar.TypeDir, ""}), "not a regular file"},
		"twice":          {archive(t, system, sandbox, system), "is there twice"},
		"twice, empty":   {archive(t, system, sandbox, entry{"x", tar.TypeReg, ""}, entry{"x", tar.TypeReg, ""}), "is there twice"},
		"file as folder": {archive(t, system, sandbox, entry{"x", tar.TypeReg, ""}, entry{"x/y", tar.TypeReg, ""}), "is a file and a folder"},
		"many":           {archive(t, many...), "goes over the bounds"},
		"large":          {archive(t, entry{"x", tar.TypeReg, large + "x"}), "goes over the bounds"},
		"total":          {archive(t, total...), "goes over the bounds"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := manifests.Unpack(c.data)
			if !errors.Is(err, manifests.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestUnpackFolderOfOthers takes tars as GNU tar and git archive make them, and refuses what no folder is.
func TestUnpackFolderOfOthers(t *testing.T) {
	top, more := entry{"./kustomization.yaml", tar.TypeReg, "{}"}, entry{"./base/a.yaml", tar.TypeReg, "a: 1"}
	folders := []entry{{"./", tar.TypeDir, ""}, {"./base/", tar.TypeDir, ""}}
	plain := archive(t, append(slices.Clone(folders), top, more)...)
	padded := append(bytes.Clone(plain), make([]byte, 10240-len(plain)%10240)...)
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"with folders":     {plain, ""},
		"padded":           {padded, ""},
		"git archive":      {archive(t, append([]entry{{"pax_global_header", tar.TypeXGlobalHeader, "a commit"}}, top, more)...), ""},
		"as Pack makes it": {archive(t, entry{"kustomization.yaml", tar.TypeReg, "{}"}, entry{"base/a.yaml", tar.TypeReg, "a: 1"}), ""},
		"something behind": {append(bytes.Clone(padded), 1), "something was added"},
		"another behind":   {append(bytes.Clone(plain), plain...), "something was added"},
		"cut":              {plain[:len(plain)-512], "cut short"},
		"cut off its end":  {plain[:len(plain)-1024], "cut short"},
		"no kustomization": {archive(t, more), "there is no kustomization.yaml"},
		"twice":            {archive(t, top, entry{"kustomization.yaml", tar.TypeReg, "{}"}), "is there twice"},
		"a link":           {archive(t, top, entry{"x", tar.TypeSymlink, ""}), "not a regular file"},
		"outside":          {archive(t, top, entry{"../x", tar.TypeReg, ""}), "not a clean relative path"},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := manifests.UnpackFolder(c.data)
			if c.want != "" {
				if !errors.Is(err, manifests.ErrInvalid) || !strings.Contains(err.Error(), c.want) ||
					!strings.Contains(err.Error(), "name the folder itself in versions.lock") {
					t.Errorf("got %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for file, want := range map[string]string{"kustomization.yaml": "{}", "base/a.yaml": "a: 1"} {
				if got, err := fs.ReadFile(files, file); err != nil || string(got) != want {
					t.Errorf("%s has %q, %v", file, got, err)
				}
			}
		})
	}
}

func TestPackRefusesLinks(t *testing.T) {
	_, err := manifests.Pack(fstest.MapFS{"system/x": {Mode: fs.ModeSymlink, Data: []byte("y")}})
	if err == nil || !strings.Contains(err.Error(), "links are not followed") {
		t.Errorf("got %v", err)
	}
}
