// Package keys has what tests of keys that lie elsewhere need: a software token, and a server that stands in for Vault.
package keys

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

// PIN is that of the owner of a token.
const PIN = "a pin: 1234"

// Token is a software token of SoftHSM.
type Token struct {
	// Module is the library that reaches it.
	Module string
	// Config is what SOFTHSM2_CONF has to be.
	Config string
}

// NewToken makes a token in a folder of its own, called "release", whose PIN is [PIN]. Where SoftHSM is not there and
// cannot be installed, the test is left out.
func NewToken(t testing.TB) *Token {
	t.Helper()
	util := debian.Program{Name: "softhsm2-util", Package: "softhsm2"}
	need.Programs(t, util)
	token := &Token{Config: filepath.Join(t.TempDir(), "softhsm2.conf")}
	for _, path := range []string{"/usr/lib/softhsm/libsofthsm2.so", "/usr/local/lib/softhsm/libsofthsm2.so"} {
		if _, err := os.Stat(path); err == nil {
			token.Module = path
			break
		}
	}
	if token.Module == "" {
		need.LeaveOut(t, "SoftHSM's library is not where Debian puts it")
	}
	folder := filepath.Join(filepath.Dir(token.Config), "tokens")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	config := "directories.tokendir = " + folder + "\nobjectstore.backend = file\nlog.level = ERROR\n"
	if err := os.WriteFile(token.Config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	token.Run(t, util.Find(), "--init-token", "--free", "--label", "release", "--so-pin", "of the officer", "--pin", PIN)
	return token
}

// Run runs a program that uses the token.
func (k *Token) Run(t testing.TB, name string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Env = append(os.Environ(), "SOFTHSM2_CONF="+k.Config)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// URI names a key in the token.
func (k *Token) URI(object string) string {
	return "pkcs11:token=release;object=" + object + "?module-path=" + k.Module
}
