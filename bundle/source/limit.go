package source

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/internal/httpanswer"
)

// maxPause is the longest that a server is waited for. Whoever asks for more is over a
// limit that counts hours.
const maxPause = 10 * time.Minute

// considerate keeps all requests from a server that has asked for a pause, not only the
// one that it refused: those of other downloads, and those for tokens.
type considerate struct {
	next http.RoundTripper

	mu    sync.Mutex
	until map[string]time.Time // by host
}

func (c *considerate) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := c.wait(r.Context(), r.URL.Host); err != nil {
		return nil, err
	}
	response, err := c.next.RoundTrip(r)
	if err == nil && (response.StatusCode == http.StatusTooManyRequests ||
		response.StatusCode == http.StatusServiceUnavailable) {
		c.hold(r.URL.Host, httpanswer.RetryAfter(response.Header.Get("Retry-After"), time.Now()))
	}
	return response, err
}

func (c *considerate) hold(host string, pause time.Duration) {
	if pause <= 0 || pause > maxPause {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if until := time.Now().Add(pause); until.After(c.until[host]) {
		c.until[host] = until
	}
}

func (c *considerate) wait(ctx context.Context, host string) error {
	c.mu.Lock()
	pause := time.Until(c.until[host])
	c.mu.Unlock()
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
