// Package hosttest has a host for tests of steps, in memory and a folder, and the tests that all kinds of hosts pass.
//
// Commands do what they do on a host: scripts are interpreted as a shell does, small tools (mkdir, rm, sha256sum ...)
// are this machine's own, with their paths kept inside the folder, systemctl works on units that the test describes,
// and everything else is what the test says it is. What a test has not described is not there: exit code 127.
package hosttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/tail"
)

// ErrLost is the end of a fake's connection, see [Fake.BreakAfter].
var ErrLost = fault.NewKind(fault.Host, "connection lost")

// Program is what a command does on a fake. It returns the exit code.
type Program func(ctx context.Context, call *Call) int

// Call is one run of a program.
type Call struct {
	// Args are the arguments, without the program's name.
	Args []string
	// Host is where it runs.
	Host *Fake

	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Fake is a host in a folder. Make it with New.
type Fake struct {
	name   string
	folder string

	mu       sync.Mutex
	programs map[string]Program
	units    map[string]*Unit
	users    map[string]bool
	groups   map[string]ownGroup
	services *Services // nil unless systemd goes by files
	commands []string
	left     int // commands, puts and gets until the connection breaks; below 0 it does not
}

var _ host.Host = (*Fake)(nil)

// New returns a host without files, programs or units, which is gone when the test ends.
func New(t testing.TB, name string) *Fake {
	t.Helper()
	f := equipped(name, t.TempDir())
	for _, name := range []string{"etc", "tmp", "usr/local/bin", "var/lib", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(f.folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// equipped is a host in a folder, with the programs that all hosts have.
func equipped(name, folder string) *Fake {
	f := &Fake{name: name, folder: folder, left: -1, programs: make(map[string]Program),
		units: make(map[string]*Unit), users: map[string]bool{"root": true}, groups: make(map[string]ownGroup)}
	f.programs["systemctl"], f.programs["env"], f.programs["flock"] = systemctl, env, flock
	f.programs["sync"] = Prints("") // a fake loses no power
	f.programs["true"] = Prints("") // as a tool it would wait for the end of what it is given to read
	for _, name := range tools {
		f.programs[name] = tool(name)
	}
	f.programs["id"], f.programs["useradd"], f.programs["userdel"] = id, useradd, userdel
	f.programs["chown"], f.programs["chgrp"], f.programs["stat"] = change("chown"), change("chgrp"), stat
	return f
}

// Program makes a program be there, by its name without folders.
func (f *Fake) Program(name string, p Program) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.programs[name] = p
}

// Prints is a program that prints a text and does nothing.
func Prints(text string) Program {
	return func(_ context.Context, c *Call) int {
		_, _ = io.WriteString(c.Stdout, text) // the caller may have gone
		return 0
	}
}

// Fails is a program that fails with a message.
func Fails(code int, message string) Program {
	return func(_ context.Context, c *Call) int {
		_, _ = io.WriteString(c.Stderr, message+"\n") // the caller may have gone
		return code
	}
}

// FailNext lets the next run of a program fail with a message. After that the program is what it was.
func (f *Fake) FailNext(name string, code int, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.programs[name]
	f.programs[name] = func(ctx context.Context, c *Call) int {
		f.Program(name, was)
		return Fails(code, message)(ctx, c)
	}
}

// Copy is a host like this one, with the same programs, in another folder. No command may be running that changes
// something.
func (f *Fake) Copy(t testing.TB) *Fake {
	t.Helper()
	other := equipped(f.name, filepath.Join(t.TempDir(), "host"))
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := copyTree(f.folder, other.folder); err != nil {
		t.Fatal(err)
	}
	maps.Copy(other.programs, f.programs)
	for name, u := range f.units {
		state := u.state
		state.dropIns = slices.Clone(state.dropIns)
		other.units[name] = &Unit{host: other, name: name, state: state, start: u.start}
	}
	maps.Copy(other.users, f.users)
	for path, group := range f.groups {
		there := filepath.Join(other.folder, strings.TrimPrefix(path, f.folder))
		info, err := os.Lstat(path)
		if err != nil || !os.SameFile(info, group.file) {
			continue
		}
		if group.file, err = os.Lstat(there); err != nil {
			t.Fatal(err)
		}
		other.groups[there] = group
	}
	other.services, other.commands = f.services, slices.Clone(f.commands)
	return other
}

// copyTree copies a folder with modes and links. Sockets and the like are left out.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		there := filepath.Join(to, strings.TrimPrefix(path, from))
		switch {
		case info.IsDir():
			return errors.Join(os.Mkdir(there, 0o700), os.Chmod(there, info.Mode()))
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			return errors.Join(err, os.Symlink(target, there))
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(there, content, 0o600), os.Chmod(there, info.Mode()))
		}
		return nil
	})
}

