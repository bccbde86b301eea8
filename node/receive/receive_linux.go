package receive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/node/stream"
	"github.com/liteboxd/boxlift/node/wire"
)

// Options are the parts of [Run] that tests change.
type Options struct {
	// FilesDir is where files may be placed; "" means the constant of that name.
	FilesDir string
	// IdleTimeout is how long the operator may send nothing when it is its turn; 0 means
	// two minutes. An operator that has lost its power does not close the stream, and
	// would keep all others away until TCP notices, hours later.
	IdleTimeout time.Duration
	// PeerTimeout is for how long, all in all, a peer may be waited for that gives hardly
	// anything; 0 means ten minutes.
	PeerTimeout time.Duration
}

// Run is the node's end of the protocol; in and out are its standard input and
// output. It returns when everything wanted is there, or with a [*wire.Failure], which has
// been sent as well, unless sending failed. If in is not an [*os.File], a goroutine may
// still be reading from it then; it touches nothing else.
//
// Two calls that would write to the same directory exclude each other, across
// processes; the second one fails.
func Run(ctx context.Context, in io.Reader, out io.Writer, opts Options) error {
	if opts.FilesDir == "" {
		opts.FilesDir = wire.FilesDir
	}
	if opts.IdleTimeout == 0 {
		opts.IdleTimeout = 2 * time.Minute
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	input, err := stream.Open(ctx, in, opts.IdleTimeout)
	if err != nil {
		return err
	}
	defer input.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r := &receiver{ctx: ctx, end: end, opts: opts, in: input, out: out, buffer: make([]byte, stream.BufferSize)}
	err = r.run()
	r.close()
	// The stream must not be closed while it is read from.
	cancel()
	r.reading.Wait()
	if err == nil {
		return nil
	}
	failure := asFailure(err)
	if err := r.say(wire.Message{Failure: failure}); err != nil {
		return fmt.Errorf("%w (which could not be reported: %w)", failure, err)
	}
	return failure
}

func asFailure(err error) *wire.Failure {
	var f *wire.Failure
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, syscall.EROFS):
		return &wire.Failure{Reason: wire.ReasonReadOnly, Text: err.Error()}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &wire.Failure{Reason: wire.ReasonSpace, Text: err.Error()}
	case errors.Is(err, errStreamEnd):
		return &wire.Failure{Reason: wire.ReasonInterrupted, Text: err.Error()}
	case errors.Is(err, stream.ErrIdle):
		return &wire.Failure{Reason: wire.ReasonInterrupted, Text: err.Error() + "; run again to go on from here"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &wire.Failure{Reason: wire.ReasonInterrupted,
			Text: "boxlift-node was told to stop; run again to go on from here"}
	default:
		return &wire.Failure{Reason: wire.ReasonIO, Text: err.Error()}
	}
}

type receiver struct {
	ctx  context.Context //nolint:containedctx // the life of one call of Run
	end  context.CancelCauseFunc
	opts Options
	in   *stream.Stream
	// reading is the goroutine that reads frames. What it gets comes through peersFrame
	// and dataFrame; while the raw bytes behind the latter are read, it waits for rawRead.
	reading    sync.WaitGroup
	peersFrame chan *wire.Peers
	dataFrame  chan *wire.Data
	rawRead    chan struct{}
	outMu      sync.Mutex
	out        io.Writer
	buffer     []byte // for copies on the node

	closers []io.Closer
	images  *os.Root
	files   *os.Root
	targets []*target
	removed []string
	space   []wire.Space
	// sources says where on this node the content of wanted blobs is.
	sources map[digest.Digest]source
	server  *server // nil: it serves nobody
	puller  *puller
	// left is how many bytes are still to come from elsewhere, as far as was known when
	// the operator was last told.
	left     int64
	received int64
	copied   int64
}

// source is a place in a finished file, or, when target is set, in one that is being
// written.
type source struct {
	root   *os.Root
	rel    string
	target *target
	offset int64
}

func (s source) name() string {
	if s.target != nil {
		return s.target.name
	}
	return path.Join(s.root.Name(), s.rel)
}

