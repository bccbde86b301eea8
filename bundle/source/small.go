package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"strings"

	"github.com/cenkalti/backoff/v5"
)

const (
	// maxTags bounds what a registry may list of one repository.
	maxTags = 1 << 17
	// tagsPage is how many tags are asked for at a time; registries may give fewer.
	tagsPage = "1000"
)

// File fetches a small file whole. One of more than limit bytes is refused.
func (c *Client) File(ctx context.Context, url string, limit int64) ([]byte, error) {
	content, _, err := c.small(ctx, withoutQuery(url), limit, func() (*Stream, error) {
		return c.openFile(ctx, url, &Stream{small: true})
	})
	return content, err
}

// small reads what open begins to its end, and begins again when the line breaks.
func (c *Client) small(ctx context.Context, url string, limit int64,
	open func() (*Stream, error)) (content []byte, mediaType string, err error) {
	content, err = retry(ctx, c, func() ([]byte, error) {
		stream, err := open()
		if err != nil {
			return nil, backoff.Permanent(err) // it was repeated often enough
		}
		defer stream.Close() //nolint:errcheck // it was read to its end, or is not wanted
		content, err := io.ReadAll(io.LimitReader(stream, limit+1))
		if err != nil {
			return nil, err
		}
		if int64(len(content)) > limit {
			return nil, backoff.Permanent(&Error{URL: url, Status: http.StatusOK,
				Err: fmt.Errorf("it is larger than %d bytes", limit)})
		}
		mediaType, _, _ = strings.Cut(stream.mediaType, ";")
		return content, nil
	})
	return content, mediaType, err
}

// Size asks how many bytes a file has, without fetching it; -1 when the server does not
// say.
func (c *Client) Size(ctx context.Context, url string) (int64, error) {
	if strings.HasPrefix(url, "file:") {
		stream, err := c.Open(ctx, url)
		if err != nil {
			return 0, err
		}
		return stream.Size, stream.Close()
	}
	t, err := c.address(url)
	if err != nil {
		return 0, fmt.Errorf("ask for the size of %s: %w", withoutQuery(url), err)
	}
	response, _, err := c.request(ctx, http.MethodHead, t, func(string) http.Header { return nil })
	if err != nil {
		return 0, err
	}
	return response.ContentLength, response.Body.Close()
}

// Tags lists the tags of a repository, in the registry's order (OCI distribution-spec
// 1.1, "Listing Tags").
func (c *Client) Tags(ctx context.Context, repository string) ([]string, error) {
	var tags []string
	query := neturl.Values{"n": {tagsPage}}
	for {
		page, last, err := c.tagsPage(ctx, repository, query)
		if err != nil {
			return nil, err
		}
		if tags = append(tags, page...); len(tags) > maxTags {
			return nil, fmt.Errorf("list the tags of %s: there are more than %d", repository, maxTags)
		}
		if last == "" || last == query.Get("last") || len(page) == 0 {
			return tags, nil
		}
		query.Set("last", last)
	}
}

// tagsPage fetches one page, and what the next one begins after; "" for the last page.
func (c *Client) tagsPage(ctx context.Context, repository string,
	query neturl.Values) (tags []string, last string, err error) {
	t, err := c.registry(repository, "/tags/list?"+query.Encode())
	if err != nil {
		return nil, "", err
	}
	response, _, err := c.request(ctx, http.MethodGet, t,
		func(string) http.Header { return http.Header{"Accept": {"application/json"}} })
	if err != nil {
		return nil, "", err
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, maxWhole))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, "", &Error{URL: askedFor(response), Status: response.StatusCode, Err: err}
	}
	var page struct {
		Tags []string `json:"tags"`
	}
	if err := json.Unmarshal(content, &page); err != nil {
		return nil, "", &Error{URL: askedFor(response), Status: response.StatusCode,
			Err: fmt.Errorf("the list of tags: %w", err)}
	}
	return page.Tags, nextTag(response.Header.Get("Link")), nil
}

// nextTag reads the tag that the next page begins after from a Link header such as
// </v2/a/tags/list?last=v1&n=1000>; rel="next" (RFC 8288). Only its query counts: where
// the list is, is known.
func nextTag(link string) string {
	target, rest, ok := strings.Cut(strings.TrimPrefix(link, "<"), ">")
	if !ok || !strings.Contains(rest, `rel="next"`) && !strings.Contains(rest, "rel=next") {
		return ""
	}
	u, err := neturl.Parse(target)
	if err != nil {
		return ""
	}
	return u.Query().Get("last")
}
