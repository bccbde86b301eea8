package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/testbed"
)

// twoHosts is a server that is reached as root, and an agent that is reached by a user
// who has to give sudo a password.
const twoHosts = `cluster:
  name: e2e
  master:
    host: %s
    password: ${ROOT_PASSWORD}
  agents:
    - host: %s
      user: admin
      password: ${ADMIN_PASSWORD}
      sudo: true
ssh:
  knownHostsFile: known_hosts
network:
  cni: cilium
`

func newTwoHosts(t *testing.T) *testbed.Site {
	t.Helper()
	site := newSite(t,
		lab.HostOptions{Name: "server", RootPassword: rootPassword},
		lab.HostOptions{Name: "agent", Users: []lab.User{{Name: "admin", Password: adminPassword, Sudo: lab.SudoWithPassword}}},
	)
	writeConfig(t, site.Bed, twoHosts, site.Hosts[0].Address, site.Hosts[1].Address)
	return site
}

// service is the unit of a host's k3s.
func service(t *testing.T, h *lab.Host) string {
	t.Helper()
	return strings.TrimSuffix(strings.TrimSpace(onHost(t, h, "sh", "-c", "basename /etc/systemd/system/k3s*.service")), ".service")
}

// checkRunning looks at the hosts, not at what boxlift says of them.
func checkRunning(t *testing.T, site *testbed.Site) {
	t.Helper()
	r, err := bundle.Open(site.Bed.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	packs, err := r.Packs("linux/amd64", bundle.PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range site.Hosts {
		if out := onHost(t, h, "systemctl", "is-active", service(t, h)); out != "active\n" {
			t.Errorf("%s: %s is %s", h.Name, service(t, h), out)
		}
		images := onHost(t, h, "/usr/local/bin/k3s", "ctr", "-n", "k8s.io", "images", "ls", "-q")
		for _, p := range packs {
			for _, name := range p.Images {
				if !strings.Contains(images, name+"\n") {
					t.Errorf("%s: containerd has no image %s", h.Name, name)
				}
			}
		}
		var check struct{ OK bool }
		report := onHost(t, h, "/var/lib/boxlift/bin/boxlift-node", "check", "-containerd", "-full")
		if err := json.Unmarshal([]byte(report), &check); err != nil || !check.OK {
			t.Errorf("%s: the images are not complete and pinned: %v\n%s", h.Name, err, report)
		}
		for _, name := range []string{"/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/boxlift-token"} {
			if out := onHost(t, h, "stat", "-c", "%a %U", name); out != "600 root\n" {
				t.Errorf("%s: %s has mode and owner %s", h.Name, name, out)
			}
		}
	}
}

// hostFiles is what the hosts hold below the folders that boxlift writes to, with the
// time of every change, and when k3s was started.
func hostFiles(t *testing.T, hosts []*lab.Host) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for _, h := range hosts {
		files[h.Name] = onHost(t, h, "find", "/var/lib/boxlift", "/etc/rancher", "/etc/systemd/system", "/usr/local", "/var/lib/rancher/k3s/agent/images",
			"-printf", `%p %m %u %s %T@ %C@ %i\n`) +
			onHost(t, h, "systemctl", "show", "-p", "ExecMainStartTimestampMonotonic,NRestarts", service(t, h))
	}
	return files
}

func checkNothingLeaked(t *testing.T, site *testbed.Site) {
	t.Helper()
	n, detail, err := site.LeakedPackets()
	if err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("%d packets tried to leave the LAN:\n%s", n, detail)
	}
}

// checkNothingLeakedButServices is for sites whose hosts were booted with pods on them: these
// run before Cilium has given a meaning to the addresses of services. Nothing else may have
// tried to leave.
func checkNothingLeakedButServices(t *testing.T, site *testbed.Site) {
	t.Helper()
	_, detail, err := site.LeakedPackets()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(detail) {
		if !strings.Contains(line, " -> 10.43.") {
			t.Errorf("packets tried to leave the LAN: %s", line)
		}
	}
}

// canaries searches for secrets where none may be.
type canaries struct {
	secrets []string

	mu    sync.Mutex
	lines map[string]bool // command lines seen
}

func (c *canaries) search(t *testing.T, where, text string) {
	t.Helper()
	for _, secret := range c.secrets {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%s shows a secret: ...%q", where, text[max(0, i-60):min(len(text), i+10)])
		}
	}
}

// watchCommandLines notes the arguments of every process of this machine, hosts
// included, until the function that it returns is called. A process is looked at several
// times while it is young, as it may become another program, and then once a second.
func (c *canaries) watchCommandLines(t *testing.T) (stop func()) {
	t.Helper()
	c.lines = make(map[string]bool)
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		const young, second = 5, 200 // ticks
		looks := make(map[string]int)
		for tick := 1; ; tick++ {
			if tick%second == 0 {
				clear(looks)
			}
			names, _ := filepath.Glob("/proc/[0-9]*")
			for _, name := range names {
				if looks[name]++; looks[name] > young {
					continue
				}
				if line, err := os.ReadFile(name + "/cmdline"); err == nil {
					c.mu.Lock()
					c.lines[string(line)] = true
					c.mu.Unlock()
				}
			}
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	}()
	return func() {
		close(done)
		<-stopped
	}
}

// searchCommandLines looks through what was seen, and makes sure that it was enough to
// tell: the programs on the hosts must be among them.
func (c *canaries) searchCommandLines(t *testing.T) {
	t.Helper()
	seen := map[string]bool{"boxlift-node\x00receive": false, "install.sh": false, "sudo\x00": false, "boxlift\x00install": false}
	for line := range c.lines {
		c.search(t, "a command line", line)
		for part := range seen {
			seen[part] = seen[part] || strings.Contains(line, part)
		}
	}
	for part, ok := range seen {
		if !ok {
			t.Errorf("no command line with %q was seen: the search proves nothing", part)
		}
	}
}

// searchOperator reads everything in the operator's folder.
func (c *canaries) searchOperator(t *testing.T, site *testbed.Site) {
	t.Helper()
	found := false
	err := filepath.WalkDir(site.Bed.Dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "bundle.tar" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		c.search(t, e.Name(), string(content))
		if e.Name() == "state.json" {
			found = true
			info, err := e.Info()
			if err != nil {
				return err
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("state.json has mode %v", info.Mode())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Error("there is no state.json")
	}
}

// searchHost looks into every file that others than root can read, into the journal and
// into what processes were started with.
func (c *canaries) searchHost(t *testing.T, h *lab.Host) {
	t.Helper()
	patterns := strings.Join(c.secrets, "\n")
	script := `find / -xdev \( -path /proc -o -path /sys -o -path /var/lib/rancher/k3s/agent \) -prune -o -type f -perm /077 -print0 |
xargs -0 grep -lFf /dev/fd/3 2>/dev/null 3<<EOF
%s
EOF
true`
	if out := onHost(t, h, "sh", "-c", fmt.Sprintf(script, patterns)); strings.TrimSpace(out) != "" {
		t.Errorf("%s: files that others can read hold a secret: %s", h.Name, out)
	}
	c.search(t, h.Name+"'s journal", onHost(t, h, "journalctl", "--no-pager", "-o", "verbose"))
	c.search(t, h.Name+"'s command lines", onHost(t, h, "sh", "-c", "cat /proc/[0-9]*/cmdline"))
}
