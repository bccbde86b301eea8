package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/lab"
)

// Every host that cannot be installed is named with its own reason, all in one run, and
// none of the hosts is touched.
func TestHostFaults(t *testing.T) {
	parallel(t, time.Minute)
	admin := func(sudo lab.Sudo) []lab.User {
		return []lab.User{{Name: "admin", Password: adminPassword, Sudo: sudo}}
	}
	faults := []struct {
		host lab.HostOptions
		// config is the host's part of install.yaml, without its address.
		config  string
		prepare func(*lab.Host) error
		want    []string
	}{
		{
			host:   lab.HostOptions{Name: "healthy", RootPassword: rootPassword},
			config: "password: '${ROOT_PASSWORD}'",
		},
		{
			host:   lab.HostOptions{Name: "password", RootPassword: "another-password"},
			config: "password: '${ROOT_PASSWORD}'",
			want:   []string{"authentication failed", "password"},
		},
		{
			host:   lab.HostOptions{Name: "unknown", RootPassword: rootPassword},
			config: "password: '${ROOT_PASSWORD}'",
			want:   []string{"host key is not known", "SHA256:"},
		},
		{
			host:    lab.HostOptions{Name: "changed", RootPassword: rootPassword},
			config:  "password: '${ROOT_PASSWORD}'",
			prepare: func(h *lab.Host) error { return h.ChangeHostKeys(t.Context()) },
			want:    []string{"HOST KEY HAS CHANGED", "known_hosts:"},
		},
		{
			host:    lab.HostOptions{Name: "down", RootPassword: rootPassword},
			config:  "password: '${ROOT_PASSWORD}'",
			prepare: func(h *lab.Host) error { return h.PowerCut(t.Context()) },
			want:    []string{"host is unreachable"},
		},
		{
			host:   lab.HostOptions{Name: "nosudo", Users: admin(lab.NoSudo)},
			config: "user: admin, password: '${ADMIN_PASSWORD}', sudo: true",
			want:   []string{"sudo does not work", "admin"},
		},
		{
			host:   lab.HostOptions{Name: "notroot", Users: admin(lab.SudoWithPassword)},
			config: "user: admin, password: '${ADMIN_PASSWORD}'",
			want:   []string{"root is needed"},
		},
		{
			host:   lab.HostOptions{Name: "sudopassword", Users: admin(lab.SudoWithPassword)},
			config: "user: admin, password: '${ADMIN_PASSWORD}', sudo: true, sudoPassword: wrong-word",
			want:   []string{"sudo password is missing or wrong"},
		},
		{
			host:    lab.HostOptions{Name: "readonly", RootPassword: rootPassword},
			config:  "password: '${ROOT_PASSWORD}'",
			prepare: func(h *lab.Host) error { return h.ReadOnly(t.Context(), "/var/lib") },
			want:    []string{"Read-only file system", "/var/lib/boxlift"},
		},
		{
			host:    lab.HostOptions{Name: "images-full", RootPassword: rootPassword},
			config:  "password: '${ROOT_PASSWORD}'",
			prepare: func(h *lab.Host) error { return h.FullDisk(t.Context(), "/var/lib/rancher", 4<<20) },
			want:    []string{"4.0 MiB free", "/var/lib/rancher", "make room"},
		},
		{
			host:    lab.HostOptions{Name: "helper-full", RootPassword: rootPassword},
			config:  "password: '${ROOT_PASSWORD}'",
			prepare: func(h *lab.Host) error { return h.FullDisk(t.Context(), "/var/lib/boxlift", 1<<20) },
			want:    []string{"No space left on device", "/var/lib/boxlift"},
		},
		{
			host:   lab.HostOptions{Name: "architecture", RootPassword: rootPassword, Personality: "x86"},
			config: "password: '${ROOT_PASSWORD}'",
			want:   []string{"i686", "x86_64 and aarch64 only"},
		},
	}
	hosts := make([]lab.HostOptions, len(faults))
	for i, f := range faults {
		hosts[i] = f.host
	}
	site := newSite(t, hosts...)
	var config strings.Builder
	config.WriteString("ssh: {knownHostsFile: known_hosts}\nnetwork: {cni: cilium}\nruntime: {sshTimeoutSeconds: 10, parallelism: 4}\ncluster:\n")
	for i, f := range faults {
		if f.prepare != nil {
			if err := f.prepare(site.Hosts[i]); err != nil {
				t.Fatalf("%s: %v", f.host.Name, err)
			}
		}
		list := "    - "
		if i == 0 {
			list = "  servers:\n    - "
		} else if i == 1 {
			list = "  agents:\n    - "
		}
		fmt.Fprintf(&config, "%s{host: %s, name: %s, %s}\n", list, site.Hosts[i].Address, f.host.Name, f.config)
	}
	writeConfig(t, site.Bed, "%s", config.String())
	forgetHost(t, filepath.Join(site.Bed.Dir, "known_hosts"), site.Hosts[2].Address.String())

	r := run(t, install(t.Context(), site))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, fmt.Sprintf("%d of %d hosts failed", len(faults)-1, len(faults)))
	_, report, _ := strings.Cut(r.stderr, "hosts failed\n")
	for i, f := range faults {
		h := site.Hosts[i]
		name := fmt.Sprintf("%s (%s)", f.host.Name, h.Address)
		line := errorOf(report, name)
		if (line == "") != (f.want == nil) {
			t.Errorf("%s: the report has %q", name, line)
		}
		contains(t, "the report on "+name, line, f.want...)
		if f.host.Name == "down" {
			continue
		}
		placed := onHost(t, h, "sh", "-c", "ls -d /usr/local/bin/k3s /etc/rancher /etc/systemd/system/k3s* /var/lib/rancher/k3s/agent/images/* /var/lib/boxlift/files/* 2>/dev/null || true")
		if placed != "" {
			t.Errorf("%s: although preflight failed there is %s", name, placed)
		}
		if f.want != nil {
			if left := onHost(t, h, "sh", "-c", "find /var/lib/boxlift /tmp -name '*boxlift*' -type f 2>/dev/null || true"); strings.Contains(left, "/bin/boxlift-node") && f.host.Name == "helper-full" || strings.Contains(left, ".boxlift-put") {
				t.Errorf("%s: something half-made is left: %s", name, left)
			}
		}
	}
	(&canaries{secrets: []string{rootPassword, adminPassword, "wrong-word"}}).search(t, "the output", r.String())
	checkNothingLeaked(t, site)
}

