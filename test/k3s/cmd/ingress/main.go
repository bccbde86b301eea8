// Command ingress is the ingress controller of test clusters, in the place of Traefik: it
// follows what Traefik would of networking.k8s.io Ingress, as k3s sets Traefik up.
//
// It takes Ingresses of class traefik and of none. Their rules are those of Kubernetes:
// hosts with a wildcard for one label, paths Exact, Prefix and ImplementationSpecific,
// which is Prefix here; the more exact goes first, see routes. Requests go round the ready
// endpoints of the backend, past its cluster address, with the client's Host and with
// X-Forwarded headers; WebSockets stay open until one side ends them. 404 is for what no
// rule matches, and for rules that name a Service or a middleware that does not exist; 503 for a
// Service without ready endpoints; 502 for an endpoint that does not answer.
//
// Annotations: traefik.ingress.kubernetes.io/router.entrypoints (web, websecure; both
// without it) and router.middlewares (NAMESPACE-NAME@kubernetescrd), for Middlewares of
// traefik.io/v1alpha1 of the kind retry: a request that no endpoint has seen yet
// is tried again at the next endpoint.
//
//	:8000  web         :8443  websecure, with a certificate of its own making
//	:8080  /ping       200 once it knows the cluster, and 503 when it is told to end
//
// What it does not do: other middlewares, the Ingress's status,
// IngressRoutes and the Gateway API.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log"
	"math/big"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

var middlewares = schema.GroupVersion{Group: "traefik.io", Version: "v1alpha1"}

// headerTimeout is how long a client may take for a request's header.
const headerTimeout = 10 * time.Second

func main() {
	log.SetFlags(log.LstdFlags | log.LUTC)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	config.UserAgent = "traefik-standin"
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	current := &atomic.Pointer[table]{}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return follow(ctx, config, current) })
	group.Go(func() error {
		return serve(ctx, &http.Server{Addr: ":8080", Handler: ping(ctx, current), ReadHeaderTimeout: headerTimeout})
	})
	transport := newTransport()
	for name, address := range map[string]string{"web": ":8000", "websecure": ":8443"} {
		server := &http.Server{Addr: address, Handler: newProxy(name, current, transport), ReadHeaderTimeout: headerTimeout}
		if name == "websecure" {
			server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12,
				GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
					if t := current.Load(); t != nil && t.certificates[strings.ToLower(hello.ServerName)] != nil {
						return t.certificates[strings.ToLower(hello.ServerName)], nil
					}
					return &certificate, nil
				}}
		}
		group.Go(func() error { return serve(ctx, server) })
	}
	return group.Wait()
}

// follow keeps the table as the cluster says, from the moment when all of it is known.
func follow(ctx context.Context, config *rest.Config, current *atomic.Pointer[table]) error {
	changed := make(chan struct{}, 1)
	w, err := newWatcher(config, changed)
	if err != nil {
		return err
	}
	ingresses := w.informer(networkingv1.SchemeGroupVersion, "ingresses", &networkingv1.Ingress{})
	services := w.informer(corev1.SchemeGroupVersion, "services", &corev1.Service{})
	secrets := w.informer(corev1.SchemeGroupVersion, "secrets", &corev1.Secret{})
	slices := w.informer(discoveryv1.SchemeGroupVersion, "endpointslices", &discoveryv1.EndpointSlice{})
	retries := w.informer(middlewares, "middlewares", &unstructured.Unstructured{})
	if w.err != nil {
		return w.err
	}
	for _, informer := range w.informers {
		go informer.RunWithContext(ctx)
	}
	for _, informer := range w.informers {
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return nil // told to end
		}
	}
	for {
		current.Store(newTable(list[*networkingv1.Ingress](ingresses), list[*corev1.Service](services),
			list[*discoveryv1.EndpointSlice](slices), list[*unstructured.Unstructured](retries)).
			certify(list[*networkingv1.Ingress](ingresses), list[*corev1.Secret](secrets)))
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// watcher makes informers with the few types that are needed: a client of all of
// Kubernetes' types would make the program twice as big.
type watcher struct {
	config    *rest.Config
	dynamic   dynamic.Interface
	codecs    serializer.CodecFactory
	changed   chan<- struct{} // has a value after changes
	informers []cache.SharedIndexInformer
	err       error // the first one
}

func newWatcher(config *rest.Config, changed chan<- struct{}) (*watcher, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	untyped, err := dynamic.NewForConfig(config)
	return &watcher{config: config, dynamic: untyped, codecs: serializer.NewCodecFactory(scheme), changed: changed}, err
}

func (w *watcher) informer(version schema.GroupVersion, resource string, object runtime.Object) cache.SharedIndexInformer {
	source, err := w.source(version, resource, object)
	informer := cache.NewSharedIndexInformer(source, object, 0, cache.Indexers{})
	if err == nil {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { w.notify() }, UpdateFunc: func(any, any) { w.notify() }, DeleteFunc: func(any) { w.notify() },
		})
	}
	if err != nil && w.err == nil {
		w.err = err
	}
	w.informers = append(w.informers, informer)
	return informer
}

func (w *watcher) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *watcher) source(version schema.GroupVersion, resource string, object runtime.Object) (*cache.ListWatch, error) {
	if _, ok := object.(*unstructured.Unstructured); ok {
		objects := w.dynamic.Resource(version.WithResource(resource))
		return &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return objects.Watch(ctx, o)
			},
		}, nil
	}
	config := rest.CopyConfig(w.config)
	config.APIPath, config.GroupVersion = "/apis", &version
	if version.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = w.codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.Everything()), nil
}

func list[T any](informer cache.SharedIndexInformer) []T {
	var objects []T
	for _, object := range informer.GetStore().List() {
		objects = append(objects, object.(T))
	}
	return objects
}

// ping answers the probes.
func ping(ctx context.Context, current *atomic.Pointer[table]) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if current.Load() == nil || ctx.Err() != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("OK")) // the client's loss
	})
}

// serve works until ctx ends, and lets requests that have begun end within ten seconds.
func serve(ctx context.Context, server *http.Server) error {
	ended := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			ended <- server.ListenAndServeTLS("", "")
		} else {
			ended <- server.ListenAndServe()
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) {
			return server.Close()
		} else if err != nil {
			return err
		}
		return nil
	}
}

// selfSigned is a certificate that no one trusts.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "TRAEFIK DEFAULT CERT"},
		DNSNames: []string{"traefik.default"}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
