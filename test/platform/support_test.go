//go:build linux

package platform

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/supportbundle"
	"github.com/liteboxd/boxlift/install/supportbundle/archive"
)

const (
	// canary is a secret that nobody has told boxlift of.
	canary = "zq7canary4vb9"
	// told is one that install.yaml has: it is masked where nothing else tells that it is a secret.
	told = "word-of-install-yaml"
	// useful is what stands beside secrets, and is to be read.
	useful = "useful-words"
)

// secretLog is what programs print that do not take care, line by line.
var secretLog = []string{
	useful, "level=info msg=\"" + useful + "\" token=" + canary, "Authorization: Bearer " + canary + "xx",
	"joining with K10" + strings.Repeat("0af9", 16) + "::server:" + canary, "password: \"" + canary + "\"",
	"get https://admin:" + canary + "@reg.local/v2/", "it said " + told + " again",
	"-----BEGIN EC PRIVATE KEY-----", "MHcCAQEE" + canary, "-----END EC PRIVATE KEY-----",
	"AGE-SECRET-KEY-1" + strings.ToUpper(canary), "eyJhbGciOiJIUzI1NiJ9." + canary + ".c2ln",
	`{"level":"debug","body":"{\"secret\":\"` + canary + `\"}"}`, "argv [k3s --agent-token " + canary + " --debug]", useful + " again",
}

// logWith is a log with something before each line.
func logWith(before string) string { return before + strings.Join(secretLog, "\n"+before) + "\n" }