// WriteFile makes a file, with its folders.
func (f *Fake) WriteFile(t testing.TB, name, content string, mode fs.FileMode) {
	t.Helper()
	path := f.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), mode),
		os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// ReadFile returns a file's content, or "" when it is not there.
func (f *Fake) ReadFile(t testing.TB, name string) string {
	t.Helper()
	content, err := os.ReadFile(f.path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(content)
}

// Commands are the labels of the commands that were run, and "put PATH" and "get PATH" for files, in order.
func (f *Fake) Commands() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.commands)
}

// BreakAfter lets the connection break after n more commands, puts and gets, before the next does anything; below 0 it
// does not break (any more).
func (f *Fake) BreakAfter(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = n
}

// Snapshot describes everything that can change on the host: files with modes and sums, links, units, and users. What
// only looks leaves it as it was.
func (f *Fake) Snapshot(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(f.folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%v %s", info.Mode(), f.inside(path))
		if group := f.groupOf(path); group != "root" {
			fmt.Fprintf(&b, " of the group %s", group)
		}
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x", sha256.Sum256(content))
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " -> %s", to)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var units []string
	for name, u := range f.units {
		units = append(units, fmt.Sprintf("unit %s %+v\n", name, u.state))
	}
	slices.Sort(units)
	for _, name := range slices.Sorted(maps.Keys(f.users)) {
		units = append(units, fmt.Sprintf("user %s\n", name))
	}
	return b.String() + strings.Join(units, "")
}

// Path is where a file of the host lies on this machine, for real parts of boxlift-node that a [Program] calls.
func (f *Fake) Path(name string) string { return f.path(name) }

// path is where a file of the host lies.
func (f *Fake) path(name string) string { return filepath.Join(f.folder, filepath.Clean("/"+name)) }

// inside is what the host calls a file.
func (f *Fake) inside(path string) string {
	name := strings.TrimPrefix(path, f.folder)
	if name == "" {
		return "/"
	}
	return name
}

// Name is what messages call the host.
func (f *Fake) Name() string { return f.name }

// begin counts an operation, and reports when the connection is broken.
func (f *Fake) begin(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 {
		return fault.OnHost(fmt.Errorf("%s: %w", what, ErrLost), f.name)
	}
	if f.left > 0 {
		f.left--
	}
	f.commands = append(f.commands, what)
	return nil
}

// Run runs a command to its end.
func (f *Fake) Run(ctx context.Context, cmd host.Command) (host.Result, error) {
	words, err := cmd.Words()
	if err != nil {
		return host.Result{ExitCode: -1}, fault.OnHost(fmt.Errorf("start %s: %w", cmd.Label(), err), f.name)
	}
	if ctx.Err() != nil {
		err := fmt.Errorf("start %s: %w", cmd.Label(), context.Cause(ctx))
		return host.Result{ExitCode: -1}, fault.OnHost(err, f.name)
	}
	if err := f.begin(cmd.Label()); err != nil {
		return host.Result{ExitCode: -1}, err
	}
	stdout, stderr := tail.New(host.MaxKept), tail.New(host.MaxKept)
	input := &reading{in: cmd.Stdin}
	if cmd.Stdin == nil {
		input.in = strings.NewReader("")
	}
	code := f.run(ctx, words, input, stdout, stderr)
	result := host.Result{ExitCode: code}
	var cutOut, cutErr bool
	result.Stdout, cutOut = stdout.Bytes()
	result.Stderr, cutErr = stderr.Bytes()
	result.Truncated = cutOut || cutErr
	switch {
	case input.err != nil:
		result.ExitCode = -1
		return result, fault.OnHost(fmt.Errorf("%s: read its input: %w", cmd.Label(), input.err), f.name)
	case ctx.Err() != nil:
		result.ExitCode = -1
		return result, fault.OnHost(fmt.Errorf("%s: %w", cmd.Label(), context.Cause(ctx)), f.name)
	case code != 0:
		shown := result.Stdout
		if cmd.HideOutput {
			shown = nil
		}
		return result, host.NewExitError(f.name, cmd, code, result.Stderr, shown)
	}
	return result, nil
}

// reading keeps an error of reading.
type reading struct {
	in  io.Reader
	err error
}

