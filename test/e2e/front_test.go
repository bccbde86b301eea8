package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/labhost"
	"github.com/liteboxd/boxlift/test/packagearchive"
	"github.com/liteboxd/boxlift/test/testbed"
)

// frontAddress is the address that servers have in turn, which no host of a lab gets.
const frontAddress = "10.77.0.200"

// packagesOf is a component of a lock with packages of Debian's, for hosts like one that has none of them yet. They are
// Debian's own; the archive that they lie in is signed by a key of the test's.
func packagesOf(t *testing.T, h *lab.Host, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	// The host gets what it lacks later.
	status, err := os.ReadFile(filepath.Join(h.Root, "var/lib/dpkg/status"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := packagearchive.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	ring, err := packagearchive.Keyring(key)
	if err != nil {
		t.Fatal(err)
	}
	suite := packagearchive.Suite{Codename: "bookworm", Keys: []*packagearchive.Key{key}}
	for _, name := range names {
		for _, d := range labhost.Debs(t.Context(), t, h, suite.Codename, name) {
			p := packagearchive.Package{Name: d.Name, Version: d.Version, Architecture: d.Architecture, Control: d.Control, Content: d.Content}
			if !slices.ContainsFunc(suite.Packages, func(other packagearchive.Package) bool { return other.Name == p.Name }) {
				suite.Packages = append(suite.Packages, p)
			}
		}
	}
	files, err := suite.Files()
	if err != nil {
		t.Fatal(err)
	}
	files["status"], files["keys.gpg"] = status, ring
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf(`  os-packages:
    version: "1"
    packages:
      - family: debian
        suite: %[2]s
        platform: linux/amd64
        archives: [{url: "file:%[1]s", suite: %[2]s, components: [main]}]
        keyring: "file:%[1]s/keys.gpg"
        base: "file:%[1]s/status"
        names: [%[3]s]
`, dir, suite.Codename, strings.Join(names, ", "))
}

// debianPackages are the packages that a host has.
func debianPackages(t *testing.T, h *lab.Host) string {
	t.Helper()
	return onHost(t, h, "dpkg-query", "--show", "--showformat", `${Package} ${Version} ${db:Status-Abbrev}\n`)
}

// healthOf are what health says, by check: the subject, the state, and the rest.
func healthOf(t *testing.T, site *testbed.Site, only ...string) map[string][]string {
	t.Helper()
	r := run(t, site.Boxlift(t.Context(), passwords, "health", "-f", "install.yaml", "--only", strings.Join(only, ","), "-o", "json"))
	var health struct {
		Checks []struct{ Check, Subject, State, Detail string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &health); err != nil {
		t.Fatalf("health -o json: %v\n%v", err, r)
	}
	found := make(map[string][]string)
	for _, c := range health.Checks {
		if c.State == "failed" {
			t.Logf("health: %s %s failed: %s", c.Check, c.Subject, c.Detail)
		}
		if slices.Contains(only, c.Check) {
			found[c.Check] = append(found[c.Check], c.Subject+": "+c.State+": "+c.Detail)
		}
	}
	return found
}

// named is what boxlift calls a host.
func named(h *lab.Host) string { return h.Name + " (" + h.Address.String() + ")" }

// watch asks something ten times a second, whether it was answered before or not, and measures for how long nothing was
// answered.
type watch struct {
	done sync.WaitGroup

	mu       sync.Mutex
	answered time.Time // the last time
	longest  time.Duration
}

func newWatch(ctx context.Context, ask func(context.Context) error) *watch {
	const every, patience = 100 * time.Millisecond, 2 * time.Second
	w := &watch{answered: time.Now()}
	once := func() {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if ask(ctx) == nil {
			w.note()
		}
	}
	w.done.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.done.Go(once)
			case <-ctx.Done():
				return
			}
		}
	})
	return w
}

func (w *watch) note() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.longest, w.answered = max(w.longest, now.Sub(w.answered)), now
}

// take is the longest time without an answer since it was taken last.
func (w *watch) take() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	longest := max(w.longest, time.Since(w.answered))
	w.longest = 0
	return longest
}

// frontWatch watches what answers at the front's address: each question comes over a connection of its own.
type frontWatch struct {
	connection *watch // to the API
	read       *watch // from etcd, by the API
	ingress    *watch // that tells a stranger that there is nothing
	stop       func()
}

