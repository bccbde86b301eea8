package preflight

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/config/naming"
	"github.com/liteboxd/boxlift/node/reach"
	"github.com/liteboxd/boxlift/node/wire"
)

type startFunc = func(context.Context, ...string) (io.WriteCloser, io.Reader, func() error, error)

// here runs what boxlift-node runs, in this process.
func here(ctx context.Context, args ...string) (io.WriteCloser, io.Reader, func() error, error) {
	stdinReader, stdin := io.Pipe()
	stdout, stdoutWriter := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		run := reach.Run
		if args[0] == "listen" {
			run = reach.Listen
		}
		err := run(ctx, stdinReader, stdoutWriter)
		_ = stdoutWriter.Close()
		_ = stdinReader.Close()
		ended <- err
	}()
	return stdin, stdout, func() error { return <-ended }, nil
}

// says is a program that prints something and then neither says more nor ends.
func says(text string) startFunc {
	return func(ctx context.Context, _ ...string) (io.WriteCloser, io.Reader, func() error, error) {
		stdinReader, stdin := io.Pipe()
		stdout, stdoutWriter := io.Pipe()
		go func() { _, _ = io.Copy(io.Discard, stdinReader) }()
		go func() {
			for ctx.Err() == nil {
				if _, err := stdoutWriter.Write([]byte(text)); err != nil || strings.HasSuffix(text, "\n") || text == "" {
					return
				}
			}
		}()
		return stdin, stdout, func() error { <-ctx.Done(); return ctx.Err() }, nil
	}
}

func ports(t *testing.T) []ReachPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return []ReachPort{{Endpoint: reach.Endpoint{Protocol: "tcp", Port: l.Addr().(*net.TCPAddr).Port}, Use: "a test"}}
}

func TestReach(t *testing.T) {
	found, err := Reach(t.Context(), []ReachHost{
		{Name: "a", Address: "127.0.0.1", Role: config.Server, Ports: ports(t), Start: here},
		{Name: "b", Address: "127.0.0.1", Role: config.Agent, Ports: []ReachPort{}, Start: here},
		{Name: "c", Address: "nobody.invalid", Role: config.Agent, Ports: ports(t), Start: here},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := found["b"]; len(r) != 2 || r[0].Host != "a" || r[0].State != reach.OK || r[1].Host != "c" || r[1].State == reach.OK || r[1].Detail == "" {
		t.Errorf("b: %+v", r)
	}
	if r := found["a"]; len(r) != 1 || r[0].Host != "c" {
		t.Errorf("a: %+v", r)
	}
	if r := found["c"]; len(r) != 1 || r[0].Host != "a" || r[0].State != reach.OK || r[0].Use != "a test" {
		t.Errorf("c: %+v", r)
	}
	if found, err := Reach(t.Context(), []ReachHost{{Name: "a"}}); len(found) != 0 || err != nil {
		t.Errorf("a single host: %v, %v", found, err)
	}
}

// What is no host of the cluster is tried too, also by a single host.
func TestReachOutside(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	open := reach.Endpoint{Protocol: "tcp", Port: l.Addr().(*net.TCPAddr).Port}
	outside := []Outside{
		{Endpoint: open, Address: "127.0.0.1", Use: "the registry"},
		{Endpoint: ports(t)[0].Endpoint, Address: "127.0.0.1", Use: "the registry"},
		{Endpoint: open, Address: "nobody.invalid", Use: "the registry"},
	}
	a := ReachHost{Name: "a", Address: "127.0.0.1", Role: config.Server, Outside: outside, Start: here}
	b := ReachHost{Name: "b", Address: "127.0.0.1", Role: config.Agent, Ports: ports(t), Start: here}
	for _, hosts := range [][]ReachHost{{a}, {a, b}} {
		found, err := Reach(t.Context(), hosts)
		if err != nil {
			t.Fatal(err)
		}
		r := found["a"]
		if len(r) != len(outside)+len(hosts)-1 {
			t.Fatalf("%d hosts: %+v", len(hosts), r)
		}
		for i, state := range []reach.State{reach.OK, reach.Refused, reach.Failed} {
			if r[i].Host != "" || r[i].State != state || r[i].Use != "the registry" || r[i].Address != outside[i].Address {
				t.Errorf("%d hosts: %+v, want %s", len(hosts), r[i], state)
			}
		}
	}
	need, _ := goodCluster()
	if got := ReachOutside(need); got != nil {
		t.Errorf("without an external registry: %+v", got)
	}
	need.Config.Seeding.External = &config.ExternalRegistry{Address: "[fd00::5]:5000"}
	want := Outside{Endpoint: reach.Endpoint{Protocol: "tcp", Port: 5000}, Address: "fd00::5", Use: "the registry"}
	if got := ReachOutside(need); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A host that hangs, or answers with something else, takes the others' results with it
// only as far as they need it.
func TestReachBadHosts(t *testing.T) {
	tests := []struct {
		name  string
		start startFunc
		want  error
	}{
		{"silent", says(""), context.DeadlineExceeded},
		{"other", says("Last login: yesterday\n"), wire.ErrProtocol},
		{"without an end", says(strings.Repeat("x", 4096)), wire.ErrProtocol},
		{"more ports than asked for", says(`{"version":1,"listening":[{"protocol":"tcp","port":22}]}` + "\n"), wire.ErrProtocol},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			found, err := Reach(ctx, []ReachHost{
				{Name: "good", Address: "127.0.0.1", Ports: ports(t), Start: here},
				{Name: "bad", Address: "127.0.0.1", Ports: ports(t), Start: test.start},
			})
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), "bad: ") {
				t.Errorf("got %v, want %v", err, test.want)
			}
			for name, list := range found {
				for _, r := range list {
					if r.State == reach.OK || r.Detail == "" {
						t.Errorf("%s: %+v", name, r)
					}
				}
				if len(list) != 1 {
					t.Errorf("%s: %+v", name, list)
				}
			}
		})
	}
}

