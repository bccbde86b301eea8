//go:build linux

package receive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/node/receive"
	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/nodelab"
)

func TestReceive(t *testing.T) {
	l := nodelab.New(t)
	want := l.Want(
		l.Pack(t, "k3s", nodelab.Random(1, 300_000), nodelab.Random(2, 511), nil),
		l.Pack(t, "cilium", nodelab.Random(3, 2_000_000), nodelab.Random(4, 512)))
	want.Files = []wire.FileWant{
		l.File("bin/k3s", 0o755, nodelab.Random(5, 700_001)),
		l.File("install.sh", 0o600, []byte("#!/bin/sh\n")),
	}
	p := l.Start(t)
	var c nodelab.Counter
	report, err := ship.ToOne(t.Context(), p.In, p.Out, want, l.Open, c.Start)
	if err != nil {
		t.Fatal(err)
	}
	l.ProveDone(t, want)
	names := []string{want.Packs[0].Name, want.Packs[1].Name, want.Files[0].Path, want.Files[1].Path}
	if diff := cmp.Diff(names, report.Placed); diff != "" {
		t.Error(diff)
	}
	if report.Blobs != len(l.Store) || report.Bytes != c.Total || c.Count != c.Total || c.Ended != 1 {
		t.Errorf("%d blobs and %d bytes travelled; there are %d blobs, %d of %d bytes were counted, "+
			"and the task ended %d times",
			report.Blobs, report.Bytes, len(l.Store), c.Count, c.Total, c.Ended)
	}

	// The mode is part of what is wanted, and can be set right without sending anything.
	if err := os.Chmod(want.Files[0].Path, 0o700); err != nil {
		t.Fatal(err)
	}
	again := l.MustSend(t, want)
	again.Space = nil
	if diff := cmp.Diff(ship.Report{Held: names}, again); diff != "" {
		t.Errorf("second run: %s", diff)
	}

	check, err := pack.Check(t.Context(), l.Images)
	if err != nil || !check.OK || len(check.Packs) != 2 {
		t.Errorf("check: %+v, %v", check, err)
	}
}

// cutter ends the connection after so many bytes.
type cutter struct {
	io.WriteCloser
	left    int
	written int
	cut     func()
}

func (c *cutter) Write(b []byte) (int, error) {
	whole := c.left >= len(b)
	n, err := c.WriteCloser.Write(b[:min(len(b), c.left)])
	c.left -= n
	c.written += n
	if whole {
		return n, err
	}
	c.cut()
	if err == nil {
		err = errors.New("cut")
	}
	return n, err
}

// tee keeps what is written.
type tee struct {
	io.WriteCloser
	copy *bytes.Buffer
}

func (w *tee) Write(b []byte) (int, error) {
	n, err := w.WriteCloser.Write(b)
	w.copy.Write(b[:n])
	return n, err
}

// rawBytes counts the bytes of blobs in what an operator sent.
func rawBytes(t testing.TB, sent []byte) int {
	t.Helper()
	total := 0
	for r := bytes.NewReader(sent); ; {
		m, err := wire.ReadFrame(r)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return total
		}
		if err != nil {
			t.Fatal(err)
		}
		if m.Data != nil {
			n, err := io.CopyN(io.Discard, r, m.Data.Size)
			if err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			total += int(n)
		}
	}
}

func bigWant(t testing.TB, l *nodelab.Lab) wire.Want {
	shared := nodelab.Random(10, 150_000)
	want := l.Want(
		l.Pack(t, "a", nodelab.Random(11, 400_000), shared, nodelab.Random(12, 90_000)),
		l.Pack(t, "b", nodelab.Random(13, 1000), shared, nodelab.Random(14, 250_000)))
	want.Files = []wire.FileWant{l.File("bin/tool", 0o755, nodelab.Random(15, 200_000))}
	return want
}

// distinct is how many bytes must travel at least.
func distinct(l *nodelab.Lab) int {
	n := 0
	for _, b := range l.Store {
		n += len(b)
	}
	return n
}

func TestCutConnectionsLoseNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	cuts, runs := 0, 0
	for cuts < 60 {
		l := nodelab.New(t)
		want := bigWant(t, l)
		travelled, frames := 0, 0
		for {
			p := l.Start(t)
			// Cuts within the first frame happen as well.
			in := &cutter{WriteCloser: &tee{WriteCloser: p.In, copy: &p.Sent}, left: rng.IntN(150_000)}
			in.cut = func() {
				if err := p.In.Close(); err != nil {
					t.Error(err)
				}
			}
			_, err := ship.ToOne(t.Context(), in, p.Out, want, l.Open, nodelab.Quiet)
			if waitErr := p.Wait(); (err == nil) != (waitErr == nil) {
				t.Fatalf("send says %v, the process says %v", err, waitErr)
			}
			raw := rawBytes(t, p.Sent.Bytes())
			travelled += raw
			frames += in.written - raw
			if err == nil {
				break
			}
			cuts++
			var failure *wire.Failure
			if !errors.As(err, &failure) || failure.Reason != wire.ReasonInterrupted {
				t.Fatalf("got %v, want a failure because of an interruption", err)
			}
		}
		runs++
		l.ProveDone(t, want)
		if travelled != distinct(l) {
			t.Errorf("%d bytes travelled in all, and %d of frames; want the %d that there are", travelled, frames, distinct(l))
		}
	}
	t.Logf("%d cuts in %d deliveries", cuts, runs)
}

func TestKilledAtAnyMoment(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for kills := 0; kills < 50; {
		l := nodelab.New(t)
		want := bigWant(t, l)
		for {
			p := l.Start(t)
			in := &cutter{WriteCloser: p.In, left: rng.IntN(400_000)}
			in.cut = func() {
				time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
				if err := p.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
			_, err := ship.ToOne(t.Context(), in, p.Out, want, l.Open, nodelab.Quiet)
			waitErr := p.Wait()
			if err == nil && waitErr == nil {
				break
			}
			kills++
			// Whatever has its final name is whole.
			for _, w := range want.Packs {
				if got, err := os.ReadFile(filepath.Join(l.Images, w.Name)); err == nil && !bytes.Equal(got, l.Bytes(t, w)) {
					t.Fatalf("%s has its final name and is not whole", w.Name)
				}
			}
		}
		l.ProveDone(t, want)
	}
}

// An operator that has gone without a word must not keep the node's lock.
func TestReceiveGivesUpOnASilentOperator(t *testing.T) {
	l := nodelab.New(t)
	inR, inW := io.Pipe()
	defer func() { _ = inW.Close() }()
	err := receive.Run(t.Context(), inR, io.Discard,
		receive.Options{FilesDir: l.Files, IdleTimeout: 50 * time.Millisecond})
	var failure *wire.Failure
	if !errors.As(err, &failure) || failure.Reason != wire.ReasonInterrupted ||
		!strings.Contains(failure.Text, "nothing came for 50ms") {
		t.Errorf("got %v, want an interruption", err)
	}
}

func TestTerminated(t *testing.T) {
	l := nodelab.New(t)
	want := bigWant(t, l)
	ctx, cancel := context.WithCancel(t.Context())
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- receive.Run(ctx, inR, outW, receive.Options{FilesDir: l.Files})
		_ = outW.Close()
	}()
	in := &cutter{WriteCloser: inW, left: 200_000}
	in.cut = cancel // and the stream stays open
	_, err := ship.ToOne(t.Context(), in, outR, want, l.Open, nodelab.Quiet)
	var failure *wire.Failure
	if !errors.As(err, &failure) || failure.Reason != wire.ReasonInterrupted {
		t.Errorf("send: %v", err)
	}
	if err := <-done; !errors.As(err, &failure) || failure.Reason != wire.ReasonInterrupted {
		t.Errorf("receive: %v", err)
	}
	l.ProveNotDone(t, want)
	l.MustSend(t, want)
}

