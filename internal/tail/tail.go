// Package tail keeps the end of what is written, in bounded memory.
package tail

import "sync"

// Tail is a writer that keeps the last bytes. It may be used by one writer and readers at the same time.
type Tail struct {
	mu   sync.Mutex
	most int
	kept []byte
	lost bool
}

// New returns a Tail that keeps the last most bytes.
func New(most int) *Tail { return &Tail{most: most} }

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	// Cutting only at twice the size keeps the copying linear in what is written.
	if len(t.kept) > 2*t.most {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-t.most:]...)
		t.lost = true
	}
	return len(p), nil
}

// Bytes returns a copy of what is kept, and reports whether anything was dropped.
func (t *Tail) Bytes() (kept []byte, dropped bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	over := max(0, len(t.kept)-t.most)
	return append([]byte(nil), t.kept[over:]...), t.lost || over > 0
}
