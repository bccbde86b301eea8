package packages

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/install/apt"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/debtest"
	"github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/labhost"
)

// labHost is a real host without a way out, and what a bundle would have for it.
type labHost struct {
	*lab.Host
	conn  machine.Host
	stock stock
}

// newLabHost makes a host of a release, and gets the packages that haproxy takes on it, of which the host has none.
func newLabHost(ctx context.Context, t *testing.T, l *lab.Lab, suite, version string) labHost {
	t.Helper()
	h := labhost.Make(ctx, t, l, lab.HostOptions{Name: suite, Suite: suite})
	on := labHost{Host: h, conn: labhost.Connect(ctx, t, l, h), stock: stock{files: make(map[digest.Digest][]byte),
		set: Set{ID: "debian", Codename: suite, Version: version, Architecture: "amd64"}}}
	on.must(ctx, t, "mkdir", "-p", "/var/lib/boxlift")
	for _, deb := range labhost.Debs(ctx, t, h, suite, "haproxy") {
		on.add(deb)
	}
	return on
}

// add adds a package to what the bundle has.
func (h *labHost) add(d labhost.Deb) {
	h.stock.files[d.SHA256] = d.Content
	h.stock.set.Packages = append(h.stock.set.Packages, Package{Name: d.Name, Version: d.Version,
		Architecture: d.Architecture, Filename: d.Filename, Size: int64(len(d.Content)), SHA256: d.SHA256})
}

// addMade adds a package that was made for the test.
func (h *labHost) addMade(t *testing.T, content []byte) {
	t.Helper()
	d := labhost.ReadDeb(t, "", content)
	d.Filename = d.Name + ".deb"
	h.add(d)
}

func (h *labHost) must(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	return labhost.Must(ctx, t, h.Host, args...)
}

// install goes through the steps as the engine does, and returns the ids of those that were needed.
func (h *labHost) install(ctx context.Context, t *testing.T, wanted ...string) ([]string, error) {
	t.Helper()
	r, on := h.room(t, wanted...)
	var done []string
	for _, step := range r.steps(on) {
		reason, err := step.Needed(ctx)
		if err != nil {
			return done, err
		}
		if reason == "" {
			continue
		}
		t.Logf("%s: %s (%s)", h.Name, step.Title, reason)
		if err := step.Run(ctx); err != nil {
			return done, err
		}
		done = append(done, step.ID)
	}
	return done, nil
}

func (h *labHost) room(t *testing.T, wanted ...string) (*Room, *site.Host) {
	t.Helper()
	return room(t, h.conn, h.stock, wanted...)
}

// untouched is what of the host's apt is not to change: sources, lists, preferences, and the caches of packages.
func (h *labHost) untouched(ctx context.Context, t *testing.T) string {
	t.Helper()
	return h.must(ctx, t, "sh", "-c", `find /etc/apt /var/lib/apt/lists /var/cache/apt -type f -exec sha256sum {} + | sort -k2
ls -la /usr/sbin/policy-rc.d /tmp 2>&1 | grep -v ' \.\.*$'; ls -d /run/boxlift-apt* 2>&1 || :`)
}

// packagesOf are the names of all packages that a host has, with their states.
func (h *labHost) packagesOf(ctx context.Context, t *testing.T) []string {
	t.Helper()
	seen, err := look(ctx, h.conn)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range seen.Packages {
		names = append(names, p.Name+" "+p.Architecture+" "+string(p.State))
	}
	return names
}

// TestLab is about what only real hosts show: apt and dpkg of two releases of Debian's install real packages with a
// service from the bundle's files alone, are killed in the middle and go on, and take them away again.
func TestLab(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	l := labhost.New(ctx, t, "packages")
	for suite, version := range map[string]string{"bookworm": "12", "trixie": "13"} {
		t.Run(suite, func(t *testing.T) { testRelease(ctx, t, newLabHost(ctx, t, l, suite, version)) })
	}
	if n, detail, err := l.LeakedPackets(); n > 0 || err != nil {
		t.Errorf("%d packets were sent out of the LAN: %s, %v", n, detail, err)
	}
}

