package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	from := nearest(w.has, repository)
	tries := s.client.persist()
	for again := false; ; from = "" {
		err := s.attempt(ctx, w, repository, from, again)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e, ok := asError(err)
		switch {
		case !ok:
			return err
		case e.streamed:
			pause := tries.pause(e)
			if pause < 0 {
				return err
			}
			if err := sleep(ctx, pause); err != nil {
				return err
			}
			again = true
		case from != "" && e.Status != 0 && e.Status < 500 && !e.temporary:
			// Whoever may write here may not be allowed to read there.
			s.sendInstead(w)
		default:
			return err
		}
	}
}

// attempt mounts or uploads a blob once, from its beginning: Harbor and other registries drop
// what has arrived when a connection breaks.
func (s *sender) attempt(ctx context.Context, w *work, repository, from string, again bool) error {
	about := &subject{
		repository: repository, what: fmt.Sprintf("upload blob %s (%s)", w.digest, progress.Bytes(w.size)),
	}
	if again {
		// The answer may have been all that was lost.
		header, err := s.client.ask(ctx, http.MethodHead, about, "blobs/"+w.digest.String())
		if header != nil {
			s.task.Skip(w.size)
		}
		if header != nil || err != nil {
			return err
		}
	}
	sending, cancel := context.WithCancelCause(s.client.about(ctx, about))
	defer cancel(nil)
	var body *watched
	var unread error
	// Each attempt has a reader of its own: a request that has failed may still be read.
	open := func() (io.ReadCloser, error) {
		var blob io.Reader
		if blob, unread = s.content(w.digest, w.size); unread != nil {
			return nil, unread
		}
		body = watch(blob, w.size, s, cancel)
		return body, nil
	}
	d := ocispec.Descriptor{Digest: w.digest, Size: w.size}
	to := s.client.repository(repository)
	var err error
	if from != "" {
		upload := about.what
		about.what = fmt.Sprintf("mount blob %s from %s", w.digest, from)
		err = to.Mount(sending, d, from, func() (io.ReadCloser, error) {
			// A registry that does not mount it has begun an upload instead.
			about.what = upload
			s.sendInstead(w)
			return open()
		})
	} else if _, err = open(); err == nil {
		err = to.Blobs().Push(sending, d, body)
	}
	read := int64(0)
	if body != nil {
		read, unread = body.end()
	}
	switch {
	case err == nil && body == nil:
		s.task.Skip(w.size)
		return nil
	case err == nil:
		return nil
	case unread != nil:
		// No answer of the registry says more, and no other attempt reads more.
		err = fmt.Errorf("%s: %w", about.what, unread)
	default:
		err = refused(s.client.failed(ctx, about, err))
	}
	s.task.Add(-read)
	return err
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
	w.timer = time.AfterFunc(maxUpload, func() {
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

// Close leaves reading to end.
func (w *watched) Close() error { return nil }

var errEnded = errors.New("the request has ended")

// end keeps the body from being read on, and says how much of it was and what kept it from
// being read to its end.
func (w *watched) end() (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.timer.Stop()
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
	s := &subject{repository: t.repository, what: "push manifest " + reference}
	if reference == t.tag {
		s.what = "push tag " + reference
	}
	ctx = p.client.about(ctx, s)
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(body), Size: int64(len(body))}
	err := p.client.repository(t.repository).Manifests().PushReference(ctx, d, bytes.NewReader(body), reference)
	if err != nil {
		return p.client.failed(ctx, s, err)
	}
	return nil
}

// IndexError says that image indexes could not be kept, which was asked for.
type IndexError struct {
	// Images are the names on the registry.
	Images []string
}

func (e *IndexError) Error() string {
	return "the registry refuses image indexes of which the bundle does not carry every platform: " +
		strings.Join(e.Images, ", ")
}

// Hint says what can be done.
func (e *IndexError) Hint() string {
	return "without --require-index-digests these tags get indexes of the platforms that are carried; " +
		"the digests of the platforms' own manifests stay as they are"
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
