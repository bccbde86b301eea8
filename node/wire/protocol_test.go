//go:build linux

package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/nodelab"
)

func TestFrames(t *testing.T) {
	messages := []wire.Message{
		{Want: &wire.Want{Version: 1, ImagesDir: "/images", Packs: []wire.PackWant{{Name: "p", Index: []byte{0, 0xff}}},
			Swarm: &wire.Swarm{Address: "10.0.0.1:0", Token: []byte{1}}}},
		{Peers: &wire.Peers{
			Peers:    []wire.Peer{{Name: "a", Serving: wire.Serving{Address: "10.0.0.1:1", Certificate: []byte{1}}}},
			Operator: []digest.Digest{digest.FromString("x")},
		}},
		{Data: &wire.Data{Digest: digest.FromString("x"), Offset: 1, Size: 2}},
		{Alive: &wire.Alive{}},
		{State: &wire.State{Held: []string{"p"}, Missing: 1,
			Serving: &wire.Serving{Address: "10.0.0.1:1", Certificate: []byte{1}}}},
		{Pulled: &wire.Pulled{Bytes: -1}},
		{Trouble: &wire.Trouble{Peer: "a", Text: "text", Damaged: true}},
		{Lacks: &wire.Lacks{Blobs: []wire.Lack{{Digest: digest.FromString("x"), Size: 3, Offset: 1}}}},
		{Placed: &wire.Placed{Name: "p"}},
		{Finished: &wire.Finished{Received: 1, Copied: 2}},
		{Failure: &wire.Failure{Reason: wire.ReasonIO, Text: "text"}},
	}
	var b bytes.Buffer
	for _, m := range messages {
		if err := wire.WriteFrame(&b, m); err != nil {
			t.Fatal(err)
		}
	}
	b.WriteString("raw")
	for _, want := range messages {
		got, err := wire.ReadFrame(&b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if b.String() != "raw" {
		t.Errorf("%q is left, want the bytes after the frames", b.String())
	}
	if err := wire.WriteFrame(&b, wire.Message{}); err == nil {
		t.Error("an empty frame was written")
	}
	long := wire.Failure{Text: strings.Repeat("x", wire.MaxFrame)}
	if err := wire.WriteFrame(&b, wire.Message{Failure: &long}); err == nil {
		t.Error("a frame that is too long was written")
	}
}

func TestMalformedFrames(t *testing.T) {
	frame := func(s string) string {
		return string([]byte{0, 0, byte(len(s) >> 8), byte(len(s))}) + s
	}
	tests := []struct {
		name, input string
		want        error
	}{
		{"nothing", "", io.EOF},
		{"part of a length", "\x00\x00", io.ErrUnexpectedEOF},
		{"part of a frame", frame(`{"placed":{"name":"x"}}`)[:10], io.ErrUnexpectedEOF},
		{"a length and nothing", "\x00\x00\x00\x05", io.ErrUnexpectedEOF},
		{"a login message", "Welcome to this host\n", wire.ErrProtocol},
		{"longest length", "\xff\xff\xff\xff", wire.ErrProtocol},
		{"empty", frame(""), wire.ErrProtocol},
		{"no object", frame("[]"), wire.ErrProtocol},
		{"null", frame("null"), wire.ErrProtocol},
		{"nothing said", frame("{}"), wire.ErrProtocol},
		{"two things", frame(`{"placed":{"name":"x"},"finished":{"received":1,"copied":1}}`), wire.ErrProtocol},
		{"unknown member", frame(`{"placed":{"name":"x","more":1}}`), wire.ErrProtocol},
		{"unknown message", frame(`{"hello":{}}`), wire.ErrProtocol},
		{"more after the object", frame(`{"placed":{"name":"x"}} {}`), wire.ErrProtocol},
		{"wrong type", frame(`{"placed":{"name":1}}`), wire.ErrProtocol},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := wire.ReadFrame(strings.NewReader(test.input)); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x17" + `{"placed":{"name":"x"}}`))
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, input []byte) {
		m, err := wire.ReadFrame(bytes.NewReader(input))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := wire.WriteFrame(&b, m); err != nil {
			t.Fatal(err)
		}
		again, err := wire.ReadFrame(&b)
		if err != nil {
			t.Fatal(err)
		}
		first, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		second, err := json.Marshal(again)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Fatalf("%s became %s", first, second)
		}
	})
}

// Whatever is accepted names nothing outside the directories that it may write to.
func FuzzWant(f *testing.F) {
	s := nodelab.Store{}
	seed := func(w wire.Want) {
		b, err := json.Marshal(w)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	good := wire.Want{
		Version: wire.Version, ImagesDir: "/images", Packs: []wire.PackWant{s.Pack(f, "k3s", []byte("x"))},
		Files: []wire.FileWant{{Path: "/files/bin/x", Mode: 0o755, Digest: digest.FromString("x"), Size: 1}},
	}
	seed(good)
	bad := good
	bad.Files = []wire.FileWant{{Path: "/files/../etc/passwd", Digest: digest.FromString("x"), Size: 1}}
	seed(bad)
	f.Fuzz(func(t *testing.T, input []byte) {
		var w wire.Want
		if json.Unmarshal(input, &w) != nil || w.Validate("/files") != nil {
			return
		}
		for _, p := range w.Packs {
			if path.Base(p.Name) != p.Name || path.Join(w.ImagesDir, p.Name) != w.ImagesDir+"/"+p.Name {
				t.Fatalf("pack %q in %q", p.Name, w.ImagesDir)
			}
			if _, err := p.PackSize(); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range w.Files {
			if path.Clean(file.Path) != file.Path || !strings.HasPrefix(file.Path, "/files/") ||
				strings.HasSuffix(file.Path, wire.PartSuffix) {
				t.Fatalf("file %q", file.Path)
			}
		}
	})
}
