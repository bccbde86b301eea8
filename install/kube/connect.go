// Package kube works on a cluster through its API, as boxlift needs it: it makes the connection, reads and changes
// plain objects (nodes, pods, Secrets, volumes, Services), and says how far rollouts are. What takes more stands on it:
// the packages wait, explain, drain, probe and helm.
//
// Contract, of those packages too: every connection is made by [Options].Dial and no proxy is ever asked, so
// that the API is reached through a host's SSH connection and nothing has to be exposed.
// Every call ends with its context, and every single request after at most half a minute.
// Nothing is written to standard output, standard error or a file; what the libraries have
// to say goes to [Options].Log at level debug. Errors name the cluster and the object, and
// those that leave something to do for the operator have a hint ([Error]). Whoever is
// killed in the middle of a call can make the same call again.
//
// What comes from the API is text from other machines: where it gets into messages it is
// made printable and shortened.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/klog/v2"

	"github.com/liteboxd/boxlift/internal/printable"
)

const (
	// requestTimeout bounds one request, from connecting to the last byte of the answer.
	requestTimeout = 30 * time.Second
	// FieldManager is boxlift's name in managedFields.
	FieldManager = "boxlift"
)

// Options say how a cluster is reached. Kubeconfig and Dial are required.
type Options struct {
	// Name is what messages call the cluster: its own name, or its server's.
	Name string
	// Kubeconfig is the k3s.yaml of a server.
	Kubeconfig []byte
	// Dial makes the connections, to the address that the kubeconfig names: 127.0.0.1:6443
	// with k3s, as seen from a server.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log gets what the libraries say, at level debug; nil discards it.
	Log *slog.Logger
	// Waiting runs what only waits for the cluster while a release is applied or rolled back,
	// so that it can be told from work; nil runs it as it is.
	Waiting func(wait func() error) error
	// Absent returns those of the registered nodes that nobody counts on. While one of them is
	// not Ready, no rollout waits for its pods. nil is for none.
	Absent func([]Node) []Node
}

// Cluster is a cluster's API. Its methods may be called from several goroutines. The fields are for the packages
// that stand on this one; nobody assigns to them.
type Cluster struct {
	Name    string                        // as in Options
	Log     *slog.Logger                  // as in Options, never nil
	Waiting func(wait func() error) error // as in Options, never nil

	Config    *rest.Config // without credentials: they are in its Transport
	Client    *kubernetes.Clientset
	Dynamic   dynamic.Interface
	Discovery discovery.CachedDiscoveryInterface
	Mapper    *restmapper.DeferredDiscoveryRESTMapper

	absent func([]Node) []Node
	close  func()
}

var silence = sync.OnceFunc(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })

// Silence keeps libraries that know no logger but the process's own from writing to standard error. Connect does it
// by itself.
func Silence() { silence() }

// Connect reads the kubeconfig. It sends nothing: see WaitReady.
func Connect(o Options) (*Cluster, error) {
	Silence()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	access, err := parseKubeconfig(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s: kubeconfig: %w", o.Name, err)
	}
	transport, err := rest.TransportFor(&rest.Config{
		Host: access.server,
		TLSClientConfig: rest.TLSClientConfig{
			// Whichever address it is reached by, k3s' certificate is good for this one.
			ServerName: "127.0.0.1",
			CAData:     access.ca, CertData: access.cert, KeyData: access.key,
		},
		BearerToken: access.token,
		Dial:        o.Dial,
		// nil would mean the environment's HTTPS_PROXY.
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
	})
	if err != nil {
		return nil, fmt.Errorf("%s: kubeconfig: %w", o.Name, err)
	}
	if o.Waiting == nil {
		o.Waiting = func(wait func() error) error { return wait() }
	}
	c := &Cluster{
		Name: o.Name, Log: o.Log, Waiting: o.Waiting,
		absent: o.Absent, close: func() { closeIdle(transport) },
	}
	c.Config = &rest.Config{
		Host:      access.server,
		Transport: transport,
		// client-go's own limits, 5 and 10, make Helm wait for seconds. To compare a release
		// with the cluster takes two requests for each object.
		QPS: 50, Burst: 300,
		Timeout:                   requestTimeout,
		UserAgent:                 "boxlift",
		WarningHandlerWithContext: warnings{o.Log},
	}
	if err := c.makeClients(); err != nil {
		return nil, fmt.Errorf("%s: make API client: %w", o.Name, err)
	}
	return c, nil
}

