package upstream

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // the registry's storage
	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
)

// blobFolder is where blobs are that a Redirect leads to.
const blobFolder = "/cdn.quay.io/"

// newRegistry gives distribution's registry over storage that is only read.
func newRegistry(root string) (app *handlers.App, err error) {
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.PanicLevel)
	config := &configuration.Configuration{
		Storage: configuration.Storage{
			"filesystem": configuration.Parameters{"rootdirectory": root},
			"cache":      configuration.Parameters{"blobdescriptor": "inmemory"},
			"maintenance": configuration.Parameters{
				"uploadpurging": map[any]any{"enabled": false},
				"readonly":      map[any]any{"enabled": true},
			},
		},
	}
	config.HTTP.RelativeURLs = true
	config.HTTP.Secret = "read-only" // signs uploads, of which there are none
	// NewApp panics on a configuration that it does not like.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("start the registry on %s: %v", root, p)
		}
	}()
	return handlers.NewApp(context.Background(), config), nil
}

// MoveTag makes the tag of an image ("quay.io/cilium/cilium:v1.20.0") point to a rebuild
// of that image, the way upstreams push a tag again: same layers, other configuration,
// other digest. It returns the new digest. The old one can still be pulled by digest. An
// image that the server does not have is a mistake in the caller and panics.
func (s *Server) MoveTag(ref string) digest.Digest {
	image := s.set.image(ref)
	if image == nil {
		panic("upstream: no image " + ref)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved[ref] = image.Rebuild.String()
	return image.Rebuild
}

// followMove turns a request for a moved tag into one for the digest it points to.
func (s *Server) followMove(r *http.Request) *http.Request {
	repository, tag, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/manifests/")
	if !ok {
		return r
	}
	s.mu.Lock()
	target, moved := s.moved[repository+":"+tag]
	s.mu.Unlock()
	if !moved {
		return r
	}
	r = r.Clone(r.Context())
	r.URL.Path, r.URL.RawPath = "/v2/"+repository+"/manifests/"+target, ""
	return r
}

// redirectBlob follows the rules about redirects; true means that it has answered.
func (s *Server) redirectBlob(x *exchange, r *http.Request) bool {
	if !strings.HasPrefix(r.URL.Path, "/v2/") || !strings.Contains(r.URL.Path, "/blobs/") ||
		r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	for _, i := range x.rules {
		if _, ok := i.rule.Fault.(Redirect); !ok || !i.take() {
			continue
		}
		_, port, err := net.SplitHostPort(s.addr)
		if err != nil {
			panic(err) // it is the address of a listener
		}
		// Another host for clients, which must leave their credentials behind.
		target := url.URL{Scheme: "https", Host: net.JoinHostPort("localhost", port), Path: strings.TrimSuffix(blobFolder, "/") + r.URL.Path}
		target.RawQuery = url.Values{"sig": {s.signature(target.Path)}}.Encode()
		http.Redirect(x, r, target.String(), http.StatusTemporaryRedirect)
		return true
	}
	return false
}

// serveSignedBlob serves the place that redirectBlob leads to.
func (s *Server) serveSignedBlob(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		http.Error(w, "Only one auth mechanism allowed", http.StatusBadRequest)
		return
	}
	if !s.checkSignature(w, r) {
		return
	}
	r = r.Clone(r.Context())
	r.URL.Path, r.URL.RawPath = strings.TrimPrefix(r.URL.Path, strings.TrimSuffix(blobFolder, "/")), ""
	s.registry.ServeHTTP(w, r)
}
