//go:build linux

package platform

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/jointoken"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// Where k3s keeps things that boxlift does not name (k3s v1.36).
const (
	socket       = "/run/k3s/containerd/containerd.sock"
	containerd   = site.K3sDataDir + "/agent/containerd"
	serverToken  = site.K3sDataDir + "/server/token"
	stateDB      = site.K3sDataDir + "/server/db/state.db"
	serverCA     = site.K3sDataDir + "/server/tls/server-ca.crt"
	nodePassword = "/etc/rancher/node/password"
)

// k3sConfig is what k3s goes by in its config.yaml.
type k3sConfig struct {
	TokenFile      string   `yaml:"token-file"`
	AgentTokenFile string   `yaml:"agent-token-file"`
	Server         string   `yaml:"server"`
	NodeName       string   `yaml:"node-name"`
	NodeTaint      []string `yaml:"node-taint"`
	Encryption     bool     `yaml:"secrets-encryption"`
}

// start is k3s' start. What it returns lets the unit fail.
func (h *Host) start(unit string) error {
	h.mu.Lock()
	h.starts++
	h.mu.Unlock()
	if unit != site.Unit(h.Role) {
		return h.platform.fail("%s: %s is started, and the host's unit is %s", h.Name(), unit, site.Unit(h.Role))
	}
	var c k3sConfig
	if err := yaml.Unmarshal([]byte(h.text(site.K3sConfigFile)), &c); err != nil {
		return err
	}
	version, token := h.programVersion(), h.text(c.TokenFile)
	if version == "" || c.TokenFile == "" || token == "" {
		return h.platform.fail("%s: k3s is started with the program %q and the token %q", h.Name(), version, c.TokenFile)
	}
	if strings.Contains(h.text(site.K3sBinary)+"\n", broken+h.Name()+"\n") {
		return fmt.Errorf("%s: k3s %s does not start here", h.Name(), version)
	}
	var err error
	if h.Role == config.Server {
		err = h.startServer(&c, token)
	} else {
		err = h.startAgent(&c, token)
	}
	if err != nil {
		return err
	}
	if err := h.importPacks(version); err != nil {
		return err
	}
	if err := h.register(&c, version); err != nil {
		return err
	}
	h.put(socket, "", 0o600)
	if h.Role == config.Server {
		h.platform.API.SetVersion(version)
		h.put(site.K3sKubeconfig, h.platform.kubeconfig(), 0o600)
	}
	h.platform.control()
	return nil
}

// startServer begins a cluster, or goes on with the one that the host has.
func (h *Host) startServer(c *k3sConfig, token string) error {
	if c.Server != "" {
		return h.platform.fail("%s: joins %s, and there is one server here", h.Name(), c.Server)
	}
	password, agents := jointoken.Password(token), h.text(c.AgentTokenFile)
	ca, _, _ := strings.Cut(h.text(serverToken), "::")
	if ca != "" {
		// K3s cannot read the keys of the cluster with another token.
		if was := jointoken.Password(h.text(serverToken)); was != password {
			return h.platform.fail("%s: the cluster was begun with another token", h.Name())
		}
	} else {
		if h.platform.API.Object(h.platform.t, "/api/v1/namespaces/kube-system") != nil {
			return h.platform.fail("%s: a second cluster is begun", h.Name())
		}
		ca = "K10" + random()
		if err := h.makeDatabase(); err != nil {
			return err
		}
		if h.text(serverCA) == "" { // else it was given, and is the cluster's
			h.put(serverCA, "the authority of "+ca+"\n", 0o644)
		}
		h.put(serverToken, ca+"::server:"+password+"\n", 0o600)
		if c.Encryption {
			h.put(site.K3sEncryptionKey, random(), 0o600)
		}
		for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			namespace.Status.Phase = corev1.NamespaceActive
			h.platform.API.Put(h.platform.t, namespace)
		}
		dns := kubetest.Deployment("coredns", 1, coredns)
		dns.Namespace = "kube-system"
		h.platform.API.Put(h.platform.t, dns)
	}
	// Both follow what k3s was started with (k3s v1.36).
	h.put(site.K3sNodeToken, ca+"::server:"+password+"\n", 0o600)
	h.put(site.K3sAgentToken, ca+"::"+cmp.Or(prefixed("node:", agents), "server:"+password)+"\n", 0o600)
	return nil
}

