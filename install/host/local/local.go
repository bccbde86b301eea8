// Package local is the machine that boxlift runs on, as a [host.Host]: commands are its processes, files its files.
//
// What needs root needs boxlift to run as root: there is no way from here to ask sudo for a password that does not end
// at the operator's terminal, who can as well run boxlift with sudo.
package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/tail"
)

// endGrace is how long a command may take to end after it was told to. Then it is killed.
const endGrace = 4 * time.Second

// ErrNotRoot says that a command needs root and boxlift does not run as root.
var ErrNotRoot = fault.NewKind(fault.Host, "root is needed")

// Machine is the machine that boxlift runs on.
type Machine struct{ name string }

var _ host.Host = (*Machine)(nil)

// New returns the machine. name is what messages call it.
func New(name string) *Machine { return &Machine{name: name} }

// Name is what messages call the machine.
func (m *Machine) Name() string { return m.name }

// Address is where others in the LAN reach the machine: the address from which it would send by its default route,
// which is also the one that k3s takes for a node (k3s v1.36). Nothing is sent. The zero Addr means that there is no
// such route.
func (*Machine) Address(ctx context.Context) netip.Addr {
	// An address that no network has (RFC 5737), and no packet: connecting a UDP socket only chooses the route.
	conn, err := new(net.Dialer).DialContext(ctx, "udp4", "192.0.2.1:9")
	if err != nil {
		return netip.Addr{}
	}
	defer conn.Close()                                        //nolint:errcheck // nothing was sent
	from, _ := netip.ParseAddrPort(conn.LocalAddr().String()) // the zero AddrPort where it is none
	return from.Addr()
}

// prepare makes a command ready to start. Ending ctx ends it with all that it has started.
func (m *Machine) prepare(ctx context.Context, cmd host.Command) (*exec.Cmd, error) {
	words, err := cmd.Words()
	if err != nil {
		return nil, err
	}
	if cmd.Root && os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: boxlift runs as user %d: run it as root, for example with sudo", ErrNotRoot,
			os.Geteuid())
	}
	c := exec.CommandContext(ctx, words[0], words[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error {
		group := -c.Process.Pid
		time.AfterFunc(endGrace, func() { _ = syscall.Kill(group, syscall.SIGKILL) }) // fails when it has ended
		return syscall.Kill(group, syscall.SIGTERM)
	}
	c.WaitDelay = endGrace + time.Second
	return c, nil
}

// failure is what [host.Host] promises for the end of a command.
func (m *Machine) failure(ctx context.Context, cmd host.Command, err error, stderr,
	stdout []byte) (code int, failure error) {
	if ctx.Err() != nil && err != nil {
		return -1, fault.OnHost(fmt.Errorf("%s: %w", cmd.Label(), context.Cause(ctx)), m.name)
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit):
		code = exit.ExitCode()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = 128 + int(status.Signal())
		}
		if cmd.HideOutput {
			stdout = nil
		}
		return code, host.NewExitError(m.name, cmd, code, stderr, stdout)
	}
	return -1, fault.OnHost(fmt.Errorf("%s: %w", cmd.Label(), err), m.name)
}

// notFound is what a shell answers for a program that is not there, so that all ways to a host say the same.
func (m *Machine) notFound(cmd host.Command, err error) error {
	code := 127
	if errors.Is(err, fs.ErrPermission) {
		code = 126
	}
	return host.NewExitError(m.name, cmd, code, []byte(err.Error()), nil)
}

// Run runs a command to its end.
func (m *Machine) Run(ctx context.Context, cmd host.Command) (host.Result, error) {
	stdout := tail.New(host.MaxKept)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stdin := cmd.Stdin
	cmd.Stdin = nil
	p, err := m.begin(ctx, cmd, stdout)
	if err != nil {
		var exit *host.ExitError
		if errors.As(err, &exit) {
			return host.Result{ExitCode: exit.Code, Stderr: []byte(strings.Join(exit.Lines, "\n"))}, err
		}
		return host.Result{ExitCode: -1}, err
	}
	go func() {
		if stdin != nil {
			input := &reading{Reader: stdin}
			// Writing fails when the command has ended, which is its own affair.
			if _, _ = io.Copy(p.stdin, input); input.err != nil {
				// An end of stdin would look like the end of the data.
				cancel(fmt.Errorf("read its input: %w", input.err))
				return
			}
		}
		_ = p.stdin.Close() // fails only when the command has ended
	}()
	<-p.ended
	var result host.Result
	var cutOut, cutErr bool
	result.Stdout, cutOut = stdout.Bytes()
	result.Stderr, cutErr = p.stderr.Bytes()
	result.Truncated = cutOut || cutErr
	result.ExitCode, err = m.failure(ctx, cmd, p.err, result.Stderr, result.Stdout)
	return result, err
}

