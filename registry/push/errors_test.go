package push

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/registry/rewrite"
	"github.com/liteboxd/boxlift/test/target"
)

// registryError is what a refusal looks like, without what differs between runs.
func registryError(s *target.Server, err error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "error: %v\n", err)
	if e, ok := asError(err); ok {
		fmt.Fprintf(&b, "status %d, codes %v\nhint: %s\n", e.Status, e.Codes, e.Hint())
	}
	text := strings.ReplaceAll(b.String(), s.Address(), "registry.lan")
	for pattern, with := range map[string]string{
		`sha256:[0-9a-f]{64}`: "sha256:HEX", `\d+(\.\d+)? [KMG]?i?B\b`: "SIZE",
		`look for \S+:`: "look for TAG:", `plant/\S+: `: "plant/REPOSITORY: ",
		`'plant/\S+'`: "'plant/REPOSITORY:TAG'", `push tag \S+:`: "push tag TAG:",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, with)
	}
	return text
}

// TestRefusals writes down what users are told.
func TestRefusals(t *testing.T) {
	harbor := func(h *target.Harbor) target.Options {
		return target.Options{Kind: target.Debian, Auth: target.Token, Users: users, Harbor: h}
	}
	plant := map[string]int64{"plant": 0}
	var text strings.Builder
	for _, test := range []struct {
		name   string
		target target.Options
		change func(*Options)
		before func(t *testing.T, s *target.Server, o Options)
	}{
		{name: "no such project", target: harbor(&target.Harbor{Projects: map[string]int64{"other": 0}})},
		{name: "no project", target: harbor(&target.Harbor{Projects: plant}), change: func(o *Options) {
			o.Rewrites = rewrite.Rules{}
		}},
		{name: "quota", target: harbor(&target.Harbor{Projects: map[string]int64{"plant": 1 << 20}})},
		{name: "Harbor is read-only", target: harbor(&target.Harbor{Projects: plant, ReadOnly: true})},
		{name: "may only pull", target: harbor(&target.Harbor{Projects: plant, PullOnly: []string{robot}})},
		{name: "immutable tags", target: harbor(&target.Harbor{Projects: plant, ImmutableTags: true}),
			before: func(t *testing.T, _ *target.Server, o Options) {
				o.Platforms = []lock.Platform{"linux/arm64"}
				mustPush(t, o)
			}},
		{name: "wrong password, tokens", target: harbor(&target.Harbor{Projects: plant}),
			change: func(o *Options) { o.Password = "wrong" }},
		{name: "no password, tokens", target: harbor(&target.Harbor{Projects: plant}),
			change: func(o *Options) { o.Username = "" }},
		{name: "wrong password", target: target.Options{Auth: target.Basic, Users: users},
			change: func(o *Options) { o.Password = "wrong" }},
		{name: "no password", target: target.Options{Auth: target.Basic, Users: users},
			change: func(o *Options) { o.Username = "" }},
		{name: "distribution is read-only", target: target.Options{ReadOnly: true}},
		{name: "Debian's is read-only", target: target.Options{Kind: target.Debian, ReadOnly: true}},
		{name: "a proxy takes only so much", before: func(_ *testing.T, s *target.Server, _ Options) {
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.ContentLength > 1<<20 {
					w.WriteHeader(http.StatusRequestEntityTooLarge)
					fmt.Fprint(w, "<html><title>413 Request Entity Too Large</title>\x1b[31m</html>")
					return true
				}
				return false
			})
		}},
		{name: "no registry", before: func(_ *testing.T, s *target.Server, _ Options) {
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				http.NotFound(w, r)
				return true
			})
		}},
		{name: "no end of 429", before: func(_ *testing.T, s *target.Server, _ Options) {
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				w.Header().Set("Retry-After", "100000")
				target.Refuse(w, http.StatusTooManyRequests, "TOOMANYREQUESTS", "slow down")
				return true
			})
		}},
		{name: "no end of 500", before: func(_ *testing.T, s *target.Server, _ Options) {
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				target.Refuse(w, http.StatusInternalServerError, "UNKNOWN", "unknown error")
				return true
			})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := target.Start(t, test.target)
			var log bytes.Buffer
			o := optionsFor(t, s, func(o *Options) {
				o.Jobs = 1 // the first error is always the same then
				o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
				if test.change != nil {
					test.change(o)
				}
			})
			if test.before != nil {
				test.before(t, s, o)
			}
			_, err := pushWith(t.Context(), o, impatient)
			if err == nil {
				t.Fatal("it was taken")
			}
			fmt.Fprintf(&text, "%s\n%s\n", test.name, registryError(s, err))
			for _, secret := range []string{password, "Bearer", "eyJ"} {
				if strings.Contains(err.Error()+log.String(), secret) {
					t.Errorf("error or log have %q", secret)
				}
			}
			if log.Len() == 0 {
				t.Error("nothing was logged")
			}
		})
	}
	golden(t, "refusals.golden", text.String())
}

