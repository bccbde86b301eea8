// Package server is the part of k3s that servers run: etcd or kine, the API server and
// the controllers as children, and the port through which nodes join and
// clients reach the API.
//
//	:6443            nodes and clients; what is not k3s' own goes to the API server
//	127.0.0.2:6443   the API server itself, which thereby publishes port 6443
//	127.0.0.1:6444   the way there for what runs on the node, see package agent
//	:2379, :2380     etcd, with cluster-init or a server to join, on the node's address and 127.0.0.1
//	kine.sock        in the data folder, without them: kine, which keeps all in SQLite
package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/liteboxd/boxlift/test/k3s/agent"
	"github.com/liteboxd/boxlift/test/k3s/join"
	"github.com/liteboxd/boxlift/test/k3s/pki"
	"github.com/liteboxd/boxlift/test/k3s/process"
	"github.com/liteboxd/boxlift/test/k3s/settings"
	"github.com/liteboxd/boxlift/test/k3s/token"
)

const apiHost = "127.0.0.2" // the API server's own address

// Server is one server of a cluster. Fill the fields in, then Run.
type Server struct {
	Settings settings.Settings
	Group    *process.Group
	Program  string // this program, whose other commands are the components

	node       agent.Node
	dataDir    string
	port       string
	config     join.Config
	token      token.Token // complete
	agentToken string      // a password for agents only; empty: the servers' lets agents in too
	clustered  bool        // the datastore is etcd, open to further servers
	ready      atomic.Bool // the API answers
	client     *kubernetes.Clientset
}

// AgentToken is what agents join with, the node's own among them. It is known after Prepare.
func (s *Server) AgentToken() token.Token {
	return token.Token{Hash: s.token.Hash, User: "node", Password: cmp.Or(s.agentToken, s.token.Password)}
}

// URL is where the server answers on its own node.
func (s *Server) URL() string { return "https://127.0.0.1:" + s.port }

// APIServer is the address of the API server on its own node.
func (s *Server) APIServer() string { return net.JoinHostPort(apiHost, s.port) }

func (s *Server) path(parts ...string) string {
	return filepath.Join(append([]string{s.dataDir, "server"}, parts...)...)
}

func (s *Server) tls(parts ...string) string {
	return s.path(append([]string{"tls"}, parts...)...)
}

