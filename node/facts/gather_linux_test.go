package facts

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/liteboxd/boxlift/node/wire"
)

var update = flag.Bool("update", false, "write the golden files")

// Each archive in testdata/facts is a host: its files, and two that are not on the host:
// "release" (of the kernel) and "links" (symbolic links and where they point).
func TestFactsOfHosts(t *testing.T) {
	archives, err := filepath.Glob("testdata/facts/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no hosts: %v", err)
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			h := &host{root: t.TempDir()}
			release := unpackHost(t, name, h.root)
			f := h.files(Options{ImagesDir: wire.ImagesDir})
			f.Architecture, f.Platform = "", "" // this machine's
			f.Kernel.Release = release
			h.kernel(&f.Kernel)
			f.Problems = h.problems
			got, err := json.MarshalIndent(f, "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			got = append(bytes.ReplaceAll(got, []byte(h.root), nil), '\n')
			golden := strings.TrimSuffix(name, ".txtar") + ".json"
			if *update {
				if err := os.WriteFile(golden, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func unpackHost(t *testing.T, archive, root string) (release string) {
	t.Helper()
	a, err := txtar.ParseFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range a.Files {
		links := []string{}
		switch f.Name {
		case "release":
			release = strings.TrimSpace(string(f.Data))
			continue
		case "links":
			links = lines(f.Data)
		}
		for _, l := range links {
			name, to, _ := strings.Cut(l, " ")
			mkdirFor(t, filepath.Join(root, name))
			if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
		if len(links) == 0 {
			mkdirFor(t, filepath.Join(root, f.Name))
			if err := os.WriteFile(filepath.Join(root, f.Name), f.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return release
}

func mkdirFor(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestMounts(t *testing.T) {
	h := &host{root: t.TempDir()}
	unpackHost(t, "testdata/facts/debian.txtar", h.root)
	got := h.mounts([]string{"/", "/var/lib/rancher/k3s", "/usr/local/bin"})
	for i := range got {
		if got[i].Total <= 0 || got[i].Free <= 0 || got[i].Free > got[i].Total {
			t.Errorf("%s: %d of %d bytes are free", got[i].Path, got[i].Free, got[i].Total)
		}
		if got[i].Inodes > 0 && got[i].FreeInodes > got[i].Inodes {
			t.Errorf("%s: %d of %d inodes are free", got[i].Path, got[i].FreeInodes, got[i].Inodes)
		}
		got[i].Total, got[i].Free, got[i].Inodes, got[i].FreeInodes = 0, 0, 0, 0
	}
	// /usr does not exist there: the root is what /usr/local/bin would be made on.
	want := []Mount{
		{Path: "/", MountPoint: "/", Source: "/dev/sda1", Type: "ext4",
			Options: []string{"rw", "relatime", "errors=remount-ro"}, Device: "8:1"},
		{Path: "/var/lib/rancher/k3s", MountPoint: "/", Source: "/dev/sda1", Type: "ext4",
			Options: []string{"rw", "relatime", "errors=remount-ro"}, Device: "8:1"},
		{Path: "/usr/local/bin", MountPoint: "/", Source: "/dev/sda1", Type: "ext4",
			Options: []string{"rw", "relatime", "errors=remount-ro"}, Device: "8:1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, dir := range []string{"/var", "/usr"} {
		mkdirFor(t, filepath.Join(h.root, dir, "x"))
	}
	got = h.mounts([]string{"/var/lib/rancher/k3s", "/usr/local/bin"})
	if m := got[0]; m.MountPoint != "/var" || !m.NoExec || m.ReadOnly || m.Source != "/dev/mapper/my var" ||
		m.Device != "8:2" {
		t.Errorf("got %+v, want the noexec mount on /var", m)
	}
	if m := got[1]; m.MountPoint != "/usr" || m.NoExec || !m.ReadOnly || slices.Contains(m.Options, "rw") {
		t.Errorf("got %+v, want the read-only mount on /usr", m)
	}
}

func TestParseUnits(t *testing.T) {
	out := `MainPID=4242
NRestarts=2
ExecMainStartTimestamp=Sat 2026-11-21 07:50:00 UTC
Id=k3s.service
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled

MainPID=0
Id=ufw.service
LoadState=not-found
ActiveState=inactive
SubState=dead
UnitFileState=
`
	f := Facts{Units: parseUnits(out)}
	want := Unit{
		Name: "k3s.service", LoadState: "loaded", ActiveState: "active", SubState: "running", UnitFileState: "enabled",
		Started: "Sat 2026-11-21 07:50:00 UTC", MainPID: 4242, Restarts: 2,
	}
	if diff := cmp.Diff(want, f.Unit("k3s.service")); diff != "" {
		t.Error(diff)
	}
	if u := f.Unit("ufw.service"); u.LoadState != "not-found" || u.MainPID != 0 {
		t.Errorf("got %+v", u)
	}
	if len(f.Units) != 2 {
		t.Errorf("got %d units, want 2", len(f.Units))
	}
}

func TestK3sVersion(t *testing.T) {
	script := func(body string) *host {
		h := &host{root: t.TempDir()}
		name := filepath.Join(h.root, "usr/local/bin/k3s")
		mkdirFor(t, name)
		if err := os.WriteFile(name, []byte("#!/bin/sh\n"+body), 0o700); err != nil {
			t.Fatal(err)
		}
		return h
	}
	h := script("[ \"$1\" = --version ] && echo 'k3s version v1.36.4+k3s1 (0123abcd)' && echo 'go version go1.26.1'\n")
	if k := h.k3s(t.Context()); k.Version != "v1.36.4+k3s1" || k.Path != "/usr/local/bin/k3s" || len(h.problems) != 0 {
		t.Errorf("got %+v, problems %q", k, h.problems)
	}
	h = script("exit 3\n")
	if k := h.k3s(t.Context()); k.Version != "" || k.Path == "" || len(h.problems) != 1 {
		t.Errorf("a broken k3s: got %+v, problems %q", k, h.problems)
	}
	h = script("yes\n") // forever
	if k := h.k3s(t.Context()); k.Version != "" || len(h.problems) != 1 || len(h.problems[0]) > 500 {
		t.Errorf("a k3s that prints too much: got %+v, problems %q", k, h.problems)
	}
	h = script("sleep 1000\n")
	h.patience = 100 * time.Millisecond
	if k := h.k3s(t.Context()); k.Version != "" || len(h.problems) != 1 ||
		!strings.Contains(h.problems[0], "did not end") {
		t.Errorf("a k3s that does not end: got %+v, problems %q", k, h.problems)
	}
}

func TestParseUnit(t *testing.T) {
	tests := []struct{ cgroup, want string }{
		{"0::/system.slice/k3s.service", "k3s.service"},
		{"0::/user.slice/user-0.slice/session-3.scope", "session-3.scope"},
		{"0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-0123.scope", "kubepods"},
		{"4:memory:/kubepods/burstable/pod1/2\n1:name=systemd:/system.slice/k3s.service\n0::/", "kubepods"},
		{"9:name=systemd:/lab/a/system.slice/containerd.service\n4:memory:/", "containerd.service"},
		{"0::/docker/0123/kubelet.slice/kubelet.service", "docker"},
		{"0::/", ""},
		{"", ""},
		{"nonsense", ""},
	}
	for _, test := range tests {
		if got := parseUnit([]byte(test.cgroup)); got != test.want {
			t.Errorf("%q: got %q, want %q", test.cgroup, got, test.want)
		}
	}
}

func TestK3sState(t *testing.T) {
	tests := []struct {
		name    string
		files   map[string]string
		dataDir string
		managed bool
	}{
		{"nothing", nil, "", false},
		{"boxlift's", map[string]string{"/etc/rancher/k3s/boxlift-token": "x"}, "", true},
		{"boxlift's service", map[string]string{"/var/lib/boxlift/k3s-service": "x"}, "", true},
		{"config", map[string]string{"/etc/rancher/k3s/config.yaml": "token: x\n\"data-dir\": '/data/k3s' # big\n"},
			"/data/k3s", false},
		{"drop-in wins", map[string]string{
			"/etc/rancher/k3s/config.yaml":           "data-dir: /data/k3s\n",
			"/etc/rancher/k3s/config.yaml.d/10.yaml": "data-dir: /more\n",
		}, "/more", false},
		{"comment", map[string]string{"/etc/rancher/k3s/config.yaml": "# data-dir: /data/k3s\nother-data-dir: /x\n"}, "",
			false},
		{"flag", map[string]string{
			"/etc/systemd/system/k3s-agent.service": "ExecStart=/usr/local/bin/k3s \\\n    agent \\\n\t'--data-dir' " +
				"\\\n\t'/srv/k3s' \\\n",
		}, "/srv/k3s", false},
		{"flag with =", map[string]string{"/etc/systemd/system/k3s.service": "ExecStart=/usr/local/bin/k3s server " +
			"'--data-dir=/srv/k3s'\n"}, "/srv/k3s", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := &host{root: t.TempDir()}
			for name, content := range test.files {
				name = filepath.Join(h.root, name)
				mkdirFor(t, name)
				if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if k := h.k3s(t.Context()); k.DataDir != test.dataDir || k.Managed != test.managed || k.Created != "" {
				t.Errorf("got %+v", k)
			}
		})
	}
	h := &host{root: t.TempDir()}
	ca := filepath.Join(h.root, "var/lib/rancher/k3s/server/tls/server-ca.crt")
	mkdirFor(t, ca)
	made := time.Date(2026, 11, 21, 9, 30, 0, 0, time.UTC)
	if err := errors.Join(os.WriteFile(ca, nil, 0o600), os.Chtimes(ca, made, made)); err != nil {
		t.Fatal(err)
	}
	if k := h.k3s(t.Context()); k.Created != "2026-11-21T09:30:00Z" {
		t.Errorf("got %+v", k)
	}
}

// What k3s has unpacked of older versions is counted as far as prune would remove it.
func TestOldPrograms(t *testing.T) {
	const data = "var/lib/rancher/k3s/data"
	folder := func(digit string) string { return strings.Repeat(digit, 64) }
	h := &host{root: t.TempDir()}
	sizes := make(map[string]int64)
	for i, digit := range []string{"1", "2", "3", "4", "5"} {
		name := filepath.Join(h.root, data, folder(digit), "bin/k3s")
		mkdirFor(t, name)
		// Each twice as large as the one before: a sum says which are in it.
		if err := os.WriteFile(name, bytes.Repeat([]byte{1}, 64<<10<<i), 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		sizes[digit] = info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	counted := func() int64 {
		t.Helper()
		old := h.k3s(t.Context()).OldPrograms
		if len(h.problems) > 0 {
			t.Error(h.problems)
		}
		return old
	}
	mkdirFor(t, filepath.Join(h.root, "proc/930/exe"))
	if got := counted(); got != 0 {
		t.Errorf("nobody knows which version runs, and %d bytes are old", got)
	}
	for name, to := range map[string]string{
		data + "/current": "/" + data + "/" + folder("5"), data + "/previous": "/" + data + "/" + folder("4"),
		"proc/930/exe": filepath.Join(h.root, data, folder("1"), "bin/containerd-shim-runc-v2"),
	} {
		if err := os.Symlink(to, filepath.Join(h.root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := counted(), sizes["2"]+sizes["3"]; got != want {
		t.Errorf("%d bytes are old, want %d", got, want)
	}
	if err := os.Remove(filepath.Join(h.root, "proc/930/exe")); err != nil {
		t.Fatal(err)
	}
	if got, want := counted(), sizes["1"]+sizes["2"]+sizes["3"]; got != want {
		t.Errorf("after the last pod: %d bytes are old, want %d", got, want)
	}
	// What cannot be looked at is no number, and is told.
	h = &host{root: t.TempDir()}
	mkdirFor(t, filepath.Join(h.root, data))
	if err := os.WriteFile(filepath.Join(h.root, data), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if k := h.k3s(t.Context()); k.OldPrograms != 0 || len(h.problems) != 1 ||
		!strings.Contains(h.problems[0], "older versions of k3s") {
		t.Errorf("got %+v, problems %q", k, h.problems)
	}
}

// This machine's facts, compared with what other ways of asking say.
func TestGatherHere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	}()
	before := time.Now()
	f := Gather(t.Context(), Options{ImagesDir: t.TempDir()})
	now, err := time.Parse(time.RFC3339Nano, f.Clock.Now)
	if err != nil || now.Before(before.Add(-time.Millisecond)) || now.After(time.Now()) {
		t.Errorf("clock: %q, %v", f.Clock.Now, err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	i := slices.IndexFunc(f.Ports, func(p Port) bool { return p.Port == port && p.Protocol == "tcp" })
	if i < 0 || f.Ports[i].Owner.PID != os.Getpid() || f.Ports[i].Address != "127.0.0.1" || f.Ports[i].Owner.Name == "" {
		t.Errorf("our port %d is not in %+v", port, f.Ports)
	}
	hostname, err := os.Hostname()
	if err != nil || f.Hostname != hostname {
		t.Errorf("host name %q, want %q", f.Hostname, hostname)
	}
	if f.OS.ID == "" || f.Kernel.Release == "" || f.CPUs < 1 || f.Memory.Total < 1<<20 ||
		f.Memory.Available > f.Memory.Total {
		t.Errorf("os %+v, kernel %q, %d CPUs, memory %+v", f.OS, f.Kernel.Release, f.CPUs, f.Memory)
	}
	if !slices.ContainsFunc(f.Network.Interfaces, func(i Interface) bool { return i.Name == "lo" && i.Up }) {
		t.Errorf("no loopback interface in %+v", f.Network.Interfaces)
	}
	for _, m := range f.Mounts {
		if m.MountPoint == "" || m.Type == "" || m.Total <= 0 {
			t.Errorf("mount of %s: %+v", m.Path, m)
		}
	}
	document, err := json.Marshal(f)
	if err != nil || len(document) > 1<<20 {
		t.Errorf("the document has %d bytes: %v", len(document), err)
	}
}

// What another program or the kernel prints must not bring the reader down.
func FuzzFactLines(f *testing.F) {
	for _, name := range []string{"testdata/facts/debian.txtar", "testdata/facts/rocky.txtar"} {
		content, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(content))
	}
	f.Fuzz(func(t *testing.T, content string) {
		for _, line := range lines([]byte(content)) {
			if r, ok := parseRoute(line); ok && r.Interface == "" {
				t.Errorf("a route without an interface from %q", line)
			}
			if r, ok := parseRoute6(line); ok && r.Interface == "" {
				t.Errorf("a route without an interface from %q", line)
			}
			for _, protocol := range []string{"tcp", "udp6"} {
				if p, inode, ok := parseSocket(protocol, line); ok && (p.Port < 0 || p.Port > 65535 || inode == "") {
					t.Errorf("port %+v from %q", p, line)
				}
			}
			_ = unquote(line)
		}
		parseUnits(content)
		parseResolvConf([]byte(content))
	})
}
