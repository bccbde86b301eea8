package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/receive"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/smallbundle"
	"github.com/liteboxd/boxlift/test/steptest"
)

// shipping is a site with a bundle of one pack and two files, and fakes for its two hosts, which have boxlift-node.
func shipping(t *testing.T) (*installation, []*hosttest.Fake) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b.tar")
	layer := smallbundle.Layer(t, map[string]string{"pause": strings.Repeat("zz", 5000)})
	smallbundle.Write(t, path, smallbundle.Bundle{Components: []smallbundle.Component{{
		Name: site.K3sComponent, Version: "v1.36.4+k3s1",
		Files: []smallbundle.File{
			{Name: site.K3sProgram, Platform: "linux/amd64", Content: strings.Repeat("the program ", 1000)},
			{Name: site.InstallScript, Content: "#!/bin/sh\n"},
		},
		Images: []smallbundle.Image{{Ref: "docker.io/rancher/mirrored-pause:3.6", Platforms: []smallbundle.Platform{
			{Name: "linux/amd64", Layers: [][]byte{layer}},
		}}},
	}}})
	in := example(t, sitetest.ExampleConfig)
	in.site.Bundle = openBundle(t, path)
	var err error
	if in.site.Contents, err = in.site.Bundle.Contents(); err != nil {
		t.Fatal(err)
	}
	var fakes []*hosttest.Fake
	for _, h := range in.site.Hosts {
		f := hosttest.New(t, h.Name)
		h.Conn, h.Platform = f, "linux/amd64"
		if h.Packs, err = in.site.PacksFor(h); err != nil {
			t.Fatal(err)
		}
		f.WriteFile(t, wire.FilesDir+"/files/other-0123456789ab", "of another bundle", 0o755)
		f.Program("boxlift-node", receiver(-1))
		fakes = append(fakes, f)
	}
	return in, fakes
}

// receiver is boxlift-node receive, which loses its connection when it has read so many bytes, below 0 never.
func receiver(most int64) hosttest.Program {
	return func(ctx context.Context, c *hosttest.Call) int {
		in := c.Stdin
		if most >= 0 {
			in = io.LimitReader(in, most)
		}
		if !slices.Equal(c.Args, []string{"receive"}) {
			return 2
		}
		err := receive.Run(ctx, in, c.Stdout, receive.Options{FilesDir: c.Host.Path(wire.FilesDir)})
		if err != nil {
			_, _ = fmt.Fprintln(c.Stderr, "boxlift-node: receive:", err)
			return 1
		}
		return 0
	}
}

// wanted is what a host is to hold, as it is there, and with the paths that the fake's files have on this machine.
func (in *installation) wanted(t *testing.T, h *site.Host, f *hosttest.Fake) (there, here wire.Want) {
	t.Helper()
	there, err := in.seeder.WantedOn(h)
	if err != nil {
		t.Fatal(err)
	}
	here = there
	here.ImagesDir, here.Files = f.Path(there.ImagesDir), slices.Clone(there.Files)
	for i := range here.Files {
		here.Files[i].Path = f.Path(there.Files[i].Path)
	}
	return there, here
}

// What a host lacks is what is not there whole under its name.
func TestLacks(t *testing.T) {
	in, _ := shipping(t)
	h := in.site.Hosts[0]
	want, err := in.seeder.WantedOn(h)
	if err != nil {
		t.Fatal(err)
	}
	sizes, err := SizesOf(want)
	if err != nil || len(sizes) != 3 {
		t.Fatalf("%v, %v", sizes, err)
	}
	packName, script := want.ImagesDir+"/"+want.Packs[0].Name, want.Files[1].Path
	zeros := func(name string, less int64) func(*hosttest.Fake) {
		return func(f *hosttest.Fake) { f.WriteFile(t, name, strings.Repeat("0", int(sizes[name]-less)), 0o600) }
	}
	for _, test := range []struct {
		name   string
		make   []func(*hosttest.Fake)
		want   string
		copied int64
	}{
		{"an empty host", nil, "3 of 3 packs and files are missing", 0},
		{"a file is there", []func(*hosttest.Fake){zeros(script, 0)}, "2 of 3 packs", sizes[script]},
		{"half a pack", []func(*hosttest.Fake){zeros(script, 0), zeros(packName, 1)}, "2 of 3 packs", sizes[script]},
		{"a folder of that name", []func(*hosttest.Fake){zeros(packName+"/x", -10), zeros(script, 0)}, "2 of 3 packs",
			sizes[script]},
		{"all is there", []func(*hosttest.Fake){zeros(packName, 0), zeros(script, 0), zeros(want.Files[0].Path, 0)}, "",
			sizes[packName] + sizes[script] + sizes[want.Files[0].Path]},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := hosttest.New(t, h.Name)
			h.Conn, h.Copied = f, 17
			for _, change := range test.make {
				change(f)
			}
			before := f.Snapshot(t)
			reason, err := lacks(t.Context(), h, want)
			if err != nil || (reason == "") != (test.want == "") || !strings.Contains(reason, test.want) ||
				h.Copied != test.copied {
				t.Errorf("%q, %v, %d bytes, want %q and %d", reason, err, h.Copied, test.want, test.copied)
			}
			if f.Snapshot(t) != before {
				t.Error("looking has changed the host")
			}
			f.BreakAfter(0)
			if reason, err := lacks(t.Context(), h, want); !errors.Is(err, hosttest.ErrLost) || reason != "" {
				t.Errorf("without a connection: %q, %v", reason, err)
			}
		})
	}
	steptest.Hostile(t, func(_ *testing.T, conn machine.Host) run.Step {
		h.Conn = conn
		return (&shipment{host: h, want: want}).step(nil)
	}, "1 "+packName+"\n", "7 /etc/passwd\n\n -1 "+script+"\n")
	// What was not asked for, and what is said twice, counts for nothing.
	answer := fmt.Sprintf("%d %s\n7 /etc/passwd\n", sizes[script], script)
	h.Conn = hosttest.Liar{Output: []byte(strings.Repeat(answer, 5))}
	if reason, err := lacks(t.Context(), h, want); reason != "2 of 3 packs and files are missing" || err != nil ||
		h.Copied != sizes[script] {
		t.Errorf("%q, %v, %d bytes", reason, err, h.Copied)
	}
	h.Platform = "linux/riscv64"
	if _, err := in.seeder.WantedOn(h); err == nil || !strings.Contains(err.Error(), "no file k3s for linux/riscv64") {
		t.Errorf("a platform without k3s: %v", err)
	}
}

