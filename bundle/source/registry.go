package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
)

// maxWhole bounds manifests and configs, in bytes. Registries need not take manifests of
// more than 4 MiB (OCI distribution-spec 1.1).
const maxWhole = 8 << 20

var manifestTypes = []string{
	ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, format.DockerManifestList, format.DockerManifest,
}

// acceptManifests is the header of requests for manifests.
func acceptManifests() http.Header { return http.Header{"Accept": {strings.Join(manifestTypes, ", ")}} }

// Repository names the content of one repository of a registry: what stands before
// the tag in an image's reference.
func Repository(ref string) (string, error) {
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		return "", fmt.Errorf("image %s: %w", ref, err)
	}
	return strings.TrimSuffix(ref, ":"+tag.TagStr()), nil
}

// Resolve asks the registry what the tag of ref stands for at this moment. Only
// digest, size and media type are known afterwards. Where the answer does not state the
// digest, as some proxies leave that out, it is made from the manifest.
func (c *Client) Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("image %s: %w", ref, err)
	}
	t, err := c.registry(strings.TrimSuffix(ref, ":"+tag.TagStr()), "/manifests/"+tag.TagStr())
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	// HEAD does not count against the limits of public registries.
	response, _, err := c.request(ctx, http.MethodHead, t, func(string) http.Header { return acceptManifests() })
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if err := response.Body.Close(); err != nil {
		return ocispec.Descriptor{}, err
	}
	if response.Header.Get("Docker-Content-Digest") == "" {
		return c.resolveByContent(ctx, t, askedFor(response))
	}
	d := ocispec.Descriptor{
		MediaType: response.Header.Get("Content-Type"),
		Digest:    digest.Digest(response.Header.Get("Docker-Content-Digest")),
		Size:      response.ContentLength,
	}
	if err := d.Digest.Validate(); err != nil {
		return ocispec.Descriptor{}, &Error{URL: askedFor(response), Status: response.StatusCode,
			Err: fmt.Errorf("the registry does not state the tag's digest: %w", err)}
	}
	return d, nil
}

// resolveByContent fetches the manifest of a tag for its digest. Without anything else that
// proves it, an answer that does not call itself a manifest is none.
func (c *Client) resolveByContent(ctx context.Context, t target, url string) (ocispec.Descriptor, error) {
	content, mediaType, err := c.small(ctx, url, maxWhole, func() (*Stream, error) {
		return c.begin(ctx, &Stream{target: t, header: acceptManifests(), small: true})
	})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if !slices.Contains(manifestTypes, mediaType) {
		return ocispec.Descriptor{}, &Error{URL: url, Status: http.StatusOK,
			Err: fmt.Errorf("the registry does not state the tag's digest, and what it sends is no manifest but %q",
				mediaType)}
	}
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}, nil
}

// Manifest fetches a manifest or index by its digest, whole. Its bytes are verified,
// since it is needed before anything else can be.
func (c *Client) Manifest(ctx context.Context, repository string,
	d digest.Digest) (content []byte, mediaType string, err error) {
	return c.whole(ctx, repository, "/manifests/"+d.String(), acceptManifests(), d)
}

// Config fetches an image's config like a manifest.
func (c *Client) Config(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	content, _, err := c.whole(ctx, repository, "/blobs/"+d.String(), nil, d)
	return content, err
}

// whole fetches something small and verifies it.
func (c *Client) whole(ctx context.Context, repository, path string, header http.Header,
	d digest.Digest) (content []byte, mediaType string, err error) {
	t, err := c.registry(repository, path)
	if err != nil {
		return nil, "", err
	}
	stream, err := c.begin(ctx, &Stream{target: t, header: header, pinned: true, small: true})
	if err != nil {
		return nil, "", err
	}
	defer stream.Close() //nolint:errcheck // its content is verified
	content, err = io.ReadAll(io.LimitReader(stream, maxWhole+1))
	if err != nil {
		return nil, "", err
	}
	if len(content) > maxWhole {
		return nil, "", &Error{URL: stream.url, Status: http.StatusOK,
			Err: fmt.Errorf("it is larger than %d bytes", maxWhole)}
	}
	if got := digest.FromBytes(content); got != d {
		return nil, "", &Error{URL: stream.url, Status: http.StatusOK,
			Err: fmt.Errorf("the bytes that came have the digest %s", got)}
	}
	return content, stream.mediaType, nil
}

// Blob starts the download of a blob.
func (c *Client) Blob(ctx context.Context, repository string, d digest.Digest) (*Stream, error) {
	return c.BlobFrom(ctx, repository, d, 0)
}

// BlobFrom starts the download of a blob from an offset on. Its bytes may come from several
// answers and several mirrors: only the digest of the whole proves them.
func (c *Client) BlobFrom(ctx context.Context, repository string, d digest.Digest, from int64) (*Stream, error) {
	t, err := c.registry(repository, "/blobs/"+d.String())
	if err != nil {
		return nil, err
	}
	return c.begin(ctx, &Stream{target: t, next: from, pinned: true})
}

// registry is something below a repository.
func (c *Client) registry(repository, path string) (target, error) {
	host, name, ok := strings.Cut(repository, "/")
	if !ok {
		return target{}, fmt.Errorf("repository %s: expected host/path", repository)
	}
	return target{host: host, at: func(ctx context.Context, endpoint string) (*http.Client, string, error) {
		client, base, err := c.repository(ctx, endpoint, name)
		return client, base + path, err
	}}, nil
}

// repository returns a client that is allowed to pull from a repository, and the
// address that the repository's manifests and blobs hang below.
func (c *Client) repository(ctx context.Context, endpoint, path string) (*http.Client, string, error) {
	host, prefix, _ := strings.Cut(endpoint, "/")
	// Registry and path are parsed apart: in one string, a host without a dot would be
	// taken for a part of a path on Docker Hub.
	registry, err := name.NewRegistry(host, name.StrictValidation)
	if err != nil {
		return nil, "", backoff.Permanent(fmt.Errorf("repository %s/%s: %w", endpoint, path, err))
	}
	repo := registry.Repo(prefix, path)
	base := "https://" + repo.RegistryStr() + "/v2/" + repo.RepositoryStr()

	c.mu.Lock()
	auth, ok := c.repositories[repo.Name()]
	if !ok {
		auth = &authentication{}
		c.repositories[repo.Name()] = auth
	}
	c.mu.Unlock()
	auth.mu.Lock()
	defer auth.mu.Unlock()
	if auth.client != nil {
		return auth.client, base, nil
	}
	credentials, err := c.options.Keychain.Resolve(repo)
	if err != nil {
		return nil, "", backoff.Permanent(fmt.Errorf("read the credentials for %s from the docker configuration: %w",
			repo.RegistryStr(), err))
	}
	t, err := transport.NewWithContext(ctx, repo.Registry, credentials, c.plain,
		[]string{repo.Scope(transport.PullScope)})
	if err != nil {
		err = c.classify(ctx, "https://"+repo.RegistryStr()+"/v2/", err)
		var answer *Error
		if errors.As(err, &answer) && answer.Status == http.StatusUnauthorized {
			answer.Err = fmt.Errorf("the registry refuses these credentials: %w", answer.Err)
		}
		return nil, "", err
	}
	auth.client = &http.Client{Transport: t}
	return auth.client, base, nil
}
