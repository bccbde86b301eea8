package hosttest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host"
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
