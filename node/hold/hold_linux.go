package hold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/stream"
	"github.com/liteboxd/boxlift/node/wire"
)

// Options are the parts of [Run] that tests change.
type Options struct {
	// Dir is where the lock lies; "" means [Dir].
	Dir string
	// IdleTimeout is how long the holder may give no sign of life; 0 means two minutes.
	IdleTimeout time.Duration
}

// Run keeps other runs of boxlift away from this node; in and out are its standard input
// and output. It reads who asks, answers whether the node is held from now on, and holds
// it until in or ctx ends, or nothing comes for too long. Then, and when the process ends
// in any other way, the node is free: the kernel drops the lock, so that nothing has to
// be cleaned up after a run that was killed. That another run holds the node is an answer
// and no error.
func Run(ctx context.Context, in io.Reader, out io.Writer, o Options) error {
	if o.Dir == "" {
		o.Dir = Dir
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = 6 * Interval
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	input, err := stream.Open(ctx, in, o.IdleTimeout)
	if err != nil {
		return err
	}
	defer input.Close()
	var asks Holder
	rest, err := wire.ReadLine(input, &asks)
	if err != nil {
		return fmt.Errorf("read who asks: %w", err)
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	file, other, err := lockHold(filepath.Join(o.Dir, File))
	if err != nil {
		return err
	}
	if file == nil {
		return wire.WriteLine(out, holdAnswer{By: &other})
	}
	defer hostfile.CloseRead(file) // its end is the lock's; what is in it then means nothing
	who := asks.clean()
	who.Since = time.Now().UTC().Truncate(time.Second)
	if err := errors.Join(file.Truncate(0), wire.WriteLine(file, who)); err != nil {
		return fmt.Errorf("note who holds the node: %w", err)
	}
	if err := wire.WriteLine(out, holdAnswer{Held: true}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, rest)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lockHold locks the file, or, when another process has, returns no file and who it is.
func lockHold(name string) (*os.File, Holder, error) {
	for {
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, Holder{}, err
		}
		err = hostfile.Control(file, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		if errors.Is(err, unix.EWOULDBLOCK) {
			defer hostfile.CloseRead(file)
			return nil, readHolder(file), nil
		}
		if err != nil {
			hostfile.CloseRead(file)
			return nil, Holder{}, fmt.Errorf("lock %s: %w", name, err)
		}
		// Between opening and locking, the file may have been deleted with all that is
		// boxlift's: then the lock keeps nobody away.
		same, err := isStill(name, file)
		if same {
			return file, Holder{}, nil
		}
		hostfile.CloseRead(file)
		if err != nil {
			return nil, Holder{}, err
		}
	}
}

func isStill(name string, file *os.File) (bool, error) {
	now, err := os.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	info, err := file.Stat()
	return err == nil && os.SameFile(now, info), err
}

// readHolder reads who holds the node. Between taking the lock and saying who it is, that
// is not known.
func readHolder(file *os.File) Holder {
	var h Holder
	content, err := io.ReadAll(io.LimitReader(file, wire.MaxLine))
	if err != nil || json.Unmarshal(content, &h) != nil {
		return Holder{}
	}
	return h.clean()
}
