package parallel

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
)

func TestForEach(t *testing.T) {
	var calls, now, most atomic.Int64
	err := ForEach(t.Context(), 3, 50, func(_ context.Context, i int) error {
		calls.Add(1)
		for n := now.Add(1); n > most.Load(); {
			most.Store(n)
		}
		defer now.Add(-1)
		if i%20 == 7 {
			return fmt.Errorf("work %d failed", i)
		}
		return nil
	})
	if calls.Load() != 50 || most.Load() > 3 {
		t.Errorf("%d calls, %d at a time, expected 50 and at most 3", calls.Load(), most.Load())
	}
	if want := "work 7 failed\nwork 27 failed\nwork 47 failed"; err == nil || err.Error() != want {
		t.Errorf("the error is %v, expected %s", err, want)
	}
}

func TestForEachStops(t *testing.T) {
	calls := 0
	full := fmt.Errorf("the disk is full: %w", ErrStop)
	err := ForEach(t.Context(), 1, 50, func(context.Context, int) error {
		calls++
		return full
	})
	if !errors.Is(err, full) || calls != 1 {
		t.Errorf("%d calls and the error %v, expected one call and its error", calls, err)
	}
}

func TestForEachEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	err := ForEach(ctx, 1, 50, func(_ context.Context, i int) error {
		if i == 3 {
			cancel(interrupted)
		}
		return errors.New("cut short")
	})
	if err != interrupted { //nolint:errorlint // nothing is to be added to it
		t.Errorf("the error is %v, expected the cause alone", err)
	}
}
