package bulktls

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// crowdedTime is how long a stranger may stay when a listener is nearly full: enough
	// for a handshake and a request of who means it.
	crowdedTime = 2 * time.Second
	// crowded is from how many quarters of MaxConnections on a listener is nearly full.
	crowded = 3
)

// admission decides which connections of a listener may stay. Those over which nobody has
// shown so far that they may be served are strangers. They are many only when somebody
// makes them so; then the oldest has to go, and not the one that comes.
type admission struct {
	max, perSource int // 0: no bound for a source

	mu    sync.Mutex
	count int
	// strangers are in the order in which they came; sources counts them.
	strangers *list.List
	sources   map[netip.Addr]int
}

// guest is a connection that was let in.
type guest struct {
	source netip.Addr
	since  time.Time
	shut   func()
	// place is where it is among the strangers; nil: it is none.
	place *list.Element
	gone  bool
}

func newAdmission(most, perSource int) *admission {
	return &admission{max: most, perSource: perSource, strangers: list.New(), sources: make(map[netip.Addr]int)}
}

// enter lets a connection from source in, which shut closes. It may show strangers the
// door for that. It returns nil when there is no room.
func (a *admission) enter(source netip.Addr, now time.Time, shut func()) *guest {
	g := &guest{source: source, since: now, shut: shut}
	var out []*guest
	// Not under the lock: a closed connection leaves.
	defer func() {
		for _, stranger := range out {
			stranger.shut()
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	for e := a.strangers.Front(); e != nil && 4*a.count >= crowded*a.max; e = a.strangers.Front() {
		oldest, _ := e.Value.(*guest)
		if now.Sub(oldest.since) < crowdedTime && a.count < a.max {
			break
		}
		out = append(out, oldest)
		a.remove(oldest)
	}
	if a.count >= a.max {
		return nil
	}
	if a.perSource > 0 && a.sources[source] >= a.perSource {
		oldest := a.oldestOf(source)
		out = append(out, oldest)
		a.remove(oldest)
	}
	a.count++
	a.sources[source]++
	g.place = a.strangers.PushBack(g)
	return g
}

func (a *admission) oldestOf(source netip.Addr) *guest {
	for e := a.strangers.Front(); e != nil; e = e.Next() {
		if g, _ := e.Value.(*guest); g.source == source {
			return g
		}
	}
	return nil // sources counts the list's elements, so there is one
}

// know makes a stranger one that is known.
func (a *admission) know(g *guest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forget(g)
}

// leave is called when a connection was closed.
func (a *admission) leave(g *guest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(g)
}

func (a *admission) remove(g *guest) {
	if !g.gone {
		g.gone = true
		a.count--
		a.forget(g)
	}
}

// forget takes a connection from the strangers.
func (a *admission) forget(g *guest) {
	if g.place == nil {
		return
	}
	a.strangers.Remove(g.place)
	g.place = nil
	if a.sources[g.source]--; a.sources[g.source] == 0 {
		delete(a.sources, g.source)
	}
}

func sourceOf(c net.Conn) netip.Addr {
	address, _ := netip.ParseAddrPort(c.RemoteAddr().String()) // whatever is no IP address counts as one source
	return address.Addr().Unmap()
}

type contextKey struct{}

// ConnContext is for [net/http.Server]'s field of that name: with it, [Authenticated] knows
// the connection of a request.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// Authenticated says that who made the request with this context may be served: the
// connection is not closed any more to make room for others. It does nothing for a request
// that did not come over a connection of this package.
func Authenticated(ctx context.Context) {
	if c, ok := ctx.Value(contextKey{}).(*conn); ok {
		c.listener.admission.know(c.guest)
	}
}
