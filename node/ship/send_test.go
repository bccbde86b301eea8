//go:build linux

package ship_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// against runs ToOne against a node that is played by a function. The function's end
// closes both of the node's pipes, as a process' does.
func against(ctx context.Context, l *nodelab.Lab, want wire.Want, play func(in io.Reader, out io.Writer)) (
	ship.Report, error,
) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		play(inR, outW)
		_ = inR.Close()
		_ = outW.Close()
	}()
	report, err := ship.ToOne(ctx, inW, outR, want, l.Open, nodelab.Quiet)
	_ = outR.Close()
	<-done
	return report, err
}

func TestSendAgainstBadNodes(t *testing.T) {
	l := nodelab.New(t)
	pack := l.Pack(t, "a", nodelab.Random(1, 3_000_000))
	want := l.Want(pack)
	blob := pack.Blobs[2]
	say := func(w io.Writer, messages ...wire.Message) {
		for _, m := range messages {
			_ = wire.WriteFrame(w, m) // ToOne may have given up on this node
		}
	}
	lacks := func(blobs ...wire.Lack) wire.Message { return wire.Message{Lacks: &wire.Lacks{Blobs: blobs}} }
	all := wire.Lack{Digest: blob.Digest, Size: blob.Size}
	finished := wire.Message{Finished: &wire.Finished{}}
	state := wire.Message{State: &wire.State{}}
	readWant := func(r io.Reader) { _, _ = wire.ReadFrame(r) }
	// begin is what a good node does before it asks for anything.
	begin := func(r io.Reader, w io.Writer) {
		readWant(r)
		say(w, state)
		_, _ = wire.ReadFrame(r) // the peers
	}
	tests := []struct {
		name string
		play func(in io.Reader, out io.Writer)
		want string
	}{
		{"ends at once", func(io.Reader, io.Writer) {}, "ended"},
		{"ends after the want", func(in io.Reader, _ io.Writer) { readWant(in) }, "ended before it had said"},
		{"a shell speaks", func(_ io.Reader, out io.Writer) { _, _ = io.WriteString(out, "bash: no such command\n") },
			"protocol error"},
		{"finished at once", func(in io.Reader, out io.Writer) { readWant(in); say(out, finished) }, "did not begin with"},
		{"asks before its state", func(in io.Reader, out io.Writer) { readWant(in); say(out, lacks()) },
			"did not begin with"},
		{"its state twice", func(in io.Reader, out io.Writer) { begin(in, out); say(out, state) }, "did not begin with"},
		{"speaks like an operator", func(in io.Reader, out io.Writer) {
			begin(in, out)
			say(out, wire.Message{Alive: &wire.Alive{}})
		}, "only the operator"},
		{"complains for ever", func(in io.Reader, out io.Writer) {
			begin(in, out)
			for range wire.MaxTroubles + 1 {
				say(out, wire.Message{Trouble: &wire.Trouble{}})
			}
		}, "complains of its peers"},
		{"finished without the pack", func(in io.Reader, out io.Writer) { begin(in, out); say(out, lacks(), finished) },
			"did not name 1 of 1"},
		{"asks for an unknown blob", func(in io.Reader, out io.Writer) {
			begin(in, out)
			say(out, lacks(wire.Lack{Digest: digest.FromString("secret"), Size: 1}))
		}, "not as it was offered"},
		{"offset beyond the end", func(in io.Reader, out io.Writer) {
			begin(in, out)
			say(out, lacks(wire.Lack{Digest: blob.Digest, Size: blob.Size, Offset: blob.Size + 1}))
		}, "not as it was offered"},
		{"asks twice in one breath", func(in io.Reader, out io.Writer) { begin(in, out); say(out, lacks(all, all)) },
			"not as it was offered"},
		{"asks while it is fed", func(in io.Reader, out io.Writer) {
			begin(in, out)
			say(out, lacks(all), lacks(all), finished)
		}, "did not name 1 of 1"},
		{"asks for ever", func(in io.Reader, out io.Writer) {
			begin(in, out)
			for range 4*wire.MaxTargets + 1 {
				say(out, lacks())
			}
		}, "asked for blobs 1025 times"},
		{"places for ever", func(in io.Reader, out io.Writer) {
			begin(in, out)
			placed := wire.Message{Placed: &wire.Placed{Name: pack.Name}}
			say(out, lacks(), placed, placed)
		}, "or not again"},
		{"places something else", func(in io.Reader, out io.Writer) {
			begin(in, out)
			say(out, lacks(), wire.Message{Placed: &wire.Placed{Name: "/etc/passwd"}})
		}, "not to"},
		{"has something else", func(in io.Reader, out io.Writer) {
			readWant(in)
			say(out, wire.Message{State: &wire.State{Held: []string{"x"}}})
		}, "nobody asked for"},
		{"finished without the bytes", func(in io.Reader, out io.Writer) {
			begin(in, out)
			say(out, lacks(all), wire.Message{Placed: &wire.Placed{Name: pack.Name}}, finished)
		}, "did not take all bytes"},
		{"fails in the middle", func(in io.Reader, out io.Writer) {
			begin(in, out)
			say(out, lacks(all))
			_, _ = io.CopyN(io.Discard, in, 1_000_000)
			say(out, wire.Message{Failure: &wire.Failure{Reason: wire.ReasonIO, Text: "the disk is gone"}})
		}, "the disk is gone"},
		{"dies in the middle", func(in io.Reader, out io.Writer) {
			begin(in, out)
			say(out, lacks(all))
			_, _ = io.CopyN(io.Discard, in, 1_000_000)
		}, "ended"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := against(t.Context(), l, want, test.play)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}

func TestSendFailsOnItsOwnSide(t *testing.T) {
	l := nodelab.New(t)
	want := l.Want(l.Pack(t, "a", nodelab.Random(2, 100_000), nodelab.Random(3, 100_000)))
	for name, content := range map[string][]byte{"missing": nil, "too short": nodelab.Random(3, 50_000)} {
		d := want.Packs[0].Blobs[3].Digest
		good := l.Store[d]
		l.Store[d] = content
		if content == nil {
			delete(l.Store, d)
		}
		p := l.Start(t)
		_, err := ship.ToOne(t.Context(), p.In, p.Out, want, l.Open, nodelab.Quiet)
		var failure *wire.Failure
		if err == nil || errors.As(err, &failure) || !strings.Contains(err.Error(), d.String()) {
			t.Errorf("%s: got %v, want an error of this side that names the blob", name, err)
		}
		if err := p.Wait(); err == nil {
			t.Errorf("%s: the receiver saw nothing wrong", name)
		}
		l.Store[d] = good
	}
	// What had come before that is kept.
	if report := l.MustSend(t, want); report.Bytes > 100_000 {
		t.Errorf("%d bytes travelled once more", report.Bytes)
	}
}

func TestSendEndsWithItsContext(t *testing.T) {
	l := nodelab.New(t)
	want := l.Want(l.Pack(t, "a", nodelab.Random(4, 3_000_000)))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := against(ctx, l, want, func(in io.Reader, out io.Writer) {
		_, _ = wire.ReadFrame(in)
		_ = wire.WriteFrame(out, wire.Message{State: &wire.State{Missing: 3_000_000}})
		_, _ = wire.ReadFrame(in)
		lack := wire.Lack{Digest: want.Packs[0].Blobs[2].Digest, Size: 3_000_000}
		_ = wire.WriteFrame(out, wire.Message{Lacks: &wire.Lacks{Blobs: []wire.Lack{lack}}})
		cancel() // and never reads
		_, _ = io.Copy(io.Discard, bytes.NewReader(nil))
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

// A process that is not boxlift-node at all.
func TestSendToAnotherProgram(t *testing.T) {
	l := nodelab.New(t)
	want := l.Want(l.Pack(t, "a", nodelab.Random(5, 3_000_000)))
	for _, script := range []string{"true", "echo hello", "cat >/dev/null", "exec <&-; echo hello >&2; true"} {
		c := exec.Command("sh", "-c", script)
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if script == "cat >/dev/null" { // it never answers
			cancel()
		}
		if _, err := ship.ToOne(ctx, in, out, want, l.Open, nodelab.Quiet); err == nil {
			t.Errorf("%s: no error", script)
		}
		cancel()
		_ = c.Wait()
	}
}
