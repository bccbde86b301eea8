// Package agent is the part of k3s that every node runs, servers too: the way to
// the API, containerd, the kubelet, kube-proxy, and the pods' network unless
// another brings it.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/liteboxd/boxlift/test/k3s/balancer"
	"github.com/liteboxd/boxlift/test/k3s/carried"
	"github.com/liteboxd/boxlift/test/k3s/containerd"
	"github.com/liteboxd/boxlift/test/k3s/join"
	"github.com/liteboxd/boxlift/test/k3s/pki"
	"github.com/liteboxd/boxlift/test/k3s/process"
	"github.com/liteboxd/boxlift/test/k3s/registries"
	"github.com/liteboxd/boxlift/test/k3s/settings"
	"github.com/liteboxd/boxlift/test/k3s/token"
)

// Agent is a node. Fill the fields in, then Run.
type Agent struct {
	Settings settings.Settings
	Group    *process.Group
	Program  string // this program, whose other commands are the components
	Token    token.Token
	// APIServer is where 127.0.0.1:6444 leads on a server; empty on agents,
	// which balance between the servers.
	APIServer string
	// URL is the server to join, or the server itself.
	URL string
	// NodeSeen is called when the cluster has the node's object. That of a node that is known is there before
	// containerd is.
	NodeSeen func()

	node    Node
	config  join.Config
	client  *join.Client
	dataDir string
}

// Node is how a node calls itself.
type Node struct{ Name, IP string }

// Identify finds out the node's name and address.
func Identify(s settings.Settings) (Node, error) {
	var n Node
	n.Name = s.Get("node-name", "")
	if n.Name == "" {
		hostname, err := os.Hostname()
		if err != nil {
			return n, err
		}
		n.Name = hostname
	}
	n.Name = strings.ToLower(n.Name)
	if ips := s.Split("node-ip"); len(ips) > 0 {
		n.IP = ips[0]
		if net.ParseIP(n.IP) == nil {
			return n, fmt.Errorf("invalid node-ip %q", n.IP)
		}
		return n, nil
	}
	// The address that packets to elsewhere would have; nothing is sent.
	conn, err := net.Dial("udp4", "203.0.113.1:9")
	if err != nil {
		return n, fmt.Errorf("no default routes found: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing was written
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	n.IP = host
	return n, err
}

func (a *Agent) path(parts ...string) string {
	return filepath.Join(append([]string{a.dataDir, "agent"}, parts...)...)
}

// Run starts everything, and returns when the kubelet runs.
func (a *Agent) Run(ctx context.Context) (err error) {
	a.dataDir = a.Settings.Get("data-dir", "/var/lib/rancher/k3s")
	if a.node, err = Identify(a.Settings); err != nil {
		return err
	}
	if err := os.MkdirAll(a.path("etc"), 0o755); err != nil {
		return err
	}
	lb, configured, err := a.listen(ctx)
	if err != nil {
		return err
	}
	if err := a.join(ctx); err != nil {
		return err
	}
	if lb != nil {
		go a.followServers(ctx, lb, configured)
	}
	if a.NodeSeen != nil {
		go a.awaitNode(ctx)
	}
	reg, err := registries.Read(a.Settings.Get("private-registry", "/etc/rancher/k3s/registries.yaml"))
	if err != nil {
		return err
	}
	system := a.Settings.Get("system-default-registry", "")
	pause := a.Settings.Get("pause-image", "rancher/mirrored-pause:3.6")
	if first, _, ok := strings.Cut(pause, "/"); !ok || !strings.ContainsAny(first, ".:") {
		pause = "docker.io/" + pause
		if system != "" {
			pause = system + strings.TrimPrefix(pause, "docker.io")
		}
	}
	options := containerd.Options{
		DataDir: a.dataDir, PauseImage: pause, Snapshotter: a.Settings.Get("snapshotter", "overlayfs"),
		PodNetwork: a.config.FlannelBackend != "none", SELinux: a.Settings.Bool("selinux"),
		Registries: reg, NoDefault: a.Settings.Bool("disable-default-registry-endpoint"),
		ExtraImports: a.Settings.Split("airgap-extra-registry"),
	}
	if system != "" {
		options.ExtraImports = append(options.ExtraImports, system)
	}
	if err := carried.Unpack(a.Program, carried.Bin(a.dataDir), containerd.Program, containerd.Shim); err != nil {
		return err
	}
	if err := containerd.Start(ctx, a.Group, options); err != nil {
		return err
	}
	if err := a.startKubelet(ctx); err != nil {
		return err
	}
	if options.PodNetwork {
		go a.podNetwork(ctx, options.CNIDir())
	}
	if !a.config.DisableKubeProxy {
		if err := a.startKubeProxy(); err != nil {
			return err
		}
	}
	return a.waitKubelet(ctx)
}

// listen opens 127.0.0.1:6444, the way to the API on every node. On agents it
// gives the balancer behind it, and the address that it was configured with.
func (a *Agent) listen(ctx context.Context) (*balancer.Balancer, string, error) {
	port := a.Settings.Get("lb-server-port", "6444")
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return nil, "", err
	}
	servers := []string{a.APIServer}
	var lb *balancer.Balancer
	if a.APIServer == "" {
		u, err := url.Parse(a.URL)
		if err != nil {
			return nil, "", err
		}
		address := u.Host
		if u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), "443")
		}
		servers = a.knownServers(address)
		logrus.Infof("Running load balancer k3s-agent-load-balancer 127.0.0.1:%s -> %v [default: %s]", port, servers, address)
		a.URL = "https://127.0.0.1:" + port
		lb = balancer.New(servers, func(servers []string) {
			logrus.Infof("Updated load balancer k3s-agent-load-balancer server addresses -> %v", servers)
			a.saveServers(address, servers)
		})
		go a.balance(ctx, lb, listener)
		return lb, address, nil
	}
	go a.balance(ctx, balancer.New(servers, nil), listener)
	return nil, "", nil
}