func TestBlobsTravelOnce(t *testing.T) {
	l := nodelab.New(t)
	old, both, fresh := nodelab.Random(20, 100_000), nodelab.Random(21, 80_000), nodelab.Random(22, 60_000)
	l.MustSend(t, l.Want(l.Pack(t, "old", old)))

	a, b := l.Pack(t, "a", old, both), l.Pack(t, "b", both, fresh, old)
	want := l.Want(a, b)
	want.Files = []wire.FileWant{l.File("copy", 0o644, fresh)}
	report := l.MustSend(t, want)
	travelled := int64(len(both) + len(fresh))
	copied := int64(2*len(old) + len(both) + len(fresh))
	for _, p := range want.Packs { // manifest and config
		travelled += p.Blobs[0].Size + p.Blobs[1].Size
	}
	if report.Blobs != 6 || report.Bytes != travelled || report.Copied != copied {
		t.Errorf("%d blobs with %d bytes travelled and %d were copied; want 6, %d and %d", report.Blobs, report.Bytes,
			report.Copied, travelled, copied)
	}

	// A file that is there already is a source as well.
	want = l.Want(l.Pack(t, "c", fresh))
	want.Files = []wire.FileWant{l.File("copy", 0o644, fresh)}
	for _, p := range []wire.PackWant{a, b} {
		if err := os.Remove(filepath.Join(l.Images, p.Name)); err != nil {
			t.Fatal(err)
		}
	}
	if report := l.MustSend(t, want); report.Copied != int64(len(fresh)) || len(report.Held) != 1 {
		t.Errorf("got %+v, want a copy of the file", report)
	}
}

func TestDamagedCopiesOnTheNodeAreReplaced(t *testing.T) {
	l := nodelab.New(t)
	one, two, three := nodelab.Random(30, 100_000), nodelab.Random(31, 70_000), nodelab.Random(32, 50_000)
	old := l.Pack(t, "old", one, two)
	l.MustSend(t, l.Want(old))
	nodelab.Flip(t, filepath.Join(l.Images, old.Name), int64(bytes.Index(l.Bytes(t, old), two))+60_000)

	check, err := pack.Check(t.Context(), l.Images)
	if err != nil || check.OK || len(check.Packs) != 1 ||
		!strings.Contains(strings.Join(check.Packs[0].Problems, " "), string(digest.FromBytes(two))) {
		t.Errorf("check: %+v, %v", check, err)
	}

	// After the damaged blob come others that the stream holds, for this pack and the next.
	want := l.Want(l.Pack(t, "a", one, two, three), l.Pack(t, "b", three, two))
	p := l.Start(t)
	var c nodelab.Counter
	report, err := ship.ToOne(t.Context(), p.In, p.Out, want, l.Open, c.Start)
	if err != nil {
		t.Fatal(err)
	}
	l.ProveDone(t, want)
	if c.Count != c.Total {
		t.Errorf("%d of %d bytes were counted", c.Count, c.Total)
	}
	if diff := cmp.Diff([]string{want.Packs[0].Name, want.Packs[1].Name}, report.Placed); diff != "" {
		t.Error(diff)
	}
}

func TestWrongBytesInTheStream(t *testing.T) {
	l := nodelab.New(t)
	layer := nodelab.Random(40, 200_000)
	pack := l.Pack(t, "a", nodelab.Random(41, 1000), layer, nodelab.Random(42, 1000))
	want := l.Want(pack)
	d := digest.FromBytes(layer)
	wrong := bytes.Clone(layer)
	wrong[150_000] ^= 1
	l.Store[d] = wrong
	_, err := l.Send(t, want)
	var failure *wire.Failure
	if !errors.As(err, &failure) || failure.Reason != wire.ReasonContent || failure.Blob != d ||
		!strings.Contains(failure.Text, string(d)) {
		t.Fatalf("got %v, want a failure that names %s", err, d)
	}
	l.ProveNotDone(t, want)

	l.Store[d] = layer
	report := l.MustSend(t, want)
	if report.Bytes != int64(len(layer))+1000 {
		t.Errorf("%d bytes travelled again, want the blob that was wrong and the one after it", report.Bytes)
	}
}

