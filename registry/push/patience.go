package push

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/liteboxd/boxlift/internal/progress"
)

// The patience of a client. Tests have less of it.
type patience struct {
	// tries bounds the attempts at one thing. Answers that say when to come back are not
	// counted: waits bounds them, in all.
	tries int
	waits time.Duration
	// pause is the first one between attempts; later ones are up to 30 seconds.
	pause time.Duration
	// answer is how long an answer to a small request may take, stored how long one to
	// a blob or manifest that has arrived may take: registries copy large blobs then.
	answer, stored time.Duration
	// stall is how long a blob that is being sent may stand still.
	stall time.Duration
}

func usualPatience() patience {
	return patience{
		tries: 8, waits: 20 * time.Minute, pause: 500 * time.Millisecond,
		answer: time.Minute, stored: 10 * time.Minute, stall: time.Minute,
	}
}

// maxWait is the longest that a registry may ask to wait at once.
const maxWait = 10 * time.Minute

// persistence says of the attempts at one thing whether there is another.
type persistence struct {
	client *client
	failed int
	waited time.Duration
}

func (c *client) persist() *persistence { return &persistence{client: c} }

// Retry is for requests that can be sent again as they are. It returns the pause before the
// next attempt, and less than 0 where there is none.
func (p *persistence) Retry(_ int, _ *http.Response, err error) (time.Duration, error) {
	if e, ok := asError(err); ok && !e.streamed {
		return p.pause(e), nil
	}
	return -1, nil
}

// pause returns the one after an error, or less than 0 where it is for good, or patience ends.
func (p *persistence) pause(e *Error) time.Duration {
	if !e.temporary {
		return -1
	}
	growing := retry.ExponentialBackoff(p.client.patient.pause, 2, 0.5)
	pause := min(growing(p.failed, nil), 30*time.Second)
	switch {
	case e.retryAfter > maxWait, p.waited+e.retryAfter > p.client.patient.waits:
		return -1
	case e.retryAfter > 0:
		p.waited += e.retryAfter
		pause = e.retryAfter
		// Whoever else asks would be refused as well.
		p.client.gate.close(pause)
	default:
		if p.failed++; p.failed >= p.client.patient.tries {
			return -1
		}
	}
	p.client.report.Message(fmt.Sprintf("%v; trying again in %s", e, progress.Duration(pause)))
	return pause
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// gate holds requests back until the time that the registry has named.
type gate struct {
	mu    sync.Mutex
	until time.Time
}

func (g *gate) close(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until := time.Now().Add(d); until.After(g.until) {
		g.until = until
	}
}

func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	left := time.Until(g.until)
	g.mu.Unlock()
	if left <= 0 {
		return nil
	}
	// Not all at the same moment.
	return sleep(ctx, left+rand.N(left/4+time.Millisecond)) //nolint:gosec // nothing is to be kept secret
}
