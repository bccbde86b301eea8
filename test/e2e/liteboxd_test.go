package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"

	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

const (
	boxHost     = "box.example.lan"
	gatewayHost = "gateway.box.example.lan"
	// drainLimit is the shutdown timeout that the tests give LiteBoxd.
	drainLimit = 20 * time.Second
)

// withLiteBoxd is what the tests' install.yaml says of LiteBoxd.
const withLiteBoxd = `liteboxd:
  ingressHost: box.example.lan
  configDir: ./site
  shutdownTimeoutSeconds: 20
`

// box is LiteBoxd as its users have it: through the ingress of one node.
type box struct {
	t      *testing.T
	lab    *lab.Lab
	node   *lab.Host
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	client *http.Client
	cookie string
}

func newBox(t *testing.T, site *testbed.Site, node *lab.Host) *box {
	t.Helper()
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return site.Dial(ctx, network, net.JoinHostPort(node.Address.String(), "80"))
	}
	return &box{t: t, lab: site.Lab, node: node, dial: dial, client: &http.Client{
		Timeout: 30 * time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}}
}

// ask sends a request to one of the two host names.
func (b *box) ask(ctx context.Context, method, host, path string, header http.Header, body any) (status int, answer []byte, err error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+host+path, content)
	if err != nil {
		return 0, nil, err
	}
	for key, values := range header {
		request.Header[key] = values
	}
	if b.cookie != "" {
		request.Header.Set("Cookie", b.cookie)
	}
	response, err := b.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	if cookies := response.Cookies(); len(cookies) > 0 {
		b.cookie = cookies[0].Name + "=" + cookies[0].Value
	}
	answer, err = io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, answer, err
}

// call is ask for the API, which must answer with a status below 300.
func (b *box) call(method, path string, body, answer any) {
	b.t.Helper()
	status, text, err := b.ask(b.t.Context(), method, boxHost, "/api/v1/"+path, nil, body)
	if err != nil || status >= 300 {
		b.t.Fatalf("%s %s: status %d, %v\n%s", method, path, status, err, text)
	}
	if answer != nil {
		if err := json.Unmarshal(text, answer); err != nil {
			b.t.Fatalf("%s %s: %v\n%s", method, path, err, text)
		}
	}
}

// login retries what an ingress says that has not heard of the API's pod yet.
func (b *box) login(username, password string) {
	b.t.Helper()
	eventually(b.t, "the login", 30*time.Second, func() (bool, string) {
		status, text, err := b.ask(b.t.Context(), http.MethodPost, boxHost, "/api/v1/auth/login", nil, map[string]string{"username": username, "password": password})
		if err == nil && status < http.StatusInternalServerError && status != http.StatusOK && status != http.StatusNotFound {
			b.t.Fatalf("the login: status %d: %s", status, text)
		}
		return err == nil && status == http.StatusOK, fmt.Sprintf("status %d, %v: %s", status, err, text)
	})
}

func (b *box) version() string {
	b.t.Helper()
	var v struct{ Version string }
	b.call(http.MethodGet, "version", nil, &v)
	return v.Version
}

// boxed is a sandbox.
type boxed struct {
	ID, Status, Pod, PodUID, AccessToken string
}

// newTemplate makes the template that newSandbox takes.
func (b *box) newTemplate() {
	b.t.Helper()
	b.call(http.MethodPost, "templates", map[string]any{"name": "e2e", "spec": map[string]any{"image": upstream.SandboxRef, "command": []string{"/usr/bin/sandbox", "8080"}}}, nil)
}

// newSandbox makes a sandbox of newTemplate's template and waits until it runs.
func (b *box) newSandbox() boxed {
	b.t.Helper()
	return b.newSandboxOf("e2e")
}

func (b *box) newSandboxOf(template string) boxed {
	b.t.Helper()
	var s boxed
	b.call(http.MethodPost, "sandboxes", map[string]any{"template": template, "ttl": 3600}, &s)
	token := s.AccessToken
	eventually(b.t, "the sandbox "+s.ID, 2*time.Minute, func() (bool, string) {
		b.call(http.MethodGet, "sandboxes/"+s.ID, nil, &s)
		return s.Status == "running", s.Status
	})
	if token != "" {
		s.AccessToken = token
	}
	return s
}

