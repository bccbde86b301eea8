package remote

import (
	"bufio"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/pkg/sftp"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/printable"
)

const (
	// keepFrom is how much of a content has to be there for a put whose connection broke to leave it for the next one.
	keepFrom = 8 << 20
	// block is how much of that is proven with one sha256.
	block = 4 << 20
)

//go:embed put.sh
var putScript string

// Put makes a file with the given content. The content goes to a temporary file in the
// same folder that only its owner can read, is read back and compared with SHA256, gets
// its mode, is synced and takes its name by rename: under Path there is always either
// what was there before or the whole new file. A file that has the content, mode and
// owner already is left alone and changed is false; content is then not read. A failure
// on the host is an *[host.ExitError] that carries the host's message, or one of SFTP.
//
// Large content goes by SFTP where that is possible (see the package's comment), else to
// the stdin of cat. A script on the host makes and removes the temporary file and reads it
// back, whichever way the content comes.
//
// A put that was killed, or cut off by a power cut, may leave its temporary file,
// .boxlift-put-*: the next one into that folder, an hour later, removes it. One by SFTP
// whose connection broke leaves it on purpose if it has 8 MiB at least: a put of the same
// content into that folder within the hour goes on with it. The sha256 of its blocks says
// which of them are right, and that of the whole file has the last word, as always.
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
	u := &upload{host: h, cancel: cancel, opts: opts, way: "cat"}
	args := []string{"/bin/sh", "-c", putScript, "put", opts.Path, octal(opts.Mode), strings.ToLower(opts.SHA256)}
	reason := h.noSFTP(ctx, opts.Root)
	if reason == "" && opts.Size < h.sftpSize(ctx, sftpFrom) {
		reason = tooSmall
	}
	if reason == "" {
		args = append(args, strconv.FormatInt(opts.Size, 10), strconv.Itoa(keepFrom), strconv.Itoa(block))
	}
	if u.process, err = h.begin(ctx, host.Command{Title: "write file", Args: args, Root: opts.Root}); err != nil {
		return false, err
	}
	u.answers = bufio.NewReaderSize(u.process.stdout, 256)
	u.content = &source{in: io.LimitReader(content, opts.Size+1), told: opts.Progress}
	answer, err := u.answer()
	switch {
	case answer == "same\n":
		return false, u.process.wait()
	case reason == "" && strings.HasPrefix(answer, "send "):
		reason, err = u.viaSFTP(ctx, answer)
	case reason != "" && answer == "send\n":
		err = nil
	default:
		if waitErr := u.process.wait(); waitErr != nil {
			return false, waitErr
		}
		return false, fault.OnHost(answerError(answer, err), h.Name())
	}
	if reason != "" && err == nil {
		err = u.viaCat()
	}
	h.logTransfer(ctx, "put", opts.Path, u.way, reason, "size", opts.Size, "there", u.there.Load())
	if waitErr := u.process.wait(); waitErr != nil {
		return false, u.explained(waitErr)
	}
	if err != nil {
		return false, fault.OnHost(h.orLost(err), h.Name())
	}
	return true, nil
}

// upload is one Put whose script, put.sh, is running.
type upload struct {
	host    *Host
	cancel  context.CancelCauseFunc
	opts    host.PutOptions
	process *process
	answers *bufio.Reader
	content *source
	way     string       // "cat" or "sftp"
	failure error        // what SFTP says for a failure that the script explains
	there   atomic.Int64 // how many bytes of the content an earlier put had left
}

// answer reads a line from the script.
func (u *upload) answer() (string, error) {
	line, err := u.answers.ReadSlice('\n')
	return string(line), err
}

func (u *upload) say(word string) error {
	_, err := io.WriteString(u.process.stdin, word+"\n")
	return err
}

// explained adds what SFTP has said to the script's error.
func (u *upload) explained(err error) error {
	var exit *host.ExitError
	if u.failure == nil || !errors.As(err, &exit) {
		return err
	}
	return fmt.Errorf("%w (SFTP: %s)", err, printable.Short(u.failure.Error(), 200))
}

// viaCat sends the content to the script's stdin. The script's end tells of a failure on the host.
func (u *upload) viaCat() error {
	sent, err := copyChunks(u.process.stdin, u.content.in, u.opts.Progress)
	switch {
	case err != nil && errors.Is(err, errWrite):
		// The far end has gone or given up, and that is the better explanation.
		return err
	case err != nil:
		u.cancel(fmt.Errorf("read the content: %w", err))
		return err
	}
	if err := u.checkSize(sent); err != nil {
		return err
	}
	return u.process.stdin.Close()
}

// checkSize ends the script when the content is not of its size.
func (u *upload) checkSize(sent int64) error {
	if sent == u.opts.Size {
		return nil
	}
	err := fmt.Errorf("the content is not of the stated size: %d bytes wanted, %d read", u.opts.Size, sent)
	u.cancel(err)
	return err
}

