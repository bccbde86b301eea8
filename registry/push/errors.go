package push

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/liteboxd/boxlift/internal/httpanswer"
)

// Error says that the registry could not be asked, or refused.
type Error struct {
	// Registry is host[:port]; Repository is empty where the error is about all of it.
	Registry, Repository string
	// Status is the HTTP status of the answer, or 0 when there was none.
	Status int
	// Codes are the registry's own, such as DENIED or NAME_UNKNOWN (OCI distribution
	// specification 1.1, "Error Codes").
	Codes []string
	Err   error

	what       string
	anonymous  bool
	plainHTTP  bool
	temporary  bool
	streamed   bool // the request's body can be sent once only
	retryAfter time.Duration
}

func (e *Error) Error() string {
	place := e.Registry
	if e.Repository != "" {
		place += "/" + e.Repository
	}
	return fmt.Sprintf("%s: %s: %v", place, e.what, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Hint says what a user may do about the error.
func (e *Error) Hint() string {
	text := strings.ToLower(e.Err.Error())
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	if e.Status == 0 {
		return e.connectionHint()
	}
	switch {
	case says("quota"):
		return "the project's quota is used up: raise it in Harbor (Administration, Project Quotas), or delete " +
			"artifacts " +
			"that are no longer needed and run Harbor's garbage collection; what was sent is kept"
	case says("read only", "read-only", "readonly"), e.Status == http.StatusMethodNotAllowed:
		return "the registry takes no changes now (read-only mode, in Harbor also while garbage is collected): try " +
			"again " +
			"later, or end that mode"
	case says("immutable"):
		return "a tag immutability rule protects a tag that stands for something else: exclude the project from that " +
			"rule, or push to another project with a rewrite rule"
	case says("proxy project"):
		return "that project is a proxy cache, which takes nothing that is pushed: put the images into another with " +
			"--rewrite"
	case says("http request to an https server", "http request was sent to https port"):
		return "the registry speaks https on this port: leave --plain-http out"
	case e.Status == http.StatusNotFound && slices.Contains(e.Codes, "NAME_UNKNOWN"), says("project") &&
		says("not found"):
		project, _, _ := strings.Cut(e.Repository, "/")
		return fmt.Sprintf("Harbor makes no projects by itself: make the project %q first, or put the images into "+
			"another with --rewrite", project)
	case e.Status == http.StatusUnauthorized && e.anonymous:
		return "the registry asks for credentials and none are given for it: --username with --password-file, or " +
			"docker login"
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return "check name, password and expiry, and the right to push to that project; in Harbor a missing project is " +
			"refused in the same way. A robot account's name has a $ in it, which a shell takes for a variable: " +
			"quote it, " +
			"as in --username 'robot$name'"
	case e.Status == http.StatusRequestEntityTooLarge:
		return "a proxy in front of the registry limits the size of uploads: lift the limit there (nginx: " +
			"client_max_body_size 0)"
	case e.Status == http.StatusNotFound:
		return "check the address: is it a registry's? On Harbor a repository needs a project in front of it, which " +
			"--rewrite gives: registry=*,match='^(.*)$',replace='PROJECT/$1'"
	case e.Status == http.StatusTooManyRequests:
		return "the registry limits requests: run the command again later, with fewer --jobs; what was sent is kept"
	}
	return "run the command again, what was sent is kept; if it is refused again, the registry's own log says more"
}

// connectionHint is about requests that got no answer.
func (e *Error) connectionHint() string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var lookup *net.DNSError
	switch {
	case errors.As(e.Err, &unknown):
		return "name the certificate of the registry's own authority with --ca-file"
	case errors.As(e.Err, &host):
		return "use a name that the certificate is for"
	case errors.As(e.Err, &invalid) && invalid.Reason == x509.Expired:
		return "renew the registry's certificate, or set this host's clock"
	case errors.As(e.Err, &record), strings.Contains(e.Err.Error(), "HTTP response to HTTPS client"):
		return "the registry does not speak TLS on this port: use another port, or --plain-http if it has no TLS at all"
	case e.plainHTTP && strings.Contains(e.Err.Error(), "malformed HTTP response"):
		return "the registry seems to speak https on this port: leave --plain-http out"
	case errors.As(e.Err, &lookup):
		return "check the registry's name and this host's resolver"
	}
	return "check the address, the connection and proxy settings, then run the command again; what was sent is kept"
}

// failure is an error of a request that got no answer.
func (c *client) failure(s *subject, err error) *Error {
	e := c.newError(s, err)
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var lookup *net.DNSError
	switch {
	case errors.As(err, &certificate), errors.As(err, &record), errors.Is(err, errRedirect),
		strings.Contains(err.Error(), "HTTP response to HTTPS client"):
	case errors.As(err, &lookup) && lookup.IsNotFound:
	default:
		e.temporary = true
	}
	return e
}

// refusal is an error that the registry has answered with.
func (c *client) refusal(s *subject, response *http.Response, content []byte) *Error {
	var detail struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Detail  any    `json:"detail"`
		} `json:"errors"`
	}
	var texts []string
	var codes []string
	if json.Unmarshal(content, &detail) == nil && len(detail.Errors) > 0 {
		for _, d := range detail.Errors[:min(len(detail.Errors), 5)] {
			codes = append(codes, d.Code)
			text := d.Code + ": " + d.Message
			if said, ok := d.Detail.(string); ok && said != "" {
				text += " (" + said + ")"
			}
			texts = append(texts, text)
		}
	} else {
		texts = append(texts, string(content))
	}
	text := httpanswer.Text(strings.Join(texts, "; "), maxText)
	if text != "" {
		text = ": " + text
	}
	e := c.newError(s, fmt.Errorf("the registry answered %s%s", httpanswer.Text(response.Status, maxText), text))
	e.Status, e.Codes = response.StatusCode, codes
	switch status := response.StatusCode; {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		e.temporary = true
		e.retryAfter = httpanswer.RetryAfter(response.Header.Get("Retry-After"), time.Now())
	case status == http.StatusInsufficientStorage, status == http.StatusNotImplemented:
	default:
		e.temporary = status >= 500 || status == http.StatusRequestTimeout
	}
	return e
}

func (c *client) newError(s *subject, err error) *Error {
	return &Error{
		Registry: c.host, Repository: s.repository, Err: err, what: s.what,
		anonymous: c.credential == auth.EmptyCredential, plainHTTP: c.base.Scheme == "http",
	}
}

// has reports whether the registry gave one of these codes.
func (e *Error) has(codes ...string) bool {
	return slices.ContainsFunc(codes, func(code string) bool { return slices.Contains(e.Codes, code) })
}

// noAnswer takes out of an error what is said elsewhere, and says why a deadline ended
// the request.
func noAnswer(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var record tls.RecordHeaderError
	if errors.As(err, &record) && string(record.RecordHeader[:]) == "HTTP/" {
		return http.ErrSchemeMismatch
	}
	var repeated *url.Error
	if errors.As(err, &repeated) {
		return repeated.Err
	}
	return err
}