// makeDatabase makes k3s' database. What is in the cluster is in the API's memory, and none of it here.
func (h *Host) makeDatabase() error {
	h.put(stateDB, "", 0o600)
	db, err := sql.Open("sqlite", h.Path(stateDB))
	if err != nil {
		return err
	}
	_, err = db.ExecContext(h.platform.t.Context(), "CREATE TABLE kine (id INTEGER PRIMARY KEY)")
	return errors.Join(err, db.Close())
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// startAgent joins by a token that names the cluster.
func (h *Host) startAgent(c *k3sConfig, token string) error {
	for _, server := range h.platform.Hosts {
		if c.Server != "https://"+server.Address+":6443" {
			continue
		}
		if !server.runs() {
			return fmt.Errorf("%s: %s does not answer", h.Name(), c.Server)
		}
		if token != strings.TrimSpace(server.text(site.K3sAgentToken)) {
			return h.platform.fail("%s: the server does not take its token", h.Name())
		}
		return nil
	}
	return h.platform.fail("%s: joins %q, where no server is", h.Name(), c.Server)
}

// register has the node be Ready, by the password that it has shown when it came first.
func (h *Host) register(c *k3sConfig, version string) error {
	if h.text(nodePassword) == "" {
		h.put(nodePassword, random()+"\n", 0o600)
	}
	name := cmp.Or(c.NodeName, h.Name())
	api, t := h.platform.API, h.platform.t
	sum := sha256.Sum256([]byte(h.text(nodePassword)))
	secret := &corev1.Secret{Data: map[string][]byte{"hash": []byte(hex.EncodeToString(sum[:]))}}
	secret.Namespace, secret.Name = "kube-system", name+".node-password.k3s"
	if known := h.platform.secret(secret.Name); known == nil {
		api.Put(t, secret)
	} else if !bytes.Equal(known.Data["hash"], secret.Data["hash"]) {
		return h.platform.fail("%s: node password rejected", h.Name())
	}
	n := h.platform.node(name)
	if n == nil {
		n = kubetest.Labelled(name, map[string]string{corev1.LabelOSStable: "linux"})
		if h.Role == config.Server {
			n.Labels["node-role.kubernetes.io/control-plane"] = "true"
		}
		for _, text := range c.NodeTaint {
			n.Spec.Taints = append(n.Spec.Taints, taintOf(text))
		}
	}
	n.Status.NodeInfo.KubeletVersion, n.Status.NodeInfo.MachineID = version, h.machineID()
	n.Status.NodeInfo.Architecture, n.Status.NodeInfo.OperatingSystem = "amd64", "linux"
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: h.Address},
		{Type: corev1.NodeHostName, Address: name}}
	h.platform.report(n, corev1.ConditionTrue)
	return nil
}

func taintOf(text string) corev1.Taint {
	pair, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(pair, "=")
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
}

// report says whether a node is Ready.
func (p *Platform) report(n *corev1.Node, ready corev1.ConditionStatus) {
	condition := corev1.NodeCondition{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.Now()}
	if ready != corev1.ConditionTrue {
		condition.Reason = "NodeStatusUnknown"
	}
	n.Status.Conditions = []corev1.NodeCondition{condition}
	p.API.Put(p.t, n)
}

// stop is k3s' end. Containers go on.
func (h *Host) stop(string) {
	h.hangUp()
	_ = os.Remove(h.Path(socket)) // it was there
	var c k3sConfig
	if err := yaml.Unmarshal([]byte(h.text(site.K3sConfigFile)), &c); err == nil {
		if n := h.platform.node(cmp.Or(c.NodeName, h.Name())); n != nil {
			h.platform.report(n, corev1.ConditionUnknown)
		}
	}
}

// importPacks brings all packs into containerd, under their names, with digests as well where k3s does that, and pins
// them.
func (h *Host) importPacks(version string) error {
	for _, dir := range []string{containerd + "/images", containerd + "/pins", images.DefaultContentDir} {
		if err := os.MkdirAll(h.Path(dir), 0o755); err != nil {
			return err
		}
	}
	packs, err := filepath.Glob(h.Path(wire.ImagesDir) + "/*.tar")
	if err != nil {
		return err
	}
	for _, name := range packs {
		if err := h.importPack(name, version); err != nil {
			return h.platform.fail("%s: import %s: %w", h.Name(), filepath.Base(name), err)
		}
	}
	return nil
}