// reading keeps an error of reading, which io.Copy does not tell from one of writing.
type reading struct {
	io.Reader
	err error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// process is a command that is running.
type process struct {
	stdin  io.WriteCloser
	stderr *tail.Tail
	ended  chan struct{} // closed after err is set
	err    error
}

func (m *Machine) begin(ctx context.Context, cmd host.Command, stdout io.Writer) (*process, error) {
	c, err := m.prepare(ctx, cmd)
	if err != nil {
		return nil, fault.OnHost(fmt.Errorf("start %s: %w", cmd.Label(), err), m.name)
	}
	p := &process{stderr: tail.New(host.MaxKept), ended: make(chan struct{})}
	c.Stdout, c.Stderr = stdout, p.stderr
	if p.stdin, err = c.StdinPipe(); err != nil {
		return nil, fault.OnHost(fmt.Errorf("start %s: %w", cmd.Label(), err), m.name)
	}
	if err := c.Start(); err != nil {
		if ctx.Err() != nil {
			return nil, fault.OnHost(fmt.Errorf("start %s: %w", cmd.Label(), context.Cause(ctx)), m.name)
		}
		return nil, m.notFound(cmd, err)
	}
	go func() {
		p.err = c.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Start starts a command for streaming.
func (m *Machine) Start(ctx context.Context, cmd host.Command) (*host.Process, error) {
	if cmd.Stdin != nil {
		return nil, fault.OnHost(
			fmt.Errorf("start %s: Start takes no Stdin: write to the process", cmd.Label()), m.name)
	}
	reader, writer := io.Pipe()
	p, err := m.begin(ctx, cmd, writer)
	if err != nil {
		_ = writer.Close() // nobody has it
		return nil, err
	}
	// Whoever does not read any more must not keep the command's end from being seen.
	stop := context.AfterFunc(ctx, func() { _ = reader.CloseWithError(context.Cause(ctx)) })
	var once sync.Once
	go func() {
		<-p.ended
		_ = writer.Close() // what was printed has been read: the pipe holds nothing
	}()
	wait := func() error {
		<-p.ended
		once.Do(func() { stop() })
		stderr, _ := p.stderr.Bytes()
		_, err := m.failure(ctx, cmd, p.err, stderr, nil)
		return err
	}
	return host.NewProcess(p.stdin, reader, wait, func() []byte {
		kept, _ := p.stderr.Bytes()
		return kept
	}), nil
}

// Put makes a file. What goes into the temporary file, .boxlift-put-*, is hashed on the way.
func (m *Machine) Put(ctx context.Context, o host.PutOptions, content io.Reader) (changed bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("put %s: %w", o.Path, fault.OnHost(err, m.name))
		}
	}()
	if err := o.Check(); err != nil {
		return false, err
	}
	if o.Root && os.Geteuid() != 0 {
		return false, ErrNotRoot
	}
	if same, err := isThere(o); same || err != nil {
		return false, err
	}
	f, err := os.CreateTemp(filepath.Dir(o.Path), ".boxlift-put-*")
	if err != nil {
		return false, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // after the rename it is not there
	defer f.Close()           //nolint:errcheck // closed below, where it counts
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), &counted{ctx: ctx, in: io.LimitReader(content, o.Size+1),
		told: o.Progress})
	switch {
	case err != nil:
		return false, fmt.Errorf("read the content: %w", err)
	case n != o.Size:
		return false, fmt.Errorf("the content is not of the stated size: %d bytes wanted, %d read", o.Size, n)
	case hex.EncodeToString(sum.Sum(nil)) != strings.ToLower(o.SHA256):
		return false, fmt.Errorf("content arrived damaged or not whole: sha256 %x, want %s", sum.Sum(nil), o.SHA256)
	}
	if err := errors.Join(f.Chmod(o.Mode), f.Sync(), f.Close()); err != nil {
		return false, err
	}
	if err := os.Rename(f.Name(), o.Path); err != nil {
		return false, err
	}
	return true, syncFolder(filepath.Dir(o.Path))
}

// Get copies a file's content to w.
func (m *Machine) Get(ctx context.Context, o host.GetOptions, w io.Writer) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("get %s: %w", o.Path, fault.OnHost(err, m.name))
		}
	}()
	if err := o.Check(); err != nil {
		return err
	}
	if o.Root && os.Geteuid() != 0 {
		return ErrNotRoot
	}
	// A pipe would be waited for.
	f, err := os.OpenFile(o.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	if info, err := f.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is a directory, or something else that is no file", o.Path)
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, sum), &counted{ctx: ctx, in: f}); err != nil {
		return err
	}
	return o.Prove(sum.Sum(nil))
}

// isThere reports whether the file is already as it is to be.
func isThere(o host.PutOptions) (bool, error) {
	info, err := os.Lstat(o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.IsDir():
		return false, fmt.Errorf("%s is a directory", o.Path)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || info.Mode() != o.Mode || info.Size() != o.Size ||
		int(stat.Uid) != os.Geteuid() {
		return false, nil
	}
	f, err := os.Open(o.Path)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return false, err
	}
	want, err := hex.DecodeString(o.SHA256)
	return bytes.Equal(sum.Sum(nil), want), err
}

func syncFolder(name string) error {
	folder, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// counted tells how much was read, until its context ends.
type counted struct {
	ctx  context.Context
	in   io.Reader
	told func(int64)
}

func (c *counted) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.in.Read(p)
	if c.told != nil && n > 0 {
		c.told(int64(n))
	}
	return n, err
}

// DialContext opens a connection.
func (m *Machine) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, fault.OnHost(fmt.Errorf("connect from there to %s: %w", address, err), m.name)
	}
	return conn, nil
}
