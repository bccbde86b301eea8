package signature

import (
	"bytes"
	"context"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/toolbin"
)

const interopPassword = "a passphrase"

// program runs a program in a folder of its own, with every way to the outside leading to
// a proxy that fails the test.
type program struct {
	path string
	dir  string
	env  []string
}

func newProgram(t *testing.T, path string) *program {
	t.Helper()
	trap := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("%s asked for %s", filepath.Base(path), r.RequestURI)
		http.Error(w, "there is no network here", http.StatusForbidden)
	}))
	t.Cleanup(trap.Close)
	dir := t.TempDir()
	return &program{path: path, dir: dir, env: append(os.Environ(),
		"HOME="+dir, "COSIGN_PASSWORD="+interopPassword,
		"HTTP_PROXY="+trap.URL, "HTTPS_PROXY="+trap.URL, "NO_PROXY=")}
}

// run returns what the program wrote to both outputs.
func (p *program) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Dir = p.dir
	cmd.Env = p.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (p *program) mustRun(t *testing.T, args ...string) {
	t.Helper()
	if out, err := p.run(t, args...); err != nil {
		t.Fatalf("%s %q: %v\n%s", filepath.Base(p.path), args, err, out)
	}
}

func (p *program) write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *program) read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestCosign uses the keys and signatures of each side with the other.
func TestCosign(t *testing.T) {
	t.Parallel()
	path := toolbin.Build(t, "cosign")
	payload := []byte(`{"schemaVersion":2}` + "\n")

	keys := map[string]func(t *testing.T, c *program){
		"key made by cosign": func(t *testing.T, c *program) {
			c.mustRun(t, "generate-key-pair")
		},
		"key made by boxlift": func(t *testing.T, c *program) {
			private, public, err := GenerateKey([]byte(interopPassword))
			if err != nil {
				t.Fatal(err)
			}
			c.write(t, "cosign.key", private)
			c.write(t, "cosign.pub", public)
		},
	}
	for name, makeKey := range keys {
		t.Run(name, func(t *testing.T) {
			c := newProgram(t, path)
			makeKey(t, c)
			c.write(t, "index.json", payload)
			signer, err := LoadSigner(c.read(t, "cosign.key"), []byte(interopPassword))
			if err != nil {
				t.Fatal(err)
			}
			pub, err := ParsePublicKey(c.read(t, "cosign.pub"))
			if err != nil {
				t.Fatal(err)
			}

			ours := mustSign(t, signer, payload)
			c.write(t, "index.json.sigstore.json", ours.Bundle)
			c.write(t, "index.json.sig", ours.Base64)
			byBundle := strings.Fields("verify-blob --key cosign.pub --insecure-ignore-tlog --bundle index.json.sigstore.json index.json")
			bySig := strings.Fields("verify-blob --key cosign.pub --insecure-ignore-tlog --signature index.json.sig index.json")
			c.mustRun(t, byBundle...)
			c.mustRun(t, bySig...)

			for _, form := range []string{"--bundle theirs.json", "--new-bundle-format=false --output-signature theirs.sig"} {
				c.mustRun(t, strings.Fields("sign-blob --yes --key cosign.key --tlog-upload=false --use-signing-config=false "+form+" index.json")...)
			}
			if err := Verify(pub, payload, c.read(t, "theirs.json"), c.read(t, "theirs.sig")); err != nil {
				t.Errorf("what cosign signed: %v", err)
			}

			c.write(t, "index.json", bytes.Replace(payload, []byte("2"), []byte("3"), 1))
			for _, args := range [][]string{byBundle, bySig} {
				if out, err := c.run(t, args...); err == nil {
					t.Errorf("cosign %q accepted another payload:\n%s", args, out)
				}
			}
		})
	}
}

// TestOpenSSL verifies the base64 form with nothing but openssl.
func TestOpenSSL(t *testing.T) {
	openssl := debian.Program{Name: "openssl", Package: "openssl"}
	need.Programs(t, openssl)
	o := newProgram(t, openssl.Find())
	s := newSigner(t)
	sig := mustSign(t, s, []byte("payload"))
	o.write(t, "payload", []byte("payload"))
	o.write(t, "other", []byte("other payload"))
	o.write(t, "key.pub", publicPEM(t, privateKey(s).Public()))
	der := make([]byte, base64.StdEncoding.DecodedLen(len(sig.Base64)))
	n, err := base64.StdEncoding.Decode(der, sig.Base64)
	if err != nil {
		t.Fatal(err)
	}
	o.write(t, "payload.der", der[:n])
	o.mustRun(t, "dgst", "-sha256", "-verify", "key.pub", "-signature", "payload.der", "payload")
	if out, err := o.run(t, "dgst", "-sha256", "-verify", "key.pub", "-signature", "payload.der", "other"); err == nil {
		t.Errorf("openssl accepted another payload:\n%s", out)
	}
}
