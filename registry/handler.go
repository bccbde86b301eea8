package registry

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/internal/bulktls"
)

// maxTransfers is how many blobs are sent at a time; more wait for their turn.
const maxTransfers = 256

// maxTurn is how long a request may wait for its turn: less than answerTimeout, in which
// the answer has to begin.
const maxTurn = 20 * time.Second

// Content is what a registry serves: [File] or [Packs].
type Content interface {
	// current returns what there is now.
	current() *catalogue
}

// Options say how a registry answers.
type Options struct {
	// Auth says who may pull; nil lets everybody.
	Auth *Auth
	// Secured says that clients come over TLS.
	Secured bool
	// Log has a line for each request.
	Log *slog.Logger
}

// New returns the handler of a registry that serves what the content has.
func New(content Content, o Options) http.Handler {
	return &handler{content: content, options: o, transfers: make(chan struct{}, maxTransfers)}
}

type handler struct {
	content   Content
	options   Options
	transfers chan struct{}
}

func (h *handler) ServeHTTP(inner http.ResponseWriter, r *http.Request) {
	start := time.Now()
	w := &response{ResponseWriter: inner}
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 {
		// Nobody wants to read it, and what net/http reads of it all the same ends soon.
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(inner).SetReadDeadline(start.Add(requestTimeout)) // not every writer can
	}
	var cause error
	if f := h.serve(w, r); f != nil {
		cause = f.cause
		if w.status == 0 { // else a part of the content is sent, and net/http ends the connection
			f.write(w)
		}
	}
	w.log(h.options.Log, r, start, cause)
}

func (h *handler) serve(w *response, r *http.Request) *failure {
	auth := h.options.Auth
	isGet := r.Method == http.MethodGet || r.Method == http.MethodHead
	if auth != nil && auth.bearer && r.URL.Path == tokenPath && isGet {
		return auth.exchange(w, r, h.options.Secured)
	}
	if auth != nil && !auth.admits(r) {
		return auth.challenge(w, r, h.options.Secured)
	}
	bulktls.Authenticated(r.Context())
	if !isGet {
		if i := strings.LastIndex(r.URL.Path, "/manifests/sha256:"); i >= 0 {
			// That there is no such name is wrong with it before that it cannot be written.
			if _, f := parseDigest(r.URL.Path[i+len("/manifests/"):], codeManifestUnknown); f != nil {
				return f
			}
		}
		w.Header().Set("Allow", "GET, HEAD")
		return fail(http.StatusMethodNotAllowed, codeUnsupported, "this registry is read-only", nil)
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/v2/")
	switch {
	case r.URL.Path == "/v2" || ok && rest == "":
		writeJSON(w, "application/json", http.StatusOK, []byte("{}"))
		return nil
	case !ok:
		return fail(http.StatusNotFound, codeUnsupported, "there is nothing here; the registry is at /v2/", nil)
	}
	for range 3 {
		// What is retired while a request looks at it has a successor, or is gone.
		if f := h.route(w, r, h.content.current(), rest); f == nil || !errors.Is(f.cause, errRetired) {
			return f
		}
	}
	return fail(http.StatusServiceUnavailable, codeUnknown, "what the registry serves is being replaced; try again",
		nil)
}

// namespace is the registry that containerd asks for when it asks its mirror.
func namespace(r *http.Request) string {
	if r.URL.RawQuery == "" {
		return ""
	}
	return r.URL.Query().Get("ns")
}

func (h *handler) route(w *response, r *http.Request, c *catalogue, rest string) *failure {
	if rest == "_catalog" {
		return list(w, r, "repositories", c.names, strings.Compare, nil)
	}
	parts := strings.Split(rest, "/")
	if len(parts) < 3 {
		return fail(http.StatusNotFound, codeNameUnknown,
			"there is nothing here; paths are /v2/<name>/manifests/<reference> and the like", rest)
	}
	kind, reference := parts[len(parts)-2], parts[len(parts)-1]
	name := strings.Join(parts[:len(parts)-2], "/")
	if !slices.Contains([]string{"manifests", "blobs", "tags", "referrers"}, kind) ||
		kind == "tags" && reference != "list" {
		return fail(http.StatusNotFound, codeUnsupported,
			"there is nothing here; paths are /v2/<name>/manifests/<reference> and the like", rest)
	}
	repository, f := c.resolve(name, namespace(r))
	if f != nil {
		return f
	}
	switch kind {
	case "manifests":
		return h.serveManifest(w, r, repository, reference)
	case "blobs":
		return h.serveBlob(w, r, c, repository, reference)
	case "referrers":
		return serveReferrers(w, r, repository, reference)
	default:
		more := map[string]any{"name": name}
		return list(w, r, "tags", repository.tagNames, compareTags, more)
	}
}

// list answers with a page of names: at most n of them, those after last.
func list(w http.ResponseWriter, r *http.Request, key string, names []string, compare func(a, b string) int,
	answer map[string]any) *failure {
	query := r.URL.Query()
	last, count := query.Get("last"), len(names)
	if text := query.Get("n"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return fail(http.StatusBadRequest, codePageInvalid, "n is not a number of names", text)
		}
		count = int(min(n, int64(len(names))))
	}
	from := 0
	if last != "" {
		from = sort.Search(len(names), func(i int) bool { return compare(names[i], last) > 0 })
	}
	page := names[from:min(from+count, len(names))]
	if len(page) > 0 && from+count < len(names) {
		next := url.Values{"n": {strconv.Itoa(count)}, "last": {page[len(page)-1]}}
		if ns := query.Get("ns"); ns != "" {
			next.Set("ns", ns)
		}
		target := url.URL{Path: r.URL.Path, RawQuery: next.Encode()}
		w.Header().Set("Link", "<"+target.String()+`>; rel="next"`)
	}
	if answer == nil {
		answer = make(map[string]any)
	}
	answer[key] = append([]string{}, page...)
	return answerJSON(w, "application/json", answer)
}

