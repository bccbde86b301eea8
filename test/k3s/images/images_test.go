package images

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.tar", "a.tar.zst", "c.tgz", "d.tar.part", ".cache.json", "e.zst", "f.txt", "g.TAR", "sub/a.tar.gz", "target/x.bin"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("target/x.bin", dir+"/link.tar"), os.Symlink("nothing", dir+"/broken.tar"), os.Mkdir(dir+"/folder.tar", 0o755)); err != nil {
		t.Fatal(err)
	}
	got, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{"a.tar.zst", "b.tar", "c.tgz", "f.txt", "link.tar", "sub/a.tar.gz"} {
		want = append(want, filepath.Join(dir, name))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, err := Find(dir + "/none"); err != nil || len(got) != 0 {
		t.Errorf("a folder that is not there has %v, %v", got, err)
	}
}

func TestOpen(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 5<<20)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := w.Write(text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	pack := func(window int) []byte {
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out, zstd.WithWindowSize(window))
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(text)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	for _, test := range []struct {
		name string
		data []byte
		bad  bool
	}{
		{"a.tar", text, false}, {"a.tar.gz", zipped.Bytes(), false}, {"a.tgz", zipped.Bytes(), false},
		{"a.tar.zst", pack(32 << 20), false}, {"a.tzst", pack(64 << 20), true},
		{"a.tar.gz", text, true}, {"a.tar.lz4", text, true}, {"a.zip", text, true},
	} {
		r, err := Open(test.name, bytes.NewReader(test.data))
		var got []byte
		if err == nil {
			got, err = io.ReadAll(r)
		}
		if (err != nil) != test.bad || !test.bad && !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v", test.name, len(got), err)
		}
	}
}

func TestNames(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, test := range []struct {
		name       string
		registries []string
		want       []string
	}{
		{"docker.io/rancher/mirrored-pause:3.6", nil, []string{"docker.io/rancher/mirrored-pause@" + digest}},
		{"quay.io/cilium/cilium:v1", []string{"r.lan:5000"},
			[]string{"quay.io/cilium/cilium@" + digest, "r.lan:5000/cilium/cilium:v1", "r.lan:5000/cilium/cilium@" + digest}},
		{"quay.io/cilium/cilium@" + digest, nil, nil},
		{"v1", nil, nil},
		{"Not A Name:1", nil, nil},
	} {
		got, err := Names(test.name, digest, test.registries)
		if (err != nil) != (test.want == nil) {
			t.Errorf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func TestCache(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.tar")
	set := func(text string, at time.Time) os.FileInfo {
		t.Helper()
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, at, at)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	info := set("12", noon)
	off, err := ReadCache(dir)
	if err != nil || off != nil || off.Has(file, info) || off.Add(file, info) != nil {
		t.Errorf("a cache without its file is %v, %v", off, err)
	}
	if err := os.WriteFile(filepath.Join(dir, CacheName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	on, err := ReadCache(dir)
	if err != nil || on.Has(file, info) {
		t.Fatalf("an empty cache has %v, %v", on, err)
	}
	if err := on.Add(file, info); err != nil {
		t.Fatal(err)
	}
	again, err := ReadCache(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, text string
		at         time.Time
		want       bool
	}{
		{"unchanged", "12", noon, true},
		{"same size, later", "34", noon.Add(time.Hour), true},
		{"other size, earlier", "123", noon.Add(-time.Hour), true},
		{"other size, later", "123", noon.Add(time.Hour), false},
	} {
		if got := again.Has(file, set(test.text, test.at)); got != test.want {
			t.Errorf("%s: skipped is %t", test.name, got)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, CacheName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCache(dir); err == nil {
		t.Error("half a cache is no error")
	}
}
