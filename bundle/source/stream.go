package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/httpanswer"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

const (
	// maxBreaks bounds how often in a row a stream may break without having brought much.
	maxBreaks = 5
	// enough is how many bytes an answer has to bring for its break not to count: on a line
	// that is cut every minute, a large file still arrives.
	enough = 64 << 10
)

// ErrAnew is wrapped by the errors of a [Stream] that cannot be gone on with, but may be
// begun anew: it broke and nothing reports whether the server has the same bytes still, or
// it is known that these have changed.
var ErrAnew = fault.NewKind(fault.Source, "it has to be begun anew")

// Stream is the content of a file or blob, from some offset on. Where an answer ends too
// early, Read asks for the rest of it: with a Range, if the server knows them, or else
// once more for all of it, of which what is there already is passed over.
type Stream struct {
	// Size is the number of bytes of the whole file or blob that the server announced,
	// or -1.
	Size int64

	// disk is the path of what is read from this host; the rest is for downloads.
	disk   string
	client *Client
	ctx    context.Context
	cancel context.CancelCauseFunc
	target target
	header http.Header
	// pinned says that the caller proves the content, so that pieces may be put together
	// although nothing vouches that they belong to each other.
	pinned bool
	// small says that it is read whole into memory: no answer may take as long as it likes.
	small bool

	// The answer that is being read.
	body      io.ReadCloser
	mediaType string
	url       string
	from      string // the endpoint that gave it
	etag      string // a strong one, or empty

	next     int64 // offset in the whole of the byte that is handed out next
	skip     int64 // bytes of the answer that come before it
	answers  int
	noRanges bool // the server does not know them, or does something else with them
	breaks   int
	begun    int64 // next when the answer began
	pauses   *backoff.ExponentialBackOff
	failed   error // for good
}

// begin asks for what a stream is to carry.
func (c *Client) begin(ctx context.Context, s *Stream) (*Stream, error) {
	s.Size, s.client, s.pauses = -1, c, c.pauses()
	// The context has to outlive this call, because the bodies hang on it.
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	if err := s.ask(); err != nil {
		s.cancel(err)
		return nil, err
	}
	return s, nil
}

// Spliced reports whether the bytes come from more than one answer. If they are not what
// was expected then, the whole may still be.
func (s *Stream) Spliced() bool { return s.answers > 1 }

// ask sends a request for what is left, and makes its answer the one that is read.
func (s *Stream) ask() error {
	response, from, err := s.client.request(s.ctx, http.MethodGet, s.target, s.headerFor)
	if err != nil {
		var failed *Error
		if s.asksForRange() && errors.As(err, &failed) && failed.Status == http.StatusRequestedRangeNotSatisfiable {
			return s.askForAll()
		}
		return err
	}
	again := s.answers > 0
	size, skip := response.ContentLength, int64(0)
	if response.StatusCode == http.StatusPartialContent {
		total, ok := checkRange(response, s.next, s.Size)
		if !ok {
			// Its ranges are not to be relied on.
			s.close(response)
			return s.askForAll()
		}
		size = total
	} else {
		skip = s.next
	}
	etag := strongTag(response.Header.Get("ETag"))
	url := askedFor(response)
	if again {
		reason := ""
		switch {
		case s.Size >= 0 && size >= 0 && size != s.Size:
			reason = fmt.Sprintf("it has %d bytes now, and had %d before", size, s.Size)
		case !s.pinned && etag != s.etag:
			reason = fmt.Sprintf("its ETag is %q now, and was %q before", etag, s.etag)
		}
		if reason != "" {
			err := &Error{URL: url, Status: response.StatusCode,
				Err: fmt.Errorf("it changed while it came: %s: %w", reason, ErrAnew)}
			s.close(response)
			return err
		}
	}
	s.body, s.mediaType, s.url, s.from, s.etag = response.Body, response.Header.Get("Content-Type"), url, from, etag
	if !s.small {
		httpanswer.Streamed(response)
	}
	if s.Size < 0 {
		s.Size = size
	}
	s.skip, s.begun = skip, s.next
	s.answers++
	return nil
}

// close gives up an answer that is not read.
func (s *Stream) close(response *http.Response) {
	if err := response.Body.Close(); err != nil {
		s.client.options.Log.DebugContext(s.ctx, "close", "url", askedFor(response), "error", err)
	}
}

// askedFor returns the address that was asked for, wherever it led to.
func askedFor(response *http.Response) string {
	first := response.Request
	for first.Response != nil {
		first = first.Response.Request
	}
	return withoutQuery(first.URL.String())
}

// askForAll does without ranges from now on.
func (s *Stream) askForAll() error {
	s.noRanges = true
	return s.ask()
}

func (s *Stream) asksForRange() bool { return s.next > 0 && !s.noRanges }