func (a *Agent) balance(ctx context.Context, lb *balancer.Balancer, listener net.Listener) {
	if err := lb.Serve(ctx, listener); err != nil {
		a.Group.Failed <- fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
}

type balancerFile struct {
	ServerURL       string   `json:"ServerURL"`
	ServerAddresses []string `json:"ServerAddresses"`
}

func (a *Agent) balancerPath() string { return a.path("etc", "k3s-agent-load-balancer.json") }

// knownServers is the configured server and those learnt earlier.
func (a *Agent) knownServers(configured string) []string {
	servers := []string{configured}
	text, err := os.ReadFile(a.balancerPath())
	if err != nil {
		return servers
	}
	var file balancerFile
	if err := json.Unmarshal(text, &file); err != nil || file.ServerURL != "https://"+configured {
		return servers
	}
	for _, server := range file.ServerAddresses {
		if server != configured {
			servers = append(servers, server)
		}
	}
	return servers
}

func (a *Agent) saveServers(configured string, servers []string) {
	text, err := json.Marshal(balancerFile{ServerURL: "https://" + configured, ServerAddresses: servers})
	if err == nil {
		err = os.WriteFile(a.balancerPath(), text, 0o600)
	}
	if err != nil {
		logrus.Errorf("Failed to save the load balancer's servers: %v", err)
	}
}

// followServers keeps the balancer's list of servers as the cluster has it.
func (a *Agent) followServers(ctx context.Context, lb *balancer.Balancer, configured string) {
	for {
		body, err := a.client.Get(ctx, "/v1-k3s/apiservers")
		var servers []string
		if err == nil && json.Unmarshal(body, &servers) == nil && len(servers) > 0 {
			// The configured address may lead to servers in another way.
			if !slices.Contains(servers, configured) {
				servers = append(servers, configured)
			}
			lb.Set(servers)
		}
		if !Sleep(ctx, 5*time.Second) {
			return
		}
	}
}

// Sleep waits, and says whether it did so to the end.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// join learns about the cluster and gets the node's certificates. Like k3s it
// tries for ever: what is wrong is in the log, and the service is never ready.
func (a *Agent) join(ctx context.Context) error {
	for {
		err := a.tryJoin(ctx)
		if err == nil {
			return nil
		}
		logrus.Errorf("Waiting to retrieve agent configuration; server is not ready: %v", err)
		if !Sleep(ctx, 2*time.Second) {
			return ctx.Err()
		}
	}
}

func (a *Agent) tryJoin(ctx context.Context) (err error) {
	if a.client, err = join.Connect(ctx, a.URL, a.Token); err != nil {
		return err
	}
	if a.config, err = a.client.Config(ctx); err != nil {
		return fmt.Errorf("failed to retrieve configuration from server: %w", err)
	}
	if err := os.WriteFile(a.path("server-ca.crt"), a.client.CA, 0o644); err != nil {
		return err
	}
	clientCA, err := a.client.Get(ctx, "/v1-k3s/client-ca.crt")
	if err != nil {
		return err
	}
	if err := os.WriteFile(a.path("client-ca.crt"), clientCA, 0o644); err != nil {
		return err
	}
	password, err := nodePassword()
	if err != nil {
		return err
	}
	header := http.Header{}
	header.Set(join.HeaderNodeName, a.node.Name)
	header.Set(join.HeaderNodePassword, password)
	header.Set(join.HeaderNodeIP, a.node.IP)
	for _, name := range []string{"client-kubelet", "serving-kubelet", "client-kube-proxy"} {
		key, err := pki.EnsureKey(a.path(name + ".key"))
		if err != nil {
			return err
		}
		public, err := pki.PublicPEM(key)
		if err != nil {
			return err
		}
		cert, err := a.client.Post(ctx, "/v1-k3s/"+name+".crt", header, public)
		if err != nil {
			return fmt.Errorf("failed to get %s.crt: %w", name, err)
		}
		if err := os.WriteFile(a.path(name+".crt"), cert, 0o644); err != nil {
			return err
		}
	}
	for kubeconfig, cert := range map[string]string{"kubelet.kubeconfig": "client-kubelet", "kubeproxy.kubeconfig": "client-kube-proxy"} {
		text := Kubeconfig("https://127.0.0.1:"+a.Settings.Get("lb-server-port", "6444"), a.path("server-ca.crt"), a.path(cert))
		if err := os.WriteFile(a.path(kubeconfig), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Kubeconfig refers to a CA's file and to base.crt and base.key.
func Kubeconfig(server, ca, base string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- cluster:
    server: %s
    certificate-authority: %s
  name: local
contexts:
- context:
    cluster: local
    namespace: default
    user: user
  name: Default
current-context: Default
users:
- name: user
  user:
    client-certificate: %s.crt
    client-key: %s.key
`, server, ca, base, base)
}

// nodePassword is what shows a server that a node of a known name is the same one.
func nodePassword() (string, error) {
	const path = "/etc/rancher/node/password"
	text, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	password := token.NewPassword()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return password, os.WriteFile(path, []byte(password+"\n"), 0o600)
}

func (a *Agent) startKubeProxy() error {
	args := []string{"kube-proxy", "--kubeconfig=" + a.path("kubeproxy.kubeconfig"),
		"--hostname-override=" + a.node.Name, "--cluster-cidr=" + a.config.ClusterCIDR, "--proxy-mode=iptables",
		"--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249",
		// The machine's limits are not this host's to change.
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"}
	args = append(args, Args(a.Settings.List("kube-proxy-arg"))...)
	return a.start("kube-proxy", args)
}

func (a *Agent) start(name string, args []string) error {
	logrus.Infof("Running %s %s", name, strings.Join(args[1:], " "))
	cmd := exec.Command(a.Program, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return a.Group.Start(name, cmd)
}

// Args makes flags of the values of a setting like kubelet-arg.
func Args(values []string) []string {
	var args []string
	for _, value := range values {
		args = append(args, "--"+strings.TrimLeft(value, "-"))
	}
	return args
}
