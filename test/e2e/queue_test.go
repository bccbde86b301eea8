package e2e

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// clustersEnv is how many tests have hosts at a time; without it, two.
const clustersEnv = "BOXLIFT_CLUSTERS"

// queue lets tests in: those that want most room, which nobody has to leave for them then, and of others those that
// take longest, as what begins last decides when all have ended. go test begins in no order.
type queue struct {
	mu      sync.Mutex
	room    int
	waiting []*ticket
}

type ticket struct {
	takes time.Duration
	room  int
	turn  chan struct{}
}

// draw makes a ticket for a test that takes about so long, and the room of so many.
func (q *queue) draw(takes time.Duration, room int) *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := &ticket{takes: takes, room: room, turn: make(chan struct{})}
	q.waiting = append(q.waiting, t)
	slices.SortStableFunc(q.waiting, func(a, b *ticket) int {
		return cmp.Or(cmp.Compare(b.room, a.room), cmp.Compare(b.takes, a.takes))
	})
	q.admit()
	return t
}

// widen makes room for more.
func (q *queue) widen(room int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.room += room
	q.admit()
}

// admit keeps to the order: nobody goes past a test that waits for more room.
func (q *queue) admit() {
	for len(q.waiting) > 0 && q.room >= q.waiting[0].room {
		q.room -= q.waiting[0].room
		close(q.waiting[0].turn)
		q.waiting = q.waiting[1:]
	}
}

// clusters is the queue of all tests that have hosts.
var clusters queue

// clustersAtATime is how much room it has, once all tests have drawn their tickets.
var clustersAtATime int

// readClusters says how many tests have hosts at a time.
func readClusters() (int, error) {
	text := os.Getenv(clustersEnv)
	if text == "" {
		return 2, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s=%q: want a number from 1 on", clustersEnv, text)
	}
	return n, nil
}

// parallel lets a test run beside others; takes is about how long it does on two cores. All
// tests have drawn their tickets before go test lets the first of them go on.
func parallel(t *testing.T, takes time.Duration) {
	t.Helper()
	parallelIn(t, takes, 1)
}

// alone is the room of a test that runs beside no other: in which no request may fail while an API
// server is started again, which must not take longer than others wait for its answers.
const alone = math.MaxInt

// parallelIn does so for a test that takes the room of several.
func parallelIn(t *testing.T, takes time.Duration, room int) {
	t.Helper()
	room = min(room, clustersAtATime)
	mine := clusters.draw(takes, room)
	t.Parallel()
	opened.Do(func() { clusters.widen(clustersAtATime) })
	select {
	case <-mine.turn:
		t.Cleanup(func() { clusters.widen(room) })
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

var opened sync.Once

func TestQueue(t *testing.T) {
	var q queue
	var order []*ticket
	short, long, longest := q.draw(time.Second, 1), q.draw(time.Minute, 2), q.draw(time.Hour, 1)
	in := func() int {
		for _, one := range []*ticket{short, long, longest} {
			select {
			case <-one.turn:
				if !slices.Contains(order, one) {
					order = append(order, one)
				}
			default:
			}
		}
		return len(order)
	}
	for n, want := range []int{0, 1, 2, 3, 3} {
		q.widen(1)
		if got := in(); got != want {
			t.Fatalf("with room for %d, %d are let in", n+1, got)
		}
	}
	if !slices.Equal(order, []*ticket{long, longest, short}) {
		t.Error("not the one that wants most room first, and then the longest")
	}
	select {
	case <-q.draw(0, 1).turn: // into the room that is left
	default:
		t.Error("there is room, and nobody is let in")
	}
}
