// Package host is a machine that boxlift works on, whatever way leads to it: run a command, stream into one, put a
// file in place or get one, open a connection from there. It knows nothing of configuration files, bundles or clusters.
//
// There are two ways: [github.com/liteboxd/boxlift/install/remote] goes over SSH, and
// [github.com/liteboxd/boxlift/install/host/local] is the machine that boxlift runs on. Package hosttest has a third
// for tests. All of them pass the same tests (hosttest.Conform), which are the contract:
//
//   - Secrets (what is put or streamed) never appear in an argument list, an environment or an error.
//   - Everything ends when its context ends.
//   - What comes from the host is hostile: what is kept of a command's output is bounded, and control characters never
//     get into an error.
//   - A machine is on Linux, with a POSIX /bin/sh and the small tools of coreutils or busybox.
//
// What rooms do with hosts beside that are the functions here: they read and compare files and ask systemd about
// services, by commands that every way can run.
package host

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
	"path"
	"strings"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Host is one machine. Its methods may be used from several goroutines at once.
type Host interface {
	// Name is what messages call the host.
	Name() string
	// Run runs a command to its end. A non-zero exit is an *[ExitError], with the Result filled. When ctx ends, the
	// command is told to end and the error matches the context's cause.
	Run(ctx context.Context, cmd Command) (Result, error)
	// Start starts a command for streaming. When ctx ends, the command is told to end, and its streams fail a few
	// seconds later at the latest.
	Start(ctx context.Context, cmd Command) (*Process, error)
	// Put makes a file with the given content: under its path there is always either what was there before or the
	// whole new file, which is on the disk when Put returns. A file that has the content, mode and owner already is
	// left alone and changed is false; content may then not have been read. A failure on the host is an *[ExitError] or
	// an error of the file system. Put does not return while a Read of content is going on.
	Put(ctx context.Context, o PutOptions, content io.Reader) (changed bool, err error)
	// Get copies a file's content to w; for small files, [Read] is quicker. Only when Get returns nil is what w got the
	// file, whole and with the sha256 that it was to have. The file is not to change meanwhile, and has to be one with
	// content of its own: no folder, no pipe. A failure on the host is an *[ExitError] or an error of the file system.
	// Get does not return while a Write to w is going on.
	Get(ctx context.Context, o GetOptions, w io.Writer) error
	// DialContext opens a connection to address as seen from the host: network is "tcp", "tcp4", "tcp6" or "unix".
	// ctx bounds the opening only.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// MaxKept is how much is kept of a command's stdout and of its stderr, in bytes: the tail.
const MaxKept = 1 << 20

// Command is what to run. Exactly one of Args and Script is given. Neither may hold a secret, other users of the host
// can see them: secrets go through Stdin.
type Command struct {
	// Title is what errors call the command; "" means the beginning of what is run.
	Title string
	// Args are a program and its arguments, passed on unchanged.
	Args []string
	// Script is run by /bin/sh -c.
	Script string
	// Root runs it as root, through sudo where needed. Where sudo is set to lecture always, stderr begins with that.
	Root bool
	// HideOutput keeps what the command printed out of errors: it may hold secrets.
	HideOutput bool
	// Stdin is copied to the command by Run; nil means an empty stdin. It must be nil for Start. Run does not wait for
	// a Read that is still going on when the command has ended.
	Stdin io.Reader
}

// Label is what errors call the command, fit to be shown.
func (c Command) Label() string {
	const most = 100
	text := c.Title
	if text == "" {
		text = strings.Join(c.Args, " ")
	}
	if text == "" {
		text, _, _ = strings.Cut(strings.TrimSpace(c.Script), "\n")
	}
	return printable.Short(text, most)
}

// Words are the program to start and its arguments.
func (c Command) Words() ([]string, error) {
	words := c.Args
	switch {
	case len(c.Args) == 0 && c.Script != "":
		words = []string{"/bin/sh", "-c", c.Script}
	case len(c.Args) == 0 || c.Script != "":
		return nil, errors.New("a command needs either Args or Script")
	}
	for _, word := range words {
		if strings.ContainsRune(word, 0) {
			return nil, errors.New("a command cannot contain a NUL byte")
		}
	}
	return words, nil
}

// Result is what a command left.
type Result struct {
	// Stdout and Stderr are the last [MaxKept] bytes of each.
	Stdout, Stderr []byte
	// Truncated reports whether Stdout or Stderr was longer.
	Truncated bool
	// ExitCode is the exit code; 128 + n when signal n ended the command, -1 when it did not get to end.
	ExitCode int
}

// Process is a command that is running.
type Process struct {
	// Stdin is the command's. Write large pieces (256 KiB); Close is the end of file. When the command has ended, Write
	// fails and Close does nothing: Wait tells why.
	Stdin io.WriteCloser
	// Stdout must be read, or the command will block.
	Stdout io.Reader

	wait   func() error
	stderr func() []byte
}

// NewProcess is for implementations of [Host]: wait and stderr do what [Process.Wait] and [Process.Stderr] say.
func NewProcess(stdin io.WriteCloser, stdout io.Reader, wait func() error, stderr func() []byte) *Process {
	return &Process{Stdin: input{stdin}, Stdout: stdout, wait: wait, stderr: stderr}
}

// input is a command's standard input. What it leads to is closed when the command ends, by whoever waits for that: as
// "already closed" on this machine, as io.EOF by SSH.
type input struct{ io.WriteCloser }

func (i input) Close() error {
	if err := i.WriteCloser.Close(); !errors.Is(err, fs.ErrClosed) && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// Wait waits for the command's end. Read Stdout to its end first if what it says matters. The errors are those of Run.
func (p *Process) Wait() error { return p.wait() }

// Stderr returns the tail of what the command has written to stderr so far, at most [MaxKept] bytes.
func (p *Process) Stderr() []byte { return p.stderr() }

// PutOptions say what file Put makes.
type PutOptions struct {
	// Path is absolute; its folder exists.
	Path string
	// Mode are the permission bits, setuid and the like included as fs.FileMode has them.
	Mode fs.FileMode
	// Size in bytes of the content.
	Size int64
	// SHA256 of the content in hex.
	SHA256 string
	// Root writes as root, and the file is root's.
	Root bool
	// Progress is told the number of bytes that were sent since it was last called, or that an earlier Put that broke
	// off has left there; may be nil. It is not called for a file that is there already.
	Progress func(n int64)
}

// Check reports what is wrong with the options.
func (o PutOptions) Check() error {
	if err := checkDigest(o.SHA256); err != nil {
		return err
	}
	if err := checkPath(o.Path); err != nil {
		return err
	}
	switch {
	case o.Size < 0:
		return fmt.Errorf("size %d: want the content's number of bytes", o.Size)
	case o.Mode&^(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0:
		return fmt.Errorf("mode %v: want permission bits only", o.Mode)
	}
	return nil
}

func checkDigest(digest string) error {
	if sum, err := hex.DecodeString(digest); err != nil || len(sum) != sha256.Size {
		return fmt.Errorf("sha256 %q: want 64 hex digits", digest)
	}
	return nil
}

func checkPath(name string) error {
	if !path.IsAbs(name) || path.Clean(name) != name || name == "/" || strings.ContainsAny(name, "\n\x00") {
		return errors.New("want a clean absolute path of a file")
	}
	return nil
}

// GetOptions say what file Get brings.
type GetOptions struct {
	// Path is absolute.
	Path string
	// SHA256 of the content in hex; "" takes any content.
	SHA256 string
	// Root reads as root.
	Root bool
}

// Check reports what is wrong with the options.
func (o GetOptions) Check() error {
	if o.SHA256 != "" {
		if err := checkDigest(o.SHA256); err != nil {
			return err
		}
	}
	return checkPath(o.Path)
}

// Prove compares the sha256 of what has come with what it was to be.
func (o GetOptions) Prove(sum []byte) error {
	if got := hex.EncodeToString(sum); o.SHA256 != "" && !strings.EqualFold(got, o.SHA256) {
		return fmt.Errorf("it arrived with the sha256 %s, expected %s", got, strings.ToLower(o.SHA256))
	}
	return nil
}

// PutBytes puts content that is in memory; it fills in Size and SHA256.
func PutBytes(ctx context.Context, h Host, o PutOptions, content []byte) (changed bool, err error) {
	sum := sha256.Sum256(content)
	o.Size, o.SHA256 = int64(len(content)), hex.EncodeToString(sum[:])
	return h.Put(ctx, o, bytes.NewReader(content))
}

// ExitError is a command that ran and failed. Which host it ran on, [fault.HostOf] says.
type ExitError struct {
	// Command is the command's label.
	Command string
	// Code is the exit code; 128 + n when signal n ended the command.
	Code int
	// Lines are the last lines, at most 20, that the command wrote to stderr, or to stdout when stderr is empty,
	// without control characters.
	Lines []string
}

// NewExitError makes the [ExitError] of a host, with the last lines of what the command printed.
func NewExitError(host string, cmd Command, code int, stderr, stdout []byte) error {
	const most = 20
	lines := printable.LastLines(stderr, most)
	if len(lines) == 0 {
		lines = printable.LastLines(stdout, most)
	}
	return fault.OnHost(&ExitError{Command: cmd.Label(), Code: code, Lines: lines}, host)
}

// Error returns one line with the last three of Lines.
func (e *ExitError) Error() string {
	text := fmt.Sprintf("%s: exit code %d", e.Command, e.Code)
	last := e.Lines[max(0, len(e.Lines)-3):]
	if len(last) > 0 {
		text += ": " + strings.Join(last, "; ")
	}
	return text
}
