package renewal

import (
	"cmp"
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
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// k3s is a node of a cluster as a renewal meets it: files with real certificates, a systemd that starts k3s again, an
// API server and a kubelet that show what k3s was started with.
type k3s struct {
	t      *testing.T
	folder string
	unit   string
	now    time.Time
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	log    strings.Builder

	mu       sync.Mutex
	active   string
	killMode string
	restarts int
	starts   int
	// starting is what becomes of a start; nil renews within 90 days, as any k3s does.
	starting func()
	serving  *tls.Certificate
	shows    *tls.Certificate // when not what is on the disk
	ready    bool
	nodes    string
	lease    *lease
	version  int
	refuses  int // status that the Lease's requests get
	conflict bool
	held     string
	kubelet  string
	api      string
	stalled  int
}

var serials int64

func (k *k3s) certificate(ends time.Time, isCA bool) (certPEM, keyPEM []byte) {
	k.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		k.t.Fatal(err)
	}
	serials++
	template := &x509.Certificate{SerialNumber: big.NewInt(serials), Subject: pkix.Name{CommonName: "k3s"},
		NotBefore: k.now.Add(-365 * day), NotAfter: ends, IsCA: isCA, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	parent, signer := k.ca, k.key
	if isCA {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		k.t.Fatal(err)
	}
	if isCA {
		if k.ca, err = x509.ParseCertificate(der); err != nil {
			k.t.Fatal(err)
		}
		k.key = key
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		k.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func (k *k3s) write(name string, content []byte) {
	k.t.Helper()
	path := filepath.Join(k.folder, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
		k.t.Fatal(err)
	}
}

// files are the certificates that a node has, by role.
func (k *k3s) files() []string {
	agent := []string{"agent/serving-kubelet.crt", "agent/client-kubelet.crt"}
	if k.unit == ServerUnit {
		return append(agent, "server/tls/client-admin.crt", "server/tls/etcd/client.crt")
	}
	return agent
}

// issue makes all certificates anew.
func (k *k3s) issue(ends time.Time) {
	k.t.Helper()
	for _, name := range k.files() {
		certPEM, keyPEM := k.certificate(ends, false)
		k.write(name, certPEM)
		k.write(strings.TrimSuffix(name, ".crt")+".key", keyPEM)
		if name == "agent/serving-kubelet.crt" {
			pair, err := tls.X509KeyPair(certPEM, keyPEM)
			if err != nil {
				k.t.Fatal(err)
			}
			k.serving = &pair
		}
	}
	if k.unit != ServerUnit {
		return
	}
	certPEM, keyPEM := k.certificate(ends, false)
	text := base64.StdEncoding.EncodeToString
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.ca.Raw})
	k.write("etc/k3s.yaml", fmt.Appendf(nil, "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: %s\n"+
		"    server: %s\n  name: default\nusers:\n- name: default\n  user:\n    client-certificate-data: %s\n"+
		"    client-key-data: %s\n", text(authority), k.api, text(certPEM), text(keyPEM)))
}

const left = 50 * day // of certificates that are to be renewed

func newK3s(t *testing.T, unit string) *k3s {
	t.Helper()
	k := &k3s{t: t, folder: t.TempDir(), unit: unit, now: time.Now().UTC().Truncate(time.Second), active: "active",
		killMode: "process", ready: true, nodes: "own=True second=True"}
	authority, _ := k.certificate(k.now.Add(3650*day), true)
	k.write("agent/server-ca.crt", authority)
	shown := &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*cmp.Or(k.shows, k.serving)}}, nil
	}}
	certPEM, keyPEM := k.certificate(k.now.Add(365*day), false)
	other, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []*string{&k.kubelet, &k.api} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(k.serve))
		if address == &k.api && unit != ServerUnit { // another host
			shown = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{other}}
		}
		server.TLS, server.Config.ErrorLog = shown, log.New(io.Discard, "", 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		*address = server.URL
	}
	k.kubelet = strings.TrimPrefix(k.kubelet, "https://")
	k.write("agent/kubelet.kubeconfig", []byte("clusters:\n- cluster:\n    server: "+k.api+"\n"))
	k.issue(k.now.Add(left))
	return k
}

