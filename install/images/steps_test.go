package images

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/ocilayout"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const (
	containerdDir = site.K3sDataDir + "/agent/containerd"
	ctrFile       = "/usr/local/bin/ctr"
	pause         = "docker.io/rancher/mirrored-pause:3.6"
	coredns       = "docker.io/rancher/mirrored-coredns:1.14"
)

// packOf is a pack of images that have one layer each, and its file.
func packOf(t *testing.T, component string, names ...string) (bundle.Pack, []byte) {
	t.Helper()
	encode := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	type object = map[string]any
	describe := func(content []byte) object {
		return object{"mediaType": "x", "digest": digest.FromBytes(content), "size": len(content)}
	}
	var blobs [][]byte
	var manifests []any
	for _, name := range names {
		config, layer := []byte(`{"name":"`+name+component+`"}`), []byte("a layer of "+name+component)
		manifest := encode(object{"schemaVersion": 2, "config": describe(config), "layers": []any{describe(layer)}})
		entry := describe(manifest)
		entry["annotations"] = object{"io.containerd.image.name": name}
		manifests = append(manifests, entry)
		blobs = append(blobs, config, layer, manifest)
	}
	index := encode(object{"schemaVersion": 2, "manifests": manifests})
	return bundle.Pack{Component: component, Index: index}, ocilayout.Pack(t, index, blobs...)
}

// check is boxlift-node check --containerd, which works in the fake's folder and with the stand-in for containerd.
func check(ctx context.Context, c *hosttest.Call) int {
	o := images.Options{
		ImagesDir: c.Host.Path(wire.ImagesDir), FilesDir: c.Host.Path(wire.FilesDir),
		VerifiedFile: c.Host.Path(images.VerifiedFile), ContentDir: c.Host.Path(containerdDir + "/content"),
		Ctr:    []string{c.Host.Path(ctrFile), c.Host.Path(containerdDir)},
		Images: make(map[string]digest.Digest),
	}
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	containerd := flags.Bool("containerd", false, "")
	flags.BoolVar(&o.Digests, "digests", false, "")
	flags.BoolVar(&o.Pin, "pin", false, "")
	flags.BoolVar(&o.Repair, "repair", false, "")
	flags.Func("current", "", func(name string) error { o.Current = append(o.Current, name); return nil })
	flags.Func("image", "", func(text string) error {
		name, target, _ := strings.Cut(text, "@")
		o.Images[name] = digest.Digest(target)
		return nil
	})
	if len(c.Args) == 0 || c.Args[0] != "check" || flags.Parse(c.Args[1:]) != nil || !*containerd {
		return UsageExit
	}
	report, err := images.Check(ctx, o)
	if err == nil {
		err = json.NewEncoder(c.Stdout).Encode(report)
	}
	if err != nil {
		_, _ = fmt.Fprintln(c.Stderr, "boxlift-node: check:", err)
		return 1
	}
	return 0
}

