package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Rule makes the server misbehave. It applies to requests whose method and path match,
// after the first Skip of them, Times times.
type Rule struct {
	// Method is GET, HEAD, …; empty means any.
	Method string
	// Path is a regular expression, searched in the decoded path ("+", not "%2B") without
	// the query: "/v2/quay\.io/cilium/cilium/blobs/". [FilePath] and [BlobPath] make some.
	Path string
	// Skip is how many matching requests are let through first.
	Skip int
	// Times is how many are hit after that; 0 means all.
	Times int
	// Fault is what happens to them.
	Fault Fault
}

// Fault is one kind of misbehaviour: [Status], [Silent], [Redirect], [Stall], [Endless], [Cut], [WrongByte],
// [NewETag], [Slow], [IgnoreRange] or [ShiftRange].
//
// Stall and Endless apply to every answer that may have a body, those with an error too. From Cut
// to Slow they apply to a GET that is answered with 200 or 206, and only such
// requests count for the rule's Skip and Times; the last two, to a GET with a Range header.
type Fault interface {
	check() error
}

// Status answers with an error and nothing else.
type Status struct {
	// Code is the HTTP status, 400 to 599.
	Code int
	// RetryAfter is sent in whole seconds, rounded up, when it is above 0.
	RetryAfter time.Duration
}

// Silent takes the request and never answers, until the client is gone.
type Silent struct{}

// Redirect sends a GET or HEAD for a blob to another host, localhost, with a signed address
// that needs no credentials and refuses them with 400: what the big registries do, though
// it is no fault of theirs.
type Redirect struct{}

// Stall sends After bytes of the body and then nothing more, until the client is gone: what a
// proxy does that dies in the middle. A body that is not longer than After stays as it is.
type Stall struct{ After int64 }

// Endless sends blanks after the body, as long as the client takes them.
type Endless struct{}

// Cut ends the connection with a TCP reset once After bytes of the body were sent. A body
// that is not longer than After is not cut.
type Cut struct{ After int64 }

// WrongByte inverts the byte at this offset of the file or blob, wherever the body starts.
// A body without that byte is left alone but counts.
type WrongByte struct{ At int64 }

// IgnoreRange answers a request that has a Range header with 200 and everything.
type IgnoreRange struct{}

// ShiftRange answers a request that has a Range header with the bytes from another offset
// on, so many further (or back, when it is negative), and says so in Content-Range: what
// caches do that know whole blocks only.
type ShiftRange struct{ By int64 }

// NewETag gives the file or blob this ETag, with the quotes and what stands before them;
// empty means none. Its bytes stay. Requests with another one in If-Range get everything.
type NewETag struct{ Tag string }

// Slow sends this many bytes in a second.
type Slow struct{ BytesPerSecond int }

func (f Status) check() error {
	if f.Code < 400 || f.Code > 599 {
		return fmt.Errorf("status %d is not an error", f.Code)
	}
	return nil
}
func (Silent) check() error      { return nil }
func (Redirect) check() error    { return nil }
func (f Stall) check() error     { return atLeast("stall after", f.After, 0) }
func (Endless) check() error     { return nil }
func (f Cut) check() error       { return atLeast("cut after", f.After, 0) }
func (f WrongByte) check() error { return atLeast("wrong byte at", f.At, 0) }
func (IgnoreRange) check() error { return nil }
func (NewETag) check() error     { return nil }
func (f ShiftRange) check() error {
	if f.By == 0 {
		return errors.New("a range that is not shifted is none")
	}
	return nil
}
func (f Slow) check() error { return atLeast("bytes per second", int64(f.BytesPerSecond), 1) }

func atLeast(what string, n, least int64) error {
	if n < least {
		return fmt.Errorf("%s: %d is below %d", what, n, least)
	}
	return nil
}

// Injection is a rule in force.
type Injection struct {
	rule   Rule
	path   *regexp.Regexp
	server *Server
	seen   atomic.Int64
	hits   atomic.Int64
}

// Inject puts a rule in force. Rules add up; of several that answer with a status the
// first one put in force wins. A malformed rule is a mistake in the caller and panics.
func (s *Server) Inject(rule Rule) *Injection {
	if rule.Fault == nil {
		panic("upstream: a rule without a fault")
	}
	if err := rule.Fault.check(); err != nil {
		panic("upstream: " + err.Error())
	}
	i := &Injection{rule: rule, path: regexp.MustCompile(rule.Path), server: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.injected = append(s.injected, i)
	return i
}

// Hits says how often the rule was applied.
func (i *Injection) Hits() int { return int(i.hits.Load()) }

// Remove ends the rule for requests that come from now on.
func (i *Injection) Remove() {
	i.server.mu.Lock()
	defer i.server.mu.Unlock()
	var rest []*Injection // a new slice: running requests hold the old one
	for _, other := range i.server.injected {
		if other != i {
			rest = append(rest, other)
		}
	}
	i.server.injected = rest
}

func (i *Injection) matches(r *http.Request) bool {
	return (i.rule.Method == "" || i.rule.Method == r.Method) && i.path.MatchString(r.URL.Path)
}

// take counts a request and says whether the rule hits it.
func (i *Injection) take() bool {
	n := i.seen.Add(1) - int64(i.rule.Skip)
	if n <= 0 || i.rule.Times > 0 && n > int64(i.rule.Times) {
		return false
	}
	i.hits.Add(1)
	return true
}

// willTake reports whether the rule would hit a request that came now.
func (i *Injection) willTake() bool {
	n := i.seen.Load() + 1 - int64(i.rule.Skip)
	return n > 0 && (i.rule.Times == 0 || n <= int64(i.rule.Times))
}

// Heal ends everything that Inject, MoveTag and RequireAuth began.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.injected, s.auth = nil, nil
	clear(s.moved)
}