// portsText is what ports others have to reach, and which others if not all.
func portsText(list []ReachPort) string {
	var names []string
	for _, p := range list {
		name := p.String()
		if p.From != "" {
			name += " from " + string(p.From)
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// What is chosen of Cilium's features needs ports of its own.
func TestReachPortsOfCilium(t *testing.T) {
	type values = map[string]any
	on, off := values{"enabled": true}, values{"enabled": false}
	for _, test := range []struct {
		name   string
		cilium values
		want   string
	}{
		{"Hubble without its relay", values{"hubble": values{"relay": off}}, ""},
		{"Hubble's relay", values{"hubble": values{"relay": on}}, "4244/tcp, "},
		{"the relay of a Hubble that is off", values{"hubble": values{"enabled": false, "relay": on}}, ""},
		{"mutual authentication", values{"authentication": values{"mutual": values{"spire": on}}}, "4250/tcp, "},
		{"on another port", values{"authentication": values{"enabled": true, "mutual": values{"port": 4251, "spire": on}}}, "4251/tcp, "},
		{"without SPIRE", values{"authentication": values{"enabled": true, "mutual": values{"spire": off}}}, ""},
		{"all authentication off", values{"authentication": values{"enabled": false, "mutual": values{"spire": on}}}, ""},
	} {
		need, subjects := goodCluster()
		need.CiliumValues = test.cilium
		if got, want := portsText(ReachPorts(need, subjects, 1)), "10250/tcp, 4240/tcp, "+test.want+"8472/udp"; got != want {
			t.Errorf("%s: got %s, want %s", test.name, got, want)
		}
	}
}

// What a cluster without settings of its own needs.
func TestReachDefaultPorts(t *testing.T) {
	text := portsText
	need, subjects := goodCluster()
	if got, want := text(ReachPorts(need, subjects, 0)), "6443/tcp, 10250/tcp, 4240/tcp, 8472/udp"; got != want {
		t.Errorf("server: got %s, want %s", got, want)
	}
	if got, want := text(ReachPorts(need, subjects, 1)), "10250/tcp, 4240/tcp, 8472/udp"; got != want {
		t.Errorf("agent: got %s, want %s", got, want)
	}
	need.Config.Cluster.Servers = append(need.Config.Cluster.Servers, need.Config.Cluster.Servers[0], need.Config.Cluster.Servers[0])
	need.CiliumValues = map[string]any{"routingMode": "native", "encryption": map[string]any{"enabled": true, "type": "wireguard"}}
	subjects[0].K3sConfig["embedded-registry"] = true
	need.Config.Seeding.Mode, need.Config.Seeding.Registry.Port = config.SeedRegistry, 5443
	need.Config.Names = &config.Names{Serve: &naming.Serve{On: []string{subjects[0].Config.Address()}}}
	want := "6443/tcp, 2379/tcp from server, 2380/tcp from server, 10250/tcp, 5001/tcp, 4240/tcp, 51871/udp, 5443/tcp, 53/tcp, 53/udp"
	if got := text(ReachPorts(need, subjects, 0)); got != want {
		t.Errorf("server: got %s, want %s", got, want)
	}
	if got, want := text(ReachPorts(need, subjects, 1)), "10250/tcp, 5001/tcp, 6443/tcp, 4240/tcp, 51871/udp"; got != want {
		t.Errorf("agent: got %s, want %s", got, want)
	}
}
