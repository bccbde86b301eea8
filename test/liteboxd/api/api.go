// Package api stands in for LiteBoxd's API server: its settings, the HTTP interface as far as
// boxlift's tests need it, the database, and what it does in the cluster.
package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/liteboxd/boxlift/test/liteboxd/edge"
	"github.com/liteboxd/boxlift/test/liteboxd/kube"
	"github.com/liteboxd/boxlift/test/liteboxd/store"
)

// settings is what the API alone reads from the environment.
type settings struct {
	*edge.Settings
	tokens       tokenKey
	gatewayURL   string
	sessionAge   time.Duration
	retention    time.Duration
	writeTimeout time.Duration
}

func readSettings(common *edge.Settings) (s settings, err error) {
	s = settings{Settings: common, gatewayURL: common.String("GATEWAY_URL", "http://localhost:8080")}
	if s.tokens, err = parseTokenKey(common.Getenv("SANDBOX_TOKEN_ENCRYPTION_KEY")); err != nil {
		return s, fmt.Errorf("read SANDBOX_TOKEN_ENCRYPTION_KEY: %w", err)
	}
	s.tokens.id = common.String("SANDBOX_TOKEN_ENCRYPTION_KEY_ID", "v1")
	seconds, err := common.Number("SESSION_MAX_AGE", 86400)
	if err != nil {
		return s, err
	}
	days, err := common.Number("SANDBOX_METADATA_RETENTION_DAYS", 7)
	if err != nil {
		return s, err
	}
	s.sessionAge, s.retention = time.Duration(seconds)*time.Second, time.Duration(days)*24*time.Hour
	s.writeTimeout, err = common.Duration("WRITE_TIMEOUT", 60*time.Second)
	return s, err
}

// api is the running API. Its methods may be called from several goroutines.
type api struct {
	settings
	release edge.Release
	store   *store.Store
	client  kubernetes.Interface
	exec    execute
	server  *edge.Server
}

// rights are all that the API uses in the cluster, beside those on the sandboxes' namespace:
// it reads that one at start in any case, and makes it only where it is not there.
func rights(sandboxes string) []kube.Rights {
	const write = "get list create delete update patch"
	return []kube.Rights{
		{Resource: "nodes", Verbs: "get list"},
		{Resource: "persistentvolumes", Verbs: "get list delete update patch"},
		{Resource: "volumeattachments.storage.k8s.io", Verbs: "get list delete"},
		{Namespace: sandboxes, Resource: "pods", Verbs: write},
		{Namespace: sandboxes, Resource: "persistentvolumeclaims", Verbs: write},
		{Namespace: sandboxes, Resource: "pods/log", Verbs: "get"},
		{Namespace: sandboxes, Resource: "pods/exec", Verbs: "create get"},
		{Namespace: sandboxes, Resource: "events", Verbs: "get list"},
		{Namespace: sandboxes, Resource: "jobs.batch", Verbs: "get list create delete"},
		{Namespace: sandboxes, Resource: "deployments.apps", Verbs: write},
		{Namespace: sandboxes, Resource: "networkpolicies.networking.k8s.io", Verbs: write + " watch"},
	}
}

// Run is the API until ctx ends and all is drained.
func Run(ctx context.Context, release edge.Release, common *edge.Settings) (err error) {
	s, err := readSettings(common)
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, s.DataDir, release.Schema)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.EnsureAdmin(ctx, s.String("ADMIN_USERNAME", "admin"), s.Getenv("ADMIN_INITIAL_PASSWORD"), s.Getenv("ADMIN_PASSWORD"))
	if err != nil {
		return err
	}
	config, err := kube.Connect(s.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the cluster: %w", err)
	}
	a := newAPI(s, release, db, client, spdy(config, client))
	if err := a.prepare(ctx); err != nil {
		return err
	}
	listener, err := s.Listen(ctx, "8080")
	if err != nil {
		return err
	}
	return a.serve(ctx, listener)
}

func newAPI(s settings, release edge.Release, db *store.Store, client kubernetes.Interface, exec execute) *api {
	a := &api{settings: s, release: release, store: db, client: client, exec: exec}
	a.server = &edge.Server{
		Handler: a.routes(), WriteTimeout: s.writeTimeout, Timeout: s.ShutdownTimeout, Settle: edge.Settle,
		NotReady: release.NeverReady, Log: s.Log,
	}
	return a
}

// prepare does what must be done before the first request. Whatever fails ends the program.
func (a *api) prepare(ctx context.Context) error {
	if err := kube.EnsureNamespace(ctx, a.client, a.SandboxNamespace); err != nil {
		return err
	}
	if err := kube.Require(ctx, a.client, rights(a.SandboxNamespace)); err != nil {
		return err
	}
	if err := a.writePolicies(ctx); err != nil {
		return err
	}
	_, err := a.look(ctx)
	return err
}

// serve answers requests and reconciles, both until ctx ends.
func (a *api) serve(ctx context.Context, listener net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.reconcileForever(ctx)
	}()
	err := a.server.Run(ctx, listener)
	stop()
	<-ended
	return err
}

// spdy runs commands in pods through the API server.
func spdy(config *rest.Config, client kubernetes.Interface) execute {
	return func(ctx context.Context, e execution) error {
		return e.stream(ctx, config, client.CoreV1().RESTClient())
	}
}