// TestConnections writes down what users are told when no answer comes.
func TestConnections(t *testing.T) {
	s := target.Start(t, target.Options{})
	plain := target.Start(t, target.Options{PlainHTTP: true})
	other := httptest.NewUnstartedServer(nil)
	other.StartTLS()
	other.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	var text strings.Builder
	for _, test := range []struct {
		name   string
		change func(*Options)
	}{
		{"another authority", func(o *Options) { o.CA = nil }},
		{"another name", func(o *Options) {
			_, port, _ := net.SplitHostPort(s.Address())
			o.Address = "localhost:" + port
		}},
		{"no TLS there", func(o *Options) { o.Address = plain.Address() }},
		{"TLS there", func(o *Options) { o.PlainHTTP, o.CA = true, nil }},
		{"nobody listens", func(o *Options) { o.Address = closed.Addr().String() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := pushWith(t.Context(), optionsFor(t, s, test.change), impatient)
			e, ok := asError(err)
			if !ok {
				t.Fatalf("got %v", err)
			}
			said := regexp.MustCompile(`(127\.0\.0\.1|localhost):\d+`).ReplaceAllString(registryError(s, err), "registry.lan")
			fmt.Fprintf(&text, "%s\n%s\n", test.name, said)
			if temporary := test.name == "nobody listens"; e.temporary != temporary {
				t.Errorf("it would be tried again: %v", e.temporary)
			}
		})
	}
	golden(t, "connections.golden", text.String())
	if _, err := Check(t.Context(),
		optionsFor(t, s, func(o *Options) { o.CA, o.InsecureSkipTLSVerify = nil, true })); err != nil {
		t.Errorf("with any certificate: %v", err)
	}
}

// TestAdvice looks at hints for errors that take effort to cause.
func TestAdvice(t *testing.T) {
	for want, err := range map[string]error{
		"clock":    x509.CertificateInvalidError{Reason: x509.Expired},
		"resolver": &net.DNSError{Err: "no such host", Name: "harbor.lan", IsNotFound: true},
		"TLS":      tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"},
		"proxy":    errors.New("anything else"),
	} {
		e := &Error{Err: fmt.Errorf("wrapped: %w", err)}
		if !strings.Contains(e.Hint(), want) {
			t.Errorf("%v: %s", err, e.Hint())
		}
	}
}

func TestAddresses(t *testing.T) {
	for address, valid := range map[string]bool{
		"harbor.lan": true, "harbor": true, "192.0.2.1:5000": true, "[2001:db8::1]:443": true, "a-b.c:1": true,
		"": false, "https://harbor.lan": false, "harbor.lan/plant": false, "user:secret@harbor.lan": false,
		"harbor.lan:": false, "-a": false, "a b": false, "a:123456": false,
	} {
		_, err := newClient(Options{Address: address})
		if (err == nil) != valid {
			t.Errorf("%q: %v", address, err)
		}
		if err != nil && address != "" && strings.Contains(err.Error(), address) {
			t.Errorf("the error repeats %q", address)
		}
	}
	if _, err := newClient(Options{Address: "a", CA: []byte("no certificate")}); !errors.As(err, new(*AuthorityError)) {
		t.Errorf("got %v", err)
	}
}