// watchFront begins to watch, by the kubeconfig that boxlift has exported, until the test ends.
func watchFront(t *testing.T, s *testbed.Site) *frontWatch {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.Bed.Dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	access, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		t.Fatal(err)
	}
	if want := "https://" + frontAddress + ":6443"; access.Host != want {
		t.Fatalf("the kubeconfig leads to %s, expected %s", access.Host, want)
	}
	secure, err := rest.TLSConfigFor(access)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: secure, DialContext: s.Dial}}
	ask := func(address, host string, status int) func(context.Context) error {
		return func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
			if err != nil {
				return err
			}
			request.Host = host
			response, err := client.Do(request)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, response.Body)
			err = errors.Join(err, response.Body.Close())
			if err == nil && response.StatusCode != status {
				err = errors.New(response.Status)
			}
			return err
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &frontWatch{
		connection: newWatch(ctx, ask(access.Host+"/livez", "", http.StatusOK)),
		read:       newWatch(ctx, ask(access.Host+"/api/v1/namespaces/default", "", http.StatusOK)),
		ingress:    newWatch(ctx, ask((&url.URL{Scheme: "http", Host: net.JoinHostPort(frontAddress, "80")}).String(), "stranger.example.lan", http.StatusNotFound)),
	}
	w.stop = func() {
		cancel()
		for _, one := range w.all() {
			one.done.Wait()
		}
	}
	t.Cleanup(w.stop)
	w.take(t, "before anything is lost")
	return w
}

func (w *frontWatch) all() map[string]*watch {
	return map[string]*watch{"no new connection to the API": w.connection, "no read from etcd": w.read, "no answer from the ingress": w.ingress}
}

// take waits until all is answered, and tells for how long it was not since it was taken last. The bound is what anybody
// would notice, on a machine that is busy with other clusters.
func (w *frontWatch) take(t *testing.T, what string) {
	t.Helper()
	const bound = 30 * time.Second
	asked := time.Now()
	eventually(t, what+": all answers at the front's address", 2*time.Minute, func() (bool, string) {
		var silent []string
		for name, one := range w.all() {
			one.mu.Lock()
			if !one.answered.After(asked) {
				silent = append(silent, fmt.Sprintf("%s for %v", name, time.Since(one.answered).Round(time.Second)))
			}
			one.mu.Unlock()
		}
		return len(silent) == 0, strings.Join(silent, ", ")
	})
	var lines []string
	for name, one := range w.all() {
		longest := one.take()
		if longest > bound {
			t.Errorf("%s: %s for %v", what, name, longest)
		}
		lines = append(lines, fmt.Sprintf("%s for %v", name, longest.Round(10*time.Millisecond)))
	}
	slices.Sort(lines)
	t.Logf("the front, %s: at most %s", what, strings.Join(lines, ", "))
}