// started is a server whose k3s has imported a pack of two images.
func started(t *testing.T) (*hosttest.Fake, *installation) {
	t.Helper()
	in := example(t, sitetest.ExampleConfig, "k3s=v1.36.4+k3s1")
	in.site.K3s = "v1.36.4+k3s1" // one that names images by their digests, too
	h := in.site.Hosts[0]
	f := hosttest.New(t, h.Name)
	h.Conn = f
	f.Program("boxlift-node", check)
	pack, content := packOf(t, "k3s", pause, coredns)
	h.Packs = []bundle.Pack{pack}
	f.WriteFile(t, wire.ImagesDir+"/"+site.PackName(pack), string(content), 0o600)
	f.WriteFile(t, wire.FilesDir+"/bin/boxlift-node", "", 0o755)
	f.WriteFile(t, ctrFile, ctr, 0o755)
	for _, name := range []string{"content", "images", "pins"} {
		if err := os.MkdirAll(f.Path(containerdDir+"/"+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ask(t, f, "images", "import", "--no-unpack", f.Path(wire.ImagesDir+"/"+site.PackName(pack)))
	for _, name := range []string{pause, coredns} {
		ask(t, f, "images", "tag", "--force", name, digestName(t, f, name))
		ask(t, f, "images", "label", name, "io.cri-containerd.pinned=pinned")
		ask(t, f, "images", "label", digestName(t, f, name), "io.cri-containerd.pinned=pinned")
	}
	return f, in
}

// ask has the stand-in for containerd do something.
func ask(t *testing.T, f *hosttest.Fake, args ...string) {
	t.Helper()
	args = append([]string{f.Path(containerdDir), "--namespace", "k8s.io"}, args...)
	if out, err := exec.CommandContext(t.Context(), f.Path(ctrFile), args...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
}

// imageFile is what a name stands for, in the stand-in.
func imageFile(name string) string {
	return containerdDir + "/images/" + strings.ReplaceAll(name, "/", "%")
}

// digestName is an image's name with its digest.
func digestName(t *testing.T, f *hosttest.Fake, name string) string {
	t.Helper()
	return name[:strings.LastIndex(name, ":")] + "@" + strings.TrimSpace(f.ReadFile(t, imageFile(name)))
}

// remove takes a file away.
func remove(t *testing.T, f *hosttest.Fake, name string) {
	t.Helper()
	if err := os.Remove(f.Path(name)); err != nil {
		t.Fatal(err)
	}
}

// blobOf is the file of an image's layer.
func blobOf(name string) string {
	return containerdDir + "/content/" + digest.FromString("a layer of "+name+"k3s").Encoded()
}

// broken are the ways in which images are not as the packs promise, and a part of what the step says of each.
var broken = []struct {
	name, why string
	change    func(*testing.T, *hosttest.Fake)
}{
	{"complete", "", func(*testing.T, *hosttest.Fake) {}},
	{"an image is gone", "containerd has no image " + pause, func(t *testing.T, f *hosttest.Fake) {
		remove(t, f, imageFile(pause))
	}},
	{"both are gone", "; containerd has no image ", func(t *testing.T, f *hosttest.Fake) {
		remove(t, f, imageFile(pause))
		remove(t, f, imageFile(coredns))
	}},
	{"another image has its name", "image " + pause + " is sha256:", func(t *testing.T, f *hosttest.Fake) {
		ask(t, f, "images", "tag", "--force", coredns, pause)
	}},
	{"the kubelet may delete it", coredns + " is not pinned", func(t *testing.T, f *hosttest.Fake) {
		ask(t, f, "images", "label", coredns, "io.cri-containerd.pinned=")
	}},
	{"no name with its digest", "image " + pause + " has no name ", func(t *testing.T, f *hosttest.Fake) {
		remove(t, f, imageFile(digestName(t, f, pause)))
	}},
	{"a damaged layer", "has bytes whose digest is", func(t *testing.T, f *hosttest.Fake) {
		f.WriteFile(t, blobOf(pause), strings.ReplaceAll(f.ReadFile(t, blobOf(pause)), "l", "L"), 0o600)
	}},
	{"half a layer", "has 3 bytes instead of", func(t *testing.T, f *hosttest.Fake) {
		f.WriteFile(t, blobOf(pause), "a l", 0o600)
	}},
	{"a layer is gone", "is not in containerd", func(t *testing.T, f *hosttest.Fake) { remove(t, f, blobOf(coredns)) }},
	{"a pack of another release", "has another image " + pause, func(t *testing.T, f *hosttest.Fake) {
		pack, content := packOf(t, "older", pause)
		f.WriteFile(t, wire.ImagesDir+"/"+site.PackName(pack), string(content), 0o600)
	}},
}

// Whatever is missing of an image, or wrong with it, is mended from the pack.
func TestImagesStep(t *testing.T) {
	for _, test := range broken {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Varies: []string{images.VerifiedFile},
				Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
					f, in := started(t)
					test.change(t, f)
					step := in.importer.ImagesStep(in.site.Hosts[0])
					// What it has read of containerd's content, boxlift-node notes at its first look.
					if _, err := step.Needed(t.Context()); err != nil {
						t.Fatal(err)
					}
					return f, step
				}})
		})
	}
}

