//go:build linux

package node_test

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
	"github.com/liteboxd/boxlift/node"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/ocilayout"
)

// With receiveEnv in its environment the test binary is a boxlift-node that receives;
// its value is the directory for files.
const receiveEnv = "BOXLIFT_TEST_RECEIVE_FILES"

// peakEnv names a file into which such a receiver writes its /proc/self/status at its end.
const peakEnv = "BOXLIFT_TEST_RECEIVE_STATUS"

// runMain runs the tests of a package, in whose processes [Lab.Start] makes receivers of the test binary.
func runMain(m *testing.M) {
	if dir, ok := os.LookupEnv(receiveEnv); ok {
		if err := node.Receive(context.Background(), os.Stdin, os.Stdout, node.ReceiveOptions{FilesDir: dir}); err != nil {
			os.Exit(1)
		}
		if name := os.Getenv(peakEnv); name != "" {
			status, err := os.ReadFile("/proc/self/status")
			if err != nil || os.WriteFile(name, status, 0o600) != nil {
				os.Exit(1)
			}
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// store is the operator's bundle: blobs by digest.
type store map[digest.Digest][]byte

func (s store) add(b []byte) wire.Blob {
	d := digest.FromBytes(b)
	s[d] = b
	return wire.Blob{Digest: d, Size: int64(len(b))}
}

func (s store) open(d digest.Digest, offset int64) (io.ReadCloser, error) {
	b, ok := s[d]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(b[offset:])), nil
}

// pack makes a pack of one image from its layers.
func (s store) pack(t testing.TB, component string, layers ...[]byte) wire.PackWant {
	t.Helper()
	type object = map[string]any
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	config := s.add(encode(object{"architecture": "amd64", "os": "linux", "component": component}))
	var blobs []wire.Blob
	for _, l := range layers {
		blobs = append(blobs, s.add(l))
	}
	manifest := s.add(encode(object{"schemaVersion": 2, "config": config, "layers": blobs}))
	index := encode(object{"schemaVersion": 2, "manifests": []wire.Blob{manifest}})
	return wire.PackWant{
		Name:  wire.PackName(component, index),
		Index: index,
		Blobs: append([]wire.Blob{manifest, config}, blobs...),
	}
}

// bytes returns the pack that must come out, made with nothing of the receiver's.
func (s store) bytes(t testing.TB, p wire.PackWant) []byte {
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

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b) // never fails
	return b
}

// lab is one node's disk.
type lab struct {
	store
	images, files string
}

func newLab(t testing.TB) *lab {
	dir := t.TempDir()
	return &lab{store: store{}, images: filepath.Join(dir, "agent", "images"), files: filepath.Join(dir, "boxlift")}
}

func (l *lab) want(packs ...wire.PackWant) wire.Want {
	return wire.Want{Version: wire.Version, ImagesDir: l.images, Packs: packs}
}

func (l *lab) file(name string, mode uint32, content []byte) wire.FileWant {
	b := l.add(content)
	return wire.FileWant{Path: filepath.Join(l.files, name), Mode: mode, Digest: b.Digest, Size: b.Size}
}

// process is a receiver in a process of its own.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out io.Reader
	// sent is what a tee has kept.
	sent bytes.Buffer
}

func (l *lab) start(t testing.TB) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(exe)}
	// The race detector's runtime would wait a second at the end of each process.
	p.Env = append(os.Environ(), receiveEnv+"="+l.files, "GORACE=atexit_sleep_ms=0")
	p.Stderr = os.Stderr
	if p.in, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if p.out, err = p.StdoutPipe(); err != nil {
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

// counter is a task that counts.
type counter struct {
	mu           sync.Mutex
	total, count int64
	ended        int
}

func (c *counter) start(total int64) progress.Task {
	c.total = total
	return c
}

func (c *counter) Add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += n
}

func quiet(int64) progress.Task { return progress.Discard.Task("", 0) }

// send runs one receiver to its end.
func (l *lab) send(t testing.TB, want wire.Want) (node.Report, error) {
	t.Helper()
	p := l.start(t)
	report, err := node.Send(t.Context(), p.in, p.out, want, l.open, quiet)
	if waitErr := p.Wait(); (waitErr == nil) != (err == nil) {
		t.Fatalf("send says %v, but the process %v", err, waitErr)
	}
	return report, err
}

func (l *lab) mustSend(t testing.TB, want wire.Want) node.Report {
	t.Helper()
	report, err := l.send(t, want)
	if err != nil {
		t.Fatal(err)
	}
	l.proveDone(t, want)
	return report
}

// proveDone compares all that was wanted, byte for byte, and looks for anything left.
func (l *lab) proveDone(t testing.TB, want wire.Want) {
	t.Helper()
	var names []string
	for _, p := range want.Packs {
		names = append(names, filepath.Join(want.ImagesDir, p.Name))
		proveFile(t, names[len(names)-1], 0o644, l.bytes(t, p))
	}
	for _, f := range want.Files {
		names = append(names, f.Path)
		proveFile(t, f.Path, fs.FileMode(f.Mode), l.store[f.Digest])
	}
	for _, name := range l.unfinished(t) {
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

// proveNotDone makes sure that nothing has a final name.
func (l *lab) proveNotDone(t testing.TB, want wire.Want) {
	t.Helper()
	for _, p := range want.Packs {
		if _, err := os.Lstat(filepath.Join(l.images, p.Name)); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s has its final name (%v)", p.Name, err)
		}
	}
	for _, f := range want.Files {
		if _, err := os.Lstat(f.Path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s has its final name (%v)", f.Path, err)
		}
	}
}

func (l *lab) unfinished(t testing.TB) []string {
	t.Helper()
	var found []string
	for _, dir := range []string{l.images, l.files} {
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

// flip changes one byte of a file.
func flip(t testing.TB, name string, offset int64) {
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
func (c *counter) Skip(n int64) { c.Add(n) }

// Done counts the ends.
func (c *counter) Done(error) { c.ended++ }
