package bulktls

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestAdmission plays who comes when. A connection is called like its number.
func TestAdmission(t *testing.T) {
	type come struct {
		source string
		at     int  // seconds
		known  bool // it is, right after it came
	}
	a, b := "10.0.0.1", "10.0.0.2"
	tests := []struct {
		name           string
		max, perSource int
		come           []come
		// closed are those that had to go, in order; refused those that were not let in.
		closed, refused []int
	}{
		{name: "there is room", max: 8, perSource: 2, come: []come{{source: a}, {source: a}, {source: b}, {source: b}}},
		{name: "too many from one", max: 8, perSource: 2,
			come: []come{{source: b}, {source: a}, {source: a}, {source: a}, {source: a}}, closed: []int{1, 2}},
		{name: "those that are known do not count", max: 8, perSource: 1,
			come: []come{{source: a, known: true}, {source: a, known: true}, {source: a}}},
		{name: "full of strangers", max: 4, come: []come{{source: a}, {source: a}, {source: a}, {source: a}, {source: b}},
			closed: []int{0}},
		{name: "full of strangers and one that is known", max: 2,
			come: []come{{source: a, known: true}, {source: a}, {source: b}, {source: b}}, closed: []int{1, 2}},
		{name: "full of those that are known", max: 2,
			come: []come{{source: a, known: true}, {source: a, known: true}, {source: b}}, refused: []int{2}},
		{name: "crowded", max: 4,
			come: []come{{source: a}, {source: a, at: 1}, {source: a, at: 2}, {source: b, at: 2}}, closed: []int{0}},
		{name: "crowded again and again", max: 4, come: []come{
			{source: a}, {source: a}, {source: a}, {source: b, at: 1}, {source: b, at: 3}, {source: b, at: 4},
		}, closed: []int{0, 1, 2}},
		{name: "not crowded", max: 8,
			come: []come{{source: a}, {source: a, at: 1}, {source: a, at: 2}, {source: b, at: 300}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			admission := newAdmission(test.max, test.perSource)
			var closed, refused []int
			guests := make([]*guest, len(test.come))
			begin := time.Now()
			for i, c := range test.come {
				at := begin.Add(time.Duration(c.at) * time.Second)
				guests[i] = admission.enter(netip.MustParseAddr(c.source), at, func() {
					closed = append(closed, i)
					admission.leave(guests[i]) // as a closed connection does
				})
				if guests[i] == nil {
					refused = append(refused, i)
				} else if c.known {
					admission.know(guests[i])
				}
			}
			if diff := cmp.Diff(test.closed, closed); diff != "" {
				t.Errorf("closed: %s", diff)
			}
			if diff := cmp.Diff(test.refused, refused); diff != "" {
				t.Errorf("refused: %s", diff)
			}
			for _, g := range guests {
				if g != nil {
					admission.leave(g)
					admission.leave(g)
				}
			}
			if admission.count != 0 || admission.strangers.Len() != 0 || len(admission.sources) != 0 {
				t.Errorf("somebody is left: %d, %d, %v", admission.count, admission.strangers.Len(), admission.sources)
			}
		})
	}
}
