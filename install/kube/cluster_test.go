package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/test/k3sbuild"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/lab"
)

const (
	pauseImage = "docker.io/rancher/mirrored-pause:3.6"
	toolImage  = "registry.test/tool:1" // the program netcheck
	noImage    = "registry.test/not/there:1"
	server     = "s1"
	agent      = "a1"
)

// testCluster is a server and an agent, and boxlift's way to them.
type testCluster struct {
	*kube.Cluster
	lan        *lab.Lab
	server     *lab.Host
	close      func() error
	kubeconfig []byte
}

var shared struct {
	sync.Mutex
	cluster *testCluster
	err     error
}

func TestMain(m *testing.M) {
	if helm.RendersChart() {
		os.Exit(helm.RenderChart())
	}
	if os.Getenv(victimVariable) != "" {
		os.Exit(victim())
	}
	code := m.Run()
	if shared.cluster != nil {
		if err := shared.cluster.close(); err != nil {
			fmt.Fprintln(os.Stderr, "close the test's cluster:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// cluster returns the cluster that the package's tests share, made by the first of them. Tests that wait for pods in
// namespaces of their own do so at the same time, after those that need or change a whole node or all namespaces.
func cluster(t *testing.T) *testCluster {
	t.Helper()
	lab.Require(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
		defer cancel()
		shared.cluster, shared.err = makeCluster(ctx, t.Logf)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

func makeCluster(ctx context.Context, logf func(string, ...any)) (_ *testCluster, err error) {
	k3s, err := k3sbuild.Build(ctx, k3sbuild.V136, logf)
	if err != nil {
		return nil, err
	}
	sources, err := k3sbuild.Sources(ctx)
	if err != nil {
		return nil, err
	}
	images := map[string][]byte{}
	for file, image := range map[string]struct{ program, ref string }{"pause.tar": {"cmd/pause", pauseImage}, "tool.tar": {"cmd/netcheck", toolImage}} {
		program, err := k3sbuild.Program(ctx, image.program, logf)
		if err != nil {
			return nil, err
		}
		if images[file], err = archive(image.ref, program); err != nil {
			return nil, err
		}
	}
	lan, err := lab.New(ctx, lab.Options{Name: "kube", Log: func(line string) { logf("%s", line) }})
	if err != nil {
		return nil, err
	}
	c := &testCluster{lan: lan, close: lan.Close}
	defer func() {
		if err != nil {
			err = errors.Join(err, lan.Close())
		}
	}()

	var hosts [2]*lab.Host
	var boot errgroup.Group
	for i, host := range []string{server, agent} {
		boot.Go(func() (err error) {
			hosts[i], err = lan.Host(ctx, lab.HostOptions{Name: host})
			return err
		})
	}
	if err := boot.Wait(); err != nil {
		return nil, err
	}
	start := func(h *lab.Host, command, config string, settings ...string) error {
		err := errors.Join(
			install(h, "/usr/local/bin/k3s", k3s, 0o755),
			install(h, "/root/install.sh", filepath.Join(sources, "install.sh"), 0o755),
			put(h, "/etc/rancher/resolv.conf", []byte("nameserver "+h.Address.String()+"\n")),
			// Hosts have the machine's control groups, and the kubelet refuses those of version 1 by itself.
			put(h, "/etc/rancher/k3s/config.yaml", []byte("resolv-conf: /etc/rancher/resolv.conf\ntoken: one-two-three\nkubelet-arg: [fail-cgroupv1=false]\n"+config)),
		)
		for file, data := range images {
			err = errors.Join(err, put(h, "/var/lib/rancher/k3s/agent/images/"+file, data))
		}
		if err != nil {
			return err
		}
		args := append([]string{"env", "INSTALL_K3S_SKIP_DOWNLOAD=true", "INSTALL_K3S_EXEC=" + command}, settings...)
		if out, err := h.Exec(ctx, append(args, "sh", "/root/install.sh")...); err != nil {
			journal, _ := h.Exec(ctx, "journalctl", "--no-pager", "--lines=40", "--unit=k3s*")
			return fmt.Errorf("start k3s on %s: %w\n%s\n%s", h.Name, err, out, journal)
		}
		return nil
	}
	c.server = hosts[0]
	if err := start(c.server, "server", "cluster-init: true\ndisable: [coredns, metrics-server, local-storage, traefik]\n"); err != nil {
		return nil, err
	}
	if err := start(hosts[1], "agent", "", "K3S_URL=https://"+c.server.Address.String()+":6443"); err != nil {
		return nil, err
	}

	key, err := c.server.KnownHosts()
	if err != nil {
		return nil, err
	}
	known := filepath.Join(lan.Dir(), "known_hosts")
	if err := os.WriteFile(known, []byte(key), 0o600); err != nil {
		return nil, err
	}
	ssh, err := remote.Dial(ctx, remote.Target{Name: server, Host: c.server.Address.String(), User: "root", Dial: lan.Dial, IdentityFile: lan.KeyFile(), KnownHosts: []string{known}})
	if err != nil {
		return nil, err
	}
	if c.kubeconfig, err = os.ReadFile(filepath.Join(c.server.Root, "etc/rancher/k3s/k3s.yaml")); err != nil {
		return nil, err
	}
	if c.Cluster, err = kube.Connect(kube.Options{Name: "test", Kubeconfig: c.kubeconfig, Dial: ssh.DialContext}); err != nil {
		return nil, err
	}
	c.close = func() error {
		c.Close()
		return errors.Join(ssh.Close(), lan.Close())
	}
	ready, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := c.WaitReady(ready); err != nil {
		return nil, err
	}
	var nodes []kube.Node
	if !kube.Poll(ready, kube.PollInterval, func() bool {
		nodes, err = c.Nodes(ready)
		return err != nil || len(nodes) == 2 && nodes[0].Ready && nodes[1].Ready
	}) {
		return nil, fmt.Errorf("nodes are not ready: %+v", nodes)
	}
	return c, err
}

// makeNamespace makes a namespace when it is missing.
func (c *testCluster) makeNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// make makes an object of whatever kind.
func (c *testCluster) make(ctx context.Context, text string) error {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		return err
	}
	b, err := c.Bound(ctx)
	if err != nil {
		return err
	}
	kind := object.GroupVersionKind()
	mapping, err := b.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	_, err = b.Dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace()).Create(ctx, object,
		metav1.CreateOptions{})
	return err
}

// archive is a docker archive of an image whose entry point is the program.
func archive(ref, program string) ([]byte, error) {
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	files, err := kubetest.Tar(map[string][]byte{filepath.Base(program): data})
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Config = "amd64", "linux", v1.Config{Entrypoint: []string{"/" + filepath.Base(program)}}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = tarball.Write(tag, image, &out)
	return out.Bytes(), err
}

func install(h *lab.Host, to, from string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(put(h, to, data), os.Chmod(filepath.Join(h.Root, to), mode))
}

func put(h *lab.Host, to string, data []byte) error {
	path := filepath.Join(h.Root, to)
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600))
}

// demoChart is a chart with a ConfigMap, a DaemonSet on all nodes, and a Deployment.
func demoChart(t *testing.T, version string) []byte {
	t.Helper()
	return kubetest.Chart(t, version, map[string]string{
		"templates/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: demo}\ndata: {text: {{ .Values.text | quote }}, version: {{ .Chart.Version | quote }}}\n",
		"templates/agent.yaml":  kubetest.Workload("DaemonSet", "demo-agent", "", "{{ .Values.agentImage }}"),
		"templates/main.yaml":   kubetest.Workload("Deployment", "demo", "replicas: {{ .Values.replicas }}", "{{ .Values.image }}"),
		"templates/extra.yaml":  "{{ if .Values.extra }}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: extra}\n{{ end }}\n",
		"values.yaml":           "text: first\nreplicas: 1\nextra: false\nimage: " + toolImage + "\nagentImage: " + toolImage + "\n",
	})
}

// A victim is a process that applies a release and is killed while it does.

const victimVariable = "BOXLIFT_TEST_KUBE_VICTIM"

type victimInput struct {
	Kubeconfig []byte
	Address    string
	Release    helm.Release
}

func victim() int {
	var in victimInput
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fmt.Println("input:", err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := kube.Connect(kube.Options{Name: "victim", Kubeconfig: in.Kubeconfig, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, in.Address)
	}})
	if err == nil {
		err = helm.Apply(ctx, c, in.Release, func(text string) { fmt.Println(text) })
	}
	fmt.Println("end:", err)
	return 0
}

// kill starts a victim that applies r, and kills it when it has reported these texts, one
// after the other.
func (c *testCluster) kill(t *testing.T, r helm.Release, when []string) {
	t.Helper()
	input, err := json.Marshal(victimInput{c.kubeconfig, c.server.Address.String() + ":6443", r})
	if err != nil {
		t.Fatal(err)
	}
	cmd := c.lan.OperatorCommand(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimVariable+"=1")
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	var told strings.Builder
	buffer := make([]byte, 4096)
	for {
		n, err := out.Read(buffer)
		told.Write(buffer[:n])
		if !killed && inOrder(told.String(), when) {
			killed = true
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
		if err != nil {
			break
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); killed && !errors.As(err, &exit) {
		t.Errorf("the victim survived: %v", err)
	}
	if !killed {
		t.Fatalf("the victim never said %q:\n%s", when, told.String())
	}
	if stderr.Len() > 0 {
		t.Errorf("the libraries wrote to standard error:\n%s", stderr.String())
	}
}

func inOrder(text string, parts []string) bool {
	for _, part := range parts {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}