// Whatever an unfinished file holds, the next run makes the right one of it.
func TestUnfinishedFilesAreNotTrusted(t *testing.T) {
	layers := [][]byte{nodelab.Random(50, 30_000), nodelab.Random(51, 40_000)}
	tests := []struct {
		name   string
		change func(good []byte) []byte
		// travels is how many of the layers' bytes must be sent.
		travels int64
	}{
		{"empty", func([]byte) []byte { return nil }, 70_000},
		{"complete", func(b []byte) []byte { return b }, 0},
		{"complete with more behind it", func(b []byte) []byte { return append(b, "more"...) }, 0},
		{"trailer missing", func(b []byte) []byte { return b[:len(b)-1] }, 0},
		{"cut in the last blob", func(b []byte) []byte { return b[:bytes.Index(b, layers[1])+10_000] }, 30_000},
		{"cut in a header", func(b []byte) []byte { return b[:bytes.Index(b, layers[1])-100] }, 40_000},
		{"first layer damaged", func(b []byte) []byte { b[bytes.Index(b, layers[0])+5] ^= 1; return b }, 70_000},
		{"last layer damaged", func(b []byte) []byte { b[bytes.Index(b, layers[1])+5] ^= 1; return b }, 40_000},
		{"header damaged", func(b []byte) []byte { b[bytes.Index(b, layers[1])-1] ^= 1; return b }, 40_000},
		// Only the end of the blob shows that its beginning is wrong; then it comes again.
		{"beginning of the last blob damaged", func(b []byte) []byte {
			at := bytes.Index(b, layers[1])
			b[at+5] ^= 1
			return b[:at+10_000]
		}, 70_000},
		{"beginning of the first blob damaged", func(b []byte) []byte {
			at := bytes.Index(b, layers[0])
			b[at+5] ^= 1
			return b[:at+10_000]
		}, 130_000},
		{"other things", func([]byte) []byte { return nodelab.Random(52, 100_000) }, 70_000},
		{"zeros", func(b []byte) []byte { clear(b); return b }, 70_000},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := nodelab.New(t)
			want := l.Want(l.Pack(t, "a", layers...))
			if err := os.MkdirAll(l.Images, 0o755); err != nil {
				t.Fatal(err)
			}
			part := test.change(l.Bytes(t, want.Packs[0]))
			if err := os.WriteFile(filepath.Join(l.Images, want.Packs[0].Name+wire.PartSuffix), part, 0o600); err != nil {
				t.Fatal(err)
			}
			report := l.MustSend(t, want)
			small := want.Packs[0].Blobs[0].Size + want.Packs[0].Blobs[1].Size
			if report.Bytes != test.travels && report.Bytes != test.travels+small {
				t.Errorf("%d bytes travelled, want those %d of the layers", report.Bytes, test.travels)
			}
		})
	}
}

func TestUnfinishedFileOfOtherContent(t *testing.T) {
	l := nodelab.New(t)
	older, newer := l.Want(), l.Want()
	older.Files = []wire.FileWant{l.File("k3s", 0o755, nodelab.Random(60, 300_000))}
	newer.Files = []wire.FileWant{l.File("k3s", 0o755, nodelab.Random(61, 300_000))}
	p := l.Start(t)
	in := &cutter{WriteCloser: p.In, left: 200_000}
	in.cut = func() { _ = p.In.Close() }
	if _, err := ship.ToOne(t.Context(), in, p.Out, older, l.Open, nodelab.Quiet); err == nil {
		t.Fatal("the connection was not cut")
	}
	if err := p.Wait(); err == nil {
		t.Fatal("the receiver saw no cut")
	}
	if n := len(l.Unfinished(t)); n != 1 {
		t.Fatalf("%d unfinished files are left, want 1", n)
	}
	if report := l.MustSend(t, newer); len(report.Removed) != 1 || report.Bytes != 300_000 {
		t.Errorf("got %+v, want the unfinished file removed and all of the new one sent", report)
	}
}

