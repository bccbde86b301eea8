package seed

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
)

// waiting is a process that ends with err, at once or when its context does.
type waiting struct {
	ctx   context.Context //nolint:containedctx // what a process is started with
	hangs bool
	err   error
}

func (w waiting) Wait() error {
	if w.hangs {
		<-w.ctx.Done()
		return context.Cause(w.ctx)
	}
	return w.err
}

func TestWaitForEnd(t *testing.T) {
	stalled := errors.Join(ship.ErrStalled)
	exit := errors.New("exit status 127")
	tests := []struct {
		name  string
		hangs bool
		err   error // the conversation's
		limit time.Duration
		end   error // the process'
		want  error
		text  string
	}{
		{name: "ends well", limit: time.Hour},
		{name: "fails", limit: time.Hour, end: exit, want: exit},
		{name: "a failure that was said", err: &wire.Failure{Reason: wire.ReasonIO}, limit: time.Hour, end: exit, want: exit},
		{name: "stands still", hangs: true, err: stalled, limit: time.Hour, want: ship.ErrStalled},
		{name: "says that it is done, and does not end", hangs: true, limit: time.Millisecond,
			want: ship.ErrStalled, text: "has not ended within 1ms"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			err := waitForEnd(waiting{ctx, test.hangs, test.end}, test.err, test.limit, cancel)
			if !errors.Is(err, test.want) || test.text != "" && !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, want %v with %q", err, test.want, test.text)
			}
			if ctx.Err() == nil {
				t.Error("its context goes on")
			}
		})
	}
}
