// Package kubetest is what the tests of install/kube and of the packages that stand on it have in common: an API server
// of a few answers, charts made in memory, and small checks.
//
// It knows nothing of install, so that every test there may import it.
package kubetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/liteboxd/boxlift/internal/fault"
)

const kubeconfigForm = `apiVersion: v1
kind: Config
clusters:
- name: default
  cluster: {server: %q, certificate-authority-data: %s}
contexts:
- name: default
  context: {cluster: default, user: default}
current-context: default
preferences: {}
users:
- name: default
  user: {token: t0ken}
`

// Kubeconfig is one for a server, whose certificate is that of its own authority, with the token "t0ken".
func Kubeconfig(server string, ca []byte) []byte {
	return fmt.Appendf(nil, kubeconfigForm, server, base64.StdEncoding.EncodeToString(ca))
}

// API is an API server of a few answers, as a kubeconfig and what dials the address in it.
type API struct {
	Kubeconfig []byte
	Dial       func(ctx context.Context, network, address string) (net.Conn, error)
	// Local is a kubeconfig with the address that the server has on this machine, for hosts that are folders of it.
	Local []byte
}

// NewAPI starts an API server, which ends with the test. Its kubeconfig names an address that is nobody's.
func NewAPI(t testing.TB, handler http.HandlerFunc) API {
	t.Helper()
	own, err := certificate()
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(handler)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	return API{
		Kubeconfig: Kubeconfig("https://192.0.2.1:6443", ca),
		Local:      Kubeconfig(srv.URL, ca),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != "192.0.2.1:6443" {
				return nil, fmt.Errorf("dialled %s", address)
			}
			return new(net.Dialer).DialContext(ctx, network, srv.Listener.Addr().String())
		},
	}
}

// certificate is that of all API servers here, which is its own authority. Its key is of an elliptic curve: each
// connection takes a signature, and those of httptest's RSA key take fifty times as long.
var certificate = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"kubetest"}},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), // a test may set its clock
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	made, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{made}, PrivateKey: key}, err
})

// Answer answers with an object of a kind.
func Answer(t testing.TB, w http.ResponseWriter, kind string, object any) {
	t.Helper()
	data, err := json.Marshal(object)
	if err != nil {
		t.Error(err)
	}
	group := "v1"
	if kind == "DaemonSet" || kind == "Deployment" {
		group = "apps/v1"
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Error(err)
	}
	fields["kind"], fields["apiVersion"] = kind, group
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(fields); err != nil {
		t.Error(err)
	}
}

// Chart is the archive of a chart with the name "demo".
func Chart(t testing.TB, version string, files map[string]string) []byte {
	t.Helper()
	all := map[string][]byte{"demo/Chart.yaml": []byte("apiVersion: v2\nname: demo\nversion: " + version + "\n")}
	for name, text := range files {
		all["demo/"+name] = []byte(text)
	}
	plain, err := Tar(all)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Tar is an archive of files that may be run, in the order of their names.
func Tar(files map[string][]byte) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// Workload is a template of a DaemonSet or a Deployment, whose program sleeps. spec is one more line of its spec.
func Workload(kind, name, spec, image string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: %s
metadata: {name: %s}
spec:
  %s
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - {name: main, image: "%[4]s", args: [sleep]}
`, kind, name, spec, image)
}

// Deployment is one whose program sleeps, with pods of the label app.
func Deployment(name string, replicas int32, image string) *appsv1.Deployment {
	grace := int64(1)
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: &grace,
					Containers:                    []corev1.Container{{Name: "main", Image: image, Args: []string{"sleep"}}},
				},
			},
		},
	}
}

// Within bounds a test's calls.
func Within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Contains fails the test when the text lacks one of the parts.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("want %q in:\n%s", part, text)
		}
	}
}

// Explained is an error with its hint and its details.
func Explained(err error) string {
	text := err.Error()
	for _, hint := range fault.Hints(err) {
		text += "\nhint: " + hint
	}
	return strings.Join(append([]string{text}, fault.Details(err)...), "\n")
}

// Decode reads an object of Kubernetes' own kinds from YAML.
func Decode(t testing.TB, text string) runtime.Object {
	t.Helper()
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(text), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return object
}