// testRelease goes through all of it on one host.
func testRelease(ctx context.Context, t *testing.T, h labHost) {
	const name = "haproxy"
	before, apart := h.packagesOf(ctx, t), h.untouched(ctx, t)

	// What is in the way is named, and nothing is changed.
	for _, test := range []struct {
		name, wanted, want string
		change             func(*labHost)
	}{
		{"another release", name, "the bundle does not have haproxy for Debian GNU/Linux", func(h *labHost) { h.stock.set.Codename = "sid" }},
		{"a dependency is missing", name, "Depends: liblua5", func(h *labHost) {
			h.stock.set.Packages = slices.DeleteFunc(slices.Clone(h.stock.set.Packages), func(p Package) bool { return strings.HasPrefix(p.Name, "liblua") })
		}},
		{"a conflict", "other-ssh", "other-ssh cannot be there together with openssh-server", func(h *labHost) {
			h.addMade(t, debtest.Make(t, debtest.Deb{Control: testControl("other-ssh", "1", "Conflicts: openssh-server"), Compression: "xz"}))
		}},
		{"held", "needs-newer", "the host holds sudo as it is (apt-mark hold)", func(h *labHost) {
			h.must(ctx, t, "sh", "-c", "echo sudo hold | dpkg --set-selections")
			h.addMade(t, debtest.Make(t, debtest.Deb{Control: testControl("needs-newer", "1", "Depends: sudo (>= 99)"), Compression: "zst"}))
			h.addMade(t, debtest.Make(t, debtest.Deb{Control: testControl("sudo", "99"), Compression: "gz"}))
		}},
	} {
		other := h
		other.stock.set.Packages = slices.Clone(h.stock.set.Packages)
		test.change(&other)
		r, on := other.room(t, test.wanted)
		if err := r.Look(ctx, on); err != nil {
			t.Fatal(err)
		}
		faults := apt.Judge(*on.Packages)
		if len(faults) != 1 || faults[0].Warning || !strings.Contains(faults[0].Found, test.want) {
			t.Errorf("%s: %+v", test.name, faults)
		}
		if _, err := other.install(ctx, t, test.wanted); !errors.Is(err, ErrPackages) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	h.must(ctx, t, "sh", "-c", "echo sudo install | dpkg --set-selections")
	h.must(ctx, t, "rm", "-r", RepositoryDir)
	if diff := cmp.Diff(before, h.packagesOf(ctx, t)); diff != "" {
		t.Fatalf("a refusal has changed packages: %s", diff)
	}

	// apt and dpkg are killed while a package is configured: the host's own policy keeps its script waiting.
	h.must(ctx, t, "sh", "-c", "mkfifo /run/wait && printf '#!/bin/sh\\necho $$ >/run/asked\\nread x </run/wait\\n' >"+policyFile+" && chmod 0755 "+policyFile)
	failed := make(chan error, 1)
	go func() {
		_, err := h.install(ctx, t, name)
		failed <- err
	}()
	await(ctx, t, func() bool { _, err := h.Exec(ctx, "test", "-s", "/run/asked"); return err == nil })
	if who, err := holders(ctx, h.conn); err != nil || !strings.Contains(who, "apt-get (process ") {
		t.Errorf("they are held by %q, %v", who, err)
	}
	// Another one waits, and says for whom.
	r, on := h.room(t, name)
	r.Site.Config.Runtime.CommandTimeout = time.Second
	if err := r.install(ctx, on); !errors.Is(err, ErrPackages) || !strings.Contains(err.Error(), "apt-get (process ") {
		t.Errorf("while another one installs: %v", err)
	}
	h.must(ctx, t, "sh", "-c", killScript)
	h.must(ctx, t, "rm", policyFile, "/run/wait", "/run/asked")
	if err := <-failed; err == nil || fault.ClassOf(err) != fault.Host {
		t.Fatalf("killed, it says %v", err)
	}
	seen, err := look(ctx, h.conn)
	if err != nil || seen.Interrupted() == "" {
		t.Fatalf("after it was killed: %q, %v", seen.Interrupted(), err)
	}
	r, on = h.room(t, name)
	if err := r.Look(ctx, on); err != nil {
		t.Fatal(err)
	}
	for _, f := range apt.Judge(*on.Packages) {
		if !f.Warning {
			t.Errorf("preflight does not let the next run begin: %+v", f)
		}
	}

	// The next run goes on, by itself.
	done, err := h.install(ctx, t, name)
	if err != nil || !slices.Contains(done, "finish-dpkg") {
		t.Fatalf("%q, %v", done, err)
	}
	if done, err := h.install(ctx, t, name); len(done) > 0 || err != nil {
		t.Errorf("a second run does %q, %v", done, err)
	}
	if state := strings.TrimSpace(h.must(ctx, t, "sh", "-c", "systemctl is-active haproxy || :")); state != "inactive" {
		t.Errorf("the service is %s", state)
	}
	if diff := cmp.Diff(apart, h.untouched(ctx, t)); diff != "" {
		t.Errorf("what is the host's alone was changed: %s", diff)
	}
	h.must(ctx, t, "haproxy", "-v")

	// It goes again, running by now, and with it what came with it; what somebody has asked for since stays.
	h.must(ctx, t, "systemctl", "start", "haproxy")
	m, err := readMark(ctx, h.conn)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(m.Packages, func(p marked) bool { return p.Automatic && strings.HasPrefix(p.Name, "liblua") })
	if i < 0 {
		t.Fatalf("%+v", m)
	}
	asked := m.Packages[i]
	h.must(ctx, t, "apt-mark", "manual", asked.Name)
	r, _ = h.room(t, name)
	notes, err := r.Remove(ctx, h.conn)
	if want := []string{"a package that boxlift has installed stays: " + asked.Name + ": it was marked as manually installed since"}; err != nil ||
		!slices.Equal(notes, want) {
		t.Fatalf("%q, %v", notes, err)
	}
	want := append(slices.Clone(before), asked.Name+" "+asked.Architecture+" i")
	slices.Sort(want)
	got := h.packagesOf(ctx, t)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after the removal: %s", diff)
	}
	if out, err := h.Exec(ctx, "ls", MarkFile, RepositoryDir, "/etc/haproxy"); err == nil {
		t.Errorf("left: %s", out)
	}
	testRemovable(ctx, t, h)
}

