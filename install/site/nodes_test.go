package site_test

import (
	"testing"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site/sitetest"
)

// Machines that were cloned have one machine-id. None of them may be taken for another, or
// be removed because another was found under its machine-id.
func TestClonedMachines(t *testing.T) {
	s := sitetest.Example(t, sitetest.ExampleConfig)
	h := s.Hosts[1]
	h.Hostname, h.MachineID = "worker", "0123"
	nodes := []kube.Node{{Name: "clone", MachineID: "0123"}, {Name: "worker", MachineID: "0123"}}
	if n := s.NodeOf(h, nodes); n == nil || n.Name != "worker" {
		t.Errorf("the node of worker is %v", n)
	}
	if got := s.Resembles(nodes[0]); got != h {
		t.Errorf("the node clone resembles %v, want worker", got)
	}
	if got := s.Resembles(kube.Node{Name: "other", MachineID: "4567", Addresses: []string{"10.0.0.9"}}); got != nil {
		t.Errorf("the node other resembles %v", got)
	}
}
