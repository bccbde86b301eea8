package site_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/remote"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// closing is a host whose connection says when it ends.
type closing struct {
	*hosttest.Fake
	ended func(string)
}

func (c *closing) Close() error {
	c.ended(c.Name())
	return errors.New("it was broken already")
}

// However many ask for a host at the same time, it is logged in to once; a host that cannot be reached is not tried
// again by each of them; and what one may do with sudo and without it are two connections.
func TestConnectionsAreMadeOnce(t *testing.T) {
	var mu sync.Mutex
	var dialled, ended []string
	other := func(_ context.Context, h config.Host) (host.Host, error) {
		mu.Lock()
		dialled = append(dialled, fmt.Sprintf("%s sudo %t", h.Host, h.Sudo))
		mu.Unlock()
		if h.Host == "10.0.0.99" {
			return nil, fault.OnHost(sitetest.ErrNoRoute, h.Host)
		}
		f := hosttest.New(t, fmt.Sprintf("%s %t", h.Host, h.Sudo))
		if h.Host == "10.0.0.13" {
			return f, nil // it has nothing to close
		}
		return &closing{f, func(name string) { ended = append(ended, name) }}, nil
	}
	c := site.NewConnections(&config.Config{}, nil, other)
	bastion := config.Host{Host: "10.0.0.11", User: "op", Port: 22}
	server, far, gone := bastion, bastion, bastion
	server.Sudo, far.Host, gone.Host = true, "10.0.0.13", "10.0.0.99"
	for _, h := range []config.Host{bastion, server, far, gone} {
		var all sync.WaitGroup
		var made atomic.Pointer[host.Host]
		for range 8 {
			all.Go(func() {
				conn, err := c.To(t.Context(), h)
				if (err != nil) != (h.Host == gone.Host) || err != nil && (conn != nil || !errors.Is(err, sitetest.ErrNoRoute)) {
					t.Errorf("%s: %v, %v", h.Host, conn, err)
				}
				if first := made.Swap(&conn); first != nil && *first != conn {
					t.Errorf("%s: two connections", h.Host)
				}
			})
		}
		all.Wait()
	}
	want := []string{"10.0.0.11 sudo false", "10.0.0.11 sudo true", "10.0.0.13 sudo false", "10.0.0.99 sudo false"}
	if diff := cmp.Diff(want, dialled); diff != "" {
		t.Error(diff)
	}
	// Those further away end first, each once.
	c.Close()
	c.Close()
	if diff := cmp.Diff([]string{"10.0.0.11 true", "10.0.0.11 false"}, ended); diff != "" {
		t.Error(diff)
	}
}

// By SSH, what cannot be reached is an error of that host, and says when its bastion is what is not reached.
func TestConnectBySSH(t *testing.T) {
	c := &config.Config{}
	c.Runtime.SSHTimeout = 5 * time.Second
	conns := site.NewConnections(c, nil, nil)
	defer conns.Close()
	near := config.Host{Host: "127.0.0.1", Port: 1, User: "op", Password: config.NewSecret("canary-password")}
	behind := config.Host{Host: "10.0.0.12", Name: "worker", Port: 22, User: "op", Bastion: &near}
	for h, want := range map[*config.Host]string{&near: "127.0.0.1: ", &behind: "worker (10.0.0.12): its bastion: 127.0.0.1: "} {
		_, err := conns.To(t.Context(), *h)
		if err == nil || !strings.HasPrefix(err.Error(), want) || fault.HostOf(err) != site.HostName(*h) {
			t.Errorf("got %v, want %q", err, want)
		}
		if strings.Contains(fmt.Sprintf("%+v", err), "canary") {
			t.Errorf("it tells the password: %v", err)
		}
	}
	if _, err := conns.To(t.Context(), config.Host{Host: "127.0.0.1", Port: 1, User: "other"}); errors.Is(err, remote.ErrSudo) || err == nil {
		t.Errorf("another user: %v", err)
	}
}

