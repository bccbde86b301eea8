package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/common"
)

// TestRefused: what is asked for wrongly is answered as the protocol says, and nothing is reached for it. What keys do
// is tested where boxlift starts this program.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		asked, want string
	}{
		"no JSON":        {"{", "read what is asked for"},
		"nothing":        {"{}", "initOptions and methodName are needed"},
		"no method":      {`{"initOptions":{"keyResourceID":"pkcs11:object=a"}}`, "initOptions and methodName are needed"},
		"unknown scheme": {`{"initOptions":{"keyResourceID":"my-hsm://a"},"methodName":"publicKey"}`, "of no scheme that is known"},
		"PIN in the URI": {
			`{"initOptions":{"keyResourceID":"pkcs11:object=a?pin-value=4321"},"methodName":"publicKey"}`, "pin-value is not taken",
		},
		"no module": {`{"initOptions":{"keyResourceID":"pkcs11:object=a"},"methodName":"publicKey"}`, "names no module"},
		"no PKCS#11 module": {
			`{"initOptions":{"keyResourceID":"pkcs11:object=a?module-path=/none.so"},"methodName":"publicKey"}`,
			"load the PKCS#11 module /none.so",
		},
		"no Vault": {`{"initOptions":{"keyResourceID":"hashivault://a"},"methodName":"publicKey"}`, "VAULT_ADDR"},
	} {
		t.Setenv("VAULT_ADDR", "")
		t.Setenv("BAO_ADDR", "")
		t.Setenv("PKCS11_MODULE_PATH", "")
		var out, messages bytes.Buffer
		code := run([]string{"boxlift-keys", common.ProtocolVersion, c.asked}, strings.NewReader(""), &out, &messages)
		var answer common.PluginResp
		if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
			t.Errorf("%s: %q, %v", name, out.String(), err)
		}
		if code != 1 || !strings.Contains(answer.ErrorMessage, c.want) || strings.Contains(answer.ErrorMessage, "4321") {
			t.Errorf("%s: %d, %q", name, code, answer.ErrorMessage)
		}
	}
}

// TestUsage: a person who starts it is told what it is for.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"boxlift-keys"}, {"boxlift-keys", "--help"}, {"boxlift-keys", "v2", "{}"}} {
		var out, messages bytes.Buffer
		if code := run(args, strings.NewReader(""), &out, &messages); code != 2 || out.Len() > 0 ||
			!strings.Contains(messages.String(), "hashivault://") {
			t.Errorf("%q: %d, %q, %q", args, code, out.String(), messages.String())
		}
	}
}