// Request is one request as the server saw it.
type Request struct {
	Method string
	Path   string // decoded, without the query
	Range  string // the request's header, "" for none
	Auth   string // the scheme of the Authorization header: "", "Basic" or "Bearer"
	Status int    // 0: the connection ended before a status was sent, or the answer still runs
	Bytes  int64  // of the body, as far as they were handed to the connection
}

// logged is a request in the log; the answer's fields are set when ended is closed.
type logged struct {
	Request
	ended chan struct{}
}

// Requests lists what was asked since the start or the last ResetRequests, in the order in
// which it came. A client may have read all of an answer before the server knows that it
// has ended, so answers that still run get a moment to end.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	log := slices.Clone(s.requests)
	s.mu.Unlock()
	patience := time.After(time.Second)
	for _, l := range log {
		select {
		case <-l.ended:
			continue
		case <-patience:
		}
		break
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := make([]Request, len(log))
	for n, l := range log {
		requests[n] = l.Request
	}
	return requests
}

// ResetRequests forgets them.
func (s *Server) ResetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// exchange is a request and its answer, on which rules are applied.
type exchange struct {
	http.ResponseWriter
	request *http.Request // as it is answered
	logged  *logged       // as it came
	rules   []*Injection

	status  int
	sent    int64 // bytes of the body
	base    int64 // offset in the whole file or blob at which the body starts
	cut     int64 // cut once sent reaches it; negative: never
	stall   int64 // send nothing more once sent reaches it; negative: never
	endless bool  // blanks come after the body
	wrong   []int64
	rate    int // bytes per second; 0: as fast as it goes
}

var errCut = errors.New("the connection was cut on purpose")

func (s *Server) newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	x := &exchange{ResponseWriter: w, request: r, cut: -1, stall: -1, logged: &logged{
		Request: Request{Method: r.Method, Path: r.URL.Path, Range: r.Header.Get("Range"), Auth: scheme},
		ended:   make(chan struct{}),
	}}
	s.mu.Lock()
	s.requests = append(s.requests, x.logged)
	for _, i := range s.injected {
		if i.matches(r) {
			x.rules = append(x.rules, i)
		}
	}
	s.mu.Unlock()
	for _, i := range x.rules {
		if r.Method == http.MethodGet && r.Header.Get("Range") != "" {
			x.changeRange(i)
		}
	}
	return x
}

// changeRange makes the request ask for something else than it does.
func (x *exchange) changeRange(i *Injection) {
	header := x.request.Header.Clone()
	switch f := i.rule.Fault.(type) {
	case IgnoreRange:
		if !i.take() {
			return
		}
		header.Del("Range")
		header.Del("If-Range")
	case ShiftRange:
		var from int64
		if _, err := fmt.Sscanf(header.Get("Range"), "bytes=%d-", &from); err != nil || !i.take() {
			return
		}
		header.Set("Range", fmt.Sprintf("bytes=%d-", max(0, from+f.By)))
	case NewETag:
		// Whether the rule hits is decided by the answer, and this is the same question.
		if condition := header.Get("If-Range"); condition == "" || !i.willTake() || condition == f.Tag {
			return
		}
		header.Del("Range")
		header.Del("If-Range")
	default:
		return
	}
	x.request = x.request.Clone(x.request.Context())
	x.request.Header = header
}

// record completes the entry in the log.
func (s *Server) record(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.logged.Status, x.logged.Bytes = x.status, x.sent
	close(x.logged.ended)
}

// refuse answers with a rule's status, or not at all, if there is such a rule.
func (x *exchange) refuse() bool {
	for _, i := range x.rules {
		if _, ok := i.rule.Fault.(Silent); ok && i.take() {
			<-x.request.Context().Done()
			// Whoever returned here would answer with an empty 200, and a client that is just closing its connection
			// may still read that.
			panic(http.ErrAbortHandler)
		}
		status, ok := i.rule.Fault.(Status)
		if !ok || !i.take() {
			continue
		}
		if status.RetryAfter > 0 {
			seconds := (status.RetryAfter + time.Second - 1) / time.Second
			x.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
		}
		http.Error(x, http.StatusText(status.Code), status.Code)
		return true
	}
	return false
}

