// Package readyz asks an API server whether it would answer its clients (/readyz of Kubernetes).
//
// Contract: one request over a connection of its own, with TLS to be proven by the server's authority and a client's
// certificate, since k3s' API server answers nobody that it does not know (anonymous-auth is false there). The files
// are read each time: k3s makes them anew when it starts. What the server says beside its status is not read.
package readyz

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// Server is an API server, and the client that asks it.
type Server struct {
	Address string // host:port
	// Authority is a file with the certificates of the server's authority, Certificate and Key are files with the
	// client's; all in PEM.
	Authority, Certificate, Key string
}

// Local is the API server of a server of k3s', asked as its kubelet (pkg/daemons/config of k3s v1.36).
func Local() Server {
	const folder = "/var/lib/rancher/k3s/agent/"
	return Server{Address: "127.0.0.1:6443", Authority: folder + "server-ca.crt", Certificate: folder +
		"client-kubelet.crt", Key: folder + "client-kubelet.key"}
}

// Timeout bounds one question.
const Timeout = time.Second

// Ask returns nil when the server is ready, and else why it is not.
func Ask(ctx context.Context, s Server) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("no answer within %v", Timeout))
	defer cancel()
	authority, err := os.ReadFile(s.Authority)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return fmt.Errorf("%s has no certificate", s.Authority)
	}
	own, err := tls.LoadX509KeyPair(s.Certificate, s.Key)
	if err != nil {
		return fmt.Errorf("load %s with its key: %w", s.Certificate, err)
	}
	transport := &http.Transport{
		DisableKeepAlives: true, // whether new connections succeed is asked
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own},
			MinVersion: tls.VersionTLS12},
		MaxResponseHeaderBytes: 64 << 10,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.Address+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("ask %s: %w", s.Address, err)
	}
	if err := response.Body.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("ask %s: %w", s.Address, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask %s: it answers with HTTP %d, expected 200", s.Address, response.StatusCode)
	}
	return nil
}
