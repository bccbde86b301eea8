package kube

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"github.com/liteboxd/boxlift/test/kubetest"
)

func TestParseKubeconfig(t *testing.T) {
	good := string(kubetest.Kubeconfig("https://127.0.0.1:6443", []byte("ca")))
	a, err := parseKubeconfig([]byte(good))
	if err != nil || a.server != "https://127.0.0.1:6443" || string(a.ca) != "ca" || a.token != "t0ken" {
		t.Fatalf("%+v: %v", a, err)
	}
	for name, c := range map[string]struct{ old, with, want string }{
		"a program to be run":   {"{token: t0ken}", "{exec: {command: /bin/sh}}", "unknown"},
		"a file to be read":     {"{token: t0ken}", "{tokenFile: /etc/shadow}", "unknown"},
		"certificate unchecked": {"{server:", "{insecure-skip-tls-verify: true, server:", "unknown"},
		"a proxy":               {"{server:", "{proxy-url: http://evil, server:", "unknown"},
		"no TLS":                {"https://127.0.0.1", "http://127.0.0.1", "no https server"},
		"no CA":                 {"Y2E=", `""`, "no certificate-authority-data"},
		"not base64":            {"Y2E=", "t0p-secret", "not a YAML file"},
		"no way in":             {"{token: t0ken}", "{token: ''}", "neither client certificate"},
		"no current context":    {"current-context: default", "current-context: other", "no https server"},
		"another kind":          {"kind: Config", "kind: Secret", `kind is "Secret"`},
		"two documents":         {"{token: t0ken}\n", "{token: t0ken}\n---\n{}\n", "more than one document"},
		"a key twice":           {"kind: Config\n", "kind: Config\nkind: Config\n", "a key is there already"},
		"many keys twice": {"{token: t0ken}", "{token: t0ken}\npreferences: {" + strings.Repeat("s3cret: 1, ", 20_000) + "}",
			"a key is there already"},
		"many keys twice, after it": {"{token: t0ken}\n", "{token: t0ken}\n---\n" + strings.Repeat("s3cret: 1\n", 20_000),
			"more than one document"},
		"not YAML":               {"apiVersion", "\t", "not a YAML file"},
		"a password in the text": {"t0ken}", "t0ken, password: s3cret}", "unknown"},
	} {
		text := strings.Replace(good, c.old, c.with, 1)
		_, err := parseKubeconfig([]byte(text))
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		kubetest.Contains(t, err.Error(), c.want)
		for _, secret := range []string{"t0ken", "t0p-secret", "s3cret"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error has a secret: %v", name, err)
			}
		}
	}
	if _, err := parseKubeconfig(bytes.Repeat([]byte("a"), maxKubeconfig+1)); err == nil {
		t.Error("too long, and accepted")
	}
}

func FuzzParseKubeconfig(f *testing.F) {
	f.Add(kubetest.Kubeconfig("https://127.0.0.1:6443", []byte("ca")))
	f.Add([]byte("{kind: Config, apiVersion: v1}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseKubeconfig(data)
		if err == nil && (!strings.HasPrefix(strings.ToLower(a.server), "https://") || len(a.ca) == 0) {
			t.Errorf("accepted %+v", a)
		}
		if err != nil && strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Errorf("control characters in %q", err)
		}
	})
}
