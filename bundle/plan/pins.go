package plan

import (
	"fmt"
	"strings"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
)

// UnpinnedError lists the entries of a lock that cannot be built because nothing says
// which bytes they stand for.
type UnpinnedError struct {
	Name    string
	Missing []lock.Missing
}

func (e *UnpinnedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d pins are missing:", e.Name, len(e.Missing))
	for _, m := range e.Missing {
		fmt.Fprintf(&b, "\n  %s:%d: %s: no %s", e.Name, m.Line, m.Entry, m.What)
	}
	return b.String()
}

// Class makes a lock without pins incomplete input.
func (e *UnpinnedError) Class() fault.Class { return fault.Input }

// Hint says how to fill the pins.
func (e *UnpinnedError) Hint() string {
	return fmt.Sprintf("run `boxlift bundle lock -f %s` on a host with internet access to fill them in, and review "+
		"the change", e.Name)
}

// CheckPins returns an [*UnpinnedError] unless every entry of the lock is pinned. It needs
// no network.
func CheckPins(name string, l *lock.Lock) error {
	if missing := l.Unpinned(); len(missing) > 0 {
		return &UnpinnedError{Name: name, Missing: missing}
	}
	return nil
}