func TestStalePacksInTheMakingAreRemoved(t *testing.T) {
	l := nodelab.New(t)
	if err := os.MkdirAll(l.Images, 0o755); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(l.Images, "boxlift-k3s-0123456789ab.tar.part")
	others := []string{"k3s-airgap-images.tar.part", ".cache.json", "boxlift-k3s-0123456789ab.tar.part2"}
	for _, name := range append([]string{filepath.Base(stale)}, others...) {
		if err := os.WriteFile(filepath.Join(l.Images, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	report, err := l.Send(t, l.Want(l.Pack(t, "k3s", nodelab.Random(65, 100))))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{stale}, report.Removed); diff != "" {
		t.Error(diff)
	}
	for _, name := range others {
		if _, err := os.Stat(filepath.Join(l.Images, name)); err != nil {
			t.Errorf("somebody else's file: %v", err)
		}
	}
}

func TestTwoReceivesAtOnce(t *testing.T) {
	l := nodelab.New(t)
	want := l.Want(l.Pack(t, "a", nodelab.Random(70, 100_000)))
	first := l.Start(t)
	if err := wire.WriteFrame(first.In, wire.Message{Want: &want}); err != nil {
		t.Fatal(err)
	}
	if m, err := wire.ReadFrame(first.Out); err != nil || m.State == nil {
		t.Fatalf("first: %+v, %v", m, err)
	}
	_, err := l.Send(t, want)
	var failure *wire.Failure
	if !errors.As(err, &failure) || failure.Reason != wire.ReasonBusy {
		t.Errorf("second: %v, want a failure because the first is at work", err)
	}
	if err := first.In.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err == nil {
		t.Error("the first one did not fail at the end of its input")
	}
	l.MustSend(t, want)
}

func TestRefusedWants(t *testing.T) {
	l := nodelab.New(t)
	outside := filepath.Join(filepath.Dir(l.Files), "outside")
	good := l.Pack(t, "a", []byte("layer"))
	file := func(path string, change func(*wire.FileWant)) wire.Want {
		f := l.File("x", 0o644, []byte("content"))
		f.Path = path
		if change != nil {
			change(&f)
		}
		w := l.Want()
		w.Files = []wire.FileWant{f}
		return w
	}
	pack := func(change func(*wire.PackWant)) wire.Want {
		p := good
		p.Blobs = slices.Clone(p.Blobs)
		change(&p)
		return l.Want(p)
	}
	tests := []struct {
		name string
		want wire.Want
		text string
	}{
		{"version", wire.Want{Version: 1}, "version"},
		{"pack name with directory", pack(func(p *wire.PackWant) { p.Name = "../" + p.Name }), "expected a name like"},
		{"pack name of another index", pack(func(p *wire.PackWant) { p.Index = []byte("{}") }),
			"does not end with the digest"},
		{"pack name like a foreign file", pack(func(p *wire.PackWant) { p.Name = "k3s-airgap.tar" }), "expected a name like"},
		{"no index", pack(func(p *wire.PackWant) { p.Index = nil }), "index.json"},
		{"relative images directory", func() wire.Want { w := l.Want(good); w.ImagesDir = "images"; return w }(),
			"absolute path"},
		{"images directory with ..", func() wire.Want { w := l.Want(good); w.ImagesDir += "/../x"; return w }(),
			"absolute path"},
		{"no images directory", func() wire.Want { w := l.Want(good); w.ImagesDir = ""; return w }(), "absolute path"},
		{"not sha256", pack(func(p *wire.PackWant) {
			p.Blobs[0].Digest = "sha512:" + digest.Digest(strings.Repeat("0", 128))
		}), "sha256"},
		{"path as digest", pack(func(p *wire.PackWant) { p.Blobs[0].Digest = "sha256:../../etc" }), "sha256"},
		{"negative size", pack(func(p *wire.PackWant) { p.Blobs[0].Size = -1 }), "out of bounds"},
		{"huge size", pack(func(p *wire.PackWant) { p.Blobs[0].Size = 1 << 60 }), "out of bounds"},
		{"blob twice", pack(func(p *wire.PackWant) { p.Blobs = append(p.Blobs, p.Blobs[0]) }), "twice"},
		{"pack twice", l.Want(good, good), "twice"},
		{"too many", l.Want(make([]wire.PackWant, wire.MaxTargets+1)...), "more than"},
		{"file outside", file("/etc/passwd", nil), "not below"},
		{"file with ..", file(l.Files+"/../outside", nil), "absolute path"},
		{"the directory itself", file(l.Files, nil), "not below"},
		{"file in a directory of similar name", file(l.Files+"-too/x", nil), "not below"},
		{"relative file", file("x", nil), "absolute path"},
		{"line feed", file(l.Files+"/a\nb", nil), "control characters"},
		{"unfinished name", file(l.Files+"/x.part", nil), "unfinished"},
		{"set-uid", file(l.Files+"/x", func(f *wire.FileWant) { f.Mode = 0o4755 }), "mode"},
		{"file size", file(l.Files+"/x", func(f *wire.FileWant) { f.Size = -1 }), "size"},
		{"two sizes", func() wire.Want {
			w := file(l.Files+"/x", func(f *wire.FileWant) { f.Digest = good.Blobs[0].Digest })
			w.Packs = []wire.PackWant{good}
			return w
		}(), "in one place"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := receiveHere(t, l, test.want)
			var failure *wire.Failure
			if !errors.As(err, &failure) || failure.Reason != wire.ReasonRequest || !strings.Contains(failure.Text, test.text) {
				t.Errorf("got %v, want a refusal with %q", err, test.text)
			}
		})
	}
	for _, name := range []string{l.Images, l.Files, outside} {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made: %v", name, err)
		}
	}
}

