package push

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/liteboxd/boxlift/bundle/format"
)

var manifestTypes = strings.Join([]string{
	ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, format.DockerManifestList, format.DockerManifest,
}, ", ")

// content is a manifest or a blob in a repository.
type content struct {
	repository string
	digest     digest.Digest
}

// work is what a push has to do about one blob.
type work struct {
	digest digest.Digest
	size   int64
	// has are the repositories that have it, lack those that need it, in order.
	has, lack []string
	first     *destination // the first that needs it
}

// check asks for tags, then for the manifests of those that may be incomplete, and for
// blobs only where manifests are missing.
func (p *pusher) check(ctx context.Context) ([]*work, error) {
	if err := p.client.ping(ctx); err != nil {
		return nil, err
	}
	if err := p.checkTags(ctx); err != nil {
		return nil, err
	}
	manifests, err := p.checkManifests(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range p.targets {
		for _, image := range t.platforms {
			if d := image.Manifest; t.isIndex() && !manifests[content{t.repository, d.Digest}] {
				t.lacking = append(t.lacking, d)
			}
		}
		if t.tagged != "" && len(t.lacking) == 0 {
			t.state = Present
		}
	}
	return p.checkBlobs(ctx, manifests)
}

// checkTags finds out what the tags stand for.
func (p *pusher) checkTags(ctx context.Context) error {
	group, ctx := p.group(ctx)
	for _, t := range p.targets {
		group.Go(func() error {
			found, err := p.digestOf(ctx, t)
			if err != nil {
				return err
			}
			switch {
			case found == t.root.Digest:
				t.tagged = found
			case t.sparse() && !p.options.RequireIndexDigests && found == digest.FromBytes(t.reduced):
				t.tagged = found
			default:
				t.replaces = found
			}
			return nil
		})
	}
	return group.Wait()
}

// digestOf returns what a tag stands for, or "" when it is not there.
func (p *pusher) digestOf(ctx context.Context, t *destination) (digest.Digest, error) {
	s := subject{repository: t.repository, what: "look for " + t.tag}
	header, err := p.client.ask(ctx, http.MethodHead, &s, "manifests/"+t.tag)
	if e, ok := asError(err); ok && e.Status != 0 && e.what == s.what {
		// The answer to a HEAD has no text that says why.
		if _, explained := p.client.ask(ctx, http.MethodGet, &s, "manifests/"+t.tag); explained != nil {
			err = explained
		}
	}
	if err != nil {
		return "", err
	}
	found := digest.Digest(header.Get("Docker-Content-Digest"))
	if found.Validate() != nil {
		// It is sent once more then, which does no harm.
		return "", nil
	}
	return found, nil
}

// checkManifests finds out which manifests of platforms are there. Where the tag of an
// image without an index is, so is its manifest.
func (p *pusher) checkManifests(ctx context.Context) (map[content]bool, error) {
	there := make(map[content]bool)
	var asked []content
	for _, t := range p.targets {
		for _, image := range t.platforms {
			c := content{t.repository, image.Manifest.Digest}
			if !t.isIndex() {
				there[c] = there[c] || t.tagged != ""
			} else if !slices.Contains(asked, c) {
				asked = append(asked, c)
			}
		}
	}
	found, err := p.lookFor(ctx, asked, "manifests")
	for i, c := range asked {
		there[c] = there[c] || found[i]
	}
	return there, err
}

// checkBlobs finds out what has to be done about the blobs of manifests that are not
// there. The blobs of those that are there are there too, for mounting.
func (p *pusher) checkBlobs(ctx context.Context, manifests map[content]bool) ([]*work, error) {
	byDigest := make(map[digest.Digest]*work)
	var all []*work
	note := func(c content, size int64, t *destination, needed bool) {
		w := byDigest[c.digest]
		if w == nil {
			w = &work{digest: c.digest, size: size}
			byDigest[c.digest] = w
			all = append(all, w)
		}
		switch {
		case slices.Contains(w.has, c.repository):
		case !needed:
			w.has = append(w.has, c.repository)
			w.lack = slices.DeleteFunc(w.lack, func(r string) bool { return r == c.repository })
			p.counted.Present.add(size)
		case !slices.Contains(w.lack, c.repository):
			w.lack = append(w.lack, c.repository)
			if w.first == nil {
				w.first = t
			}
		}
	}
	for _, needed := range []bool{false, true} {
		for _, t := range p.targets {
			for _, image := range t.platforms {
				if manifests[content{t.repository, image.Manifest.Digest}] == needed {
					continue
				}
				for _, d := range blobsOf(image) {
					note(content{t.repository, d.Digest}, d.Size, t, needed)
				}
			}
		}
	}
	if err := p.checkLacking(ctx, all); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(w *work) bool { return len(w.lack) == 0 })
	// The largest first, so that none of them is left for the end.
	slices.SortFunc(all, func(a, b *work) int {
		return cmp.Or(cmp.Compare(b.size, a.size), strings.Compare(a.digest.String(), b.digest.String()))
	})
	for _, w := range all {
		p.count(w)
	}
	return all, nil
}

func blobsOf(image format.PlatformImage) []ocispec.Descriptor {
	return append([]ocispec.Descriptor{image.Config}, image.Layers...)
}

// checkLacking asks for the blobs that are lacking so far: an earlier push may have sent
// them and not come to the manifest.
func (p *pusher) checkLacking(ctx context.Context, all []*work) error {
	var asked []content
	for _, w := range all {
		for _, repository := range w.lack {
			asked = append(asked, content{repository, w.digest})
		}
	}
	found, err := p.lookFor(ctx, asked, "blobs")
	if err != nil {
		return err
	}
	for _, w := range all {
		var lack []string
		for i, repository := range w.lack {
			if found[i] {
				w.has = append(w.has, repository)
				p.counted.Present.add(w.size)
			} else {
				lack = append(lack, repository)
			}
		}
		found = found[len(w.lack):]
		w.lack = lack
	}
	return nil
}

// count adds up what is to be done about a blob; a mount that is refused will change it.
func (p *pusher) count(w *work) {
	for i := range w.lack {
		if i == 0 && len(w.has) == 0 {
			p.counted.Upload.add(w.size)
			w.first.upload += w.size
		} else {
			p.counted.Mount.add(w.size)
		}
	}
}

// lookFor asks for manifests or blobs by their digests.
func (p *pusher) lookFor(ctx context.Context, asked []content, kind string) ([]bool, error) {
	found := make([]bool, len(asked))
	group, ctx := p.group(ctx)
	for i, c := range asked {
		group.Go(func() error {
			s := &subject{repository: c.repository, what: "look for " + c.digest.String()}
			header, err := p.client.ask(ctx, http.MethodHead, s, kind+"/"+c.digest.String())
			found[i] = header != nil
			return err
		})
	}
	return found, group.Wait()
}

// group runs as many requests at a time as the user wants.
func (p *pusher) group(ctx context.Context) (*errgroup.Group, context.Context) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(p.options.Jobs)
	return group, ctx
}
