package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// maxUpload is the longest that a blob may take in all; it may not stand still.
	maxUpload = 24 * time.Hour
	// maxAnswer bounds what is read of an answer's body, in bytes.
	maxAnswer = 64 << 10
	// maxText bounds what errors repeat of it, in bytes.
	maxText = 500
	// expectFrom is the size in bytes from which on the registry is asked whether it wants a
	// blob before it is sent. It could be refused for many reasons.
	expectFrom = 1 << 20
)

var errRedirect = errors.New("it redirects")

// RoundTrip sends one request. An answer that says no is an [Error], except that answers
// which ask for a login are left to oras, and redirections to [http.Client].
func (c *client) RoundTrip(r *http.Request) (*http.Response, error) {
	s := subjectOf(r.Context())
	toLogin := r.URL.Fragment != "" && r.Method != http.MethodPut
	if toLogin {
		s = &subject{what: whatLogin}
	}
	isOwn := r.URL.Scheme == c.base.Scheme && r.URL.Host == c.base.Host && r.URL.Fragment == ""
	if bearer := c.knownBearer(); isOwn && bearer != "" && r.Header.Get("Authorization") == "" {
		// oras waits to be asked for a token each time that it needs another.
		return unauthorized(r, bearer), nil
	}
	if err := c.gate.pass(r.Context()); err != nil {
		return nil, err
	}
	s.denied = nil
	response, content, err := c.exchange(r)
	switch {
	case err != nil && r.Context().Err() != nil && !streamed(r):
		return nil, context.Cause(r.Context())
	case err != nil:
		err = c.failure(s, err)
	case isOwn && response.StatusCode == http.StatusUnauthorized:
		s.denied = c.refusal(s, response, content)
		// The body is gone, but the next attempt has new credentials.
		s.denied.streamed, s.denied.temporary = streamed(r), streamed(r)
		err = c.challenged(r, response)
	case !redirects(r, response) && !accepts(r, response.StatusCode, toLogin):
		err = c.refusal(s, response, content)
	case toLogin:
		err = c.checkToken(s, content)
	default:
		err = c.adapt(s, r, response)
	}
	if err == nil {
		response.Request = r
		return response, nil
	}
	if e, ok := asError(err); ok {
		e.streamed = streamed(r)
	}
	return nil, err
}

// exchange sends a request within its deadline, and reads the answer to its end, so that the
// connection is left to the next one.
func (c *client) exchange(r *http.Request) (*http.Response, []byte, error) {
	limit := c.patient.answer
	switch {
	case streamed(r) && r.ContentLength > 0:
		limit = maxUpload
	case r.Method == http.MethodPut:
		limit = c.patient.stored
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), limit, fmt.Errorf("no answer came within %v", limit))
	defer cancel()
	message, err := c.message(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	log := c.log.With("method", r.Method, "url", withoutQuery(message.URL))
	begin := time.Now()
	response, err := c.next.RoundTrip(message)
	if err != nil {
		err = noAnswer(ctx, err)
		log.DebugContext(ctx, "request", "after", time.Since(begin), "error", err)
		return nil, nil, err
	}
	log.DebugContext(ctx, "request", "after", time.Since(begin), "status", response.StatusCode)
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	_ = response.Body.Close() // what matters of it is read
	if err == nil {
		err = ctx.Err() // a connection that is given up may look like one that ended
	}
	if err != nil && len(content) == 0 && response.StatusCode >= 300 {
		return nil, nil, noAnswer(ctx, err)
	}
	response.Body = io.NopCloser(bytes.NewReader(content))
	return response, content, nil
}

// message makes of a request what is sent.
func (c *client) message(ctx context.Context, r *http.Request) (*http.Request, error) {
	message := r.Clone(ctx)
	message.Header.Set("User-Agent", c.agent)
	if streamed(r) && r.ContentLength == 0 {
		message.Body = http.NoBody // otherwise the length would count as unknown
	}
	if streamed(r) && r.ContentLength >= expectFrom {
		message.Header.Set("Expect", "100-continue")
	}
	if r.URL.Fragment == "" {
		return message, nil
	}
	to, err := url.Parse(r.URL.Fragment)
	if err != nil {
		return nil, err
	}
	query := to.Query()
	for name, values := range r.URL.Query() {
		query[name] = values
	}
	to.RawQuery = query.Encode()
	message.URL, message.Host = to, to.Host
	if r.Method == http.MethodPut {
		message.Header.Del("Authorization")
	}
	return message, nil
}

// elsewhere returns an address at the registry that stands for another, which its fragment is.
// oras uploads to no other host, since it would send the login there, and asks for tokens at no
// private address, where those of a site are. Answers from outside lose their fragments.
func elsewhere(registry, other *url.URL) *url.URL {
	return &url.URL{Scheme: registry.Scheme, Host: registry.Host, Path: "/", Fragment: other.String()}
}

// streamed reports whether a request's body can be sent once only.
func streamed(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.GetBody == nil
}

// redirects reports whether [http.Client] goes on elsewhere.
func redirects(r *http.Request, response *http.Response) bool {
	switch response.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return response.Header.Get("Location") != "" && !streamed(r)
	}
	return false
}

// accepts reports whether a status says that a request was done.
func accepts(r *http.Request, status int, toLogin bool) bool {
	switch {
	case toLogin:
		return status == http.StatusOK
	case r.Method == http.MethodPost:
		return status == http.StatusCreated || status == http.StatusAccepted
	case r.Method == http.MethodPut && streamed(r):
		return status == http.StatusCreated
	case r.Method == http.MethodPut:
		return status == http.StatusCreated || status == http.StatusOK || status == http.StatusAccepted
	}
	return status == http.StatusOK
}

// adapt makes of a good answer what oras and [http.Client] expect.
func (c *client) adapt(s *subject, r *http.Request, response *http.Response) error {
	if r.Method == http.MethodPut && response.StatusCode < 300 {
		response.StatusCode = http.StatusCreated
		return nil
	}
	if response.StatusCode == http.StatusOK || response.StatusCode == http.StatusCreated {
		return nil
	}
	to, err := response.Location()
	if err == nil {
		to.Fragment, to.RawFragment = "", ""
		if response.StatusCode == http.StatusAccepted {
			to, err = c.location(r.URL, to)
		}
	}
	if err != nil {
		e := c.newError(s, fmt.Errorf("the registry does not say where to go on: %w", err))
		e.Status = response.StatusCode
		return e
	}
	response.Header.Set("Location", to.String())
	return nil
}

// location returns where an upload goes on that the registry has begun.
func (c *client) location(from, named *url.URL) (*url.URL, error) {
	// A registry behind a proxy that ends TLS may not know how it is reached.
	if strings.EqualFold(named.Hostname(), c.base.Hostname()) {
		named.Scheme, named.Host = c.base.Scheme, c.base.Host
	}
	if named.Scheme != c.base.Scheme && named.Scheme != "https" {
		return nil, fmt.Errorf("it wants the upload at %s, without TLS", withoutQuery(named))
	}
	if named.Host != from.Host || named.Scheme != from.Scheme {
		named = elsewhere(from, named)
	}
	return named, nil
}

func withoutQuery(u *url.URL) string { return u.Scheme + "://" + u.Host + u.Path }

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext(ctx, network,
		address)
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
