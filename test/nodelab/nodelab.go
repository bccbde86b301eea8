//go:build linux

package nodelab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/receive"
	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/ocilayout"
)

// With receiveEnv in its environment the test binary is a boxlift-node that receives;
// its value is the directory for files.
const receiveEnv = "BOXLIFT_TEST_RECEIVE_FILES"

// PeakEnv names a file into which such a receiver writes its /proc/self/status at its end.
const PeakEnv = "BOXLIFT_TEST_RECEIVE_STATUS"

// Main runs the tests of a package, in whose processes [Lab.Start] makes receivers of the test binary.
func Main(m *testing.M) {
	if dir, ok := os.LookupEnv(receiveEnv); ok {
		if err := receive.Run(context.Background(), os.Stdin, os.Stdout, receive.Options{FilesDir: dir}); err != nil {
			os.Exit(1)
		}
		if name := os.Getenv(PeakEnv); name != "" {
			status, err := os.ReadFile("/proc/self/status")
			if err != nil || os.WriteFile(name, status, 0o600) != nil {
				os.Exit(1)
			}
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Store is the operator's bundle: blobs by digest.
type Store map[digest.Digest][]byte

// Add puts a blob into the store.
func (s Store) Add(b []byte) wire.Blob {
	d := digest.FromBytes(b)
	s[d] = b
	return wire.Blob{Digest: d, Size: int64(len(b))}
}

// Open is the [ship.Open] of the store.
func (s Store) Open(d digest.Digest, offset int64) (io.ReadCloser, error) {
	b, ok := s[d]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(b[offset:])), nil
}

// Pack makes a pack of one image from its layers.
func (s Store) Pack(t testing.TB, component string, layers ...[]byte) wire.PackWant {
	t.Helper()
	type object = map[string]any
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	config := s.Add(encode(object{"architecture": "amd64", "os": "linux", "component": component}))
	var blobs []wire.Blob
	for _, l := range layers {
		blobs = append(blobs, s.Add(l))
	}
	manifest := s.Add(encode(object{"schemaVersion": 2, "config": config, "layers": blobs}))
	index := encode(object{"schemaVersion": 2, "manifests": []wire.Blob{manifest}})
	return wire.PackWant{
		Name:  wire.PackName(component, index),
		Index: index,
		Blobs: append([]wire.Blob{manifest, config}, blobs...),
	}
}

// Bytes returns the pack that must come out, made with nothing of the receiver's.
func (s Store) Bytes(t testing.TB, p wire.PackWant) []byte {
	t.Helper()
	members := []ocitar.Member{
		{Name: ocitar.LayoutFile, Size: int64(len(ocitar.LayoutContent))},
		{Name: ocitar.IndexFile, Size: int64(len(p.Index))},
	}
	contents := [][]byte{[]byte(ocitar.LayoutContent), p.Index}
	for _, b := range p.Blobs {
		members = append(members, ocitar.Blob(b.Digest, b.Size))
		contents = append(contents, s[b.Digest])
	}
	return ocilayout.Tar(t, members, contents)
}

// Random is n bytes that are the same for the same seed.
func Random(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b) // never fails
	return b
}

// Lab is one node's disk.
type Lab struct {
	Store
	Images, Files string
}

// New is an empty disk, and an empty bundle.
func New(t testing.TB) *Lab {
	dir := t.TempDir()
	return &Lab{Store: Store{}, Images: filepath.Join(dir, "agent", "images"), Files: filepath.Join(dir, "boxlift")}
}

// Want asks for packs on the disk.
func (l *Lab) Want(packs ...wire.PackWant) wire.Want {
	return wire.Want{Version: wire.Version, ImagesDir: l.Images, Packs: packs}
}

// File puts a file into the bundle, and asks for it on the disk.
func (l *Lab) File(name string, mode uint32, content []byte) wire.FileWant {
	b := l.Add(content)
	return wire.FileWant{Path: filepath.Join(l.Files, name), Mode: mode, Digest: b.Digest, Size: b.Size}
}

// Process is a receiver in a process of its own.
type Process struct {
	*exec.Cmd
	In  io.WriteCloser
	Out io.Reader
	// sent is what a tee has kept.
	Sent bytes.Buffer
}

// Start starts a receiver. It is killed at the end of the test, if it still runs.
func (l *Lab) Start(t testing.TB) *Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{Cmd: exec.Command(exe)}
	// The race detector's runtime would wait a second at the end of each process.
	p.Env = append(os.Environ(), receiveEnv+"="+l.Files, "GORACE=atexit_sleep_ms=0")
	p.Stderr = os.Stderr
	if p.In, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if p.Out, err = p.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	return p
}

