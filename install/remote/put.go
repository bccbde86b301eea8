package remote

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/liteboxd/boxlift/install/host"
)

//go:embed put.sh
var putScript string

// Put makes a file with the given content. The content goes to a temporary file in the
// same folder that only its owner can read, is read back and compared with SHA256, gets
// its mode, is synced and takes its name by rename: under Path there is always either
// what was there before or the whole new file. A file that has the content, mode and
// owner already is left alone and changed is false; content is then not read. A failure
// on the host is an *[host.ExitError] that carries the host's message. A put that was killed, or cut
// off by a power cut, may leave its temporary file, .boxlift-put-*: the next one into that
// folder, an hour later, removes it.
//
// Put does not return while a Read of content is going on.
func (h *Host) Put(ctx context.Context, opts host.PutOptions, content io.Reader) (changed bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("put %s: %w", opts.Path, err)
		}
	}()
	if err := opts.Check(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, err := h.begin(ctx, host.Command{
		Title: "write file",
		Args: []string{"/bin/sh", "-c", putScript, "put", opts.Path, octal(opts.Mode),
			strings.ToLower(opts.SHA256)},
		Root: opts.Root,
	})
	if err != nil {
		return false, err
	}
	answer, err := bufio.NewReaderSize(io.LimitReader(p.stdout, 64), 64).ReadString('\n')
	switch {
	case answer == "same\n":
		return false, p.wait()
	case answer != "send\n":
		if waitErr := p.wait(); waitErr != nil {
			return false, waitErr
		}
		return false, fmt.Errorf("%s: %w", h.Name(), answerError(answer, err))
	}

	sent, err := copyChunks(p.stdin, io.LimitReader(content, opts.Size+1), opts.Progress)
	switch {
	case err != nil && errors.Is(err, errWrite):
		// The far end has gone or given up, and that is the better explanation.
	case err != nil:
		cancel(fmt.Errorf("read the content: %w", err))
	case sent != opts.Size:
		cancel(fmt.Errorf("the content is not of the stated size: %d bytes wanted, %d read", opts.Size, sent))
	default:
		err = p.stdin.Close()
	}
	if waitErr := p.wait(); waitErr != nil {
		return false, waitErr
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", h.Name(), h.orLost(err))
	}
	return true, nil
}

// answerError is about an answer that put.sh does not give; err is that of reading it, if any.
func answerError(answer string, err error) error {
	if err != nil {
		return fmt.Errorf("want the answer same or send, got %.64q: %w", answer, err)
	}
	return fmt.Errorf("want the answer same or send, got %.64q", answer)
}

// octal returns mode as chmod and stat -c %a have it.
func octal(mode fs.FileMode) string {
	bits := uint64(mode.Perm())
	for bit, set := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&set != 0 {
			bits |= bit
		}
	}
	return strconv.FormatUint(bits, 8)
}