func (h *Host) importPack(name, version string) error {
	members, err := readTar(name)
	if err != nil {
		return err
	}
	for member, content := range members {
		blob, isBlob := strings.CutPrefix(member, "blobs/sha256/")
		file := h.Path(images.DefaultContentDir + "/" + blob)
		if _, err := os.Stat(file); !isBlob || err == nil { // it keeps what is there
			continue
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return err
		}
	}
	for name, target := range namesIn(members["index.json"]) {
		named := []string{name}
		if site.NamesDigests(version) {
			named = append(named, name[:strings.LastIndex(name, ":")]+"@"+target.String())
		}
		for _, name := range named {
			key := strings.ReplaceAll(name, "/", "%")
			h.put(containerd+"/images/"+key, name+" "+target.String()+"\n", 0o644)
			h.put(containerd+"/pins/"+key, name+"\n", 0o644)
		}
	}
	return nil
}

// readTar reads all members of an archive.
func readTar(name string) (map[string][]byte, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	members := make(map[string][]byte)
	r := tar.NewReader(bytes.NewReader(content))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return members, nil
		}
		if err != nil {
			return nil, err
		}
		if members[header.Name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

// namesIn are the images of an index.json.
func namesIn(index []byte) map[string]digest.Digest {
	var document struct {
		Manifests []struct {
			Digest      digest.Digest     `json:"digest"`
			Annotations map[string]string `json:"annotations"`
		} `json:"manifests"`
	}
	names := make(map[string]digest.Digest)
	if json.Unmarshal(index, &document) != nil {
		return names
	}
	for _, m := range document.Manifests {
		if name := m.Annotations["io.containerd.image.name"]; name != "" {
			names[name] = m.Digest
		}
	}
	return names
}

// packIndex is the digest of a pack's index.json, "" for what is no pack.
func packIndex(name string) string {
	members, err := readTar(name)
	if err != nil || members["index.json"] == nil {
		return ""
	}
	return digest.FromBytes(members["index.json"]).String()
}

// kubeconfig is the administrator's access, as a server has it.
func (p *Platform) kubeconfig() string {
	return strings.Replace(string(p.API.Kubeconfig), memoryAddress, apiAddress, 1)
}

// node is a node of the cluster, nil for none.
func (p *Platform) node(name string) *corev1.Node {
	var n corev1.Node
	if !p.object("/api/v1/nodes/"+name, &n) {
		return nil
	}
	return &n
}

func (p *Platform) secret(name string) *corev1.Secret {
	var s corev1.Secret
	if !p.object("/api/v1/namespaces/kube-system/secrets/"+name, &s) {
		return nil
	}
	return &s
}

// text is a file's content without the space around it, "" for none.
func (h *Host) text(name string) string {
	if name == "" {
		return ""
	}
	content, err := os.ReadFile(h.Path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.platform.t.Error(err)
	}
	return strings.TrimSpace(string(content))
}

// put makes a file as a program on the host does.
func (h *Host) put(name, content string, mode fs.FileMode) {
	file := h.Path(name)
	err := os.MkdirAll(path.Dir(file), 0o755)
	if err = errors.Join(err, os.WriteFile(file, []byte(content), mode), os.Chmod(file, mode)); err != nil {
		h.platform.t.Error(err)
	}
}

func (h *Host) machineID() string { return h.text("/etc/machine-id") }

// programVersion is the version of the k3s that is in its place, "" for none.
func (h *Host) programVersion() string {
	_, rest, _ := strings.Cut(h.text(site.K3sBinary), "# k3s version ")
	version, _, _ := strings.Cut(rest, "\n")
	return version
}

// systemctl asks systemd, as a program on the host does.
func (h *Host) systemctl(ctx context.Context, out io.Writer, args ...string) {
	r, err := h.Fake.Run(ctx, host.Command{Title: "systemctl", Args: append([]string{"systemctl"}, args...)})
	if err != nil {
		h.platform.t.Error(err)
	}
	_, _ = out.Write(r.Stdout) // a buffer
}

func random() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