// Packs and files come to all hosts. One that fails fails alone, and what it has got so far is not sent again.
func TestSend(t *testing.T) {
	for _, test := range []struct {
		name  string
		agent hosttest.Program // the second host's boxlift-node, nil for one that works
		want  string           // a part of the agent's error
		hint  string
	}{
		{name: "both"},
		{name: "no boxlift-node", agent: hosttest.Fails(127, "boxlift-node: not found"),
			want: "exit code 127: boxlift-node: not found"},
		{name: "an old one", agent: hosttest.Fails(2, `boxlift-node: unknown command "receive"`),
			want: `unknown command "receive"`},
		{name: "one that says nothing", agent: hosttest.Prints(""), want: "ship the bundle's contents"},
		{name: "one that says something else", agent: hosttest.Prints("\x1b[2J"), want: "ship the bundle's contents"},
		{name: "it breaks off at its first word", agent: receiver(10), want: "the stream ended before it had said",
			hint: "what has arrived is kept"},
		{name: "it breaks off in the middle", agent: receiver(5000), want: "the stream ended at byte",
			hint: "what has arrived is kept"},
		{name: "a disk that is full", agent: refuses(wire.ReasonSpace), want: "no more of it",
			hint: "make room on that filesystem"},
		{name: "another run", agent: refuses(wire.ReasonBusy), want: "no more of it",
			hint: "wait for the other boxlift"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes := shipping(t)
			if test.agent != nil {
				fakes[1].Program("boxlift-node", test.agent)
			}
			send := func(places ...int) (ends []error, err error) {
				var shipments []*shipment
				ends = make([]error, len(fakes))
				for _, i := range places {
					h := in.site.Hosts[i]
					_, here := in.wanted(t, h, fakes[i])
					ends[i] = errors.New("its step did not end")
					shipments = append(shipments, &shipment{seeder: in.seeder, host: h, want: here,
						ended: func(err error) error { ends[i] = err; return nil }})
				}
				err = in.seeder.send(t.Context(), shipments)
				return ends, err
			}
			ends, err := send(0, 1)
			agent := in.site.Hosts[1]
			if test.agent != nil {
				if err == nil || agent.Err == nil || ends[1] == nil || agent.Shipped ||
					!strings.Contains(agent.Err.Error(), test.want) {
					t.Errorf("the agent: %v, its step ended with %v, want %q", agent.Err, ends[1], test.want)
				}
				if hints := strings.Join(fault.Hints(agent.Err), "\n"); !strings.Contains(hints, test.hint) {
					t.Errorf("its hint is %q, want %q", hints, test.hint)
				}
				if text := in.engine.HostErrors().Error(); strings.Contains(text, "\x1b") ||
					len(text) > 2*run.MaxHostError {
					t.Errorf("%d bytes are shown: %.100q", len(text), text)
				}
				agent.Err = nil
				fakes[1].Program("boxlift-node", receiver(-1))
				again, err := send(1)
				if err != nil || again[1] != nil {
					t.Fatalf("done again: %v, %v", err, again[1])
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if ends[0] != nil || in.site.Hosts[0].Err != nil {
				t.Errorf("the server: %v, its step ended with %v", in.site.Hosts[0].Err, ends[0])
			}
			for i, h := range in.site.Hosts {
				there, _ := in.wanted(t, h, fakes[i])
				if reason, err := lacks(t.Context(), h, there); reason != "" || err != nil || !h.Shipped {
					t.Errorf("%s: %q, %v", h.Name, reason, err)
				}
				if got := fakes[i].ReadFile(t, there.Files[0].Path); digest.FromString(got) != there.Files[0].Digest {
					t.Errorf("%s has %d other bytes as k3s", h.Name, len(got))
				}
				held, err := HeldBlobs(t.Context(), h)
				if err != nil || len(held) != len(there.Packs[0].Blobs) {
					t.Errorf("%s holds %d blobs, %v", h.Name, len(held), err)
				}
			}
		})
	}
}

// refuses is a boxlift-node that takes in nothing.
func refuses(reason wire.Reason) hosttest.Program {
	return func(_ context.Context, c *hosttest.Call) int {
		said := wire.Message{Failure: wire.Failuref(reason, "no more of it")}
		_ = wire.WriteFrame(c.Stdout, said) // the caller may have gone
		return 1
	}
}