// receive runs a receiver in this process.
func receiveHere(t testing.TB, l *nodelab.Lab, want wire.Want) (ship.Report, error) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := receive.Run(t.Context(), inR, outW, receive.Options{FilesDir: l.Files})
		_ = inR.Close()
		_ = outW.Close()
		done <- err
	}()
	report, err := ship.ToOne(t.Context(), inW, outR, want, l.Open, nodelab.Quiet)
	if receiveErr := <-done; (err == nil) != (receiveErr == nil) {
		t.Errorf("one end says %v, the other %v", err, receiveErr)
	}
	return report, err
}

func TestLinksDoNotLeadOut(t *testing.T) {
	l := nodelab.New(t)
	outside := t.TempDir()
	if err := os.MkdirAll(l.Files, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(l.Files, "link")); err != nil {
		t.Fatal(err)
	}
	want := l.Want()
	want.Files = []wire.FileWant{l.File("link/x", 0o644, []byte("content"))}
	if _, err := receiveHere(t, l, want); err == nil {
		t.Error("a link out of the directory was followed")
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("outside: %v, %v", entries, err)
	}
}

func mount(t *testing.T, target string, flags uintptr, options string) {
	t.Helper()
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("boxlift-test", target, "tmpfs", flags, options); err != nil {
		need.LeaveOut(t, fmt.Sprintf("mount a tmpfs: %v", err))
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(target, 0); err != nil {
			t.Errorf("unmount %s: %v", target, err)
		}
	})
}

func TestNotEnoughSpace(t *testing.T) {
	need.Root(t, "making a mount")
	l := nodelab.New(t)
	mount(t, l.Images, 0, "size=1m")
	want := l.Want(l.Pack(t, "a", nodelab.Random(80, 600_000)), l.Pack(t, "b", nodelab.Random(81, 600_000)))
	report, err := l.Send(t, want)
	var failure *wire.Failure
	if !errors.As(err, &failure) || failure.Reason != wire.ReasonSpace {
		t.Fatalf("got %v, want a failure because of space", err)
	}
	for _, part := range []string{l.Images, "1048576", "are needed", "are free"} {
		if !strings.Contains(failure.Text, part) {
			t.Errorf("%q does not say %q", failure.Text, part)
		}
	}
	if report.Bytes != 0 {
		t.Errorf("%d bytes travelled before that", report.Bytes)
	}
	l.ProveNotDone(t, want)
}

