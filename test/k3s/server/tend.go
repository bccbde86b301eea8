package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// packaged are the manifests that every server deploys unless they are disabled, by the
// names that disable knows.
//
//go:embed packaged/*.yaml
var packaged embed.FS

// annotationEtcdName is where k3s keeps the name of a node's etcd member.
const annotationEtcdName = "etcd.k3s.cattle.io/node-name"

// tend keeps labels, node names in the cluster's DNS, and manifests as they
// should be, until the context is done.
func (s *Server) tend(ctx context.Context) {
	factory := informers.NewSharedInformerFactory(s.client, 0)
	nodes := factory.Core().V1().Nodes().Informer()
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	removed := make(chan *corev1.Node, 100)
	if _, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() },
		DeleteFunc: func(object any) {
			if node, ok := object.(*corev1.Node); ok {
				removed <- node
			}
			notify()
		},
	}); err != nil {
		logrus.Errorf("Failed to watch nodes: %v", err)
		return
	}
	factory.Start(ctx.Done())
	applied := map[string]string{}
	manifests := time.NewTicker(5 * time.Second)
	defer manifests.Stop()
	if err := s.writeManifests(ctx); err != nil {
		logrus.Errorf("Failed to write packaged manifests: %v", err)
	}
	s.applyManifests(ctx, applied)
	notify()
	for {
		select {
		case <-ctx.Done():
			return
		case node := <-removed:
			s.forget(ctx, node)
		case <-changed:
			if err := s.updateNodes(ctx, nodes.GetStore().List()); err != nil {
				logrus.Warnf("Failed to update nodes' labels and names: %v", err)
				time.AfterFunc(2*time.Second, notify)
			}
		case <-manifests.C:
			s.applyManifests(ctx, applied)
		}
	}
}

// updateNodes labels this server's node, and writes all nodes' names for the cluster's DNS.
func (s *Server) updateNodes(ctx context.Context, objects []any) error {
	var hosts []string
	for _, object := range objects {
		node, ok := object.(*corev1.Node)
		if !ok {
			continue
		}
		for _, address := range node.Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				hosts = append(hosts, address.Address+" "+node.Name+"\n")
			}
		}
		if node.Name == s.node.Name {
			if err := s.label(ctx, node); err != nil {
				return err
			}
		}
	}
	slices.Sort(hosts)
	text := strings.Join(hosts, "")
	configMaps := s.client.CoreV1().ConfigMaps("kube-system")
	config, err := configMaps.Get(ctx, "coredns", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // disabled, or not deployed yet: then applyManifests comes back here
	} else if err != nil || config.Data["NodeHosts"] == text {
		return err
	}
	patch, err := json.Marshal(map[string]any{"data": map[string]string{"NodeHosts": text}})
	if err != nil {
		return err
	}
	_, err = configMaps.Patch(ctx, "coredns", types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "k3s"})
	return err
}

func (s *Server) label(ctx context.Context, node *corev1.Node) error {
	labels := map[string]string{"node-role.kubernetes.io/control-plane": "true"}
	annotations := map[string]string{}
	if s.clustered {
		labels["node-role.kubernetes.io/etcd"] = "true"
		name, err := s.etcdName()
		if err != nil {
			return err
		}
		annotations[annotationEtcdName] = name
	}
	missing := false
	for key, value := range labels {
		missing = missing || node.Labels[key] != value
	}
	for key, value := range annotations {
		missing = missing || node.Annotations[key] != value
	}
	if !missing {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "k3s"})
	return err
}

// forget removes what the cluster knows about a node that was deleted.
func (s *Server) forget(ctx context.Context, node *corev1.Node) {
	err := s.client.CoreV1().Secrets("kube-system").Delete(ctx, passwordSecret(node.Name), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		logrus.Warnf("Unable to remove node password: %v", err)
	}
	if name := node.Annotations[annotationEtcdName]; name != "" && node.Name != s.node.Name {
		if err := s.removeMember(ctx, name); err != nil {
			logrus.Warnf("Failed to remove %s from etcd: %v", name, err)
		}
	}
}

func passwordSecret(node string) string { return node + ".node-password.k3s" }