// headerFor adds the range. If-Range makes the server send everything when it has
// something else by now. A tag means nothing to another server, though; where the caller
// proves the content, its bytes are as good.
func (s *Stream) headerFor(endpoint string) http.Header {
	if !s.asksForRange() {
		return s.header
	}
	header := s.header.Clone()
	if header == nil {
		header = make(http.Header)
	}
	header.Set("Range", fmt.Sprintf("bytes=%d-", s.next))
	if s.etag != "" && (!s.pinned || endpoint == s.from) {
		header.Set("If-Range", s.etag)
	}
	return header
}

var contentRange = lazyregexp.New(`^bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)$`)

// checkRange reports whether a partial answer begins at the offset that was asked for and
// is otherwise what it says (RFC 9110, 14.4). It returns the size of the whole, or -1. A
// server may end earlier than it was asked to; the rest is asked for later.
func checkRange(response *http.Response, from, size int64) (total int64, ok bool) {
	parts := contentRange.FindStringSubmatch(response.Header.Get("Content-Range"))
	if parts == nil {
		return 0, false
	}
	first, _ := strconv.ParseInt(parts[1], 10, 64) // 18 digits fit
	last, _ := strconv.ParseInt(parts[2], 10, 64)
	total = -1
	if parts[3] != "*" {
		total, _ = strconv.ParseInt(parts[3], 10, 64)
	}
	length := last - first + 1
	switch {
	case first != from || length <= 0,
		total >= 0 && last >= total,
		total < 0 && size >= 0 && last >= size,
		response.ContentLength >= 0 && response.ContentLength != length:
		return 0, false
	}
	return total, true
}

// strongTag returns an ETag that If-Range may be sent with (RFC 9110, 13.1.5).
func strongTag(tag string) string {
	if len(tag) < 2 || len(tag) > 256 || !strings.HasPrefix(tag, `"`) || !strings.HasSuffix(tag, `"`) {
		return ""
	}
	return tag
}

// Read fails with an [*Error] when the connection breaks, or nothing arrives for too
// long, and going on fails as well.
func (s *Stream) Read(p []byte) (int, error) {
	if s.disk != "" {
		n, err := s.body.Read(p)
		if err != nil && err != io.EOF {
			err = &DiskError{s.disk, cause(err)}
		}
		return n, err
	}
	for {
		n, err := s.readAnswer(p)
		if n > 0 || len(p) == 0 {
			s.next += int64(n)
			return n, nil // an error comes again
		}
		if err == nil {
			continue
		}
		if err == io.EOF && (s.Size < 0 || s.next >= s.Size) { //nolint:errorlint // readers return io.EOF itself
			return 0, io.EOF
		}
		if err == io.EOF { //nolint:errorlint // as above
			err = io.ErrUnexpectedEOF
		}
		if s.failed == nil {
			s.failed = s.goOn(err)
		}
		if s.failed != nil {
			return 0, s.failed
		}
	}
}

// readAnswer reads from the answer and passes over what comes before the next byte.
func (s *Stream) readAnswer(p []byte) (int, error) {
	for {
		piece := p
		if s.skip > 0 {
			piece = p[:min(int64(len(p)), s.skip)]
		}
		n, err := s.body.Read(piece)
		if s.skip == 0 || n == 0 {
			return n, err
		}
		s.skip -= int64(n)
		if err != nil {
			return 0, err
		}
	}
}

// goOn asks for the rest after a break.
func (s *Stream) goOn(broken error) error {
	if s.ctx.Err() != nil {
		broken = context.Cause(s.ctx)
	}
	failed := &Error{URL: s.url, Status: http.StatusOK, Err: fmt.Errorf("the connection broke: %w", broken)}
	if s.Size >= 0 {
		failed.Err = fmt.Errorf("the connection broke after %d of %d bytes: %w", s.next, s.Size, broken)
	}
	if err := s.body.Close(); err != nil { // however much of it is still to come
		s.client.options.Log.DebugContext(s.ctx, "close", "url", s.url, "error", err)
	}
	if s.ctx.Err() != nil {
		return failed
	}
	if !s.pinned && s.etag == "" {
		failed.Err = fmt.Errorf("%w; the server does not say which version of it this is: %w", failed.Err, ErrAnew)
		return failed
	}
	pause := time.Duration(0)
	if s.next-s.begun >= enough {
		s.breaks = 0
		s.pauses.Reset()
	} else {
		if s.breaks++; s.breaks >= maxBreaks {
			return failed
		}
		pause = s.pauses.NextBackOff()
	}
	s.client.options.Retrying(failed, pause)
	select {
	case <-time.After(pause):
	case <-s.ctx.Done():
		failed.Err = context.Cause(s.ctx)
		return failed
	}
	return s.ask()
}

// Close ends the download, wherever it is.
func (s *Stream) Close() error {
	if s.disk != "" {
		return s.body.Close()
	}
	s.cancel(context.Canceled)
	return s.body.Close()
}