func answerJSON(w http.ResponseWriter, mediaType string, v any) *failure {
	content, err := json.Marshal(v)
	if err != nil {
		return broken(err)
	}
	writeJSON(w, mediaType, http.StatusOK, content)
	return nil
}

// parseDigest reads a digest of a request. One that no blob here can have is unknown.
func parseDigest(text, unknown string) (digest.Digest, *failure) {
	d, f := parseAnyDigest(text)
	if f != nil {
		return "", f
	}
	if checkDigest(d) != nil {
		return "", fail(http.StatusNotFound, unknown, "this registry has sha256 digests only", text)
	}
	return d, nil
}

// parseAnyDigest reads a digest of any algorithm.
func parseAnyDigest(text string) (digest.Digest, *failure) {
	d := digest.Digest(text)
	if err := d.Validate(); err != nil && !errors.Is(err, digest.ErrDigestUnsupported) {
		return "", fail(http.StatusBadRequest, codeDigestInvalid, "this is not a digest", text)
	}
	return d, nil
}

// serveManifest answers with a manifest or an image index, byte for byte as it is in the
// layout.
func (h *handler) serveManifest(w *response, r *http.Request, repository *repository, reference string) *failure {
	unknown := fail(http.StatusNotFound, codeManifestUnknown, "the repository "+repository.name+" has no such manifest",
		reference)
	to, isTag := repository.tags[reference]
	wanted := to.digest
	if !isTag {
		if !strings.Contains(reference, ":") {
			return unknown
		}
		var f *failure
		if wanted, f = parseDigest(reference, codeManifestUnknown); f != nil {
			return f
		}
	}
	for _, candidate := range repository.roots {
		if isTag && (candidate.digest != to.digest || candidate.layout != to.layout) {
			continue
		}
		found, err := h.serveIfThere(w, r, candidate, wanted)
		if err != nil && !errors.Is(err, errAbsent) {
			return broken(err)
		}
		if found {
			return nil
		}
	}
	return unknown
}

// serveIfThere answers when the manifest is the root's own or belongs to it.
func (h *handler) serveIfThere(w *response, r *http.Request, from root, wanted digest.Digest) (bool, error) {
	if from.layout == nil {
		if from.digest == wanted {
			return true, serveContent(w, r, ocispec.MediaTypeImageIndex, wanted, bytes.NewReader(from.content))
		}
		return false, nil
	}
	if err := from.layout.acquire(); err != nil {
		return false, err
	}
	defer from.layout.release()
	var m *manifest
	var err error
	if from.digest == wanted {
		m, err = from.layout.manifest(wanted)
	} else {
		err = from.layout.reachable([]digest.Digest{from.digest}, func(reached *manifest) bool {
			if reached.Digest == wanted {
				m = reached
			}
			return m == nil
		})
	}
	if m == nil || err != nil {
		return false, err
	}
	e, ok := from.layout.tar.Blob(wanted)
	if !ok {
		return false, nil
	}
	return true, serveContent(w, r, m.MediaType, wanted, from.layout.tar.Section(e))
}

