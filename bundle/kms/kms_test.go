package kms

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/common"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/keys"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/toolbin"
)

func TestIsURI(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]bool{
		"pkcs11:object=a": true, "hashivault://a": true, "my-hsm://a": true, "boxlift.key": false, "/keys/a": false,
		"": false, "HTTP://a": false, "a/b://c": false, "://": false, "hashivault:a": false, `C:\boxlift.key`: false,
	} {
		if got := IsURI(word); got != want {
			t.Errorf("%q: %v", word, got)
		}
	}
}

func TestIsP256(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"ecdsa-p256": true, "ecdsa-p256-sha256": true, "ECC_NIST_P256": true, "ES256": true, "ecdsa-p384": false,
		"rsa-pkcs1v15-2560": false, "ECC_SECG_P256K1": false, "ES256K": false, "RS256": false,
	} {
		if got := isP256.MatchString(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// withPlugin puts a shell script into PATH as a plugin of others, and opens a key of its.
func withPlugin(t *testing.T, script string) *Key {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "sigstore-kms-test"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	k, err := Open("test://some/key")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func encoded(t *testing.T, r common.PluginResp) string {
	t.Helper()
	content, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func publicAnswer(t *testing.T, key crypto.PublicKey) string {
	t.Helper()
	content, err := cryptoutils.MarshalPublicKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	return encoded(t, common.PluginResp{PublicKey: &common.PublicKeyResp{PublicKeyPEM: content}})
}

// TestPlugins: whatever a program answers, it is taken or refused, and the refusal says why.
func TestPlugins(t *testing.T) {
	_, public, err := signature.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	good, err := cryptoutils.UnmarshalPEMToPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		script string
		want   string
	}{
		"good":            {"echo '" + publicAnswer(t, good) + "'", ""},
		"good but exit 7": {"echo '" + publicAnswer(t, good) + "'\nexit 7", ""}, // the protocol passes that over
		"good, and much on standard error": {
			"head -c 300000 /dev/zero >&2\necho '" + publicAnswer(t, good) + "'", "",
		},
		"RSA":            {"echo '" + publicAnswer(t, weak.Public()) + "'", "RSA keys are not supported, only ECDSA P-256"},
		"an error":       {`printf '{"errorMessage":"no \\u001b[31msuch key"}'` + "\nexit 1", "no \uFFFD[31msuch key"},
		"nothing":        {"", "read the answer of"},
		"no JSON":        {"echo hello", "read the answer of"},
		"too much":       {"head -c 100000 /dev/zero | tr '\\0' ' '\necho '{}'", "more than 65536 bytes"},
		"something else": {"echo '{}'", "does not answer what it was asked"},
		"exit 3":         {"echo broken >&2\nexit 3", "ended with exit status 3 and without an answer"},
		"killed":         {"kill -9 $$", "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := withPlugin(t, c.script).PublicKey(t.Context())
			switch {
			case c.want == "" && (err != nil || key == nil):
				t.Errorf("%v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, expected %q", err, c.want)
			case err != nil && (fault.ClassOf(err) != fault.Input || !strings.Contains(err.Error(), "test://some/key")):
				t.Errorf("class %d: %v", fault.ClassOf(err), err)
			}
			if name == "exit 3" && !strings.Contains(strings.Join(fault.Details(err), " "), "broken") {
				t.Errorf("details: %q", fault.Details(err))
			}
		})
	}
}

// TestPluginIsAsked: what a program is given.
func TestPluginIsAsked(t *testing.T) {
	t.Setenv("BOXLIFT_KEY_PASSWORD", "secret")
	t.Setenv("VAULT_TOKEN", "token")
	seen := filepath.Join(t.TempDir(), "seen")
	k := withPlugin(t, `{ printf '%s\n' "$#" "$1" "$2"; env; cat; } > `+seen+"\necho '{}'")
	if _, err := k.PublicKey(t.Context()); !errors.Is(err, errNoAnswer) {
		t.Fatal(err)
	}
	content, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitN(string(content), "\n", 4)
	if lines[0] != "2" || lines[1] != "v1" || !strings.Contains(lines[3], "VAULT_TOKEN=token") ||
		strings.Contains(lines[3], "secret") {
		t.Errorf("got %q", lines)
	}
	var asked common.PluginArgs
	if err := json.Unmarshal([]byte(lines[2]), &asked); err != nil {
		t.Fatal(err)
	}
	if asked.InitOptions.KeyResourceID != "some/key" || asked.InitOptions.HashFunc != crypto.SHA256 ||
		asked.MethodName != common.PublicKeyMethodName || asked.InitOptions.CtxDeadline == nil {
		t.Errorf("asked %s", lines[2])
	}
}

// TestPluginHangs: a program that does not end is ended.
func TestPluginHangs(t *testing.T) {
	k := withPlugin(t, "exec sleep 600")
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	timer := time.AfterFunc(100*time.Millisecond, func() { cancel(enough) })
	defer timer.Stop()
	if _, err := k.PublicKey(ctx); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
}

// TestNoProgram says which program is not there, where it was looked for, and what to do.
func TestNoProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for uri, want := range map[string][]string{
		"hashivault://a":  {"boxlift-keys, which reaches it, is neither at /", "nor in PATH", "unpack the whole release"},
		"pkcs11:object=a": {"boxlift-keys", "unpack the whole release"},
		"my-hsm://a":      {"sigstore-kms-my-hsm", "install the plugin of that name"},
	} {
		_, err := Open(uri)
		text := ""
		if err != nil {
			text = err.Error() + strings.Join(fault.Hints(err), "")
		}
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q lacks %q", uri, text, part)
			}
		}
	}
	for uri, secret := range map[string]string{"pkcs11:object=a?pin-value=99": "99", "no uri 99": "99"} {
		if _, err := Open(uri); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

// installed has boxlift-keys in PATH.
func installed(t *testing.T) {
	t.Helper()
	t.Setenv("PATH", toolbin.BuildOwn(t, "cmd/boxlift-keys")+":"+os.Getenv("PATH"))
}

func mustOpen(t *testing.T, uri, pin string) *Key {
	t.Helper()
	k, err := Open(uri)
	if err != nil {
		t.Fatal(err)
	}
	if k.NeedsPIN() && pin != "" {
		if err := k.SetPIN([]byte(pin)); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// prove signs with a key, and has everybody verify.
func prove(t *testing.T, k *Key, want *signature.PublicKey) {
	t.Helper()
	signer, err := k.Signer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if signature.KeyID(signer.PublicKey()) != signature.KeyID(want) || signer.Repeats() {
		t.Errorf("it signs as %s", signature.KeyID(signer.PublicKey()))
	}
	payload := []byte("payload")
	first, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.CheckForm(), signature.Verify(want, payload, first.Bundle, first.Base64)); err != nil {
		t.Error(err)
	}
	statement, err := signer.Attest([]byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"f","digest":` +
		`{"sha256":"239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5"}}],"predicateType":"x","predicate":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	attested, err := signature.ReadAttestation(statement)
	if err == nil {
		err = attested.Verify(want)
	}
	if err != nil {
		t.Error(err)
	}
	cosign := toolbin.Build(t, "cosign")
	dir := t.TempDir()
	public, err := want.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"payload": payload, "other": []byte("other"), "key.pub": public, "b.json": first.Bundle, "b.sig": first.Base64,
		"statement.json": statement,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for args, good := range map[string]bool{
		"verify-blob --bundle b.json payload":                                    true,
		"verify-blob --bundle b.json other":                                      false,
		"verify-blob --signature b.sig payload":                                  true,
		"verify-blob-attestation --type x --bundle statement.json payload":       true,
		"verify-blob-attestation --type x --bundle statement.json key.pub":       false,
		"verify-blob-attestation --type another --bundle statement.json payload": false,
	} {
		c := exec.CommandContext(t.Context(), cosign, append(strings.Fields(args), "--key", "key.pub", "--insecure-ignore-tlog")...)
		c.Dir, c.Env = dir, append(os.Environ(), "HOME="+dir)
		if out, err := c.CombinedOutput(); (err == nil) != good {
			t.Errorf("cosign %s: %v\n%s", args, err, out)
		}
	}
}

// TestToken makes keys in a software token and signs with them.
func TestToken(t *testing.T) {
	installed(t)
	token := keys.NewToken(t)
	t.Setenv("SOFTHSM2_CONF", token.Config)
	public, err := mustOpen(t, token.URI("boxlift"), keys.PIN).Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	prove(t, mustOpen(t, token.URI("boxlift"), keys.PIN), public)

	// Without a PIN, the public key is there, and with a file that has it, no PIN is asked for.
	fetched, err := mustOpen(t, token.URI("boxlift"), "").PublicKey(t.Context())
	if err != nil || signature.KeyID(fetched) != signature.KeyID(public) {
		t.Errorf("%v", err)
	}
	pinFile := filepath.Join(t.TempDir(), "pin")
	if err := os.WriteFile(pinFile, []byte(keys.PIN+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := mustOpen(t, token.URI("boxlift")+"&pin-source=file:"+pinFile, "")
	if k.NeedsPIN() {
		t.Error("it needs a PIN")
	}
	if _, err := k.Signer(t.Context()); err != nil {
		t.Error(err)
	}
	// The module may be named by the variable that others know as well.
	t.Setenv("PKCS11_MODULE_PATH", token.Module)
	if _, err := mustOpen(t, "pkcs11:object=boxlift", "").PublicKey(t.Context()); err != nil {
		t.Error(err)
	}
	t.Setenv("PKCS11_MODULE_PATH", "")

	// A key that others have put there: of another kind, and one of two with the same name.
	openssl := debian.Program{Name: "openssl", Package: "openssl"}
	need.Programs(t, openssl)
	for i, kind := range []string{"RSA -pkeyopt rsa_keygen_bits:2048", "EC -pkeyopt ec_paramgen_curve:P-384",
		"EC -pkeyopt ec_paramgen_curve:P-256", "EC -pkeyopt ec_paramgen_curve:P-256"} {
		file := filepath.Join(t.TempDir(), "key.pem")
		token.Run(t, openssl.Find(), append(strings.Fields("genpkey -out "+file+" -algorithm"), strings.Fields(kind)...)...)
		label := []string{"rsa", "p384", "twice", "twice"}[i]
		token.Run(t, "softhsm2-util", "--import", file, "--token", "release", "--pin", keys.PIN, "--label", label,
			"--id", []string{"0A", "0B", "0C", "0D"}[i])
	}
	if _, err := mustOpen(t, strings.Replace(token.URI("twice"), "?", ";id=%0D?", 1), keys.PIN).Signer(t.Context()); err != nil {
		t.Errorf("one of two, by its id: %v", err)
	}

	for name, c := range map[string]struct{ uri, pin, want string }{
		"wrong PIN":    {token.URI("boxlift"), "4321", "the PIN is wrong; tokens count wrong ones"},
		"empty PIN":    {token.URI("boxlift"), "", "needs its PIN"},
		"no key":       {token.URI("boxlfit"), keys.PIN, `no private key "boxlfit"; it shows: `},
		"RSA":          {token.URI("rsa"), keys.PIN, "is an RSA key; only ECDSA P-256 signs"},
		"P-384":        {token.URI("p384"), keys.PIN, "another curve; only ECDSA P-256 signs"},
		"two keys":     {token.URI("twice"), keys.PIN, "several keys that the PKCS#11 URI fits; name one with id="},
		"no token":     {strings.Replace(token.URI("boxlift"), "release", "relaese", 1), keys.PIN, `no token fits the PKCS#11 URI; `},
		"no module":    {"pkcs11:object=boxlift", keys.PIN, "names no module"},
		"no such file": {"pkcs11:object=boxlift?module-path=/none.so", keys.PIN, "load the PKCS#11 module /none.so"},
		"no PIN file":  {token.URI("boxlift") + "&pin-source=/none", "", "read the PIN: open /none"},
	} {
		k := mustOpen(t, c.uri, c.pin)
		if name == "empty PIN" {
			if err := k.SetPIN(nil); err != nil {
				t.Fatal(err)
			}
		}
		_, err := k.Signer(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.ClassOf(err) != fault.Input ||
			c.pin != "" && strings.Contains(err.Error(), c.pin) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := mustOpen(t, token.URI("boxlift"), keys.PIN).Create(t.Context()); err == nil ||
		!strings.Contains(err.Error(), `has a key "boxlift" already; nothing was made`) {
		t.Errorf("made again: %v", err)
	}
}

// TestVault makes a key in a key service and signs with it, over HTTP.
func TestVault(t *testing.T) {
	installed(t)
	vault := keys.NewVault(t)
	t.Setenv("VAULT_ADDR", vault.Address)
	t.Setenv("VAULT_TOKEN", vault.Secret)
	public, err := mustOpen(t, "hashivault://boxlift", "").Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, uri := range []string{"hashivault://boxlift", "openbao://boxlift"} {
		prove(t, mustOpen(t, uri, ""), public)
	}
	if vault.Signed() != 4 {
		t.Errorf("it signed %d times", vault.Signed())
	}
	if _, err := mustOpen(t, "hashivault://boxlift", "").Create(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "it is there already; nothing was made") {
		t.Errorf("made again: %v", err)
	}
	if _, err := mustOpen(t, "hashivault://another", "").PublicKey(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "transit/keys/another") {
		t.Errorf("no key: %v", err)
	}
	t.Setenv("VAULT_TOKEN", "wrong one")
	if _, err := mustOpen(t, "hashivault://boxlift", "").Signer(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "permission denied") || strings.Contains(err.Error(), "wrong one") {
		t.Errorf("wrong token: %v", err)
	}
}

// TestCosignUsesIt: boxlift-keys is a plugin for cosign too, under the name that it looks for.
func TestCosignUsesIt(t *testing.T) {
	cosign := toolbin.Build(t, "cosign")
	folder := toolbin.BuildOwn(t, "cmd/boxlift-keys")
	if err := os.Symlink(Program, filepath.Join(folder, "sigstore-kms-boxlift")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	token := keys.NewToken(t)
	t.Setenv("SOFTHSM2_CONF", token.Config)
	public, err := mustOpen(t, token.URI("boxlift"), keys.PIN).Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"payload": "payload", "pin": keys.PIN} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), cosign, "sign-blob", "--yes", "--tlog-upload=false", "--use-signing-config=false",
		"--new-bundle-format=false", "--output-signature", "payload.sig", "--key",
		"boxlift://"+token.URI("boxlift")+"&pin-source="+filepath.Join(dir, "pin"), "payload")
	c.Dir, c.Env = dir, append(os.Environ(), "HOME="+dir)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	signed, err := os.ReadFile(filepath.Join(dir, "payload.sig"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(signed))); err != nil {
		t.Fatal(err)
	}
	if err := signature.Verify(public, []byte("payload"), nil, signed); err != nil {
		t.Error(err)
	}
}
