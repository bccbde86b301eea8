package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/liteboxd/boxlift/test/keys"
	"github.com/liteboxd/boxlift/test/toolbin"
)

// noting is a program in the place of boxlift-keys that notes what it is given, but for the variable of the
// test itself, and hands on to it.
const noting = `#!/bin/sh
{ printf '%s\n' "$@"; env -u PIN; } >> "$SEEN"
exec "$PROGRAM" "$@"
`

// TestKeysElsewhere runs the scripts of keys in a token and in a key service. They have these variables besides those
// of [TestScripts]: TOKEN ends the URI of a key in a software token, whose PIN is PIN; VAULT_ADDR and VAULT_TOKEN are
// of a key service; SEEN is the file where boxlift-keys' arguments and environment are noted. BOXLIFT is boxlift, for a
// PATH without programs, which NOWHERE is.
func TestKeysElsewhere(t *testing.T) {
	folder := toolbin.BuildOwn(t, "cmd/boxlift-keys")
	token, vault := keys.NewToken(t), keys.NewVault(t)
	runScripts(t, "testdata/keys", func(e *testscript.Env) error {
		first := filepath.Join(e.WorkDir, ".first")
		if err := os.Mkdir(first, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(first, "boxlift-keys"), []byte(noting), 0o700); err != nil {
			return err
		}
		program, err := exec.LookPath("boxlift")
		if err != nil {
			return err
		}
		e.Setenv("PATH", first+":"+e.Getenv("PATH"))
		e.Setenv("SEEN", filepath.Join(e.WorkDir, "seen"))
		e.Setenv("PROGRAM", filepath.Join(folder, "boxlift-keys"))
		e.Setenv("TOKEN", "?module-path="+token.Module)
		e.Setenv("PIN", keys.PIN)
		e.Setenv("SOFTHSM2_CONF", token.Config)
		e.Setenv("VAULT_ADDR", vault.Address)
		e.Setenv("VAULT_TOKEN", vault.Secret)
		e.Setenv("NOWHERE", first+"/none")
		e.Setenv("BOXLIFT", program)
		return nil
	})
}
