package install

import (
	"context"
	"errors"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
)

func TestCheckMajority(t *testing.T) {
	well := func(names ...string) (others []member) {
		for _, name := range names {
			others = append(others, member{name: name})
		}
		return others
	}
	down := member{"c", "connection refused"}
	tests := []struct {
		name   string
		others []member
		want   string
	}{
		{"one server", nil, ""},
		{"two servers", well("b"), ""},
		{"the other one of two is down", []member{down}, "without this server, 0 of 2 servers would be left that answer, and etcd needs a majority of 2: c: connection refused"},
		{"three servers", well("b", "c"), ""},
		{"one of three is down", append(well("b"), down), "without this server, 1 of 3 servers would be left that answer, and etcd needs a majority of 2: c: connection refused"},
		{"one of four is down", append(well("b", "d"), down), "without this server, 2 of 4 servers would be left that answer, and etcd needs a majority of 3: c: connection refused"},
		{"one of five is down", append(well("b", "d", "e"), down), ""},
		{"two of five are down", append(well("b", "d"), down, member{"e", "its node is not Ready"}),
			"without this server, 2 of 5 servers would be left that answer, and etcd needs a majority of 3: c: connection refused; e: its node is not Ready"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := ""
			if err := checkMajority(test.others); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// Only steps that start something are asked, and no further one after the first that is needed.
func TestStartingReason(t *testing.T) {
	broken := errors.New("no answer")
	asked := func(reason string, err error) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return reason, err }
	}
	tests := []struct {
		name  string
		steps []step
		want  string
		err   error
	}{
		{"none", nil, "", nil},
		{"nothing is started by it", []step{{needed: asked("a label", nil)}, {needed: asked("", nil), starts: true}}, "", nil},
		{"a file that k3s reads", []step{{needed: asked("", nil), starts: true}, {needed: asked("another config", nil), starts: true}, {needed: asked("", broken), starts: true}}, "another config", nil},
		{"it cannot be told", []step{{needed: asked("", broken), starts: true}}, "", broken},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got, err := startingReason(t.Context(), test.steps); got != test.want || !errors.Is(err, test.err) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// All that k3s is started again for counts, and what only says how its node registers does not.
func TestStepsThatStart(t *testing.T) {
	in := example(t, threeServers, "k3s=v1.34.4+k3s1")
	h := in.site.hosts[0]
	h.platform = "linux/amd64"
	for _, name := range []string{k3sProgram, installScript} {
		in.site.contents.Files = append(in.site.contents.Files, bundle.File{Component: k3sComponent, Name: name, Platform: h.platform})
	}
	steps, err := (&k3sNode{cluster: in.cluster, host: h, token: "the-token"}).steps()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if want := s.title != "write how the node registers into k3s' config"; s.starts != want {
			t.Errorf("%q starts k3s: %t", s.title, s.starts)
		}
	}
}