// path is where the gateway has a port of the sandbox.
func (s boxed) path(port int) string { return fmt.Sprintf("/api/v1/sandbox/%s/port/%d/", s.ID, port) }

func (s boxed) header() http.Header { return http.Header{"X-Access-Token": {s.AccessToken}} }

// socket opens a WebSocket.
func (b *box) socket(host, path string, header http.Header) *websocket.Conn {
	b.t.Helper()
	dialer := websocket.Dialer{NetDialContext: b.dial, HandshakeTimeout: 30 * time.Second}
	if header == nil {
		header = http.Header{"Cookie": {b.cookie}}
	}
	conn, response, err := dialer.DialContext(b.t.Context(), "ws://"+host+path, header)
	if err != nil {
		b.t.Fatalf("open a WebSocket to %s%s: %v (%v)", host, path, err, response)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// lifetime keeps a WebSocket busy and tells when it was cut off.
func lifetime(conn *websocket.Conn) (ended <-chan time.Time) {
	cut := make(chan time.Time, 1)
	go func() {
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				cut <- time.Now()
				return
			}
		}
	}()
	go func() {
		for conn.WriteMessage(websocket.TextMessage, []byte("echo still here\n")) == nil {
			time.Sleep(200 * time.Millisecond)
		}
	}()
	return cut
}

// load asks API, web pages and a sandbox every 50 ms until it is stopped.
type load struct {
	box  *box
	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	asked  int
	failed []string
}

func (b *box) load(s boxed) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{box: b, stop: stop}
	b.t.Cleanup(func() { // before the hosts go, also after a failure
		stop()
		l.done.Wait()
	})
	// What fails here has to fail for what is done to this cluster, not for what others are busy with.
	if err := b.lab.SetCPUWeight(8); err != nil {
		b.t.Fatal(err)
	}
	targets := []struct {
		host, path string
		header     http.Header
	}{{boxHost, "/api/v1/version", nil}, {boxHost, "/", nil}, {gatewayHost, s.path(8080), s.header()}, {boxHost, "/api/v1/templates", nil}}
	l.done.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			target := targets[n%len(targets)]
			l.done.Go(func() {
				// Its own context: the one that was begun last is asked to its end.
				start := time.Now()
				status, text, err := b.ask(context.Background(), http.MethodGet, target.host, target.path, target.header, nil)
				took := time.Since(start)
				l.mu.Lock()
				defer l.mu.Unlock()
				l.asked++
				if err != nil || status != http.StatusOK {
					l.failed = append(l.failed, fmt.Sprintf("%s %s%s, after %v: status %d, %v: %.100s",
						time.Now().Format(time.TimeOnly), target.host, target.path, took, status, err, text))
				}
			})
		}
	})
	return l
}

// check ends the load once it has asked so often, and makes sure that nothing failed.
func (l *load) check(t *testing.T, atLeast int) {
	t.Helper()
	eventually(t, "the load", 2*time.Minute, func() (bool, string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.asked >= atLeast, fmt.Sprint(l.asked, " requests")
	})
	l.stop()
	l.done.Wait()
	if err := l.box.lab.SetCPUWeight(1); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests, %d failed", l.asked, len(l.failed))
	if len(l.failed) > 0 {
		t.Errorf("%d of %d requests failed and had to succeed:\n%s", len(l.failed), l.asked, strings.Join(l.failed[:min(len(l.failed), 20)], "\n"))
		for _, part := range []string{"kube-system daemonset/svclb-traefik", "kube-system deployment/traefik", "liteboxd-system deployment/liteboxd-gateway"} {
			namespace, name, _ := strings.Cut(part, " ")
			t.Logf("%s: %s", name, kubectl(t, l.box.node, "-n", namespace, "logs", name, "--all-pods", "--tail", "40"))
		}
	}
}

var shownLogin = regexp.MustCompile(`(?m)^LiteBoxd's first login, shown this once: user (\S+), password (\S+)$`)

