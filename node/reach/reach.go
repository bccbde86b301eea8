package reach

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/liteboxd/boxlift/node/wire"
)

// Do hosts reach each other?
//
// "boxlift-node listen" reads one line of JSON, a [ListenRequest], opens the ports that
// are free, prints one line, a [ListenReport], and answers whoever knows the nonce until
// its standard input ends or its time is over. "boxlift-node reach" reads one line, a
// [Request], tries all its targets at once and prints one line, a [Report].
// Both leave nothing behind.
//
// Who connects sends the nonce of the run and a line feed, over UDP the nonce alone, and
// gets the same back. Anybody else gets nothing: over UDP, an answer is never longer than
// the question.

// Version is the version of these documents.
const Version = 1

// Bounds of the documents and of the time they may ask for.
const (
	// MaxListenPorts is how many ports one request may name, MaxTargets how many
	// targets.
	MaxListenPorts = 64
	MaxTargets     = 4096
	// MaxListenTime and MaxTime are the longest that either may run.
	MaxListenTime = time.Minute
	MaxTime       = 10 * time.Second

	nonceLength  = 32
	maxExchanges = 256 // at once, per side
	exchangeTime = 2 * time.Second
)

// Endpoint is a port of a host.
type Endpoint struct {
	Protocol string `json:"protocol"` // tcp or udp
	Port     int    `json:"port"`
}

// String returns "10250/tcp".
func (p Endpoint) String() string { return strconv.Itoa(p.Port) + "/" + p.Protocol }

func (p Endpoint) validate() error {
	if p.Protocol != "tcp" && p.Protocol != "udp" {
		return fmt.Errorf("protocol %q: expected tcp or udp", p.Protocol)
	}
	if p.Port < 1 || p.Port > 65535 {
		return fmt.Errorf("port %d: expected 1 to 65535", p.Port)
	}
	return nil
}

// ListenRequest says what to listen on.
type ListenRequest struct {
	Version int `json:"version"`
	// Nonce is 32 characters that nobody can guess.
	Nonce string `json:"nonce"`
	// Address is the host's own, from which answers over UDP are to come. Where the host
	// does not have it, it listens on all.
	Address string     `json:"address,omitempty"`
	Ports   []Endpoint `json:"ports"`
	// Milliseconds is how long to listen at most.
	Milliseconds int `json:"milliseconds"`
}

// ListenReport says what is being listened on.
type ListenReport struct {
	Version   int        `json:"version"`
	Listening []Endpoint `json:"listening"`
	// Busy are the ports that something else listens on already.
	Busy []Endpoint `json:"busy,omitempty"`
	// Failed are those that could not be opened for another reason, which Problem says.
	Failed  []Endpoint `json:"failed,omitempty"`
	Problem string     `json:"problem,omitempty"`
}

// Request says what to reach.
type Request struct {
	Version int      `json:"version"`
	Nonce   string   `json:"nonce"`
	Targets []Target `json:"targets"`
	// Milliseconds is how long to try at most.
	Milliseconds int `json:"milliseconds"`
}

// Target is a port of another host.
type Target struct {
	Endpoint
	// Address is an IP address or a name that the host can resolve.
	Address string `json:"address"`
	// Foreign says that something else listens there, so that a connection is enough.
	Foreign bool `json:"foreign,omitempty"`
}

// State says what came of an attempt.
type State string

// What can come of an attempt.
const (
	OK      State = "ok"
	Refused State = "refused" // the other host, or something on the way, says no
	Silent  State = "silent"  // nothing came back in time
	Other   State = "other"   // something else answered
	Failed  State = "failed"  // it could not be sent: no route, an unknown name
)

// Result is what came of one target.
type Result struct {
	State State `json:"state"`
	// Detail is the system's word for it, for all but OK.
	Detail string `json:"detail,omitempty"`
}

// Report has a result for each target, in the order of the request.
type Report struct {
	Version int      `json:"version"`
	Results []Result `json:"results"`
}

func checkHead(version int, nonce string, milliseconds int, most time.Duration) error {
	if version != Version {
		return fmt.Errorf("%w: the version is %d, but this boxlift-node speaks version %d", wire.ErrProtocol, version,
			Version)
	}
	if len(nonce) != nonceLength {
		return fmt.Errorf("%w: the nonce has %d characters instead of %d", wire.ErrProtocol, len(nonce), nonceLength)
	}
	if milliseconds < 1 || milliseconds > int(most.Milliseconds()) {
		return fmt.Errorf("%w: the time is %d ms, expected 1 to %d", wire.ErrProtocol, milliseconds,
			most.Milliseconds())
	}
	return nil
}

