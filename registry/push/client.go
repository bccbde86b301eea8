package push

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

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
	return patience{tries: 8, waits: 20 * time.Minute, pause: 500 * time.Millisecond, answer: time.Minute, stored: 10 * time.Minute, stall: time.Minute}
}

const (
	// maxWait is the longest that a registry may ask to wait at once.
	maxWait = 10 * time.Minute
	// maxAnswer bounds what is read of an answer's body, in bytes.
	maxAnswer = 64 << 10
	// maxText bounds what errors repeat of it, in bytes.
	maxText = 500
)

// client sends requests to one registry.
type client struct {
	host    string // host[:port], as the user wrote it
	base    *url.URL
	http    *http.Client
	auth    *authorizer
	agent   string
	log     *slog.Logger
	report  progress.Reporter
	patient patience
	gate    gate
}

var errRedirect = errors.New("it redirects")

var addressPattern = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// AddressError says that an address is not host[:port].
type AddressError struct{}

// Error does not repeat the address: there may be a password in it.
func (*AddressError) Error() string {
	return "registry address: expected HOST or HOST:PORT such as harbor.lan or 192.0.2.10:5000, without a scheme, a path or credentials"
}

func newClient(o Options, action string) (*client, error) {
	if !addressPattern.MatchString(o.Address) {
		return nil, &AddressError{}
	}
	base := &url.URL{Scheme: "https", Host: o.Address}
	if o.PlainHTTP {
		base.Scheme = "http"
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.InsecureSkipTLSVerify} //nolint:gosec // whoever sets it was told by its name
	if len(o.CA) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			return nil, fmt.Errorf("read the system's certificate authorities: %w", err)
		}
		if !pool.AppendCertsFromPEM(o.CA) {
			return nil, &AuthorityError{}
		}
		config.RootCAs = pool
	}
	c := &client{
		host: o.Address, base: base, agent: o.UserAgent, log: o.Log, report: o.Reporter, patient: usualPatience(),
		http: &http.Client{
			Transport: &http.Transport{
				Proxy:                 http.ProxyFromEnvironment,
				DialContext:           dial,
				TLSClientConfig:       config,
				TLSHandshakeTimeout:   30 * time.Second,
				ExpectContinueTimeout: 2 * time.Second,
				IdleConnTimeout:       90 * time.Second,
				MaxIdleConnsPerHost:   o.Jobs,
				DisableCompression:    true,
				WriteBufferSize:       64 << 10,
				// HTTP/2 would put all blobs on one connection.
				TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
			},
			CheckRedirect: func(r *http.Request, via []*http.Request) error {
				switch {
				case len(via) >= 5:
					return fmt.Errorf("%w again and again", errRedirect)
				case r.URL.Scheme != "https" && base.Scheme == "https":
					return fmt.Errorf("%w from https to %s", errRedirect, r.URL.Scheme)
				}
				return nil
			},
		},
	}
	var err error
	c.auth, err = newAuthorizer(c, o, action)
	return c, err
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return bulkConn{conn}, nil
}

// bulkConn takes much at a time: net/http's own copying makes eight times as many system
// calls. With TLS it only passes on what TLS writes.
type bulkConn struct{ net.Conn }

const bulkSize = 256 << 10 // bytes

var bulkBuffers = sync.Pool{New: func() any { return new([bulkSize]byte) }}

// ReadFrom sends all that r has.
func (c bulkConn) ReadFrom(r io.Reader) (int64, error) {
	buffer, _ := bulkBuffers.Get().(*[bulkSize]byte)
	defer bulkBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, struct{ io.Reader }{r}, buffer[:])
}

// AuthorityError says that there is no certificate where one was expected.
type AuthorityError struct{}

func (*AuthorityError) Error() string {
	return "certificate authority: found no certificate, expected one or more in PEM"
}

func (c *client) close() { c.http.CloseIdleConnections() }

// request is one request to the registry.
type request struct {
	method string
	// path is below /v2/; address is where the registry wants it to go instead.
	path    string
	address *url.URL
	query   url.Values
	header  http.Header
	body    io.Reader
	size    int64
	// repository is what the request is about, and from what it reads besides; both are
	// what a token has to be good for.
	repository, from string
	// accept are the statuses that are no error.
	accept []int
	// limit is how long it may take in all, 0 meaning the usual time.
	limit time.Duration
	// what is for errors: "upload blob sha256:...".
	what string
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	url    *url.URL
}

// send repeats a request until it succeeds, fails for good, or patience ends. The request
// has no body, or one that is there whole.
func (c *client) send(ctx context.Context, r request, body []byte) (*answer, error) {
	var result *answer
	err := c.retry(ctx, func(ctx context.Context, _ int) (err error) {
		if body != nil {
			r.body, r.size = bytes.NewReader(body), int64(len(body))
		}
		result, err = c.once(ctx, r)
		return err
	})
	return result, err
}

