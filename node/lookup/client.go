package lookup

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/internal/printable"
)

const (
	maxManifest  = 4 << 20  // bytes, which is what registries take
	maxFailure   = 64 << 10 // bytes of an answer that says no
	maxToken     = 1 << 20
	maxFile      = 1 << 20 // of certificates
	maxValues    = 1 << 17 // of JSON
	maxRedirects = 10      // as Go's client, which is containerd's
	maxText      = 300
	// askTime is how long one question may take, its redirects included.
	askTime = 15 * time.Second
)

// Media types of manifests that containerd takes.
const (
	typeIndex        = "application/vnd.oci.image.index.v1+json"
	typeManifest     = "application/vnd.oci.image.manifest.v1+json"
	typeDockerList   = "application/vnd.docker.distribution.manifest.list.v2+json"
	typeDockerSingle = "application/vnd.docker.distribution.manifest.v2+json"
)

var manifestTypes = strings.Join([]string{typeDockerSingle, typeDockerList, typeManifest, typeIndex, "*/*"}, ", ")

// client talks to one registry.
type client struct {
	Registry
	http *http.Client
	// broken is why nothing can be asked: a file of certificates that is not there.
	broken error

	mu sync.Mutex
	// authorization is the header field that lets in, by repository: tokens are good for one.
	authorization map[string]string
}

func newClient(r Registry, dial func(context.Context, string, string) (net.Conn, error)) *client {
	c := &client{Registry: r, authorization: make(map[string]string)}
	config, err := c.tls()
	c.broken = err
	c.http = &http.Client{CheckRedirect: checkRedirect, Transport: &http.Transport{
		DialContext: dial, TLSClientConfig: config, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: atOnce,
	}}
	return c
}

func (c *client) close() { c.http.CloseIdleConnections() }

// checkRedirect follows as Go does, and keeps what began over TLS there.
func checkRedirect(to *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("it redirects more than %d times", maxRedirects)
	}
	if via[0].Method != http.MethodGet {
		return errors.New("it redirects, and what was sent has a login in it")
	}
	if via[0].URL.Scheme == "https" && to.URL.Scheme != "https" {
		return fmt.Errorf("it redirects from https to %s", to.URL.Scheme)
	}
	return nil
}

// tls trusts what the host trusts, and what is given besides.
func (c *client) tls() (*tls.Config, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool,
		InsecureSkipVerify: c.Insecure} // #nosec G402: only where install.yaml asks for it
	if c.Authorities != "" && !pool.AppendCertsFromPEM([]byte(c.Authorities)) {
		return nil, errors.New("the authorities that came with the question are no certificates")
	}
	if c.CAFile != "" {
		content, err := readFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("its authority: %w", err)
		}
		if !pool.AppendCertsFromPEM(content) {
			return nil, fmt.Errorf("its authority: %s holds no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile == "" {
		return config, nil
	}
	certificate, err := readFile(c.CertFile)
	if err != nil {
		return nil, fmt.Errorf("the certificate to log in with: %w", err)
	}
	key, err := readFile(c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("the key to log in with: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s are no certificate and its key", c.CertFile, c.KeyFile)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", name, maxFile)
	}
	return os.ReadFile(name)
}

// answerError is an answer that is no image.
type answerError struct {
	state State
	text  string
}

func (e *answerError) Error() string { return e.text }

func odd(format string, args ...any) error {
	return &answerError{Odd, fmt.Sprintf(format, args...)}
}

// find asks for one image.
func (c *client) find(ctx context.Context, s Source, platform string) Answer {
	err := c.broken
	if err == nil {
		err = c.look(ctx, s, platform)
	}
	var answered *answerError
	switch {
	case err == nil:
		return Answer{State: Found}
	case errors.As(err, &answered):
		return Answer{State: answered.state, Detail: c.clean(answered.text)}
	}
	return Answer{State: Unreached, Detail: c.clean(plain(ctx, err))}
}

// clean makes a text fit to be shown. A registry might repeat what it was sent.
func (c *client) clean(text string) string {
	for _, secret := range []string{c.Password, c.Basic, c.IdentityToken} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return printable.Short(text, maxText)
}

// plain is an error without the address of the request: after redirects it may hold a signature.
func plain(ctx context.Context, err error) string {
	var with *url.Error
	if errors.As(err, &with) {
		err = with.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		if cause := context.Cause(ctx); cause != nil {
			return cause.Error()
		}
		return fmt.Sprintf("no answer within %s", askTime)
	}
	return err.Error()
}

