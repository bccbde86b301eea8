// Package gateway stands in for LiteBoxd's gateway: who has a sandbox's access token gets
// through to the ports of its pod, with HTTP and WebSockets.
package gateway

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/liteboxd/boxlift/test/liteboxd/edge"
	"github.com/liteboxd/boxlift/test/liteboxd/kube"
	"github.com/liteboxd/boxlift/test/liteboxd/store"
)

const (
	tokenHeader    = "X-Access-Token"
	writeTimeout   = 10 * time.Second
	headerTimeout  = 10 * time.Second
	requestTimeout = 5 * time.Minute
	podPrefix      = "sandbox-"
)

type gateway struct {
	*edge.Settings
	store  *store.Store
	client kubernetes.Interface
	// api is the API server's address where pods are reached through it; nil otherwise.
	api       *url.URL
	transport http.RoundTripper
	server    *edge.Server
}

// Run is the gateway until ctx ends and all is drained.
func Run(ctx context.Context, release edge.Release, settings *edge.Settings) (err error) {
	db, err := store.Open(ctx, settings.DataDir, release.Schema)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	config, err := kube.Connect(settings.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the cluster: %w", err)
	}
	g := newGateway(settings, db, client)
	if settings.Getenv("DEV_USE_K8S_PROXY") == "true" {
		if err := g.goThrough(config); err != nil {
			return err
		}
	}
	if err := g.prepare(ctx); err != nil {
		return err
	}
	listener, err := settings.Listen(ctx, "8081")
	if err != nil {
		return err
	}
	return g.server.Run(ctx, listener)
}

func newGateway(settings *edge.Settings, db *store.Store, client kubernetes.Interface) *gateway {
	g := &gateway{Settings: settings, store: db, client: client, transport: &http.Transport{
		DialContext:           (&net.Dialer{Timeout: headerTimeout}).DialContext,
		ResponseHeaderTimeout: headerTimeout,
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/sandbox/{id}/port/{port}", g.forward)
	mux.HandleFunc("/api/v1/sandbox/{id}/port/{port}/{rest...}", g.forward)
	g.server = &edge.Server{Handler: mux, WriteTimeout: writeTimeout, Timeout: settings.ShutdownTimeout, Settle: edge.Settle, Log: settings.Log}
	return g
}

// goThrough sends all through the API server instead of to the pods.
func (g *gateway) goThrough(config *rest.Config) (err error) {
	if g.transport, err = rest.TransportFor(config); err != nil {
		return fmt.Errorf("reach pods through the API server: %w", err)
	}
	if g.api, _, err = rest.DefaultServerUrlFor(config); err != nil {
		return fmt.Errorf("reach pods through the API server: %w", err)
	}
	return nil
}

// prepare asks for all that the gateway needs, and fails without it.
func (g *gateway) prepare(ctx context.Context) error {
	if err := kube.EnsureNamespace(ctx, g.client, g.SandboxNamespace); err != nil {
		g.Log.Warn("going on without", "error", err.Error())
	}
	err := kube.Require(ctx, g.client, []kube.Rights{
		{Namespace: g.SandboxNamespace, Resource: "pods", Verbs: "get list"},
		{Namespace: g.SandboxNamespace, Resource: "pods/proxy", Verbs: "get create update patch delete"},
	})
	if err != nil {
		return err
	}
	pods, err := g.client.CoreV1().Pods(g.SandboxNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=liteboxd"})
	if err != nil {
		return fmt.Errorf("list the sandboxes' pods: %w", err)
	}
	g.Log.Info("found sandboxes", "pods", len(pods.Items))
	return nil
}

func (g *gateway) forward(w http.ResponseWriter, r *http.Request) {
	target, status, err := g.target(r)
	if err != nil {
		if status == http.StatusInternalServerError {
			g.Log.Error("request failed", "path", r.URL.Path, "error", err.Error())
		}
		edge.Refuse(w, status, err)
		return
	}
	if edge.IsWebSocket(r) {
		defer g.server.Track()()
	} else {
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	proxy := &httputil.ReverseProxy{
		Transport: g.transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.URL.Path, p.Out.URL.RawPath = target.Scheme, target.Host, target.Path, ""
			p.Out.Host = target.Host
			p.Out.Header.Del(tokenHeader)
			p.SetXForwarded()
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			g.Log.Warn("the sandbox does not answer", "path", r.URL.Path, "error", err.Error())
			edge.Refuse(w, http.StatusBadGateway, fmt.Errorf("the sandbox does not answer: %w", err))
		},
	}
	proxy.ServeHTTP(w, r)
}

// target is where a request goes, once its token is found to be the sandbox's.
func (g *gateway) target(r *http.Request) (target *url.URL, status int, err error) {
	id := r.PathValue("id")
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return nil, http.StatusBadRequest, fmt.Errorf("%q is no port", r.PathValue("port"))
	}
	row, err := g.store.Sandbox(r.Context(), id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, http.StatusNotFound, err
	}
	if err != nil {
		return nil, http.StatusInternalServerError, err
	}
	if subtle.ConstantTimeCompare([]byte(store.Hash(r.Header.Get(tokenHeader))), []byte(row.TokenHash)) != 1 {
		return nil, http.StatusUnauthorized, fmt.Errorf("the header %s is not the access token of sandbox %s", tokenHeader, id)
	}
	rest := "/" + r.PathValue("rest")
	if g.api != nil {
		through := *g.api
		through.Path = strings.TrimSuffix(through.Path, "/") +
			fmt.Sprintf("/api/v1/namespaces/%s/pods/%s%s:%d/proxy%s", g.SandboxNamespace, podPrefix, id, port, rest)
		return &through, 0, nil
	}
	pod, err := g.client.CoreV1().Pods(g.SandboxNamespace).Get(r.Context(), podPrefix+id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, http.StatusNotFound, fmt.Errorf("sandbox %s has no pod", id)
	}
	if err != nil {
		return nil, http.StatusInternalServerError, fmt.Errorf("look for the pod of sandbox %s: %w", id, err)
	}
	if pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
		return nil, http.StatusServiceUnavailable, fmt.Errorf("sandbox %s does not run yet: its pod is %s", id, pod.Status.Phase)
	}
	return &url.URL{Scheme: "http", Host: net.JoinHostPort(pod.Status.PodIP, strconv.FormatUint(port, 10)), Path: rest}, 0, nil
}
