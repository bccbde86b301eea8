package registry

import (
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Bounds of what the access log repeats of a request, in bytes.
const (
	maxLoggedPath  = 256
	maxLoggedAgent = 64
)

// response keeps count of an answer.
type response struct {
	http.ResponseWriter
	status int
	bytes  int64
	// refused says that the standard library's answer to a Range was replaced by this
	// package's; its text is not for the client.
	refused bool
}

func (w *response) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status == http.StatusRequestedRangeNotSatisfiable {
		// Its header fields, Content-Range among them, stay.
		fail(status, codeRangeInvalid, "the blob has no such bytes", nil).write(&rangeAnswer{w})
		w.refused = true
		return
	}
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// rangeAnswer writes the answer that response has asked for.
type rangeAnswer struct{ *response }

func (w *rangeAnswer) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	if w.refused {
		return len(b), nil
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// ReadFrom passes the reader on to the connection, whose buffers serve all.
func (w *response) ReadFrom(src io.Reader) (int64, error) {
	if w.refused {
		return io.Copy(io.Discard, src)
	}
	n, err := io.Copy(w.ResponseWriter, src)
	w.bytes += n
	return n, err
}

// log writes one line. It has nothing of the header fields that hold credentials, and of
// the query only containerd's ns.
func (w *response) log(log *slog.Logger, r *http.Request, start time.Time, cause error) {
	attributes := []slog.Attr{
		slog.String("from", r.RemoteAddr),
		slog.String("method", printable.Short(r.Method, 16)),
		slog.String("path", printable.Short(r.URL.Path, maxLoggedPath)),
	}
	if ns := namespace(r); ns != "" {
		attributes = append(attributes, slog.String("ns", printable.Short(ns, maxLoggedAgent)))
	}
	if text := r.Header.Get("Range"); text != "" {
		attributes = append(attributes, slog.String("range", printable.Short(text, maxLoggedAgent)))
	}
	attributes = append(attributes,
		slog.Int("status", w.status), slog.Int64("bytes", w.bytes),
		slog.Duration("took", time.Since(start).Round(time.Microsecond)),
		slog.String("agent", printable.Short(r.UserAgent(), maxLoggedAgent)))
	level := slog.LevelInfo
	if cause != nil {
		level = slog.LevelError
		attributes = append(attributes, slog.String("error", printable.Short(cause.Error(), 2*maxLoggedPath)))
	}
	log.LogAttrs(r.Context(), level, "request", attributes...)
}