func TestDiskFillsUp(t *testing.T) {
	need.Root(t, "making a mount")
	l := nodelab.New(t)
	mount(t, l.Images, 0, "size=2m")
	want := l.Want(l.Pack(t, "a", nodelab.Random(82, 100_000), nodelab.Random(83, 1_200_000)))
	filler := filepath.Join(l.Images, "somebody-else")
	p := l.Start(t)
	filled := false
	_, err := ship.ToOne(t.Context(), p.In, p.Out, want, func(d digest.Digest, offset int64) (io.ReadCloser, error) {
		if !filled { // after the node has looked for space
			filled = true
			if err := os.WriteFile(filler, make([]byte, 1_000_000), 0o600); err != nil {
				t.Error(err)
			}
		}
		return l.Open(d, offset)
	}, nodelab.Quiet)
	var failure *wire.Failure
	if !errors.As(err, &failure) || failure.Reason != wire.ReasonSpace ||
		!strings.Contains(failure.Text, want.Packs[0].Name) {
		t.Fatalf("got %v, want a failure because of space that names the pack", err)
	}
	if err := p.Wait(); err == nil {
		t.Error("the process did not fail")
	}
	l.ProveNotDone(t, want)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if report := l.MustSend(t, want); report.Bytes >= 1_300_000 {
		t.Errorf("%d bytes travelled after the disk had been cleared: nothing was kept", report.Bytes)
	}
}

func TestReadOnlyFilesystem(t *testing.T) {
	need.Root(t, "making a mount")
	l := nodelab.New(t)
	mount(t, l.Images, syscall.MS_RDONLY, "")
	want := l.Want(l.Pack(t, "a", []byte("layer")))
	_, err := l.Send(t, want)
	var failure *wire.Failure
	if !errors.As(err, &failure) || failure.Reason != wire.ReasonReadOnly || !strings.Contains(failure.Text, l.Images) {
		t.Errorf("got %v, want a failure that names the read-only directory", err)
	}
	// The same where the directory is still to be made.
	want.ImagesDir = filepath.Join(l.Images, "deeper", "images")
	if _, err := l.Send(t, want); !errors.As(err, &failure) || failure.Reason != wire.ReasonReadOnly {
		t.Errorf("got %v, want a failure because of a read-only filesystem", err)
	}
}

func FuzzUnfinishedPack(f *testing.F) {
	f.Add([]byte{}, uint16(0))
	f.Add([]byte{1}, uint16(3000))
	f.Add([]byte("oci-layout"), uint16(0))
	f.Add(bytes.Repeat([]byte{0}, 600), uint16(2048))
	f.Fuzz(func(t *testing.T, change []byte, at uint16) {
		l := nodelab.New(t)
		want := l.Want(l.Pack(t, "a", nodelab.Random(90, 700), nil, nodelab.Random(91, 1500)))
		part := l.Bytes(t, want.Packs[0])
		cut := min(int(at), len(part))
		part = append(part[:cut], change...)
		if err := os.MkdirAll(l.Images, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(l.Images, want.Packs[0].Name+wire.PartSuffix), part, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := receiveHere(t, l, want); err != nil {
			t.Fatal(err)
		}
		l.ProveDone(t, want)
	})
}

// FuzzReceive lets anybody speak to a receiver: it may write only where it is allowed
// to, and must come to an end.
func FuzzReceive(f *testing.F) {
	seed := func(w wire.Want, more string) {
		var b bytes.Buffer
		if err := wire.WriteFrame(&b, wire.Message{Want: &w}); err != nil {
			f.Fatal(err)
		}
		f.Add(append(b.Bytes(), more...))
	}
	s := nodelab.Store{}
	seed(wire.Want{Version: wire.Version}, "")
	var more bytes.Buffer
	for _, m := range []wire.Message{{Alive: &wire.Alive{}}, {Peers: &wire.Peers{}},
		{Data: &wire.Data{Digest: digest.FromString("x"), Size: 1}}} {
		if err := wire.WriteFrame(&more, m); err != nil {
			f.Fatal(err)
		}
	}
	seed(wire.Want{Version: wire.Version}, more.String()+"x")
	// Not absolute, so that whatever is made of it stays out of the machine.
	seed(wire.Want{Version: wire.Version, ImagesDir: "images", Packs: []wire.PackWant{s.Pack(f, "a", []byte("x"))}}, "xyz")
	seed(wire.Want{Version: wire.Version,
		Files: []wire.FileWant{{Path: "/boxlift-fuzz/x", Digest: digest.FromString("x"), Size: 1}}}, "x")
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, input []byte) {
		// A want that would be accepted is not run: it may name any images directory, and any
		// address to listen on.
		if m, err := wire.ReadFrame(bytes.NewReader(input)); err == nil && m.Want != nil &&
			(m.Want.ImagesDir != "" || m.Want.Swarm != nil) && m.Want.Validate("/boxlift-fuzz") == nil {
			t.Skip()
		}
		dir := t.TempDir()
		var out bytes.Buffer
		err := receive.Run(t.Context(), bytes.NewReader(input), &out, receive.Options{FilesDir: filepath.Join(dir, "files")})
		last := wire.Message{}
		for {
			m, err := wire.ReadFrame(&out)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("it said something that is not a frame: %v", err)
			}
			last = m
		}
		if err == nil && last.Finished == nil || err != nil && last.Failure == nil {
			t.Fatalf("it ended with %v, but its last word was %+v", err, last)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "files" {
				t.Fatalf("it made %s", e.Name())
			}
		}
	})
}

