// Package parallel runs work that is numbered, so many at a time.
package parallel

import (
	"context"
	"errors"
	"sync"

	"github.com/liteboxd/boxlift/internal/fault"
)

// ErrStop is what an error is, in the sense of [errors.Is], after which nothing else can
// succeed.
var ErrStop = fault.NewKind(fault.Failure, "nothing else can succeed")

// ForEach calls do for 0 to n-1, at most limit at a time, and joins their errors. An error
// that is [ErrStop] keeps further calls from starting, ends the context of the others, and is
// the only one that is returned. When ctx ends, its cause is.
func ForEach(ctx context.Context, limit, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wait sync.WaitGroup
		mu   sync.Mutex
		errs = make([]error, n)
		next int
	)
	for range min(limit, n) {
		wait.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n || ctx.Err() != nil {
					return
				}
				if errs[i] = do(ctx, i); errors.Is(errs[i], ErrStop) {
					cancel(errs[i])
				}
			}
		})
	}
	wait.Wait()
	if cause := context.Cause(ctx); cause != nil {
		// What was cut short because of the cause adds nothing to it.
		return cause
	}
	return errors.Join(errs...)
}
