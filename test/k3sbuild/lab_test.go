//go:build distribution

package k3sbuild

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/liteboxd/boxlift/test/lab"
)

const (
	imageDir = "var/lib/rancher/k3s/agent/images"
	busybox  = "docker.io/rancher/mirrored-library-busybox:1.36.1"
	secret   = "a-secret-of-the-cluster"
	// kubelet waits until the kubelet runs, which is started when all archives but the last are imported. The service
	// is ready before.
	kubelet = "until curl -sf http://127.0.0.1:10248/healthz >/dev/null; do sleep 0.3; done; "
	// install puts the service in place and starts it.
	install = "INSTALL_K3S_SKIP_DOWNLOAD=true sh /root/install.sh "
)

// site is a lab with hosts that have the program and the images.
type site struct {
	*testing.T
	ctx context.Context
}

// must runs a script on a host, and gives what it prints.
func (s site) must(h *lab.Host, script string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Minute)
	defer cancel()
	out, err := h.Exec(ctx, "sh", "-ec", "exec 2>&1\n"+script)
	if err != nil {
		journal, _ := h.Exec(s.ctx, "journalctl", "--no-pager", "--lines=60", "--unit=k3s*")
		s.Fatalf("%v\n%s\n%s", err, out, journal)
	}
	return strings.TrimSpace(string(out))
}

// await runs a script until it succeeds.
func (s site) await(h *lab.Host, script string) {
	s.Helper()
	s.must(h, "end=$(($(date +%s) + 150)); until { "+script+"\n} >/tmp/await 2>&1; do [ $(date +%s) -lt $end ] || { cat /tmp/await; exit 1; }; sleep 0.3; done")
}

func (s site) write(h *lab.Host, name, text string) {
	s.Helper()
	path := filepath.Join(h.Root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		s.Fatal(err)
	}
}

func (s site) configure(h *lab.Host, text string) {
	s.Helper()
	// A host whose own name servers are none gets one of k3s' that is outside.
	s.write(h, "etc/rancher/resolv.conf", "nameserver "+h.Address.String()+"\n")
	// Hosts have the machine's control groups, and the kubelet refuses those of version 1 unless it is told otherwise.
	s.write(h, "etc/rancher/k3s/config.yaml", "resolv-conf: /etc/rancher/resolv.conf\nkubelet-arg: [fail-cgroupv1=false]\n"+text)
}