// Who a host is and what its clock says are told, and nothing is taken from a host that says something else.
func TestIdentify(t *testing.T) {
	const clock = "1700000000.5\n"
	for _, test := range []struct {
		name, says string
		want       site.Identity
		is         string
	}{
		{name: "a host", says: clock + "Linux x86_64\nWorker-1\n0123\n",
			want: site.Identity{Platform: "linux/amd64", Hostname: "Worker-1", MachineID: "0123"}},
		{name: "without a machine-id", says: clock + "Linux aarch64\na\n\n", want: site.Identity{Platform: "linux/arm64", Hostname: "a"}},
		{name: "busybox' date", says: "1700000000.%N\nLinux x86_64\na\nb\n", want: site.Identity{Platform: "linux/amd64", Hostname: "a", MachineID: "b"}},
		{name: "a name with a terminal", says: clock + "Linux x86_64\n\x1b[2Ja\n\x1b]0;b\a\n",
			want: site.Identity{Platform: "linux/amd64", Hostname: "\ufffd[2Ja", MachineID: "\ufffd]0;b\ufffd"}},
		{name: "another system", says: clock + "FreeBSD amd64\na\nb\n", want: site.Identity{Hostname: "a", MachineID: "b"},
			is: `the host is "FreeBSD amd64"; boxlift installs on Linux x86_64 and aarch64 only`},
		{name: "nothing", is: `the host printed ""`},
		{name: "a greeting before it", says: "Welcome!\n" + clock + "Linux x86_64\na\nb\n", is: `the host printed "Welcome!`},
		{name: "no clock", says: "now\nLinux x86_64\na\nb\n", is: `date printed "now"`},
		{name: "a clock before all time", says: "-5.0\nLinux x86_64\na\nb\n", is: `date printed "-5.0"`},
		{name: "a clock after all time", says: "99999999999999999999.0\nLinux x86_64\na\nb\n", is: "date printed"},
		{name: "a name without end", says: clock + "Linux x86_64\n" + strings.Repeat("x", 1<<16) + "\nb\n",
			want: site.Identity{Platform: "linux/amd64", Hostname: printable.Short(strings.Repeat("x", 1<<16), 253), MachineID: "b"}},
	} {
		got, err := site.Identify(t.Context(), hosttest.Liar{Output: []byte(test.says)})
		if (err == nil) != (test.is == "") || err != nil && (!strings.Contains(err.Error(), test.is) || len(err.Error()) > 500) {
			t.Errorf("%s: got %v", test.name, err)
		}
		if err == nil && (got.Offset > -time.Hour || got.Uncertainty < 0 || got.Uncertainty > time.Hour) {
			t.Errorf("%s: the clock is ahead by %v, give or take %v", test.name, got.Offset, got.Uncertainty)
		}
		got.Offset, got.Uncertainty = 0, 0
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

// A connection that is made tells who the host is, and where others reach it; one that breaks meanwhile does not pass
// for a host without a name.
func TestConnect(t *testing.T) {
	for _, test := range []struct {
		address, node string
		breaks        bool
		ip            string
		is            error
	}{
		{address: "10.0.0.12", ip: "10.0.0.12"},
		{address: "10.0.0.12", node: ", nodeIP: 192.168.0.12", ip: "192.168.0.12"},
		{address: "localhost", ip: "127.0.0.1"},
		{address: "10.0.0.12", breaks: true, ip: "10.0.0.12", is: hosttest.ErrLost},
	} {
		s := sitetest.Example(t, strings.Replace(sitetest.ExampleConfig, "{host: 10.0.0.12", "{host: "+test.address+test.node, 1))
		f := sitetest.NewHost(t, "worker", nil)
		if test.breaks {
			f.BreakAfter(0)
		}
		s.Conns = site.NewConnections(s.Config, nil, sitetest.DialTo(map[string]host.Host{test.address: f}))
		before := f.Snapshot(t)
		h := s.Hosts[1]
		if err := s.Connect(t.Context(), h); !errors.Is(err, test.is) || err == nil && (h.Hostname != "worker" || h.Platform != "linux/amd64") {
			t.Errorf("%s: %+v, %v", test.address, h.Identity, err)
		}
		if h.IP.String() != test.ip && !h.IP.IsLoopback() {
			t.Errorf("%s%s: others reach it at %v", test.address, test.node, h.IP)
		}
		if f.Snapshot(t) != before || slices.ContainsFunc(f.Commands(), func(s string) bool { return strings.HasPrefix(s, "put ") }) {
			t.Errorf("%s: connecting has changed the host", test.address)
		}
		if err := s.Connect(t.Context(), s.Hosts[0]); !errors.Is(err, sitetest.ErrNoRoute) || s.Hosts[0].Conn != nil {
			t.Errorf("one that is not reached: %v", err)
		}
	}
}
