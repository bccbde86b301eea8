package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/liteboxd/boxlift/internal/printable"
)

// RotateToken lets the k3s server that o leads to give the servers another token: it encrypts with it what the
// datastore has of the cluster's keys. It is what `k3s token rotate` asks for (k3s v1.28 and later), which takes the
// new token as an argument, for every process of the host to see. current and next are passwords. Until a server is
// started again with the new one, it lets in who shows the old one.
//
// With an error, begun reports whether k3s may have begun with it: it was asked, and has not said that it would not.
func RotateToken(ctx context.Context, o Options, current, next string) (begun bool, err error) {
	access, err := parseKubeconfig(o.Kubeconfig)
	if err != nil {
		return false, fmt.Errorf("%s: kubeconfig: %w", o.Name, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(access.ca) {
		return false, fmt.Errorf("%s: kubeconfig: no certificate authority can be read", o.Name)
	}
	// Without the administrator's certificate: k3s wants to see the servers' user.
	client := &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		DialContext:       o.Dial,
		TLSClientConfig:   &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}}
	body, err := json.Marshal(struct {
		NewToken string `json:"newToken"`
	}{next})
	if err != nil {
		return false, err
	}
	var wrote atomic.Bool
	address := access.server + "/v1-k3s/token"
	asked := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }})
	request, err := http.NewRequestWithContext(asked, http.MethodPut, address, bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("%s: ask for another token: %w", o.Name, err)
	}
	request.SetBasicAuth("server", current)
	answer, err := client.Do(request)
	if err != nil {
		return wrote.Load(), fmt.Errorf("%s: ask for another token: %w", o.Name, err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	if answer.StatusCode == http.StatusOK {
		return true, nil
	}
	begun = answer.StatusCode >= http.StatusInternalServerError
	const most = 1 << 10
	said, err := io.ReadAll(io.LimitReader(answer.Body, most))
	text := printable.Line(string(bytes.TrimSpace(said)))
	if answer.StatusCode == http.StatusNotFound {
		text = "this k3s cannot change it"
	}
	return begun, errors.Join(fmt.Errorf("%s: ask for another token: %s: %s", o.Name, answer.Status, text), err)
}
