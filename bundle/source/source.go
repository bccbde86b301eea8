// Package source is where a bundle's bytes come from: HTTPS servers, OCI registries, and
// files on this host.
//
// A [Client] opens streams; it neither verifies nor stores what they carry. Whoever
// asked for a digest has to compare it: nothing that comes from here may be used
// before that. What the network does on the way (refused connections, rate limits,
// server errors) is retried here with growing pauses, and a [Stream] that breaks asks for
// the rest of what it carries. A host may have several mirrors, which are asked in turn.
//
// Requests go out over TLS only. They follow the usual proxy variables
// (HTTPS_PROXY, NO_PROXY) and trust the system's certificate authorities, which
// SSL_CERT_FILE and SSL_CERT_DIR override, unless they are told others. Credentials for registries come from the
// user's docker configuration ($DOCKER_CONFIG/config.json and credential helpers).
package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	neturl "net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/httpanswer"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// maxAnswer bounds what an answer that is no download of a [Stream] may bring, in bytes: twice
// the largest that is asked for whole, the index of a chart repository.
const maxAnswer = 32 << 20

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

// Class makes it the fault of a source.
func (e *Error) Class() fault.Class { return fault.Source }

// Hint says what a user may do about the error.
func (e *Error) Hint() string {
	switch {
	case errors.As(e.Err, new(x509.UnknownAuthorityError)):
		return "name the certificate of the server's own authority with --ca-file"
	case e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden:
		return "log in to that registry (docker login, crane auth login), or name a mirror with --mirror"
	case e.Status == http.StatusNotFound:
		return "check the address or the tag in the lock, and whether the entry was withdrawn upstream"
	case e.Status == http.StatusTooManyRequests:
		return "the server limits requests: log in there, use a mirror with --mirror, or run the command again " +
			"later; what is done is kept"
	}
	return "check the connection and proxy settings, then run the command again; what is done is kept"
}

// Mirror sends requests for one host elsewhere. Several for one host are asked in turn; the
// host itself is asked only if it is one of them.
type Mirror struct {
	// Host is the name in the lock, with the port if it has one: docker.io.
	Host string
	// Endpoint is where requests go instead: host[:port], and optionally a path that
	// comes before the original path or repository.
	Endpoint string
}

// mirrorPattern has no room for a scheme, a query or credentials: those come from the
// docker configuration, and a flag would show them to every user of the host.
var mirrorPattern = lazyregexp.New(`^[\w.:\[\]-]+=[\w.:\[\]-]+(/[\w.~%-]+)*/?$`)