// serve is the API server.
func (k *k3s) serve(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	answer := func(status int, v any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v) // the test sees what arrives
	}
	switch {
	case r.URL.Path == "/readyz":
		if !k.ready {
			w.WriteHeader(http.StatusInternalServerError)
		}
	case r.URL.Path == "/api/v1/nodes" && r.URL.Query().Get("labelSelector") == "node-role.kubernetes.io/control-plane":
		items := []any{}
		for _, text := range strings.Fields(k.nodes) {
			name, status, _ := strings.Cut(text, "=")
			items = append(items, map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]string{}},
				"status": map[string]any{"conditions": []any{map[string]string{"type": "Ready", "status": status}}}})
		}
		answer(http.StatusOK, map[string]any{"items": items})
	case !strings.HasPrefix(r.URL.Path, leases):
		w.WriteHeader(http.StatusNotFound)
	case k.refuses != 0:
		w.WriteHeader(k.refuses)
	case r.Method == http.MethodGet && k.lease == nil:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		answer(http.StatusOK, k.lease)
	default:
		var l lease
		if err := json.NewDecoder(r.Body).Decode(&l); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		isNew := r.Method == http.MethodPost && r.URL.Path == leases && k.lease == nil
		isNext := r.Method == http.MethodPut && r.URL.Path == leases+"/"+leaseName && k.lease != nil &&
			l.Metadata.ResourceVersion == strconv.Itoa(k.version)
		if k.conflict || !isNew && !isNext {
			k.conflict = false
			w.WriteHeader(http.StatusConflict)
			return
		}
		k.version++
		l.Metadata.ResourceVersion = strconv.Itoa(k.version)
		k.lease = &l
		answer(http.StatusOK, l)
	}
}

func (k *k3s) systemctl(_ context.Context, args ...string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch command := strings.Join(args, " "); command {
	case "show -p ActiveState,KillMode,NRestarts,Job " + k.unit + ".service":
		return fmt.Sprintf("ActiveState=%s\nKillMode=%s\nNRestarts=%d\nJob=\n", k.active, k.killMode, k.restarts), nil
	case "reset-failed " + k.unit + ".service":
		k.restarts = 0
	case "restart --no-block " + k.unit + ".service", "start --no-block " + k.unit + ".service":
		k.starts++
		k.active = "active"
		if k.starting != nil {
			k.starting()
			break
		}
		ends, err := k.read()
		if err != nil {
			return "", err
		}
		if ends[0].NotAfter.Sub(k.now) <= 90*day {
			k.issue(k.now.Add(365 * day))
		}
	default:
		return "", fmt.Errorf("systemctl %s is not known here", command)
	}
	return "", nil
}

// read are the certificates on the disk.
func (k *k3s) read() ([]Certificate, error) {
	var list []Certificate
	for _, name := range k.files() {
		content, err := os.ReadFile(filepath.Join(k.folder, name))
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(content)
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		list = append(list, Certificate{Path: filepath.Join(k.folder, name), NotAfter: c.NotAfter})
	}
	// Not k3s' affair: what Kubernetes has made for itself.
	return append(list, Certificate{Path: filepath.Join(k.folder, "server/tls/temporary-certs/x.crt"), NotAfter: k.now}), nil
}

func (k *k3s) options() Options {
	return Options{
		Unit: k.unit, Name: "own", Kubelet: k.kubelet, Certificates: k.read,
		Hold: func(context.Context) (func(), string, error) {
			if k.held != "" {
				return nil, k.held, nil
			}
			return func() {}, "", nil
		},
		Stall: func(context.Context) (func(), error) { k.stalled++; return func() { k.stalled-- }, nil },
		Log:   func(format string, args ...any) { fmt.Fprintf(&k.log, format+"\n", args...) },

		Systemctl: k.systemctl, Kubeconfig: filepath.Join(k.folder, "etc/k3s.yaml"),
		AgentDir: filepath.Join(k.folder, "agent"), File: filepath.Join(k.folder, "renewal.json"),
		Now: func() time.Time { return k.now }, Poll: time.Millisecond, Patience: 10 * time.Second,
	}
}

func (k *k3s) state() State {
	k.t.Helper()
	content, err := os.ReadFile(filepath.Join(k.folder, "renewal.json"))
	if err != nil {
		k.t.Fatal(err)
	}
	s, err := ParseState(content)
	if err != nil {
		k.t.Fatal(err)
	}
	return s
}

