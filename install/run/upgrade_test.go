package run

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/site"
)

func TestBatchError(t *testing.T) {
	broken := errors.New("10.0.0.12: it does not start")
	err := error(&BatchError{HostsError: &HostsError{Failed: []error{broken}, Total: 4}, Untouched: []string{"10.0.0.13", "10.0.0.14"}})
	const want = `1 of 4 hosts failed
10.0.0.12: it does not start
not touched because of that: 10.0.0.13, 10.0.0.14`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !errors.Is(err, site.ErrHosts) || !errors.Is(err, broken) {
		t.Errorf("%v wraps neither", err)
	}
}