// testRemovable installs a package for which one of the host's goes, as the lock allows.
func testRemovable(ctx context.Context, t *testing.T, h labHost) {
	t.Helper()
	h.stock.set.Packages = slices.Clone(h.stock.set.Packages)
	h.addMade(t, debtest.Make(t, debtest.Deb{Control: testControl("other-ethtool", "1", "Conflicts: ethtool"), Compression: "gz"}))
	if _, err := h.install(ctx, t, "other-ethtool"); err == nil || !strings.Contains(err.Error(), "together with ethtool") {
		t.Errorf("unless the lock allows it: %v", err)
	}
	h.stock.set.Removable = []string{"ethtool"}
	if done, err := h.install(ctx, t, "other-ethtool"); err != nil || !slices.Contains(done, "install-packages") {
		t.Fatalf("%q, %v", done, err)
	}
	if out, err := h.Exec(ctx, "dpkg-query", "-W", "-f", "${Package} ${db:Status-Abbrev}\n", "ethtool", "other-ethtool"); strings.HasPrefix(string(out), "ethtool ii") ||
		!strings.Contains(string(out), "other-ethtool ii ") {
		t.Errorf("there is %s, %v", out, err)
	}
	r, _ := h.room(t, "other-ethtool")
	notes, err := r.Remove(ctx, h.conn)
	if err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], "the package ethtool, which went for those of boxlift's") {
		t.Errorf("%q, %v", notes, err)
	}
}

// killScript kills apt-get and all that it has started, by their ids, from the script that waits upwards.
const killScript = `pid=$(cat /run/asked)
while [ "$pid" -gt 1 ]; do
    name=$(cat "/proc/$pid/comm")
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
    all="$pid ${all-}"
    if [ "$name" = apt-get ]; then kill -KILL $all && exit; fi
    pid=$parent
done
exit 1`

// await polls until something is so.
func await(ctx context.Context, t *testing.T, is func() bool) {
	t.Helper()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// testControl is the control file of a package of nobody's.
func testControl(name, version string, fields ...string) string {
	return "Package: " + name + "\nVersion: " + version + "\nArchitecture: all\nMaintainer: nobody <nobody@example.com>\nDescription: x\n" +
		strings.Join(append(fields, ""), "\n")
}
