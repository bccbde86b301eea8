// Package push brings the images of a bundle, and its Helm charts if they are asked for, to a registry: Harbor, or
// any other that speaks the OCI distribution specification.
//
// Contract: manifests and image indexes arrive byte for byte, so that digests stay what
// they were upstream. A repository gets the name that the rewrite rules make of its own;
// two images that would get the same tag with different contents are refused before
// anything is sent. What the registry has already is not sent again, and blobs that
// several repositories share are sent once and mounted from there. Blobs go from the
// bundle's file to the connection in small pieces and are hashed on the way. The end of one
// that differs from its digest is withheld, so a damaged bundle is told from a damaging line.
//
// Every request has a deadline. What the network or a busy registry does (broken
// connections, 429 and 503 with Retry-After, server errors) is met by trying again with
// growing pauses, within bounds. A push that was ended anywhere goes on when it is run
// again: tags come last, so that no tag stands for an image whose blobs are missing.
//
// Credentials go nowhere but to the registry and to the token service that it names;
// neither errors nor logs have them.
//
// Requests, logins, mounts and uploads are oras'. What is here besides, it has not:
//   - A transport below it that gives each request a deadline, bounds the answer and makes an
//     [Error] of a refusal. oras would repeat addresses with their queries, and no texts of
//     proxies.
//   - Attempts at a blob, each with a new reader and after asking whether it is there: oras
//     tries again what it can rewind.
//   - The plan, which a dry run prints and a push follows: what is missing, what is sent and
//     what is mounted, over all repositories. oras.CopyGraph copies to one and plans nothing;
//     docs/adr/0006-push-plan.md says what else it would cost.
//   - Uploads at other hosts and token services at private addresses, both of which oras
//     refuses, and the choice among several challenges, of which it reads the first.
package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/registry/rewrite"
)

// Options says what goes where. Bundle and Address are needed.
type Options struct {
	// Bundle is open until the push has ended. Whoever calls has verified its signature.
	Bundle *bundle.Reader
	// Platforms are those whose images are pushed; none means all that are carried.
	Platforms []lock.Platform
	// Address is the registry's host or host:port, without a scheme.
	Address string
	// Rewrites give repositories other names on the registry.
	Rewrites rewrite.Rules
	// ChartsTo is the repository prefix below which the bundle's Helm charts are pushed, such as "plant/charts", in
	// the form that Helm pulls; "" pushes none. Rewrites do not change it.
	ChartsTo string

	// Username and Password are sent as they are. Without a username, Keychain is asked.
	Username, Password string
	// Keychain may be nil: then the push is anonymous where Username is empty.
	Keychain authn.Keychain

	// CA holds certificates in PEM of authorities that are trusted beside the system's.
	CA []byte
	// PlainHTTP uses http instead of https, for credentials too.
	PlainHTTP bool
	// InsecureSkipTLSVerify accepts any certificate.
	InsecureSkipTLSVerify bool

	// RequireIndexDigests makes it an error when the registry refuses an image index
	// because the bundle does not carry all that the index names.
	RequireIndexDigests bool
	// Jobs is the number of requests at a time; 0 means 6.
	Jobs int
	// UserAgent is sent with every request; empty means "boxlift".
	UserAgent string
	// Reporter may be nil.
	Reporter progress.Reporter
	// Log is told of every request, at level debug; nil discards it.
	Log *slog.Logger
}

// State says where an image is.
type State string

// States of an image. Missing is known of after a check, Pushed after a push.
const (
	Present State = "present"
	Missing State = "missing"
	Pushed  State = "pushed"
)

// Result is what a check found or a push did.
type Result struct {
	Registry string  `json:"registry"`
	Images   []Image `json:"images"`
	// Charts are there where they were asked for.
	Charts []Chart `json:"charts,omitempty"`
	// Upload, Mount and Present count blobs of images, once for each repository that
	// holds them: those that were (or have to be) sent, that were (or can be) mounted
	// from another repository, and that were there.
	Upload  Amount `json:"upload"`
	Mount   Amount `json:"mount"`
	Present Amount `json:"present"`
}

// Amount is a number of blobs and their bytes.
type Amount struct {
	Blobs int   `json:"blobs"`
	Bytes int64 `json:"bytes"`
}

func (a *Amount) add(size int64) {
	a.Blobs++
	a.Bytes += size
}