// A renewal is begun when it is time and nothing is in the way, and is done when all is proven.
func TestRun(t *testing.T) {
	for _, test := range []struct {
		name   string
		unit   string
		change func(*k3s)
		starts int
		waits  string // a part of why it is not begun
		want   string // a part of the error
		end    time.Duration
	}{
		{name: "a server", unit: "k3s", starts: 1, end: 365 * day},
		{name: "an agent", unit: "k3s-agent", starts: 1, end: 365 * day},
		{name: "a server that is early", unit: "k3s", change: func(k *k3s) { k.issue(k.now.Add(81 * day)) }, end: 81 * day},
		{name: "a server in time", unit: "k3s", change: func(k *k3s) { k.issue(k.now.Add(80 * day)) }, starts: 1, end: 365 * day},
		{name: "an agent that lets servers go first", unit: "k3s-agent", change: func(k *k3s) { k.issue(k.now.Add(71 * day)) },
			end: 71 * day},
		{name: "a server alone", unit: "k3s", change: func(k *k3s) { k.nodes = "own=True" }, starts: 1, end: 365 * day},
		{name: "certificates have ended", unit: "k3s-agent", change: func(k *k3s) { k.issue(k.now.Add(-day)) }, starts: 1,
			end: 365 * day},
		{name: "they have ended, and nobody can be asked", unit: "k3s",
			change: func(k *k3s) { k.issue(k.now.Add(-day)) }, starts: 1, end: 365 * day},
		{name: "it does not run", unit: "k3s", change: func(k *k3s) { k.active = "inactive" },
			waits: "k3s is inactive, and renews its certificates when it starts", end: left},
		{name: "boxlift works on it", unit: "k3s", change: func(k *k3s) { k.held = "another boxlift is working on this host" },
			waits: "another boxlift is working on this host", end: left},
		{name: "another server is not Ready", unit: "k3s", change: func(k *k3s) { k.nodes = "own=True second=Unknown" },
			waits: "the server second is not Ready", end: left},
		{name: "another server is not Ready, shortly before the end", unit: "k3s", change: func(k *k3s) {
			k.nodes = "own=True second=Unknown"
			k.issue(k.now.Add(30 * day))
		}, starts: 1, end: 365 * day},
		{name: "it is another server's turn", unit: "k3s", change: func(k *k3s) { k.taken("second", k.now, "") },
			waits: "it is the turn of the server second", end: left},
		{name: "another server was broken off in its turn", unit: "k3s",
			change: func(k *k3s) { k.taken("second", k.now.Add(-31*time.Minute), "") }, starts: 1, end: 365 * day},
		{name: "its own turn was broken off", unit: "k3s", change: func(k *k3s) { k.taken("own", k.now, "") }, starts: 1,
			end: 365 * day},
		{name: "another server failed", unit: "k3s", change: func(k *k3s) { k.taken("", k.now, "second") },
			waits: "the renewal on the server second failed: see there", end: left},
		{name: "a server failed that has gone", unit: "k3s", change: func(k *k3s) { k.taken("", k.now, "third") }, starts: 1,
			end: 365 * day},
		{name: "another server is quicker", unit: "k3s", change: func(k *k3s) { k.conflict = true },
			waits: "another server was quicker", end: left},
		{name: "the cluster does not answer", unit: "k3s", change: func(k *k3s) { k.refuses = http.StatusForbidden },
			want: "ask the cluster for this server's turn: read the Lease boxlift-renewal: the API server answers with HTTP 403",
			end:  left},
		{name: "an agent that reaches no server", unit: "k3s-agent", change: func(k *k3s) {
			k.write("agent/kubelet.kubeconfig", []byte("    server: https://127.0.0.1:1\n"))
		}, waits: "no server answers: dial tcp 127.0.0.1:1: ", end: left},
		{name: "an agent that knows no server", unit: "k3s-agent", change: func(k *k3s) {
			k.write("agent/kubelet.kubeconfig", nil)
		}, waits: "kubelet.kubeconfig names no server", end: left},
		{name: "a restart would end pods", unit: "k3s-agent", change: func(k *k3s) { k.killMode = "control-group" },
			want: "KillMode=control-group: starting it again would end the pods of this host", end: left},
		{name: "an unreadable certificate", unit: "k3s-agent", change: func(k *k3s) {
			if err := os.Remove(filepath.Join(k.folder, "agent/client-kubelet.crt")); err != nil {
				k.t.Fatal(err)
			}
		}, want: "read the certificates: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newK3s(t, test.unit)
			if test.change != nil {
				test.change(k)
			}
			err := Run(t.Context(), k.options())
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q\n%s", err, test.want, &k.log)
			}
			if k.starts != test.starts || k.stalled != 0 {
				t.Errorf("k3s was started %d times, want %d; %d stalls are left\n%s", k.starts, test.starts, k.stalled, &k.log)
			}
			s := k.state()
			if !strings.Contains(s.Waits, test.waits) || (s.Waits == "") != (test.waits == "") ||
				!strings.Contains(s.Error, test.want) || !s.Failed.IsZero() || s.Renewed.IsZero() != (test.starts == 0) ||
				!s.Looked.Equal(k.now) || test.end != 0 && !s.Ends.Equal(k.now.Add(test.end)) {
				t.Errorf("the state is %+v", s)
			}
			if k.lease != nil && k.lease.Spec.HolderIdentity == "own" {
				t.Errorf("the turn is not given back: %+v", k.lease)
			}
		})
	}
}

