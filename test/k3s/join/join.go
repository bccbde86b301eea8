// Package join is the client's side of what k3s servers answer beside the API,
// on the same port, to nodes that know the token.
package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/test/k3s/pki"
	"github.com/liteboxd/boxlift/test/k3s/token"
)

// Headers with which a node asks for its certificates.
const (
	HeaderNodeName     = "k3s-Node-Name"
	HeaderNodePassword = "k3s-Node-Password"
	HeaderNodeIP       = "k3s-Node-Ip"
)

// Config is what a server tells nodes about the cluster. Servers must agree on it.
type Config struct {
	ClusterCIDR          string   `json:"clusterCIDR"`
	ServiceCIDR          string   `json:"serviceCIDR"`
	ClusterDNS           string   `json:"clusterDNS"`
	ClusterDomain        string   `json:"clusterDomain"`
	FlannelBackend       string   `json:"flannelBackend"`
	EgressSelectorMode   string   `json:"egressSelectorMode"`
	Disable              []string `json:"disable"`
	DisableKubeProxy     bool     `json:"disableKubeProxy"`
	DisableNetworkPolicy bool     `json:"disableNPC"`
	DisableHelm          bool     `json:"disableHelmController"`
	DisableCCM           bool     `json:"disableCCM"`
	EncryptSecrets       bool     `json:"encryptSecrets"`
	EmbeddedRegistry     bool     `json:"embeddedRegistry"`
	// HTTPSPort is the servers' port.
	HTTPSPort string `json:"httpsPort"`
}

// Bootstrap is what a further server needs to be one.
type Bootstrap struct {
	Files map[string][]byte `json:"files"` // below server/tls and server/cred
}

// TokenRotation asks for another token of the servers, or, when it is empty, for one that the server makes.
type TokenRotation struct {
	NewToken string `json:"newToken,omitempty"`
}

// EtcdJoin asks to become a member of etcd, and answers how.
type EtcdJoin struct {
	Name           string `json:"name"`
	PeerURL        string `json:"peerURL"`
	InitialCluster string `json:"initialCluster,omitempty"`
	Promoted       bool   `json:"promoted,omitempty"`
}

// Client asks one server, or the load balancer before several.
type Client struct {
	URL   string
	Token token.Token
	// CA is the cluster's server CA, which answers are checked against.
	CA   []byte
	http *http.Client
}

// Connect gets the server's CA and compares it with the token. It does not show
// the token.
func Connect(ctx context.Context, url string, t token.Token) (*Client, error) {
	c := &Client{URL: strings.TrimSuffix(url, "/"), Token: t}
	c.http = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} // #nosec G402: the hash is checked below
	ca, err := c.do(ctx, http.MethodGet, "/cacerts", nil, nil, false)
	if err != nil {
		return nil, fmt.Errorf("failed to get CA certs: %w", err)
	}
	if t.Hash != "" && t.Hash != token.Hash(ca) {
		return nil, fmt.Errorf("token CA hash does not match the Cluster CA certificate hash: %s != %s", t.Hash, token.Hash(ca))
	}
	pool, err := pki.Pool(ca)
	if err != nil {
		return nil, fmt.Errorf("%s/cacerts: %w", c.URL, err)
	}
	c.CA = ca
	c.http.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	return c, nil
}

// Get asks for something that needs the token.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	return c.do(ctx, http.MethodGet, path, nil, nil, true)
}

// Post sends something that needs the token.
func (c *Client) Post(ctx context.Context, path string, header http.Header, body []byte) ([]byte, error) {
	return c.do(ctx, http.MethodPost, path, header, body, true)
}

// Put asks for a change that needs the token.
func (c *Client) Put(ctx context.Context, path string, body []byte) error {
	_, err := c.do(ctx, http.MethodPut, path, nil, body, true)
	return err
}

// Config asks for the cluster's settings.
func (c *Client) Config(ctx context.Context) (Config, error) {
	var config Config
	body, err := c.Get(ctx, "/v1-k3s/config")
	if err != nil {
		return config, err
	}
	return config, json.Unmarshal(body, &config)
}

// ErrUnauthorized is the server's answer to a token that is not the cluster's.
var ErrUnauthorized = errors.New("401 Unauthorized")

func (c *Client) do(ctx context.Context, method, path string, header http.Header, body []byte, login bool) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	switch {
	case login && c.Token.IsBootstrap():
		request.Header.Set("Authorization", "Bearer "+c.Token.Password)
	case login:
		user := c.Token.User
		if user == "" {
			user = "node"
		}
		request.SetBasicAuth(user, c.Token.Password)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return nil, err
	}
	switch {
	case response.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("%s%s: %w", c.URL, path, ErrUnauthorized)
	case response.StatusCode/100 != 2:
		if said := strings.TrimSpace(string(text)); said != "" && len(said) < 500 {
			return nil, fmt.Errorf("%s%s: %s: %s", c.URL, path, response.Status, said)
		}
		return nil, fmt.Errorf("%s%s: %s", c.URL, path, response.Status)
	}
	return text, nil
}
