// Package source is where a bundle's bytes come from: HTTPS servers and OCI
// registries.
//
// A [Client] opens streams; it neither verifies nor stores what they carry. Whoever
// asked for a digest has to compare it: nothing that comes from here may be used
// before that. What the network does on the way (refused connections, rate limits,
// server errors) is retried here with growing pauses, as long as no byte has been
// handed out; a stream that breaks later is the caller's to open again.
//
// Requests go out over TLS only. They follow the usual proxy variables
// (HTTPS_PROXY, NO_PROXY) and trust the system's certificate authorities, which
// SSL_CERT_FILE and SSL_CERT_DIR override. Credentials for registries come from the
// user's docker configuration ($DOCKER_CONFIG/config.json and credential helpers).
package source

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	neturl "net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Error says that a server could not give what was asked for.
type Error struct {
	// URL is what was asked for, without any query.
	URL string
	// Status is the HTTP status of the last answer, or 0 when there was none.
	Status int
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("get %s: %v", e.URL, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Hint says what a user may do about the error.
func (e *Error) Hint() string {
	switch {
	case e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden:
		return "log in to that registry (docker login, crane auth login), or name a mirror with --mirror"
	case e.Status == http.StatusNotFound:
		return "check the address or the tag in the lock, and whether the entry was withdrawn upstream"
	case e.Status == http.StatusTooManyRequests:
		return "the server limits requests: log in there, use a mirror with --mirror, or run the command again later; what is done is kept"
	}
	return "check the connection and proxy settings, then run the command again; what is done is kept"
}

// Mirror sends requests for one host elsewhere.
type Mirror struct {
	// Host is the name in the lock, with the port if it has one: docker.io.
	Host string
	// Endpoint is where requests go instead: host[:port], and optionally a path that
	// comes before the original path or repository.
	Endpoint string
}

// mirrorPattern has no room for a scheme, a query or credentials: those come from the
// docker configuration, and a flag would show them to every user of the host.
var mirrorPattern = regexp.MustCompile(`^[\w.:\[\]-]+=[\w.:\[\]-]+(/[\w.~%-]+)*/?$`)

// ParseMirror reads HOST=ENDPOINT, for example docker.io=registry.lan/proxy.
func ParseMirror(s string) (Mirror, error) {
	if !mirrorPattern.MatchString(s) {
		// It is not repeated: there may be a password in it.
		return Mirror{}, errors.New("mirror: expected HOST=ENDPOINT such as docker.io=registry.lan/proxy, without a scheme and without credentials")
	}
	host, endpoint, _ := strings.Cut(s, "=")
	return Mirror{Host: host, Endpoint: strings.TrimSuffix(endpoint, "/")}, nil
}

// Options of a Client. The zero value is ready to use.
type Options struct {
	Mirrors []Mirror
	// Keychain holds the credentials for registries; nil means the user's docker
	// configuration.
	Keychain authn.Keychain
	// UserAgent is sent with every request; empty means "boxlift".
	UserAgent string
	// MaxTries bounds the attempts at one request; 0 means 8, which takes about a
	// minute with the pauses between them.
	MaxTries uint
	// IdleTimeout ends a stream on which no byte has arrived for so long; 0 means one
	// minute.
	IdleTimeout time.Duration
	// Log is told of every request, at level debug; nil discards it.
	Log *slog.Logger
	// Retrying is told of every failed attempt that will be repeated after the pause.
	Retrying func(err error, pause time.Duration)
}

// Client opens files and blobs. It may be used by several goroutines at once.
type Client struct {
	options Options
	mirrors map[string]string
	// plain carries every request; registries add their authentication on top of it.
	plain http.RoundTripper

	mu           sync.Mutex
	repositories map[string]*authentication
}

// authentication is negotiated once for each repository, by the first who needs it.
type authentication struct {
	mu     sync.Mutex
	client *http.Client
}

// New makes a Client.
func New(o Options) *Client {
	if o.Keychain == nil {
		o.Keychain = authn.DefaultKeychain
	}
	if o.UserAgent == "" {
		o.UserAgent = "boxlift"
	}
	if o.MaxTries == 0 {
		o.MaxTries = 8
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Retrying == nil {
		o.Retrying = func(error, time.Duration) {}
	}
	mirrors := make(map[string]string)
	for _, m := range o.Mirrors {
		mirrors[m.Host] = m.Endpoint
	}
	plain := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   30 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   16,
		// Bytes are pinned by digest: they must arrive as they are.
		DisableCompression: true,
		// HTTP/2 would put all blobs of a host on one connection, whose flow control is
		// slower on long lines than several connections are.
		ForceAttemptHTTP2: false,
		TLSNextProto:      map[string]func(string, *tls.Conn) http.RoundTripper{},
		ReadBufferSize:    64 << 10,
	}
	return &Client{
		options:      o,
		mirrors:      mirrors,
		plain:        transport.NewUserAgent(tlsOnly{plain}, o.UserAgent),
		repositories: make(map[string]*authentication),
	}
}

// tlsOnly refuses what would go over the line in the clear: redirects, token servers,
// and the second try that the registry library makes with addresses of private networks.
type tlsOnly struct{ next http.RoundTripper }

func (t tlsOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, fmt.Errorf("%w, not %s", errNotTLS, r.URL.Scheme)
	}
	return t.next.RoundTrip(r)
}

var errNotTLS = errors.New("only https is used")

// endpoint returns where requests for a host go.
func (c *Client) endpoint(host string) string {
	if e, ok := c.mirrors[host]; ok {
		return e
	}
	return host
}

// Stream is the body of an answer.
type Stream struct {
	// Size is the number of bytes that the server announced, or -1.
	Size int64

	mediaType string
	url       string
	body      io.ReadCloser
	idle      *time.Timer
	// limit is how long idle waits; cancel ends the request with the reason.
	limit  time.Duration
	cancel context.CancelCauseFunc
	ctx    context.Context
}

// Read fails with an [*Error] when the connection breaks or nothing arrives for too
// long.
func (s *Stream) Read(p []byte) (int, error) {
	s.idle.Reset(s.limit)
	n, err := s.body.Read(p)
	s.idle.Stop()
	if err != nil && err != io.EOF { //nolint:errorlint // readers return io.EOF itself
		if cause := context.Cause(s.ctx); cause != nil {
			err = cause
		}
		err = &Error{URL: withoutQuery(s.url), Status: http.StatusOK, Err: fmt.Errorf("the connection broke: %w", err)}
	}
	return n, err
}

// Close ends the download, wherever it is.
func (s *Stream) Close() error {
	s.idle.Stop()
	s.cancel(context.Canceled)
	return s.body.Close()
}

// Open starts the download of an https URL.
func (c *Client) Open(ctx context.Context, url string) (*Stream, error) {
	rest, ok := strings.CutPrefix(url, "https://")
	if !ok {
		return nil, fmt.Errorf("get %s: only https addresses are allowed", url)
	}
	host, path, _ := strings.Cut(rest, "/")
	return c.get(ctx, &http.Client{Transport: c.plain}, "https://"+c.endpoint(host)+"/"+path, nil)
}

// get sends a GET request until it succeeds, fails for good, or the tries are used up.
func (c *Client) get(ctx context.Context, client *http.Client, url string, header http.Header) (*Stream, error) {
	// The context has to outlive this call, because the body hangs on it.
	ctx, cancel := context.WithCancelCause(ctx)
	response, err := c.do(ctx, client, http.MethodGet, url, header) //nolint:bodyclose // Stream.Close does
	if err != nil {
		cancel(err)
		return nil, err
	}
	limit := c.options.IdleTimeout
	idle := time.AfterFunc(limit, func() { cancel(fmt.Errorf("nothing arrived for %v", limit)) })
	return &Stream{
		Size: response.ContentLength, mediaType: response.Header.Get("Content-Type"),
		url: url, body: response.Body, idle: idle, limit: limit, cancel: cancel, ctx: ctx,
	}, nil
}

func (c *Client) do(ctx context.Context, client *http.Client, method, url string, header http.Header) (*http.Response, error) {
	attempt := func() (*http.Response, error) {
		request, err := http.NewRequestWithContext(ctx, method, url, nil)
		if err != nil {
			return nil, backoff.Permanent(err)
		}
		for key, values := range header {
			request.Header[key] = values
		}
		begin := time.Now()
		response, err := client.Do(request)
		if err != nil {
			err = c.classify(ctx, url, err)
			c.options.Log.DebugContext(ctx, "request", "method", method, "url", withoutQuery(url), "after", time.Since(begin), "error", err)
			return nil, err
		}
		c.options.Log.DebugContext(ctx, "request", "method", method, "url", withoutQuery(url), "after", time.Since(begin), "status", response.StatusCode, "length", response.ContentLength)
		if response.StatusCode == http.StatusOK {
			return response, nil
		}
		defer response.Body.Close() //nolint:errcheck // only its beginning matters
		detail, _ := io.ReadAll(io.LimitReader(response.Body, 512))
		failed := &Error{URL: withoutQuery(url), Status: response.StatusCode, Err: fmt.Errorf("the server answered %s%s", response.Status, quoted(detail))}
		return nil, retryable(failed, response.StatusCode, response.Header.Get("Retry-After"))
	}
	return retry(ctx, c, attempt)
}

// classify decides whether a request that got no answer may be repeated.
func (c *Client) classify(ctx context.Context, url string, err error) error {
	if ctx.Err() != nil {
		return backoff.Permanent(context.Cause(ctx))
	}
	failed := &Error{URL: withoutQuery(url), Err: err}
	var repeated *neturl.Error
	if errors.As(err, &repeated) {
		// It says the address and the method once more.
		failed.Err = repeated.Err
	}
	var answered *transport.Error
	if errors.As(err, &answered) {
		failed.Status = answered.StatusCode
		return retryable(failed, answered.StatusCode, "")
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) || errors.Is(err, errNotTLS) {
		return backoff.Permanent(failed)
	}
	// A resolver that says that there is no such name will say so again.
	var lookup *net.DNSError
	if errors.As(err, &lookup) && lookup.IsNotFound {
		return backoff.Permanent(failed)
	}
	return failed
}

// retry repeats an attempt with growing pauses.
func retry[T any](ctx context.Context, c *Client, attempt backoff.Operation[T]) (T, error) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = 500 * time.Millisecond
	pauses.Multiplier = 2
	pauses.MaxInterval = 30 * time.Second
	result, err := backoff.Retry(ctx, attempt,
		backoff.WithBackOff(pauses),
		backoff.WithMaxTries(c.options.MaxTries),
		backoff.WithMaxElapsedTime(0),
		backoff.WithNotify(backoff.Notify(c.options.Retrying)),
	)
	var permanent *backoff.PermanentError
	if errors.As(err, &permanent) {
		err = permanent.Unwrap()
	}
	return result, err
}

// retryable marks an answer as final unless the server may think better of it.
func retryable(err error, status int, retryAfter string) error {
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		if seconds := retrySeconds(retryAfter, time.Now()); seconds > 0 && seconds <= 600 {
			return fmt.Errorf("%w; %w", err, backoff.RetryAfter(seconds))
		}
		return err
	case status >= 500 || status == http.StatusRequestTimeout:
		return err
	}
	return backoff.Permanent(err)
}

// retrySeconds reads a Retry-After header, which is a number of seconds or a date
// (RFC 9110, 10.2.3). It returns 0 for what is neither.
func retrySeconds(header string, now time.Time) int {
	if date, err := http.ParseTime(header); err == nil {
		return int(math.Ceil(date.Sub(now).Seconds()))
	}
	seconds, err := strconv.Atoi(header)
	if err != nil {
		return 0
	}
	return seconds
}

func withoutQuery(url string) string {
	address, _, _ := strings.Cut(url, "?")
	return address
}

// quoted makes the beginning of a server's answer fit for an error message.
func quoted(detail []byte) string {
	text := strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(detail), "?"))), " ")
	if text == "" {
		return ""
	}
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "..."
	}
	return ": " + text
}