// TestStall sends to a registry that takes a blob and does not answer, and to one that
// stops taking it.
func TestStall(t *testing.T) {
	t.Run("does not answer", func(t *testing.T) {
		s := target.Start(t, target.Options{})
		ended := make(chan struct{})
		s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/uploads/") {
				return false
			}
			_, _ = io.Copy(io.Discard, r.Body)
			<-ended
			return true
		})
		_, err := pushWith(t.Context(), optionsFor(t, s), func(p *pusher) {
			impatient(p)
			p.client.patient.tries, p.client.patient.stored = 2, 300*time.Millisecond
		})
		close(ended)
		tried := make(map[string]int)
		for _, r := range s.Requests() {
			if r.Method == http.MethodPut {
				_, d, _ := strings.Cut(r.Query, "digest=")
				tried[d]++
			}
		}
		if most := slices.Max(slices.Collect(maps.Values(tried))); most != 2 {
			t.Errorf("a blob was tried at most %d times, expected 2: %v", most, tried)
		}
		if err == nil || !strings.Contains(err.Error(), "the registry took it all and did not answer within 300ms") {
			t.Errorf("got %v", err)
		}
	})
	// What lies in the kernel's buffers counts as taken: it takes a large blob to see this
	// from outside.
	t.Run("takes no more", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		s := &sender{
			pusher: &pusher{client: &client{patient: patience{answer: time.Minute, stall: 50 * time.Millisecond,
				stored: time.Minute}}},
			task: progress.Discard.Task("", 0),
		}
		body := watch(strings.NewReader("a blob"), 6, s, cancel)
		if _, err := body.Read(make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		if got, want := fmt.Sprint(context.Cause(ctx)), "the registry took 2 B and no more within 50ms"; got != want {
			t.Errorf("got %s, expected %s", got, want)
		}
	})
}

// TestSilence asks a registry that does not answer, or stops in the middle of an answer.
func TestSilence(t *testing.T) {
	for name, begin := range map[string]func(http.ResponseWriter){
		"no answer": func(http.ResponseWriter) {},
		"an error":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			s := target.Start(t, target.Options{})
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if begin(w); s.Requests()[0].Status != 0 {
					_ = http.NewResponseController(w).Flush() // the client may be gone
				}
				<-r.Context().Done()
				panic(http.ErrAbortHandler) // an empty answer could still reach a client that is closing
			})
			_, err := pushWith(t.Context(), optionsFor(t, s), func(p *pusher) {
				impatient(p)
				p.client.patient.tries, p.client.patient.answer = 2, 100*time.Millisecond
			})
			if err == nil || !strings.Contains(err.Error(), "no answer came within 100ms") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestLocation follows an upload to where the registry says.
func TestLocation(t *testing.T) {
	c, err := newClient(Options{Address: "harbor.lan:8443"})
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		URL string
		Own bool
	}
	for header, want := range map[string]result{
		"/v2/a/blobs/uploads/1?_state=x": {"https://harbor.lan:8443/v2/a/blobs/uploads/1?_state=x",
			true},
		"https://harbor.lan:8443/v2/a/blobs/uploads/1":        {"https://harbor.lan:8443/v2/a/blobs/uploads/1", true},
		"http://harbor.lan/v2/a/blobs/uploads/1":              {"https://harbor.lan:8443/v2/a/blobs/uploads/1", true},
		"https://storage.lan/bucket/1?signature=x":            {"https://storage.lan/bucket/1?signature=x", false},
		"http://storage.lan/bucket/1":                         {},
		"/v2/a/blobs/uploads/1#https://evil.example/":         {"https://harbor.lan:8443/v2/a/blobs/uploads/1", true},
		"ftp://harbor.example/1":                              {},
		"":                                                    {},
		"https://harbor.lan:8443.evil.example/v2/a/uploads/1": {},
		"https://harbor.lan:8443@evil.example/blobs/uploads/1": {"https://harbor.lan:8443@evil.example/blobs/uploads/1",
			false},
	} {
		from, err := url.Parse("https://harbor.lan:8443/v2/a/blobs/uploads/")
		if err != nil {
			t.Fatal(err)
		}
		var got result
		sent := &http.Request{Method: http.MethodPost, URL: from}
		response := &http.Response{StatusCode: http.StatusAccepted, Header: http.Header{"Location": {header}}, Request: sent}
		if err := c.adapt(&subject{}, sent, response); err == nil {
			// What oras makes of it has to end up there.
			put, err := http.NewRequestWithContext(t.Context(), http.MethodPut, response.Header.Get("Location"), nil)
			if err != nil {
				t.Fatal(err)
			}
			put.Header.Set("Authorization", "Basic secret")
			if put.URL.Host != from.Host {
				t.Errorf("%q: oras refuses %s", header, put.URL)
			}
			message, err := c.message(t.Context(), put)
			if err != nil {
				t.Fatal(err)
			}
			got = result{message.URL.String(), message.Header.Get("Authorization") != ""}
			if message.Host != message.URL.Host {
				t.Errorf("%q: it is sent to %s as %s", header, message.URL.Host, message.Host)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", header, diff)
		}
	}
}