// checkNode compares a node's password with the one that it came with first.
func (s *Server) checkNode(ctx context.Context, node, password string) error {
	for range 100 {
		if s.ready.Load() {
			break
		}
		select {
		case <-ctx.Done():
			return unavailable
		case <-time.After(200 * time.Millisecond):
		}
	}
	if !s.ready.Load() {
		return unavailable
	}
	secrets := s.client.CoreV1().Secrets("kube-system")
	found, err := secrets.Get(ctx, passwordSecret(node), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		salt := make([]byte, 8)
		copy(salt, fmt.Sprintf("%x", time.Now().UnixNano()))
		immutable := true
		_, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: passwordSecret(node)},
			Immutable: &immutable, Data: map[string][]byte{"hash": []byte(hashPassword(string(salt), password))}}, metav1.CreateOptions{})
		return err
	case err != nil:
		return err
	}
	salt, _, _ := strings.Cut(string(found.Data["hash"]), ":")
	if !same(string(found.Data["hash"]), hashPassword(salt, password)) {
		return statusError{403, "Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match " +
			"server node-passwd entry, try enabling a unique node name with the --with-node-id flag"}
	}
	return nil
}

func hashPassword(salt, password string) string {
	sum := sha256.Sum256([]byte(salt + ":" + password))
	return salt + ":" + hex.EncodeToString(sum[:])
}

// writeManifests puts the packaged manifests into the folder, or takes them
// out, and away from the cluster, when they are disabled.
func (s *Server) writeManifests(ctx context.Context) error {
	ingress, err := serviceIP(s.config.ServiceCIDR, 11)
	if err != nil {
		return err
	}
	values := strings.NewReplacer("%{CLUSTER_DNS}%", s.config.ClusterDNS, "%{CLUSTER_DOMAIN}%", s.config.ClusterDomain,
		"%{REGISTRY}%", s.Settings.Get("system-default-registry", "docker.io"), "%{INGRESS_IP}%", ingress,
		"%{LOCAL_STORAGE}%", s.Settings.Get("default-local-storage-path", filepath.Join(s.dataDir, "storage")))
	files, err := packaged.ReadDir("packaged")
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		text, err := packaged.ReadFile("packaged/" + file.Name())
		if err != nil {
			return err
		}
		errs = append(errs, s.writeManifest(ctx, file.Name(), values.Replace(string(text))))
	}
	return errors.Join(errs...)
}

func (s *Server) writeManifest(ctx context.Context, file, text string) error {
	path := s.path("manifests", file)
	if !s.disables(strings.TrimSuffix(file, ".yaml")) {
		logrus.Infof("Writing manifest: %s", path)
		return os.WriteFile(path, []byte(text), 0o600)
	}
	if !exists(path) {
		return nil
	}
	if err := s.kubectl(ctx, text, "delete", "--ignore-not-found", "--wait=false"); err != nil {
		return err
	}
	return os.Remove(path)
}

// disables says whether a packaged manifest is not wanted. servicelb has one Service to
// serve here, which is Traefik's.
func (s *Server) disables(name string) bool {
	return slices.Contains(s.config.Disable, name) || name == "servicelb" && slices.Contains(s.config.Disable, "traefik")
}

// applyManifests applies what is new in the manifests' folder.
func (s *Server) applyManifests(ctx context.Context, applied map[string]string) {
	var files []string
	err := filepath.WalkDir(s.path("manifests"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		logrus.Errorf("Failed to read the manifests: %v", err)
	}
	for _, path := range files {
		if exists(path + ".skip") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has gone meanwhile
		}
		sum := hashPassword("", string(text))
		if applied[path] == sum {
			continue
		}
		logrus.Infof("Applying manifest %s", path)
		if err := s.kubectl(ctx, string(text), "apply", "--server-side", "--force-conflicts", "--field-manager=deploy"); err != nil {
			logrus.Errorf("Failed to process config: failed to process %s: %v", path, err)
			continue
		}
		applied[path] = sum
	}
}

func (s *Server) kubectl(ctx context.Context, input string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Program, append([]string{"kubectl", "--kubeconfig=" + s.path("cred", "supervisor.kubeconfig")}, append(args, "-f", "-")...)...)
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", args[0], err, strings.TrimSpace(out.String()))
	}
	return nil
}
