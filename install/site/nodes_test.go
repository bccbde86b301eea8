package site_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/test/sitetest"
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

// Only what is certainly no host of install.yaml, and not Ready, is left out.
func TestLeftOut(t *testing.T) {
	nodes := []kube.Node{
		{Name: "first", Ready: true, Addresses: []string{"10.0.0.11"}},
		{Name: "worker", MachineID: "0123", Addresses: []string{"10.0.0.99"}},
		{Name: "alive", Ready: true, Addresses: []string{"10.0.0.13"}},
		{Name: "dead", Addresses: []string{"10.0.0.14"}},
	}
	for _, test := range []struct {
		name  string
		known bool // the agent has said who it is
		only  bool // the run does not work on the agent
		agent string
		want  []string
	}{
		{"all hosts are known", true, false, "", []string{"dead"}},
		{"one that was not asked may be any of them", false, false, "", nil},
		{"one that the run leaves alone may be any of them", false, true, "", nil},
		{"its name tells which one it is", false, true, "worker", []string{"dead"}},
		{"so does its address", false, true, "10.0.0.99", []string{"dead"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := sitetest.ExampleConfig
			switch test.agent {
			case "worker":
				config = strings.Replace(config, "host: 10.0.0.12,", "host: 10.0.0.12, name: worker,", 1)
			case "10.0.0.99":
				config = strings.Replace(config, "host: 10.0.0.12,", "host: 10.0.0.99,", 1)
			}
			s := sitetest.Example(t, config)
			if test.known {
				s.Hosts[1].Hostname, s.Hosts[1].MachineID = "renamed", "0123"
			}
			if test.only {
				s.Hosts = s.Hosts[:1]
			}
			var got []string
			for _, n := range s.LeftOut(nodes) {
				got = append(got, n.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
