// Package lookup asks registries whether a host will get images from them, before any container wants one.
//
// "boxlift-node lookup" reads one line of JSON, a [Request], asks, and prints one line, a [Report]. It changes nothing
// and leaves nothing behind. Logins come over standard input alone, and no text that it prints has one.
//
// It asks as containerd does when it pulls (core/remotes/docker of containerd 2.1): the registries in their order,
// until one has the image; with a login by Basic, or by a token of the service that the registry names; through
// redirects, without the login where they lead to another host; trusting the host's own authorities and those that it
// is given. An image is found when its manifest for the platform and, where no index tells the platform, its config
// can be had, with the bytes that their digests promise. Layers are not asked for. Proxies are not used.
//
// Requests come from boxlift and answers from registries and hosts: both are bounded and read strictly.
package lookup

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/node/wire"
)

// Version is the version of these documents.
const Version = 1

// Bounds of a request.
const (
	MaxImages     = 512
	MaxSources    = 16 // of one image
	MaxRegistries = 64
	// MaxTime is the longest that it may take.
	MaxTime = 2 * time.Minute

	atOnce = 8 // images
)

// Registry is where images may be, and how to talk to it.
type Registry struct {
	// URL is what paths of the API are put to, such as https://harbor.lan/v2.
	URL string `json:"url"`
	// Username and Password are a login, or Basic, which is base64 of both with a colon, or IdentityToken.
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	Basic         string `json:"basic,omitempty"`
	IdentityToken string `json:"identityToken,omitempty"`
	// Authorities are certificates in PEM that are trusted beside the host's own; CAFile is a file of the host with such.
	Authorities string `json:"authorities,omitempty"`
	CAFile      string `json:"caFile,omitempty"`
	// CertFile and KeyFile are files of the host: a certificate to log in with.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// Insecure takes any certificate.
	Insecure bool `json:"insecure,omitempty"`
}

// Source is a place where an image may be.
type Source struct {
	Registry   int    `json:"registry"` // of the request's
	Repository string `json:"repository"`
	Reference  string `json:"reference"` // a tag, or a digest
}

// Request says what to ask.
type Request struct {
	Version int `json:"version"`
	// Platform is what images are to run on, such as linux/amd64.
	Platform string `json:"platform"`
	// Addresses are those of names that the host may not resolve yet.
	Addresses  map[string]string `json:"addresses,omitempty"`
	Registries []Registry        `json:"registries"`
	// Images have their sources in the order in which they are asked.
	Images [][]Source `json:"images"`
	// Milliseconds is how long to ask at most.
	Milliseconds int `json:"milliseconds"`
}

// State says what came of a question.
type State string

// What can come of a question.
const (
	Found         State = "found"
	Absent        State = "absent"         // the registry answers, and has no such image
	Denied        State = "denied"         // it wants another login
	OtherPlatform State = "other-platform" // it has it for other platforms
	Unreached     State = "unreached"      // there was no answer: no route, a name, a certificate, a time-out
	Odd           State = "odd"            // it was answered otherwise
)

// Answer is what a source of an image has said.
type Answer struct {
	State State `json:"state"`
	// Detail is the registry's or the system's word for it, for all but Found.
	Detail string `json:"detail,omitempty"`
}

// Report has the answers of each image's sources, up to the first that has it, in the order of the request.
type Report struct {
	Version int        `json:"version"`
	Images  [][]Answer `json:"images"`
}

