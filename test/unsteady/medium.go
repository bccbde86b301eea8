// Package unsteady is a medium that does not answer every read of the same bytes alike, as a
// stick that was made for it, a file server, or whoever may write to a file while it is used.
package unsteady

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// Medium holds content and lies about one range of it. It may be read by several goroutines
// at once.
type Medium struct {
	content []byte
	from    int64
	lies    func(nth int) bool

	mu    sync.Mutex
	reads []int // how often each byte of the range was read
	told  int
}

// New makes a medium that flips all bits of a byte of the range when it is read for the nth
// time, counted from 1, and lies says so.
func New(content []byte, from, to int64, lies func(nth int) bool) *Medium {
	return &Medium{content: content, from: from, lies: lies, reads: make([]int, to-from)}
}

// ReadAt is that of [io.ReaderAt].
func (m *Medium) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 || offset >= int64(len(m.content)) {
		return 0, io.EOF
	}
	n := copy(p, m.content[offset:])
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := max(offset, m.from); i < min(offset+int64(n), m.from+int64(len(m.reads))); i++ {
		m.reads[i-m.from]++
		if m.lies(m.reads[i-m.from]) {
			p[i-offset] ^= 0xff
			m.told++
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Told returns how many bytes were lies.
func (m *Medium) Told() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told
}

// most returns how often the byte of a range that was read most often was read.
func (m *Medium) most(from, to int64) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Max(append(slices.Clone(m.reads[from-m.from:to-m.from]), 0))
}

// ways are the ways to lie to a use that reads a byte from its read number first to last.
func ways(first, last int) map[string]func(nth int) bool {
	all := map[string]func(int) bool{"every second read": func(nth int) bool { return nth%2 == 0 }}
	for from := first; from <= last; from++ {
		all[fmt.Sprintf("only read %d", from)] = func(nth int) bool { return nth == from }
		all[fmt.Sprintf("from read %d on", from)] = func(nth int) bool { return nth >= from }
	}
	return all
}

// Check has a bundle used that lies on a medium which lies about one member after another, at
// each of the reads that the use comes to. The bundle is verified before, as it is before an
// installation. The use must fail then, or return what it returns of an honest medium. Of
// the uses that meet a lie, at least one has to fail: otherwise nothing was tested.
func Check(t *testing.T, path string, use func(ctx context.Context, r *bundle.Reader) (string, error)) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := int64(len(content))
	verified := func(m *Medium) (*bundle.Reader, error) {
		r, err := bundle.NewReader(m, size, path)
		if err == nil {
			err = r.Verify(t.Context(), nil)
		}
		return r, err
	}
	never := func(int) bool { return false }
	tar, err := ocitar.NewReader(New(content, 0, 0, never), size)
	if err != nil {
		t.Fatal(err)
	}
	onlyVerified, honest := New(content, 0, size, never), New(content, 0, size, never)
	if _, err := verified(onlyVerified); err != nil {
		t.Fatal(err)
	}
	r, err := verified(honest)
	if err != nil {
		t.Fatal(err)
	}
	want, err := use(t.Context(), r)
	if err != nil || want == "" {
		t.Fatalf("an honest medium: %q, %v", want, err)
	}
	met, refused := 0, 0
	for _, e := range tar.Layout().Entries {
		end := e.Offset + e.Size
		before, after := onlyVerified.most(e.Offset, end), honest.most(e.Offset, end)
		if before == after {
			continue // the use does not read it
		}
		for way, lies := range ways(before+1, after) {
			m := New(content, e.Offset, end, lies)
			r, err := verified(m)
			if err != nil {
				continue // found out before the use
			}
			before := m.Told()
			got, err := use(t.Context(), r)
			if m.Told() > before {
				met++
				if err != nil {
					refused++
				}
			}
			if err == nil && got != want {
				t.Errorf("%s of %s lies: it was used", way, e.Name)
			}
		}
	}
	if refused == 0 {
		t.Errorf("%d uses met a lie, and none of them has failed", met)
	}
	t.Logf("%d uses met a lie, %d have failed", met, refused)
}
