package k3s

import (
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
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

// All that k3s is started again for counts, and what only says how its node registers does not.
func TestStepsThatStart(t *testing.T) {
	in := example(t, sitetest.ThreeServers, "k3s=v1.34.4+k3s1")
	h := in.site.Hosts[0]
	h.Platform = "linux/amd64"
	for _, name := range []string{site.K3sProgram, site.InstallScript} {
		in.site.Contents.Files = append(in.site.Contents.Files,
			bundle.File{Component: site.K3sComponent, Name: name, Platform: h.Platform})
	}
	steps, err := (&Node{Cluster: in.cluster, Host: h, Token: "the-token"}).steps()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if s.Proves {
			continue
		}
		idle := s.Title == "write how the node registers into k3s' config" || s.Title == "remove the files of hardening"
		if s.Starts == idle {
			t.Errorf("%q starts k3s: %t", s.Title, s.Starts)
		}
	}
}
