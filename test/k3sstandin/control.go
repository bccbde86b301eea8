package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// authority is the cluster's CA. The token carries the hash of its PEM file.
type authority struct {
	CertPEM []byte `json:"cert"`
	KeyPEM  []byte `json:"key"`
}

// token is what a node joins with: K10<hash of the CA>::<user>:<password>, or
// the password alone.
type token struct{ hash, password string }

func parseToken(text string) (token, error) {
	rest, full := strings.CutPrefix(text, "K10")
	if !full {
		return token{password: text}, nil
	}
	hash, login, ok := strings.Cut(rest, "::")
	if !ok {
		return token{}, errors.New("invalid token: want K10<hash>::<user>:<password>")
	}
	_, password, ok := strings.Cut(login, ":")
	if !ok || len(hash) != 2*sha256.Size || password == "" {
		return token{}, errors.New("invalid token: want K10<hash>::<user>:<password>")
	}
	return token{hash: hash, password: password}, nil
}

func hashOf(certPEM []byte) string {
	sum := sha256.Sum256(certPEM)
	return hex.EncodeToString(sum[:])
}

// startServer sets the server's files up, and serves its port until stop is
// called. It sends to failed should the port's server end.
func startServer(ctx context.Context, s settings, failed chan<- error) (stop func(), err error) {
	given, err := parseToken(s.token)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.dataDir, "server")
	if err := os.MkdirAll(filepath.Join(dir, "tls"), 0o700); err != nil {
		return nil, err
	}
	ca, err := loadAuthority(ctx, s, given, filepath.Join(dir, "tls", "server-ca"))
	if err != nil {
		return nil, err
	}
	password, err := settlePassword(given, ca, filepath.Join(dir, "token"))
	if err != nil {
		return nil, err
	}
	if err := linkTo("token", filepath.Join(dir, "node-token")); err != nil {
		return nil, err
	}
	serving, err := ca.issue("k3s", s.names)
	if err != nil {
		return nil, err
	}
	if err := writeKubeconfig(s, ca); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", ":"+s.port)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: ca.handler(password), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{serving}, MinVersion: tls.VersionTLS12}}
	go func() { failed <- server.ServeTLS(listener, "", "") }()
	logLine("info", "Running kube-apiserver on port "+s.port)
	return func() { _ = server.Close() }, nil // the process ends next
}

// loadAuthority finds the CA on disk, or at the server that this one joins, or makes it.
func loadAuthority(ctx context.Context, s settings, given token, path string) (authority, error) {
	var ca authority
	var err error
	if ca.CertPEM, err = os.ReadFile(path + ".crt"); err == nil {
		ca.KeyPEM, err = os.ReadFile(path + ".key")
		return ca, err
	} else if !errors.Is(err, fs.ErrNotExist) {
		return ca, err
	}
	if s.join != "" {
		body, err := fetch(ctx, s.join, given, "/v1-k3s/server-bootstrap")
		if err != nil {
			return ca, err
		}
		if err := json.Unmarshal(body, &ca); err != nil {
			return ca, fmt.Errorf("read bootstrap data: %w", err)
		}
	} else if ca, err = newAuthority(); err != nil {
		return ca, err
	}
	// The certificate last: with it, the pair is there.
	if err := os.WriteFile(path+".key", ca.KeyPEM, 0o600); err != nil {
		return ca, err
	}
	return ca, os.WriteFile(path+".crt", ca.CertPEM, 0o644)
}

