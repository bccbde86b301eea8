package carried

import (
	"archive/zip"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// program is a file with a zip file at its end, which carries texts by name.
func program(t *testing.T, carried map[string]string) string {
	t.Helper()
	var out bytes.Buffer
	out.WriteString("#!/bin/sh\n")
	archive := zip.NewWriter(&out)
	for name, text := range carried {
		entry, err := archive.Create(name)
		if err == nil {
			_, err = entry.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "k3s")
	if err := errors.Join(archive.Close(), os.WriteFile(path, out.Bytes(), 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnpack(t *testing.T) {
	dir := Bin(t.TempDir())
	path := filepath.Join(dir, "kine")
	unpack := func(text string) os.FileInfo {
		t.Helper()
		if err := Unpack(program(t, map[string]string{"kine": text, "containerd": "more"}), dir, "kine"); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Fatalf("got %q, %v, expected %q", got, err, text)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o755 {
			t.Errorf("its mode is %s", info.Mode())
		}
		return info
	}
	first := unpack("one")
	if again := unpack("one"); !os.SameFile(first, again) {
		t.Error("what was there already was written again")
	}
	if next := unpack("two"); os.SameFile(first, next) {
		t.Error("a file that may be running was written over")
	}
	if err := os.Truncate(path, 1); err != nil {
		t.Fatal(err)
	}
	unpack("two")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v, expected kine alone", entries, err)
	}
	if err := Unpack(program(t, nil), dir, "kine"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a program that carries nothing: %v", err)
	}
}