// errorOf returns what the report says of one host.
func errorOf(report, name string) string {
	var found []string
	inside := false
	for line := range strings.Lines(report) {
		if strings.HasPrefix(line, "boxlift: ") {
			break
		}
		if text, ok := strings.CutPrefix(line, "  "); ok && !strings.HasPrefix(text, " ") {
			inside = strings.HasPrefix(text, name+": ")
		}
		if inside {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return strings.Join(found, "\n")
}

// forgetHost removes a host's lines from a known_hosts file.
func forgetHost(t *testing.T, file, address string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var kept strings.Builder
	for line := range strings.Lines(string(content)) {
		if !strings.HasPrefix(line, address+" ") {
			kept.WriteString(line)
		}
	}
	if kept.Len() == len(content) {
		t.Fatalf("%s has no line for %s", file, address)
	}
	if err := os.WriteFile(file, []byte(kept.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A bundle without a host's platform is refused by name.
func TestBundleForAnotherArchitecture(t *testing.T) {
	site := newSite(t, lab.HostOptions{Name: "amd64", RootPassword: rootPassword})
	bed := connected(t)
	dir := t.TempDir()
	lockContent, err := os.ReadFile(bed.LockFile())
	if err != nil {
		t.Fatal(err)
	}
	// LiteBoxd is published for amd64 only, so that its component has to go.
	text, _, ok := strings.Cut(string(lockContent), "\n  liteboxd:\n")
	if !ok {
		t.Fatal("the lock has no component liteboxd")
	}
	text = strings.Replace(text, "platforms: [linux/amd64, linux/arm64]", "platforms: [linux/arm64]", 1)
	if err := os.WriteFile(filepath.Join(dir, "arm64.lock"), []byte(text+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	arm64 := filepath.Join(dir, "arm64.tar")
	mustRun(t, bed.Command(t.Context(), append([]string{"bundle", "build", "-f", filepath.Join(dir, "arm64.lock"), "-o", arm64, "--key", "boxlift.key"}, bed.MirrorFlags()...)...))
	writeConfig(t, site.Bed, "cluster: {master: {host: %s, password: '${ROOT_PASSWORD}'}}\nssh: {knownHostsFile: known_hosts}\nnetwork: {cni: cilium}\n", site.Hosts[0].Address)
	r := run(t, site.Boxlift(t.Context(), passwords, "install", "--bundle", arm64, "--key", "boxlift.pub"))
	if r.code != 6 {
		t.Errorf("want exit code 6: %v", r)
	}
	contains(t, "the error", r.stderr, site.Hosts[0].Address.String()+": the host is linux/amd64, but the bundle carries linux/arm64 only")
}