// viaSFTP writes the content into the script's temporary file. Where it cannot begin to, it says why, and the script
// waits for the content on its stdin; nothing of it has been read.
func (u *upload) viaSFTP(ctx context.Context, answer string) (reason string, err error) {
	tmp, have, err := u.parse(answer)
	if err != nil {
		u.cancel(err)
		return "", err
	}
	sums, err := u.sums(have / block)
	if err != nil {
		u.cancel(err)
		return "", err
	}
	var f *sftp.File
	client, err := u.host.sftpClient(ctx)
	if err == nil {
		err = u.host.speak(ctx, func() (err error) {
			f, err = openTemporary(client, tmp, have)
			return err
		})
	}
	if err == nil {
		// Nobody waits for a server that does not answer.
		defer func() { go f.Close() }() //nolint:errcheck // finish closes it, where that counts
	}
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return printable.Short(err.Error(), 200), u.say("cat")
	}
	u.way = "sftp"
	err = u.host.speak(ctx, func() error { return u.write(f, sums, have) })
	u.content.stop()
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case u.content.err != nil:
		u.cancel(fmt.Errorf("read the content: %w", u.content.err))
		return "", u.content.err
	case err != nil:
		u.failure = err
		return "", errors.Join(err, u.say("failed"))
	}
	if err := u.checkSize(u.content.count); err != nil {
		return "", err
	}
	return "", u.finish(ctx, client, f, tmp)
}

// finish syncs and closes what SFTP has written while the script proves it, and gives it its name. Whoever runs it from
// then on finds no writer, with which the kernel would refuse to.
func (u *upload) finish(ctx context.Context, client *sftp.Client, f *sftp.File, tmp string) error {
	synced := make(chan error, 1)
	go func() {
		synced <- u.host.speak(ctx, func() error {
			if err := f.Sync(); err != nil {
				return err
			}
			return f.Close()
		})
	}()
	if err := u.say("written"); err != nil {
		return err
	}
	if answer, err := u.answer(); answer != "proven\n" {
		// The script's end says more.
		_ = u.process.stdin.Close() // fails when it has ended
		return fmt.Errorf("want the answer proven, got %.64q: %w", answer, err)
	}
	err := <-synced
	if err == nil {
		err = u.host.speak(ctx, func() error { return client.PosixRename(tmp, u.opts.Path) })
	}
	if err != nil {
		err = fmt.Errorf("sync it and give it its name by SFTP: %w", shown(err))
	}
	if err != nil {
		u.cancel(err)
		return err
	}
	return u.process.stdin.Close()
}

// openTemporary opens the file that the script has made, if SFTP sees the same file.
func openTemporary(client *sftp.Client, name string, size int64) (*sftp.File, error) {
	for _, extension := range []string{"fsync@openssh.com", "posix-rename@openssh.com"} {
		if version, _ := client.HasExtension(extension); version != "1" {
			return nil, fmt.Errorf("the server has no %s", extension)
		}
	}
	var f *sftp.File
	var info fs.FileInfo
	err := together(
		func() (err error) { f, err = client.OpenFile(name, os.O_WRONLY); return err },
		func() (err error) { info, err = client.Lstat(name); return err },
	)
	switch {
	case err != nil:
	case f == nil || info == nil:
		err = errNoHandle
	case !info.Mode().IsRegular() || info.Size() != size:
		err = fmt.Errorf("it shows another file: %v, %d bytes", info.Mode(), info.Size())
	}
	if err == nil {
		return f, nil
	}
	if f != nil {
		_ = f.Close() // the first error is the one to tell
	}
	return nil, fmt.Errorf("open the temporary file: %w", shown(err))
}

// write writes the content, less what an earlier put has left and the host's sums prove.
func (u *upload) write(f *sftp.File, sums []string, have int64) error {
	var rest io.Reader = u.content
	var proven int64
	buf := make([]byte, min(block, have))
	for _, sum := range sums {
		n, err := io.ReadFull(u.content, buf)
		if got := sha256.Sum256(buf[:n]); err == nil && hex.EncodeToString(got[:]) == sum {
			proven += block
			continue
		}
		rest = io.MultiReader(strings.NewReader(string(buf[:n])), u.content)
		break
	}
	u.there.Store(proven)
	if have > 0 {
		// What follows may have holes.
		if err := f.Truncate(proven); err != nil {
			return err
		}
		if _, err := f.Seek(proven, io.SeekStart); err != nil {
			return err
		}
	}
	_, err := f.ReadFromWithConcurrency(rest, 0)
	return err
}

var sendLine = lazyregexp.New(`^send ([A-Za-z0-9]{6,32}) (0|[1-9][0-9]{0,17})\n$`)

// parse reads the script's answer "send NAME HAVE".
func (u *upload) parse(answer string) (tmp string, have int64, err error) {
	words := sendLine.FindStringSubmatch(answer)
	if words == nil {
		return "", 0, answerError(answer, nil)
	}
	if have, err = strconv.ParseInt(words[2], 10, 64); err != nil || have > u.opts.Size {
		return "", 0, fmt.Errorf("of %d bytes %s are said to be there", u.opts.Size, words[2])
	}
	return path.Join(path.Dir(u.opts.Path), ".boxlift-put-"+words[1]), have, nil
}

// sums reads the sha256 of n blocks.
func (u *upload) sums(n int64) ([]string, error) {
	var all []string
	for range n {
		line, err := u.answer()
		if err != nil {
			return nil, fmt.Errorf("read the sums of what is there: %w", err)
		}
		all = append(all, strings.TrimSuffix(line, "\n"))
	}
	return all, nil
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
