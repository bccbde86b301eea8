package certificates

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

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/internal/metrics"
)

// now is when the tests of certificates look at them.
var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// made is a certificate in PEM that ends after that.
func made(t *testing.T, name string, left time.Duration) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: now.Add(left)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func kubeconfig(users map[string][]byte) string {
	text := "apiVersion: v1\nkind: Config\nusers:\n"
	for name, certificate := range users {
		text += "- name: " + name + "\n  user: {client-certificate-data: " + base64.StdEncoding.EncodeToString(certificate) + "}\n"
	}
	return text
}

func TestKubeconfigCertificates(t *testing.T) {
	const day = 24 * time.Hour
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	two := file("two", kubeconfig(map[string][]byte{"b": made(t, "long", 300*day), "a": made(t, "soon", 3*day)}))
	files := []string{
		two, file("token", "apiVersion: v1\nkind: Config\nusers:\n- {name: a, user: {token: CANARY}}\n"),
		file("half", kubeconfig(map[string][]byte{"a": []byte("CANARY")})), file("none", "CANARY: ["),
		file("long", strings.Repeat("#", maxKubeconfig+1)), filepath.Join(dir, "missing"), dir,
	}
	found := kubeconfigCertificates(files, now)
	want := []Certificate{
		{Kind: InKubeconfig, Path: two, Subject: "CN=soon", NotAfter: now.Add(3 * day), DaysLeft: 3,
			Renewal: "boxlift install --kubeconfig writes a new one"},
		{Kind: InKubeconfig, Path: two, Subject: "CN=long", NotAfter: now.Add(300 * day), DaysLeft: 300},
	}
	if diff := cmp.Diff(want, found.Certificates); diff != "" {
		t.Error(diff)
	}
	problems := strings.ReplaceAll(strings.Join(found.Problems, "\n"), dir, "DIR")
	if diff := cmp.Diff(`read the kubeconfig DIR/token: it holds no certificate
read the kubeconfig DIR/half: user "a": there is none in PEM
read the kubeconfig DIR/none: it is no kubeconfig
read the kubeconfig DIR/long: it has more than 4194304 bytes
read the kubeconfig DIR/missing: no such file or directory
read the kubeconfig DIR: is a directory`, problems); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(problems, "CANARY") {
		t.Error("what may be a secret is shown")
	}
}

func TestInSecrets(t *testing.T) {
	const day = 24 * time.Hour
	chain := append(made(t, "*.box.lan", 10*day), made(t, "authority", 1000*day)...)
	found := inSecrets([]kube.TLSSecret{{Namespace: "web", Name: "box", Certificate: chain},
		{Namespace: "web", Name: "empty"}, {Namespace: "web", Name: "bad", Certificate: []byte("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n")}}, now)
	if diff := cmp.Diff([]Certificate{{Kind: InSecret, Path: "Secret web/box", Subject: "CN=*.box.lan", NotAfter: now.Add(10 * day),
		DaysLeft: 10, Renewal: "who made the Secret renews it"}}, found.Certificates); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"read the certificate in Secret web/empty: there is none in PEM",
		"read the certificate in Secret web/bad: it cannot be read"}, found.Problems); diff != "" {
		t.Error(diff)
	}
}

// What is printed can be read by Prometheus, whatever a host has named its certificates.
func TestGauges(t *testing.T) {
	all := &Certificates{Cluster: "lan-1", Problems: []string{"one"}, Certificates: []Certificate{
		{Kind: ForServer, Host: "first (10.0.0.11)", Path: `/tls/"a\b` + "\n" + `.crt`, Subject: "CN=x", NotAfter: now},
		{Kind: InSecret, Path: "Secret web/tls", Subject: "", NotAfter: now.Add(time.Second)},
		// a series that is there twice makes the collector pass over all
		{Kind: ForServer, Host: "first (10.0.0.11)", Path: `/tls/"a\b` + "\n" + `.crt`, Subject: "CN=x", NotAfter: now.Add(time.Minute)},
	}}
	var b strings.Builder
	if err := metrics.Write(&b, all.Gauges()...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`# HELP boxlift_certificate_not_after_timestamp_seconds When the certificate ends.
# TYPE boxlift_certificate_not_after_timestamp_seconds gauge
boxlift_certificate_not_after_timestamp_seconds{cluster="lan-1",kind="server",host="first (10.0.0.11)",path="/tls/\"a\\b\n.crt",subject="CN=x"} 1777636800
boxlift_certificate_not_after_timestamp_seconds{cluster="lan-1",kind="secret",host="",path="Secret web/tls",subject=""} 1777636801
# HELP boxlift_certificates_unread How many hosts and files told no certificate.
# TYPE boxlift_certificates_unread gauge
boxlift_certificates_unread{cluster="lan-1"} 1
`, b.String()); diff != "" {
		t.Error(diff)
	}
}
