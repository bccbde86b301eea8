package pki

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// A certificate stays as long as it is good and does not end within 120 days; its key stays in any case.
func TestIssue(t *testing.T) {
	dir := t.TempDir()
	newCA := func(name string) *CA {
		t.Helper()
		certPEM, keyPEM, err := NewCA(name)
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Join(dir, name)
		for file, content := range map[string][]byte{base + ".crt": certPEM, base + ".key": keyPEM} {
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ca, err := ReadCA(base)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	ca := newCA("ca")
	subject := Subject{CommonName: "kube-apiserver", Names: []string{"::1", "localhost", "127.0.0.1", ""}}
	issue := func(ca *CA, days int, subject Subject) *x509.Certificate {
		t.Helper()
		t.Setenv("CATTLE_NEW_SIGNED_CERT_EXPIRATION_DAYS", strconv.Itoa(days))
		if err := ca.Issue(filepath.Join(dir, "leaf"), subject); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(dir, "leaf.crt"))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(content)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	last := issue(ca, 0, subject)
	if left := time.Until(last.NotAfter); left < 364*24*time.Hour || left > 366*24*time.Hour {
		t.Errorf("it lasts %v", left)
	}
	other := subject
	other.Names = append([]string{"10.0.0.1"}, subject.Names...)
	for _, test := range []struct {
		name    string
		ca      *CA
		days    int
		subject Subject
		stays   bool
	}{
		{"it is good", ca, 119, subject, true},
		{"another name", ca, 121, other, false},
		{"it ends in 121 days", ca, 119, other, true},
		{"another CA", newCA("other"), 119, other, false},
		{"the CA again", ca, 119, other, false},
		{"it ends in 119 days", ca, 365, other, false},
	} {
		cert := issue(test.ca, test.days, test.subject)
		if stays := cert.Equal(last); stays != test.stays {
			t.Errorf("%s: it stays: %v", test.name, stays)
		}
		if key, err := EnsureKey(filepath.Join(dir, "leaf.key")); err != nil || cert.CheckSignatureFrom(test.ca.cert) != nil {
			t.Errorf("%s: %v", test.name, err)
		} else if public, err := x509.MarshalPKIXPublicKey(key.Public()); err != nil || string(public) != string(cert.RawSubjectPublicKeyInfo) {
			t.Errorf("%s: it is for another key", test.name)
		}
		last = cert
	}
}