// Prepare finds or makes what the cluster is known by, and the certificates.
func (s *Server) Prepare(ctx context.Context) (err error) {
	s.dataDir = s.Settings.Get("data-dir", "/var/lib/rancher/k3s")
	s.port = s.Settings.Get("https-listen-port", "6443")
	if s.node, err = agent.Identify(s.Settings); err != nil {
		return err
	}
	if s.config, err = clusterConfig(s.Settings); err != nil {
		return err
	}
	for _, dir := range []string{s.tls("etcd"), s.path("cred"), s.path("db"), s.path("manifests")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	s.clustered = s.Settings.Bool("cluster-init") || s.Settings.Get("server", "") != "" || exists(s.path("db", "etcd", "name"))
	if !s.clustered {
		if err := s.startSQLite(ctx); err != nil {
			return err
		}
	}
	if err := s.settleIdentity(ctx); err != nil {
		return err
	}
	if err := s.settleToken(); err != nil {
		return err
	}
	return s.issue()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func clusterConfig(s settings.Settings) (join.Config, error) {
	c := join.Config{
		ClusterCIDR: s.Split("cluster-cidr", "10.42.0.0/16")[0], ServiceCIDR: s.Split("service-cidr", "10.43.0.0/16")[0],
		ClusterDomain: s.Get("cluster-domain", "cluster.local"), FlannelBackend: s.Get("flannel-backend", "vxlan"),
		EgressSelectorMode: s.Get("egress-selector-mode", "agent"), Disable: slices.Sorted(slices.Values(s.Split("disable"))),
		DisableKubeProxy: s.Bool("disable-kube-proxy"), DisableNetworkPolicy: s.Bool("disable-network-policy"),
		DisableHelm: s.Bool("disable-helm-controller"), DisableCCM: s.Bool("disable-cloud-controller"),
		EncryptSecrets: s.Bool("secrets-encryption"), EmbeddedRegistry: s.Bool("embedded-registry"),
		HTTPSPort: s.Get("https-listen-port", "6443"),
	}
	for _, cidr := range []string{c.ClusterCIDR, c.ServiceCIDR} {
		if _, _, err := net.ParseCIDR(cidr); err != nil {
			return c, err
		}
	}
	dns, err := serviceIP(c.ServiceCIDR, 10)
	c.ClusterDNS = s.Split("cluster-dns", dns)[0]
	return c, err
}

// serviceIP is the nth address of the services' network.
func serviceIP(cidr string, n byte) (string, error) {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		return "", err
	}
	ip := slices.Clone(network.IP)
	ip[len(ip)-1] += n
	return ip.String(), nil
}

// authorities are the cluster's CAs, which all servers have: file and name.
var authorities = [][2]string{{"server-ca", "server-ca"}, {"client-ca", "client-ca"}, {"request-header-ca", "request-header-ca"},
	{"etcd/server-ca", "etcd-server-ca"}, {"etcd/peer-ca", "etcd-peer-ca"}}

// shared are the files that all servers have, below server.
func shared() []string {
	files := []string{"tls/service.key", "cred/encryption-config.json"}
	for _, ca := range authorities {
		files = append(files, "tls/"+ca[0]+".crt", "tls/"+ca[0]+".key")
	}
	return files
}

// settleIdentity makes the cluster's CAs, or gets them from the server to join. Those that it finds before its first start
// it takes for the cluster's.
func (s *Server) settleIdentity(ctx context.Context) error {
	given := exists(s.tls("server-ca.crt"))
	if given && exists(s.path("token")) { // which is written later than all of them
		return nil
	}
	if url := s.Settings.Get("server", ""); url != "" {
		if given {
			return nil
		}
		return s.fetchIdentity(ctx, url)
	}
	for _, ca := range slices.Backward(authorities) { // server-ca last: with it, all are there
		if exists(s.tls(ca[0]+".crt")) && exists(s.tls(ca[0]+".key")) {
			if ca[0] != "server-ca" {
				continue
			}
			if !exists(s.tls("service.key")) {
				if _, err := pki.EnsureKey(s.tls("service.key")); err != nil {
					return err
				}
			}
			if exists(s.path("cred", "encryption-config.json")) {
				return nil
			}
			return s.writeEncryption()
		}
		cert, key, err := pki.NewCA(ca[1])
		if err != nil {
			return err
		}
		if ca[0] == "server-ca" {
			if _, err := pki.EnsureKey(s.tls("service.key")); err != nil {
				return err
			}
			if err := s.writeEncryption(); err != nil {
				return err
			}
		}
		if err := os.WriteFile(s.tls(ca[0]+".key"), key, 0o600); err != nil {
			return err
		}
		if err := os.WriteFile(s.tls(ca[0]+".crt"), cert, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) writeEncryption() error {
	if !s.config.EncryptSecrets {
		return nil
	}
	key := make([]byte, 32)
	copy(key, token.NewPassword()+token.NewPassword())
	provider := map[string]any{"aescbc": map[string]any{"keys": []any{map[string]any{"name": "aescbckey", "secret": key}}}}
	config := map[string]any{"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1",
		"resources": []any{map[string]any{"resources": []string{"secrets"}, "providers": []any{provider, map[string]any{"identity": map[string]any{}}}}}}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	return os.WriteFile(s.path("cred", "encryption-config.json"), text, 0o600)
}

func (s *Server) joinClient(ctx context.Context, url string) (*join.Client, error) {
	text, err := s.Settings.Token("")
	if err != nil {
		return nil, err
	}
	if text == "" {
		return nil, errors.New("--token is required")
	}
	given, err := token.Parse(text)
	if err != nil {
		return nil, err
	}
	given.User = "server"
	return join.Connect(ctx, url, given)
}

// fetchIdentity gets the CAs from the server to join, if it agrees about the cluster.
func (s *Server) fetchIdentity(ctx context.Context, url string) error {
	client, err := s.joinClient(ctx, url)
	if err != nil {
		return fmt.Errorf("preparing server: %w", err)
	}
	if err := s.compareConfig(ctx, *client); err != nil {
		return fmt.Errorf("preparing server: failed to validate server configuration: %w", err)
	}
	body, err := client.Get(ctx, "/v1-k3s/server-bootstrap")
	if err != nil {
		return fmt.Errorf("preparing server: %w", err)
	}
	var bootstrap join.Bootstrap
	if err := json.Unmarshal(body, &bootstrap); err != nil {
		return fmt.Errorf("preparing server: read bootstrap data: %w", err)
	}
	return s.writeShared(bootstrap)
}

// compareConfig asks as an agent what the cluster is configured with. A server that lets agents in by another token
// than this one does not tell, and then nothing is compared.
func (s *Server) compareConfig(ctx context.Context, client join.Client) error {
	password, err := s.Settings.Token("agent-")
	if err != nil {
		return err
	}
	client.Token = token.Token{User: "node", Password: cmp.Or(password, client.Token.Password)}
	theirs, err := client.Config(ctx)
	if err != nil {
		logrus.Warnf("Skipping cluster configuration validation: %v", err)
		return nil
	}
	if theirs.HTTPSPort = s.config.HTTPSPort; !reflect.DeepEqual(normal(theirs), normal(s.config)) {
		for i := range reflect.TypeFor[join.Config]().NumField() {
			field := reflect.TypeFor[join.Config]().Field(i)
			if a, b := reflect.ValueOf(normal(theirs)).Field(i).Interface(), reflect.ValueOf(normal(s.config)).Field(i).Interface(); !reflect.DeepEqual(a, b) {
				logrus.Warnf("critical configuration mismatched: %s: %v here, %v on the server", field.Name, b, a)
			}
		}
		return errors.New("critical configuration value mismatch between servers")
	}
	return nil
}

func normal(c join.Config) join.Config {
	if len(c.Disable) == 0 {
		c.Disable = nil
	}
	return c
}

func (s *Server) writeShared(bootstrap join.Bootstrap) error {
	for _, name := range slices.Backward(shared()) {
		text, ok := bootstrap.Files[name]
		if !ok || name == "tls/server-ca.crt" {
			continue
		}
		if err := os.WriteFile(s.path(name), text, 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(s.tls("server-ca.crt"), bootstrap.Files["tls/server-ca.crt"], 0o644)
}

// readShared is what a joining server gets.
func (s *Server) readShared() (join.Bootstrap, error) {
	bootstrap := join.Bootstrap{Files: map[string][]byte{}}
	for _, name := range shared() {
		text, err := os.ReadFile(s.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return bootstrap, err
		}
		bootstrap.Files[name] = text
	}
	return bootstrap, nil
}

// settleToken compares the given token with the one on disk, or writes it.
func (s *Server) settleToken() error {
	ca, err := os.ReadFile(s.tls("server-ca.crt"))
	if err != nil {
		return err
	}
	text, err := s.Settings.Token("")
	if err != nil {
		return err
	}
	given, err := token.Parse(text)
	if err != nil {
		return err
	}
	if given.Hash != "" && given.Hash != token.Hash(ca) {
		return fmt.Errorf("preparing server: token CA hash does not match the Cluster CA certificate hash: %s != %s", given.Hash, token.Hash(ca))
	}
	stored, err := os.ReadFile(s.path("token"))
	switch {
	case err == nil:
		known, err := token.Parse(strings.TrimSpace(string(stored)))
		if err != nil {
			return err
		}
		switch {
		case given.Password == "" || given.Password == known.Password:
			given = known
		case s.clustered && !s.Settings.Bool("cluster-reset"):
			// Another server may have rotated it: when etcd runs, saveBootstrap finds out.
			s.token = token.Token{Hash: token.Hash(ca), User: "server", Password: given.Password}
			s.agentToken, err = s.Settings.Token("agent-")
			return err
		default:
			return errors.New("preparing server: bootstrap data already found and encrypted with different token")
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case given.Password == "":
		given.Password = token.NewPassword()
	}
	s.token = token.Token{Hash: token.Hash(ca), User: "server", Password: given.Password}
	if s.agentToken, err = s.Settings.Token("agent-"); err != nil {
		return err
	}
	return s.writeTokens()
}

// writeTokens writes what others may join with.
func (s *Server) writeTokens() error {
	if err := writeSecret(s.path("token"), s.token.String()+"\n"); err != nil {
		return err
	}
	links := map[string]string{"node-token": "token", "agent-token": "token"}
	if s.agentToken != "" {
		delete(links, "agent-token")
		if err := writeSecret(s.path("agent-token"), s.AgentToken().String()+"\n"); err != nil {
			return err
		}
	}
	for link, target := range links {
		if err := os.Remove(s.path(link)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(filepath.Join(s.path(), target), s.path(link)); err != nil {
			return err
		}
	}
	return nil
}

func writeSecret(path, text string) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o600)
}

// issue makes the server's own certificates and kubeconfigs.
func (s *Server) issue() error {
	// Controllers want one certificate alone, not a chain.
	if err := pki.WriteFirst(s.tls("client-ca.crt"), s.tls("client-ca.nochain.crt")); err != nil {
		return err
	}
	cas := map[string]*pki.CA{}
	for _, ca := range authorities {
		var err error
		if cas[ca[0]], err = pki.ReadCA(s.tls(ca[0])); err != nil {
			return err
		}
	}
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	first, err := serviceIP(s.config.ServiceCIDR, 1)
	if err != nil {
		return err
	}
	local := []string{"127.0.0.1", "::1", "localhost", s.node.IP, hostname, s.node.Name}
	names := slices.Concat(local, []string{apiHost, first, "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc." + s.config.ClusterDomain}, s.Settings.Split("tls-san"), s.Settings.Split("node-ip"),
		s.Settings.Split("node-external-ip"), s.Settings.Split("advertise-address"))
	masters := []string{"system:masters"}
	for _, c := range []struct {
		ca, file string
		subject  pki.Subject
	}{
		{"server-ca", "serving-kube-apiserver", pki.Subject{CommonName: "kube-apiserver", Names: names}},
		{"client-ca", "client-kube-apiserver", pki.Subject{CommonName: "system:apiserver", Organizations: masters}},
		{"client-ca", "client-admin", pki.Subject{CommonName: "system:admin", Organizations: masters}},
		{"client-ca", "client-supervisor", pki.Subject{CommonName: "system:k3s-supervisor", Organizations: masters}},
		{"client-ca", "client-controller", pki.Subject{CommonName: "system:kube-controller-manager"}},
		{"client-ca", "client-scheduler", pki.Subject{CommonName: "system:kube-scheduler"}},
		{"request-header-ca", "client-auth-proxy", pki.Subject{CommonName: "system:auth-proxy"}},
		{"etcd/server-ca", "etcd/server-client", pki.Subject{CommonName: "etcd-server", Names: local}},
		{"etcd/server-ca", "etcd/client", pki.Subject{CommonName: "etcd-client"}},
		{"etcd/peer-ca", "etcd/peer-server-client", pki.Subject{CommonName: "etcd-peer", Names: local}},
	} {
		if err := cas[c.ca].Issue(s.tls(c.file), c.subject); err != nil {
			return fmt.Errorf("issue %s: %w", c.file, err)
		}
	}
	for file, cert := range map[string]string{"admin": "client-admin", "supervisor": "client-supervisor",
		"controller": "client-controller", "scheduler": "client-scheduler"} {
		text := agent.Kubeconfig("https://"+s.APIServer(), s.tls("server-ca.crt"), s.tls(cert))
		if err := os.WriteFile(s.path("cred", file+".kubeconfig"), text, 0o600); err != nil {
			return err
		}
	}
	return s.writeKubeconfig()
}

// writeKubeconfig writes the administrator's kubeconfig, complete in itself.
func (s *Server) writeKubeconfig() error {
	path := s.Settings.Get("write-kubeconfig", "/etc/rancher/k3s/k3s.yaml")
	mode, err := strconv.ParseUint(s.Settings.Get("write-kubeconfig-mode", "600"), 8, 12)
	if err != nil {
		return fmt.Errorf("write-kubeconfig-mode: %w", err)
	}
	var data [3][]byte
	for i, file := range []string{"server-ca.crt", "client-admin.crt", "client-admin.key"} {
		if data[i], err = os.ReadFile(s.tls(file)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	text := embedded(s.URL(), data[0], data[1], data[2])
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	logrus.Infof("Wrote kubeconfig %s", path)
	return os.Chmod(path, os.FileMode(mode))
}

// Run starts the control plane, and returns when the API answers and its own
// controllers have begun.
func (s *Server) Run(ctx context.Context) error {
	if err := s.serve(ctx); err != nil {
		return err
	}
	if s.clustered {
		if err := s.startEtcd(ctx); err != nil {
			return err
		}
		if err := s.migrateSQLite(ctx); err != nil {
			return err
		}
	}
	if err := s.startAPIServer(); err != nil {
		return err
	}
	if err := s.waitAPI(ctx); err != nil {
		return err
	}
	logrus.Infof("Kube API server is now running")
	s.ready.Store(true)
	if err := s.saveBootstrap(ctx); err != nil {
		return fmt.Errorf("save bootstrap data: %w", err)
	}
	if err := s.startControllers(); err != nil {
		return err
	}
	go s.tend(ctx)
	return nil
}

func (s *Server) waitAPI(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.path("cred", "supervisor.kubeconfig"))
	if err != nil {
		return err
	}
	config.Timeout = 15 * time.Second
	config.QPS, config.Burst = 50, 100
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	began := time.Now()
	for {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := s.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(short)
		cancel()
		if err == nil {
			return nil
		}
		if time.Since(began) > 15*time.Second {
			logrus.Infof("Waiting for API server to become available: %v", err)
			began = time.Now()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.Group.Failed:
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (s *Server) start(name string, args []string) error {
	logrus.Infof("Running %s %s", name, strings.Join(args, " "))
	cmd := exec.Command(s.Program, append([]string{name}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return s.Group.Start(name, cmd)
}

func (s *Server) startAPIServer() error {
	args := []string{
		"--advertise-address=" + s.Settings.Split("advertise-address", s.node.IP)[0],
		// The published port is the one that the API server listens on, and
		// the same as that of package server; so they share it.
		"--bind-address=" + apiHost, "--secure-port=" + s.port, "--permit-port-sharing=true",
		"--allow-privileged=true", "--anonymous-auth=false", "--profiling=false",
		"--api-audiences=https://kubernetes.default.svc." + s.config.ClusterDomain + ",k3s",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true",
		"--cert-dir=" + s.tls("temporary-certs"), "--client-ca-file=" + s.tls("client-ca.crt"),
		"--kubelet-certificate-authority=" + s.tls("server-ca.crt"),
		"--kubelet-client-certificate=" + s.tls("client-kube-apiserver.crt"), "--kubelet-client-key=" + s.tls("client-kube-apiserver.key"),
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"--proxy-client-cert-file=" + s.tls("client-auth-proxy.crt"), "--proxy-client-key-file=" + s.tls("client-auth-proxy.key"),
		"--requestheader-allowed-names=system:auth-proxy", "--requestheader-client-ca-file=" + s.tls("request-header-ca.crt"),
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--service-account-issuer=https://kubernetes.default.svc." + s.config.ClusterDomain,
		"--service-account-key-file=" + s.tls("service.key"), "--service-account-signing-key-file=" + s.tls("service.key"),
		"--service-cluster-ip-range=" + s.config.ServiceCIDR,
		"--service-node-port-range=" + s.Settings.Get("service-node-port-range", "30000-32767"),
		"--tls-cert-file=" + s.tls("serving-kube-apiserver.crt"), "--tls-private-key-file=" + s.tls("serving-kube-apiserver.key"),
	}
	if s.clustered {
		args = append(args, "--etcd-servers=https://127.0.0.1:2379", "--etcd-cafile="+s.tls("etcd/server-ca.crt"),
			"--etcd-certfile="+s.tls("etcd/client.crt"), "--etcd-keyfile="+s.tls("etcd/client.key"))
	} else {
		args = append(args, "--etcd-servers=unix://"+s.kineSocket())
	}
	if exists(s.path("cred", "encryption-config.json")) {
		args = append(args, "--encryption-provider-config="+s.path("cred", "encryption-config.json"))
	}
	return s.start("kube-apiserver", append(args, agent.Args(s.Settings.List("kube-apiserver-arg"))...))
}

func (s *Server) startControllers() error {
	elect := fmt.Sprintf("--leader-elect=%t", s.clustered)
	kubeconfig := s.path("cred", "controller.kubeconfig")
	args := []string{"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		elect, "--allocate-node-cidrs=true", "--configure-cloud-routes=false", "--bind-address=127.0.0.1", "--profiling=false",
		"--cluster-cidr=" + s.config.ClusterCIDR, "--service-cluster-ip-range=" + s.config.ServiceCIDR,
		"--cluster-signing-cert-file=" + s.tls("client-ca.nochain.crt"), "--cluster-signing-key-file=" + s.tls("client-ca.key"),
		"--controllers=*,tokencleaner", "--root-ca-file=" + s.tls("server-ca.crt"),
		"--service-account-private-key-file=" + s.tls("service.key"), "--use-service-account-credentials=true"}
	if err := s.start("kube-controller-manager", append(args, agent.Args(s.Settings.List("kube-controller-manager-arg"))...)); err != nil {
		return err
	}
	kubeconfig = s.path("cred", "scheduler.kubeconfig")
	args = []string{"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		elect, "--bind-address=127.0.0.1", "--profiling=false"}
	return s.start("kube-scheduler", append(args, agent.Args(s.Settings.List("kube-scheduler-arg"))...))
}
