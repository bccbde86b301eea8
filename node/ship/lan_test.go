//go:build linux

package ship_test

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
	hosts "github.com/liteboxd/boxlift/test/lab"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// lan is a swarm of hosts of their own on a LAN.
type lan struct {
	*swarm
	*nodelab.Network
}

func newLAN(ctx context.Context, t *testing.T, n int) *lan {
	t.Helper()
	l := &lan{swarm: &swarm{Store: nodelab.Store{}}, Network: nodelab.NewNetwork(ctx, t, "swarm", n)}
	for _, h := range l.Hosts {
		// The hosts' disks as they are seen from here.
		l.nodes = append(l.nodes, &nodelab.Lab{
			Store: l.Store, Images: filepath.Join(h.Root, wire.ImagesDir), Files: filepath.Join(h.Root, wire.FilesDir),
		})
	}
	return l
}

// ship brings the packs to all hosts, over ssh as the installer does.
func (l *lan) ship(ctx context.Context, t *testing.T, packs ...wire.PackWant) []ship.Result {
	t.Helper()
	var shipped []ship.Host
	l.counters = nil
	var commands []*exec.Cmd
	for _, h := range l.Hosts {
		c := l.OperatorCommand(ctx, "ssh", "-F", "none", "-i", l.KeyFile(), "-l", "root", "-o", "BatchMode=yes",
			"-o", "UserKnownHostsFile="+l.Known,
			"-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=5", h.Address.String(), "/"+nodelab.Helper, "receive")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		c.Stderr = &bytes.Buffer{}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, c)
		count := &nodelab.Counter{}
		l.counters = append(l.counters, count)
		shipped = append(shipped, ship.Host{
			Name: h.Name, Address: h.Address.String() + ":0", In: in, Out: out, Start: count.Start,
			Want: wire.Want{Version: wire.Version, ImagesDir: wire.ImagesDir, Packs: packs},
		})
	}
	l.read.Store(0)
	start := time.Now()
	results := ship.ToAll(ctx, shipped, len(shipped), l.open)
	t.Logf("shipped in %v, %d bytes from the operator", time.Since(start).Round(time.Millisecond), l.read.Load())
	for i, c := range commands {
		if err := c.Wait(); (err == nil) != (results[i].Err == nil) {
			t.Logf("%s: ship says %v, ssh %v %s", l.Hosts[i].Name, results[i].Err, err, c.Stderr)
		}
		for _, trouble := range results[i].Report.Troubles {
			t.Logf("%s: %+v", l.Hosts[i].Name, trouble)
		}
	}
	return results
}

// provePacks compares what the hosts have.
func (l *lan) provePacks(t *testing.T, results []ship.Result, packs []wire.PackWant, without ...*hosts.Host) {
	t.Helper()
	wants := make([]wire.Want, len(l.Hosts))
	var left []int
	for i := range l.Hosts {
		wants[i] = wire.Want{ImagesDir: l.nodes[i].Images, Packs: packs}
		for _, h := range without {
			if h == l.Hosts[i] {
				left = append(left, i)
			}
		}
	}
	l.prove(t, wants, results, left...)
	// Nobody listens any more, and no process is left.
	for _, h := range l.Hosts {
		if out, err := h.Exec(t.Context(), "pgrep", "-l", "boxlift-node"); err == nil {
			t.Errorf("%s: left behind: %s", h.Name, out)
		}
	}
}

// empty takes everything from the hosts.
func (l *lan) empty(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, h := range l.Hosts {
		if _, err := h.Exec(ctx, "rm", "-rf", wire.ImagesDir, wire.FilesDir); err != nil {
			t.Fatal(err)
		}
	}
}