// What others have written into the Lease stays: who is in a hurry does not forget for others that one has failed, and
// who was away for longer than its turn does not take that of another.
func TestLeaseOfOthers(t *testing.T) {
	k := newK3s(t, ServerUnit)
	k.issue(k.now.Add(20 * day))
	k.taken("", k.now, "second")
	if err := Run(t.Context(), k.options()); err != nil || k.starts != 1 || k.lease.Metadata.Annotations[failedOn] != "second" {
		t.Errorf("in a hurry: %v, %d starts, %+v", err, k.starts, k.lease)
	}

	k = newK3s(t, ServerUnit)
	k.starting = func() {
		k.issue(k.now.Add(365 * day))
		k.taken("second", k.now, "")
	}
	if err := Run(t.Context(), k.options()); err != nil || k.lease.Spec.HolderIdentity != "second" {
		t.Errorf("away for long: %v, %+v", err, k.lease)
	}

	k = newK3s(t, ServerUnit)
	k.taken("", k.now, "third") // which has gone
	if err := Run(t.Context(), k.options()); err != nil || len(k.lease.Metadata.Annotations) != 0 {
		t.Errorf("one that has gone: %v, %+v", err, k.lease)
	}
}

// taken has somebody hold the Lease.
func (k *k3s) taken(by string, since time.Time, failed string) {
	k.version = 7
	k.lease = &lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	k.lease.Metadata = leaseMetadata{Name: leaseName, Namespace: "kube-system", ResourceVersion: "7"}
	if failed != "" {
		k.lease.Metadata.Annotations = map[string]string{failedOn: failed}
	}
	k.lease.Spec = leaseSpec{HolderIdentity: by, LeaseDurationSeconds: 1800, RenewTime: since.Format(microTime)}
}

