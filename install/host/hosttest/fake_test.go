package hosttest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
)

func TestConform(t *testing.T) { Conform(t, New(t, "node-1"), "/tmp") }

// TestService starts a service that others have stopped and one that fails.
func TestService(t *testing.T) {
	f := New(t, "node-1")
	f.Unit("k3s").Stale().DropIns("/etc/systemd/system/k3s.service.d/10.conf")
	f.Unit("broken").OnStart(func(*Fake) error { return errors.New("no") })
	for _, test := range []struct {
		name          string
		before, after host.Service
	}{
		{"k3s", host.Service{Load: "loaded", Active: "inactive", Result: "success", NeedsReload: true, Idle: true},
			host.Service{Load: "loaded", Active: "active", Result: "success", NeedsReload: true, Idle: true, Enabled: true}},
		{"broken", host.Service{Load: "loaded", Active: "inactive", Result: "success", Idle: true},
			host.Service{Load: "loaded", Active: "failed", Result: "exit-code", Idle: true, Enabled: true}},
	} {
		got, err := host.FindService(t.Context(), f, test.name)
		if diff := cmp.Diff(test.before, got); diff != "" || err != nil {
			t.Errorf("%s before: %v (-want +got):\n%s", test.name, err, diff)
		}
		if err := host.Restart(t.Context(), f, test.name, got); err != nil {
			t.Error(err)
		}
		got, err = host.FindService(t.Context(), f, test.name)
		if diff := cmp.Diff(test.after, got); diff != "" || err != nil {
			t.Errorf("%s after: %v (-want +got):\n%s", test.name, err, diff)
		}
		if n := f.Unit(test.name).Starts(); n != 1 {
			t.Errorf("%s was started %d times", test.name, n)
		}
	}
	f.Unit("slow").Starting(1)
	for _, want := range []string{"activating", "active"} {
		if got, err := host.FindService(t.Context(), f, "slow"); got.Active != want || err != nil {
			t.Errorf("a service at its start: %+v, %v; want %s", got, err, want)
		}
	}
	files, err := host.DropIns(t.Context(), f, "k3s")
	if diff := cmp.Diff([]string{"/etc/systemd/system/k3s.service.d/10.conf"}, files); diff != "" || err != nil {
		t.Errorf("drop-ins: %v (-want +got):\n%s", err, diff)
	}
	none, err := host.FindService(t.Context(), f, "none")
	if diff := cmp.Diff(host.Service{Load: "not-found", Active: "inactive", Result: "success", Idle: true}, none); diff != "" || err != nil {
		t.Errorf("a service that is not there: %v (-want +got):\n%s", err, diff)
	}
	if err := host.Restart(t.Context(), f, "none", none); err == nil {
		t.Error("a service that is not there was started")
	}
}

// TestBreak breaks the connection before the third operation.
func TestBreak(t *testing.T) {
	f := New(t, "node-1")
	f.BreakAfter(2)
	if err := host.Write(t.Context(), f, "/etc/one", 0o644, []byte("1")); err != nil {
		t.Fatal(err)
	}
	before := f.Snapshot(t)
	if _, err := host.Root(t.Context(), f, "look", "cat", "/etc/one"); err != nil {
		t.Fatal(err)
	}
	if err := host.Write(t.Context(), f, "/etc/two", 0o644, []byte("2")); !errors.Is(err, ErrLost) {
		t.Errorf("the third: %v", err)
	}
	if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
		t.Errorf("looking, and what was cut off, changed (-want +got):\n%s", diff)
	}
	f.BreakAfter(-1)
	if err := host.Write(t.Context(), f, "/etc/two", 0o600, []byte("2")); err != nil || f.ReadFile(t, "/etc/two") != "2" {
		t.Errorf("when it is back: %v", err)
	}
	if diff := cmp.Diff([]string{"put /etc/one", "look", "put /etc/two"}, f.Commands()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if after := f.Snapshot(t); !strings.Contains(after, "-rw------- /etc/two ") {
		t.Errorf("the snapshot lacks the file:\n%s", after)
	}
}

