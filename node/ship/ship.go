package ship

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/wire"
)

// Host is one of the hosts of [ToAll].
type Host struct {
	// Name is what peers call the host in what they report.
	Name string
	// Address is the host's IP address, as its peers reach it, with the port to listen on:
	// 10.0.0.7:0 leaves the port to the host. "" means that peers cannot reach the host; it
	// may take from them all the same.
	Address string
	// Want says what is to be there; its Swarm is ToAll's to set.
	Want wire.Want
	// In and Out are the standard input and output of "boxlift-node receive" on the host,
	// as for [ToOne].
	In  io.WriteCloser
	Out io.Reader
	// Start begins the host's task, as for [ToOne].
	Start func(total int64) progress.Task
	// StallTimeout is for how long the host may neither say anything new nor take any bytes
	// when it is its turn; 0 means [StallTimeout].
	StallTimeout time.Duration
}

// Result is what became of one host.
type Result struct {
	Report Report
	Err    error
}

const (
	// gatherTime is how long the first host that is ready waits for the others.
	gatherTime = 2 * time.Second
	// peersPerHost is how many sources a host is given, beside the operator.
	peersPerHost = 8
)

// ToAll brings what is wanted to several hosts at the same time. They hand it on to each
// other in a chain: a host takes each blob from the one before it, while that one still
// gets it; when that one does not have it or fails, from one further ahead; and only in
// the end from here. So what several hosts want leaves this machine once.
//
// Each host has a result of its own, in the order of hosts, and none of them fails
// because another did. What is said of ToOne's arguments and errors holds for each. ToAll
// returns when the last host has ended, and until then those that are done serve the
// others.
func ToAll(ctx context.Context, hosts []Host, atOnce int, open Open) []Result {
	results := make([]Result, len(hosts))
	c := &chain{members: make([]*member, len(hosts)), atOnce: atOnce, over: make(chan struct{})}
	token := make([]byte, wire.TokenSize)
	_, _ = rand.Read(token) // never fails
	for i, h := range hosts {
		want := h.Want
		want.Swarm = nil
		if len(hosts) > 1 {
			want.Swarm = &wire.Swarm{Address: h.Address, Token: token}
		}
		c.members[i] = &member{name: h.Name, want: want, peers: make(chan *wire.Peers, 1)}
	}
	c.working = len(hosts)
	var all sync.WaitGroup
	for i, h := range hosts {
		m := c.members[i]
		finished := sync.OnceFunc(func() { c.done(m, true) })
		s := &sender{
			name: h.Name, stallTimeout: cmp.Or(h.StallTimeout, StallTimeout), in: h.In, want: m.want, open: open,
			start: h.Start,
			ready: func(state *wire.State) { c.ready(m, state) }, peers: m.peers, done: finished, over: c.over,
		}
		all.Go(func() {
			results[i].Report, results[i].Err = s.converse(ctx, h.Out)
			if results[i].Err != nil {
				c.done(m, false)
			}
		})
	}
	all.Wait()
	c.stop()
	return results
}

// chain decides who takes from whom.
type chain struct {
	mu      sync.Mutex
	members []*member
	// atOnce bounds how many that lack something are placed and not done.
	atOnce int
	// placed are the members that know their peers, each after those that it may ask.
	placed []*member
	// working counts those that are not done; over is closed when there are none.
	working int
	over    chan struct{}
	timer   *time.Timer
	late    bool
}

type member struct {
	name  string
	want  wire.Want
	peers chan *wire.Peers
	// state is set when the host is ready, ended when it has what it wants, failed when it
	// has failed.
	state  *wire.State
	placed bool
	ended  bool
	failed bool
	blobs  map[digest.Digest]bool
}

// ready is called with what a host found.
func (c *chain) ready(m *member, state *wire.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.state = state
	m.blobs = make(map[digest.Digest]bool)
	for _, p := range m.want.Packs {
		for _, b := range p.Blobs {
			m.blobs[b.Digest] = true
		}
	}
	for _, f := range m.want.Files {
		m.blobs[f.Digest] = true
	}
	if state.Missing == 0 {
		c.place(m) // it needs nobody, and is the best source
	}
	if c.timer == nil {
		c.timer = time.AfterFunc(gatherTime, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.late = true
			c.settle()
		})
	}
	c.settle()
}

// done is called when a host has what it wants, and when it has failed.
func (c *chain) done(m *member, well bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.failed = !well
	if m.ended {
		return // it had what it wants, and failed afterwards
	}
	m.ended = true
	if c.working--; c.working == 0 {
		close(c.over)
	}
	c.settle()
}

func (c *chain) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

// settle places the hosts that are ready, once all are or the time is over, and as many
// as may receive at once. Those that lack the least come first: they hold what the others
// lack.
func (c *chain) settle() {
	var waiting []*member
	for _, m := range c.members {
		switch {
		case m.placed || m.ended:
		case m.state != nil:
			waiting = append(waiting, m)
		case !c.late:
			return
		}
	}
	slices.SortStableFunc(waiting, func(a, b *member) int { return cmp.Compare(a.state.Missing, b.state.Missing) })
	for _, m := range waiting[:min(len(waiting), max(0, c.atOnce-c.receiving()))] {
		c.place(m)
	}
}

// receiving is how many hosts get what they lack now.
func (c *chain) receiving() int {
	n := 0
	for _, m := range c.placed {
		if !m.ended && m.state.Missing > 0 {
			n++
		}
	}
	return n
}

// place tells a host its peers: of those that were placed before it the last ones that
// want something that it wants.
func (c *chain) place(m *member) {
	peers := &wire.Peers{}
	offered := make(map[digest.Digest]bool)
	for _, before := range slices.Backward(c.placed) {
		if len(peers.Peers) == peersPerHost {
			break
		}
		address, ok := before.address()
		if !ok || m.state.Missing == 0 {
			continue
		}
		common := false
		for d := range m.blobs {
			if before.blobs[d] {
				common, offered[d] = true, true
			}
		}
		if common {
			peers.Peers = append(peers.Peers, wire.Peer{
				Name: before.name, Serving: wire.Serving{Address: address,
					Certificate: before.state.Serving.Certificate},
			})
		}
	}
	if len(peers.Peers) > 0 {
		for d := range m.blobs {
			if !offered[d] {
				peers.Operator = append(peers.Operator, d)
			}
		}
		slices.Sort(peers.Operator)
	}
	c.placed, m.placed = append(c.placed, m), true
	m.peers <- peers
}

// address is where peers reach a host: at the address that is known here, whatever the
// host says of itself, and the port that it says.
func (m *member) address() (string, bool) {
	if m.failed || m.state.Serving == nil || m.want.Swarm == nil {
		return "", false
	}
	own, err := netip.ParseAddrPort(m.want.Swarm.Address)
	if err != nil {
		return "", false
	}
	_, port, err := net.SplitHostPort(m.state.Serving.Address)
	if err != nil {
		return "", false
	}
	address, err := netip.ParseAddrPort(net.JoinHostPort(own.Addr().String(), port))
	if err != nil || address.Port() == 0 {
		return "", false
	}
	return address.String(), true
}
