package remote

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

//go:embed put.sh
var putScript string

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
	// Progress is told the number of bytes that were sent since it was last called; may
	// be nil. It is not called for a file that is there already.
	Progress func(n int64)
}

// Put makes a file with the given content. The content goes to a temporary file in the
// same folder that only its owner can read, is read back and compared with SHA256, gets
// its mode, is synced and takes its name by rename: under Path there is always either
// what was there before or the whole new file. A file that has the content, mode and
// owner already is left alone and changed is false; content is then not read. A failure
// on the host is an *ExitError that carries the host's message. A put that was killed, or cut
// off by a power cut, may leave its temporary file, .boxlift-put-*: the next one into that
// folder, an hour later, removes it.
//
// Put does not return while a Read of content is going on.
func (h *Host) Put(ctx context.Context, opts PutOptions, content io.Reader) (changed bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("put %s: %w", opts.Path, err)
		}
	}()
	if err := opts.check(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, err := h.Start(ctx, Command{
		Title: "write file",
		Args: []string{"/bin/sh", "-c", putScript, "put", opts.Path, octal(opts.Mode),
			strings.ToLower(opts.SHA256)},
		Root: opts.Root,
	})
	if err != nil {
		return false, err
	}
	answer, err := bufio.NewReaderSize(io.LimitReader(p.Stdout, 64), 64).ReadString('\n')
	switch {
	case answer == "same\n":
		return false, p.Wait()
	case answer != "send\n":
		if waitErr := p.Wait(); waitErr != nil {
			return false, waitErr
		}
		return false, fmt.Errorf("%s: %w", h.Name(), answerError(answer, err))
	}

	sent, err := copyChunks(p.Stdin, io.LimitReader(content, opts.Size+1), opts.Progress)
	switch {
	case err != nil && errors.Is(err, errWrite):
		// The far end has gone or given up, and that is the better explanation.
	case err != nil:
		cancel(fmt.Errorf("read the content: %w", err))
	case sent != opts.Size:
		cancel(fmt.Errorf("the content is not of the stated size: %d bytes wanted, %d read", opts.Size, sent))
	default:
		err = p.Stdin.Close()
	}
	if waitErr := p.Wait(); waitErr != nil {
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

// PutBytes is Put for content in memory; it fills in Size and SHA256.
func (h *Host) PutBytes(ctx context.Context, opts PutOptions, content []byte) (changed bool, err error) {
	sum := sha256.Sum256(content)
	opts.Size, opts.SHA256 = int64(len(content)), hex.EncodeToString(sum[:])
	return h.Put(ctx, opts, bytes.NewReader(content))
}

func (o PutOptions) check() error {
	if sum, err := hex.DecodeString(o.SHA256); err != nil || len(sum) != sha256.Size {
		return fmt.Errorf("sha256 %q: want 64 hex digits", o.SHA256)
	}
	switch {
	case !path.IsAbs(o.Path) || path.Clean(o.Path) != o.Path || o.Path == "/" || strings.ContainsAny(o.Path, "\n\x00"):
		return errors.New("want a clean absolute path of a file")
	case o.Size < 0:
		return fmt.Errorf("size %d: want the content's number of bytes", o.Size)
	case o.Mode&^(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0:
		return fmt.Errorf("mode %v: want permission bits only", o.Mode)
	}
	return nil
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