type descriptor struct {
	MediaType string        `json:"mediaType"`
	Digest    digest.Digest `json:"digest"`
	Platform  *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// look goes from the reference to the manifest of the platform.
func (c *client) look(ctx context.Context, s Source, platform string) error {
	content, mediaType, err := c.get(ctx, s, "manifests/"+s.Reference)
	if err != nil {
		return err
	}
	var m struct {
		MediaType string       `json:"mediaType"`
		Config    *descriptor  `json:"config"`
		Manifests []descriptor `json:"manifests"`
	}
	if err := boundedjson.Unmarshal(content, &m, maxValues); err != nil {
		return odd("what it has under that name is no manifest")
	}
	if m.MediaType != "" {
		mediaType = m.MediaType
	}
	switch {
	case mediaType == typeIndex || mediaType == typeDockerList || m.Manifests != nil:
		var others []string
		for _, d := range m.Manifests {
			if d.Platform == nil {
				continue
			}
			name := d.Platform.OS + "/" + d.Platform.Architecture
			if name == platform {
				_, _, err := c.get(ctx, s, "manifests/"+d.Digest.String())
				return err
			}
			if !slices.Contains(others, name) && name != "unknown/unknown" {
				others = append(others, name)
			}
		}
		return &answerError{OtherPlatform, "it has it for " + strings.Join(others, ", ") + " only"}
	case m.Config == nil:
		return odd("what it has under that name is no manifest that containerd takes, but %.100q", mediaType)
	}
	config, _, err := c.get(ctx, s, "blobs/"+m.Config.Digest.String())
	if err != nil {
		return err
	}
	var image struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	}
	if err := boundedjson.Unmarshal(config, &image, maxValues); err != nil {
		return odd("the image's config is not JSON")
	}
	if name := image.OS + "/" + image.Architecture; name != platform {
		return &answerError{OtherPlatform, "it has it for " + name + " only"}
	}
	return nil
}

// get reads a manifest or a config, and proves what was asked for by digest.
func (c *client) get(ctx context.Context, s Source, path string) (content []byte, mediaType string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_, reference, _ := strings.Cut(path, "/")
	want := digest.Digest(reference)
	isDigest := strings.Contains(reference, ":")
	if isDigest && (want.Validate() != nil || want.Algorithm() != digest.SHA256) {
		return nil, "", odd("it names %.100q, which is no sha256", reference)
	}
	response, err := c.send(ctx, s.Repository, path)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	if response.StatusCode != http.StatusOK {
		return nil, "", refusal(response)
	}
	content, err = io.ReadAll(io.LimitReader(response.Body, maxManifest+1))
	switch {
	case err != nil:
		return nil, "", err
	case len(content) > maxManifest:
		return nil, "", odd("its answer has more than %d bytes", maxManifest)
	case isDigest && digest.FromBytes(content) != want:
		return nil, "", odd("its answer to %s has the digest %s", want, digest.FromBytes(content))
	}
	mediaType, _, _ = strings.Cut(response.Header.Get("Content-Type"), ";")
	return content, strings.TrimSpace(mediaType), nil
}