// ParseMirror reads HOST=ENDPOINT, for example docker.io=registry.lan/proxy.
func ParseMirror(s string) (Mirror, error) {
	if !mirrorPattern.MatchString(s) {
		// It is not repeated: there may be a password in it.
		return Mirror{}, errors.New("mirror: expected HOST=ENDPOINT such as docker.io=registry.lan/proxy, without a " +
			"scheme and without credentials")
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
	// Authorities are the certificate authorities that are trusted; nil means the system's.
	Authorities *x509.CertPool
	// Folder is where the paths of file: addresses begin that are not absolute; empty
	// means the working directory.
	Folder string
	// PackFolder makes a tar of a small folder, the same one of the same files: that of a kustomize folder, which a
	// file: address may lead to. Nil: there are no such addresses.
	PackFolder func(fs.FS) ([]byte, error)
	// MaxTries bounds the attempts at one request; 0 means 8, which takes about a
	// minute with the pauses between them.
	MaxTries uint
	// Pause is the one between the first two attempts, which doubles from one to the next;
	// 0 means half a second.
	Pause time.Duration
	// HeaderTimeout ends a request that nothing has answered for so long; 0 means one minute.
	HeaderTimeout time.Duration
	// IdleTimeout ends an answer on which no byte has arrived for so long; 0 means one
	// minute.
	IdleTimeout time.Duration
	// AnswerTimeout ends an answer whose body takes longer than that, unless it is a download
	// that the caller reads as a [Stream]; 0 means five minutes.
	AnswerTimeout time.Duration
	// Log is told of every request, at level debug; nil discards it.
	Log *slog.Logger
	// Retrying is told of every failed attempt that will be repeated after the pause.
	Retrying func(err error, pause time.Duration)
}

// Client opens files and blobs. It may be used by several goroutines at once.
type Client struct {
	options Options
	mirrors map[string][]string
	// plain carries every request; registries add their authentication on top of it.
	plain http.RoundTripper

	mu           sync.Mutex
	repositories map[string]*authentication
	resting      map[string]bool // endpoints that failed last time
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
	if o.Pause == 0 {
		o.Pause = 500 * time.Millisecond
	}
	if o.HeaderTimeout == 0 {
		o.HeaderTimeout = time.Minute
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = time.Minute
	}
	if o.AnswerTimeout == 0 {
		o.AnswerTimeout = 5 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Retrying == nil {
		o.Retrying = func(error, time.Duration) {}
	}
	mirrors := make(map[string][]string)
	for _, m := range o.Mirrors {
		if !slices.Contains(mirrors[m.Host], m.Endpoint) {
			mirrors[m.Host] = append(mirrors[m.Host], m.Endpoint)
		}
	}
	plain := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Authorities},
		TLSHandshakeTimeout:   30 * time.Second,
		ResponseHeaderTimeout: o.HeaderTimeout,
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
	bounded := &httpanswer.Bounded{Next: plain, Idle: o.IdleTimeout, Whole: o.AnswerTimeout, Size: maxAnswer}
	polite := &considerate{next: bounded, until: make(map[string]time.Time)}
	return &Client{
		options:      o,
		mirrors:      mirrors,
		plain:        transport.NewUserAgent(tlsOnly{polite}, o.UserAgent),
		repositories: make(map[string]*authentication),
		resting:      make(map[string]bool),
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

// endpoints returns where requests for a host go, in the order in which they are asked:
// that of the mirrors, but those that failed last come last.
func (c *Client) endpoints(host string) []string {
	list := c.mirrors[host]
	if len(list) == 0 {
		return []string{host}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ordered := slices.Clone(list)
	slices.SortStableFunc(ordered, func(a, b string) int {
		switch {
		case c.resting[a] == c.resting[b]:
			return 0
		case c.resting[a]:
			return 1
		}
		return -1
	})
	return ordered
}

// rest reports whether an endpoint is asked after the others for now.
func (c *Client) rest(endpoint string, resting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resting[endpoint] = resting
}

// Open starts the download of an https URL, or opens what a file: URL leads to (see
// [OpenDisk]; a kustomize folder is read as the tar that [Options].PackFolder makes of it). Where the connection breaks,
// the stream goes on only when the server vouches by a strong ETag that it has the same bytes still; otherwise its error
// wraps [ErrAnew].
func (c *Client) Open(ctx context.Context, url string) (*Stream, error) {
	return c.openFile(ctx, url, &Stream{})
}

// OpenPinned opens like Open, from an offset on. The caller has to prove the whole content
// against a digest: its bytes may come from several answers and several mirrors.
func (c *Client) OpenPinned(ctx context.Context, url string, from int64) (*Stream, error) {
	return c.openFile(ctx, url, &Stream{next: from, pinned: true})
}

func (c *Client) openFile(ctx context.Context, url string, s *Stream) (*Stream, error) {
	if path, ok := strings.CutPrefix(url, "file:"); ok {
		return c.openDisk(path, s.next)
	}
	var err error
	if s.target, err = c.address(url); err != nil {
		return nil, fmt.Errorf("get %s: %w", withoutQuery(url), err)
	}
	return c.begin(ctx, s)
}

// address returns how to ask for a file.
func (c *Client) address(url string) (target, error) {
	rest, ok := strings.CutPrefix(url, "https://")
	if !ok {
		return target{}, errors.New("only https addresses are allowed")
	}
	host, path, _ := strings.Cut(rest, "/")
	return target{host: host, at: func(_ context.Context, endpoint string) (*http.Client, string, error) {
		return &http.Client{Transport: c.plain}, "https://" + endpoint + "/" + path, nil
	}}, nil
}

// target is something that several endpoints may have.
type target struct {
	// host is the one that the lock names.
	host string
	// at returns how to ask an endpoint for it.
	at func(ctx context.Context, endpoint string) (client *http.Client, url string, err error)
}

// request sends a request to the endpoints of a target, one after another, until one
// answers with success. When none does, it begins again after a pause, unless all have
// failed for good or the tries are used up.
func (c *Client) request(ctx context.Context, method string, t target,
	header func(endpoint string) http.Header) (response *http.Response, endpoint string, err error) {
	attempt := func() (*http.Response, error) {
		var failed failures
		for _, e := range c.endpoints(t.host) {
			response, err := c.requestOnce(ctx, method, t, e, header(e))
			if err == nil {
				endpoint = e
				c.rest(e, false)
				return response, nil
			}
			if ctx.Err() != nil {
				return nil, backoff.Permanent(context.Cause(ctx))
			}
			c.rest(e, !isFinal(err))
			failed = append(failed, err)
		}
		return nil, failed.err(t.host)
	}
	response, err = retry(ctx, c, attempt)
	return response, endpoint, err
}

// requestOnce sends one request to one endpoint.
func (c *Client) requestOnce(ctx context.Context, method string, t target, endpoint string,
	header http.Header) (*http.Response, error) {
	client, url, err := t.at(ctx, endpoint)
	if err != nil {
		return nil, err
	}
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
		c.options.Log.DebugContext(ctx, "request", "method", method, "url", withoutQuery(url), "range",
			header.Get("Range"), "after", time.Since(begin), "error", err)
		return nil, err
	}
	c.options.Log.DebugContext(ctx, "request", "method", method, "url", withoutQuery(url), "range", header.Get("Range"),
		"after", time.Since(begin), "status", response.StatusCode, "length", response.ContentLength)
	if response.StatusCode == http.StatusOK || response.StatusCode == http.StatusPartialContent &&
		header.Get("Range") != "" {
		return response, nil
	}
	defer response.Body.Close() //nolint:errcheck // only its beginning matters
	detail, _ := io.ReadAll(io.LimitReader(response.Body, 512))
	failed := &Error{URL: withoutQuery(url), Status: response.StatusCode,
		Err: fmt.Errorf("the server answered %s%s", response.Status, quoted(detail))}
	return nil, retryable(failed, response.StatusCode, response.Header.Get("Retry-After"))
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

func (c *Client) pauses() *backoff.ExponentialBackOff {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = c.options.Pause
	pauses.Multiplier = 2
	pauses.MaxInterval = max(c.options.Pause, 30*time.Second)
	return pauses
}

// retry repeats an attempt with growing pauses.
func retry[T any](ctx context.Context, c *Client, attempt backoff.Operation[T]) (T, error) {
	result, err := backoff.Retry(ctx, attempt,
		backoff.WithBackOff(c.pauses()),
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
		pause := httpanswer.RetryAfter(retryAfter, time.Now())
		switch {
		case pause > maxPause:
			return backoff.Permanent(fmt.Errorf("%w; it asks to come back in %v", err, pause.Round(time.Minute)))
		case pause > 0:
			return fmt.Errorf("%w; %w", err, backoff.RetryAfter(int(math.Ceil(pause.Seconds()))))
		}
		return err
	case status >= 500 || status == http.StatusRequestTimeout:
		return err
	}
	return backoff.Permanent(err)
}

func isFinal(err error) bool { return errors.As(err, new(*backoff.PermanentError)) }

// failures are those of all endpoints of a host.
type failures []error

// err is final only if all of them are.
func (f failures) err(host string) error {
	if len(f) == 1 {
		return f[0]
	}
	final := true
	var plain []error
	for _, err := range f {
		var permanent *backoff.PermanentError
		if errors.As(err, &permanent) {
			err = permanent.Unwrap()
		} else {
			final = false
		}
		plain = append(plain, err)
	}
	err := fmt.Errorf("none of the %d mirrors of %s could give it: %w", len(f), host, errors.Join(plain...))
	if final {
		return backoff.Permanent(err)
	}
	return err
}

func withoutQuery(url string) string {
	address, _, _ := strings.Cut(url, "?")
	return address
}

// quoted makes the beginning of a server's answer fit for an error message.
func quoted(detail []byte) string {
	text := httpanswer.Text(string(detail), 200)
	if text == "" {
		return ""
	}
	return ": " + text
}
