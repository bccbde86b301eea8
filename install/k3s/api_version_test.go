package k3s

import (
	"errors"
	"fmt"
	"testing"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
)

// An API server tells of a minor step before its kubelet does, and also when that never does.
func TestMinorStep(t *testing.T) {
	const older, newer = "v1.33.13+k3s1", "v1.34.4+k3s1"
	nodes := func(server, agent string) []kube.Node {
		return []kube.Node{{Server: true, Kubelet: server}, {Kubelet: agent}}
	}
	tests := []struct {
		name         string
		nodes        []kube.Node
		apis         []string
		minor, moved bool
	}{
		{"a patch", nodes("v1.34.3+k3s1", "v1.34.3+k3s1"), []string{"v1.34.3+k3s1"}, false, false},
		{"before a minor step", nodes(older, older), []string{older}, true, false},
		{"the API server is ahead", nodes(older, older), []string{older, newer}, true, true},
		{"no API server tells", nodes(newer, older), nil, true, true},
		{"an agent alone is ahead", nodes(older, newer), []string{older}, true, false},
		{"all are there", nodes(newer, newer), []string{newer}, false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if minor, moved := MinorStep(test.nodes, test.apis, newer); minor != test.minor || moved != test.moved {
				t.Errorf("minor %t, moved %t", minor, moved)
			}
		})
	}
}

// Where nobody can look what a server does that is started, it may have moved.
func TestStartsUnseen(t *testing.T) {
	tests := []struct {
		name      string
		role      config.Role
		minor     bool
		goingBack bool
		want      bool
	}{
		{"a server for a minor step", config.Server, true, false, true},
		{"a server for a patch", config.Server, false, false, false},
		{"a server that goes back", config.Server, true, true, false},
		{"an agent", config.Agent, true, false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			n := &Node{Cluster: &Cluster{Crossing: crossing{Minor: test.minor}}, Host: &site.Host{Config: config.Host{Role: test.role}}, GoingBack: test.goingBack}
			n.startsUnseen()
			if n.Cluster.Crossing.Moved != test.want {
				t.Errorf("moved is %t", n.Cluster.Crossing.Moved)
			}
		})
	}
	if !failedToStart(fmt.Errorf("start k3s: %w", &setup.ServiceError{})) || failedToStart(errors.New("connection lost")) || failedToStart(nil) {
		t.Error("what systemd says is not told from other errors")
	}
}

// The last question comes when the start is over: k3s may have taken its API server down just then.
func TestAnswers(t *testing.T) {
	over := make(chan struct{})
	asked := 0
	if !answers(t.Context(), over, func() bool {
		asked++
		if asked == 1 {
			close(over)
		}
		return asked > 1
	}) {
		t.Error("the last question was not asked")
	}
	if answers(t.Context(), over, func() bool { return false }) {
		t.Error("nobody has answered")
	}
}