// Content goes through a LAN of hosts, whatever happens to some of them.
func TestSwarmOnHosts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	l := newLAN(ctx, t, 4)
	packs := []wire.PackWant{
		l.Pack(t, "k3s", nodelab.Random(270, 20_000_000), nodelab.Random(271, 30_000_000), nodelab.Random(272, 400)),
		l.Pack(t, "cilium", nodelab.Random(273, 40_000_000), nodelab.Random(274, 10_000_000)),
	}

	t.Run("all well", func(t *testing.T) {
		l.provePacks(t, l.ship(ctx, t, packs...), packs)
		if got := l.read.Load(); got != l.size() {
			t.Errorf("the operator sent %d bytes, want each of the %d once", got, l.size())
		}
	})

	t.Run("the source loses its power", func(t *testing.T) {
		l.empty(ctx, t)
		var once sync.Once
		l.onRead = func(total int64) {
			if total > l.size()*2/3 {
				once.Do(func() {
					if err := l.Hosts[0].PowerCut(ctx); err != nil {
						t.Error(err)
					}
				})
			}
		}
		results := l.ship(ctx, t, packs...)
		l.onRead = nil
		if results[0].Err == nil {
			t.Error("the host without power is said to be well")
		}
		if err := errors.Join(l.Hosts[0].Up(ctx), l.Hosts[0].WaitSSH(ctx)); err != nil {
			t.Fatal(err)
		}
		l.provePacks(t, results, packs, l.Hosts[0])
		// The next run brings it the rest, from its peers.
		l.provePacks(t, l.ship(ctx, t, packs...), packs)
		if got := l.read.Load(); got != 0 {
			t.Errorf("the operator sent %d bytes that other hosts had", got)
		}
	})

	t.Run("a firewall", func(t *testing.T) {
		l.empty(ctx, t)
		rule := strings.Fields("INPUT -p tcp ! --dport 22 -m conntrack --ctstate NEW -j DROP")
		for _, h := range l.Hosts[:3] {
			if out, err := h.Exec(ctx, append([]string{"iptables", "-A"}, rule...)...); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		results := l.ship(ctx, t, packs...)
		for _, h := range l.Hosts[:3] {
			if out, err := h.Exec(ctx, append([]string{"iptables", "-D"}, rule...)...); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		l.provePacks(t, results, packs)
		if got := l.read.Load(); got != 4*l.size() {
			t.Errorf("the operator sent %d bytes, want %d to each of the four", got, l.size())
		}
	})

	t.Run("damage on the source", func(t *testing.T) {
		for _, h := range l.Hosts[1:] {
			if _, err := h.Exec(ctx, "rm", "-rf", wire.ImagesDir); err != nil {
				t.Fatal(err)
			}
		}
		bad := packs[0].Blobs[3]
		at := int64(bytes.Index(l.Bytes(t, packs[0]), l.Store[bad.Digest]))
		nodelab.Flip(t, filepath.Join(l.nodes[0].Images, packs[0].Name), at+15_000_000)
		results := l.ship(ctx, t, packs...)
		nodelab.Flip(t, filepath.Join(l.nodes[0].Images, packs[0].Name), at+15_000_000)
		l.provePacks(t, results, packs)
		if got := l.read.Load(); got != bad.Size {
			t.Errorf("the operator sent %d bytes, want the %d of the damaged blob", got, bad.Size)
		}
	})

	t.Run("the operator goes", func(t *testing.T) {
		l.empty(ctx, t)
		short, gone := context.WithCancel(ctx)
		defer gone()
		l.onRead = func(total int64) {
			if total > l.size()/2 {
				gone()
			}
		}
		// The context ends ssh as well, in the hard way.
		for i, r := range l.ship(short, t, packs...) {
			if r.Err == nil {
				t.Errorf("%s is said to be well", l.Hosts[i].Name)
			}
		}
		for _, h := range l.Hosts {
			left := []byte("x")
			end := time.Now().Add(20 * time.Second)
			for ; len(left) > 0 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				left, _ = h.Exec(ctx, "pgrep", "-l", "boxlift-node") // fails when there is none
			}
			if len(left) > 0 {
				t.Errorf("%s: left behind: %s", h.Name, left)
			}
		}
	})
	if n, detail, err := l.LeakedPackets(); n > 0 || err != nil {
		t.Errorf("%d packets went elsewhere: %v\n%s", n, err, detail)
	}
}
