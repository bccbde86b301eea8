//go:build linux

package node_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/node"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/certificate"
)

// discarded is the standard input of a node that reads all that it is sent.
type discarded struct{ io.Writer }

func (discarded) Close() error { return nil }

// ledger is the task of a node.
type ledger struct {
	progress.Task
	ended int
}

func (l *ledger) Done(error) { l.ended++ }

// FuzzSend lets anybody speak to the operator in a node's place. Each line becomes a frame: what frames are is
// FuzzFrame's.
func FuzzSend(f *testing.F) {
	s := store{}
	want := wire.Want{
		Version: wire.Version, ImagesDir: "/images", Packs: []wire.PackWant{s.pack(f, "a", random(260, 300), random(261, 40))},
		Files: []wire.FileWant{{Path: "/files/x", Mode: 0o644, Digest: s.add([]byte("file")).Digest, Size: 4}},
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
	f.Add(say(state, wire.Message{Lacks: &wire.Lacks{Blobs: lacks[:1], Again: 4}}, wire.Message{Lacks: &wire.Lacks{Blobs: lacks[:1]}}, placed[1]))
	f.Add(say(state, wire.Message{Trouble: &wire.Trouble{Peer: "b", Text: "\x1b[2J"}}, wire.Message{Failure: &wire.Failure{Reason: wire.ReasonReadOnly, Text: "no"}}))
	shown, _, err := certificate.New()
	if err != nil {
		f.Fatal(err)
	}
	block, _ := pem.Decode(shown)
	f.Add(say(wire.Message{State: &wire.State{Serving: &wire.Serving{Address: "127.0.0.1:1", Certificate: block.Bytes}}}, end))
	f.Fuzz(func(t *testing.T, lines []byte) {
		var out bytes.Buffer
		for line := range bytes.Lines(lines) {
			n := len(line)
			out.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
			out.Write(line)
		}
		var in bytes.Buffer
		task, started := &ledger{Task: progress.Discard.Task("ship", total)}, 0
		report, err := node.Send(t.Context(), discarded{&in}, &out, want, s.open, func(n int64) progress.Task {
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

// FuzzCertificatesReport reads what a node says of its certificates.
func FuzzCertificatesReport(f *testing.F) {
	f.Add([]byte(`{"version":1,"certificates":[{"path":"/a.crt","subject":"CN=a","ca":true,"notBefore":"2026-01-02T03:04:05Z","notAfter":"2027-01-02T03:04:05Z"}],"problems":["b"]}`))
	f.Add([]byte(`{"version":1,"certificates":[]} x`))
	f.Add([]byte(`{"version":2,"certificates":null}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		r, err := node.ParseCertificatesReport(document)
		if err != nil {
			return
		}
		reread(t, r)
	})
}

// FuzzCertificates reads what lies where k3s has its certificates. What a node says of it, the operator can read.
func FuzzCertificates(f *testing.F) {
	good, _, err := certificate.New()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, false)
	f.Add([]byte("    client-certificate-data: "+base64.StdEncoding.EncodeToString(good)+"\n"), true)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), false)
	f.Add([]byte("client-certificate-data: AAAA\n"), true)
	f.Fuzz(func(t *testing.T, content []byte, kubeconfig bool) {
		name := "a.crt"
		if kubeconfig {
			name = "k3s.yaml"
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		r := node.Certificates(path)
		if len(r.Certificates)+len(r.Problems) != 1 {
			t.Errorf("one file makes %+v", r)
		}
		reread(t, r)
	})
}

// reread proves that a report is what a node would say.
func reread(t *testing.T, r node.CertificatesReport) {
	t.Helper()
	said, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := node.ParseCertificatesReport(said)
	if err != nil {
		t.Fatal(err)
	}
	second, err := json.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(said, second) {
		t.Errorf("%s became %s", said, second)
	}
}

// FuzzPack lets a pack on a host say anything, in an index.json that its name goes with and in a manifest.
// DIGEST and SIZE are the manifest's.
func FuzzPack(f *testing.F) {
	const index = `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"DIGEST","size":SIZE,` +
		`"annotations":{"io.containerd.image.name":"docker.io/library/a:1"}}]}`
	f.Add([]byte(index), []byte(`{"schemaVersion":2,"config":{"digest":"sha256:`+strings.Repeat("0", 64)+`","size":1},"layers":[]}`))
	f.Add([]byte(index), []byte(`{"schemaVersion":2,"manifests":[{"digest":"DIGEST","size":1,"platform":{"os":"linux","architecture":"amd64"}}]}`))
	f.Add([]byte(index), []byte(`{"manifests":[null],"layers":[{"digest":"../../etc/passwd","size":-1}]}`))
	f.Add([]byte(`{"manifests":[{"digest":"sha256:../x","size":9,"annotations":{"org.opencontainers.image.ref.name":"--help"}}]}`), []byte{})
	f.Fuzz(func(t *testing.T, index, manifest []byte) {
		l := newLab(t)
		blob := l.add(manifest)
		index = bytes.ReplaceAll(index, []byte("DIGEST"), []byte(blob.Digest))
		index = bytes.ReplaceAll(index, []byte("SIZE"), strconv.AppendInt(nil, int64(len(manifest)), 10))
		if len(index) == 0 || len(index) > wire.MaxIndex {
			t.Skip()
		}
		pack := wire.PackWant{Name: wire.PackName("a", index), Index: index, Blobs: []wire.Blob{blob}}
		if err := os.MkdirAll(l.images, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(l.images, pack.Name), l.bytes(t, pack), 0o600); err != nil {
			t.Fatal(err)
		}
		report, err := node.Check(t.Context(), l.images)
		if err != nil || len(report.Packs) != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		arrived, err := node.Arrived(node.ImagesOptions{ImagesDir: l.images, ContentDir: l.images}, os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if arrived.Blobs != 0 {
			t.Errorf("what the pack names was found outside of containerd's content: %+v", arrived)
		}
	})
}

// FuzzImageID reads what ctr prints of a container, whose labels and names are users'.
func FuzzImageID(f *testing.F) {
	f.Add([]byte(`{"Extensions":{"io.cri-containerd.container.metadata":{"value":"eyJWZXJzaW9uIjoidjEiLCJNZXRhZGF0YSI6eyJJbWFnZVJlZiI6InNoYTI1NjowMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwIn19"}}}`))
	f.Add([]byte(`{"Extensions":{"io.cri-containerd.container.metadata":{"value":"bnVsbA=="}}}`))
	f.Add([]byte(`{"Extensions":null}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		if id := node.ParseImageID(out); id != "" && (id.Validate() != nil || id.Algorithm() != digest.SHA256) {
			t.Errorf("%q is no digest", id)
		}
	})
}