// A boxlift-node that ends in the middle of a repair is an error, and the next one goes on.
func TestImagesStepEndsInBetween(t *testing.T) {
	const left = containerdDir + "/left"
	for _, test := range broken[1:] {
		t.Run(test.name, func(t *testing.T) {
			for n := range 20 {
				f, in := started(t)
				test.change(t, f)
				step := in.importer.ImagesStep(in.site.Hosts[0])
				f.WriteFile(t, left, fmt.Sprint(n), 0o600)
				err := step.Run(t.Context())
				if err != nil && !strings.Contains(err.Error(), "boxlift-node: check: ") {
					t.Fatalf("after %d changes: %v", n, err)
				}
				remove(t, f, left)
				if err == nil {
					return
				}
				if err := step.Run(t.Context()); err != nil {
					t.Fatalf("again, after %d changes: %v", n, err)
				}
				if reason, err := step.Needed(t.Context()); reason != "" || err != nil {
					t.Errorf("again, after %d changes, it is still needed: %q, %v", n, reason, err)
				}
			}
			t.Error("it does not come to an end")
		})
	}
}

// What cannot be mended from the packs is an error that says where to look.
func TestImagesStepFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*testing.T, *hosttest.Fake)
		want   string
	}{
		{"a damaged pack", func(t *testing.T, f *hosttest.Fake) {
			pack, content := packOf(t, "k3s", pause, coredns)
			f.WriteFile(t, wire.ImagesDir+"/"+site.PackName(pack), string(content[:len(content)/2]), 0o600)
		}, "k3s runs, but "},
		{"no boxlift-node", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Fails(127, "not found"))
		}, "exit code 127"},
		{"one of another version", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Fails(UsageExit,
				"boxlift-node: flag provided but not defined: -digests"))
		}, "flag provided but not defined: -digests"},
		{"no answer", func(_ *testing.T, f *hosttest.Fake) { f.Program("boxlift-node", hosttest.Prints("")) },
			"cannot be read"},
		{"half an answer", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Prints(`{"ok":true,`))
		}, "cannot be read"},
		{"another answer", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Prints(`{"ok":"yes"}`))
		}, "cannot be read"},
		{"an answer without end", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Prints(`{"ok":true,"packs":["`+strings.Repeat("x",
				machine.MaxKept)+`"]}`))
		}, "cannot be read"},
		{"not complete, and not why", func(_ *testing.T, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Prints(`{}`))
		}, "and not why"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, in := started(t)
			test.change(t, f)
			err := in.importer.ImagesStep(in.site.Hosts[0]).Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 4<<10 {
				t.Fatalf("%v, want %q", err, test.want)
			}
			if hints := strings.Join(fault.Hints(err), ""); strings.Contains(err.Error(), "k3s runs, but") &&
				!strings.Contains(hints, "journalctl -u k3s ") {
				t.Errorf("its hint is %q", hints)
			}
		})
	}
	_, in := started(t)
	steptest.Hostile(t, func(_ *testing.T, h machine.Host) run.Step {
		in.site.Hosts[0].Conn = h
		return in.importer.ImagesStep(in.site.Hosts[0])
	}, `{"problems":[`+strings.Repeat(`{"text":"\u001b[2J`+strings.Repeat("x", 9000)+`"},`, 90)+`{}]}`,
		`{"ok":true,"problems":[{"text":"\u001b"}]}`)
}

