package install

import (
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/node/facts"
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
		host  host
		isNew bool
		taken string
	}{
		{"another machine", host{identity: identity{hostname: "Worker", machineID: "89ab"}}, true, "worker"},
		{"the same machine", host{identity: identity{hostname: "worker", machineID: "4567"}}, true, ""},
		{"a name that is free", host{identity: identity{hostname: "other", machineID: "89ab"}}, true, ""},
		{"a host that does not say which it is", host{identity: identity{hostname: "worker"}}, true, ""},
		{"a node that does not say which it is", host{identity: identity{hostname: "silent", machineID: "89ab"}}, true, ""},
		{"one that is in the cluster", host{identity: identity{hostname: "worker", machineID: "89ab"}, joined: "https://10.0.0.11:6443"}, false, "worker"},
		{"a server", host{identity: identity{hostname: "first", machineID: "89ab"}, member: true}, false, "first"},
		{
			"one that a run has begun with", host{identity: identity{hostname: "worker", machineID: "89ab"}, facts: &facts.Facts{K3s: facts.K3s{Managed: true}}}, false, "worker",
		},
	} {
		got := ""
		if n := taken(&test.host, nodes); n != nil {
			got = n.Name
		}
		if got != test.taken || isNew(&test.host) != test.isNew {
			t.Errorf("%s: the node %q is another's, new: %v; want %q, %v", test.name, got, isNew(&test.host), test.taken, test.isNew)
		}
	}
}

// A copy of a machine that has a node must not pass for it, and a host that is the node goes on.
func TestCopied(t *testing.T) {
	original := kube.Node{Name: "clone", MachineID: "0123"}
	for _, test := range []struct {
		name  string
		host  identity
		nodes []kube.Node
		want  string
	}{
		{"only its original is registered", identity{hostname: "worker", machineID: "0123"}, []kube.Node{{Name: "other", MachineID: "4567"}, original}, "clone"},
		{"both are", identity{hostname: "worker", machineID: "0123"}, []kube.Node{original, {Name: "worker", MachineID: "0123"}}, ""},
		{"it is the node, written otherwise", identity{hostname: "Clone", machineID: "0123"}, []kube.Node{original}, ""},
		{"another machine", identity{hostname: "worker", machineID: "89ab"}, []kube.Node{original}, ""},
		{"neither says which it is", identity{hostname: "worker"}, []kube.Node{{Name: "silent"}}, ""},
	} {
		got := ""
		if n := copied(&host{identity: test.host}, test.nodes); n != nil {
			got = n.Name
		}
		if got != test.want {
			t.Errorf("%s: a copy of %q, want %q", test.name, got, test.want)
		}
	}
}

// What is refused names both machines and the command that goes on from there.
func TestTakenError(t *testing.T) {
	in := example(t, exampleConfig)
	h := in.site.hosts[1]
	h.fail(&takenError{node: "worker", addresses: []string{"10.0.0.19", "worker"}, machineID: "4567", own: "89ab"})
	f := in.surveyor.unseenHost(h)
	if f.Check != preflight.CheckHostname || f.Severity != preflight.Error {
		t.Errorf("%+v", f)
	}
	for _, part := range []string{"worker", "10.0.0.19", "4567", "89ab"} {
		if !strings.Contains(h.err.Error(), part) {
			t.Errorf("%q is not in %v", part, h.err)
		}
	}
	var hinted remote.HintError
	const command = "boxlift node remove --hosts worker --forget-unreachable-host"
	if !errors.As(h.err, &hinted) || !strings.Contains(hinted.Hint(), command) || !strings.Contains(f.Hint, command) {
		t.Errorf("%q is not in the hints of %v and %+v", command, h.err, f)
	}
}

func TestCopiedError(t *testing.T) {
	in := example(t, exampleConfig)
	h := in.site.hosts[1]
	h.fail(&copiedError{node: "worker", addresses: []string{"10.0.0.19", "worker"}, machineID: "4567", own: "late"})
	f := in.surveyor.unseenHost(h)
	if f.Check != preflight.CheckMachineID || f.Severity != preflight.Error || !strings.Contains(f.Hint, "systemd-machine-id-setup") {
		t.Errorf("%+v", f)
	}
	for _, part := range []string{"worker", "10.0.0.19", "4567", "late"} {
		if !strings.Contains(h.err.Error(), part) {
			t.Errorf("%q is not in %v", part, h.err)
		}
	}
}
