package push

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/progress"
)

// client talks to one registry. As a transport it is what oras sends requests with: it holds
// them back, gives them deadlines, reads answers whole, and makes errors of refusals.
type client struct {
	host       string // host[:port], as the user wrote it
	base       *url.URL
	next       *http.Transport
	http       *http.Client // without a login
	auth       *auth.Client
	credential auth.Credential
	actions    []string // that a token has to be good for
	agent      string
	log        *slog.Logger
	report     progress.Reporter
	patient    patience
	gate       gate

	mu     sync.Mutex
	bearer string // the registry's challenge that tokens answer
}

var addressPattern = lazyregexp.New(
	`^([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// AddressError says that an address is not host[:port].
type AddressError struct{}

// Error does not repeat the address: there may be a password in it.
func (*AddressError) Error() string {
	return "registry address: expected HOST or HOST:PORT such as harbor.lan or 192.0.2.10:5000, " +
		"without a scheme, a path or credentials"
}

// newClient makes one whose tokens are good for the actions.
func newClient(o Options, actions ...string) (*client, error) {
	if !addressPattern.MatchString(o.Address) {
		return nil, &AddressError{}
	}
	base := &url.URL{Scheme: "https", Host: registry.Reference{Registry: o.Address}.Host()}
	if o.PlainHTTP {
		base.Scheme = "http"
	}
	//nolint:gosec // whoever sets it was told by its name
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.InsecureSkipTLSVerify}
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
	credential, err := credentialOf(o)
	if err != nil {
		return nil, err
	}
	c := &client{
		host: o.Address, base: base, credential: credential, actions: actions,
		agent: o.UserAgent, log: o.Log, report: o.Reporter, patient: usualPatience(),
		next: &http.Transport{
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
	}
	c.http = &http.Client{
		Transport: &retry.Transport{Base: c, Policy: func() retry.Policy { return c.persist() }},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			switch {
			case len(via) >= 5:
				return fmt.Errorf("%w again and again", errRedirect)
			case r.URL.Scheme != "https" && base.Scheme == "https":
				return fmt.Errorf("%w from https to %s", errRedirect, r.URL.Scheme)
			}
			return nil
		},
	}
	c.auth = &auth.Client{
		Client: c.http, Credential: auth.StaticCredential(base.Host, credential),
		Cache: auth.NewCache(), ClientID: "boxlift",
	}
	return c, nil
}

// AuthorityError says that there is no certificate where one was expected.
type AuthorityError struct{}

func (*AuthorityError) Error() string {
	return "certificate authority: found no certificate, expected one or more in PEM"
}

func (c *client) close() { c.next.CloseIdleConnections() }

// subject is what requests are about, for their errors. It goes with their context.
type subject struct {
	// repository is empty where they are about all of the registry.
	repository string
	// what is being done: "upload blob sha256:...".
	what string
	// denied is how the last of them was refused for want of the right login.
	denied *Error
}

type subjectKey struct{}

func subjectOf(ctx context.Context) *subject {
	if s, ok := ctx.Value(subjectKey{}).(*subject); ok {
		return s
	}
	return &subject{}
}

// about returns a context for requests about a repository.
func (c *client) about(ctx context.Context, s *subject) context.Context {
	ctx = context.WithValue(ctx, subjectKey{}, s)
	return auth.AppendRepositoryScope(ctx, c.reference(s.repository), c.actions...)
}

func (c *client) reference(repository string) registry.Reference {
	return registry.Reference{Registry: c.host, Repository: repository}
}

// repository returns oras' view of a repository.
func (c *client) repository(name string) *remote.Repository {
	r := &remote.Repository{
		Client: c.auth, Reference: c.reference(name), PlainHTTP: c.base.Scheme == "http",
	}
	// Otherwise oras adds tags of its own where it thinks that a registry lacks referrers.
	_ = r.SetReferrersCapability(true) // the first call never fails
	return r
}

// ping asks the registry whether it is one.
func (c *client) ping(ctx context.Context) error {
	s := &subject{what: "ask how to log in"}
	ctx = context.WithValue(ctx, subjectKey{}, s)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath("/v2/").String(), nil)
	if err != nil {
		return c.failed(ctx, s, err)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return c.failed(ctx, s, err)
	}
	return response.Body.Close() // it is read
}

// ask asks for what goes by a path of a repository. It returns the answer's header, or nil
// where there is nothing. The methods of oras for this want more headers than there need be.
func (c *client) ask(ctx context.Context, method string, s *subject, path string) (http.Header, error) {
	ctx = c.about(ctx, s)
	address := c.base.JoinPath("/v2", s.repository, path).String()
	r, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, c.failed(ctx, s, err)
	}
	if strings.HasPrefix(path, "manifests/") {
		r.Header.Set("Accept", manifestTypes)
	}
	response, err := c.auth.Do(r)
	if err == nil && response.StatusCode == http.StatusOK {
		return response.Header, response.Body.Close()
	}
	err = c.failed(ctx, s, err)
	if e, ok := asError(err); ok && e.Status == http.StatusNotFound && e.what == s.what {
		return nil, nil
	}
	return nil, err
}

// whatLogin is what is done at token services.
const whatLogin = "log in at its token service"

// failed returns the error of requests that oras has sent.
func (c *client) failed(ctx context.Context, s *subject, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e, ok := asError(err); ok {
		return e
	}
	if s.denied != nil {
		return s.denied
	}
	return c.failure(s, noAnswer(ctx, err))
}
