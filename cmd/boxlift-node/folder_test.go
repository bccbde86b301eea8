//go:build linux

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What save-folder prints, restore-folder brings back, and nothing else.
func TestFolder(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "storage", "pvc")
	if err := os.WriteFile(filepath.Join(from, "records.jsonl"), []byte("the first record"), 0o600); err != nil {
		t.Fatal(err)
	}
	var saved, said, failed bytes.Buffer
	if code := run(t.Context(), []string{"save-folder", "-dir", from}, strings.NewReader(""), &saved, &failed); code != exitOK {
		t.Fatalf("%d: %s", code, &failed)
	}
	sum := sha256.Sum256(saved.Bytes())
	digest := hex.EncodeToString(sum[:])
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"restore-folder", "-dir", to, "-sha256", strings.Repeat("0", 64)}, exitFailed, "its sha256 is"},
		{[]string{"restore-folder", "-dir", "/", "-sha256", digest}, exitFailed, "expected -dir"},
		{[]string{"restore-folder", "-sha256", digest}, exitFailed, "expected -dir"},
		{[]string{"save-folder", "-dir", "volume"}, exitFailed, "expected -dir"},
		{[]string{"save-folder", "-dir", filepath.Join(to, "none")}, exitFailed, "no such file"},
		{[]string{"restore-folder", "-dir", to, "-sha256", digest}, exitOK, `{"entries":2,"bytes":16}`},
	} {
		said.Reset()
		if code := run(t.Context(), test.args, bytes.NewReader(saved.Bytes()), &said, &said); code != test.code || !strings.Contains(said.String(), test.want) {
			t.Errorf("%q: %d, %s", test.args, code, &said)
		}
	}
	if content, err := os.ReadFile(filepath.Join(to, "records.jsonl")); err != nil || string(content) != "the first record" {
		t.Errorf("%q, %v", content, err)
	}
}
