package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/programs"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/sitetest"
)

func TestOldPacksReason(t *testing.T) {
	goes := func(kind images.PruneKind, size int64) images.PruneItem {
		return images.PruneItem{Kind: kind, Name: "x", Size: size, Remove: true}
	}
	stays := images.PruneItem{Kind: images.PrunePack, Name: "y", Size: 1 << 40}
	tests := map[string]struct {
		items []images.PruneItem
		want  string
	}{
		"nothing":   {nil, ""},
		"all stays": {[]images.PruneItem{stays}, ""},
		"a file": {[]images.PruneItem{stays, goes(images.PruneFile, 512)},
			"neither this release nor the previous one needs 0 packs, 0 images and 1 file: 512 B"},
		"programs": {
			[]images.PruneItem{goes(images.PruneData, 1<<20)},
			"neither this release nor the previous one needs 0 packs, 0 images, 0 files and 1 folder of k3s' programs: 1.0 MiB",
		},
		"packs and more": {[]images.PruneItem{goes(images.PrunePack, 1<<30), goes(images.PrunePack, 1<<29),
			goes(images.PruneImage, 1<<29), stays},
			"neither this release nor the previous one needs 2 packs, 1 image and 0 files: 2.0 GiB"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := oldPacksReason(images.PruneReport{Items: test.items}); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Only the whole of an installation makes a release.
func TestMakesRelease(t *testing.T) {
	tests := map[string]struct {
		change func(*installation)
		want   bool
	}{
		"install":       {func(*installation) {}, true},
		"only liteboxd": {func(in *installation) { in.engine.Scope = run.OnlyLiteBoxd }, false},
		"skip liteboxd": {func(in *installation) { in.engine.Scope = run.WithoutLiteBoxd }, false},
		"node add":      {func(in *installation) { in.engine.Only = []string{"10.0.0.12"} }, false},
		"a host failed": {func(in *installation) { in.site.Hosts[1].Err = errors.New("it failed") }, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := example(t, sitetest.ExampleConfig, "k3s=v1.36.4+k3s1")
			test.change(in)
			if got := in.importer.makesRelease(); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

// prune is boxlift-node prune, which works in the fake's folder and with the stand-in for containerd.
func prune(ctx context.Context, c *hosttest.Call) int {
	if len(c.Args) != 1 || c.Args[0] != "prune" {
		return UsageExit
	}
	document, err := io.ReadAll(c.Stdin)
	var request images.PruneRequest
	if err == nil {
		request, err = images.ParsePruneRequest(document)
	}
	var report images.PruneReport
	if err == nil {
		report, err = images.Prune(ctx, images.PruneOptions{
			ImagesDir: c.Host.Path(wire.ImagesDir), FilesDir: c.Host.Path(wire.FilesDir),
			DataDir: c.Host.Path(programs.DefaultDir),
			Ctr:     []string{c.Host.Path(ctrFile), c.Host.Path(containerdDir)},
		}, request)
	}
	if err == nil {
		err = json.NewEncoder(c.Stdout).Encode(report)
	}
	if err != nil {
		_, _ = fmt.Fprintln(c.Stderr, "boxlift-node: prune:", err)
		return 1
	}
	return 0
}

// What neither the current release nor the previous one needs goes from a host, when that is asked for, and no more.
func TestPrune(t *testing.T) {
	f, in := started(t)
	h := in.site.Hosts[0]
	newer := h.Packs[0]
	older, content := packOf(t, "older", pause, "docker.io/liteboxd/api:v1")
	f.WriteFile(t, wire.ImagesDir+"/"+site.PackName(older), string(content), 0o600)
	ask(t, f, "images", "import", "--no-unpack", f.Path(wire.ImagesDir+"/"+site.PackName(older)))
	ask(t, f, "images", "label", "docker.io/liteboxd/api:v1", "io.cri-containerd.pinned=pinned")
	ask(t, f, "images", "import", "--no-unpack",
		f.Path(wire.ImagesDir+"/"+site.PackName(newer))) // pause is this one's again
	const file = "k3s-0123456789ab"
	f.WriteFile(t, wire.FilesDir+"/files/"+file, "older", 0o755)
	f.Program("boxlift-node", prune)
	release := func(p bundle.Pack, files ...string) *images.Needs {
		return &images.Needs{ID: digest.FromString(p.Component), Packs: []string{site.PackName(p)}, Files: files}
	}
	for _, test := range []struct {
		name    string
		request images.PruneRequest
		want    string // of what goes
	}{
		{"the first release", images.PruneRequest{Release: release(older, file), Current: true, Remove: true}, ""},
		{"the second one", images.PruneRequest{Release: release(newer), Current: true, Remove: true}, ""},
		{"what nobody needs besides", images.PruneRequest{DropPrevious: true}, "1 pack, 1 image and 1 file"},
		{"it was only looked at", images.PruneRequest{DropPrevious: true, Remove: true}, "1 pack, 1 image and 1 file"},
		{"it has gone", images.PruneRequest{DropPrevious: true, Remove: true}, ""},
	} {
		test.request.Version = images.PruneVersion
		report, err := Prune(t.Context(), h, test.request)
		reason := oldPacksReason(report)
		if err != nil || (reason == "") != (test.want == "") || !strings.Contains(reason, test.want) {
			t.Errorf("%s: %q, %v, want %q", test.name, reason, err, test.want)
		}
		result := &Pruning{Hosts: []HostPruning{{}, {Items: report.Items, Bytes: report.Bytes()}}}
		if result.Empty() != (test.want == "") || (result.Bytes() == 0) != (test.want == "") {
			t.Errorf("%s: empty is %t, with %d bytes", test.name, result.Empty(), result.Bytes())
		}
	}
	left := map[string]bool{
		"the older pack":  f.ReadFile(t, wire.ImagesDir+"/"+site.PackName(older)) != "",
		"the newer pack":  f.ReadFile(t, wire.ImagesDir+"/"+site.PackName(newer)) != "",
		"its image":       f.ReadFile(t, imageFile(pause)) != "",
		"the older image": f.ReadFile(t, imageFile("docker.io/liteboxd/api:v1")) != "",
	}
	want := map[string]bool{"the older pack": false, "the newer pack": true, "its image": true,
		"the older image": false}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Error(diff)
	}
}

// What a host does not do, or answers in another form, is an error that says what to do about it.
func TestPruneFails(t *testing.T) {
	item := func(text string) string { return `{"version":1,"items":[` + text + `]}` }
	for _, test := range []struct {
		name    string
		program hosttest.Program
		want    string
	}{
		{"an older boxlift-node", hosttest.Fails(UsageExit, `unknown command "prune"`),
			"does not know old packs, since it is of an older boxlift"},
		{"none", hosttest.Fails(127, "not found"), "exit code 127"},
		{"a folder that nothing runs in", hosttest.Fails(126, "Permission denied"), "mounted noexec"},
		{"another run", hosttest.Fails(1, "boxlift-node: prune: another boxlift-node is at work there"),
			"another boxlift-node is at work there"},
		{"nothing", hosttest.Prints(""), "read what is to be removed"},
		{"another version", hosttest.Prints(`{"version":2,"items":[]}`),
			"boxlift-node is of another version than boxlift"},
		{"more than is known", hosttest.Prints(`{"version":1,"items":[],"run":"rm -rf /"}`),
			"read what is to be removed"},
		{"another kind", hosttest.Prints(item(`{"kind":"disk","name":"sda","size":1,"reason":"x"}`)),
			`an item is a "disk"`},
		{"less than nothing", hosttest.Prints(item(`{"kind":"pack","name":"a","size":-1,"reason":"x"}`)),
			"read what is to be removed"},
		{"more than there can be",
			hosttest.Prints(item(`{"kind":"pack","name":"a","size":9223372036854775807,"reason":"x"}`)),
			"read what is to be removed"},
		{"without end", hosttest.Prints(item(`{"kind":"pack","name":"` + strings.Repeat("x", 2<<20) + `"}`)),
			"read what is to be removed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := hosttest.New(t, "a")
			f.Program("boxlift-node", test.program)
			report, err := Prune(t.Context(), &site.Host{Conn: f}, images.PruneRequest{Version: images.PruneVersion})
			if err == nil {
				t.Fatalf("%+v", report)
			}
			text := err.Error() + strings.Join(fault.Hints(err), "")
			if !strings.Contains(text, test.want) || len(text) > 4<<10 || len(report.Items) > 0 {
				t.Errorf("%s, want %q", text, test.want)
			}
		})
	}
	f := hosttest.New(t, "a")
	f.Program("boxlift-node",
		hosttest.Prints(item(`{"kind":"pack","name":"a\u001b[2J","size":1,"remove":true,"reason":"\u009b1A"}`)))
	report, err := Prune(t.Context(), &site.Host{Conn: f}, images.PruneRequest{Version: images.PruneVersion})
	if err != nil || report.Items[0].Name != "a\ufffd[2J" || report.Items[0].Reason != "\ufffd1A" {
		t.Errorf("%+v, %v", report, err)
	}
}
