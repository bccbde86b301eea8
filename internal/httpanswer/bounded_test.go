package httpanswer

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/whole":
			_, _ = io.WriteString(w, strings.Repeat("a", 1000))
		case "/larger":
			_, _ = io.WriteString(w, strings.Repeat("a", 1001))
		case "/endless":
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "aaaa")
			}
		case "/stalled":
			_, _ = io.WriteString(w, "aaaa")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			panic(http.ErrAbortHandler) // an end could still reach a client that is closing
		}
	}))
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	const long = time.Minute
	stop := errors.New("the user wants it to stop")
	for name, test := range map[string]struct {
		path        string
		idle, whole time.Duration
		streamed    bool
		cancel      bool
		size        int
		err         string
	}{
		"whole":            {path: "/whole", idle: long, whole: long, size: 1000},
		"larger":           {path: "/larger", idle: long, whole: long, size: 1000, err: errTooLarge.Error()},
		"larger, streamed": {path: "/larger", idle: long, whole: long, streamed: true, size: 1001},
		"endless":          {path: "/endless", idle: long, whole: long, size: 1000, err: errTooLarge.Error()},
		"stalled":          {path: "/stalled", idle: 30 * time.Millisecond, whole: long, size: 4, err: "nothing arrived for 30ms"},
		"stalled, streamed": {
			path: "/stalled", idle: 30 * time.Millisecond, whole: long, streamed: true, size: 4, err: "nothing arrived for 30ms",
		},
		"too long":  {path: "/stalled", idle: long, whole: 30 * time.Millisecond, size: 4, err: "it did not end within 30ms"},
		"cancelled": {path: "/stalled", idle: long, whole: long, cancel: true, size: 4, err: stop.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := (&Bounded{Next: transport, Idle: test.idle, Whole: test.whole, Size: 1000}).RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			if response.Request != request {
				t.Error("the answer is to another request")
			}
			if test.streamed {
				Streamed(response)
			}
			content := make([]byte, 4)
			if _, err := io.ReadFull(response.Body, content); err != nil {
				t.Fatal(err)
			}
			if test.cancel {
				cancel(stop)
			}
			rest, err := io.ReadAll(response.Body)
			if got := len(content) + len(rest); got != test.size {
				t.Errorf("%d bytes came, expected %d", got, test.size)
			}
			if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("got %v, expected %q", err, test.err)
			}
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
