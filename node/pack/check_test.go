//go:build linux

package pack_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/nodelab"
)

func TestCheck(t *testing.T) {
	s := nodelab.Store{}
	layer := nodelab.Random(1, 3_000_000)
	good := s.Pack(t, "a", layer, nodelab.Random(2, 10), nil)
	// without returns the pack without one of its blobs.
	without := func(i int) wire.PackWant {
		p := good
		p.Blobs = append(append([]wire.Blob{}, good.Blobs[:i]...), good.Blobs[i+1:]...)
		return p
	}
	multi := func(carried bool) wire.PackWant {
		index := s.Add([]byte(`{"manifests":[{"digest":"` + string(digest.FromString("other platform")) + `","size":5},` +
			`{"digest":"` + string(good.Blobs[0].Digest) + `","size":` + itoa(good.Blobs[0].Size) + `}]}`))
		top := []byte(`{"manifests":[{"digest":"` + string(index.Digest) + `","size":` + itoa(index.Size) + `}]}`)
		p := wire.PackWant{Name: wire.PackName("a", top), Index: top, Blobs: []wire.Blob{index}}
		if carried {
			p.Blobs = append(p.Blobs, good.Blobs...)
		}
		return p
	}
	broken := wire.PackWant{Index: []byte("no JSON")}
	broken.Name = wire.PackName("a", broken.Index)
	tests := []struct {
		name   string
		pack   wire.PackWant
		change func([]byte) []byte
		want   string // in the problems; "" when there are none
	}{
		{"good", good, nil, ""},
		{"one platform of several", multi(true), nil, ""},
		{"no platform of several", multi(false), nil, "none of them is there"},
		{"flipped byte", good, func(b []byte) []byte { b[2_000_000] ^= 1; return b },
			"blob " + digest.FromBytes(layer).String()},
		{"flipped header", good, func(b []byte) []byte { b[3] ^= 1; return b }, "malformed"},
		{"cut off", good, func(b []byte) []byte { return b[:len(b)-512] }, "malformed"},
		{"empty", good, func([]byte) []byte { return nil }, "malformed"},
		{"manifest missing", without(0), nil, "names manifest"},
		{"configuration missing", without(1), nil, "names blob"},
		{"layer missing", without(2), nil, "names blob"},
		{"name of another", func() wire.PackWant { p := good; p.Name = "boxlift-a-0123456789ab.tar"; return p }(), nil,
			"its name"},
		{"index is no JSON", broken, nil, "decode index.json"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			content := s.Bytes(t, test.pack)
			if test.change != nil {
				content = test.change(content)
			}
			for name, content := range map[string][]byte{
				test.pack.Name:                     content,
				"boxlift-a-0123456789ab.tar.part":  []byte("unfinished"),
				"k3s-airgap-images-amd64.tar.zst":  []byte("somebody else's"),
				"boxlift-a-0123456789ab.tar.other": nil,
			} {
				if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			report, err := pack.Check(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Packs) != 1 {
				t.Fatalf("%d packs were checked, want 1", len(report.Packs))
			}
			p := report.Packs[0]
			problems := strings.Join(p.Problems, "\n")
			if report.OK != (test.want == "") || (problems == "") != (test.want == "") ||
				!strings.Contains(problems, test.want) {
				t.Errorf("ok is %v, the problems are %q, want %q", report.OK, problems, test.want)
			}
			if test.name == "good" {
				want := pack.State{Name: good.Name, Size: int64(len(content)), Digest: digest.FromBytes(good.Index), Blobs: 5}
				if diff := cmp.Diff(want, p); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func TestCheckEndsWithItsContext(t *testing.T) {
	l := nodelab.New(t)
	l.MustSend(t, l.Want(l.Pack(t, "a", nodelab.Random(3, 1000))))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pack.Check(ctx, l.Images); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}
