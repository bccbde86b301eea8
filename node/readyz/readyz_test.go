package readyz_test

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/node/readyz"
	"github.com/liteboxd/boxlift/test/certificate"
)

// A server is ready when it says so to a client that it knows, over TLS that its authority proves; and else it is said
// why it is not.
func TestAsk(t *testing.T) {
	certPEM, keyPEM, err := certificate.New()
	if err != nil {
		t.Fatal(err)
	}
	otherPEM, _, err := certificate.New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"ca": certPEM, "crt": certPEM, "key": keyPEM, "other": otherPEM, "none": nil} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, authority, certificate string
		answer                       http.HandlerFunc
		want                         string // "" for ready
	}{
		{"ready", "ca", "crt", func(http.ResponseWriter, *http.Request) {}, ""},
		{"not ready", "ca", "crt", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
			"it answers with HTTP 500, expected 200"},
		{"it does not know the client", "ca", "crt", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
			"it answers with HTTP 401, expected 200"},
		{"elsewhere", "ca", "crt", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) },
			"it answers with HTTP 302, expected 200"},
		{"frozen", "ca", "crt", func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}, "no answer within 1s"},
		{"another authority", "other", "crt", func(http.ResponseWriter, *http.Request) {}, "certificate"},
		{"an authority's file without a certificate", "none", "crt", func(http.ResponseWriter, *http.Request) {}, "none has no certificate"},
		{"no authority", "missing", "crt", func(http.ResponseWriter, *http.Request) {}, "no such file"},
		{"no certificate", "ca", "missing", func(http.ResponseWriter, *http.Request) {}, "missing with its key: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/readyz" || len(r.TLS.PeerCertificates) == 0 {
					t.Errorf("asked for %s with %d certificates", r.URL, len(r.TLS.PeerCertificates))
				}
				test.answer(w, r)
			}))
			server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
			server.StartTLS()
			defer server.Close()
			err := readyz.Ask(t.Context(), readyz.Server{Address: server.Listener.Addr().String(), Authority: filepath.Join(dir, test.authority),
				Certificate: filepath.Join(dir, test.certificate), Key: filepath.Join(dir, "key")})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("it says %v, want %q", err, test.want)
			}
		})
	}
}
