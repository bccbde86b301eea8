package ship

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/node/wire"
)

// placed are the places in members of those that were told their peers.
func (c *chain) placedNow() []int {
	var places []int
	for i, m := range c.members {
		if len(m.peers) > 0 {
			places = append(places, i)
		}
	}
	return places
}

func TestChainPlacesFewAtOnce(t *testing.T) {
	c := &chain{atOnce: 2, over: make(chan struct{}), working: 5}
	for range 5 {
		c.members = append(c.members, &member{peers: make(chan *wire.Peers, 1)})
	}
	defer c.stop()
	expect := func(what string, want ...int) {
		t.Helper()
		if diff := cmp.Diff(want, c.placedNow()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	for i, missing := range []int64{30, 10, 0, 20, 40} {
		expect("before all are ready", map[bool][]int{true: {2}}[i > 2]...)
		c.ready(c.members[i], &wire.State{Missing: missing})
	}
	expect("those that lack the least, and what lacks nothing", 1, 2, 3)
	c.done(c.members[2], true)
	expect("one that received nothing is done", 1, 2, 3)
	c.done(c.members[3], true)
	expect("one is done", 0, 1, 2, 3)
	c.done(c.members[3], false)
	expect("one that was done failed afterwards", 0, 1, 2, 3)
	c.done(c.members[1], false)
	expect("one has failed", 0, 1, 2, 3, 4)
	c.done(c.members[0], true)
	c.done(c.members[4], true)
	select {
	case <-c.over:
	default:
		t.Error("it is not over")
	}
}