// once sends a request, and sends it again when other credentials are asked for than
// were sent: a token may have run out.
func (c *client) once(ctx context.Context, r request) (*answer, error) {
	limit := r.limit
	if limit == 0 {
		limit = c.patient.answer
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer came within %v", limit))
	defer cancel()
	credentials, err := c.auth.credentials(ctx, r.repository, r.from)
	if err != nil {
		return nil, err
	}
	result, err := c.exchange(ctx, r, credentials)
	var refused *Error
	if !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
		return result, err
	}
	again, authErr := c.auth.challenged(ctx, refused.challenges, credentials, r.repository, r.from)
	seeker, rewinds := r.body.(io.Seeker)
	switch {
	case authErr != nil:
		return nil, authErr
	case again == nil:
		return nil, err
	case r.body == nil:
	case rewinds:
		if _, err := seeker.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
	default:
		// The body is gone, but the next attempt has the new credentials.
		refused.temporary = true
		return nil, err
	}
	return c.exchange(ctx, r, again)
}

// exchange sends a request once.
func (c *client) exchange(ctx context.Context, r request, credentials *credentials) (*answer, error) {
	address, own := c.address(r)
	body := r.body
	if body != nil && r.size == 0 {
		body = http.NoBody // otherwise the length would count as unknown
	}
	message, err := http.NewRequestWithContext(ctx, r.method, address.String(), body)
	if err != nil {
		return nil, c.failure(r, err)
	}
	message.ContentLength = r.size
	maps.Copy(message.Header, r.header)
	message.Header.Set("User-Agent", c.agent)
	if own && credentials.header != "" {
		message.Header.Set("Authorization", credentials.header)
	}
	begin := time.Now()
	response, err := c.http.Do(message)
	if err != nil {
		err = c.failure(r, noAnswer(ctx, err))
		c.log.DebugContext(ctx, "request", "method", r.method, "url", withoutQuery(address), "after", time.Since(begin), "error", err)
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // what matters of it is read
	c.log.DebugContext(ctx, "request", "method", r.method, "url", withoutQuery(address), "after", time.Since(begin), "status", response.StatusCode)
	// Reading it to the end leaves the connection to the next request.
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	for _, status := range r.accept {
		if response.StatusCode == status {
			return &answer{status: status, header: response.Header, url: response.Request.URL}, nil
		}
	}
	if err != nil && len(content) == 0 {
		return nil, c.failure(r, noAnswer(ctx, err))
	}
	return nil, c.refusal(r, response, content)
}

// address returns where a request goes, and whether that is the registry.
func (c *client) address(r request) (address *url.URL, own bool) {
	address = c.base.JoinPath("/v2/" + r.path)
	if r.address != nil {
		address = new(*r.address)
	}
	if r.query != nil {
		query := address.Query()
		maps.Copy(query, r.query)
		address.RawQuery = query.Encode()
	}
	return address, address.Scheme == c.base.Scheme && address.Host == c.base.Host
}

// location returns where an upload goes on, as the answer to its start says.
func (c *client) location(a *answer) (*url.URL, error) {
	header := a.header.Get("Location")
	named, err := url.Parse(header)
	if header == "" || err != nil {
		return nil, fmt.Errorf("the registry does not say where to upload to: its Location is %q", header)
	}
	named = a.url.ResolveReference(named)
	// A registry behind a proxy that ends TLS may not know how it is reached.
	if strings.EqualFold(named.Hostname(), c.base.Hostname()) {
		named.Scheme, named.Host = c.base.Scheme, c.base.Host
	}
	if named.Scheme != c.base.Scheme && named.Scheme != "https" {
		return nil, fmt.Errorf("the registry wants the upload at %s, without TLS", withoutQuery(named))
	}
	return named, nil
}

func withoutQuery(u *url.URL) string { return u.Scheme + "://" + u.Host + u.Path }

// retry repeats an attempt while its error is temporary. The attempt gets its number,
// counted from 0.
func (c *client) retry(ctx context.Context, attempt func(context.Context, int) error) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = c.patient.pause
	pauses.Multiplier = 2
	pauses.MaxInterval = max(30*time.Second, c.patient.pause)
	failed, waited := 0, time.Duration(0)
	for number := 0; ; number++ {
		if err := c.gate.pass(ctx); err != nil {
			return err
		}
		err := attempt(ctx, number)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var e *Error
		if !errors.As(err, &e) || !e.temporary {
			return err
		}
		pause := pauses.NextBackOff()
		switch {
		case e.retryAfter > maxWait, waited+e.retryAfter > c.patient.waits:
			return err
		case e.retryAfter > 0:
			waited += e.retryAfter
			pause = e.retryAfter
			// Whoever else asks would be refused as well.
			c.gate.close(pause)
		default:
			if failed++; failed >= c.patient.tries {
				return err
			}
		}
		c.report.Message(fmt.Sprintf("%v; trying again in %s", err, progress.Duration(pause)))
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
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