func copyFile(to, from string, mode os.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // only read
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// archive is an OCI layout with one image, whose entry point is the program; links lead to
// it. The image is an index of two platforms of which only this machine's is there.
func archive(t *testing.T, name, program string, links ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	entry := filepath.Base(program)
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err = w.WriteHeader(&tar.Header{Name: entry, Mode: 0o755, Size: int64(len(data))})
	if err == nil {
		_, err = w.Write(data)
	}
	for _, link := range links {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: link, Typeflag: tar.TypeSymlink, Linkname: "/" + entry, Mode: 0o777}))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{Architecture: "amd64", OS: "linux",
		Config: v1.Config{Entrypoint: []string{"/" + entry}}, RootFS: v1.RootFS{Type: "layers", DiffIDs: diffIDs(t, layer)}})
	if err != nil {
		t.Fatal(err)
	}
	absent, err := random.Image(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: absent, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AppendIndex(index, layout.WithAnnotations(map[string]string{"io.containerd.image.name": name})); err != nil {
		t.Fatal(err)
	}
	layers, err := absent.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, hash := range []func() (v1.Hash, error){absent.Digest, absent.ConfigName, layers[0].Digest} {
		h, err := hash()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.RemoveBlob(h); err != nil {
			t.Fatal(err)
		}
	}
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	if err := errors.Join(out.AddFS(os.DirFS(dir)), out.Close()); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

func diffIDs(t *testing.T, layer v1.Layer) []v1.Hash {
	t.Helper()
	id, err := layer.DiffID()
	if err != nil {
		t.Fatal(err)
	}
	return []v1.Hash{id}
}

func compress(t *testing.T, data []byte, to func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := to(&out)
	if err == nil {
		_, err = w.Write(data)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipTo(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, gzip.BestSpeed) }

func zstdTo(window int) func(io.Writer) (io.WriteCloser, error) {
	return func(w io.Writer) (io.WriteCloser, error) {
		return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(window))
	}
}

// makeHosts builds everything, and makes hosts that have it.
func makeHosts(ctx context.Context, t *testing.T, names ...string) (*lab.Lab, []*lab.Host) {
	t.Helper()
	if missing := lab.Missing(); len(missing) > 0 {
		t.Fatalf("hosts cannot be made here: %v", missing)
	}
	k3s, err := Build(ctx, V136, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	sources, err := Sources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	images := map[string][]byte{"50-broken.tar": []byte("not a tar"), "60-unfinished.tar.part": []byte("not looked at")}
	for dir, image := range map[string]string{"cmd/pause": "docker.io/rancher/mirrored-pause:3.6",
		"cmd/coredns": "docker.io/rancher/mirrored-coredns-coredns:1.13.1", "cmd/netcheck": "registry.test/netcheck:1",
		"cmd/svclb": "docker.io/rancher/klipper-lb:v0.4.13", "cmd/ingress": "docker.io/rancher/mirrored-library-traefik:3.5.1",
		"cmd/local-path-provisioner": "docker.io/rancher/local-path-provisioner:v0.0.30",
		"cmd/busybox":                busybox, "cmd/cilium": "registry.test/cilium:1"} {
		program, err := Program(ctx, dir, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		links := map[string][]string{
			"cmd/busybox": {"bin/sh", "bin/chmod", "bin/mkdir", "bin/rm", "bin/sleep"}, "cmd/cilium": {"cilium-agent", "cilium-operator"},
		}[dir]
		packed := archive(t, image, program, links...)
		switch dir {
		default:
			images["30-"+filepath.Base(dir)+".tar"] = packed
		case "cmd/pause":
			images["10-pause.tar"] = packed
			// Its window is too large to be read, whatever it holds.
			images["90-wide.tar.zst"] = compress(t, bytes.Repeat(packed, 1+64<<20/len(packed)), zstdTo(64<<20))
		case "cmd/coredns":
			images["80-coredns.tar.zst"] = compress(t, packed, zstdTo(32<<20))
		case "cmd/netcheck":
			images["20-netcheck.tar.gz"] = compress(t, packed, gzipTo)
		}
	}
	l, err := lab.New(ctx, lab.Options{Name: "k3s", Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	hosts, errs := make([]*lab.Host, len(names)), make([]error, len(names))
	var group sync.WaitGroup
	for i, name := range names { // one after the other, for the addresses; the copying beside it
		if hosts[i], err = l.Host(ctx, lab.HostOptions{Name: name}); err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			root := hosts[i].Root
			errs[i] = errors.Join(copyFile(filepath.Join(root, "usr/local/bin/k3s"), k3s, 0o755),
				copyFile(filepath.Join(root, "root/install.sh"), filepath.Join(sources, "install.sh"), 0o644),
				os.MkdirAll(filepath.Join(root, imageDir), 0o755))
			for file, data := range images {
				errs[i] = errors.Join(errs[i], os.WriteFile(filepath.Join(root, imageDir, file), data, 0o644))
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return l, hosts
}

const pods = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: netcheck}
spec:
  selector: {matchLabels: {app: netcheck}}
  template:
    metadata: {labels: {app: netcheck}}
    spec:
      terminationGracePeriodSeconds: 0
      tolerations: [{operator: Exists}]
      containers:
      - {name: netcheck, image: "registry.test/netcheck:1", args: [serve], ports: [{containerPort: 8080}]}
`

// TestCluster installs three servers and an agent by hand, and takes them through
// what the installer relies on.
func TestCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	l, hosts := makeHosts(ctx, t, "first", "second", "third", "agent")
	s := site{t, ctx}
	first, second, third, agent := hosts[0], hosts[1], hosts[2], hosts[3]
	step := func(name string, do func()) {
		began := time.Now()
		do()
		t.Logf("%s: %v", name, time.Since(began).Round(100*time.Millisecond))
	}
	server := fmt.Sprintf("server: https://%s:6443\n", first.Address)

	step("first server", func() {
		s.configure(first, "token: "+secret+"\ncluster-init: true\nflannel-backend: host-gw\n")
		s.write(first, "etc/rancher/k3s/config.yaml.d/10.yaml", "node-label: [lab.test/a=1]\ntls-san+: [api.test]\n")
		s.must(first, install+"server; systemctl is-active k3s; "+kubelet)
		s.checkImport(first)
		s.checkFiles(first)
	})
	token := s.must(first, "cat /var/lib/rancher/k3s/server/node-token")
	step("refusals", func() {
		s.configure(agent, server+"token: not-"+secret+"\n")
		s.must(agent, "INSTALL_K3S_SKIP_START=true "+install+"agent; systemctl start --no-block k3s-agent")
		s.await(agent, "journalctl --no-pager -u k3s-agent | grep -q '401 Unauthorized'")
		s.configure(agent, server+"token: K10"+strings.Repeat("0", 64)+"::server:"+secret+"\n")
		s.must(agent, "systemctl restart --no-block k3s-agent")
		s.await(agent, "journalctl --no-pager -u k3s-agent | grep -q 'token CA hash does not match'")
		s.must(agent, "[ $(systemctl is-active k3s-agent) = activating ]; systemctl stop k3s-agent; [ ! -e /var/lib/kubelet/config ]")
		s.configure(second, server+"token: "+token+"\ncluster-cidr: 10.99.0.0/16\nflannel-backend: host-gw\n")
		s.must(second, "! timeout 20 k3s server >/tmp/out 2>&1; grep -q 'critical configuration value mismatch' /tmp/out")
		s.configure(second, server+"token: "+token+"\nno-such-key: 1\n")
		s.must(second, "! timeout 20 k3s server >/tmp/out 2>&1; grep -q 'flag provided but not defined: -no-such-key' /tmp/out")
	})
	step("agent", func() {
		s.configure(agent, server+"token: "+token+"\nnode-label: [lab.test/b=2]\nnode-taint: ['lab.test/c=3:NoSchedule']\n")
		s.must(agent, "systemctl start k3s-agent; systemctl is-active k3s-agent")
	})
	for _, h := range []*lab.Host{second, third} {
		step(h.Name+" server", func() {
			s.configure(h, server+"token: "+token+"\nflannel-backend: host-gw\n")
			s.must(h, install+"server; systemctl is-active k3s")
		})
	}
	step("pods", func() { s.checkPods(first, agent) })
	step("packaged components", func() { s.checkPackaged(first, second, agent) })
	step("restart of the agent", func() {
		before := s.must(agent, "k3s crictl ps -q | sort; pgrep netcheck")
		s.must(agent, "touch /"+imageDir+"/.cache.json; systemctl restart k3s-agent; "+kubelet+
			"k3s ctr images list | grep -q k3s.pinned")
		if after := s.must(agent, "sleep 2; k3s crictl ps -q | sort; pgrep netcheck"); after != before || before == "" {
			t.Errorf("containers were\n%s\nand are\n%s", before, after)
		}
		s.must(agent, "systemctl kill --signal=KILL --kill-whom=main k3s-agent; sleep 1; "+
			"until systemctl is-active -q k3s-agent; do sleep 0.3; done; "+kubelet)
		if after := s.must(agent, "k3s crictl ps -q | sort; pgrep netcheck"); after != before {
			t.Errorf("containers were\n%s\nand after the service was killed are\n%s", before, after)
		}
		// The known trap: what the cache skips is no longer pinned.
		s.must(agent, "! k3s ctr images list | grep k3s.pinned; rm /"+imageDir+"/.cache.json; systemctl restart k3s-agent; "+kubelet+
			"k3s ctr images list | grep -q k3s.pinned")
	})
	step("ready before its images are imported", func() { s.checkEarlyReady(agent) })
	step("another node of the same name", func() {
		s.must(agent, "mv /etc/rancher/node/password /tmp; systemctl restart --no-block k3s-agent")
		s.await(agent, "journalctl --no-pager -u k3s-agent | grep -q 'Node password rejected, duplicate hostname'")
		s.must(agent, "mv /tmp/password /etc/rancher/node/; systemctl restart k3s-agent")
	})
	step("without the first server", func() {
		if err := first.PowerCut(ctx); err != nil {
			t.Fatal(err)
		}
		s.await(second, "timeout 10 kubectl create configmap -n default without-first")
		s.await(agent, "timeout 10 k3s kubectl --kubeconfig /var/lib/rancher/k3s/agent/kubelet.kubeconfig get node agent")
		s.must(agent, "systemctl restart k3s-agent; systemctl is-active k3s-agent")
		if err := first.Up(ctx); err != nil {
			t.Fatal(err)
		}
		s.await(first, "systemctl is-active k3s && kubectl get configmap -n default without-first")
	})
	step("a server for good", func() {
		s.must(third, "k3s-uninstall.sh")
		s.must(first, "kubectl delete node third --wait=false")
		// Whichever server sees it first tells etcd.
		removed := func(h *lab.Host) bool {
			return s.must(h, "journalctl --no-pager -u k3s | grep -c 'Removing name=third-.* from etcd' || true") != "0"
		}
		for !removed(first) && !removed(second) {
			if !sleep(ctx, 500*time.Millisecond) {
				t.Fatal("etcd keeps the member of a node that was deleted")
			}
		}
		s.await(second, "timeout 10 kubectl get nodes && ! kubectl get node third")
	})
	step("uninstall", func() {
		s.must(agent, "k3s-agent-uninstall.sh; ! pgrep -x k3s; ! pgrep containerd; ! pgrep netcheck; ! grep -e /run/k3s -e /var/lib/kubelet /proc/mounts; "+
			"! ip link show cni0; ! iptables-save | grep KUBE-")
		for _, path := range []string{"usr/local/bin/k3s", "usr/local/bin/kubectl", "usr/local/bin/k3s-killall.sh", "usr/local/bin/k3s-agent-uninstall.sh",
			"etc/systemd/system/k3s-agent.service", "etc/systemd/system/k3s-agent.service.env", "etc/rancher/k3s", "var/lib/rancher/k3s", "var/lib/kubelet"} {
			if _, err := os.Lstat(filepath.Join(agent.Root, path)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("/%s is there after uninstall (%v)", path, err)
			}
		}
	})
	// Pods are reached by plain routes: their addresses are this LAN's too.
	_, detail, err := l.LeakedPackets()
	for line := range strings.Lines(detail) {
		if err == nil && !strings.Contains(line, "-> 10.42.") {
			err = errors.New("packets tried to leave the LAN: " + line)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// checkEarlyReady starts a node that is known with an archive that takes long.
func (s site) checkEarlyReady(h *lab.Host) {
	s.Helper()
	const name = "95-long.tar"
	s.must(h, "systemctl stop k3s-agent")
	if err := h.PutSlowArchive(filepath.Join(imageDir, name), filepath.Join(imageDir, "10-pause.tar")); err != nil {
		s.Fatal(err)
	}
	imported := "journalctl --no-pager -u k3s-agent | grep -q 'Imported images from /" + imageDir + "/" + name + "'"
	s.must(h, "systemctl start k3s-agent; systemctl is-active k3s-agent; ! "+imported)
	s.await(h, imported)
	s.must(h, kubelet+"rm /"+imageDir+"/"+name)
}

// checkImport looks at what the image folder has become.
func (s site) checkImport(h *lab.Host) {
	s.Helper()
	s.await(h, "journalctl --no-pager --unit=k3s | grep -q 'failed to import images from .*/90-wide'")
	journal := s.must(h, "journalctl --no-pager --unit=k3s --output=cat | grep -v ' Running '")
	rest := journal
	for _, line := range []string{
		"Importing images from /" + imageDir + "/10-pause.tar", "Imported docker.io/rancher/mirrored-pause:3.6",
		"Tagged docker.io/rancher/mirrored-pause@sha256:", "Imported images from /" + imageDir + "/10-pause.tar in ",
		"Imported registry.test/netcheck:1", "failed to import images from /" + imageDir + "/50-broken.tar",
		"Imported docker.io/rancher/mirrored-coredns-coredns:1.13.1",
		"failed to import images from /" + imageDir + "/90-wide.tar.zst: ",
	} {
		_, after, ok := strings.Cut(rest, line)
		if !ok {
			s.Fatalf("the journal has no line, or not in this order, with %q:\n%s", line, journal)
		}
		rest = after
	}
	listed := s.must(h, "k3s ctr images list")
	if n := strings.Count(listed, "io.cattle.k3s.pinned=pinned,io.cri-containerd.image=managed,io.cri-containerd.pinned=pinned"); n != 16 {
		s.Errorf("%d names are pinned, want 16:\n%s", n, listed)
	}
	if checked := s.must(h, "k3s ctr images check"); strings.Contains(checked, "incomplete") {
		s.Errorf("images are not complete:\n%s", checked)
	}
	if got := s.must(h, "k3s crictl images -o json | grep -c '\"pinned\": true'; k3s crictl inspecti registry.test/netcheck:1 | grep -c registry.test; ! k3s crictl inspecti registry.test/none:1"); !strings.HasPrefix(got, "8\n2\n") {
		s.Errorf("crictl says %q", got)
	}
	// What is put there later counts too, after two quiet seconds.
	s.must(h, "cd /"+imageDir+"; k3s ctr images rm registry.test/netcheck:1; cp 20-netcheck.tar.gz late.part; mv late.part late.tar.gz")
	s.await(h, "k3s ctr images list -q | grep -x registry.test/netcheck:1")
}

// checkFiles looks at what a server leaves for its clients.
func (s site) checkFiles(h *lab.Host) {
	s.Helper()
	got := s.must(h, `cd /var/lib/rancher/k3s/server; stat -c %a token /etc/rancher/k3s/k3s.yaml; cmp token node-token; cmp token agent-token
		cat token; echo K10$(sha256sum tls/server-ca.crt | cut -d' ' -f1)::server:`+secret+`; curl -sk https://127.0.0.1:6443/cacerts | cmp - tls/server-ca.crt
		curl -sk -o /dev/null -w '%{http_code}' https://127.0.0.1:6443/version; grep -c server:.https://127.0.0.1:6443 /etc/rancher/k3s/k3s.yaml`)
	lines := strings.Split(got, "\n")
	if len(lines) != 5 || lines[0] != "600" || lines[1] != "600" || lines[2] != lines[3] || lines[4] != "4011" {
		s.Errorf("the server's files are\n%s", got)
	}
	s.must(h, "timeout 20 openssl version >/dev/null 2>&1 || true; kubectl auth whoami | grep -q system:admin; "+
		"curl -s --cacert /var/lib/rancher/k3s/server/tls/server-ca.crt --resolve api.test:6443:"+h.Address.String()+" https://api.test:6443/ping | grep -q pong")
	s.await(h, "kubectl get node first -o jsonpath='{.status.nodeInfo.kubeletVersion} {.metadata.labels}' | "+
		`grep -F '`+V136+`' | grep -F '"lab.test/a":"1"' | grep -F '"node-role.kubernetes.io/control-plane":"true"' | grep -F '"node-role.kubernetes.io/etcd":"true"' | grep -F '"node.kubernetes.io/instance-type":"k3s"'`)
	s.await(h, "kubectl get configmap -n kube-system coredns -o jsonpath='{.data.NodeHosts}' | grep -x '"+h.Address.String()+" first'")
}

// checkPods runs pods on all nodes, reaches one from another, and asks the cluster's DNS.
func (s site) checkPods(server, agent *lab.Host) {
	s.Helper()
	s.must(server, "cat >/var/lib/rancher/k3s/server/manifests/pods.yaml <<'END'\n"+pods+"END")
	s.await(server, "[ $(kubectl get nodes --no-headers | grep -cw Ready) = 4 ]")
	s.await(server, "kubectl rollout status daemonset/netcheck --timeout=60s; [ $(kubectl get pods -l app=netcheck --no-headers | grep -c Running) = 4 ]")
	s.await(server, "kubectl rollout status -n kube-system deployment/coredns --timeout=60s")
	s.await(server, `pod() { kubectl get pods -l app=netcheck --field-selector spec.nodeName=$1 -o jsonpath="{.items[0].$2}"; }
		kubectl exec $(pod first metadata.name) -- /netcheck get http://$(pod agent status.podIP):8080
		kubectl exec $(pod agent metadata.name) -- /netcheck lookup kubernetes.default.svc.cluster.local | grep -x 10.43.0.1
		kubectl exec $(pod agent metadata.name) -- /netcheck lookup first`)
	s.must(agent, "k3s crictl pods | grep -q netcheck")
}

const packaged = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  nodeSelector: {kubernetes.io/hostname: agent}
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 0
  containers:
  - name: writer
    image: ` + busybox + `
    command: [sh, -c, echo kept >/data/file && sleep infinity]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Service
metadata: {name: netcheck}
spec: {selector: {app: netcheck}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: traefik.io/v1alpha1
kind: Middleware
metadata: {name: again}
spec: {retry: {attempts: 2, initialInterval: 100ms}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: netcheck
  annotations: {traefik.ingress.kubernetes.io/router.middlewares: default-again@kubernetescrd}
spec:
  ingressClassName: traefik
  rules:
  - host: web.test
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: netcheck, port: {number: 80}}}}]}
`

// checkPackaged has a volume of the default class written and removed, and a Service
// reached by its host name at ports of nodes.
func (s site) checkPackaged(server, other, agent *lab.Host) {
	s.Helper()
	s.await(server, "kubectl get crd middlewares.traefik.io && kubectl get ingressclass traefik")
	s.must(server, "kubectl apply -f - <<'END'\n"+packaged+"END")
	s.await(server, "kubectl rollout status -n kube-system deployment/traefik --timeout=60s && kubectl rollout status -n kube-system daemonset/svclb-traefik --timeout=60s")
	for _, node := range []*lab.Host{server, other} {
		s.await(agent, fmt.Sprintf(`curl -sf -H 'Host: web.test' http://%[1]s/ | grep netcheck- && curl -skf -H 'Host: web.test' https://%[1]s/any | grep netcheck-
			[ $(curl -s -o /dev/null -w '%%{http_code}' http://%[1]s/) = 404 ]`, node.Address))
	}
	s.must(server, "kubectl wait --for=condition=Ready pod/writer --timeout=90s; kubectl get pvc data | grep -w Bound | grep -w local-path")
	// As with k3s, a volume of this type is not made anew when its folder is gone, and only root looks into the
	// folders.
	s.must(server, "kubectl get pv -o jsonpath='{.items[*].spec.local.path}' | grep storage/pvc-")
	s.must(agent, "[ $(stat -c %a /var/lib/rancher/k3s/storage) = 700 ]")
	s.must(agent, "grep -x kept /var/lib/rancher/k3s/storage/pvc-*_default_data/file")
	s.must(server, "kubectl delete pod/writer pvc/data; kubectl wait --for=delete pv --all --timeout=60s")
	s.must(agent, "[ -z \"$(ls /var/lib/rancher/k3s/storage)\" ]")
}

// TestSnapshot takes a server alone, which has SQLite, to a host that knows nothing but the
// token, turns it into the first one of a cluster with etcd, and restores that from a snapshot.
func TestSnapshot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	_, hosts := makeHosts(ctx, t, "only")
	s, h := site{t, ctx}, hosts[0]
	s.configure(h, "token: "+secret+"\n")
	s.must(h, install+"server; kubectl create configmap kept; ! k3s etcd-snapshot save; [ ! -e /var/lib/rancher/k3s/server/db/etcd ]")
	alone := s.must(h, "cat /var/lib/rancher/k3s/server/token")
	s.must(h, `k3s-killall.sh; mv /var/lib/rancher/k3s/server/db /root/db; rm -rf /var/lib/rancher/k3s/server
		mkdir -p /var/lib/rancher/k3s/server; cp -a /root/db /var/lib/rancher/k3s/server/db
		timeout 60 k3s server --token other 2>&1 | grep -q 'encrypted with different token'
		systemctl start k3s; kubectl get configmap kept`)
	s.configure(h, "token: "+secret+"\ncluster-init: true\n")
	s.must(h, `systemctl restart k3s; kubectl get configmap kept; [ -e /var/lib/rancher/k3s/server/db/state.db.migrated ]
		systemctl restart k3s; kubectl get configmap kept; [ ! -e /var/lib/rancher/k3s/server/db/state.db ]`)
	if again := s.must(h, "cat /var/lib/rancher/k3s/server/token"); again != alone {
		t.Errorf("the token was %s and is %s", alone, again)
	}
	s.must(h, "k3s etcd-snapshot save; k3s etcd-snapshot ls | grep -q on-demand-only-; kubectl create configmap lost")
	id := s.must(h, "cat /var/lib/rancher/k3s/server/token")
	s.must(h, `k3s-killall.sh; mv /var/lib/rancher/k3s/server/db/snapshots/on-demand-only-* /root/snapshot; rm -rf /var/lib/rancher/k3s/server
		! timeout 60 k3s server --token other --cluster-reset --cluster-reset-restore-path=/root/snapshot
		rm -rf /var/lib/rancher/k3s/server
		k3s server --cluster-reset --cluster-reset-restore-path=/root/snapshot; systemctl start k3s; kubectl get configmap kept; ! kubectl get configmap lost`)
	if again := s.must(h, "cat /var/lib/rancher/k3s/server/token"); again != id {
		t.Errorf("the token was %s and is %s", id, again)
	}
	s.await(h, "kubectl get nodes | grep -w Ready")
	// What is disabled goes, and the rest stays.
	s.must(h, "echo 'disable: [traefik]' >>/etc/rancher/k3s/config.yaml; systemctl restart k3s")
	s.await(h, "[ ! -e /var/lib/rancher/k3s/server/manifests/traefik.yaml ] && ! kubectl get -n kube-system deployment/traefik && ! kubectl get -n kube-system daemonset/svclb-traefik && kubectl get storageclass local-path")
}

// network is Cilium's stand-in without its chart: the programs with rights to everything.
const network = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: network}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: default, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: network, namespace: kube-system}
data: {ipam: cluster-pool, cluster-pool-ipv4-cidr: 10.42.0.0/16, cluster-pool-ipv4-mask-size: "24"}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: network, namespace: kube-system}
spec:
  selector: {matchLabels: {app: network}}
  template:
    metadata: {labels: {app: network}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers:
      - name: operator
        image: registry.test/cilium:1
        command: [/cilium-operator, --config-dir=/config]
        env: &env
        - {name: K8S_NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}
        - {name: KUBERNETES_SERVICE_PORT, value: "6444"}
        volumeMounts: [{name: config, mountPath: /config}]
      - name: agent
        image: registry.test/cilium:1
        command: [/cilium-agent, --config-dir=/config]
        env: *env
        securityContext: {privileged: true}
        volumeMounts:
        - {name: config, mountPath: /config}
        - {name: net, mountPath: /host/etc/cni/net.d}
        - {name: proc, mountPath: /host/proc/sys/net}
      volumes:
      - {name: config, configMap: {name: network}}
      - {name: net, hostPath: {path: /etc/cni/net.d, type: DirectoryOrCreate}}
      - {name: proc, hostPath: {path: /proc/sys/net}}
`

const policies = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing}
spec: {podSelector: {matchLabels: {app: box}}, policyTypes: [Ingress, Egress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: names}
spec:
  podSelector: {matchLabels: {app: box}}
  policyTypes: [Egress]
  egress:
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]
    ports: [{port: 53, protocol: UDP}, {port: 53}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: everywhere}
spec:
  podSelector: {matchLabels: {app: box}}
  policyTypes: [Egress]
  egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: gateway}
spec:
  podSelector: {matchLabels: {app: box}}
  policyTypes: [Ingress]
  ingress:
  - from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}, podSelector: {matchLabels: {app: gateway}}}]
    ports: [{port: 3000, endPort: 65535}]
`

// TestPolicies has Cilium's stand-in keep a pod from what NetworkPolicies do not allow it.
func TestPolicies(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	_, hosts := makeHosts(ctx, t, "only")
	s, h := site{t, ctx}, hosts[0]
	s.configure(h, "token: "+secret+"\nflannel-backend: none\ndisable-kube-proxy: true\ndisable: [traefik, local-storage]\n")
	var pods strings.Builder
	for _, name := range []string{"box", "gateway", "other"} {
		fmt.Fprintf(&pods, "---\n{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, labels: {app: %[1]s}}, spec: {terminationGracePeriodSeconds: 0, "+
			"containers: [{name: netcheck, image: 'registry.test/netcheck:1', args: [serve]}]}}\n", name)
	}
	s.write(h, "var/lib/rancher/k3s/server/manifests/network.yaml", network)
	s.must(h, install+"server")
	s.await(h, "kubectl get serviceaccount default")
	s.must(h, "kubectl apply -f - <<'END'\n"+pods.String()+"END")
	s.await(h, "kubectl wait --for=condition=Ready pod/box pod/gateway pod/other --timeout=60s && kubectl rollout status -n kube-system deployment/coredns --timeout=60s")
	const define = `check() { pod=$1; shift; kubectl exec $pod -- /netcheck -timeout 2s "$@" 2>&1; }
		box=$(kubectl get pod box -o jsonpath='{.status.podIP}'):8080; other=$(kubectl get pod other -o jsonpath='{.status.podIP}'):8080
		reaches_api() { check $1 get https://10.43.0.1/ | grep certificate; }
		`
	s.await(h, define+"check other get http://$box && check box get http://$other && reaches_api box && check box lookup kubernetes.default.svc.cluster.local")
	s.must(h, "kubectl apply -f - <<'END'\n"+policies+"END")
	s.await(h, define+"check other get http://$box | grep -i -e timeout -e deadline")
	s.must(h, define+`check box get http://$other | grep -i -e timeout -e deadline
		! reaches_api box
		check box lookup kubernetes.default.svc.cluster.local | grep -x 10.43.0.1
		check gateway get http://$box | grep -x box
		reaches_api other
		kubectl delete networkpolicy --all`)
	s.await(h, define+"check other get http://$box && reaches_api box")
}
