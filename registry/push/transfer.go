package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/internal/progress"
)

// transfer sends what is missing: blobs, then the manifests that name them, then what
// the tags stand for.
func (p *pusher) transfer(ctx context.Context, all []*work) (err error) {
	missing := slices.DeleteFunc(slices.Clone(p.targets), func(t *destination) bool { return t.state == Present })
	if len(missing) == 0 {
		return nil
	}
	task := p.options.Reporter.Task("push to "+p.client.host, p.counted.Upload.Bytes+p.counted.Mount.Bytes)
	defer func() { task.Done(err) }()
	sender := &sender{pusher: p, task: task}
	if err := sender.blobs(ctx, all); err != nil {
		return err
	}
	group, groupCtx := p.group(ctx)
	for _, t := range missing {
		for _, d := range t.lacking {
			group.Go(func() error { return p.putManifest(groupCtx, t, d, d.Digest.String()) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return p.putTags(ctx, missing)
}

// sender brings blobs over.
type sender struct {
	*pusher
	task progress.Task
	mu   sync.Mutex // of what was counted
}

func (s *sender) blobs(ctx context.Context, all []*work) error {
	group, ctx := s.group(ctx)
	for _, w := range all {
		group.Go(func() error {
			for _, repository := range w.lack {
				if err := s.bring(ctx, w, repository); err != nil {
					return err
				}
				w.has = append(w.has, repository)
			}
			return nil
		})
	}
	return group.Wait()
}

// bring mounts a blob from a repository that has it, or else uploads it.
func (s *sender) bring(ctx context.Context, w *work, repository string) error {
	var started *url.URL
	if from := nearest(w.has, repository); from != "" {
		mounted, location, err := s.mount(ctx, w, repository, from)
		if err != nil {
			return err
		}
		if mounted {
			s.task.Skip(w.size)
			return nil
		}
		started = location
		s.sendInstead(w)
	}
	return s.upload(ctx, w, repository, started)
}

// nearest chooses a repository of the same project: who may push there may read there.
func nearest(has []string, repository string) string {
	project, _, _ := strings.Cut(repository, "/")
	for _, candidate := range has {
		if strings.HasPrefix(candidate, project+"/") {
			return candidate
		}
	}
	if len(has) == 0 {
		return ""
	}
	return has[0]
}

// sendInstead counts an upload in place of a mount.
func (s *sender) sendInstead(w *work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counted.Mount.Blobs--
	s.counted.Mount.Bytes -= w.size
	s.counted.Upload.add(w.size)
	w.first.upload += w.size
}

// mount asks for a blob of another repository. A registry that does not do it begins an
// upload instead, at the location.
func (s *sender) mount(ctx context.Context, w *work, repository, from string) (mounted bool, location *url.URL, err error) {
	a, err := s.client.send(ctx, request{
		method: http.MethodPost, path: repository + "/blobs/uploads/", query: url.Values{"mount": {w.digest.String()}, "from": {from}},
		repository: repository, from: from, accept: []int{http.StatusCreated, http.StatusAccepted},
		what: fmt.Sprintf("mount blob %s from %s", w.digest, from),
	}, nil)
	if e, ok := asError(err); ok && e.Status >= 400 && e.Status < 500 && !e.temporary {
		// Whoever may write here may not be allowed to read there.
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	if a.status == http.StatusCreated {
		return true, nil, nil
	}
	location, err = s.client.location(a)
	if err != nil {
		return false, nil, nil
	}
	return false, location, nil
}

// upload sends a blob, from its beginning each time that the connection breaks: Harbor
// and other registries drop what has arrived then. An upload may be begun already.
func (s *sender) upload(ctx context.Context, w *work, repository string, started *url.URL) error {
	r := request{
		repository: repository, path: repository + "/blobs/" + w.digest.String(),
		what: fmt.Sprintf("upload blob %s (%s)", w.digest, progress.Bytes(w.size)),
	}
	return s.client.retry(ctx, func(ctx context.Context, number int) (err error) {
		if number > 0 {
			// The answer may have been all that was lost.
			r.method, r.accept = http.MethodHead, []int{http.StatusOK, http.StatusNotFound}
			a, err := s.client.once(ctx, r)
			if err != nil {
				return err
			}
			if a.status == http.StatusOK {
				s.task.Skip(w.size)
				return nil
			}
		}
		location := started
		started = nil
		if location == nil {
			if location, err = s.begin(ctx, r); err != nil {
				return err
			}
		}
		return s.send(ctx, r, w, location)
	})
}

// begin opens an upload.
func (s *sender) begin(ctx context.Context, r request) (*url.URL, error) {
	r.method, r.path, r.accept = http.MethodPost, r.repository+"/blobs/uploads/", []int{http.StatusAccepted}
	a, err := s.client.once(ctx, r)
	if err != nil {
		return nil, err
	}
	location, err := s.client.location(a)
	if err != nil {
		return nil, s.client.newError(r, err)
	}
	return location, nil
}

// expectFrom is the size from which on the registry is asked whether it wants a blob
// before it is sent. It could be refused for many reasons.
const expectFrom = 1 << 20

// send sends a blob in one request.
func (s *sender) send(ctx context.Context, r request, w *work, location *url.URL) error {
	// Each attempt has a reader of its own: a request that has failed may still be read.
	blob, err := s.options.Bundle.Content(w.digest, w.size)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body := watch(blob, w.size, s, cancel)
	defer body.timer.Stop()
	r.method, r.address, r.query = http.MethodPut, location, url.Values{"digest": {w.digest.String()}}
	r.header = http.Header{"Content-Type": {"application/octet-stream"}}
	if w.size >= expectFrom {
		r.header.Set("Expect", "100-continue")
	}
	r.body, r.size, r.accept, r.limit = body, w.size, []int{http.StatusCreated}, 24*time.Hour
	if _, err = s.client.once(ctx, r); err == nil {
		return nil
	}
	read, failed := body.end()
	s.task.Add(-read)
	if failed != nil {
		// No answer of the registry says more, and no other attempt reads more.
		return fmt.Errorf("%s: %w", r.what, failed)
	}
	return refused(err)
}

// refused says what an upload's error means for the next attempt.
func refused(err error) error {
	e, ok := asError(err)
	if !ok {
		return err
	}
	switch {
	case e.has("DIGEST_INVALID"):
		e.temporary = true // what was sent is proven: it was damaged on the way
	case e.has("BLOB_UPLOAD_UNKNOWN", "BLOB_UPLOAD_INVALID"), e.Status == http.StatusRequestedRangeNotSatisfiable:
		e.temporary = true // the upload was lost, or is not at its beginning: a new one is begun
	}
	return err
}

// watched is a body that ends its request when nobody reads on, or when no answer comes
// after it was read.
type watched struct {
	from    io.Reader
	task    progress.Task
	patient patience
	timer   *time.Timer

	mu         sync.Mutex // the request may end while it is read
	read, size int64
	failed     error // why it could not be read on; nil at its end
	ended      bool
}

func watch(from io.Reader, size int64, s *sender, cancel context.CancelCauseFunc) *watched {
	w := &watched{from: from, task: s.task, patient: s.client.patient, size: size}
	w.timer = time.AfterFunc(w.patient.answer, func() {
		if took := w.took(); took < size {
			cancel(fmt.Errorf("the registry took %s and no more within %v", progress.Bytes(took), w.patient.stall))
		} else {
			cancel(fmt.Errorf("the registry took it all and did not answer within %v", w.patient.stored))
		}
	})
	return w
}

func (w *watched) Read(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return 0, errEnded
	}
	n, err := w.from.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		w.failed = err
	}
	w.task.Add(int64(n))
	w.read += int64(n)
	if w.read < w.size {
		w.timer.Reset(w.patient.stall)
	} else {
		w.timer.Reset(w.patient.stored)
	}
	return n, err
}

var errEnded = errors.New("the request has ended")

// end keeps the body from being read on, and says how much of it was and what kept it from
// being read to its end.
func (w *watched) end() (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	return w.read, w.failed
}

func (w *watched) took() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.read
}

// putManifest sends a manifest or index of the bundle under a tag or its digest.
func (p *pusher) putManifest(ctx context.Context, t *destination, d ocispec.Descriptor, reference string) error {
	body, err := p.manifest(d)
	if err != nil {
		return err
	}
	return p.put(ctx, t, d.MediaType, body, reference)
}

func (p *pusher) put(ctx context.Context, t *destination, mediaType string, body []byte, reference string) error {
	what := "push manifest " + reference
	if reference == t.tag {
		what = "push tag " + reference
	}
	_, err := p.client.send(ctx, request{
		method: http.MethodPut, path: t.repository + "/manifests/" + reference, header: http.Header{"Content-Type": {mediaType}},
		repository: t.repository, accept: []int{http.StatusCreated, http.StatusOK, http.StatusAccepted},
		limit: p.client.patient.stored, what: what,
	}, body)
	return err
}

// IndexError says that image indexes could not be kept, which was asked for.
type IndexError struct {
	// Images are the names on the registry.
	Images []string
}

func (e *IndexError) Error() string {
	return "the registry refuses image indexes of which the bundle does not carry every platform: " + strings.Join(e.Images, ", ")
}

// Hint says what can be done.
func (e *IndexError) Hint() string {
	return "without --require-index-digests these tags get indexes of the platforms that are carried; the digests of the platforms' own manifests stay as they are"
}

// putTags makes the tags stand for what they are to stand for.
func (p *pusher) putTags(ctx context.Context, missing []*destination) error {
	refused := &IndexError{}
	var mu sync.Mutex
	group, ctx := p.group(ctx)
	for _, t := range missing {
		group.Go(func() error {
			err := p.putManifest(ctx, t, t.root, t.tag)
			t.tagged = t.root.Digest
			if t.sparse() && refusesContent(err) {
				if p.options.RequireIndexDigests {
					mu.Lock()
					defer mu.Unlock()
					refused.Images = append(refused.Images, p.client.host+"/"+t.reference())
					return nil
				}
				err = p.put(ctx, t, t.root.MediaType, t.reduced, t.tag)
				t.tagged = digest.FromBytes(t.reduced)
			}
			if err != nil {
				return err
			}
			t.state = Pushed
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if len(refused.Images) > 0 {
		slices.Sort(refused.Images)
		return refused
	}
	return nil
}

// refusesContent says of an error whether it may be about a manifest's content. Registries
// have several ways of saying that something is missing of what an index names: Debian's
// answers 400 and MANIFEST_BLOB_UNKNOWN, others 404.
func refusesContent(err error) bool {
	e, ok := asError(err)
	if !ok || e.temporary {
		return false
	}
	switch e.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func asError(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}