// TestRedirects follows a registry elsewhere, but not out of TLS.
func TestRedirects(t *testing.T) {
	plain := target.Start(t, target.Options{PlainHTTP: true})
	s := target.Start(t, target.Options{})
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, "http://"+plain.Address()+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	})
	_, err := pushWith(t.Context(), optionsFor(t, s), impatient)
	if err == nil || !errors.Is(err, errRedirect) || len(plain.Requests()) != 0 {
		t.Errorf("got %v, and %d requests came", err, len(plain.Requests()))
	}
}

// TestRedirectedElsewhere asks a registry that keeps its blobs on another host, which gets no
// login, whatever it asks for and however often it redirects: net/http restores the login at
// each step within a name.
func TestRedirectedElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		options target.Options
		asks    bool
		status  int
	}{
		"tokens":                    {target.Options{Kind: target.Debian, Auth: target.Token, Users: users}, false, 0},
		"passwords":                 {target.Options{Auth: target.Basic, Users: users}, false, 0},
		"tokens, asks for a login":  {target.Options{Kind: target.Debian, Auth: target.Token, Users: users}, true, 401},
		"passwords, asks for login": {target.Options{Auth: target.Basic, Users: users}, true, 401},
	} {
		t.Run(name, func(t *testing.T) {
			s, other := target.Start(t, test.options), target.Start(t, target.Options{})
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				goes := r.Method == http.MethodHead && strings.Contains(r.URL.Path, "/blobs/")
				if goes {
					http.Redirect(w, r, "https://"+other.Address()+r.URL.Path, http.StatusTemporaryRedirect)
				}
				return goes
			})
			var got atomic.Value
			other.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if login := r.Header.Get("Authorization"); login != "" {
					got.Store(login)
				}
				if r.URL.RawQuery == "" {
					http.Redirect(w, r, r.URL.Path+"?again", http.StatusTemporaryRedirect)
					return true
				}
				if test.asks {
					w.Header().Add("WWW-Authenticate", "Basic")
					w.Header().Add("WWW-Authenticate", `Bearer realm="https://`+other.Address()+`/token",service="s"`)
					w.WriteHeader(http.StatusUnauthorized)
				}
				return test.asks
			})
			o := optionsFor(t, s, func(o *Options) { o.CA = append(o.CA, other.CA()...) })
			_, err := pushWith(t.Context(), o, impatient)
			status := 0
			if e, ok := asError(err); ok {
				status = e.Status
			}
			if status != test.status || (err == nil) != (status == 0) {
				t.Errorf("got %v, expected the status %d", err, test.status)
			}
			if n := len(other.Requests()); got.Load() != nil || n == 0 {
				t.Errorf("in %d requests the other host got %v", n, got.Load())
			}
		})
	}
}

// TestMessages expects that users hear of what is tried again.
func TestMessages(t *testing.T) {
	s := target.Start(t, target.Options{})
	failed := false
	s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		if failed {
			return false
		}
		failed = true
		http.Error(w, "restarting", http.StatusBadGateway)
		return true
	})
	r := &messages{Reporter: progress.Discard}
	if _, err := pushWith(t.Context(), optionsFor(t, s, func(o *Options) { o.Reporter, o.Jobs = r, 1 }),
		impatient); err != nil {
		t.Fatal(err)
	}
	if len(r.texts) != 1 || !strings.Contains(r.texts[0], "502 Bad Gateway: restarting; trying again in 0.0s") {
		t.Errorf("it says %q", r.texts)
	}
}

type messages struct {
	progress.Reporter
	texts []string
}

func (m *messages) Message(text string) { m.texts = append(m.texts, text) }