// A renewal that fails leaves k3s running, keeps other servers from going on, is not tried every day, and is forgotten
// when somebody has mended it.
func TestFails(t *testing.T) {
	for _, test := range []struct {
		name     string
		starting func(*k3s)
		starts   int
		want     string
	}{
		{"it is not renewed", func(*k3s) {}, 1, "was not renewed, and ends on"},
		{"it does not start", func(k *k3s) {
			k.active = "failed"
			k.starting = nil // the second time it does
		}, 2, "it does not start: it is failed"},
		{"it ends again and again", func(k *k3s) { k.active, k.restarts = "activating", 3 }, 1, "tried again 3 times"},
		{"it is not ready", func(k *k3s) {
			k.issue(k.now.Add(365 * day))
			k.ready = false
		}, 1, "ask the API server of this host whether it is ready: it answers with HTTP 500"},
		{"an old certificate is shown", func(k *k3s) {
			k.shows = k.serving
			k.issue(k.now.Add(365 * day))
		}, 1, "the certificate that is shown was not renewed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := newK3s(t, ServerUnit)
			k.starting = func() { test.starting(k) }
			o := k.options()
			o.Patience = time.Second
			err := Run(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if k.starts != test.starts || k.active == "failed" {
				t.Errorf("k3s was started %d times, and is %s", k.starts, k.active)
			}
			s := k.state()
			if !s.Failed.Equal(k.now) || !strings.Contains(s.Error, test.want) || !s.Renewed.IsZero() {
				t.Errorf("the state is %+v", s)
			}
			if k.lease == nil || k.lease.Metadata.Annotations[failedOn] != "own" || k.lease.Spec.HolderIdentity != "" {
				t.Errorf("the Lease is %+v", k.lease)
			}
		})
	}

	k := newK3s(t, ServerUnit)
	k.starting = func() {} // this k3s renews nothing
	o := k.options()
	o.Patience = time.Second
	first := Run(t.Context(), o)
	k.now = k.now.Add(6 * day)
	if err := Run(t.Context(), o); first == nil || err == nil || err.Error() != first.Error() || k.starts != 1 {
		t.Errorf("six days later: %v, started %d times; first %v", err, k.starts, first)
	}
	k.now = k.now.Add(day)
	if err := Run(t.Context(), o); err == nil || k.starts != 2 {
		t.Errorf("a week later: %v, started %d times", err, k.starts)
	}
	k.now = k.now.Add(day)
	k.issue(k.now.Add(365 * day)) // by somebody
	if err := Run(t.Context(), o); err != nil {
		t.Error(err)
	}
	want := State{Version: StateVersion, Looked: k.now, Ends: k.now.Add(365 * day)}
	if diff := gocmp.Diff(want, k.state()); diff != "" {
		t.Error(diff)
	}
	if len(k.lease.Metadata.Annotations) != 0 {
		t.Errorf("the Lease is %+v", k.lease)
	}
}

// A look that is broken off leaves k3s to systemd, and the next look finds what came of it.
func TestBrokenOff(t *testing.T) {
	k := newK3s(t, ServerUnit)
	ctx, cancel := context.WithCancel(t.Context())
	k.starting = func() {
		k.issue(k.now.Add(365 * day))
		cancel()
	}
	o := k.options()
	if err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("broken off: %v", err)
	}
	k.now = k.now.Add(day)
	if err := Run(t.Context(), o); err != nil || k.starts != 1 {
		t.Errorf("the day after: %v, started %d times", err, k.starts)
	}
	if s := k.state(); s.Error != "" || s.Waits != "" || !s.Failed.IsZero() {
		t.Errorf("the state is %+v", s)
	}
}

func TestKubeconfig(t *testing.T) {
	k := newK3s(t, ServerUnit)
	good, err := os.ReadFile(filepath.Join(k.folder, "etc/k3s.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ content, want string }{
		"empty":      {"", "it is no kubeconfig as k3s writes it"},
		"no TLS":     {strings.Replace(string(good), "https://", "http://", 1), "it is no kubeconfig as k3s writes it"},
		"no base64":  {strings.Replace(string(good), "client-key-data: ", "client-key-data: CANARY-", 1), "its client-key-data is no base64"},
		"too large":  {strings.Repeat("# x\n", maxKubeconfig), "it has more than 1048576 bytes"},
		"half a key": {string(good[:len(good)-41]), "it is no kubeconfig as k3s writes it"},
	} {
		k.write("etc/k3s.yaml", []byte(test.content))
		o := k.options()
		if _, err := o.cluster(); err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestParseState(t *testing.T) {
	full := State{Version: 1, Looked: time.Unix(1, 0).UTC(), Waits: "x", Error: "y"}
	document, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := ParseState(document); err != nil || s != full {
		t.Errorf("%+v, %v", s, err)
	}
	bad := map[string]string{
		"nothing":         "",
		"another version": `{"version":2,"looked":"2026-01-01T00:00:00Z"}`,
		"unknown":         `{"version":1,"looked":"2026-01-01T00:00:00Z","more":1}`,
		"never":           `{"version":1}`,
		"too large":       `{"version":1,"error":"` + strings.Repeat("x", MaxState) + `"}`,
		"two":             string(document) + string(document),
	}
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		if s, err := ParseState([]byte(bad[name])); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"version":1,"looked":"2026-01-01T00:00:00Z","error":"\u001b[2J"}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		s, err := ParseState(document)
		if err == nil && (s.Looked.IsZero() || len(s.Error) > 2*maxText || strings.ContainsAny(s.Error+s.Waits, "\x1b\n")) {
			t.Errorf("%+v", s)
		}
	})
}
