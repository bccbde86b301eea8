package site

import (
	"sync"
	"time"
)

// meter measures how long boxlift itself is at work: the time in which at least one of
// its goroutines does something else than wait for what runs on the hosts.
type meter struct {
	mu    sync.Mutex
	busy  int
	since time.Time
	total time.Duration
}

// Enter says that a goroutine begins to work, leave that it ends.
func (m *meter) Enter() { m.add(1) }
func (m *meter) Leave() { m.add(-1) }

func (m *meter) add(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy == 0 {
		m.since = time.Now()
	}
	if m.busy += n; m.busy == 0 {
		m.total += time.Since(m.since)
	}
}

// Wait runs what only waits.
func (m *meter) Wait(f func() error) error {
	m.Leave()
	defer m.Enter()
	return f()
}

// Worked is the time so far.
func (m *meter) Worked() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy > 0 {
		return m.total + time.Since(m.since)
	}
	return m.total
}