// serveBlob answers with a blob that any layout has.
func (h *handler) serveBlob(w *response, r *http.Request, c *catalogue, repository *repository,
	reference string) *failure {
	d, f := parseDigest(reference, codeBlobUnknown)
	if f != nil {
		return f
	}
	for _, l := range c.layouts {
		e, ok := l.tar.Blob(d)
		if !ok {
			continue
		}
		if err := l.acquire(); err != nil {
			return broken(err)
		}
		defer l.release()
		if r.Method == http.MethodGet {
			if f := h.waitForTurn(w, r); f != nil {
				return f
			}
			defer func() { <-h.transfers }()
		}
		if err := serveContent(w, r, "application/octet-stream", d, l.tar.Section(e)); err != nil {
			return broken(err)
		}
		return nil
	}
	return fail(http.StatusNotFound, codeBlobUnknown, "the repository "+repository.name+" has no such blob", reference)
}

func (h *handler) waitForTurn(w http.ResponseWriter, r *http.Request) *failure {
	select {
	case h.transfers <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(maxTurn)
	defer timer.Stop()
	select {
	case h.transfers <- struct{}{}:
		return nil
	case <-r.Context().Done():
	case <-timer.C:
	}
	w.Header().Set("Retry-After", "5")
	return fail(http.StatusTooManyRequests, codeTooMany, "too many blobs are being sent at this moment; try again", nil)
}

// serveContent answers a GET or HEAD, with a range of bytes if one is asked for. What is sent
// from beginning to end is proven on the way: of other bytes the last ones are not sent, so
// that the client gets an answer that is not whole. A range is the client's to prove, with the
// rest. The error is that of reading; the client notices by itself.
func serveContent(w *response, r *http.Request, mediaType string, d digest.Digest, content sizedReader) error {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("ETag", `"`+d.String()+`"`)
	if strings.Contains(r.Header.Get("Range"), ",") {
		// RFC 9110, section 14.2: a server may ignore the field. Several ranges in one
		// answer cost more than they serve.
		r.Header.Del("Range")
	}
	watched := &watchedReader{sizedReader: content, want: d, hash: sha256.New()}
	http.ServeContent(w, r, "", time.Time{}, watched)
	if watched.err != nil {
		return fmt.Errorf("read blob %s: %w", d, watched.err)
	}
	return nil
}

// sizedReader is what bytes.Reader and io.SectionReader have in common.
type sizedReader interface {
	io.ReadSeeker
	Size() int64
}

// watchedReader proves what is read from beginning to end, and keeps the error that ended
// reading too early.
type watchedReader struct {
	sizedReader
	want   digest.Digest
	hash   hash.Hash
	at     int64
	hashed int64 // how much is, from the beginning on
	err    error
}

func (r *watchedReader) Seek(offset int64, whence int) (int64, error) {
	at, err := r.sizedReader.Seek(offset, whence)
	if err == nil {
		r.at = at
	}
	return at, err
}

func (r *watchedReader) Read(b []byte) (int, error) {
	n, err := r.sizedReader.Read(b)
	if r.at == r.hashed {
		_, _ = r.hash.Write(b[:n]) // never fails
		r.hashed += int64(n)
	}
	r.at += int64(n)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		r.err = err
	case err != nil && r.at < r.Size():
		r.err = io.ErrUnexpectedEOF // the file has become shorter
	case n > 0 && r.hashed == r.Size():
		if got := digest.NewDigest(digest.SHA256, r.hash); got != r.want {
			r.err = fmt.Errorf("%w: it holds other bytes, with the digest %s", errDamaged, got)
			return 0, r.err
		}
	}
	return n, err
}

// serveReferrers answers with an image index of the repository's manifests that refer to
// another. What they refer to need not be here, and may have a digest that nothing here
// has: whatever is no digest apart, no such request may get a 404 (distribution
// specification 1.1, "Listing Referrers").
func serveReferrers(w http.ResponseWriter, r *http.Request, repository *repository, reference string) *failure {
	d, f := parseAnyDigest(reference)
	if f != nil {
		return f
	}
	wanted := r.URL.Query().Get("artifactType")
	answer := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{}}
	seen := make(map[digest.Digest]bool)
	for _, from := range repository.shares() {
		if err := from.layout.acquire(); err != nil {
			return broken(err)
		}
		found, err := from.layout.referrers(from.roots, d)
		from.layout.release()
		if err != nil {
			return broken(err)
		}
		for _, m := range found {
			if !seen[m.Digest] && (wanted == "" || m.ArtifactType == wanted) {
				answer.Manifests = append(answer.Manifests, m.Descriptor)
			}
			seen[m.Digest] = true
		}
	}
	if wanted != "" {
		w.Header().Set("OCI-Filters-Applied", "artifactType")
	}
	return answerJSON(w, ocispec.MediaTypeImageIndex, answer)
}