// writeSite puts a file into the folder of the site's own patches.
func writeSite(t *testing.T, site *testbed.Site, name, content string) {
	t.Helper()
	path := filepath.Join(site.Bed.Dir, "site", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// onlyLiteBoxd is boxlift install of LiteBoxd alone.
func onlyLiteBoxd(t *testing.T, site *testbed.Site, bundle string, more ...string) result {
	t.Helper()
	args := append([]string{"install", "--only", "liteboxd", "--bundle", bundle, "--key", "boxlift.pub", "-f", "install.yaml"}, more...)
	return run(t, site.Boxlift(t.Context(), passwords, args...))
}

func succeeded(t *testing.T, what string, r result) result {
	t.Helper()
	if r.code != 0 {
		t.Fatalf("%s: %v", what, r)
	}
	return r
}

// sandboxPods are the pods of sandboxes by UID, with their restarts.
func sandboxPods(t *testing.T, server *lab.Host) map[string]string {
	t.Helper()
	pods := make(map[string]string)
	out := kubectl(t, server, "get", "pods", "-n", "liteboxd-sandbox", "-l", "app=liteboxd", "-o",
		`jsonpath={range .items[*]}{.metadata.uid} {.metadata.name} {.status.phase} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		uid, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		pods[uid] = rest
	}
	return pods
}

// LiteBoxd from its first start to upgrades, with everything that may go wrong on the way, and its database on its way
// from node to node.
func TestLiteBoxd(t *testing.T) {
	parallel(t, 12*time.Minute)
	site := newTwoHosts(t)
	server, bundle := site.Hosts[0], site.Bed.Bundle()
	writeSite(t, site, "values.env", "LOG_LEVEL=debug\n")
	writeSite(t, site, "system/patches/api.yaml", apiOnServer)
	writeConfig(t, site.Bed, twoHosts+withLiteBoxd, server.Address, site.Hosts[1].Address)

	first := mustRun(t, install(t.Context(), site))
	shown := shownLogin.FindStringSubmatch(first.stdout)
	if shown == nil {
		t.Fatalf("the first login was not shown:\n%s", first.stdout)
	}
	again := mustRun(t, install(t.Context(), site))
	contains(t, "the second run", again.stdout, "nothing to do")
	if strings.Contains(again.stdout, shown[2]) {
		t.Error("the first login was shown twice")
	}
	b := newBox(t, site, server)
	b.login(shown[1], shown[2])
	for what, path := range map[string]string{boxHost: "/", gatewayHost: "/api/v1/sandbox/none/port/8080/"} {
		status, text, err := b.ask(t.Context(), http.MethodGet, what, path, nil, nil)
		if want := map[string]int{boxHost: http.StatusOK, gatewayHost: http.StatusUnauthorized}[what]; err != nil || status != want && status != http.StatusNotFound {
			t.Errorf("%s%s: status %d, want %d, %v\n%s", what, path, status, want, err, text)
		}
	}
	if got := b.version(); got != release.LiteBoxd {
		t.Errorf("LiteBoxd is %s, want %s", got, release.LiteBoxd)
	}
	b.newTemplate()
	boxes := []boxed{b.newSandbox(), b.newSandbox()}

	skipped := mustRun(t, install(t.Context(), site, "--skip", "liteboxd"))
	contains(t, "install --skip liteboxd", skipped.stdout, "nothing to do")
	testHardening(t, site, b)
	testCertificates(t, site)
	testHealth(t, site)
	testInternet(t, site, b)
	testSitePatches(t, site, b, bundle)
	testUnknownImage(t, site, bundle)
	next := bundleWith(t, upstream.LiteBoxdNext)
	testNextLiteBoxd(t, site, b, boxes, next)
	testBrokenVersion(t, site, b, next)
	testRollback(t, site, b, boxes[1])
	if diff := cmp.Diff(2, len(sandboxPods(t, server))); diff != "" {
		t.Errorf("sandboxes at the end: %s", diff)
	}
	testMove(t, site, b, boxes)
	checkNothingLeaked(t, site)
}

// testInternet asks, from sandboxes, for an address that is in no network of the site's: one that may go to the
// internet is answered, one that may not or only to some domains is not. The address is in a network namespace of each
// host, so that no packet leaves it. What lets a sandbox reach its domains is Cilium's to enforce; LiteBoxd's
// controller has to be allowed to ask for it.
func testInternet(t *testing.T, site *testbed.Site, b *box) {
	t.Helper()
	server := site.Hosts[0]
	for _, h := range site.Hosts {
		onHost(t, h, "sh", "-ec", `ip netns add internet
ip link add internet0 type veth peer name eth0 netns internet
ip address add 198.51.100.1/24 dev internet0
ip link set internet0 up
ip -n internet address add 198.51.100.7/24 dev eth0
ip -n internet link set eth0 up
cat >/root/answer <<'END'
#!/bin/sh
while read -r line && [ "$line" != "$(printf '\r')" ]; do :; done
printf 'HTTP/1.0 200 OK\r\n\r\nthe internet\n'
END
chmod 755 /root/answer
systemd-run --quiet --unit=internet ip netns exec internet socat TCP-LISTEN:80,fork,reuseaddr EXEC:/root/answer`)
	}
	for name, spec := range map[string]map[string]any{
		"inside":  {},
		"outside": {"internetAccess": true},
		"domains": {"internetAccess": true, "allowedDomains": []string{"example.org"}},
	} {
		spec["image"], spec["command"] = netcheckImage, []string{"netcheck", "serve"}
		b.call(http.MethodPost, "templates", map[string]any{"name": name, "spec": spec}, nil)
		s := b.newSandboxOf(name)
		reaches := func() (bool, string) {
			out, err := tryKubectl(t, server, "-n", "liteboxd-sandbox", "exec", s.Pod, "--", "netcheck", "-timeout", "3s", "get", "http://198.51.100.7/")
			return err == nil && strings.Contains(out, "the internet"), fmt.Sprint(out, err)
		}
		if name == "outside" {
			eventually(t, "a sandbox reaches the internet", 30*time.Second, reaches)
		} else if reached, out := reaches(); reached {
			t.Errorf("a sandbox of the template %s reached the internet: %s", name, out)
		}
		if name == "domains" {
			eventually(t, "the policy for the sandbox's domains", 30*time.Second, func() (bool, string) {
				out, err := tryKubectl(t, server, "-n", "liteboxd-sandbox", "get", "ciliumnetworkpolicies", "-o", "jsonpath={.items[*].spec}")
				return err == nil && strings.Contains(out, "example.org"), fmt.Sprint(out, err)
			})
		}
		b.call(http.MethodDelete, "sandboxes/"+s.ID, nil, nil)
		eventually(t, "the sandbox is gone", time.Minute, func() (bool, string) {
			out, err := tryKubectl(t, server, "-n", "liteboxd-sandbox", "get", "pod", s.Pod)
			return err != nil, out
		})
	}
	for _, h := range site.Hosts {
		onHost(t, h, "sh", "-ec", "systemctl stop internet; ip link delete internet0; ip netns delete internet")
	}
}

// testSitePatches changes replicas, environment and a network policy from the folder of
// the site.
func testSitePatches(t *testing.T, site *testbed.Site, b *box, bundle string) {
	t.Helper()
	server := site.Hosts[0]
	writeSite(t, site, "system/patches/web.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: liteboxd-web}\nspec: {replicas: 2}\n")
	writeSite(t, site, "sandbox/patches/extra.yaml", `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow-monitoring}
spec:
  podSelector: {matchLabels: {app: liteboxd}}
  policyTypes: [Ingress]
  ingress:
    - from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
      ports: [{protocol: TCP, port: 9100, endPort: 9199}]
`)
	writeSite(t, site, "values.env", "LOG_LEVEL=warn\n")
	render := func(more ...string) result {
		return run(t, site.Boxlift(t.Context(), passwords, append([]string{"manifests", "render", "--bundle", bundle, "--key", "boxlift.pub", "-f", "install.yaml"}, more...)...))
	}
	r := render("--diff")
	if r.code != 7 {
		t.Errorf("manifests render --diff: %v", r)
	}
	contains(t, "manifests render --diff", r.stdout, "Deployment liteboxd-system/liteboxd-web: would be changed", "+  replicas: 2", "NetworkPolicy liteboxd-sandbox/allow-monitoring: would be made", "+  LOG_LEVEL: warn")
	succeeded(t, "install --only liteboxd with patches", onlyLiteBoxd(t, site, bundle))
	if got := kubectl(t, server, "get", "deployment", "-n", "liteboxd-system", "liteboxd-web", "-o", "jsonpath={.status.readyReplicas}"); got != "2" {
		t.Errorf("%q web pods are ready, want 2", got)
	}
	if got := kubectl(t, server, "get", "networkpolicy", "-n", "liteboxd-sandbox", "allow-monitoring", "-o", "jsonpath={.spec.ingress[0].ports[0].endPort}"); got != "9199" {
		t.Errorf("the policy's last port is %q", got)
	}
	// The API has started, and has replaced its policies; that is no difference.
	if got := kubectl(t, server, "get", "networkpolicy", "-n", "liteboxd-sandbox", "allow-dns", "-o",
		"jsonpath={.metadata.annotations}{.metadata.labels}"); got != "" {
		t.Errorf("the API has left labels and annotations on its policy: %s", got)
	}
	if r := render("--diff"); r.code != 0 || r.stdout != "" {
		t.Errorf("manifests render --diff after the installation: %v", r)
	}
	// Dropped again: pruned, with the volume and the namespaces kept.
	if err := os.Remove(filepath.Join(site.Bed.Dir, "site/sandbox/patches/extra.yaml")); err != nil {
		t.Fatal(err)
	}
	succeeded(t, "install --only liteboxd with a patch less", onlyLiteBoxd(t, site, bundle))
	if out, err := tryKubectl(t, server, "get", "networkpolicy", "-n", "liteboxd-sandbox", "allow-monitoring"); err == nil {
		t.Errorf("the policy is still there: %s", out)
	}
	if got := b.version(); got != release.LiteBoxd {
		t.Errorf("LiteBoxd is %s", got)
	}

	// Another image of the bundle's than LiteBoxd's own.
	configure := func(more string) {
		writeConfig(t, site.Bed, hardenedHosts+withLiteBoxd+more, server.Address, site.Hosts[1].Address)
	}
	helper := func() string {
		return kubectl(t, server, "get", "configmap", "-n", "liteboxd-system", "liteboxd-config", "-o", "jsonpath={.data.PERSISTENT_ROOTFS_HELPER_IMAGE}")
	}
	before := helper()
	configure("  images: {helper: '" + netcheckImage + "'}\n")
	succeeded(t, "install --only liteboxd with another image", onlyLiteBoxd(t, site, bundle))
	if got := helper(); got != netcheckImage {
		t.Errorf("the helper's image is %s, want %s", got, netcheckImage)
	}
	configure("")
	succeeded(t, "install --only liteboxd with the bundle's image", onlyLiteBoxd(t, site, bundle))
	if diff := cmp.Diff(before, helper()); diff != "" {
		t.Errorf("the helper's image: %s", diff)
	}
}

// testUnknownImage asks for an image that the bundle does not carry.
func testUnknownImage(t *testing.T, site *testbed.Site, bundle string) {
	t.Helper()
	patch := "system/patches/unknown.yaml"
	writeSite(t, site, patch, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: liteboxd-web}\nspec: {template: {spec: {containers: [{name: web, image: registry.lan/team/web:v7}]}}}\n")
	logins := func() string {
		return onHost(t, site.Hosts[0], "sh", "-c", "journalctl -u ssh --no-pager | grep -c Accepted")
	}
	before := logins()
	r := onlyLiteBoxd(t, site, bundle)
	if r.code != 3 {
		t.Errorf("with an unknown image: %v", r)
	}
	contains(t, "the refusal", r.stderr, "Deployment liteboxd-system/liteboxd-web", "registry.lan/team/web:v7", "- {ref: registry.lan/team/web:v7}")
	if after := logins(); after != before {
		t.Errorf("hosts were logged in to: %s times before, %s after", before, after)
	}
	if err := os.Remove(filepath.Join(site.Bed.Dir, "site", patch)); err != nil {
		t.Fatal(err)
	}
}

// testNextLiteBoxd upgrades LiteBoxd alone, while a user has a shell in a sandbox, which goes through the cluster's
// API, and a connection to another one.
func testNextLiteBoxd(t *testing.T, site *testbed.Site, b *box, boxes []boxed, bundle string) {
	t.Helper()
	before := sandboxPods(t, site.Hosts[0])
	shell := lifetime(b.socket(boxHost, "/api/v1/sandboxes/"+boxes[0].ID+"/exec/interactive?command=/usr/bin/sh", nil))
	echo := lifetime(b.socket(gatewayHost, boxes[1].path(8080), boxes[1].header()))
	start := time.Now()
	r := succeeded(t, "the upgrade of LiteBoxd alone", onlyLiteBoxd(t, site, bundle))
	if got := b.version(); got != upstream.LiteBoxdNext {
		t.Errorf("LiteBoxd is %s after the upgrade", got)
	}
	outlivesDrain(t, "the shell", shell, start)
	outlivesDrain(t, "the gateway's WebSocket", echo, start)
	samePods(t, site, "sandboxes", before, sandboxPods(t, site.Hosts[0]))
	checkBackup(t, site.Hosts[0], r.stdout, backedUp{sandboxes: 2, templates: 4}) // newTemplate's, and three of testInternet
}

var shownBackup = regexp.MustCompile(`(?m)^backup of LiteBoxd from before: (.+)$`)

// backedUp is how much a backup of LiteBoxd has.
type backedUp struct{ sandboxes, templates, prepulls int }

// checkBackup looks into the backup that a summary names.
func checkBackup(t *testing.T, server *lab.Host, summary string, want backedUp) {
	t.Helper()
	named := shownBackup.FindStringSubmatch(summary)
	if named == nil {
		t.Fatalf("the summary names no backup:\n%s", summary)
	}
	content, err := os.ReadFile(filepath.Join(named[1], "backup.json"))
	if err != nil {
		t.Fatal(err)
	}
	var backup struct {
		Compared  bool
		Sandboxes []json.RawMessage
		Rows      map[string][]string
	}
	if err := json.Unmarshal(content, &backup); err != nil {
		t.Fatal(err)
	}
	has := backedUp{len(backup.Sandboxes), len(backup.Rows["templates"]), len(backup.Rows["image_prepulls"])}
	if !backup.Compared || has != want {
		t.Errorf("the backup has %+v, want %+v: %s", has, want, content)
	}
	key, err := os.ReadFile(filepath.Join(named[1], "sandbox-token-encryption-key"))
	if err != nil {
		t.Fatal(err)
	}
	if got := kubectl(t, server, "get", "secret", "-n", "liteboxd-system", "liteboxd-keys", "-o", "go-template={{.data.SANDBOX_TOKEN_ENCRYPTION_KEY | base64decode}}"); got != string(key) {
		t.Error("the backup's key is not the cluster's")
	}
	for _, name := range []string{"backup.json", "liteboxd.db", "objects.yaml", "sandbox-token-encryption-key"} {
		info, err := os.Stat(filepath.Join(named[1], name))
		if err != nil || info.Mode().Perm() != 0o600 || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// testBrokenVersion upgrades to a version that never becomes ready.
func testBrokenVersion(t *testing.T, site *testbed.Site, b *box, last string) {
	t.Helper()
	// Kubernetes gives up sooner than a user would like to wait for a test.
	writeSite(t, site, "system/patches/deadline.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: liteboxd-api}\nspec: {progressDeadlineSeconds: 45}\n")
	succeeded(t, "install --only liteboxd with another deadline", onlyLiteBoxd(t, site, last))
	before := sandboxPods(t, site.Hosts[0])
	r := upgrade(t, site, bundleWith(t, upstream.LiteBoxdBroken))
	if r.code != 6 {
		t.Errorf("an upgrade to a version that never gets ready: %v", r)
	}
	contains(t, "the report", r.stderr, "liteboxd-api", "never becomes ready", "rolled back", "the database stays as it is", "/liteboxd.db. To go back to that")
	if h := history(t, site); h[0].State != "failed" || h[0].Command != "upgrade" || !strings.Contains(h[0].Result, "rolled back") {
		t.Errorf("after LiteBoxd went back: %+v", h)
	}
	if got := b.version(); got != upstream.LiteBoxdNext {
		t.Errorf("LiteBoxd is %s after the failed upgrade", got)
	}
	samePods(t, site, "sandboxes", before, sandboxPods(t, site.Hosts[0]))
}

// testHealth asks how the platform is while it is well and while a part of it is not.
func testHealth(t *testing.T, site *testbed.Site) {
	t.Helper()
	health := func(more ...string) (int, map[string]string) {
		args := append([]string{"health", "-f", "install.yaml", "-o", "json"}, more...)
		r := run(t, site.Boxlift(t.Context(), passwords, args...))
		var report struct {
			Checks []struct{ Check, Subject, State, Detail string }
		}
		if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
			t.Fatalf("health: %v\n%v", err, r)
		}
		states := make(map[string]string)
		for _, c := range report.Checks {
			if c.State == "failed" || states[c.Check] == "" {
				states[c.Check] = c.State
			}
			if c.State == "failed" {
				t.Logf("health: %s %s failed: %s", c.Check, c.Subject, c.Detail)
			}
		}
		return r.code, states
	}
	// A probe that a machine short of time does not answer makes a pod unready for a while.
	eventually(t, "a platform that is well", time.Minute, func() (bool, string) {
		code, states := health()
		if code == 0 && states["sandbox-to-internet"] != "skipped" {
			t.Errorf("nobody asked for the internet, and it is %q", states["sandbox-to-internet"])
		}
		return code == 0, fmt.Sprintf("exit code %d, %v", code, states)
	})
	if code, states := health("--only", "sandbox-to-internet"); code != 0 || states["sandbox-to-internet"] != "ok" {
		t.Errorf("the internet from a sandbox: exit code %d, %v", code, states)
	}
	server := site.Hosts[0]
	kubectl(t, server, "scale", "deployment", "-n", "liteboxd-system", "liteboxd-web", "--replicas", "0")
	kubectl(t, server, "delete", "networkpolicy", "-n", "liteboxd-sandbox", "--all")
	code, states := health()
	if code != 7 {
		t.Errorf("health without web pages and policies: exit code %d", code)
	}
	for _, check := range []string{"deployment", "ingress", "sandbox-to-api"} {
		if states[check] != "failed" {
			t.Errorf("health without web pages and policies: %s is %q", check, states[check])
		}
	}
	mended := mustRun(t, install(t.Context(), site))
	contains(t, "the installation that mends it", mended.stderr, "deploy LiteBoxd")
}

// revision is the last one of LiteBoxd's release that has a version.
func (b *box) revision(site *testbed.Site, version string) string {
	b.t.Helper()
	history := succeeded(b.t, "rollback liteboxd --list", run(b.t, site.Boxlift(b.t.Context(), passwords, "rollback", "liteboxd", "-f", "install.yaml", "--list")))
	contains(b.t, "the history", history.stdout, "REVISION", release.LiteBoxd, upstream.LiteBoxdNext)
	var last string
	for line := range strings.Lines(history.stdout) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[1] == version {
			last = fields[0]
		}
	}
	if last == "" {
		b.t.Fatalf("no revision of %s:\n%s", version, history.stdout)
	}
	return last
}

// testRollback goes back on request, and does not wait for a user's connection.
func testRollback(t *testing.T, site *testbed.Site, b *box, s boxed) {
	t.Helper()
	args := []string{"rollback", "liteboxd", "-f", "install.yaml", "--revision", b.revision(site, release.LiteBoxd), "--force-after", "1s"}
	cut := lifetime(b.socket(gatewayHost, s.path(8080), s.header()))
	r := succeeded(t, "rollback liteboxd", run(t, site.Boxlift(t.Context(), passwords, args...)))
	contains(t, "the rollback", r.stderr, "cutting off the connections of liteboxd-gateway")
	select {
	case <-cut:
	case <-time.After(30 * time.Second):
		t.Error("the WebSocket is still open")
	}
	if got := b.version(); got != release.LiteBoxd {
		t.Errorf("LiteBoxd is %s after the rollback", got)
	}
}

// All under one host name, in namespaces of the user's, on a single node; the key and the password are the user's own
// and show up nowhere. The operator logs in with a key as a user whom sudo asks for no password, and pins the host's
// key in install.yaml instead of known_hosts. The bundle is signed with a key that cosign made. The site has an
// authority of its own: only on a host can it be seen that programs there accept the API and LiteBoxd by name.
func TestLiteBoxdRenamed(t *testing.T) {
	parallel(t, 2*time.Minute)
	const key, password = "canary-key-32-bytes-long-4f1d2c9", "canary-admin-of-liteboxd-77aa"
	site := newSite(t, lab.HostOptions{Name: "server", Users: []lab.User{{Name: "admin", Sudo: lab.SudoNoPassword}}})
	line, err := site.Hosts[0].HostKey()
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, site.Boxlift(t.Context(), []string{"BOXLIFT_CA_PASSWORD=root"}, "ca", "init", "--name", "plant", "--folder", "authority"))
	writeConfig(t, site.Bed, `cluster:
  master: {host: %s, user: admin, identityFile: %s, sudo: true, hostKey: "%s"}
authority: {folder: authority}
liteboxd:
  namespaceSystem: plant-box
  namespaceSandbox: plant-sandboxes
  ingressHost: box.example.lan
  gatewayIngressHost: box.example.lan
  shutdownTimeoutSeconds: 20
  extraImages: [%s]
  security: {sandboxTokenEncryptionKey: "${BOX_KEY}", adminUsername: plant, adminInitialPassword: "${BOX_PASSWORD}"}
`, site.Hosts[0].Address, site.KeyFile(), fingerprint(t, line), upstream.SandboxRef)
	env := []string{"BOX_KEY=" + key, "BOX_PASSWORD=" + password}
	bundle, publicKey := signedWithCosignsKey(t)
	r := mustRun(t, site.Boxlift(t.Context(), env, "install", "--bundle", bundle, "--key", publicKey, "-f", "install.yaml", "-v"))
	b := newBox(t, site, site.Hosts[0])
	b.login("plant", password)
	if got := b.version(); got != release.LiteBoxd {
		t.Errorf("LiteBoxd is %s", got)
	}
	b.newTemplate()
	s := b.newSandbox()
	eventually(t, "the sandbox through the gateway", time.Minute, func() (bool, string) {
		status, text, err := b.ask(t.Context(), http.MethodGet, boxHost, s.path(8080), s.header(), nil)
		return err == nil && status == http.StatusOK && strings.Contains(string(text), s.Pod), fmt.Sprintf("status %d, %v, %s", status, err, text)
	})
	namespaces := kubectl(t, site.Hosts[0], "get", "namespaces", "-o", "name")
	for _, name := range []string{"liteboxd-system", "liteboxd-sandbox"} {
		if strings.Contains(namespaces, name) {
			t.Errorf("there is a namespace %s", name)
		}
	}
	state, err := os.ReadFile(filepath.Join(site.Bed.Dir, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	record, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(kubectl(t, site.Hosts[0],
		"get", "secret", "-n", "kube-system", "sh.helm.release.v1.liteboxd.v1",
		"-o", "go-template={{.data.release | base64decode}}"))))
	if err != nil {
		t.Fatal(err)
	}
	released, err := io.ReadAll(record)
	if err != nil || !strings.Contains(string(released), "liteboxd-api") {
		t.Fatalf("the release's record: %v", err)
	}
	for what, text := range map[string]string{
		"stdout": r.stdout, "stderr": r.stderr, "the state": string(state), "the release's record": string(released),
	} {
		for _, secret := range []string{key, password} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds a secret", what)
			}
		}
	}
	if r := run(t, site.Boxlift(t.Context(), []string{"BOX_KEY=another-key-of-32-bytes-4f1d2c90", "BOX_PASSWORD=" + password}, installArgs...)); r.code != 3 || !strings.Contains(r.stderr, "is not the key that the cluster has") {
		t.Errorf("with another key: %v", r)
	}
	testAuthority(t, site, env)
	testGates(t, site, env)
	checkNothingLeaked(t, site)
}

// testAuthority asks the API and LiteBoxd by name, with the trust that the host has, which is given and taken.
func testAuthority(t *testing.T, site *testbed.Site, env []string) {
	t.Helper()
	ask := func(name, port, path string) (string, error) {
		out, err := site.Hosts[0].Exec(t.Context(), "curl", "-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}",
			"--resolve", name+":"+port+":"+site.Hosts[0].Address.String(), "https://"+name+":"+port+path)
		return strings.TrimSpace(string(out)), err
	}
	for _, one := range [][3]string{{"kubernetes", "6443", "/cacerts"}, {boxHost, "443", "/api/v1/templates"}} {
		eventually(t, one[0]+" by its name", time.Minute, func() (bool, string) {
			code, err := ask(one[0], one[1], one[2])
			return err == nil && code != "000" && code != "404", fmt.Sprintf("%s, %v", code, err)
		})
	}
	if code, err := ask("other.example.lan", "6443", "/cacerts"); err == nil {
		t.Errorf("the API is accepted by another name: %s", code)
	}
	if r := run(t, site.Boxlift(t.Context(), env, "certs", "status", "-f", "install.yaml")); !strings.Contains(r.stdout, "CN=plant root") {
		t.Errorf("certs status does not list the root: %v", r)
	}
}