// ReadListenReport reads the answer of "boxlift-node listen". It comes from a host, so
// its texts are made fit for a terminal and its ports have to be among those asked for.
func ReadListenReport(r io.Reader, asked []Endpoint) (ListenReport, error) {
	var report ListenReport
	if _, err := wire.ReadLine(r, &report); err != nil {
		return report, err
	}
	if report.Version != Version {
		return report, fmt.Errorf("%w: the version is %d, expected %d", wire.ErrProtocol, report.Version, Version)
	}
	known := make(map[Endpoint]bool, len(asked))
	for _, p := range asked {
		known[p] = true
	}
	for _, list := range [][]Endpoint{report.Listening, report.Busy, report.Failed} {
		for _, p := range list {
			if !known[p] {
				return report, fmt.Errorf("%w: it was not asked to listen on %s, or says so twice", wire.ErrProtocol, p)
			}
			delete(known, p)
		}
	}
	if len(known) > 0 {
		return report, fmt.Errorf("%w: it does not say what became of %d ports", wire.ErrProtocol, len(known))
	}
	var err error
	report.Problem, err = wire.CleanText(report.Problem, "problem")
	return report, err
}

// ReadReport reads the answer of "boxlift-node reach" to so many targets.
func ReadReport(r io.Reader, targets int) (Report, error) {
	var report Report
	if _, err := wire.ReadLine(r, &report); err != nil {
		return report, err
	}
	if report.Version != Version || len(report.Results) != targets {
		return report, fmt.Errorf("%w: version %d with %d results, expected version %d with %d", wire.ErrProtocol,
			report.Version, len(report.Results), Version, targets)
	}
	for i := range report.Results {
		result := &report.Results[i]
		switch result.State {
		case OK, Refused, Silent, Other, Failed:
		default:
			return report, fmt.Errorf("%w: a result is %q", wire.ErrProtocol, string(result.State))
		}
		var err error
		if result.Detail, err = wire.CleanText(result.Detail, "detail"); err != nil {
			return report, err
		}
	}
	return report, nil
}

// Listen is "boxlift-node listen". It returns when stdin ends, the time is over or ctx
// ends; none of these is an error.
func Listen(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var request ListenRequest
	rest, err := wire.ReadLine(stdin, &request)
	if err != nil {
		return err
	}
	if err := checkHead(request.Version, request.Nonce, request.Milliseconds, MaxListenTime); err != nil {
		return err
	}
	if len(request.Ports) > MaxListenPorts {
		return fmt.Errorf("%w: %d ports are more than %d", wire.ErrProtocol, len(request.Ports), MaxListenPorts)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(request.Milliseconds)*time.Millisecond)
	l := &listener{nonce: []byte(request.Nonce), slots: make(chan struct{}, maxExchanges)}
	// Closing the sockets ends what is served on them.
	defer l.work.Wait()
	defer cancel()
	report := ListenReport{Version: Version, Listening: []Endpoint{}}
	for _, p := range request.Ports {
		if err := p.validate(); err != nil {
			return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
		}
		switch err := l.open(ctx, p, request.Address); {
		case err == nil:
			report.Listening = append(report.Listening, p)
		case errors.Is(err, syscall.EADDRINUSE):
			report.Busy = append(report.Busy, p)
		default:
			report.Failed = append(report.Failed, p)
			report.Problem = err.Error()
		}
	}
	if err := wire.WriteLine(stdout, report); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, rest) // however it ends, it is the end
		cancel()
	}()
	<-ctx.Done()
	return nil
}

// listener answers on a number of ports until the context ends.
type listener struct {
	nonce []byte
	slots chan struct{} // one for each connection that is being answered
	work  sync.WaitGroup
}

func (l *listener) open(ctx context.Context, p Endpoint, address string) error {
	var config net.ListenConfig
	port := strconv.Itoa(p.Port)
	if p.Protocol == "tcp" {
		socket, err := config.Listen(ctx, "tcp", ":"+port)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { _ = socket.Close() })
		l.work.Go(func() { l.serveTCP(ctx, socket) })
		return nil
	}
	if _, err := netip.ParseAddr(address); err != nil {
		address = ""
	}
	socket, err := config.ListenPacket(ctx, "udp", net.JoinHostPort(address, port))
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		socket, err = config.ListenPacket(ctx, "udp", ":"+port)
	}
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	l.work.Go(func() { l.serveUDP(ctx, socket) })
	return nil
}

func (l *listener) knows(question []byte) bool {
	return subtle.ConstantTimeCompare(question, l.nonce) == 1
}

func (l *listener) serveTCP(ctx context.Context, socket net.Listener) {
	for ctx.Err() == nil {
		connection, err := socket.Accept()
		if err != nil {
			if !pause(ctx) {
				return
			}
			continue
		}
		select {
		case l.slots <- struct{}{}:
		default: // too many at once
			_ = connection.Close()
			continue
		}
		l.work.Go(func() {
			l.answer(ctx, connection)
			<-l.slots
		})
	}
}