// TestAccounts makes a user, and gives what is made in a folder to its group.
func TestAccounts(t *testing.T) {
	f := New(t, "node-1")
	for _, test := range []struct{ script, want string }{
		{"id -u; id -u root", "0\n0\n"},
		{"id -u web || echo none", "none\n"},
		{"command -v useradd; command -v systemd-sysusers || echo none", "/usr/bin/useradd\nnone\n"},
		{"mkdir /etc/web; chgrp web /etc/web || echo refused", "refused\n"},
		{"useradd --system web; id -u web", "990\n"},
		{"useradd web || echo twice", "twice\n"},
		{"chown 0:web /etc/web; chmod 2750 /etc/web; stat -c '%a %U %G %g' /etc/web", "2750 root web 990\n"},
		{"chgrp web /etc/nothing || echo missing", "missing\n"},
	} {
		result, err := f.Run(t.Context(), host.Command{Script: test.script})
		if string(result.Stdout) != test.want || err != nil {
			t.Errorf("%s: %q, %v, want %q", test.script, result.Stdout, err, test.want)
		}
	}
	for _, name := range []string{"/etc/web/inside", "/etc/outside"} {
		if err := host.Write(t.Context(), f, name, 0o640, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	script := `stat -c '%G' /etc/web/inside /etc/outside; userdel web; stat -c '%G' /etc/web`
	result, err := f.Run(t.Context(), host.Command{Script: script})
	if want := "web\nroot\nUNKNOWN\n"; string(result.Stdout) != want || err != nil {
		t.Errorf("%q, %v, want %q", result.Stdout, err, want)
	}
}

// TestLiar keeps no more of what it says than any host does.
func TestLiar(t *testing.T) {
	l := Liar{Output: []byte(strings.Repeat("x", host.MaxKept) + "end")}
	result, err := l.Run(t.Context(), host.Command{Args: []string{"rm", "-rf", "/"}})
	if err != nil || len(result.Stdout) != host.MaxKept || !result.Truncated ||
		!strings.HasSuffix(string(result.Stdout), "xend") {
		t.Errorf("%d bytes, %t, %v", len(result.Stdout), result.Truncated, err)
	}
}

// TestSystemd has systemd go by files, run scripts that lie on the host, and a copy go on by itself.
func TestSystemd(t *testing.T) {
	f := New(t, "node-1")
	var events []string
	f.Systemd(Services{
		Start: func(_ *Fake, unit string) error { events = append(events, "start "+unit); return nil },
		Stop:  func(_ *Fake, unit string) { events = append(events, "stop "+unit) },
	})
	show := func(f *Fake) string {
		t.Helper()
		r, err := f.Run(t.Context(), host.Command{Script: "systemctl show -p LoadState,ActiveState,NeedDaemonReload --value k3s"})
		if err != nil {
			t.Error(err)
		}
		return strings.ReplaceAll(strings.TrimSpace(string(r.Stdout)), "\n", " ")
	}
	const unit = "/etc/systemd/system/k3s.service"
	f.WriteFile(t, "/usr/local/bin/remove.sh", "#!/bin/sh\nrm -f "+unit+"\n", 0o755)
	for _, test := range []struct{ script, want string }{
		{":", "not-found inactive no"},
		{"echo '[Service]' >" + unit, "loaded inactive no"},
		{"systemctl enable --now k3s", "loaded active no"},
		{"echo '#' >>" + unit, "loaded active yes"},
		{"systemctl daemon-reload; systemctl restart k3s", "loaded active no"},
		{"/usr/local/bin/remove.sh; systemctl daemon-reload", "loaded active yes"},
		{"systemctl stop k3s; systemctl daemon-reload", "not-found inactive no"},
	} {
		before := f.Copy(t)
		want := show(before)
		if _, err := f.Run(t.Context(), host.Command{Script: test.script}); err != nil {
			t.Error(err)
		}
		if got := show(f); got != test.want {
			t.Errorf("%s: %s, want %s", test.script, got, test.want)
		}
		if got := show(before); got != want {
			t.Errorf("%s has changed a copy that was made before: %s, want %s", test.script, got, want)
		}
	}
	if diff := cmp.Diff([]string{"start k3s", "stop k3s", "start k3s", "stop k3s"}, events); diff != "" {
		t.Error(diff)
	}
	f.FailNext("cat", 1, "no")
	copied := f.Copy(t)
	if diff := cmp.Diff(f.Snapshot(t), copied.Snapshot(t)); diff != "" {
		t.Errorf("a copy is another one: %s", diff)
	}
}

// A file that cannot be read as it is, is an error of the host, with what to do about it.
func TestContentFails(t *testing.T) {
	large := New(t, "node-1")
	large.WriteFile(t, "/etc/hosts", strings.Repeat("x", host.MaxKept+1), 0o644)
	for want, h := range map[string]host.Host{
		"read /etc/hosts: it is larger than":   large,
		"read /etc/hosts: instead of it came ": Liar{Output: []byte("welcome\n")},
	} {
		_, _, err := host.Content(t.Context(), h, "/etc/hosts")
		if err == nil || !strings.Contains(err.Error(), want) || fault.ClassOf(err) != fault.Host || fault.HostOf(err) != h.Name() ||
			len(fault.Hints(err)) != 1 {
			t.Errorf("%v is of the class %v and the host %q, with the hints %q", err, fault.ClassOf(err),
				fault.HostOf(err), fault.Hints(err))
		}
	}
}