// WriteHeader takes note of the status and puts the rules for the body in force.
func (x *exchange) WriteHeader(status int) {
	if x.status == 0 && status >= 200 {
		x.status = status
		if x.request.Method != http.MethodHead {
			x.applyStalls()
		}
		if x.request.Method == http.MethodGet && (status == http.StatusOK || status == http.StatusPartialContent) {
			x.base = rangeStart(x.Header().Get("Content-Range"))
			x.applyRules()
		}
	}
	x.ResponseWriter.WriteHeader(status)
}

// applyStalls puts those rules in force that any answer with a body may be hit by.
func (x *exchange) applyStalls() {
	for _, i := range x.rules {
		switch f := i.rule.Fault.(type) {
		case Stall:
			if i.take() {
				x.stall = f.After
			}
		case Endless:
			if i.take() {
				x.endless = true
				x.Header().Del("Content-Length")
			}
		}
	}
}

func (x *exchange) applyRules() {
	for _, i := range x.rules {
		switch f := i.rule.Fault.(type) {
		case Cut:
			if i.take() {
				x.cut = f.After
			}
		case WrongByte:
			if i.take() {
				x.wrong = append(x.wrong, f.At)
			}
		case NewETag:
			if i.take() {
				x.Header().Set("ETag", f.Tag)
				if f.Tag == "" {
					x.Header().Del("ETag")
				}
			}
		case Slow:
			if i.take() {
				x.rate = f.BytesPerSecond
			}
		}
	}
}

// rangeStart reads the first number of "bytes 10-19/100"; 0 if there is none.
func rangeStart(contentRange string) int64 {
	first, _, _ := strings.Cut(strings.TrimPrefix(contentRange, "bytes "), "-")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Write sends body bytes, as far as the rules let it.
func (x *exchange) Write(p []byte) (int, error) {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	if x.request.Method == http.MethodHead {
		return x.ResponseWriter.Write(p) // goes nowhere
	}
	written := 0
	for len(p) > 0 {
		if x.sent == x.cut {
			return written, x.reset()
		}
		if x.sent == x.stall {
			return written, x.standStill()
		}
		piece := p
		if x.stall >= 0 {
			piece = piece[:min(int64(len(piece)), x.stall-x.sent)]
		}
		if x.cut >= 0 {
			piece = piece[:min(int64(len(piece)), x.cut-x.sent)]
		}
		if x.rate > 0 {
			piece = piece[:min(len(piece), max(1, x.rate/20))]
		}
		n, err := x.ResponseWriter.Write(x.spoil(piece))
		written += n
		x.sent += int64(n)
		if err != nil {
			return written, err
		}
		if err := x.wait(n); err != nil {
			return written, err
		}
		p = p[n:]
	}
	if x.endless {
		return written, x.goOn()
	}
	return written, nil
}

// standStill leaves the answer as it is until the client is gone.
func (x *exchange) standStill() error {
	if err := http.NewResponseController(x.ResponseWriter).Flush(); err != nil {
		return err
	}
	<-x.request.Context().Done()
	return x.request.Context().Err()
}

// goOn sends blanks until the client is gone.
func (x *exchange) goOn() error {
	blanks := bytes.Repeat([]byte{' '}, 32<<10)
	for {
		n, err := x.ResponseWriter.Write(blanks)
		x.sent += int64(n)
		if err != nil {
			return err
		}
	}
}

// spoil gives the piece with the wrong bytes in it, copied if there are any: the piece
// may belong to a file that other requests read too.
func (x *exchange) spoil(piece []byte) []byte {
	copied := false
	for _, at := range x.wrong {
		at -= x.base + x.sent
		if at < 0 || at >= int64(len(piece)) {
			continue
		}
		if !copied {
			piece, copied = append([]byte(nil), piece...), true
		}
		piece[at] ^= 0xff
	}
	return piece
}

// wait keeps to the rate.
func (x *exchange) wait(n int) error {
	if x.rate == 0 {
		return nil
	}
	if err := http.NewResponseController(x.ResponseWriter).Flush(); err != nil {
		return err
	}
	timer := time.NewTimer(time.Duration(n) * time.Second / time.Duration(x.rate))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-x.request.Context().Done():
		return x.request.Context().Err()
	}
}

// reset ends the connection the hard way, where HTTP/2 is spoken the stream.
func (x *exchange) reset() error {
	control := http.NewResponseController(x.ResponseWriter)
	if err := control.Flush(); err != nil {
		return err
	}
	conn, _, err := control.Hijack()
	if err != nil {
		time.Sleep(20 * time.Millisecond) // as long as the stream's bytes may take
		panic(http.ErrAbortHandler)
	}
	raw := conn
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		raw = secure.NetConn() // closing the TLS side would say goodbye first
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		// A reset throws away what the kernel has not sent yet.
		if err := errors.Join(drain(tcp), tcp.SetLinger(0)); err != nil {
			return err
		}
	}
	if err := raw.Close(); err != nil {
		return err
	}
	return errCut
}