// settlePassword compares the token on disk with the given one, or writes it
// when there is none on disk, and returns the password.
func settlePassword(given token, ca authority, path string) (string, error) {
	if given.hash != "" && given.hash != hashOf(ca.CertPEM) {
		return "", errors.New("token CA hash does not match the Cluster CA certificate hash")
	}
	text, err := os.ReadFile(path)
	if err == nil {
		stored, err := parseToken(strings.TrimSpace(string(text)))
		if err == nil && given.password != "" && given.password != stored.password {
			err = errors.New("bootstrap data already found and encrypted with different token")
		}
		return stored.password, err
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if given.password == "" {
		given.password = strings.ToLower(rand.Text())
	}
	return given.password, os.WriteFile(path, fmt.Appendf(nil, "K10%s::server:%s\n", hashOf(ca.CertPEM), given.password), 0o600)
}

func linkTo(target, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

// handler serves what nodes ask a server when they join, and to everything
// else it answers as an API server does to strangers.
func (ca authority) handler(password string) http.Handler {
	mux := http.NewServeMux()
	write := func(w http.ResponseWriter, body []byte) { _, _ = w.Write(body) } // the client may have gone
	mux.HandleFunc("/ping", func(w http.ResponseWriter, _ *http.Request) { write(w, []byte("pong")) })
	mux.HandleFunc("/cacerts", func(w http.ResponseWriter, _ *http.Request) { write(w, ca.CertPEM) })
	refuse := func(w http.ResponseWriter) { http.Error(w, "Unauthorized", http.StatusUnauthorized) }
	forNodes := func(body func() ([]byte, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, got, ok := r.BasicAuth()
			if !ok || subtle.ConstantTimeCompare([]byte(got), []byte(password)) != 1 {
				refuse(w)
				return
			}
			data, err := body()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			write(w, data)
		}
	}
	mux.HandleFunc("/v1-k3s/config", forNodes(func() ([]byte, error) { return []byte("{}"), nil }))
	mux.HandleFunc("/v1-k3s/server-bootstrap", forNodes(func() ([]byte, error) { return json.Marshal(ca) }))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { refuse(w) })
	return mux
}

// joinAgent checks that the server is the token's, and that it takes the
// password. It retries, as k3s does, for as long as the server does not answer.
func joinAgent(ctx context.Context, s settings) error {
	given, err := parseToken(s.token)
	if err != nil {
		return err
	}
	for {
		_, err := fetch(ctx, s.join, given, "/v1-k3s/config")
		var network net.Error
		if err == nil || !errors.As(err, &network) {
			return err
		}
		logLine("error", "failed to get CA certs: "+err.Error())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
		}
	}
}

// fetch asks a server for something that only nodes may have. The server's CA
// is taken from the server, and believed when the token has its hash, or no hash.
func fetch(ctx context.Context, server string, t token, path string) ([]byte, error) {
	insecure := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // #nosec G402: the hash is checked below
	ca, err := get(ctx, insecure, server+"/cacerts", "")
	if err != nil {
		return nil, err
	}
	if t.hash != "" && t.hash != hashOf(ca) {
		return nil, fmt.Errorf("token CA hash does not match the Cluster CA certificate hash: %s != %s", t.hash, hashOf(ca))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s/cacerts has no certificate", server)
	}
	return get(ctx, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}, server+path, t.password)
}

func get(ctx context.Context, transport *http.Transport, url, password string) ([]byte, error) {
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if password != "" {
		request.SetBasicAuth("node", password)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", url, err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, 1<<20))
}

func newAuthority() (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(0), Subject: pkix.Name{CommonName: "k3s-server-ca@" + strconv.FormatInt(now.Unix(), 10)},
		NotBefore: now, NotAfter: now.AddDate(10, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return authority{}, err
	}
	keyPEM, err := encodeKey(key)
	return authority{CertPEM: encode("CERTIFICATE", cert), KeyPEM: keyPEM}, err
}

// issue makes a certificate for this host's addresses and the given names.
func (ca authority) issue(commonName string, names []string) (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(ca.CertPEM, ca.KeyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("load the cluster CA: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 62))
	if err != nil {
		return tls.Certificate{}, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: commonName, Organization: []string{"system:masters"}},
		NotBefore: pair.Leaf.NotBefore, NotAfter: time.Now().AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames: []string{hostname, "localhost", "kubernetes"},
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return tls.Certificate{}, err
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok {
			template.IPAddresses = append(template.IPAddresses, network.IP)
		}
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, pair.Leaf, key.Public(), pair.PrivateKey)
	return tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: key}, err
}

func writeKubeconfig(s settings, ca authority) error {
	client, err := ca.issue("system:admin", nil)
	if err != nil {
		return err
	}
	key, err := encodeKey(client.PrivateKey)
	if err != nil {
		return err
	}
	mode, err := strconv.ParseUint(s.kubeconfigMode, 8, 12)
	if err != nil {
		return fmt.Errorf("write-kubeconfig-mode %q: %w", s.kubeconfigMode, err)
	}
	b64 := base64.StdEncoding.EncodeToString
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority-data: %s
    server: https://127.0.0.1:%s
  name: default
contexts:
- context:
    cluster: default
    user: default
  name: default
current-context: default
users:
- name: default
  user:
    client-certificate-data: %s
    client-key-data: %s
`, b64(ca.CertPEM), s.port, b64(encode("CERTIFICATE", client.Certificate[0])), b64(key))
	if err := os.MkdirAll(filepath.Dir(s.kubeconfig), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(s.kubeconfig, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Chmod(s.kubeconfig, os.FileMode(mode))
}

func encodeKey(key any) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return encode("PRIVATE KEY", der), err
}

func encode(kind string, der []byte) []byte {
	var out bytes.Buffer
	_ = pem.Encode(&out, &pem.Block{Type: kind, Bytes: der}) // a buffer takes everything
	return out.Bytes()
}
