package httpanswer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Bounded is a transport whose answers end, whatever their servers do: a server may stop in the
// middle of any body, also in those that libraries read by themselves (of errors, redirects,
// logins), or send one without end. Until its headers have come, an answer is for Next to bound.
type Bounded struct {
	Next http.RoundTripper
	// Idle is how long a body may stand still while it is read.
	Idle time.Duration
	// Whole is how long a body may take in all, and Size how many bytes it may have.
	// [Streamed] lifts both.
	Whole time.Duration
	Size  int64
}

// RoundTrip sends a request. Reading a body that comes to a bound fails with an error that says
// which one, and its connection is given up.
func (b *Bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, end := context.WithCancelCause(r.Context())
	response, err := b.Next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end(err)
		return nil, err
	}
	body := &boundedBody{
		from: response.Body, ctx: ctx, end: end, idle: b.Idle, size: b.Size,
		still: time.AfterFunc(b.Idle, func() { end(fmt.Errorf("nothing arrived for %v", b.Idle)) }),
		whole: time.AfterFunc(b.Whole, func() { end(fmt.Errorf("it did not end within %v", b.Whole)) }),
	}
	body.still.Stop() // it runs while somebody reads
	response.Body, response.Request = body, r
	return response, nil
}

// Streamed lets the body of an answer be as long, and take as long, as it needs: it is not to be
// kept in memory, and somebody looks after its size. It may still not stand still. It is called
// before anything is read, for answers of a [Bounded]; others stay as they are.
func Streamed(response *http.Response) {
	if body, ok := response.Body.(*boundedBody); ok {
		body.whole.Stop()
		body.streamed.Store(true)
	}
}

type boundedBody struct {
	from         io.ReadCloser
	ctx          context.Context
	end          context.CancelCauseFunc
	idle         time.Duration
	size         int64 // what is left of it
	still, whole *time.Timer
	streamed     atomic.Bool
}

// Read fails with the bound that was come to, or with what ended the request's context.
func (b *boundedBody) Read(p []byte) (int, error) {
	if !b.streamed.Load() && int64(len(p)) > b.size+1 {
		p = p[:b.size+1] // one more tells that there are more
	}
	b.still.Reset(b.idle)
	n, err := b.from.Read(p)
	b.still.Stop()
	if b.size -= int64(n); b.size < 0 && !b.streamed.Load() {
		b.size, n = 0, n-1
		b.end(errTooLarge)
		return n, errTooLarge
	}
	switch {
	case err == nil:
	case b.ctx.Err() != nil:
		// Even if it is io.EOF: a server that notes that its client goes may end in good form.
		err = context.Cause(b.ctx)
	default:
		b.whole.Stop()
	}
	return n, err
}

// Close also ends what is still on its way.
func (b *boundedBody) Close() error {
	b.still.Stop()
	b.whole.Stop()
	b.end(context.Canceled)
	return b.from.Close()
}

var errTooLarge = errors.New("it is larger than any answer of its kind")
