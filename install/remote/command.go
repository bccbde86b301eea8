package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/tail"
)

const (
	// maxCommandLine is below the 128 KiB that Linux allows one argument; sshd passes
	// the command on as one.
	maxCommandLine = 120 << 10
	// chunk is how much is handed to the connection at once.
	chunk = 256 << 10
	// maxRead is how much of a command's output is read at once.
	maxRead = 32 << 10
	// endGrace is how many seconds a command may take to end after it was told to: a host that
	// is short of time must come to what the command cleans up. Then it is killed.
	endGrace = 4
	// killGrace is how long telling and killing may take, all in all.
	killGrace = (endGrace + 2) * time.Second
	// answerGrace is how long the host may then take to show that it is there.
	answerGrace = 3 * time.Second
)

// shellLine returns a command for a shell.
func shellLine(c host.Command) (string, error) {
	words, err := c.Words()
	return quoteAll(words), err
}

// quote makes text one word for a POSIX shell, which takes it as it is.
func quote(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("@%+:,./_-", r)
	}
	if text != "" && strings.TrimLeftFunc(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = quote(word)
	}
	return strings.Join(quoted, " ")
}

// Run runs a command to its end. A non-zero exit is an *ExitError, with the Result
// filled; a connection that breaks matches ErrConnectionLost. When ctx or
// CommandTimeout ends, the command is told to end and the error matches the context's.
func (h *Host) Run(ctx context.Context, cmd host.Command) (host.Result, error) {
	if h.target.CommandTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, h.target.CommandTimeout,
			fmt.Errorf("no end after %s: %w", h.target.CommandTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	stdin := cmd.Stdin
	cmd.Stdin = nil
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, err := h.begin(ctx, cmd)
	if err != nil {
		return host.Result{ExitCode: -1}, err
	}
	go func() {
		if stdin != nil {
			if _, err := copyChunks(p.stdin, stdin, nil); err != nil && !errors.Is(err, errWrite) {
				// An end of stdin would look like the end of the data.
				cancel(fmt.Errorf("read its input: %w", err))
				return
			}
		}
		_ = p.stdin.Close() // fails only when the command has ended
	}()
	stdout := tail.New(host.MaxKept)
	read := make(chan struct{})
	go func() {
		_, _ = io.Copy(stdout, p.stdout) // a broken connection is Wait's to tell
		close(read)
	}()
	err = p.wait()
	if ctx.Err() == nil {
		<-read
	}
	result := host.Result{ExitCode: -1}
	var cutOut, cutErr bool
	result.Stdout, cutOut = stdout.Bytes()
	result.Stderr, cutErr = p.stderr.kept.Bytes()
	result.Truncated = cutOut || cutErr
	var exit *host.ExitError
	switch {
	case err == nil:
		result.ExitCode = 0
	case errors.As(err, &exit):
		result.ExitCode = exit.Code
		if len(exit.Lines) == 0 && !cmd.HideOutput {
			err = host.NewExitError(h.Name(), cmd, exit.Code, nil, result.Stdout)
		}
	}
	return result, err
}

// process is a command that is running.
type process struct {
	stdin  io.WriteCloser
	stdout io.Reader

	host    *Host
	cmd     host.Command
	ctx     context.Context
	session *ssh.Session
	stderr  *stderr
	ended   chan struct{} // closed after err is set
	err     error
	// abandoned is closed when the context has ended and nobody waits for the command's end
	// any more.
	abandoned chan struct{}
	input     *input
	unwatch   func() bool
}

// Start starts a command for streaming. When ctx ends the command is told to end, and
// its streams fail, a few seconds later at the latest, also when it has not ended. The
// connection is closed only if the host does not answer any more, so that nothing waits
// for ever.
func (h *Host) Start(ctx context.Context, cmd host.Command) (*host.Process, error) {
	p, err := h.begin(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return host.NewProcess(p.stdin, p.stdout, p.wait, p.errors), nil
}

// begin starts a command.
func (h *Host) begin(ctx context.Context, cmd host.Command) (*process, error) {
	fail := func(err error) (*process, error) {
		return nil, fault.OnHost(fmt.Errorf("start %s: %w", cmd.Label(), err), h.Name())
	}
	if cmd.Stdin != nil {
		return fail(errors.New("Start takes no Stdin: write to the process"))
	}
	line, err := shellLine(cmd)
	if err != nil {
		return fail(err)
	}
	var first []byte
	if cmd.Root {
		if line, first, err = h.asRoot(ctx, line); err != nil {
			return nil, err
		}
	}
	p, err := h.start(ctx, cmd, line)
	if err != nil {
		return fail(err)
	}
	if len(first) > 0 {
		if _, err := p.stdin.Write(first); err != nil {
			if waitErr := p.wait(); waitErr != nil {
				return nil, waitErr
			}
			return fail(h.orLost(err))
		}
	}
	return p, nil
}

// start runs line, which is ready for the user's shell.
func (h *Host) start(ctx context.Context, cmd host.Command, line string) (*process, error) {
	if len(line) > maxCommandLine {
		return nil, fmt.Errorf("the command is %d bytes long, %d is the most: pass data through Stdin", len(line),
			maxCommandLine)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p := &process{host: h, cmd: cmd, ctx: ctx, stderr: newStderr(), ended: make(chan struct{}),
		abandoned: make(chan struct{})}
	log, begin := h.target.log().With("host", h.Name(), "what", cmd.Label()), time.Now()
	log.DebugContext(ctx, "run", "command", line)
	// A host that hangs must not hold us up while the command is being started.
	opened := make(chan error, 1)
	go func() { opened <- p.open(line) }()
	select {
	case err := <-opened:
		if err != nil {
			return nil, h.orLost(err)
		}
	case <-ctx.Done():
		go func() {
			if <-opened == nil {
				p.kill()
			}
		}()
		return nil, context.Cause(ctx)
	}
	p.unwatch = context.AfterFunc(ctx, p.giveUp)
	go func() {
		p.err = p.session.Wait()
		p.stderr.flush()
		log.DebugContext(ctx, "ended", "after", time.Since(begin), "result", p.err)
		close(p.ended)
	}()
	return p, nil
}

func (p *process) open(line string) (err error) {
	if p.session, err = p.host.client.NewSession(); err != nil {
		return err
	}
	p.session.Stderr = p.stderr
	var stdin io.WriteCloser
	var stdout io.Reader
	if stdin, err = p.session.StdinPipe(); err == nil {
		stdout, err = p.session.StdoutPipe()
	}
	p.input = &input{WriteCloser: stdin}
	p.stdin, p.stdout = p.input, &output{in: stdout, abandoned: p.abandoned}
	if err == nil {
		err = p.session.Start(announcePID + line)
	}
	if err != nil {
		_ = p.session.Close() // the first error is the one to tell
	}
	return err
}

// giveUp ends the command and its session, and after a few seconds leaves them alone if
// they do not end: sshd closes no session whose command still lives. The connection is
// closed only when the host does not answer at all, or when somebody still waits for the
// command to take its input: others may be at work on it.
func (p *process) giveUp() {
	go p.kill()
	select {
	case <-p.ended:
		return
	case <-time.After(killGrace + time.Second):
	}
	answered := make(chan error, 1)
	go func() {
		_, _, err := p.host.client.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	}()
	select {
	case <-p.ended:
	case err := <-answered:
		if err == nil && p.input.abandon() {
			close(p.abandoned)
			return
		}
	case <-time.After(answerGrace):
	}
	_ = p.host.Close() // what counts is the end of the context
}

// kill ends the command and what it has started, and after killGrace its session at the
// latest. The signal that SSH itself can send is of no use, sshd refuses it in root's
// sessions and it does not reach what sudo runs. And closing the session must come last:
// the command would take it for the end of its input.
func (p *process) kill() {
	signalled := make(chan struct{})
	go func() {
		defer close(signalled)
		select {
		case <-p.stderr.announced:
			p.signal()
		case <-p.ended:
		}
	}()
	select {
	case <-signalled:
	case <-time.After(killGrace):
	}
	_ = p.session.Close() // whether it has helped is seen by Wait
}

// signal tells the command and what it has started to end, every second, and kills it after
// endGrace. Once is not enough: a shell with a trap for the signal, as put.sh is, loses it when
// it comes while the shell is starting a program (dash 0.5.12 does so in vfork), and that
// program with it; on a busy host it does come then.
func (p *process) signal() {
	line := fmt.Sprintf("for i in $(seq %[2]d); do kill -s TERM -- -%[1]d || exit; sleep 1; done; kill -s KILL -- "+
		"-%[1]d", p.stderr.pid, endGrace)
	line = "/bin/sh -c " + quote(line)
	var first []byte
	if p.cmd.Root {
		var err error
		if line, first, err = p.host.asRoot(context.WithoutCancel(p.ctx), line); err != nil {
			return
		}
	}
	session, err := p.host.client.NewSession()
	if err != nil {
		return
	}
	session.Stdin = bytes.NewReader(first)
	_ = session.Run(line) // fails when the command has already ended
	_ = session.Close()
}

// wait waits for the command's end. The errors are those of Run.
func (p *process) wait() error {
	select {
	case <-p.ended:
	case <-p.abandoned:
	}
	p.unwatch()
	if p.ctx.Err() != nil {
		return fault.OnHost(fmt.Errorf("%s: %w", p.cmd.Label(), context.Cause(p.ctx)), p.host.Name())
	}
	if p.err == nil {
		return nil
	}
	var exit *ssh.ExitError
	if errors.As(p.err, &exit) {
		stderr, _ := p.stderr.kept.Bytes()
		return host.NewExitError(p.host.Name(), p.cmd, exit.ExitStatus(), stderr, nil)
	}
	return fault.OnHost(fmt.Errorf("%s: %w", p.cmd.Label(), p.host.orLost(p.err)), p.host.Name())
}

// errors returns the tail of what the command has written to stderr so far.
func (p *process) errors() []byte {
	out, _ := p.stderr.kept.Bytes()
	return out
}

// input is what a command is given until it is abandoned.
type input struct {
	io.WriteCloser
	mu        sync.Mutex
	writing   int
	abandoned bool
}

func (i *input) Write(b []byte) (int, error) {
	i.mu.Lock()
	if i.abandoned {
		i.mu.Unlock()
		return 0, errAbandoned
	}
	i.writing++
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.writing--
	}()
	return i.WriteCloser.Write(b)
}

// abandon makes all writing fail from now on. It returns false when something is being
// written, which only the end of the connection sets free.
func (i *input) abandon() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.abandoned = i.writing == 0
	return i.abandoned
}

// output is what a command prints until it is abandoned.
type output struct {
	in        io.Reader
	abandoned <-chan struct{}
}

func (r *output) Read(b []byte) (int, error) {
	select {
	case <-r.abandoned:
		return 0, errAbandoned
	default:
	}
	// Its own, because the reading may outlast this call.
	own := make([]byte, min(len(b), maxRead))
	type result struct {
		n   int
		err error
	}
	read := make(chan result, 1)
	go func() {
		n, err := r.in.Read(own)
		read <- result{n, err}
	}()
	select {
	case got := <-read:
		return copy(b, own[:got.n]), got.err
	case <-r.abandoned:
		return 0, errAbandoned
	}
}

var errAbandoned = errors.New("the command did not end and was left alone")

// announcePID makes the user's shell, which sshd has made the leader of a process group,
// tell its process id on stderr and become the command.
const announcePID = `exec /bin/sh -c 'echo "boxlift-pid $$" >&2; exec "$@"' sh `

var pidLine = lazyregexp.New(`(?m)^boxlift-pid ([2-9]|[1-9][0-9]{1,9})\n`)

// stderr keeps the tail of a command's stderr without the line that announces its
// process id. That line is not always the first: the user's shell may have something to
// say before.
type stderr struct {
	kept      *tail.Tail
	announced chan struct{} // closed after pid is set
	pid       int

	mu      sync.Mutex
	head    []byte
	through bool
}

func newStderr() *stderr {
	return &stderr{kept: tail.New(host.MaxKept), announced: make(chan struct{})}
}

func (s *stderr) Write(p []byte) (int, error) {
	const maxHead = 64 << 10
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.through {
		return s.kept.Write(p)
	}
	s.head = append(s.head, p...)
	if at := pidLine.FindSubmatchIndex(s.head); at != nil {
		s.pid, _ = strconv.Atoi(string(s.head[at[2]:at[3]])) // ten digits at most
		s.head = slices.Delete(s.head, at[0], at[1])
		close(s.announced)
		s.passOn()
	} else if len(s.head) > maxHead {
		s.passOn()
	}
	return len(p), nil
}

// flush is called when nothing more will be written.
func (s *stderr) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passOn()
}

func (s *stderr) passOn() {
	_, _ = s.kept.Write(s.head) // never fails
	s.head, s.through = nil, true
}

var errWrite = errors.New("write to the command")

// copyChunks copies src to dst in large pieces. An error that matches errWrite came
// from dst, any other from src. progress may be nil.
func copyChunks(dst io.Writer, src io.Reader, progress func(n int64)) (int64, error) {
	buf := make([]byte, chunk)
	var total int64
	for {
		n, readErr := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return total, fmt.Errorf("%w: %w", errWrite, err)
			}
			total += int64(n)
			if progress != nil {
				progress(int64(n))
			}
		}
		if errors.Is(readErr, io.EOF) {
			return total, nil
		}
		if readErr != nil {
			return total, readErr
		}
	}
}