// peak reads the largest resident set of a receiver, in bytes.
func peak(t testing.TB, status string) int64 {
	t.Helper()
	content, err := os.ReadFile(status)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(content), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatalf("no VmHWM in the status: %v", err)
	}
	return kib << 10
}

// BenchmarkReceive compares a receiver with cat, both in a process of their own that
// reads the same bytes from a pipe.
func BenchmarkReceive(b *testing.B) {
	const size = 256 << 20
	s := nodelab.Store{}
	layers := make([][]byte, 8)
	for i := range layers {
		layers[i] = nodelab.Random(uint64(100+i), size/len(layers))
	}
	l := &nodelab.Lab{Store: s}
	pack := s.Pack(b, "bench", layers...)
	b.Run("receive", func(b *testing.B) {
		b.SetBytes(size)
		status := filepath.Join(b.TempDir(), "status")
		b.Setenv(nodelab.PeakEnv, status)
		for b.Loop() {
			dir := b.TempDir()
			l.Images, l.Files = filepath.Join(dir, "images"), filepath.Join(dir, "files")
			p := l.Start(b)
			if _, err := ship.ToOne(b.Context(), p.In, p.Out, l.Want(pack), l.Open, nodelab.Quiet); err != nil {
				b.Fatal(err)
			}
			if err := p.Wait(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(peak(b, status))/(1<<20), "peak-MiB")
			b.ReportMetric(p.ProcessState.UserTime().Seconds()*1000, "user-ms")
			b.ReportMetric(p.ProcessState.SystemTime().Seconds()*1000, "sys-ms")
			if err := os.RemoveAll(dir); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, script := range []string{"cat >%s", "cat >%s; sync %[1]s"} {
		b.Run(strings.ReplaceAll(fmt.Sprintf(script, "f"), " ", ""), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				name := filepath.Join(b.TempDir(), "f")
				c := exec.Command("sh", "-c", fmt.Sprintf(script, name))
				in, err := c.StdinPipe()
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Start(); err != nil {
					b.Fatal(err)
				}
				for _, layer := range layers {
					for piece := range slices.Chunk(layer, 256<<10) {
						if _, err := in.Write(piece); err != nil {
							b.Fatal(err)
						}
					}
				}
				if err := errors.Join(in.Close(), c.Wait()); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(c.ProcessState.UserTime().Seconds()*1000, "user-ms")
				b.ReportMetric(c.ProcessState.SystemTime().Seconds()*1000, "sys-ms")
				if err := os.Remove(name); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