func (r *reading) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// run runs a program, or has a shell's script interpreted.
func (f *Fake) run(ctx context.Context, words []string, stdin io.Reader, stdout, stderr io.Writer) int {
	name := filepath.Base(words[0])
	if name == "sh" && len(words) > 2 && words[1] == "-c" {
		var params []string
		if len(words) > 4 {
			params = words[4:]
		}
		return f.script(ctx, words[2], params, stdin, stdout, stderr)
	}
	if name == "sh" && len(words) > 1 {
		text, err := os.ReadFile(f.path(words[1]))
		if err != nil {
			_, _ = fmt.Fprintf(stderr, "sh: %s: not found\n", words[1]) // the caller may have gone
			return 127
		}
		return f.script(ctx, string(text), words[2:], stdin, stdout, stderr)
	}
	f.mu.Lock()
	program := f.programs[name]
	f.mu.Unlock()
	if program == nil {
		if text, ok := f.ownScript(words[0]); ok {
			return f.script(ctx, text, words[1:], stdin, stdout, stderr)
		}
		_, _ = fmt.Fprintf(stderr, "%s: not found\n", words[0]) // the caller may have gone
		return 127
	}
	return program(ctx, &Call{Args: words[1:], Host: f, Stdin: stdin, Stdout: stdout, Stderr: stderr})
}

// ownScript is the text of a script that lies on the host and may be run.
func (f *Fake) ownScript(name string) (string, bool) {
	if !strings.HasPrefix(name, "/") {
		return "", false
	}
	info, err := os.Stat(f.translate(name))
	if err != nil || info.Mode()&0o111 == 0 {
		return "", false
	}
	text, err := os.ReadFile(f.translate(name))
	return string(text), err == nil && strings.HasPrefix(string(text), "#!/bin/sh\n")
}

// script interprets a script.
func (f *Fake) script(ctx context.Context, text string, params []string, stdin io.Reader, stdout,
	stderr io.Writer) int {
	parsed, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(strings.NewReader(text), "")
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "sh:", err) // the caller may have gone
		return 2
	}
	set, _ := ctx.Value(environment{}).([]string)
	runner, err := interp.New(
		interp.Env(expand.ListEnviron(append(set, "PATH=/bin", "HOME=/root")...)),
		interp.StdIO(stdin, stdout, stderr), interp.Dir(f.folder), interp.Params(append([]string{"--"}, params...)...),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return f.exec }),
		interp.CallHandler(func(_ context.Context, args []string) ([]string, error) { return f.builtin(args), nil }),
		interp.OpenHandler(func(ctx context.Context, path string, flag int, mode os.FileMode) (io.ReadWriteCloser,
			error) {
			if path == "/dev/null" {
				return interp.DefaultOpenHandler()(ctx, path, flag, mode)
			}
			return interp.DefaultOpenHandler()(ctx, f.translate(path), flag, mode)
		}),
		interp.StatHandler(func(ctx context.Context, path string, follow bool) (fs.FileInfo, error) {
			return interp.DefaultStatHandler()(ctx, f.translate(path), follow)
		}),
		interp.AccessHandler(func(ctx context.Context, path string, mode interp.AccessMode) error {
			return interp.DefaultAccessHandler()(ctx, f.translate(path), mode)
		}),
		interp.ReadDirHandler2(func(ctx context.Context, path string) ([]fs.DirEntry, error) {
			return interp.DefaultReadDirHandler2()(ctx, f.translate(path))
		}),
	)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "sh:", err) // the caller may have gone
		return 2
	}
	err = runner.Run(ctx, parsed)
	var code interp.ExitStatus
	if errors.As(err, &code) {
		return int(code)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "sh:", err) // the caller may have gone
		return 2
	}
	return 0
}

// builtin lets cd change to a folder of the host, and command -v find the host's programs.
func (f *Fake) builtin(args []string) []string {
	switch {
	case len(args) == 2 && args[0] == "cd":
		return []string{"cd", f.translate(args[1])}
	case len(args) == 3 && args[0] == "command" && args[1] == "-v":
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.programs[args[2]] == nil {
			return []string{"false"}
		}
		return []string{"echo", "/usr/bin/" + args[2]}
	}
	return args
}

// translate is where a file lies whose path the shell has, which may be relative to a folder of the host.
func (f *Fake) translate(path string) string {
	if path == f.folder || strings.HasPrefix(path, f.folder+"/") {
		return path
	}
	return f.path(path)
}

// exec runs a program of a script.
func (f *Fake) exec(ctx context.Context, args []string) error {
	h := interp.HandlerCtx(ctx)
	stdin := h.Stdin
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	if code := f.run(ctx, args, stdin, h.Stdout, h.Stderr); code != 0 {
		return interp.ExitStatus(uint8(code))
	}
	return nil
}

