package kube

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// PollInterval is the pause between two looks at something that is waited for.
const PollInterval = time.Second

// Poll looks until look returns true, with a pause before each look but the first, and reports whether it did: false
// means that ctx has ended. It looks at least once.
func Poll(ctx context.Context, pause time.Duration, look func() bool) bool {
	for !look() {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
	return true
}

// OnChange drops reports that say the same as the one before. report may be nil.
func OnChange(report func(string)) func(string) {
	last := ""
	return func(text string) {
		if report != nil && text != last {
			report(text)
		}
		last = text
	}
}

// Since is the time since t, in whole seconds, as messages have it.
func Since(t time.Time) time.Duration { return time.Since(t).Round(time.Second) }

// late is a wait that has ended. That a deadline has passed goes without saying.
type late struct {
	text  string
	cause error
}

func (l *late) Error() string { return l.text }
func (l *late) Unwrap() error { return l.cause }

// TimeUp says what was waited for when ctx ended; another reason than a deadline is said. The error wraps ctx's cause.
func TimeUp(ctx context.Context, text string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &late{text, context.Cause(ctx)}
	}
	return fmt.Errorf("%w: %s", context.Cause(ctx), text)
}
