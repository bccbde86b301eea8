package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // the registry's storage
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/authority"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
	"github.com/liteboxd/boxlift/test/upstream"
)

const seededCluster = `cluster:
  name: e2e
  servers:
    - {host: %s, name: server, password: "${ROOT_PASSWORD}"}
  agents:
    - {host: %s, name: one, password: "${ROOT_PASSWORD}"}
    - {host: %s, name: two, user: admin, password: "${ADMIN_PASSWORD}", sudo: true}
ssh: {knownHostsFile: known_hosts}
network: {cni: cilium, cilium: {values: %s}}
liteboxd: {ingressHost: box.example.lan}
runtime: {commandTimeoutSeconds: 240}
%s`

const (
	byRegistry = "seeding: {mode: registry, agents: boot, peerToPeer: true}\n"
	byImages   = "seeding: {mode: images}\n"
	byExternal = `seeding:
  mode: external
  agents: boot
  peerToPeer: true
  external:
    address: ` + siteRegistry + `
    caFile: site-ca/ca.crt
    push: {username: pusher, password: "${REGISTRY_PASSWORD}"}
    pull: {username: 'robot$puller', password: "${REGISTRY_PASSWORD}"}
`
	// siteRegistry is where the site's own registry answers: at the operator's place.
	siteRegistry = "10.77.0.2:5000"

	registryUnit = "boxlift-registry"
	registryCA   = "/etc/rancher/k3s/boxlift-registry-ca.crt"
)

// seeded is the site of TestSeeding.
type seeded struct {
	*testbed.Site
	server *lab.Host
	agents []*lab.Host
	// rest are the images that agents do not get in mode registry, all are all of them.
	rest, all []string
	// digests are values with which Cilium's chart means the images that stand in for its own.
	digests string
	// login is LiteBoxd's first user and password.
	login [2]string
	// registry is the site's own.
	registry *registryLog
}

func (s *seeded) write(t *testing.T, seeding string) {
	t.Helper()
	writeConfig(t, s.Bed, seededCluster, s.Hosts[0].Address, s.Hosts[1].Address, s.Hosts[2].Address, s.digests, seeding)
}

// One cluster that gets its images from a registry of the site's, then from the servers'
// registry, and then by files alone.
func TestSeeding(t *testing.T) {
	parallel(t, 8*time.Minute)
	site := newSite(t,
		lab.HostOptions{Name: "server", RootPassword: rootPassword},
		lab.HostOptions{Name: "one", RootPassword: rootPassword},
		lab.HostOptions{Name: "two", Users: []lab.User{{Name: "admin", Password: adminPassword, Sudo: lab.SudoWithPassword}}},
	)
	s := &seeded{Site: site, server: site.Hosts[0], agents: site.Hosts[1:]}
	s.readImages(t)
	s.registry = s.startRegistry(t)
	parts := []struct {
		name string
		run  func(*testing.T, *seeded)
	}{
		{"external", testSeedingInstall},
		{"registry", testToRegistry},
		{"the unit", testRegistryUnit},
		{"again", testSeedingAgain},
		{"LiteBoxd", testSeedingLiteBoxd},
		{"an image that nobody has", testNobodysImage},
		{"wrong password", testWrongPassword},
		{"certificate that is not valid", testInvalidCertificate},
		{"full disk", testFullStore},
		{"drift", testRegistryDrift},
		{"killed", testRegistryKilled},
		{"secrets", testSeedingSecrets},
		{"agents that hold everything", testFullAgents},
		{"images", testToImages},
	}
	for _, part := range parts {
		if !t.Run(part.name, func(t *testing.T) { part.run(t, s) }) {
			t.FailNow()
		}
	}
	checkNothingLeaked(t, site)
}

