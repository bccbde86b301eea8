package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxWhole bounds manifests and configs, in bytes. Registries need not take manifests of
// more than 4 MiB (OCI distribution-spec 1.1).
const maxWhole = 8 << 20

// Media types of Docker's schema 2, which registries still serve.
const (
	DockerManifest     = "application/vnd.docker.distribution.manifest.v2+json"
	DockerManifestList = "application/vnd.docker.distribution.manifest.list.v2+json"
)

var manifestTypes = strings.Join([]string{
	ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, DockerManifestList, DockerManifest,
}, ", ")

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
// digest, size and media type are known afterwards.
func (c *Client) Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("image %s: %w", ref, err)
	}
	client, base, err := c.repository(ctx, strings.TrimSuffix(ref, ":"+tag.TagStr()))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	address := base + "/manifests/" + tag.TagStr()
	// HEAD does not count against the limits of public registries.
	response, err := c.do(ctx, client, http.MethodHead, address, http.Header{"Accept": {manifestTypes}})
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if err := response.Body.Close(); err != nil {
		return ocispec.Descriptor{}, err
	}
	d := ocispec.Descriptor{
		MediaType: response.Header.Get("Content-Type"),
		Digest:    digest.Digest(response.Header.Get("Docker-Content-Digest")),
		Size:      response.ContentLength,
	}
	if err := d.Digest.Validate(); err != nil {
		return ocispec.Descriptor{}, &Error{URL: address, Status: response.StatusCode, Err: fmt.Errorf("the registry does not state the tag's digest: %w", err)}
	}
	return d, nil
}

// Manifest fetches a manifest or index by its digest, whole. Its bytes are verified,
// since it is needed before anything else can be.
func (c *Client) Manifest(ctx context.Context, repository string, d digest.Digest) (content []byte, mediaType string, err error) {
	return c.whole(ctx, repository, "/manifests/"+d.String(), http.Header{"Accept": {manifestTypes}}, d)
}

// Config fetches an image's config like a manifest.
func (c *Client) Config(ctx context.Context, repository string, d digest.Digest) ([]byte, error) {
	content, _, err := c.whole(ctx, repository, "/blobs/"+d.String(), nil, d)
	return content, err
}

// whole fetches something small and verifies it.
func (c *Client) whole(ctx context.Context, repository, path string, header http.Header, d digest.Digest) (content []byte, mediaType string, err error) {
	client, base, err := c.repository(ctx, repository)
	if err != nil {
		return nil, "", err
	}
	address := base + path
	content, err = retry(ctx, c, func() ([]byte, error) {
		stream, err := c.get(ctx, client, address, header)
		if err != nil {
			return nil, backoff.Permanent(err) // it was repeated often enough
		}
		defer stream.Close() //nolint:errcheck // its content is verified
		mediaType = stream.mediaType
		content, err := io.ReadAll(io.LimitReader(stream, maxWhole+1))
		if err != nil {
			return nil, err
		}
		if len(content) > maxWhole {
			return nil, backoff.Permanent(&Error{URL: address, Status: http.StatusOK, Err: fmt.Errorf("it is larger than %d bytes", maxWhole)})
		}
		if got := digest.FromBytes(content); got != d {
			return nil, backoff.Permanent(&Error{URL: address, Status: http.StatusOK, Err: fmt.Errorf("the bytes that came have the digest %s", got)})
		}
		return content, nil
	})
	return content, mediaType, err
}

// Blob starts the download of a blob.
func (c *Client) Blob(ctx context.Context, repository string, d digest.Digest) (*Stream, error) {
	client, base, err := c.repository(ctx, repository)
	if err != nil {
		return nil, err
	}
	return c.get(ctx, client, base+"/blobs/"+d.String(), nil)
}

// repository returns a client that is allowed to pull from a repository, and the
// address that the repository's manifests and blobs hang below.
func (c *Client) repository(ctx context.Context, repository string) (*http.Client, string, error) {
	host, path, ok := strings.Cut(repository, "/")
	if !ok {
		return nil, "", fmt.Errorf("repository %s: expected host/path", repository)
	}
	host, prefix, _ := strings.Cut(c.endpoint(host), "/")
	// Registry and path are parsed apart: in one string, a host without a dot would be
	// taken for a part of a path on Docker Hub.
	registry, err := name.NewRegistry(host, name.StrictValidation)
	if err != nil {
		return nil, "", fmt.Errorf("repository %s: %w", repository, err)
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
		return nil, "", fmt.Errorf("read the credentials for %s from the docker configuration: %w", repo.RegistryStr(), err)
	}
	attempt := func() (http.RoundTripper, error) {
		t, err := transport.NewWithContext(ctx, repo.Registry, credentials, c.plain, []string{repo.Scope(transport.PullScope)})
		if err != nil {
			err = c.classify(ctx, "https://"+repo.RegistryStr()+"/v2/", err)
			var answer *Error
			if errors.As(err, &answer) && answer.Status == http.StatusUnauthorized {
				answer.Err = fmt.Errorf("the registry refuses these credentials: %w", answer.Err)
			}
			return nil, err
		}
		return t, nil
	}
	t, err := retry(ctx, c, attempt)
	if err != nil {
		return nil, "", err
	}
	auth.client = &http.Client{Transport: t}
	return auth.client, base, nil
}
