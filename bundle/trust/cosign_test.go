package trust

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/toolbin"
)

// TestCosign has cosign verify each signature of a version with its key.
func TestCosign(t *testing.T) {
	t.Parallel()
	cosign := toolbin.Build(t, "cosign")
	dir := t.TempDir()
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	by := []string{"ann", "cem", "bob"}
	content, bundles := again(t, next(t, newFile(t, first(t), "ann", "bob"), revoke(id("eve")), by...)).Parts()
	write("content", content)
	write("other", append(content, '\n'))
	for i, name := range by {
		public, err := signer(name).PublicKey().PEM()
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pub", public)
		write(name+".sigstore.json", bundles[i])
		for file, good := range map[string]bool{"content": true, "other": false} {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			cmd := exec.CommandContext(ctx, cosign, "verify-blob", "--key", name+".pub", "--insecure-ignore-tlog",
				"--bundle", name+".sigstore.json", file)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir)
			out, err := cmd.CombinedOutput()
			cancel()
			if (err == nil) != good {
				t.Errorf("%s of %s: %v\n%s", file, name, err, out)
			}
		}
	}
}