// Grammar of the distribution specification 1.1, "Pulling manifests".
var (
	repositoryPattern = lazyregexp.New(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	referencePattern  = lazyregexp.New(`^([a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}|sha256:[0-9a-f]{64})$`)
	platformPattern   = lazyregexp.New(`^[a-z0-9]{1,30}/[a-z0-9]{1,30}$`)
)

// Check reports what is wrong with a request, as an error that wraps [wire.ErrProtocol].
func (r *Request) Check() error {
	switch {
	case r.Version != Version:
		return fmt.Errorf("%w: the version is %d, but this boxlift-node speaks version %d", wire.ErrProtocol, r.Version,
			Version)
	case !platformPattern.MatchString(r.Platform):
		return fmt.Errorf("%w: %.50q is no platform", wire.ErrProtocol, r.Platform)
	case r.Milliseconds < 1 || r.Milliseconds > int(MaxTime.Milliseconds()):
		return fmt.Errorf("%w: the time is %d ms, expected 1 to %d", wire.ErrProtocol, r.Milliseconds,
			MaxTime.Milliseconds())
	case len(r.Images) > MaxImages || len(r.Registries) > MaxRegistries:
		return fmt.Errorf("%w: %d images and %d registries are more than %d and %d", wire.ErrProtocol, len(r.Images),
			len(r.Registries), MaxImages, MaxRegistries)
	}
	for _, one := range r.Registries {
		u, err := url.Parse(one.URL)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" || strings.HasSuffix(u.Path, "/") {
			return fmt.Errorf("%w: %.200q is no address of a registry", wire.ErrProtocol, one.URL)
		}
		if _, err := base64.StdEncoding.DecodeString(one.Basic); err != nil {
			return fmt.Errorf("%w: the login of %s is not base64", wire.ErrProtocol, one.URL) // its text would have it
		}
	}
	for _, sources := range r.Images {
		if len(sources) > MaxSources {
			return fmt.Errorf("%w: %d sources of an image are more than %d", wire.ErrProtocol, len(sources), MaxSources)
		}
		for _, s := range sources {
			if s.Registry < 0 || s.Registry >= len(r.Registries) || len(s.Repository) > 255 ||
				!repositoryPattern.MatchString(s.Repository) || !referencePattern.MatchString(s.Reference) {
				return fmt.Errorf("%w: %.300q with %.200q is no source of an image", wire.ErrProtocol, s.Repository,
					s.Reference)
			}
		}
	}
	return nil
}

// ReadReport reads what a host says to a request. Its texts are made fit for a terminal.
func ReadReport(from io.Reader, r *Request) (*Report, error) {
	var report Report
	if _, err := wire.ReadLine(from, &report); err != nil {
		return nil, err
	}
	if report.Version != Version || len(report.Images) != len(r.Images) {
		return nil, fmt.Errorf("%w: version %d with %d images, expected version %d with %d", wire.ErrProtocol,
			report.Version, len(report.Images), Version, len(r.Images))
	}
	for i, answers := range report.Images {
		if err := checkAnswers(answers, len(r.Images[i])); err != nil {
			return nil, err
		}
	}
	return &report, nil
}

func checkAnswers(answers []Answer, sources int) error {
	for i := range answers {
		a := &answers[i]
		var err error
		if a.Detail, err = wire.CleanText(a.Detail, "detail"); err != nil {
			return err
		}
		isLast := i == len(answers)-1
		switch a.State {
		case Found:
			if !isLast {
				return fmt.Errorf("%w: there are answers after the one that found an image", wire.ErrProtocol)
			}
		case Absent, Denied, OtherPlatform, Unreached, Odd:
			if isLast && len(answers) != sources {
				return fmt.Errorf("%w: %d answers of %d sources", wire.ErrProtocol, len(answers), sources)
			}
		default:
			return fmt.Errorf("%w: an answer is %.50q", wire.ErrProtocol, string(a.State))
		}
	}
	if len(answers) > sources || len(answers) == 0 && sources > 0 {
		return fmt.Errorf("%w: %d answers of %d sources", wire.ErrProtocol, len(answers), sources)
	}
	return nil
}

// Run is "boxlift-node lookup". Whatever registries say is no error.
func Run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var r Request
	if _, err := wire.ReadLine(stdin, &r); err != nil {
		return errors.New("the request cannot be read") // what is wrong with it may quote a password
	}
	if err := r.Check(); err != nil {
		return err
	}
	limit := time.Duration(r.Milliseconds) * time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no end of all questions within %s: %w", limit,
		context.DeadlineExceeded))
	defer cancel()
	clients := make([]*client, len(r.Registries))
	for i, one := range r.Registries {
		clients[i] = newClient(one, r.dial)
		defer clients[i].close()
	}
	report := Report{Version: Version, Images: make([][]Answer, len(r.Images))}
	var work sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i, sources := range r.Images {
		turns <- struct{}{}
		work.Go(func() {
			defer func() { <-turns }()
			report.Images[i] = []Answer{}
			for _, s := range sources {
				a := clients[s.Registry].find(ctx, s, r.Platform)
				report.Images[i] = append(report.Images[i], a)
				if a.State == Found {
					break
				}
			}
		})
	}
	work.Wait()
	return wire.WriteLine(stdout, report)
}

// dial connects to a host by the address that the request has for its name, or by what the host finds.
func (r *Request) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil {
		if known, ok := r.Addresses[host]; ok {
			address = net.JoinHostPort(known, port)
		}
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}