// cutPower ends a host, of which nothing is heard from then on. The network of a host of the lab is there without the
// host, and would refuse connections and answer for its addresses.
func cutPower(t *testing.T, h *lab.Host) {
	t.Helper()
	if err := errors.Join(h.Unplug(t.Context()), h.PowerCut(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// powerUp undoes cutPower.
func powerUp(t *testing.T, h *lab.Host) {
	t.Helper()
	if err := errors.Join(h.Plug(t.Context()), h.Up(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// holders are the names of those of some hosts that have the front's address.
func holders(t *testing.T, hosts ...*lab.Host) []string {
	t.Helper()
	var names []string
	for _, h := range hosts {
		if onHost(t, h, "ip", "-o", "address", "show", "to", frontAddress) != "" {
			names = append(names, h.Name)
		}
	}
	return names
}

// awaitHolders waits until these hosts have the front's address, and no other one.
func awaitHolders(t *testing.T, what string, hosts []*lab.Host, want ...*lab.Host) {
	t.Helper()
	var names []string
	for _, h := range want {
		names = append(names, h.Name)
	}
	start := time.Now()
	eventually(t, what+": who has the front's address", time.Minute, func() (bool, string) {
		have := holders(t, hosts...)
		return cmp.Diff(names, have) == "", fmt.Sprintf("%q", have)
	})
	t.Logf("%s: %s has the front's address after %v", what, strings.Join(names, " and "), time.Since(start).Round(10*time.Millisecond))
}

// checkFront makes sure that three servers have an address in turn, that the agent goes by it, and that the names of the
// site lead there.
func checkFront(t *testing.T, site *testbed.Site, servers []*lab.Host, agent *lab.Host) {
	t.Helper()
	awaitHolders(t, "installed", servers, servers[0])
	contains(t, "the agent's settings", onHost(t, agent, "cat", "/etc/rancher/k3s/config.yaml"), "https://"+frontAddress)
	for _, h := range site.Hosts {
		contains(t, h.Name+"'s name for LiteBoxd", onHost(t, h, "getent", "hosts", "box.example.lan"), frontAddress)
	}
	eventually(t, "health", 2*time.Minute, func() (bool, string) {
		found := healthOf(t, site, "front", "time", "nameserver")
		all := slices.Concat(found["front"], found["time"], found["nameserver"])
		return len(all) == 4+4+2 && !slices.ContainsFunc(all, func(c string) bool { return !strings.Contains(c, ": ok: ") }), strings.Join(all, "\n")
	})
}

// checkKeepalivedLost freezes the keepalived that has the address, which then two have until it goes on, and kills it.
func checkKeepalivedLost(t *testing.T, s *testbed.Site, servers []*lab.Host, w *frontWatch) {
	t.Helper()
	first, second := servers[0], servers[1]
	w.take(t, "until keepalived is lost")
	onHost(t, first, "systemctl", "kill", "--signal=STOP", "boxlift-keepalived")
	awaitHolders(t, "keepalived is frozen", servers, first, second)
	both := named(first) + " and " + named(second) + " have " + frontAddress + " at the same time"
	contains(t, "health with keepalived frozen", strings.Join(healthOf(t, s, "front")["front"], "\n"), frontAddress+": failed: "+both)
	contains(t, "status with keepalived frozen",
		run(t, s.Boxlift(t.Context(), passwords, "status", "--bundle", "bundle.tar", "--key", "boxlift.pub")).String(), both)
	onHost(t, first, "systemctl", "kill", "--signal=CONT", "boxlift-keepalived")
	awaitHolders(t, "keepalived goes on", servers, first)
	w.take(t, "keepalived was frozen, and went on")
	process := func() string {
		return onHost(t, first, "systemctl", "show", "-p", "MainPID,ActiveState", "boxlift-keepalived")
	}
	before := process()
	onHost(t, first, "systemctl", "kill", "--signal=KILL", "boxlift-keepalived")
	eventually(t, "another keepalived runs", time.Minute, func() (bool, string) {
		now := process()
		return now != before && strings.Contains(now, "ActiveState=active"), now
	})
	awaitHolders(t, "keepalived was killed", servers, first)
	w.take(t, "keepalived was killed, and systemd has started another one")
}

// keepIngressOn has the pod that answers at ports 80 and 443 on a host that stays: there is one, and where its node is
// lost, Kubernetes starts another one minutes later.
func keepIngressOn(t *testing.T, servers []*lab.Host, stays *lab.Host) {
	t.Helper()
	const selected = "--selector=app.kubernetes.io/name=traefik"
	where := func() string {
		return kubectl(t, servers[0], "-n", "kube-system", "get", "pods", selected, "-o", "jsonpath={.items[*].spec.nodeName}")
	}
	if where() == stays.Name {
		return
	}
	for _, h := range servers {
		kubectl(t, servers[0], "cordon", h.Name)
	}
	kubectl(t, servers[0], "-n", "kube-system", "delete", "pods", selected, "--now")
	kubectl(t, servers[0], "-n", "kube-system", "rollout", "status", "deployment/traefik", "--timeout=60s")
	for _, h := range servers {
		kubectl(t, servers[0], "uncordon", h.Name)
	}
	if now := where(); now != stays.Name {
		t.Fatalf("the ingress is on %s, expected %s", now, stays.Name)
	}
}

// checkFrontWithoutFirst makes sure that the site goes on without its first server, which had the address, served time
// and names, and that health names it.
func checkFrontWithoutFirst(t *testing.T, s *testbed.Site, servers []*lab.Host, agent *lab.Host) {
	t.Helper()
	first, second, third := servers[0], servers[1], servers[2]
	contains(t, "the second server's answer", onHost(t, agent, site.HelperPath, "probe", "-dns-udp", "box.example.lan@"+second.Address.String()+":53"), frontAddress)
	for _, h := range []*lab.Host{second, third, agent} {
		onHost(t, h, "chronyc", "burst", "4/4") // sooner than once in 16 to 64 s
	}
	silent := first.Address.String() + " does not answer"
	eventually(t, "health names who is lost", 4*time.Minute, func() (bool, string) {
		found := healthOf(t, s, "front", "time", "nameserver")
		front, times, names := strings.Join(found["front"], "\n"), strings.Join(found["time"], "\n"), strings.Join(found["nameserver"], "\n")
		return strings.HasPrefix(front, frontAddress+": ok: is on "+named(second)+"\n") && strings.Contains(front, ", from "+named(third)+": ok: ") &&
			strings.Count(times, ": warning: ") == 3 && strings.Count(times, silent) == 3 &&
			strings.Contains(names, named(first)+": failed: ") && strings.Contains(names, named(second)+": ok: "), front + "\n" + times + "\n" + names
	})
}

// checkLeaderLost cuts the power of the server whose etcd leads: another one than that with the address, which was
// without power before.
func checkLeaderLost(t *testing.T, servers []*lab.Host, w *frontWatch) {
	t.Helper()
	w.take(t, "until etcd's leader is lost")
	leader := etcdLeader(t, servers)
	if leader == servers[0] {
		t.Logf("%s leads etcd again by now, and has the address", leader.Name)
	}
	cutPower(t, leader)
	w.take(t, "the power of etcd's leader is cut")
	powerUp(t, leader)
	w.take(t, "etcd's leader from before is back")
	awaitHolders(t, "etcd's leader from before is back", servers, servers[0])
}

// etcdLeader is the server whose etcd leads.
func etcdLeader(t *testing.T, servers []*lab.Host) (leader *lab.Host) {
	t.Helper()
	eventually(t, "etcd has a leader", time.Minute, func() (bool, string) {
		for _, h := range servers {
			if strings.Contains(etcdMetrics(t, h), "\netcd_server_is_leader 1\n") {
				leader = h
			}
		}
		return leader != nil, ""
	})
	return leader
}

// shortLifetime is what makes a k3s that starts give new certificates 50 days.
const shortLifetime = "/etc/default/k3s"

// checkRenewedInTurn has the timers of the servers go off at the same time, again and again, while certificates end in
// 50 days: one server at a time renews its own, and the API answers by the front all the while. Then the agent does.
func checkRenewedInTurn(t *testing.T, s *testbed.Site, servers []*lab.Host, agent *lab.Host, w *frontWatch) {
	t.Helper()
	const dropIn = "/etc/systemd/system/boxlift-renewal.timer.d"
	renewed := func(hosts ...*lab.Host) {
		t.Helper()
		start := time.Now()
		for _, h := range hosts {
			onHost(t, h, "sh", "-c", "mkdir "+dropIn+" && printf '[Timer]\\nOnCalendar=\\nOnCalendar=*:*:0/5\\nRandomizedDelaySec=0\\nAccuracySec=100ms\\n' >"+
				dropIn+"/test.conf && systemctl daemon-reload && systemctl restart boxlift-renewal.timer")
		}
		var states []string
		eventually(t, "the certificates are renewed", 5*time.Minute, func() (bool, string) {
			states = states[:0]
			count := 0
			for _, h := range hosts {
				out, err := h.Exec(t.Context(), "cat", "/var/lib/boxlift/renewal.json")
				if err == nil && strings.Contains(string(out), `"renewed":"`) {
					count++
				}
				states = append(states, fmt.Sprintf("%s: %s %v", h.Name, out, err))
			}
			return count == len(hosts), strings.Join(states, "\n")
		})
		t.Logf("%d hosts have renewed their certificates within %v", len(hosts), time.Since(start).Round(time.Second))
		for _, h := range hosts {
			onHost(t, h, "sh", "-c", "rm -r "+dropIn+" && systemctl daemon-reload && systemctl restart boxlift-renewal.timer")
		}
	}
	for _, h := range servers {
		onHost(t, h, "rm", shortLifetime)
	}
	contains(t, "certs status", run(t, s.Boxlift(t.Context(), passwords, "certs", "status", "-f", "install.yaml")).stdout, "the first in 49 days")
	w.take(t, "until certificates are renewed")
	renewed(servers...)
	w.take(t, "the servers' certificates are renewed")
	turns := make(map[string]k3sTurn)
	for _, h := range servers {
		turns[h.Name] = turnOf(t, h)
	}
	for _, a := range servers {
		for _, b := range servers {
			if first, next := turns[a.Name], turns[b.Name]; a != b && first.stopped <= next.stopped && first.ready > next.stopped {
				t.Errorf("%s was started again (%+v µs) before %s was ready (%+v µs)", b.Name, next, a.Name, first)
			}
		}
	}
	waited := ""
	for _, h := range servers {
		waited += onHost(t, h, "sh", "-c", "journalctl --no-pager -o cat -u boxlift-renewal | grep 'not renewed yet' | sort | uniq -c || true")
	}
	t.Logf("while others had their turn:\n%s", waited)
	contains(t, "those that had to wait", waited, "certificates end soon and are not renewed yet: ")
	renewed(agent)
	contains(t, "certs status after it", run(t, s.Boxlift(t.Context(), passwords, "certs", "status", "-f", "install.yaml")).stdout, "0 end soon")
	for _, c := range healthOf(t, s, "renewal")["renewal"] {
		contains(t, "health", c, ": ok: looked on ")
	}
}

// checkGivenBack makes sure that a host that has left has the packages that it had before, and nothing of the site's.
func checkGivenBack(t *testing.T, h *lab.Host, before string) {
	t.Helper()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(debianPackages(t, h), "\n")); diff != "" {
		t.Errorf("packages of %s: %s", h.Name, diff)
	}
	left := onHost(t, h, "sh", "-c", `ls -d /etc/boxlift-* /usr/local/libexec/boxlift-* /etc/systemd/system/boxlift-* /etc/chrony /etc/keepalived /var/lib/boxlift 2>/dev/null
ip -o address show to `+frontAddress+`; grep -e git.lan -e boxlift /etc/hosts; systemctl list-units --no-legend 'boxlift-*' chrony.service; true`)
	if left != "" {
		t.Errorf("%s still has:\n%s", h.Name, left)
	}
}
