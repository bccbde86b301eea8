//go:build linux

package facts_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/certificate"
)

// FuzzCertificatesReport reads what a node says of its certificates.
func FuzzCertificatesReport(f *testing.F) {
	f.Add([]byte(`{"version":1,"certificates":[{"path":"/a.crt","subject":"CN=a","ca":true,` +
		`"notBefore":"2026-01-02T03:04:05Z","notAfter":"2027-01-02T03:04:05Z"}],"problems":["b"]}`))
	f.Add([]byte(`{"version":1,"certificates":[]} x`))
	f.Add([]byte(`{"version":2,"certificates":null}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		r, err := facts.ParseCertificatesReport(document)
		if err != nil {
			return
		}
		reread(t, r)
	})
}

// FuzzCertificates reads what lies where k3s has its certificates. What a node says of it, the operator can read.
func FuzzCertificates(f *testing.F) {
	good, _, err := certificate.New()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, false)
	f.Add([]byte("    client-certificate-data: "+base64.StdEncoding.EncodeToString(good)+"\n"), true)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), false)
	f.Add([]byte("client-certificate-data: AAAA\n"), true)
	f.Fuzz(func(t *testing.T, content []byte, kubeconfig bool) {
		name := "a.crt"
		if kubeconfig {
			name = "k3s.yaml"
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		r := facts.Certificates(path)
		if len(r.Certificates)+len(r.Problems) != 1 {
			t.Errorf("one file makes %+v", r)
		}
		reread(t, r)
	})
}

// reread proves that a report is what a node would say.
func reread(t *testing.T, r facts.CertificatesReport) {
	t.Helper()
	said, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := facts.ParseCertificatesReport(said)
	if err != nil {
		t.Fatal(err)
	}
	second, err := json.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(said, second) {
		t.Errorf("%s became %s", said, second)
	}
}