func (r *receiver) say(m wire.Message) error {
	r.outMu.Lock()
	defer r.outMu.Unlock()
	return wire.WriteFrame(r.out, m)
}

func (r *receiver) run() error {
	m, err := wire.ReadFrame(r.in)
	switch {
	case errors.Is(err, wire.ErrProtocol):
		return wire.Failuref(wire.ReasonRequest, "read what is wanted: %v", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return wire.Failuref(wire.ReasonInterrupted, "the stream ended before it had said what is wanted")
	case err != nil:
		return fmt.Errorf("read what is wanted: %w", err)
	case m.Want == nil:
		return wire.Failuref(wire.ReasonRequest, "the first frame does not say what is wanted")
	}
	if err := m.Want.Validate(r.opts.FilesDir); err != nil {
		return wire.Failuref(wire.ReasonRequest, "what is wanted is not allowed: %v", err)
	}
	r.read()
	if err := r.prepare(m.Want); err != nil {
		return err
	}
	if err := r.join(m.Want.Swarm); err != nil {
		return err
	}
	finisher := newFinisher(r)
	err = r.rounds(finisher)
	if finishErr := finisher.wait(); err == nil {
		err = finishErr
	}
	if err != nil {
		return err
	}
	if err := r.puller.flush(); err != nil {
		return err
	}
	finished := wire.Finished{Received: r.received, Copied: r.copied, Pulled: r.puller.total}
	if err := r.say(wire.Message{Finished: &finished}); err != nil {
		return err
	}
	if r.server != nil {
		// Whatever ends it: this node has what it wants.
		<-r.ctx.Done()
	}
	return nil
}

// errStreamEnd says that the operator closed its end, or is gone.
var errStreamEnd = errors.New("the stream ended; run again to go on from there")

// read begins to read frames. The end of the stream, or what is wrong with it, ends r.ctx.
func (r *receiver) read() {
	r.peersFrame, r.dataFrame, r.rawRead = make(chan *wire.Peers, 1), make(chan *wire.Data), make(chan struct{})
	r.reading.Go(func() {
		for {
			m, err := wire.ReadFrame(r.in)
			if err == nil {
				err = r.hear(m)
			}
			switch {
			case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
				err = errStreamEnd
			case errors.Is(err, wire.ErrProtocol):
				err = wire.Failuref(wire.ReasonRequest, "read what the operator says: %v", err)
			}
			if err != nil {
				r.end(err)
				return
			}
		}
	})
}

func (r *receiver) hear(m wire.Message) error {
	switch {
	case m.Alive != nil:
		return nil
	case m.Peers != nil:
		select {
		case r.peersFrame <- m.Peers:
			return nil
		default:
			return fmt.Errorf("%w: the peers are named twice", wire.ErrProtocol)
		}
	case m.Data != nil:
		if err := r.handOver(m.Data); err != nil {
			return err
		}
		select {
		case <-r.rawRead:
			return nil
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
	return fmt.Errorf("%w: a frame that only a node may send", wire.ErrProtocol)
}

// handOver waits until somebody takes the bytes of a blob. All the while nothing is read,
// so the end of the stream has to be looked for.
func (r *receiver) handOver(d *wire.Data) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case r.dataFrame <- d:
			return nil
		case <-ticker.C:
			if r.in.HungUp() {
				return errStreamEnd
			}
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
}

// join tells what is there, begins to serve it, and learns where the rest may come from.
func (r *receiver) join(swarm *wire.Swarm) error {
	state := &wire.State{Removed: r.removed, Space: r.space}
	for _, t := range r.targets {
		if t.state == held {
			state.Held = append(state.Held, t.name)
		}
	}
	state.Local, state.Missing = r.absent()
	r.left = state.Missing
	if swarm != nil && swarm.Address != "" {
		s, err := newServer(r.ctx, swarm)
		if err != nil {
			state.NotServing = err.Error()
		} else {
			r.server = s
			state.Serving = &s.serving
			s.start(newShelf(r.targets))
		}
	}
	if err := r.say(wire.Message{State: state}); err != nil {
		return err
	}
	select {
	case peers := <-r.peersFrame:
		if err := peers.Validate(); err != nil {
			return wire.Failuref(wire.ReasonRequest, "what is said of peers is not allowed: %v", err)
		}
		var err error
		r.puller, err = newPuller(r, swarm, peers)
		return err
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// rounds asks and takes until nothing is lacking. More than one round is needed only
// when peers do not give what they were to, or a copy on this node turns out to be
// damaged.
func (r *receiver) rounds(finisher *finisher) error {
	for {
		lacks, from := r.lacks()
		if err := errors.Join(r.puller.flush(), r.say(wire.Message{Lacks: lacks})); err != nil {
			return err
		}
		again := false
		for _, t := range r.targets {
			if t.state != unfinished {
				continue
			}
			if err := finisher.failed(); err != nil {
				return err
			}
			ok, err := r.fill(t, from)
			if err != nil {
				return err
			}
			if !ok {
				again = true
				continue
			}
			t.state = complete
			finisher.add(t)
		}
		if !again {
			return nil
		}
	}
}

// prepare opens and locks the directories, finds what is there and whether the rest
// fits.
func (r *receiver) prepare(w *wire.Want) error {
	var err error
	if w.ImagesDir != "" {
		if r.images, err = r.openDir(w.ImagesDir); err != nil {
			return fmt.Errorf("prepare the images directory %s: %w", w.ImagesDir, err)
		}
	}
	if len(w.Files) > 0 {
		if r.files, err = r.openDir(r.opts.FilesDir); err != nil {
			return fmt.Errorf("prepare the directory %s: %w", r.opts.FilesDir, err)
		}
	}
	if err := r.lock(); err != nil {
		return err
	}
	if err := r.makeTargets(w); err != nil {
		return err
	}
	if err := r.removeStale(); err != nil {
		return err
	}
	if err := r.takeBackWanted(); err != nil {
		return err
	}
	r.sources = make(map[digest.Digest]source)
	for _, t := range r.targets {
		if err := r.examine(t); err != nil {
			return fmt.Errorf("look at %s: %w", path.Join(t.root.Name(), t.rel), err)
		}
	}
	if err := r.findSources(); err != nil {
		return err
	}
	return r.checkSpace()
}

// openDir makes a directory with all above it, durably, and opens it.
func (r *receiver) openDir(name string) (*os.Root, error) {
	var missing []string
	for p := name; ; p = filepath.Dir(p) {
		if _, err := os.Stat(p); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		missing = append(missing, p)
	}
	slices.Reverse(missing)
	for _, p := range missing {
		if err := os.Mkdir(p, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		parent, err := os.Open(filepath.Dir(p))
		if err != nil {
			return nil, err
		}
		if err := errors.Join(parent.Sync(), parent.Close()); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	r.closers = append(r.closers, root)
	return root, nil
}

// lock locks the directories themselves, so that no lock file is left behind. The
// kernel drops the locks when the process ends, however it ends.
func (r *receiver) lock() error {
	var locked []os.FileInfo
	for _, root := range []*os.Root{r.images, r.files} {
		if root == nil {
			continue
		}
		d, err := root.Open(".")
		if err != nil {
			return err
		}
		r.closers = append(r.closers, d)
		info, err := d.Stat()
		if err != nil {
			return err
		}
		if slices.ContainsFunc(locked, func(other os.FileInfo) bool { return os.SameFile(other, info) }) {
			continue
		}
		locked = append(locked, info)
		err = hostfile.Control(d, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		if errors.Is(err, unix.EWOULDBLOCK) {
			return wire.Failuref(wire.ReasonBusy, "another boxlift-node is receiving into %s; wait for it to end",
				root.Name())
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", root.Name(), err)
		}
	}
	return nil
}

func (r *receiver) makeTargets(w *wire.Want) error {
	for _, p := range w.Packs {
		layout, err := p.Layout()
		if err != nil {
			return err
		}
		r.targets = append(r.targets, &target{
			name: p.Name, root: r.images, rel: p.Name, mode: 0o644,
			size: layout.Size, layout: layout, blobs: p.Blobs, index: p.Index,
		})
	}
	for _, f := range w.Files {
		t := &target{
			name: f.Path, root: r.files, rel: strings.TrimPrefix(f.Path, r.opts.FilesDir+"/"),
			mode: fs.FileMode(f.Mode),
			size: f.Size, digest: f.Digest,
		}
		if err := r.files.MkdirAll(t.dir(), 0o755); err != nil {
			return fmt.Errorf("make the directory of %s: %w", f.Path, err)
		}
		r.targets = append(r.targets, t)
	}
	return nil
}

// removeStale deletes unfinished packs that are not wanted any more, and unfinished
// files of other content than is wanted. Nobody else makes files of such names, and the
// lock says that nobody is writing them.
func (r *receiver) removeStale() error {
	if r.images != nil {
		err := r.removeIn(r.images, ".", func(name string) bool {
			pack, ok := strings.CutSuffix(name, wire.PartSuffix)
			return ok && wire.IsPackName(pack)
		})
		if err != nil {
			return err
		}
	}
	for _, t := range r.targets {
		if t.layout != nil {
			continue
		}
		pattern := regexp.MustCompile(`^` + regexp.QuoteMeta(path.Base(t.rel)) + `\.[0-9a-f]{12}` +
			regexp.QuoteMeta(wire.PartSuffix) + `$`)
		if err := r.removeIn(t.root, t.dir(), pattern.MatchString); err != nil {
			return err
		}
	}
	return nil
}

// removeIn removes the files in a directory whose names match, unless they are wanted.
func (r *receiver) removeIn(root *os.Root, dir string, match func(string) bool) error {
	names, err := hostfile.Names(root, dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		rel := path.Join(dir, name)
		wanted := slices.ContainsFunc(r.targets, func(t *target) bool { return t.root == root && t.part() == rel })
		if wanted || !match(name) {
			continue
		}
		if err := root.Remove(rel); err != nil {
			return fmt.Errorf("remove an unfinished file that nobody wants any more: %w", err)
		}
		r.removed = append(r.removed, path.Join(root.Name(), rel))
	}
	return nil
}

// takeBackWanted takes the wanted packs back that are set aside. A file that is set aside beside the pack itself is of
// no use to anybody.
func (r *receiver) takeBackWanted() error {
	for _, t := range r.targets {
		if t.layout == nil {
			continue
		}
		info, err := t.root.Lstat(t.rel + pack.AsideSuffix)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue
		}
		if err == nil {
			if _, err = t.root.Lstat(t.rel); err == nil {
				err = t.root.Remove(t.rel + pack.AsideSuffix)
			} else if errors.Is(err, fs.ErrNotExist) {
				err = pack.TakeBack(t.root, t.rel)
			}
		}
		if err != nil {
			return fmt.Errorf("take back %s, which is set aside: %w", t.name, err)
		}
	}
	return nil
}

// examine finds out what is there of a target, and notes the blobs in it.
func (r *receiver) examine(t *target) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	ok, err := t.isHeld()
	if err != nil {
		return err
	}
	if ok {
		t.state = held
		if t.layout == nil {
			r.sources[t.digest] = source{root: t.root, rel: t.rel}
		}
		return nil
	}
	if err := t.resume(); err != nil {
		return err
	}
	for i := range t.current {
		if s := t.content(i); s.digest != "" {
			r.sources[s.digest] = source{target: t, offset: s.offset}
		}
	}
	return nil
}

// findSources looks for wanted blobs in all finished packs.
func (r *receiver) findSources() error {
	missing := make(map[digest.Digest]int64)
	for _, t := range r.targets {
		for s := range t.missing() {
			if _, ok := r.sources[s.digest]; !ok {
				missing[s.digest] = s.size
			}
		}
	}
	if r.images == nil || len(missing) == 0 {
		return nil
	}
	names, err := hostfile.Names(r.images, ".")
	if err != nil {
		return fmt.Errorf("list %s: %w", r.images.Name(), err)
	}
	for _, name := range names {
		if !pack.IsStored(name) {
			continue
		}
		// A file that cannot be read as a pack is no source, and Check tells about it.
		_ = pack.Read(r.images, name, func(p *ocitar.Reader) error {
			for _, e := range p.Layout().Entries {
				if size, ok := missing[e.Digest()]; ok && size == e.Size {
					r.sources[e.Digest()] = source{root: r.images, rel: name, offset: e.Offset}
					delete(missing, e.Digest())
				}
			}
			return nil
		})
	}
	return nil
}

// missing goes through the blobs that are not complete in the unfinished file. There may
// be so many that no list of them is made.
func (t *target) missing() iter.Seq[segment] {
	return func(yield func(segment) bool) {
		if t.state != unfinished {
			return
		}
		for i := t.current; i < t.segments(); i++ {
			if s := t.content(i); s.digest != "" && !yield(s) {
				return
			}
		}
	}
}

// checkSpace refuses to begin what cannot end. What is in unfinished files counts as
// there.
func (r *receiver) checkSpace() error {
	devices := make(map[uint64]int)
	for _, t := range r.targets {
		if t.state != unfinished {
			continue
		}
		dir := path.Join(t.root.Name(), t.dir())
		device, free, readOnly, err := statDir(t.root, t.dir())
		if err != nil {
			return fmt.Errorf("ask for the free space of %s: %w", dir, err)
		}
		if readOnly {
			return wire.Failuref(wire.ReasonReadOnly, "the filesystem of %s is mounted read-only", dir)
		}
		i, ok := devices[device]
		if !ok {
			i = len(r.space)
			devices[device] = i
			r.space = append(r.space, wire.Space{Path: dir, Free: free})
		}
		r.space[i].Needed += t.size - t.position()
	}
	for _, s := range r.space {
		if s.Needed > s.Free {
			return wire.Failuref(wire.ReasonSpace,
				"not enough space on the filesystem of %s: %d bytes (%d MiB) are needed, %d (%d MiB) are free",
				s.Path, s.Needed, s.Needed>>20, s.Free, s.Free>>20)
		}
	}
	return nil
}

func statDir(root *os.Root, name string) (device uint64, free int64, readOnly bool, err error) {
	d, err := root.Open(name)
	if err != nil {
		return 0, 0, false, err
	}
	defer hostfile.CloseRead(d)
	err = hostfile.Control(d, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		var sf unix.Statfs_t
		if err := unix.Fstatfs(fd, &sf); err != nil {
			return err
		}
		device, free, readOnly = st.Dev, int64(sf.Bavail)*sf.Bsize, sf.Flags&unix.ST_RDONLY != 0
		return nil
	})
	return device, free, readOnly, err
}

// absent tells how many bytes of unfinished targets are on this node, and how many must
// come from elsewhere.
func (r *receiver) absent() (local, missing int64) {
	seen := make(map[digest.Digest]bool)
	for _, t := range r.targets {
		for s := range t.missing() {
			if _, ok := r.sources[s.digest]; ok || seen[s.digest] {
				local += s.size
				continue
			}
			seen[s.digest] = true
			missing += s.size - t.begun(s)
		}
	}
	return local, missing
}

// begun is how many bytes of a blob that is missing are there.
func (t *target) begun(s segment) int64 {
	if t.content(t.current).offset == s.offset {
		return t.inCurrent
	}
	return 0
}

// lacks says which blobs must come from the operator, in the order in which fill takes
// them, and for each which target takes it from the stream. A blob that several targets
// lack goes to the first one; the others copy it from there.
func (r *receiver) lacks() (*wire.Lacks, map[digest.Digest]*target) {
	l := &wire.Lacks{}
	from := make(map[digest.Digest]*target)
	for _, t := range r.targets {
		for s := range t.missing() {
			if _, local := r.sources[s.digest]; local || from[s.digest] != nil || r.puller.offers(s.digest) {
				continue
			}
			from[s.digest] = t
			l.Blobs = append(l.Blobs, wire.Lack{Digest: s.digest, Size: s.size, Offset: t.begun(s)})
		}
	}
	_, missing := r.absent()
	l.Again, r.left = missing-r.left, missing
	return l, from
}

// fill completes a target. It returns false when a blob cannot be had in this round,
// because bytes that this node had before were damaged and no peer has them; what the
// stream holds for the rest of the target is thrown away then, since the file can only be
// appended to.
func (r *receiver) fill(t *target, from map[digest.Digest]*target) (bool, error) {
	where := path.Join(t.root.Name(), t.part())
	if err := t.begin(); err != nil {
		return false, fmt.Errorf("begin %s: %w", where, err)
	}
	for {
		s, more, err := t.writeFixed()
		if err != nil {
			return false, fmt.Errorf("write %s: %w", where, err)
		}
		if !more {
			return true, nil
		}
		src, local := r.sources[s.digest]
		switch {
		case from[s.digest] == t:
			err = r.takeBlob(t, s)
			delete(from, s.digest)
		case local:
			err = r.copyBlob(t, s, src)
			if damaged := (*damagedError)(nil); errors.As(err, &damaged) && r.puller.offers(s.digest) {
				if err = r.puller.count(-s.size); err == nil {
					err = r.puller.pull(t, s)
				}
			}
		default:
			err = r.puller.pull(t, s)
		}
		if damaged := (*damagedError)(nil); errors.As(err, &damaged) {
			return false, r.drain(t, from)
		}
		if err != nil {
			return false, fmt.Errorf("write blob %s to %s: %w", s.digest, where, err)
		}
		if _, ok := r.sources[s.digest]; !ok {
			r.sources[s.digest] = source{target: t, offset: s.offset}
		}
	}
}

// damagedError says that bytes that were on this node before cannot be used.
type damagedError struct{ err error }

func (e *damagedError) Error() string { return e.err.Error() }

// takeBlob reads the rest of the current blob from the stream. When the blob turns out
// to be wrong, it is dropped. If an earlier run left its first bytes, these may be to
// blame, and the error is a *damagedError; else the stream was wrong.
func (r *receiver) takeBlob(t *target, s segment) error {
	resumed := t.inCurrent > 0
	if _, err := r.nextData(s, t.inCurrent); err != nil {
		return err
	}
	for t.inCurrent < s.size {
		b, err := r.in.Next(s.size - t.inCurrent)
		if errors.Is(err, io.EOF) {
			return wire.Failuref(wire.ReasonInterrupted,
				"the stream ended at byte %d of the %d of blob %s of %s; run again to go on from there",
				t.inCurrent, s.size, s.digest, t.name)
		}
		if err != nil {
			return err
		}
		r.received += int64(len(b))
		r.left -= int64(len(b))
		if err := t.write(b); err != nil {
			return err
		}
	}
	if err := r.endData(); err != nil {
		return err
	}
	err := t.endBlob()
	switch {
	case errors.Is(err, errContent) && resumed:
		return &damagedError{err}
	case errors.Is(err, errContent):
		return &wire.Failure{
			Reason: wire.ReasonContent, Blob: s.digest,
			Text: fmt.Sprintf("blob %s of %s came in wrong: %v; it has been dropped, and the next run fetches it "+
				"from its start",
				s.digest, t.name, err),
		}
	}
	return err
}

// nextData waits for the raw bytes of a blob and returns how many there are.
func (r *receiver) nextData(s segment, offset int64) (int64, error) {
	select {
	case d := <-r.dataFrame:
		if d.Digest != s.digest || d.Offset != offset || d.Size != s.size-offset {
			return 0, wire.Failuref(wire.ReasonRequest,
				"the operator sends %d bytes of blob %q from %d on, which is not what was asked for",
				d.Size, string(d.Digest), d.Offset)
		}
		return d.Size, nil
	case <-r.ctx.Done():
		return 0, context.Cause(r.ctx)
	}
}

// endData gives the stream back to the goroutine that reads frames.
func (r *receiver) endData() error {
	select {
	case r.rawRead <- struct{}{}:
		return nil
	case <-r.ctx.Done():
		return context.Cause(r.ctx)
	}
}

// copyBlob takes the rest of the current blob from where the node has it. A source that
// cannot be read or is wrong is forgotten, with all else that the same file offers, and
// the error is a *damagedError.
func (r *receiver) copyBlob(t *target, s segment, src source) error {
	err := r.copyFrom(t, s, src)
	if err == nil {
		err = t.endBlob()
		if err == nil || !errors.Is(err, errContent) {
			return err
		}
		err = &damagedError{err}
	}
	if damaged := (*damagedError)(nil); !errors.As(err, &damaged) {
		return err
	}
	for d, other := range r.sources {
		if other.name() == src.name() {
			delete(r.sources, d)
		}
	}
	if dropErr := t.dropBlob(); dropErr != nil {
		return dropErr
	}
	return err
}

func (r *receiver) copyFrom(t *target, s segment, src source) error {
	var file *os.File
	if src.target != nil {
		file = src.target.file
	} else {
		f, err := hostfile.Open(src.root, src.rel, os.O_RDONLY)
		if err != nil {
			return &damagedError{err}
		}
		defer hostfile.CloseRead(f)
		file = f
	}
	for t.inCurrent < s.size {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		n := min(int64(len(r.buffer)), s.size-t.inCurrent)
		if _, err := file.ReadAt(r.buffer[:n], src.offset+t.inCurrent); err != nil {
			return &damagedError{err}
		}
		if err := t.write(r.buffer[:n]); err != nil {
			return err
		}
		r.copied += n
	}
	return nil
}

// drain throws away what the stream holds for the rest of a target.
func (r *receiver) drain(t *target, from map[digest.Digest]*target) error {
	for s := range t.missing() {
		if from[s.digest] != t {
			continue
		}
		// All of it: only the first blob that a target lacks can be asked for from an offset,
		// and that one has been taken or is not to come from the stream.
		left, err := r.nextData(s, 0)
		if err != nil {
			return err
		}
		for left > 0 {
			b, err := r.in.Next(left)
			if errors.Is(err, io.EOF) {
				return wire.Failuref(wire.ReasonInterrupted,
					"the stream ended within blob %s of %s; run again to go on", s.digest,
					t.name)
			}
			if err != nil {
				return err
			}
			left -= int64(len(b))
			r.received += int64(len(b))
			r.left -= int64(len(b))
		}
		if err := r.endData(); err != nil {
			return err
		}
		delete(from, s.digest)
	}
	return nil
}

func (r *receiver) close() {
	if r.server != nil {
		r.server.close()
	}
	if r.puller != nil {
		r.puller.close()
	}
	for _, t := range r.targets {
		t.close()
	}
	for _, c := range slices.Backward(r.closers) {
		_ = c.Close() // directories, which were only read
	}
}

// finisher puts complete targets on the disk, one after the other, while the next ones
// come in.
type finisher struct {
	r     *receiver
	queue chan *target
	done  chan struct{}
	mu    sync.Mutex
	err   error
}

func newFinisher(r *receiver) *finisher {
	f := &finisher{r: r, queue: make(chan *target, wire.MaxTargets), done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for t := range f.queue {
			err := t.finish()
			if err != nil {
				err = fmt.Errorf("put %s in its place: %w", path.Join(t.root.Name(), t.rel), err)
			} else {
				err = r.say(wire.Message{Placed: &wire.Placed{Name: t.name}})
			}
			f.mu.Lock()
			f.err = errors.Join(f.err, err)
			f.mu.Unlock()
		}
	}()
	return f
}

func (f *finisher) add(t *target) { f.queue <- t }

func (f *finisher) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// wait ends the work on all targets that were added.
func (f *finisher) wait() error {
	close(f.queue)
	<-f.done
	return f.failed()
}