func (c *Cluster) makeClients() (err error) {
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	if c.Dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		return err
	}
	c.Discovery = memory.NewMemCacheClient(c.Client.Discovery())
	c.Mapper = restmapper.NewDeferredDiscoveryRESTMapper(c.Discovery)
	return nil
}

// Bound is the cluster with all requests ending with ctx, for libraries whose calls take
// no context.
func (c *Cluster) Bound(ctx context.Context) (*Cluster, error) {
	b := &Cluster{
		Name: c.Name, Log: c.Log, Waiting: c.Waiting, Config: rest.CopyConfig(c.Config),
		absent: c.absent, close: func() {},
	}
	b.Config.Transport = boundTransport{ctx, c.Config.Transport}
	if err := b.makeClients(); err != nil {
		return nil, fmt.Errorf("%s: make API client: %w", c.Name, err)
	}
	return b, nil
}

// Close gives up the connections that are kept open for further requests.
func (c *Cluster) Close() { c.close() }

func closeIdle(t http.RoundTripper) {
	for t != nil {
		if idle, ok := t.(interface{ CloseIdleConnections() }); ok {
			idle.CloseIdleConnections()
			return
		}
		wrapper, ok := t.(interface{ WrappedRoundTripper() http.RoundTripper })
		if !ok {
			return
		}
		t = wrapper.WrappedRoundTripper()
	}
}

// boundTransport ends requests with a context that they do not know of.
type boundTransport struct {
	ctx  context.Context
	next http.RoundTripper
}

func (t boundTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.ctx.Err() != nil {
		return nil, context.Cause(t.ctx)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
	end := func() { stop(); cancel(nil) }
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	response.Body = &boundBody{response.Body, end}
	return response, nil
}

func (t boundTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

type boundBody struct {
	body interface {
		Read([]byte) (int, error)
		Close() error
	}
	end func()
}

func (b *boundBody) Read(p []byte) (int, error) { return b.body.Read(p) }
func (b *boundBody) Close() error               { defer b.end(); return b.body.Close() }

type warnings struct{ log *slog.Logger }

func (w warnings) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	w.log.DebugContext(ctx, "warning from the API", "text", text)
}

// WaitReady waits until the API server says that it is ready. When ctx ends first, the
// error says what it answered last.
func (c *Cluster) WaitReady(ctx context.Context) error {
	start := time.Now()
	last := errors.New("no answer yet")
	if Poll(ctx, PollInterval, func() bool {
		err := c.Ready(ctx)
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return err == nil
	}) {
		return nil
	}
	text := fmt.Sprintf("the API is not ready after %s: %s", Since(start), Brief(last.Error()))
	return c.Fail(TimeUp(ctx, text), "see k3s' log on the server: journalctl -u k3s")
}

// Ready asks the API server once whether it is ready, and returns what it answers when it is not.
func (c *Cluster) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw()
	if err != nil && len(answer) > 0 {
		return fmt.Errorf("%w: %s", err, answer)
	}
	return err
}

// Version returns the API server's version, such as "v1.34.4+k3s1".
func (c *Cluster) Version(ctx context.Context) (string, error) {
	b, err := c.Bound(ctx)
	if err != nil {
		return "", err
	}
	v, err := b.Client.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("%s: ask for the API's version: %w", c.Name, err)
	}
	return printable.Line(v.GitVersion), nil
}
