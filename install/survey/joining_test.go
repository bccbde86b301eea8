package survey

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// A host must not take the place of another machine's node, and one that is the node, or has
// been set up to become it, goes on.
func TestTaken(t *testing.T) {
	nodes := []kube.Node{
		{Name: "first", MachineID: "0123", Server: true, Addresses: []string{"10.0.0.11", "first"}},
		{Name: "worker", MachineID: "4567", Addresses: []string{"10.0.0.19", "worker"}},
		{Name: "silent", Addresses: []string{"10.0.0.18"}},
	}
	for _, test := range []struct {
		name  string
		host  site.Host
		isNew bool
		taken string
	}{
		{"another machine", site.Host{Identity: site.Identity{Hostname: "Worker", MachineID: "89ab"}}, true, "worker"},
		{"the same machine", site.Host{Identity: site.Identity{Hostname: "worker", MachineID: "4567"}}, true, ""},
		{"a name that is free", site.Host{Identity: site.Identity{Hostname: "other", MachineID: "89ab"}}, true, ""},
		{"a host that does not say which it is", site.Host{Identity: site.Identity{Hostname: "worker"}}, true, ""},
		{"a node that does not say which it is", site.Host{Identity: site.Identity{Hostname: "silent", MachineID: "89ab"}}, true, ""},
		{"one that is in the cluster", site.Host{Identity: site.Identity{Hostname: "worker", MachineID: "89ab"}, Joined: "https://10.0.0.11:6443"}, false, "worker"},
		{"a server", site.Host{Identity: site.Identity{Hostname: "first", MachineID: "89ab"}, Member: true}, false, "first"},
		{
			"one that a run has begun with", site.Host{Identity: site.Identity{Hostname: "worker", MachineID: "89ab"}, Facts: &facts.Facts{K3s: facts.K3s{Managed: true}}}, false, "worker",
		},
	} {
		got := ""
		if n := taken(&test.host, nodes); n != nil {
			got = n.Name
		}
		if got != test.taken || k3s.IsNew(&test.host) != test.isNew {
			t.Errorf("%s: the node %q is another's, new: %v; want %q, %v", test.name, got, k3s.IsNew(&test.host), test.taken, test.isNew)
		}
	}
}

// A copy of a machine that has a node must not pass for it, and a host that is the node goes on.
func TestCopied(t *testing.T) {
	original := kube.Node{Name: "clone", MachineID: "0123"}
	for _, test := range []struct {
		name  string
		host  site.Identity
		nodes []kube.Node
		want  string
	}{
		{"only its original is registered", site.Identity{Hostname: "worker", MachineID: "0123"}, []kube.Node{{Name: "other", MachineID: "4567"}, original}, "clone"},
		{"both are", site.Identity{Hostname: "worker", MachineID: "0123"}, []kube.Node{original, {Name: "worker", MachineID: "0123"}}, ""},
		{"it is the node, written otherwise", site.Identity{Hostname: "Clone", MachineID: "0123"}, []kube.Node{original}, ""},
		{"another machine", site.Identity{Hostname: "worker", MachineID: "89ab"}, []kube.Node{original}, ""},
		{"neither says which it is", site.Identity{Hostname: "worker"}, []kube.Node{{Name: "silent"}}, ""},
	} {
		got := ""
		if n := copied(&site.Host{Identity: test.host}, test.nodes); n != nil {
			got = n.Name
		}
		if got != test.want {
			t.Errorf("%s: a copy of %q, want %q", test.name, got, test.want)
		}
	}
}

// What is refused names both machines and the command that goes on from there.
func TestTakenError(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	h := in.site.Hosts[1]
	h.Fail(&takenError{node: "worker", addresses: []string{"10.0.0.19", "worker"}, machineID: "4567", own: "89ab"})
	f := in.surveyor.unseenHost(h)
	if f.Check != preflight.CheckHostname || f.Severity != preflight.Error {
		t.Errorf("%+v", f)
	}
	for _, part := range []string{"worker", "10.0.0.19", "4567", "89ab"} {
		if !strings.Contains(h.Err.Error(), part) {
			t.Errorf("%q is not in %v", part, h.Err)
		}
	}
	const command = "boxlift node remove --hosts worker --forget-unreachable-host"
	if !strings.Contains(strings.Join(fault.Hints(h.Err), ""), command) || !strings.Contains(f.Hint, command) {
		t.Errorf("%q is not in the hints of %v and %+v", command, h.Err, f)
	}
}

func TestCopiedError(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	h := in.site.Hosts[1]
	h.Fail(&copiedError{node: "worker", addresses: []string{"10.0.0.19", "worker"}, machineID: "4567", own: "late"})
	f := in.surveyor.unseenHost(h)
	if f.Check != preflight.CheckMachineID || f.Severity != preflight.Error || !strings.Contains(f.Hint, "systemd-machine-id-setup") {
		t.Errorf("%+v", f)
	}
	for _, part := range []string{"worker", "10.0.0.19", "4567", "late"} {
		if !strings.Contains(h.Err.Error(), part) {
			t.Errorf("%q is not in %v", part, h.Err)
		}
	}
}