// answer ends by itself, and earlier when ctx ends.
func (l *listener) answer(ctx context.Context, connection net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	defer func() { _ = connection.Close() }() // what was not sent in time is lost
	if err := connection.SetDeadline(time.Now().Add(exchangeTime)); err != nil {
		return
	}
	question := make([]byte, nonceLength+1)
	if _, err := io.ReadFull(connection, question); err != nil || question[nonceLength] != '\n' ||
		!l.knows(question[:nonceLength]) {
		return
	}
	_, _ = connection.Write(question) // the other end sees that it failed
}

func (l *listener) serveUDP(ctx context.Context, socket net.PacketConn) {
	question := make([]byte, nonceLength+1) // longer ones are cut off, and then wrong
	for ctx.Err() == nil {
		n, from, err := socket.ReadFrom(question)
		if err != nil {
			if !pause(ctx) {
				return
			}
			continue
		}
		if l.knows(question[:n]) {
			_, _ = socket.WriteTo(question[:n], from) // who asked asks again
		}
	}
}

// pause keeps an error that comes again and again from taking all of the processor. It
// reports whether to go on.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

// Run is "boxlift-node reach".
func Run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var request Request
	if _, err := wire.ReadLine(stdin, &request); err != nil {
		return err
	}
	if err := checkHead(request.Version, request.Nonce, request.Milliseconds, MaxTime); err != nil {
		return err
	}
	if len(request.Targets) > MaxTargets {
		return fmt.Errorf("%w: %d targets are more than %d", wire.ErrProtocol, len(request.Targets), MaxTargets)
	}
	for _, t := range request.Targets {
		if err := t.validate(); err != nil {
			return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(request.Milliseconds)*time.Millisecond)
	defer cancel()
	report := Report{Version: Version, Results: make([]Result, len(request.Targets))}
	slots := make(chan struct{}, maxExchanges)
	var work sync.WaitGroup
	for i, t := range request.Targets {
		work.Go(func() {
			report.Results[i] = Result{State: Silent, Detail: "there was no time left to try"}
			select {
			case slots <- struct{}{}:
				report.Results[i] = try(ctx, t, []byte(request.Nonce))
				<-slots
			case <-ctx.Done():
			}
		})
	}
	work.Wait()
	return wire.WriteLine(stdout, report)
}

// dialTime is how long one target may take: long enough for the kernel to send its first
// packet three times.
const dialTime = 4 * time.Second

func try(ctx context.Context, t Target, nonce []byte) Result {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, t.Protocol, net.JoinHostPort(t.Address, strconv.Itoa(t.Port)))
	if err != nil {
		return failed(err)
	}
	defer func() { _ = connection.Close() }() // nothing is lost with it
	stop := context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Now()) })
	defer stop()
	if t.Protocol == "udp" {
		return askUDP(ctx, connection, nonce)
	}
	if t.Foreign {
		return Result{State: OK}
	}
	if _, err := connection.Write(append(bytes.Clone(nonce), '\n')); err != nil {
		return failed(err)
	}
	answer := make([]byte, len(nonce)+1)
	_, err = io.ReadFull(connection, answer)
	switch {
	case err == nil && bytes.Equal(answer[:len(nonce)], nonce):
		return Result{State: OK}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Result{State: Other, Detail: "the connection was made, but nothing came back over it"}
	default:
		return Result{State: Other, Detail: "the connection was made, but the answer was not boxlift-node's"}
	}
}

// askUDP sends the nonce until it comes back: packets may be lost.
func askUDP(ctx context.Context, connection net.Conn, nonce []byte) Result {
	answer := make([]byte, len(nonce)+1)
	last := Result{State: Silent, Detail: "no answer"}
	for wait := 200 * time.Millisecond; ctx.Err() == nil; wait *= 2 {
		if _, err := connection.Write(nonce); err != nil {
			last = failed(err)
			if !pause(ctx) {
				break
			}
			continue
		}
		if err := connection.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return failed(err)
		}
		n, err := connection.Read(answer)
		switch {
		case err == nil && bytes.Equal(answer[:n], nonce):
			return Result{State: OK}
		case err == nil:
			last = Result{State: Other, Detail: "the answer was not boxlift-node's"}
		case errors.Is(err, os.ErrDeadlineExceeded):
		default:
			// The port is open, or the report would not have said so: this is a rule on the
			// way. It may have been for the packet of before, so it counts the second time.
			result := failed(err)
			if result == last {
				return last
			}
			last = result
			if !pause(ctx) {
				return last
			}
		}
	}
	return last
}

func failed(err error) Result {
	state := Failed
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		state = Refused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT),
		errors.As(err, &timeout) && timeout.Timeout():
		return Result{State: Silent, Detail: "no answer"}
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return Result{State: state, Detail: errno.Error()}
	}
	return Result{State: state, Detail: err.Error()}
}
