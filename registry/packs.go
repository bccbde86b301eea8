package registry

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/internal/printable"
)

const (
	// maxPacks is how many files of a folder are served.
	maxPacks = 1024
	// lookEvery is how often the folder is looked at when nobody asks for anything: the
	// room of a deleted pack is free only when it is closed.
	lookEvery = 5 * time.Second
	// settled is how old a change of the folder has to be for the next one to have another
	// time: clocks of file systems tick slowly.
	settled = time.Second
)

// Packs serves the packs in a folder. It notices at each request, and every few seconds,
// what has come and gone: packs are never changed, only renamed into place and deleted. One
// that is deleted while it is read is read to its end.
type Packs struct {
	dir    string
	isPack func(name string) bool
	log    *slog.Logger
	stop   chan struct{}
	ended  sync.WaitGroup

	mu sync.Mutex
	// seen is what the folder was like at the last look, and whether it had settled.
	seen      os.FileInfo
	isSettled bool
	problem   string
	packs     map[string]*pack
	all       *catalogue
}

// pack is a file of the folder.
type pack struct {
	info os.FileInfo
	// layout is nil when the file cannot be served, for the reason in problem.
	layout    *layout
	problem   string
	malformed bool
}

// OpenPacks serves the files of dir whose names isPack accepts. A file that is no pack, or
// a damaged one, is left out and the log told; so is a folder that cannot be read, and one
// that is not there has no packs.
func OpenPacks(dir string, isPack func(name string) bool, log *slog.Logger) *Packs {
	p := &Packs{dir: dir, isPack: isPack, log: log, stop: make(chan struct{}), packs: make(map[string]*pack),
		all: &catalogue{}}
	p.look(true)
	p.ended.Go(p.watch)
	return p
}

func (p *Packs) watch() {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.look(true)
		case <-p.stop:
			return
		}
	}
}

// Close ends all packs for new requests.
func (p *Packs) Close() {
	close(p.stop)
	p.ended.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.packs {
		k.close()
	}
}

func (k *pack) close() {
	if k.layout != nil {
		k.layout.retire()
	}
}

// current looks at the folder, which costs one system call when nothing has changed.
func (p *Packs) current() *catalogue {
	p.look(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// look takes in what has changed. With again it also tries those files again that could
// not be read.
func (p *Packs) look(again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	info, err := os.Stat(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = nil, nil
	}
	if err == nil && !again && p.isSettled && sameFile(info, p.seen) {
		return
	}
	var found map[string]os.FileInfo
	if err == nil && info != nil {
		found, err = p.list()
	}
	if err != nil {
		// What is open is served on.
		p.tell("cannot read the folder with the packs", err)
		return
	}
	p.problem = ""
	p.seen, p.isSettled = info, info == nil || now.Sub(info.ModTime()) > settled
	p.update(found, again)
}

// sameFile reports whether nothing about a file or folder has changed.
func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// tell logs a problem of the folder once.
func (p *Packs) tell(text string, err error) {
	if problem := err.Error(); problem != p.problem {
		p.problem = problem
		p.log.Error(text, "folder", p.dir, "error", problem)
	}
}

func (p *Packs) list() (map[string]os.FileInfo, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	found := make(map[string]os.FileInfo)
	for _, e := range entries {
		if !p.isPack(e.Name()) {
			continue
		}
		if len(found) == maxPacks {
			return nil, fmt.Errorf("%s has more than the %d packs that are allowed", p.dir, maxPacks)
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found[e.Name()] = info
	}
	return found, nil
}

func (p *Packs) update(found map[string]os.FileInfo, again bool) {
	changed := false
	next := make(map[string]*pack, len(found))
	var gone []*pack
	for name, old := range p.packs {
		info, ok := found[name]
		retry := again && old.layout == nil && !old.malformed
		if ok && sameFile(info, old.info) && !retry {
			next[name] = old
			continue
		}
		gone = append(gone, old)
		changed = changed || old.layout != nil
		if !ok {
			p.log.Info("pack is gone", "pack", name)
		}
	}
	for name, info := range found {
		if next[name] != nil {
			continue
		}
		k := p.open(name, info)
		next[name] = k
		changed = changed || k.layout != nil
	}
	p.packs = next
	if changed {
		p.rebuild()
	}
	// Only now, when nobody comes upon them any more.
	for _, k := range gone {
		k.close()
	}
}

// open opens a pack, or says in the log why not.
func (p *Packs) open(name string, info os.FileInfo) *pack {
	k := &pack{info: info}
	var err error
	if k.layout, err = openPack(p.dir, name, info); err == nil {
		p.log.Info("serving pack", "pack", name, "digest", k.layout.digest.String(), "bytes",
			k.layout.tar.Layout().Size)
		return k
	}
	k.problem, k.malformed = printable.Short(err.Error(), 2*maxLoggedPath), errors.Is(err, ocitar.ErrMalformed)
	if old := p.packs[name]; old == nil || old.problem != k.problem {
		p.log.Error("left out a file that cannot be served", "file", name, "error", k.problem)
	}
	return k
}

func openPack(dir, name string, info os.FileInfo) (*layout, error) {
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: it is not a regular file", ocitar.ErrMalformed)
	}
	file, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	l, err := newPack(file, info)
	if err != nil {
		_ = file.Close() // it was only read
		return nil, err
	}
	return l, nil
}

func newPack(file *os.File, info os.FileInfo) (*layout, error) {
	opened, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(opened, info) {
		return nil, errors.New("it was replaced at this moment")
	}
	return newLayout(packFile{file, opened})
}

// packFile is a pack as it was when it was opened.
type packFile struct {
	*os.File
	info os.FileInfo
}

func (f packFile) Size() int64         { return f.info.Size() }
func (f packFile) Modified() time.Time { return f.info.ModTime() }

// rebuild makes the catalogue anew. The newest pack comes first, so that what it says of a
// tag counts.
func (p *Packs) rebuild() {
	names := make([]string, 0, len(p.packs))
	for name, k := range p.packs {
		if k.layout != nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(p.packs[b].layout.modified.Compare(p.packs[a].layout.modified), strings.Compare(a, b))
	})
	layouts := make([]*layout, 0, len(names))
	for _, name := range names {
		layouts = append(layouts, p.packs[name].layout)
	}
	all, err := newCatalogue(layouts)
	if err != nil {
		p.tell("cannot make a catalogue of the packs", err)
		return
	}
	p.all = all
}