// readImages finds out which images the agents' packs do not hold.
func (s *seeded) readImages(t *testing.T) {
	t.Helper()
	r, err := bundle.Open(s.Bed.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	names := func(o bundle.PackOptions) []string {
		packs, err := r.Packs("linux/amd64", o)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range packs {
			names = append(names, p.Images...)
		}
		return names
	}
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	digest := func(repository string) string {
		for _, image := range contents.Images {
			if strings.HasPrefix(image.Name, repository+":") {
				return image.Digest.String()
			}
		}
		t.Fatalf("the bundle has no %s", repository)
		return ""
	}
	s.digests = fmt.Sprintf("{image: {digest: %q}, operator: {image: {genericDigest: %q}}, envoy: {image: {digest: %q}}}",
		digest("quay.io/cilium/cilium"), digest("quay.io/cilium/operator-generic"), digest("quay.io/cilium/cilium-envoy"))
	boot := names(bundle.PackOptions{Boot: true})
	s.all = names(bundle.PackOptions{})
	s.rest = slices.DeleteFunc(slices.Clone(s.all), func(name string) bool { return slices.Contains(boot, name) })
	if !slices.Contains(s.rest, upstream.SandboxRef) || len(boot) == 0 {
		t.Fatalf("agents would get %v, and not %v", boot, s.rest)
	}
}

// held are the images that containerd has on a host.
func held(t *testing.T, h *lab.Host) []string {
	t.Helper()
	return strings.Fields(onHost(t, h, "/usr/local/bin/k3s", "ctr", "-n", "k8s.io", "images", "ls", "-q"))
}

// Agents begin with what they need to start, and LiteBoxd runs all the same: the site's own
// registry has the rest.
func testSeedingInstall(t *testing.T, s *seeded) {
	s.write(t, byExternal)
	first := mustRun(t, install(t.Context(), s.Site)).stdout
	t.Logf("%s", first)
	shown := shownLogin.FindStringSubmatch(first)
	if shown == nil {
		t.Fatal("the first login was not shown")
	}
	s.login = [2]string{shown[1], shown[2]}
	contains(t, "the first run", first, "images came after k3s was started there, and other nodes may not get these")
	for _, h := range s.agents {
		packs := onHost(t, h, "sh", "-c", "ls /var/lib/rancher/k3s/agent/images")
		contains(t, h.Name+"'s packs", packs, "boxlift-k3s-", "boxlift-cilium-")
		if strings.Contains(packs, "liteboxd") {
			t.Errorf("%s has packs that it does not need to start:\n%s", h.Name, packs)
		}
		if slices.Contains(held(t, h), upstream.SandboxRef) {
			t.Errorf("%s has %s, which nothing there has asked for", h.Name, upstream.SandboxRef)
		}
	}
	// Cilium asks for its images by the digests that upstream gave them.
	contains(t, "Cilium's image", kubectl(t, s.server, "-n", "kube-system", "get", "daemonset", "cilium", "-o", "jsonpath={.spec.template.spec.containers[0].image}"), "@sha256:")
	contains(t, "the run after that", mustRun(t, install(t.Context(), s.Site)).stdout, "nothing to do")
	s.peers(t, s.health(t), ": warning: ") // what came at the first start of k3s came after that had begun
	testExternal(t, s)
}

// The service has no rights, finds the packs below folders that it may not enter, and the
// files that it needs are for it alone.
func testRegistryUnit(t *testing.T, s *seeded) {
	onHost(t, s.server, "chmod", "0700", "/var/lib/rancher/k3s/agent", "/var/lib/boxlift")
	onHost(t, s.server, "systemctl", "restart", registryUnit)
	status := onHost(t, s.server, "sh", "-ec", `pid=$(systemctl show -p MainPID --value boxlift-registry); ps -o user= -p "$pid"; cat "/proc/$pid/status"; findmnt -N "$pid" -n -o OPTIONS /; ls "/proc/$pid/root/run/boxlift-registry/images"`)
	contains(t, "the service", status, registryUnit+"\n", "NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "boxlift-liteboxd-")
	if !strings.Contains(status, "\nro,") {
		t.Errorf("the service can write to the root file system:\n%s", status)
	}
	files := onHost(t, s.server, "sh", "-c", "stat -c '%n %a %U %G' /etc/boxlift-registry /etc/boxlift-registry/*")
	want := "/etc/boxlift-registry 2750 root boxlift-registry\n/etc/boxlift-registry/config.json 640 root boxlift-registry\n/etc/boxlift-registry/tls.pem 640 root boxlift-registry\n"
	if diff := cmp.Diff(want, files); diff != "" {
		t.Error(diff)
	}
	if out := onHost(t, s.server, "systemctl", "is-enabled", registryUnit); out != "enabled\n" {
		t.Errorf("the service is %s", out)
	}
}

func (s *seeded) health(t *testing.T) map[string][]string {
	t.Helper()
	found := healthOf(t, s.Site, "registry", "certificate", "peers")
	found["certificate"] = slices.DeleteFunc(found["certificate"], func(c string) bool { return !strings.Contains(c, ", port 5443: ") })
	return found
}

func testSeedingAgain(t *testing.T, s *seeded) {
	before := s.look(t)
	contains(t, "the second run", mustRun(t, install(t.Context(), s.Site)).stdout, "nothing to do")
	if diff := cmp.Diff(before, s.look(t)); diff != "" {
		t.Errorf("the second run changed something: %s", diff)
	}
	if r := run(t, s.status(t)); r.code != 0 {
		t.Errorf("status: %v", r)
	}
	health := s.health(t)
	if len(health["registry"]) != 3 || len(health["certificate"]) != 1 {
		t.Errorf("health looked at %v", health)
	}
	for _, c := range health["registry"] {
		contains(t, "health", c, ": ok: 1 of 1 registry answer")
	}
	for _, c := range health["certificate"] {
		contains(t, "health", c, ": ok: ends in 36")
	}
	s.peers(t, health, ": ok: ") // another seeding starts k3s again, with all images there
}

// peers checks what health says of the images that nodes offer each other.
func (s *seeded) peers(t *testing.T, health map[string][]string, want string) {
	t.Helper()
	if len(health["peers"]) != len(s.Hosts) {
		t.Errorf("health looked at %v", health["peers"])
	}
	for _, c := range health["peers"] {
		contains(t, "health", c, want)
	}
}

func (s *seeded) status(t *testing.T) *exec.Cmd {
	t.Helper()
	return s.Boxlift(t.Context(), passwords, "status", "--bundle", "bundle.tar", "--key", "boxlift.pub", "-o", "json")
}

// look is what hosts have, and when their services were started.
func (s *seeded) look(t *testing.T) map[string]string {
	t.Helper()
	files := hostFiles(t, s.Hosts)
	files["registry"] = onHost(t, s.server, "systemctl", "show", "-p", "ExecMainStartTimestampMonotonic,NRestarts", registryUnit) +
		onHost(t, s.server, "find", "/etc/boxlift-registry", "/usr/local/libexec", "-printf", `%p %m %u %g %s %T@ %C@\n`)
	return files
}

// A sandbox whose image only the registry has starts on an agent.
func testSeedingLiteBoxd(t *testing.T, s *seeded) {
	kubectl(t, s.server, "cordon", "server")
	defer kubectl(t, s.server, "uncordon", "server")
	b := newBox(t, s.Site, s.server)
	b.login(s.login[0], s.login[1])
	b.call(http.MethodPost, "templates", map[string]any{"name": "e2e", "spec": map[string]any{"image": upstream.SandboxRef, "command": []string{"/usr/bin/sandbox", "8080"}}}, nil)
	sandbox := b.newSandbox()
	node := strings.TrimSpace(kubectl(t, s.server, "get", "pods", "-n", "liteboxd-sandbox", "-o", `jsonpath={.items[?(@.metadata.uid=="`+sandbox.PodUID+`")].spec.nodeName}`))
	if node != "one" && node != "two" {
		t.Errorf("the sandbox runs on %q", node)
	}
}

// pod is a pod on a node that only runs an image.
func pod(name, node, image string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: %q, imagePullPolicy: Always, args: [serve]}]
`, name, node, image)
}

// pullFailure is the first event about a pod's image that could not be pulled.
func (s *seeded) pullFailure(t *testing.T, name string) (text string) {
	t.Helper()
	eventually(t, "an event of "+name, 2*time.Minute, func() (bool, string) {
		events := kubectl(t, s.server, "get", "events", "--field-selector", "reason=Failed,involvedObject.name="+name, "-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
		for line := range strings.Lines(events) {
			if strings.HasPrefix(line, "Failed to pull image") {
				text = strings.TrimSpace(line)
			}
		}
		return text != "", events
	})
	return text
}

func testNobodysImage(t *testing.T, s *seeded) {
	for i, image := range []string{"docker.io/nobody/has-this:v1", "registry.nowhere.example/team/tool:v7", upstream.SandboxRef + "-of-nobody"} {
		name := fmt.Sprint("nobody", i)
		applyYAML(t, s.server, pod(name, "one", image))
		text := s.pullFailure(t, name)
		contains(t, "the event", text, image, "not found")
		for _, part := range []string{"timeout", "dial", "lookup", "no such host"} {
			if strings.Contains(text, part) {
				t.Errorf("%s was looked for elsewhere: %s", image, text)
			}
		}
		kubectl(t, s.server, "delete", "pod", name, "--now")
	}
}

const k3sRegistries = "/etc/rancher/k3s/registries.yaml"

func testWrongPassword(t *testing.T, s *seeded) {
	one := s.agents[0]
	onHost(t, one, "sh", "-ec", `sed -i 's/password: .*/password: wrong/' `+k3sRegistries+` && systemctl restart k3s-agent`)
	eventually(t, "the agent is back", time.Minute, func() (bool, string) {
		state := nodes(t, s.server)["one"]
		return state == "True", state
	})
	applyYAML(t, s.server, pod("wrong", "one", netcheckImage))
	contains(t, "the event", s.pullFailure(t, "wrong"), netcheckImage, "401 Unauthorized")
	health := s.health(t)
	contains(t, "health", strings.Join(health["registry"], "\n"), one.Address.String()+"): failed: 0 of 1 registry answer to the node's login", "HTTP 401", "two ("+s.agents[1].Address.String()+"): ok")
	contains(t, "status", run(t, s.status(t)).stdout, "registries.yaml differs")
	mustRun(t, install(t.Context(), s.Site))
	s.awaitPod(t, "wrong")
	kubectl(t, s.server, "delete", "pod", "wrong", "--now")
}

func (s *seeded) awaitPod(t *testing.T, name string) {
	t.Helper()
	eventually(t, "the pod "+name, 2*time.Minute, func() (bool, string) {
		phase := kubectl(t, s.server, "get", "pod", name, "-o", "jsonpath={.status.phase} {.status.containerStatuses[*].state.waiting.message}")
		return strings.HasPrefix(phase, "Running"), phase
	})
}

// A certificate that has ended, or that has not begun, is what the event says, and health;
// install replaces it. One that has not begun is what a node sees whose clock is behind: all
// hosts here have one clock.
func testInvalidCertificate(t *testing.T, s *seeded) {
	day := 24 * time.Hour
	last := ""
	for _, test := range []struct {
		pod   string
		from  time.Duration // from now on, for 30 days
		event string
		state string // of the check of the certificate
	}{
		{"ended", -60 * day, "is after", "failed: ended on"},
		{"early", 30 * day, "is before", "failed: begins in the future, at"},
	} {
		from := time.Now().Add(test.from)
		s.replaceCertificate(t, "e2e", s.server, from, from.Add(30*day))
		applyYAML(t, s.server, pod(test.pod, "one", netcheckImage))
		contains(t, "the event", s.pullFailure(t, test.pod), netcheckImage, "certificate has expired or is not yet valid", test.event)
		health := s.health(t)
		contains(t, "health", strings.Join(slices.Concat(health["registry"], health["certificate"]), "\n"),
			"failed: 0 of 1 registry answer", "certificate has expired or is not yet valid", test.event, test.state)
		if last != "" {
			kubectl(t, s.server, "delete", "pod", last, "--now")
		}
		last = test.pod
	}
	contains(t, "status", run(t, s.status(t)).stdout, "the certificate begins in the future")
	contains(t, "the run", mustRun(t, install(t.Context(), s.Site)).stdout, "1 changes")
	s.awaitPod(t, last)
	kubectl(t, s.server, "delete", "pod", last, "--now")
}

// replaceCertificate gives a server's registry a certificate, signed by the cluster's
// authority, that is valid from one time until another.
func (s *seeded) replaceCertificate(t *testing.T, cluster string, h *lab.Host, from, until time.Time) {
	t.Helper()
	dir := filepath.Join(s.Bed.Dir, "registry-ca", cluster)
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{h.Address.AsSlice()},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pair := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...)
	if out, err := h.ExecInput(t.Context(), pair, "sh", "-c", "cat >/etc/boxlift-registry/tls.pem"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// A node without room says so, and pulls when there is some again.
func testFullStore(t *testing.T, s *seeded) {
	const ingest = "/var/lib/rancher/k3s/agent/containerd/io.containerd.content.v1.content/ingest"
	two, image := s.agents[1], upstream.SandboxRef
	_, _ = two.Exec(t.Context(), "/usr/local/bin/k3s", "crictl", "rmi", image) // which may not be there
	if err := two.FullDisk(t.Context(), ingest, 8<<10); err != nil {
		t.Fatal(err)
	}
	applyYAML(t, s.server, pod("full", "two", image))
	contains(t, "the event", s.pullFailure(t, "full"), image, "no space left on device")
	if err := two.Restore(t.Context(), ingest); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the image", 3*time.Minute, func() (bool, string) {
		return slices.Contains(held(t, two), image), "not there"
	})
	kubectl(t, s.server, "delete", "pod", "full", "--now")
}

// What others change of the unit, its config, its program and its certificate is found, and
// mended by the next run; a certificate that ends soon is replaced without a restart.
func testRegistryDrift(t *testing.T, s *seeded) {
	onHost(t, s.server, "sh", "-ec", `echo '# changed' >>/etc/systemd/system/boxlift-registry.service
sed -i 's/"username": "boxlift"/"username": "other"/' /etc/boxlift-registry/config.json
echo changed >/etc/boxlift-registry/tls.pem
chown root:root /etc/boxlift-registry
systemctl stop boxlift-registry`)
	r := run(t, s.status(t))
	if r.code != 7 {
		t.Errorf("status of a changed registry: %v", r)
	}
	contains(t, "status", r.stdout, "boxlift-registry.service differs", "config.json differs", "write the certificate of boxlift's registry", "/etc/boxlift-registry has another mode or owner", "the service is inactive")
	mustRun(t, install(t.Context(), s.Site))
	if r := run(t, s.status(t)); r.code != 0 {
		t.Errorf("after the repair: %v", r)
	}
	started := onHost(t, s.server, "systemctl", "show", "-p", "ExecMainStartTimestampMonotonic", registryUnit)
	before := onHost(t, s.server, "cat", "/etc/boxlift-registry/tls.pem")
	onHost(t, s.server, "sh", "-c", "echo >/etc/boxlift-registry/tls.pem")
	mustRun(t, install(t.Context(), s.Site))
	if after := onHost(t, s.server, "cat", "/etc/boxlift-registry/tls.pem"); after == before {
		t.Error("the certificate is the one from before")
	}
	if now := onHost(t, s.server, "systemctl", "show", "-p", "ExecMainStartTimestampMonotonic", registryUnit); now != started {
		t.Error("a new certificate has restarted the registry")
	}
}

// puller is a node that pulls images and drops them again.
type puller struct {
	host       *lab.Host
	drop, pull func(image string) []string // commands
}

// agent pulls as its kubelet does.
func (s *seeded) agentPuller(h *lab.Host) puller {
	crictl := func(verb string) func(string) []string {
		return func(image string) []string { return []string{"/usr/local/bin/k3s", "crictl", verb, image} }
	}
	return puller{h, crictl("rmi"), crictl("pull")} // what a pod holds is not deleted, and pulled again all the same
}

// newPuller boots a host that has of a node no more than containerd, and the files with
// which the first agent's finds the registry.
func (s *seeded) newPuller(t *testing.T, name string) puller {
	t.Helper()
	h, err := s.Host(t.Context(), lab.HostOptions{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	const hosts = "var/lib/rancher/k3s/agent/etc/containerd/certs.d"
	if err := os.CopyFS(filepath.Join(h.Root, hosts), os.DirFS(filepath.Join(s.agents[0].Root, hosts))); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(s.agents[0].Root, registryCA))
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Join(h.Root, filepath.Dir(registryCA)), 0o755), os.WriteFile(filepath.Join(h.Root, registryCA), ca, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	login := regexp.MustCompile(`(?m)^ +password: (\S+)$`).FindStringSubmatch(onHost(t, s.agents[0], "cat", "/etc/rancher/k3s/registries.yaml"))
	if login == nil {
		t.Fatal("registries.yaml has no password")
	}
	onHost(t, h, "systemd-run", "--unit=puller", "--property=Delegate=yes", "/usr/bin/containerd")
	eventually(t, name+"'s containerd", 30*time.Second, func() (bool, string) {
		out, err := h.Exec(t.Context(), "ctr", "version")
		return err == nil, string(out)
	})
	ctr := func(args ...string) func(string) []string {
		return func(image string) []string { return append(append([]string{"ctr", "images"}, args...), image) }
	}
	return puller{h, ctr("rm", "--sync"), ctr("pull", "--hosts-dir", "/"+hosts, "--user", "boxlift:"+login[1])}
}

// The serving process is killed again and again while five nodes pull: every pull ends
// right, and what arrived is whole.
func testRegistryKilled(t *testing.T, s *seeded) {
	const kills = 50
	pullers := []puller{s.agentPuller(s.agents[0]), s.agentPuller(s.agents[1])}
	for _, name := range []string{"three", "four", "five"} {
		pullers = append(pullers, s.newPuller(t, name))
	}
	if err := s.LimitLinks(t.Context(), "80mbit"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var pulling sync.WaitGroup
	var mu sync.Mutex
	pulled, broken := make(map[string]int), make(map[string]int)
	for _, p := range pullers {
		pulling.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				image := s.rest[i%len(s.rest)]
				_, _ = p.host.Exec(t.Context(), p.drop(image)...) // which may not be there
				for {
					out, err := p.host.Exec(t.Context(), p.pull(image)...)
					mu.Lock()
					if err == nil {
						pulled[p.host.Name]++
					} else {
						broken[p.host.Name]++
					}
					mu.Unlock()
					if err == nil {
						break
					}
					for _, wrong := range []string{"not found", "unauthorized", "digest", "size"} {
						if strings.Contains(strings.ToLower(string(out)+err.Error()), wrong) {
							t.Errorf("%s: pull %s: %v: %s", p.host.Name, image, err, out)
						}
					}
					time.Sleep(200 * time.Millisecond) // as kubelet does, only sooner
				}
			}
		})
	}
	mainPID := func() string {
		return strings.TrimSpace(onHost(t, s.server, "systemctl", "show", "-p", "MainPID", "--value", registryUnit))
	}
	for range kills {
		time.Sleep(500 * time.Millisecond)
		before := mainPID()
		onHost(t, s.server, "systemctl", "kill", "-s", "KILL", registryUnit)
		// The unit is active until systemd has heard of the end.
		eventually(t, "the registry is back", 30*time.Second, func() (bool, string) {
			now := mainPID()
			return now != before && now != "0", now
		})
	}
	stop()
	pulling.Wait()
	if err := s.LimitLinks(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kills; pulls %v, begun again %v", kills, pulled, broken)
	for _, p := range pullers {
		if pulled[p.host.Name] == 0 || broken[p.host.Name] == 0 {
			t.Errorf("%s: %d pulls, %d of them hit: the kills prove nothing", p.host.Name, pulled[p.host.Name], broken[p.host.Name])
		}
	}
	restarts := strings.TrimSpace(onHost(t, s.server, "systemctl", "show", "-p", "NRestarts", "--value", registryUnit))
	if restarts != fmt.Sprint(kills) {
		t.Errorf("systemd restarted the registry %s times, want %d", restarts, kills)
	}
	for _, p := range pullers {
		for _, image := range s.rest {
			onHost(t, p.host, p.pull(image)...)
		}
	}
	for i, namespace := range []string{"k8s.io", "k8s.io", "default", "default", "default"} {
		h, ctr := pullers[i].host, "/usr/bin/ctr"
		if namespace == "k8s.io" {
			ctr = "/usr/local/bin/k3s ctr"
		}
		// What a running pod has unpacked is not fetched again.
		for line := range strings.Lines(onHost(t, h, "sh", "-c", ctr+" -n "+namespace+" images check")) {
			if f := strings.Fields(line); slices.Contains(f, "incomplete") && f[len(f)-1] != "true" {
				t.Errorf("%s: %s", h.Name, line)
			}
		}
	}
}

func testSeedingSecrets(t *testing.T, s *seeded) {
	content := onHost(t, s.server, "sh", "-c", "sed -n 's/ *password: *//p' "+k3sRegistries+" | head -1")
	password := strings.Trim(strings.TrimSpace(content), `"`)
	if len(password) < 32 {
		t.Fatalf("no password in registries.yaml: %q", content)
	}
	c := &canaries{secrets: []string{password, rootPassword, adminPassword, registryPassword}}
	state, err := os.ReadFile(filepath.Join(s.Bed.Dir, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	c.search(t, "state.json", string(state))
	for _, h := range s.Hosts {
		c.searchHost(t, h)
	}
	err = filepath.WalkDir(filepath.Join(s.Bed.Dir, "registry-ca"), func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && entry.IsDir() && info.Mode().Perm() != 0o700 && filepath.Base(path) != "registry-ca" {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if err == nil && info.Mode().IsRegular() && !strings.HasSuffix(path, ".crt") && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// pods are all pods of the cluster by UID, with their restarts. Cilium's operators are left
// out: they end when the API server was away for longer than they hold their lease.
func (s *seeded) pods(t *testing.T) map[string]string {
	t.Helper()
	pods := make(map[string]string)
	for line := range strings.Lines(kubectl(t, s.server, "get", "pods", "-A", "-o", `jsonpath={range .items[*]}{.metadata.uid} {.metadata.name} {.spec.nodeName} {.status.phase} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)) {
		uid, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(rest, "cilium-operator-") {
			pods[uid] = rest
		}
	}
	return pods
}

// change has another mode while pods run, which notice nothing.
func (s *seeded) change(t *testing.T, seeding string) {
	t.Helper()
	before := s.pods(t)
	s.write(t, seeding)
	t.Logf("%s", mustRun(t, install(t.Context(), s.Site)).stdout)
	samePods(t, s.Site, "pods", before, s.pods(t))
}

func testToRegistry(t *testing.T, s *seeded) {
	s.write(t, byRegistry)
	dry := mustRun(t, install(t.Context(), s.Site, "--dry-run"))
	contains(t, "the dry run", dry.stdout, "would make the user and the folder of boxlift's registry", "would write the certificate of boxlift's registry",
		"would start boxlift-registry", "would write the authority of the registry", "would write k3s' registries")
	if _, err := os.Stat(filepath.Join(s.Bed.Dir, "registry-ca")); err == nil {
		t.Error("a dry run made an authority")
	}
	s.change(t, byRegistry)
}

// testFullAgents makes sure that agents which hold all images start pods while no registry runs.
func testFullAgents(t *testing.T, s *seeded) {
	one := s.agents[0]
	_, _ = one.Exec(t.Context(), "/usr/local/bin/k3s", "crictl", "rmi", netcheckImage) // which may not be there
	s.change(t, strings.Replace(byRegistry, "agents: boot", "agents: full", 1))
	images := held(t, one)
	for _, name := range s.all {
		if !slices.Contains(images, name) {
			t.Errorf("%s: containerd has no image %s", one.Name, name)
		}
	}
	onHost(t, s.server, "systemctl", "stop", registryUnit)
	applyYAML(t, s.server, strings.Replace(pod("full", "one", netcheckImage), "Always", "IfNotPresent", 1))
	s.awaitPod(t, "full")
	kubectl(t, s.server, "delete", "pod", "full", "--now")
	onHost(t, s.server, "systemctl", "start", registryUnit)
}

// leftovers are the files and users of boxlift's registry on a host.
func leftovers(t *testing.T, h *lab.Host) string {
	t.Helper()
	return onHost(t, h, "sh", "-c", `ls -d /etc/systemd/system/boxlift-registry.service /etc/boxlift-registry /usr/local/libexec/boxlift-registry /var/lib/boxlift/registry-started `+registryCA+` 2>/dev/null
id -un boxlift-registry 2>/dev/null
systemctl is-active boxlift-registry | grep -v inactive`+"\ntrue")
}

// testExternal makes sure that nodes pull from the site's registry, with the login for that,
// and from nowhere else.
func testExternal(t *testing.T, s *seeded) {
	t.Helper()
	for _, h := range s.Hosts {
		if out := leftovers(t, h); out != registryCA+"\n" {
			t.Errorf("%s still has:\n%s", h.Name, out)
		}
	}
	_, _ = s.agents[1].Exec(t.Context(), "/usr/local/bin/k3s", "crictl", "rmi", netcheckImage) // which may not be there
	s.registry.take(t)
	applyYAML(t, s.server, pod("external", "two", netcheckImage))
	s.awaitPod(t, "external")
	kubectl(t, s.server, "delete", "pod", "external", "--now")
	contains(t, "the registry's log", s.registry.take(t), `robot$puller HEAD /v2/boxlift-test/netcheck/manifests/`, `robot$puller GET /v2/boxlift-test/netcheck/blobs/`)
	for _, c := range s.health(t)["registry"] {
		contains(t, "health", c, ": ok: 1 of 1 registry answer")
	}
}

// testToImages makes sure that nothing is left of registries, and all images are there.
func testToImages(t *testing.T, s *seeded) {
	s.change(t, byImages)
	contains(t, "the run after that", mustRun(t, install(t.Context(), s.Site)).stdout, "nothing to do")
	if r := run(t, s.status(t)); r.code != 0 {
		t.Errorf("status: %v", r)
	}
	for _, h := range s.Hosts {
		if out := leftovers(t, h); out != "" {
			t.Errorf("%s still has:\n%s", h.Name, out)
		}
		if out := onHost(t, h, "sh", "-c", "cat "+k3sRegistries+" 2>/dev/null || true"); out != "" {
			t.Errorf("%s has registries.yaml:\n%s", h.Name, out)
		}
		images := held(t, h)
		for _, name := range s.all {
			if !slices.Contains(images, name) {
				t.Errorf("%s: containerd has no image %s", h.Name, name)
			}
		}
	}
	checkRunning(t, s.Site)
}

// registryLog is what a registry at the operator's place says of requests.
type registryLog struct{ path string }

// take returns what was said since the last time.
func (l *registryLog) take(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(l.path, 0); err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// registryEnv has the folder for which this program is a registry, at the operator's place.
const registryEnv = "BOXLIFT_E2E_REGISTRY"

// serveSiteRegistry is distribution's registry with TLS and two logins: one that may push,
// and one that may only pull.
func serveSiteRegistry(dir string) error {
	logrus.SetOutput(io.Discard)
	c := &configuration.Configuration{Storage: configuration.Storage{
		"filesystem":  configuration.Parameters{"rootdirectory": filepath.Join(dir, "storage")},
		"maintenance": configuration.Parameters{"uploadpurging": map[any]any{"enabled": false}},
	}}
	c.HTTP.RelativeURLs = true
	c.HTTP.Secret = "signs uploads"
	app := handlers.NewApp(context.Background(), c)
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	pair := filepath.Join(dir, "tls.pem")
	certificate, err := tls.LoadX509KeyPair(pair, pair)
	if err != nil {
		return err
	}
	server := &http.Server{Addr: siteRegistry, ReadHeaderTimeout: time.Minute, ErrorLog: stdlog.New(io.Discard, "", 0), TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			reads := r.Method == http.MethodGet || r.Method == http.MethodHead
			if password != registryPassword || user != "pusher" && (user != "robot$puller" || !reads) {
				w.Header().Set("WWW-Authenticate", `Basic realm="site"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			fmt.Fprintln(log, user, r.Method, r.URL.Path)
			app.ServeHTTP(w, r)
		})}
	return server.ListenAndServeTLS("", "")
}

// startRegistry starts the site's own registry, with an authority of its own.
func (s *seeded) startRegistry(t *testing.T) *registryLog {
	t.Helper()
	dir := filepath.Join(s.Bed.Dir, "site-ca")
	a, err := authority.Open(authority.Options{Dir: dir, Cluster: "site"})
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ := net.SplitHostPort(siteRegistry)
	pair, err := a.Issue([]string{host})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.pem"), pair, 0o600); err != nil {
		t.Fatal(err)
	}
	command := s.OperatorCommand(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), registryEnv+"="+dir)
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	eventually(t, "the site's registry", 30*time.Second, func() (bool, string) {
		conn, err := s.Dial(t.Context(), "tcp", siteRegistry)
		if err != nil {
			return false, err.Error()
		}
		return conn.Close() == nil, ""
	})
	return &registryLog{filepath.Join(dir, "log")}
}
