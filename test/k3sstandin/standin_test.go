package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/klauspost/compress/zstd"

	"github.com/liteboxd/boxlift/test/lab"
)

func TestReadSettings(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("token", "from-file\n")
	for _, test := range []struct {
		name, command, config, more string
		args, environ               []string
		want                        settings
		err                         string
	}{
		{name: "first server", command: "server", config: "tls-san: [a, b]\nflannel-backend: none\ndisable-kube-proxy: true\n",
			want: settings{server: true, names: []string{"a", "b"}}},
		{name: "later files replace and add", command: "server", config: "tls-san: [a]\nnode-ip: 10.0.0.1\n", more: "tls-san+: [b]\nnode-ip: 10.0.0.2\n",
			want: settings{server: true, names: []string{"a", "b", "10.0.0.2"}}},
		{name: "command line before environment before file", command: "agent", config: "token: file\nserver: https://file\n",
			environ: []string{"K3S_TOKEN=environment", "K3S_URL=https://environment"}, args: []string{"--server=https://line"},
			want: settings{join: "https://line", token: "environment"}},
		{name: "token file", command: "agent", config: "server: https://s:6443/\ntoken-file: " + dir + "/token\n", want: settings{join: "https://s:6443", token: "from-file"}},
		{name: "agent without server", command: "agent", config: "token: x\n", err: "--server is required"},
		{name: "agent without token", command: "agent", config: "server: https://s\n", err: "--token is required"},
		{name: "plain http", command: "agent", config: "server: http://s\ntoken: x\n", err: "only https://"},
		{name: "unknown key", command: "server", config: "flanel-backend: none\n", err: "not defined: -flanel-backend"},
		{name: "server's key on an agent", command: "agent", config: "flannel-backend: none\n", err: "not defined: -flannel-backend"},
		{name: "unknown flag", command: "server", args: []string{"--no-such"}, err: "not defined: --no-such"},
		{name: "flag without its value", command: "server", args: []string{"--token"}, err: "needs an argument"},
		{name: "not YAML", command: "server", config: "a: [", err: "read " + config},
	} {
		t.Run(test.name, func(t *testing.T) {
			write("config.yaml", test.config)
			write("config.yaml.d/10-more.yaml", test.more)
			got, err := readSettings(test.command, append([]string{"--config", config}, test.args...), test.environ)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error is %v, want %q in it", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			test.want.dataDir, test.want.configDir, test.want.port = "/var/lib/rancher/k3s", dir, "6443"
			test.want.kubeconfig, test.want.kubeconfigMode = filepath.Join(dir, "k3s.yaml"), "600"
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(settings{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestImageNames(t *testing.T) {
	archive := func(files ...string) io.Reader {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for i := 0; i < len(files); i += 2 {
			if err := w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, files[i+1]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &out
	}
	const index = `{"manifests":[{"annotations":{"io.containerd.image.name":"r/a:1","org.opencontainers.image.ref.name":"1"}},
		{"annotations":{"org.opencontainers.image.ref.name":"r/b:1"}},{}]}`
	const saved = `[{"RepoTags":["rancher/x:1","busybox:2","quay.io/c/d:3"]}]`
	for _, test := range []struct {
		name  string
		files []string
		want  []string
	}{
		{"layout", []string{"index.json", index}, []string{"r/a:1", "r/b:1"}},
		{"docker", []string{"manifest.json", saved}, []string{"docker.io/rancher/x:1", "docker.io/library/busybox:2", "quay.io/c/d:3"}},
		{"both", []string{"manifest.json", saved, "./index.json", index}, []string{"r/a:1", "r/b:1"}},
	} {
		got, err := imageNames(archive(test.files...))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
	if _, err := imageNames(archive("index.json", "{")); err == nil {
		t.Error("half an index is no error")
	}
}

// writeArchive writes an OCI layout in a tar with one image under the given
// name. It is an index of two platforms that holds only this machine's.
func writeArchive(t *testing.T, path, name string) (digest v1.Hash) {
	t.Helper()
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	index := v1.ImageIndex(empty.Index)
	var absent v1.Image
	for _, architecture := range []string{runtime.GOARCH, other} {
		image, err := random.Image(100_000, 2)
		if err != nil {
			t.Fatal(err)
		}
		if architecture == other {
			absent = image
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
	}
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
	hashes := []func() (v1.Hash, error){absent.Digest, absent.ConfigName}
	for _, layer := range layers {
		hashes = append(hashes, layer.Digest)
	}
	for _, hash := range hashes {
		h, err := hash()
		if err != nil {
			t.Fatal(err)
		}
		if err := l.RemoveBlob(h); err != nil {
			t.Fatal(err)
		}
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	data := packed.Bytes()
	if strings.HasSuffix(path, ".zst") {
		encoder, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		data = encoder.EncodeAll(data, nil)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
		t.Fatal(err)
	}
	digest, err = index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func install(t *testing.T, h *lab.Host, path, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(h.Root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to+".new", data, 0o755), os.Rename(to+".new", to)); err != nil {
		t.Fatal(err)
	}
}

func TestOnHosts(t *testing.T) {
	lab.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	l, err := lab.New(ctx, lab.Options{Name: "standin", Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	binary := filepath.Join(t.TempDir(), "k3s")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w -X main.version=v1.36.4+k3s1", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var hosts []*lab.Host
	for _, name := range []string{"server", "agent"} {
		h, err := l.Host(ctx, lab.HostOptions{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		install(t, h, "usr/local/bin/k3s", binary)
		install(t, h, "root/install.sh", "install.sh")
		hosts = append(hosts, h)
	}
	server, agent := hosts[0], hosts[1]
	must := func(h *lab.Host, script string) string {
		t.Helper()
		out, err := h.Exec(ctx, "sh", "-ec", script)
		if err != nil {
			journal, _ := h.Exec(ctx, "journalctl", "--no-pager", "--lines=40", "--unit=k3s*")
			t.Fatalf("%v\n%s%s", err, out, journal)
		}
		return strings.TrimSpace(string(out))
	}
	fails := func(h *lab.Host, script, reason string) {
		t.Helper()
		out, err := h.Exec(ctx, "sh", "-ec", "{ "+script+"\n} 2>&1")
		if err == nil || !strings.Contains(string(out), reason) {
			t.Errorf("%s: %v, want a failure that says %q:\n%s", script, err, reason, out)
		}
	}
	configure := func(h *lab.Host, text string) {
		t.Helper()
		path := filepath.Join(h.Root, "etc/rancher/k3s/config.yaml")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	const images = "var/lib/rancher/k3s/agent/images/"
	const run = "INSTALL_K3S_SKIP_DOWNLOAD=true sh /root/install.sh "
	const secret = "a-secret-of-the-cluster"

	if got := must(server, "k3s --version"); !strings.HasPrefix(got, "k3s version v1.36.4+k3s1 (standin)\n") {
		t.Errorf("k3s --version says %q", got)
	}
	fails(server, "k3s kubectl get nodes", "without Kubernetes")
	fails(server, "sh /root/install.sh", "cannot download")
	fails(server, "INSTALL_K3S_BIN_DIR=/opt "+run, "/opt/k3s")
	fails(server, "K3S_URL=http://x "+run, "https://")

	first := writeArchive(t, filepath.Join(server.Root, images, "a.tar"), "docker.io/rancher/first:1")
	second := writeArchive(t, filepath.Join(server.Root, images, "c.tar.zst"), "quay.io/cilium/second:v2")
	if err := os.WriteFile(filepath.Join(server.Root, images, "b.tar"), []byte("not a tar"), 0o644); err != nil {
		t.Fatal(err)
	}
	configure(server, "token: "+secret+"\ncluster-init: true\nflannel-backend: none\ntls-san: [api.lan]\n")

	// In two steps, as an installer does that watches the start itself.
	must(server, "INSTALL_K3S_SKIP_START=true "+run+"server")
	if got := must(server, "systemctl is-enabled k3s; systemctl show -p Type,KillMode,Delegate k3s; systemctl is-active k3s || true"); got != "enabled\nType=notify\nDelegate=yes\nKillMode=process\ninactive" {
		t.Errorf("the unit is\n%s", got)
	}
	start := time.Now()
	must(server, "systemctl start k3s && systemctl is-active k3s")
	t.Logf("start with two archives: %v", time.Since(start))

	listed := must(server, "k3s ctr images list")
	for name, digest := range map[string]v1.Hash{"docker.io/rancher/first": first, "quay.io/cilium/second": second} {
		for _, ref := range []string{name + ":", name + "@" + digest.String()} {
			if !strings.Contains(listed, ref) {
				t.Errorf("%s is not listed:\n%s", ref, listed)
			}
		}
	}
	if strings.Count(listed, "io.cri-containerd.pinned=pinned") != 4 || strings.Count(listed, first.String()) < 2 {
		t.Errorf("want four pinned names with the index's digests:\n%s", listed)
	}
	if got := must(server, "k3s ctr images check -q | sort | head -1; k3s ctr images check"); strings.Contains(got, "incomplete") {
		t.Errorf("content is not complete:\n%s", got)
	}
	journal := must(server, "journalctl --no-pager --unit=k3s --output=cat")
	for _, line := range []string{
		"Importing images from /var/lib/rancher/k3s/agent/images/a.tar\"", "Imported docker.io/rancher/first:1\"",
		"failed to import images from /var/lib/rancher/k3s/agent/images/b.tar:",
		"Imported images from /var/lib/rancher/k3s/agent/images/c.tar.zst in ",
	} {
		before, after, ok := strings.Cut(journal, line)
		if !ok {
			t.Fatalf("the journal has no line, or not in this order, with %q:\n%s%s", line, before, after)
		}
		journal = after
	}
	if got := must(server, "cd /var/lib/rancher/k3s/server; stat -c %a token /etc/rancher/k3s/k3s.yaml; cmp token node-token; cat token"); !strings.HasPrefix(got, "600\n600\nK10") || !strings.HasSuffix(got, "::server:"+secret) {
		t.Errorf("the server's files are %q", got)
	}
	if got := must(server, "curl -sk https://127.0.0.1:6443/ping; curl -sk -o /dev/null -w ' %{http_code}' https://127.0.0.1:6443/version"); got != "pong 401" {
		t.Errorf("port 6443 answers %q", got)
	}

	// The script's own idea of what has changed.
	pid := must(server, "systemctl show -p MainPID k3s")
	if got := must(server, run+"server"); !strings.Contains(got, "No change detected") || must(server, "systemctl show -p MainPID k3s") != pid {
		t.Errorf("a second run says\n%s", got)
	}
	must(server, "K3S_NODE_NAME='a \"b\" $c' "+run+"server")
	if got := must(server, "stat -c %a /etc/systemd/system/k3s.service.env; tr '\\0' '\\n' < /proc/$(systemctl show -P MainPID k3s)/environ | grep K3S_"); got != "600\nK3S_NODE_NAME=a \"b\" $c" || must(server, "systemctl show -p MainPID k3s") == pid {
		t.Errorf("the environment is %q, and was the service restarted?", got)
	}
	must(server, "INSTALL_K3S_EXEC=\"server --node-label 'a=b c'\" "+run+"--node-label '50%=$x'")
	if got := must(server, "tr '\\0' '|' < /proc/$(systemctl show -P MainPID k3s)/cmdline"); got != "/usr/local/bin/k3s|server|--node-label|a=b c|--node-label|50%=$x|" {
		t.Errorf("the command line is %q", got)
	}

	// Joining.
	full := must(server, "cat /var/lib/rancher/k3s/server/token")
	url := fmt.Sprintf("https://%s:6443", server.Address)
	writeArchive(t, filepath.Join(agent.Root, images, "a.tar"), "docker.io/rancher/first:1")
	for _, wrong := range []struct{ token, reason string }{
		{"not-" + secret, "401 Unauthorized"},
		{"K10" + strings.Repeat("0", 64) + "::server:" + secret, "token CA hash does not match"},
		{"K10x::y", "invalid token"},
	} {
		configure(agent, "server: "+url+"\ntoken: "+wrong.token+"\n")
		fails(agent, "k3s agent", wrong.reason)
	}
	configure(agent, "server: "+url+"\ntoken: "+full+"\n")
	must(agent, run+"agent; systemctl is-active k3s-agent; k3s ctr images list -q | grep -x docker.io/rancher/first:1; test -x /usr/local/bin/k3s-agent-uninstall.sh")

	// A killed service leaves no containerd that keeps the next one from starting.
	must(agent, "systemctl kill --signal=KILL --kill-whom=main k3s-agent; sleep 1; until systemctl is-active -q k3s-agent; do sleep 0.2; done; test $(pgrep -c containerd) = 1")
	must(agent, "systemctl stop k3s-agent; ! pgrep containerd")
	if err := server.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	must(server, "until systemctl is-active -q k3s; do sleep 0.2; done; k3s ctr images check -q | grep -x quay.io/cilium/second:v2")

	must(server, "k3s-uninstall.sh")
	for _, path := range []string{"usr/local/bin/k3s", "usr/local/bin/k3s-killall.sh", "etc/systemd/system/k3s.service", "etc/rancher/k3s", "var/lib/rancher/k3s"} {
		if _, err := os.Stat(filepath.Join(server.Root, path)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("/%s is there after uninstall (%v)", path, err)
		}
	}
	if n, detail, err := l.LeakedPackets(); err != nil || n != 0 {
		t.Errorf("%d packets tried to leave the LAN: %v\n%s", n, err, detail)
	}
}