// refusal says what a registry answers instead of what was asked for.
func refusal(r *http.Response) error {
	text := r.Status
	content, err := io.ReadAll(io.LimitReader(r.Body, maxFailure))
	var body struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"errors"`
	}
	if err == nil && boundedjson.Unmarshal(content, &body, maxValues) == nil && len(body.Errors) > 0 {
		text += ": " + strings.TrimSuffix(body.Errors[0].Code+": "+body.Errors[0].Message, ": ")
	}
	state := Odd
	switch r.StatusCode {
	case http.StatusNotFound:
		state = Absent
	case http.StatusUnauthorized, http.StatusForbidden:
		state = Denied
	}
	return &answerError{state, "it answers " + text}
}

// send asks once, and once more with what the registry wants to be shown.
func (c *client) send(ctx context.Context, repository, path string) (*http.Response, error) {
	c.mu.Lock()
	known := c.authorization[repository]
	c.mu.Unlock()
	response, err := c.ask(ctx, repository, path, known)
	if err != nil || response.StatusCode != http.StatusUnauthorized {
		return response, err
	}
	field, err := c.authorize(ctx, repository, response)
	if err != nil {
		_ = response.Body.Close() // nothing of it is needed
		return nil, err
	}
	if field == "" || field == known {
		return response, nil
	}
	_ = response.Body.Close() // nothing of it is needed
	c.mu.Lock()
	c.authorization[repository] = field
	c.mu.Unlock()
	return c.ask(ctx, repository, path, field)
}

func (c *client) ask(ctx context.Context, repository, path, authorization string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/"+repository+"/"+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "boxlift-node")
	request.Header.Set("Accept", manifestTypes)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	return c.http.Do(request)
}

// basic is the login for Basic, "" for none.
func (c *client) basic() string {
	switch {
	case c.Basic != "":
		return "Basic " + c.Basic
	case c.Username != "":
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(c.Username+":"+c.Password))
	}
	return ""
}

// authorize is what to show to a registry that has asked for it, "" where there is nothing.
func (c *client) authorize(ctx context.Context, repository string, r *http.Response) (string, error) {
	var basic bool
	for _, field := range r.Header.Values("WWW-Authenticate") {
		scheme, parameters := parseChallenge(field)
		switch scheme {
		case "bearer":
			token, err := c.token(ctx, repository, parameters)
			if token != "" {
				token = "Bearer " + token
			}
			return token, err
		case "basic":
			basic = true
		}
	}
	if basic {
		return c.basic(), nil
	}
	return "", nil
}

// token asks the registry's token service.
func (c *client) token(ctx context.Context, repository string, parameters map[string]string) (string, error) {
	realm, err := url.Parse(parameters["realm"])
	if err != nil || realm.Scheme != "https" && realm.Scheme != "http" || realm.Hostname() == "" {
		return "", odd("the token service that it names, %.200q, is no address", parameters["realm"])
	}
	if realm.Scheme == "http" && strings.HasPrefix(c.URL, "https:") {
		return "", odd("the token service that it names, %s, has no TLS: no login is sent there", realm.Host)
	}
	scope := parameters["scope"]
	if scope == "" {
		scope = "repository:" + repository + ":pull"
	}
	values := url.Values{"scope": {scope}}
	if service := parameters["service"]; service != "" {
		values.Set("service", service)
	}
	method, body := http.MethodGet, io.Reader(nil)
	if c.IdentityToken != "" {
		values.Set("grant_type", "refresh_token")
		values.Set("refresh_token", c.IdentityToken)
		values.Set("client_id", "boxlift-node")
		method, body = http.MethodPost, strings.NewReader(values.Encode())
	} else {
		query := realm.Query()
		for key, value := range values {
			query[key] = value
		}
		realm.RawQuery = query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, realm.String(), body)
	if err != nil {
		return "", err
	}
	request.Header.Set("User-Agent", "boxlift-node")
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	} else if login := c.basic(); login != "" {
		request.Header.Set("Authorization", login)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return "", fmt.Errorf("its token service %s: %s", realm.Host, plain(ctx, err))
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	if response.StatusCode != http.StatusOK {
		refused := refusal(response)
		state := Odd
		if response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden ||
			response.StatusCode == http.StatusBadRequest && c.IdentityToken != "" {
			state = Denied
		}
		return "", &answerError{state, "its token service " + realm.Host + ": " + refused.Error()}
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, maxToken+1))
	if err != nil {
		return "", err
	}
	var given struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if len(content) > maxToken || json.NewDecoder(bytes.NewReader(content)).Decode(&given) != nil {
		return "", odd("its token service %s: the answer is no token", realm.Host)
	}
	token := given.Token
	if token == "" {
		token = given.AccessToken
	}
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", odd("its token service %s: the answer is no token", realm.Host)
	}
	return token, nil
}

// parseChallenge reads one challenge of a WWW-Authenticate field (RFC 9110, section 11.6.1): its scheme in small
// letters, and its parameters. What follows a fault is left out.
func parseChallenge(field string) (scheme string, parameters map[string]string) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(field), " ")
	parameters = make(map[string]string)
	for {
		rest = strings.TrimLeft(rest, " \t,")
		key, after, found := strings.Cut(rest, "=")
		if !found {
			return strings.ToLower(scheme), parameters
		}
		key, after = strings.ToLower(strings.TrimSpace(key)), strings.TrimLeft(after, " \t")
		var value string
		if quoted, ok := strings.CutPrefix(after, `"`); ok {
			var text strings.Builder
			isClosed := false
			for i := 0; i < len(quoted) && !isClosed; i++ {
				switch ch := quoted[i]; {
				case ch == '"':
					isClosed = true
					rest = quoted[i+1:]
				case ch == '\\' && i+1 < len(quoted):
					i++
					text.WriteByte(quoted[i])
				default:
					text.WriteByte(ch)
				}
			}
			if !isClosed {
				return strings.ToLower(scheme), parameters
			}
			value = text.String()
		} else {
			value, rest, _ = strings.Cut(after, ",")
			value = strings.TrimSpace(value)
		}
		if _, ok := parameters[key]; !ok {
			parameters[key] = value
		}
	}
}