// Image is an image of the bundle on the registry.
type Image struct {
	// Name is the bundle's, Target the registry's, both with a tag.
	Name   string `json:"name"`
	Target string `json:"target"`
	// Digest is what the name stands for upstream and in the bundle.
	Digest digest.Digest `json:"digest"`
	// TargetDigest is what the tag stands for on the registry now: nothing before the
	// push, and another digest than Digest where an index could not be kept.
	TargetDigest digest.Digest `json:"targetDigest,omitempty"`
	// Sparse says that Digest is that of an image index of which the bundle carries, or
	// Platforms asks for, only a part. Not every registry takes such an index.
	Sparse bool `json:"sparse,omitempty"`
	// Replaces is what the tag stood for before, if that was something else.
	Replaces  digest.Digest   `json:"replaces,omitempty"`
	Platforms []lock.Platform `json:"platforms"`
	State     State           `json:"state"`
	// Upload is the size in bytes of those blobs that are sent for this image and not for
	// an earlier one.
	Upload int64 `json:"upload"`
}

// Chart is a Helm chart of the bundle on the registry.
type Chart struct {
	// Name is that of the archive in the bundle, Target the registry's with its tag.
	Name   string `json:"name"`
	Target string `json:"target"`
	// Digest is that of the manifest, which is made of the chart and has the same bytes each time.
	Digest digest.Digest `json:"digest"`
	// Replaces is what the tag stood for before, if that was something else.
	Replaces digest.Digest `json:"replaces,omitempty"`
	State    State         `json:"state"`
	// Upload is that of [Image].
	Upload int64 `json:"upload"`
}

// Kept reports whether the tag stands for the digest that the image has upstream.
func (i Image) Kept() bool { return i.TargetDigest == i.Digest }

// Changed returns the images whose index digests were not kept: their platforms'
// manifests have the digests that they have upstream, but the index that the tag stands
// for is another one. Whoever refers to such an image by its index digest will not find it.
func (r *Result) Changed() []Image {
	var changed []Image
	for _, i := range r.Images {
		if i.TargetDigest != "" && !i.Kept() {
			changed = append(changed, i)
		}
	}
	return changed
}

// Complete reports whether the registry has every image, and every chart that was asked for.
func (r *Result) Complete() bool {
	return !slices.ContainsFunc(r.Images, func(i Image) bool { return i.State == Missing }) &&
		!slices.ContainsFunc(r.Charts, func(c Chart) bool { return c.State == Missing })
}

// Push brings what is missing to the registry. When it fails, what was finished is kept.
func Push(ctx context.Context, o Options) (*Result, error) {
	p, err := newPusher(o, auth.ActionPull, auth.ActionPush)
	if err != nil {
		return nil, err
	}
	defer p.client.close()
	work, err := p.check(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.transfer(ctx, work); err != nil {
		return nil, err
	}
	return p.result(), nil
}

// Check finds out what the registry has and what a push would send. It changes nothing
// there and needs the right to pull only.
func Check(ctx context.Context, o Options) (*Result, error) {
	p, err := newPusher(o, auth.ActionPull)
	if err != nil {
		return nil, err
	}
	defer p.client.close()
	if _, err := p.check(ctx); err != nil {
		return nil, err
	}
	return p.result(), nil
}

// pusher is one push or check.
type pusher struct {
	options Options
	client  *client
	// images are those of the bundle, in its order; several of them may share a target.
	images  []named
	charts  []named
	targets []*destination
	// made is what is pushed and is not in the bundle: manifests and configs of charts.
	made    map[digest.Digest][]byte
	counted Result // without images and charts
}

func newPusher(o Options, actions ...string) (*pusher, error) {
	if o.Bundle == nil {
		return nil, errors.New("push: no bundle is given")
	}
	if o.Jobs == 0 {
		o.Jobs = 6
	}
	if o.UserAgent == "" {
		o.UserAgent = "boxlift"
	}
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	client, err := newClient(o, actions...)
	if err != nil {
		return nil, err
	}
	p := &pusher{options: o, client: client}
	contents, err := o.Bundle.Contents()
	if err != nil {
		return nil, err
	}
	if err := p.place(contents.Images); err != nil {
		return nil, fmt.Errorf("push to %s: %w", client.host, err)
	}
	if o.ChartsTo != "" {
		if err := p.placeCharts(); err != nil {
			return nil, fmt.Errorf("push to %s: %w", client.host, err)
		}
	}
	return p, nil
}

// result says how things are at the end.
func (p *pusher) result() *Result {
	r := p.counted
	r.Registry = p.client.host
	r.Images = []Image{}
	for _, n := range p.images {
		t := n.target
		i := Image{
			Name: n.name, Target: p.client.host + "/" + t.reference(), Digest: t.root.Digest, TargetDigest: t.tagged,
			Sparse:   t.sparse(),
			Replaces: t.replaces, State: t.state, Upload: t.upload,
		}
		for _, image := range t.platforms {
			i.Platforms = append(i.Platforms, image.Platform)
		}
		r.Images = append(r.Images, i)
	}
	for _, n := range p.charts {
		t := n.target
		r.Charts = append(r.Charts, Chart{
			Name: n.name, Target: p.client.host + "/" + t.reference(), Digest: t.root.Digest, Replaces: t.replaces,
			State: t.state, Upload: t.upload,
		})
	}
	return &r
}
