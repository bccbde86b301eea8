package download

import "github.com/liteboxd/boxlift/internal/progress"

// Meter counts the bytes of one download towards its entry and the whole.
type Meter struct {
	tasks []progress.Task
	count int64
}

// NewMeter counts towards tasks.
func NewMeter(tasks ...progress.Task) *Meter { return &Meter{tasks: tasks} }

// Add counts bytes that have come.
func (m *Meter) Add(n int64) {
	m.count += n
	for _, t := range m.tasks {
		t.Add(n)
	}
}

// Skip counts bytes that need no download.
func (m *Meter) Skip(n int64) {
	m.count += n
	for _, t := range m.tasks {
		t.Skip(n)
	}
}

// Restart takes back all that was counted, when a download begins anew.
func (m *Meter) Restart() { m.Add(-m.count) }
