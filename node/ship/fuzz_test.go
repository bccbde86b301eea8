//go:build linux

package ship_test

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node/ship"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/certificate"
	"github.com/liteboxd/boxlift/test/nodelab"
)

// discarded is the standard input of a node that reads all that it is sent.
type discarded struct{ io.Writer }

// ledger is the task of a node.
type ledger struct {
	progress.Task
	ended int
}

// FuzzSend lets anybody speak to the operator in a node's place. Each line becomes a frame: what frames are is
// FuzzFrame's.
func FuzzSend(f *testing.F) {
	s := nodelab.Store{}
	want := wire.Want{
		Version: wire.Version, ImagesDir: "/images",
		Packs: []wire.PackWant{s.Pack(f, "a", nodelab.Random(260, 300), nodelab.Random(261, 40))},
		Files: []wire.FileWant{{Path: "/files/x", Mode: 0o644, Digest: s.Add([]byte("file")).Digest, Size: 4}},
	}
	total, lacks := int64(4), []wire.Lack{{Digest: want.Files[0].Digest, Size: 4}}
	for _, b := range want.Packs[0].Blobs {
		total += b.Size
		lacks = append(lacks, wire.Lack{Digest: b.Digest, Size: b.Size})
	}
	say := func(messages ...wire.Message) []byte {
		var lines []byte
		for _, m := range messages {
			line, err := json.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			lines = append(append(lines, line...), '\n')
		}
		return lines
	}
	state := wire.Message{State: &wire.State{Missing: total}}
	placed := []wire.Message{{Placed: &wire.Placed{Name: want.Packs[0].Name}}, {Placed: &wire.Placed{Name: "/files/x"}}}
	end := wire.Message{Finished: &wire.Finished{}}
	f.Add(say(state, wire.Message{Lacks: &wire.Lacks{Blobs: lacks}}, placed[0], placed[1], end))
	f.Add(say(wire.Message{State: &wire.State{Held: []string{"/files/x", want.Packs[0].Name}}}, end))
	f.Add(say(state, wire.Message{Pulled: &wire.Pulled{Bytes: 40}}, wire.Message{Pulled: &wire.Pulled{Bytes: -40}}, end))
	f.Add(say(state, wire.Message{Lacks: &wire.Lacks{Blobs: lacks[:1], Again: 4}},
		wire.Message{Lacks: &wire.Lacks{Blobs: lacks[:1]}}, placed[1]))
	f.Add(say(state, wire.Message{Trouble: &wire.Trouble{Peer: "b", Text: "\x1b[2J"}},
		wire.Message{Failure: &wire.Failure{Reason: wire.ReasonReadOnly, Text: "no"}}))
	shown, _, err := certificate.New()
	if err != nil {
		f.Fatal(err)
	}
	block, _ := pem.Decode(shown)
	f.Add(say(wire.Message{State: &wire.State{Serving: &wire.Serving{Address: "127.0.0.1:1",
		Certificate: block.Bytes}}}, end))
	f.Fuzz(func(t *testing.T, lines []byte) {
		var out bytes.Buffer
		for line := range bytes.Lines(lines) {
			n := len(line)
			out.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
			out.Write(line)
		}
		var in bytes.Buffer
		task, started := &ledger{Task: progress.Discard.Task("ship", total)}, 0
		report, err := ship.ToOne(t.Context(), discarded{&in}, &out, want, s.Open, func(n int64) progress.Task {
			if started++; n != total {
				t.Errorf("the task is of %d bytes, expected %d", n, total)
			}
			return task
		})
		if started != task.ended {
			t.Errorf("%d tasks were started, %d ended", started, task.ended)
		}
		if done := len(report.Held) + len(report.Placed); err == nil && done != 2 {
			t.Errorf("all is well, and the node has %d of 2: %+v", done, report)
		}
		for _, name := range slices.Concat(report.Held, report.Placed) {
			if err == nil && name != want.Packs[0].Name && name != "/files/x" {
				t.Errorf("it has %q, which nobody asked for", name)
			}
		}
		if report.Bytes < 0 || report.Bytes > int64(in.Len()) {
			t.Errorf("%d bytes travelled, and %d came", report.Bytes, in.Len())
		}
		if len(report.Troubles) > wire.MaxTroubles+1 {
			t.Errorf("%d troubles", len(report.Troubles))
		}
		words := report.NotServing
		for _, trouble := range report.Troubles {
			words += trouble.Peer + trouble.Text
		}
		if strings.ContainsFunc(words, unicode.IsControl) {
			t.Errorf("it is not fit to be shown: %q", words)
		}
	})
}

func (discarded) Close() error { return nil }

func (l *ledger) Done(error) { l.ended++ }