// Counter is a task that counts.
type Counter struct {
	mu           sync.Mutex
	Total, Count int64
	Ended        int
}

// Start is what a sender calls when it knows how many bytes are to come.
func (c *Counter) Start(total int64) progress.Task {
	c.Total = total
	return c
}

// Add counts n bytes.
func (c *Counter) Add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Count += n
}

// Quiet is the Start of senders whose progress nobody watches.
func Quiet(int64) progress.Task { return progress.Discard.Task("", 0) }

// Send runs one receiver to its end.
func (l *Lab) Send(t testing.TB, want wire.Want) (ship.Report, error) {
	t.Helper()
	p := l.Start(t)
	report, err := ship.ToOne(t.Context(), p.In, p.Out, want, l.Open, Quiet)
	if waitErr := p.Wait(); (waitErr == nil) != (err == nil) {
		t.Fatalf("send says %v, but the process %v", err, waitErr)
	}
	return report, err
}

// MustSend is Send, and proves what came of it.
func (l *Lab) MustSend(t testing.TB, want wire.Want) ship.Report {
	t.Helper()
	report, err := l.Send(t, want)
	if err != nil {
		t.Fatal(err)
	}
	l.ProveDone(t, want)
	return report
}

// ProveDone compares all that was wanted, byte for byte, and looks for anything left.
func (l *Lab) ProveDone(t testing.TB, want wire.Want) {
	t.Helper()
	var names []string
	for _, p := range want.Packs {
		names = append(names, filepath.Join(want.ImagesDir, p.Name))
		proveFile(t, names[len(names)-1], 0o644, l.Bytes(t, p))
	}
	for _, f := range want.Files {
		names = append(names, f.Path)
		proveFile(t, f.Path, fs.FileMode(f.Mode), l.Store[f.Digest])
	}
	for _, name := range l.Unfinished(t) {
		t.Errorf("%s was left behind", name)
	}
}

func proveFile(t testing.TB, name string, mode fs.FileMode, want []byte) {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: its %d bytes are not the %d that it should have", name, len(got), len(want))
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != mode {
		t.Errorf("%s: its mode is %s, not %s", name, info.Mode(), mode)
	}
}

// ProveNotDone makes sure that nothing has a final name.
func (l *Lab) ProveNotDone(t testing.TB, want wire.Want) {
	t.Helper()
	for _, p := range want.Packs {
		if _, err := os.Lstat(filepath.Join(l.Images, p.Name)); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s has its final name (%v)", p.Name, err)
		}
	}
	for _, f := range want.Files {
		if _, err := os.Lstat(f.Path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s has its final name (%v)", f.Path, err)
		}
	}
}

// Unfinished lists the files that have no final name, sorted.
func (l *Lab) Unfinished(t testing.TB) []string {
	t.Helper()
	var found []string
	for _, dir := range []string{l.Images, l.Files} {
		err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(p, wire.PartSuffix) {
				found = append(found, p)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// Flip changes one byte of a file.
func Flip(t testing.TB, name string, offset int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, offset); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Skip counts n bytes as if they had gone.
func (c *Counter) Skip(n int64) { c.Add(n) }

// Done counts the ends.
func (c *Counter) Done(error) { c.Ended++ }