// plant puts secrets everywhere where they can be: on hosts, in their logs, in the API, in the operator's folder.
func (p *Platform) plant(t *testing.T) {
	t.Helper()
	for _, h := range p.Hosts {
		h.Program("journalctl", func(_ context.Context, c *hosttest.Call) int {
			unit := "kernel"
			if i := slices.Index(c.Args, "-u"); i >= 0 {
				unit = strings.Trim(c.Args[i+1], "*")
			}
			_, _ = io.WriteString(c.Stdout, logWith("2026-01-02T03:04:05+0000 host "+unit+"[7]: ")) // the caller may have gone
			return 0
		})
		for name, content := range map[string]string{
			"/etc/rancher/k3s/config.yaml.d/own.yaml": "node-label: [" + useful + "]\ntoken: " + canary + "\ndatastore-endpoint: " +
				"\"postgres://k3s:" + canary + "@db/k3s\"\nvpn-auth: |\n  name=x\n  joinKey=" + canary + "\n",
			"/etc/rancher/k3s/registries.yaml": "mirrors:\n  " + useful + ":\nconfigs:\n  reg.local:\n    auth:\n      username: u\n" +
				"      password: " + canary + "\n",
			"/var/lib/rancher/k3s/agent/etc/containerd/config.toml": "# " + useful + "\n[plugins.x.configs.\"reg\".auth]\n" +
				"password = \"" + canary + "\"\n",
			"/var/lib/rancher/k3s/agent/containerd/containerd.log":         logWith(""),
			"/var/log/pods/kube-system_coredns-x_0123456789/coredns/0.log": logWith("2026-01-02T03:04:05.6Z stderr F "),
			"/var/log/pods/kube-system_coredns-x_0123456789/coredns/1.log": logWith("2026-01-02T03:04:05.6Z stdout F "),
			"/var/log/pods/sandboxes_box_0123456789/box/0.log":             "of-a-user\n",
			"/etc/resolv.conf":           "nameserver 10.0.0.1\n# " + useful + "\n",
			"/var/lib/boxlift/" + useful: canary,
		} {
			h.Fake.WriteFile(t, name, content, 0o600)
		}
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "kube-system", Annotations: map[string]string{
			"kubectl.kubernetes.io/last-applied-configuration": `{"env":[{"name":"MODE","value":"` + canary + `"}]}`,
			"note": useful + ", token=" + canary,
		}}
	}
	pod := &corev1.Pod{ObjectMeta: meta(useful + "-pod"), Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "reg.local/" + useful + ":v1", Args: []string{"--token", canary, "--log-level", useful},
		Command: []string{"sh", "-c", "run --password=" + canary},
		Env: []corev1.EnvVar{{Name: "MODE", Value: canary}, {Name: "FROM", ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: useful + "-ref"}, Key: "k"}}}},
	}}}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: useful + "-secret", Namespace: "kube-system"}, Type: "Opaque",
		Data: map[string][]byte{"entry": []byte(canary)}}
	p.API.Put(t, pod, secret,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: useful + "-map", Namespace: "kube-system"},
			Data: map[string]string{"entry": canary}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"},
			Data: map[string]string{"Corefile": useful + "\npassword " + "x\nsecret = " + canary}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "kube-system"}, Reason: "Failed",
			Message: useful + ": pull https://u:" + canary + "@reg.local/v2/"})
	for name, content := range map[string]string{
		"install.yaml": installYAML + "# " + useful + "\nsudoPassword: " + canary + "\n",
	} {
		if err := os.WriteFile(filepath.Join(p.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// supportOptions are those of a support bundle of the platform.
func (p *Platform) supportOptions(t *testing.T) install.SupportOptions {
	t.Helper()
	o, _ := p.options(t, nil)
	o.ConfigPath = filepath.Join(p.Dir, "install.yaml")
	o.Config.Cluster.Servers[0].Password = config.NewSecret(told)
	now := time.Now()
	return install.SupportOptions{
		Options: o, Path: filepath.Join(t.TempDir(), "support.tar.gz"), Created: now, NoHealth: true,
		About: map[string]string{"version": "v1"},
		Settings: supportbundle.Settings{Since: now.Add(-time.Hour), LogBytes: 1 << 20, ItemTimeout: time.Minute,
			HostTimeout: 5 * time.Minute},
	}
}

// read returns the files of an archive, and what its index says of its items.
func read(t *testing.T, path string) (files map[string]string, items map[string]archive.Item) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files, items = map[string]string{}, map[string]archive.Item{}
	index, err := archive.Read(f, func(name string, r io.Reader) error {
		content, err := io.ReadAll(r)
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range index.Items {
		items[item.Path] = item
		files[archive.IndexName] += item.Source + " " + item.Error + "\n"
	}
	return files, items
}

// noCanary fails for each file with a secret in it.
func noCanary(t *testing.T, files map[string]string) {
	t.Helper()
	for name, content := range files {
		for _, secret := range []string{canary, told, base64.StdEncoding.EncodeToString([]byte(canary))[:12], "t0ken"} {
			if at := strings.Index(strings.ToLower(content), strings.ToLower(secret)); at >= 0 {
				t.Errorf("%s has a secret in it: %q", name, content[max(0, at-80):min(len(content), at+40)])
			}
		}
	}
}

// A support bundle has what there is to be seen, and no secret, wherever they are planted. It changes nothing, and no
// list of Secrets is asked for with their contents.
func TestSupportBundle(t *testing.T) {
	p := fresh(t)
	var mu sync.Mutex
	var lists []string
	others := p.API.Instead
	p.API.Instead = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/secrets") && r.Method == http.MethodGet {
			mu.Lock()
			lists = append(lists, r.Header.Get("Accept")+" "+r.URL.Query().Get("includeObject"))
			mu.Unlock()
		}
		return others(w, r)
	}
	if err := p.install(t.Context(), t, Bundle(t, older), false); err != nil {
		t.Fatal(err, p.Told())
	}
	p.plant(t)
	before := p.exact(t)
	lists = nil
	o := p.supportOptions(t)
	index, err := install.CollectSupport(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := strings.Compare(before, p.exact(t)); diff != 0 {
		t.Error("collecting has changed something")
	}
	if len(lists) == 0 {
		t.Error("Secrets were not listed")
	}
	for _, accept := range lists {
		if accept != "application/json;as=Table;v=v1;g=meta.k8s.io Metadata" {
			t.Errorf("Secrets were asked for as %q", accept)
		}
	}
	files, items := read(t, o.Path)
	noCanary(t, files)
	for name, words := range map[string]int{
		"hosts/server-1/journal/k3s.log": 3, "hosts/server-1/journal/boxlift.log": 3, "hosts/agent-1/journal/kernel.log": 3,
		"hosts/server-1/k3s/config/config.yaml.d/00-own.yaml": 1, "hosts/agent-1/k3s/config/registries.yaml": 1,
		"hosts/server-1/k3s/containerd-config.toml": 1, "hosts/server-1/k3s/containerd.log": 3,
		"hosts/agent-1/pods/kube-system/coredns-x-01234567/00-coredns.log": 6,
		"hosts/server-1/network/names.txt":                                 1, "hosts/server-1/boxlift/files.txt": 1, "cluster/pods.json": 5,
		"cluster/events.json": 1, "cluster/secrets.json": 1, "cluster/configmaps.json": 1, "cluster/configmap-coredns.json": 1,
		"operator/install.yaml": 1,
	} {
		if got := strings.Count(files[name], useful); got != words {
			t.Errorf("%s has %d of %d useful words: %q %+v", name, got, words, files[name], items[name])
		}
	}
	for name, text := range map[string]string{
		"hosts/server-1/system/uname.txt": "Linux", "hosts/server-1/boxlift/facts.json": "hostname",
		"hosts/server-1/k3s/config/config.yaml": "", "cluster/nodes.json": "server-1", "cluster/releases.json": "succeeded",
		"cluster/version.json": older, "cluster/readyz.txt": "ok", "cluster/helm.json": "cilium", "operator/state.json": "install",
		"operator/releases.json": "succeeded", "operator/boxlift.json": "v1", archive.ReadmeName: "lan-1",
	} {
		if content, isThere := files[name]; !isThere || !strings.Contains(content, text) {
			t.Errorf("%s lacks %q: %q %+v", name, text, content, items[name])
		}
	}
	for name, content := range files {
		if strings.Contains(content, "of-a-user") {
			t.Errorf("%s has what a sandbox has printed", name)
		}
	}
	for _, item := range index.Items {
		if item.Error != "" && !strings.Contains(item.Error, "the stand-in does not know crictl") {
			t.Errorf("%s: %s", item.Path, item.Error)
		}
	}
}

// What cannot be reached is an item, and the rest is there: a host, the API, a program that fails, one that never
// ends, and one that prints without end.
func TestSupportBundleOfBroken(t *testing.T) {
	b := Bundle(t, older)
	p := installed(t, b)
	server := p.Hosts[0]
	if err := os.Remove(server.Path(site.K3sKubeconfig)); err != nil {
		t.Fatal(err)
	}
	server.Program("uname", func(ctx context.Context, c *hosttest.Call) int {
		if slices.Equal(c.Args, []string{"-a"}) {
			return hosttest.Fails(3, "no uname, token="+canary)(ctx, c)
		}
		_, _ = io.WriteString(c.Stdout, map[bool]string{true: "server-1\n", false: "Linux x86_64\n"}[slices.Contains(c.Args, "-n")])
		return 0
	})
	server.Program("journalctl", func(ctx context.Context, c *hosttest.Call) int {
		if slices.Contains(c.Args, "-k") {
			<-ctx.Done()
			return 1
		}
		for i := 0; i < 50_000 && ctx.Err() == nil; i++ {
			if _, err := io.WriteString(c.Stdout, "2026-01-02T03:04:05+0000 host k3s[7]: "+useful+"\n"); err != nil {
				return 1
			}
		}
		return 0
	})
	server.Program("ps", func(ctx context.Context, c *hosttest.Call) int {
		lines := strings.Repeat(strings.Repeat("x", 1000)+"\n", 64) // as many as a pipe holds
		for ctx.Err() == nil {
			if _, err := io.WriteString(c.Stdout, lines); err != nil {
				return 1
			}
		}
		return 1
	})
	o := p.supportOptions(t)
	o.LogBytes, o.ItemTimeout = 100_000, 20*time.Second
	o.Dial = func(ctx context.Context, h config.Host) (host.Host, error) {
		if h.Host == "10.0.0.12" {
			return nil, errors.New("no way to " + told)
		}
		return p.Dial(ctx, h)
	}
	index, err := install.CollectSupport(t.Context(), o)
	if !errors.Is(err, site.ErrHosts) || !errors.Is(err, supportbundle.ErrUnreached) || index == nil {
		t.Fatal(index, err)
	}
	files, items := read(t, o.Path)
	noCanary(t, files)
	for name, text := range map[string]string{
		"hosts/agent-1/connection.txt":      "no way to <redacted>",
		"cluster/version.json":              "no k3s server runs yet",
		"hosts/server-1/system/uname.txt":   "no uname, token=<redacted>",
		"hosts/server-1/journal/kernel.log": "given up after 20s",
	} {
		if item := items[name]; !strings.Contains(item.Error, text) {
			t.Errorf("%s: %+v, want %q", name, item, text)
		}
	}
	if item := items["hosts/server-1/journal/k3s.log"]; item.Cut != archive.CutHead || item.Error != "" ||
		item.Size < 99_000 || item.Size > 100_000 || !strings.HasPrefix(files[item.Path], "2026-") {
		t.Errorf("a long log: %+v", item)
	}
	if item := items["hosts/server-1/system/processes.txt"]; item.Cut != archive.CutTail || item.Error != "" ||
		item.Size < 16_000_000 || item.Size > 16<<20 {
		t.Errorf("what has no end: %+v", item)
	}
	if !strings.Contains(files["hosts/server-1/k3s/config/config.yaml"], "node-name") || items["status.json"].Absent != true {
		t.Errorf("the rest: %+v, %+v", items["hosts/server-1/k3s/config/config.yaml"], items["status.json"])
	}
}
