package facts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var certificateEnd = time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)

func certificatePEM(t *testing.T, name string, ca bool) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true, IsCA: ca,
		NotBefore: certificateEnd.AddDate(-1, 0, 0), NotAfter: certificateEnd,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tls/server-ca.crt", certificatePEM(t, "ca", true))
	// A chain: the leaf comes first.
	write("tls/etcd/client.crt", certificatePEM(t, "leaf", false)+certificatePEM(t, "ca", true))
	write("tls/etcd/client.key", "no certificate, and nobody looks")
	write("tls/broken.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	write("tls/empty.crt", "")
	write("agent/containerd/x/io.crt", "of an image")
	write("agent/client-kubelet.crt", certificatePEM(t, "kubelet", false))
	admin := base64.StdEncoding.EncodeToString([]byte(certificatePEM(t, "admin", false)))
	write("k3s.yaml", "users:\n- name: default\n  user:\n    client-certificate-data: "+admin+"\n")
	write("none.yaml", "users: []\n")
	write("nonsense.yaml", "client-certificate-data: '*'\n")

	at := func(name string) string { return filepath.Join(dir, name) }
	got := Certificates(at("tls"), at("agent"), at("k3s.yaml"), at("none.yaml"), at("nonsense.yaml"), at("not-there"))
	var problems []string
	for _, p := range got.Problems {
		name, _, _ := strings.Cut(strings.TrimPrefix(p, "read the certificate "+dir+"/"), ":")
		problems = append(problems, name)
	}
	got.Problems = problems
	want := CertificatesReport{
		Version: 1,
		Certificates: []Certificate{
			{Path: at("tls/etcd/client.crt"), Subject: "CN=leaf"}, {Path: at("tls/server-ca.crt"), Subject: "CN=ca", CA: true},
			{Path: at("agent/client-kubelet.crt"), Subject: "CN=kubelet"}, {Path: at("k3s.yaml"), Subject: "CN=admin"},
		},
		Problems: []string{"tls/broken.crt", "tls/empty.crt", "none.yaml", "nonsense.yaml"},
	}
	for i := range want.Certificates {
		want.Certificates[i].NotBefore, want.Certificates[i].NotAfter = certificateEnd.AddDate(-1, 0, 0), certificateEnd
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