// A run that changes things waits for what k3s is importing, and then repairs.
func TestImagesStepWaits(t *testing.T) {
	f, in := started(t)
	remove(t, f, imageFile(pause))
	content := f.Path(containerdDir + "/content")
	if err := os.Rename(content, content+"-later"); err != nil {
		t.Fatal(err)
	}
	asked := 0
	f.Program("boxlift-node", func(ctx context.Context, c *hosttest.Call) int {
		if asked++; asked == 2 {
			if err := os.Rename(content+"-later", content); err != nil {
				return 3
			}
		}
		return check(ctx, c)
	})
	step := in.importer.ImagesStep(in.site.Hosts[0])
	if err := step.Run(t.Context()); err != nil || asked != 2 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	if reason, err := step.Needed(t.Context()); reason != "" || err != nil {
		t.Errorf("%q, %v", reason, err)
	}
	// One that never comes up is waited for until the run ends.
	if err := os.Rename(content, filepath.Join(filepath.Dir(content), "gone")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("the operator has ended the run")
	f.Program("boxlift-node", func(ctx context.Context, c *hosttest.Call) int {
		defer cancel(ended)
		return check(ctx, c)
	})
	if err := step.Run(ctx); !errors.Is(err, ended) {
		t.Errorf("%v", err)
	}
}

// What boxlift-node is asked says which release counts, and, of hosts that pull, what names stand for.
func TestWhatIsAskedOfContainerd(t *testing.T) {
	sum := digest.FromString("an image").String()
	for _, test := range []struct {
		name, config, k3s string
		host              int
		want              string
	}{
		{"a server", sitetest.ExampleConfig, "v1.36.4+k3s1", 0, "check --containerd --repair --current PACK --digests"},
		{"a k3s without digests", sitetest.ExampleConfig, "v1.34.2+k3s1", 0,
			"check --containerd --repair --current PACK"},
		{"an agent of boxlift's registry", sitetest.ExampleConfig + sitetest.OwnRegistry, "v1.36.4+k3s1", 1,
			"check --containerd --repair --current PACK --image " + pause + "@" + sum + " --digests"},
		{"a server of that registry", sitetest.ExampleConfig + sitetest.OwnRegistry, "v1.36.4+k3s1", 0,
			"check --containerd --repair --current PACK --digests"},
		{"one that pulls from another's",
			sitetest.ExampleConfig + strings.Replace(sitetest.Harbor, "  mode", "  agents: boot\n  mode", 1),
			"v1.36.4+k3s1", 1,
			"check --containerd --repair --current PACK --digests"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := example(t, test.config, "k3s="+test.k3s)
			in.site.K3s = test.k3s
			in.site.Contents.Images = []bundle.Image{
				{Name: pause, Digest: digest.Digest(sum)},
				{Name: "quay.io/x@" + sum, Digest: digest.Digest(sum)}, // asked for by digest
			}
			h := in.site.Hosts[test.host]
			f := hosttest.New(t, h.Name)
			h.Conn = f
			pack, _ := packOf(t, "k3s", pause)
			h.Packs = []bundle.Pack{pack}
			var asked string
			f.Program("boxlift-node", func(_ context.Context, c *hosttest.Call) int {
				asked = strings.Join(c.Args, " ")
				_, _ = io.WriteString(c.Stdout, `{"ok":true,"images":7}`)
				return 0
			})
			report, err := in.importer.awaitContainerd(t.Context(), h, "--repair")
			if err != nil || !report.OK || report.Images != 7 {
				t.Errorf("%+v, %v", report, err)
			}
			if diff := cmp.Diff(strings.Replace(test.want, "PACK", site.PackName(pack), 1), asked); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The first problems are shown, as far as they are fit for that.
func TestImagesReason(t *testing.T) {
	problems := func(n int, text string) []images.Problem {
		var list []images.Problem
		for i := range n {
			list = append(list, images.Problem{Text: fmt.Sprintf("%s %d", text, i)})
		}
		return list
	}
	for _, test := range []struct {
		name   string
		report images.Report
		want   string
	}{
		{"all is well", images.Report{OK: true}, ""},
		{"importing", images.Report{Pending: "k3s is importing boxlift-k3s.tar", Problems: problems(9, "lacks")},
			"k3s is importing boxlift-k3s.tar"},
		{"no reason", images.Report{}, "boxlift-node says that they are not complete, and not why"},
		{"one", images.Report{Problems: problems(1, "lacks")}, "lacks 0"},
		{"three", images.Report{Problems: problems(3, "lacks")}, "lacks 0; lacks 1; lacks 2"},
		{"many", images.Report{Problems: problems(50, "lacks")}, "lacks 0; lacks 1; lacks 2, and 47 more"},
		{"a hostile one", images.Report{Problems: problems(1, "\x1b[2J\r"+strings.Repeat("x", 300))},
			"\ufffd[2J " + strings.Repeat("x", 290) + "…"},
		{"a hostile wait", images.Report{Pending: "\x1b[2J\r" + strings.Repeat("x", 300)},
			"\ufffd[2J " + strings.Repeat("x", 290) + "…"},
	} {
		if got := imagesReason(test.report); got != test.want || printable.Text(got) != got {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