// Start starts a command for streaming.
func (f *Fake) Start(ctx context.Context, cmd host.Command) (*host.Process, error) {
	words, err := cmd.Words()
	if err == nil && cmd.Stdin != nil {
		err = errors.New("Start takes no Stdin: write to the process")
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fault.OnHost(fmt.Errorf("start %s: %w", cmd.Label(), err), f.name)
	}
	if err := f.begin(cmd.Label()); err != nil {
		return nil, err
	}
	stdinReader, stdinWriter := io.Pipe()
	stdoutReader, stdoutWriter := io.Pipe()
	stderr := tail.New(host.MaxKept)
	ended := make(chan struct{})
	code := 0
	stop := context.AfterFunc(ctx, func() {
		_ = stdinReader.CloseWithError(context.Cause(ctx)) // never fails
		_ = stdoutReader.CloseWithError(context.Cause(ctx))
	})
	go func() {
		defer close(ended)
		defer stop()
		code = f.run(ctx, words, stdinReader, stdoutWriter, stderr)
		_ = stdinReader.CloseWithError(errors.New("the command has ended")) // never fails
		_ = stdoutWriter.Close()
	}()
	kept := func() []byte {
		text, _ := stderr.Bytes()
		return text
	}
	wait := func() error {
		select {
		case <-ended:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return fault.OnHost(fmt.Errorf("%s: %w", cmd.Label(), context.Cause(ctx)), f.name)
		}
		if code != 0 {
			return host.NewExitError(f.name, cmd, code, kept(), nil)
		}
		return nil
	}
	return host.NewProcess(stdinWriter, stdoutReader, wait, kept), nil
}

// Put makes a file.
func (f *Fake) Put(ctx context.Context, o host.PutOptions, content io.Reader) (changed bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("put %s: %w", o.Path, err)
		}
	}()
	if err := o.Check(); err != nil {
		return false, err
	}
	if err := f.begin("put " + o.Path); err != nil {
		return false, err
	}
	path := f.path(o.Path)
	fail := func(format string, args ...any) error {
		return host.NewExitError(f.name, host.Command{Title: "write file"}, 1, fmt.Appendf(nil, format, args...), nil)
	}
	info, err := os.Lstat(path)
	if err == nil && info.IsDir() {
		return false, fail("%s is a directory", o.Path)
	}
	if err == nil && info.Mode() == o.Mode {
		have, err := os.ReadFile(path)
		if err != nil {
			return false, err
		}
		if sum := sha256.Sum256(have); hex.EncodeToString(sum[:]) == strings.ToLower(o.SHA256) {
			return false, nil
		}
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return false, fail("mktemp: %s: No such file or directory", filepath.Dir(o.Path))
	}
	text, err := io.ReadAll(io.LimitReader(content, o.Size+1))
	if err != nil {
		return false, fault.OnHost(fmt.Errorf("read the content: %w", err), f.name)
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if int64(len(text)) != o.Size {
		return false, fmt.Errorf("the content is not of the stated size: %d bytes wanted, %d read", o.Size, len(text))
	}
	if sum := sha256.Sum256(text); !strings.EqualFold(hex.EncodeToString(sum[:]), o.SHA256) {
		return false, fail("content arrived damaged or not whole: sha256 %x, want %s", sum, o.SHA256)
	}
	if o.Progress != nil {
		o.Progress(o.Size)
	}
	_ = os.Remove(path) // a link is not followed; what cannot be removed cannot be written either
	if err := errors.Join(os.WriteFile(path, text, 0o600), os.Chmod(path, o.Mode), f.inheritGroup(path)); err != nil {
		return false, err
	}
	return true, nil
}

// Get copies a file's content to w.
func (f *Fake) Get(ctx context.Context, o host.GetOptions, w io.Writer) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("get %s: %w", o.Path, fault.OnHost(err, f.name))
		}
	}()
	if err := o.Check(); err != nil {
		return err
	}
	if err := f.begin("get " + o.Path); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	content, err := os.ReadFile(f.path(o.Path))
	if err != nil {
		return err
	}
	if _, err := w.Write(content); err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	return o.Prove(sum[:])
}

// DialContext opens a connection on this machine: what a test listens at is what the host reaches.
func (f *Fake) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, fault.OnHost(fmt.Errorf("connect from there to %s: %w", address, err), f.name)
	}
	return conn, nil
}

// replaced is output without the folder that the host lies in.
func (f *Fake) replaced(out []byte) []byte { return bytes.ReplaceAll(out, []byte(f.folder), nil) }
