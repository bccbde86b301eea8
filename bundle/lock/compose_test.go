package lock

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// moved is a component of another version: every address, tag and pin of what it has is
// another one, and there is one more of each kind.
func moved(c Component) Component {
	c = c.withoutLines()
	c.Version, c.UpgradesFrom = "v9.9.9", []string{">=9.8.0 <9.10.0"}
	for i := range c.Files {
		c.Files[i].URL, c.Files[i].SHA256, c.Files[i].Size = "https://example.com/v9/"+fmt.Sprint(i), shaB, 9
	}
	for i := range c.Charts {
		c.Charts[i].URL, c.Charts[i].SHA256, c.Charts[i].Size = "https://example.com/v9/chart.tgz", shaB, 9
	}
	for i, m := range c.Images {
		if m.Ref != "" {
			c.Images[i].Ref, c.Images[i].Digest = Repository(m.Ref)+":v9", "sha256:"+shaB
			continue
		}
		m := &c.Images[i]
		m.Archive, m.SHA256 = "https://example.com/v9/"+fmt.Sprint(i)+".tar.zst", shaB
		m.Size, m.Contents = 9, someContents()
	}
	c.Files = append(c.Files, File{Name: "new", URL: "https://example.com/new", SHA256: shaB, Size: 9})
	c.Charts = append(c.Charts, Chart{Name: "new", URL: "https://example.com/new.tgz", SHA256: shaB, Size: 9})
	c.Images = append(c.Images, Image{Ref: "example.com/new:v9", Digest: "sha256:" + shaB},
		Image{Archive: "https://example.com/new.tar.zst", Platform: "linux/amd64", SHA256: shaB, Size: 9,
			Contents: someContents()})
	return c
}

// TestUpdate moves components of locks in many styles; testdata/update.golden shows what
// they look like then, and the diffs.
func TestUpdate(t *testing.T) {
	project, err := os.ReadFile("../../versions.lock")
	if err != nil {
		t.Fatal(err)
	}
	head := "apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents:\n"
	var all strings.Builder
	for _, c := range []struct{ name, component, text string }{
		{"the project's k3s", "k3s", string(project)},
		{"the project's cilium", "cilium", string(project)},
		{"the project's liteboxd", "liteboxd", string(project)},
		{"nothing but a version", "a",
			head + "  # about a\n  a:\n    version: v1 # the version\n  # about b\n  b: {version: v1}\n"},
		{"in braces", "a", head + `  a: {version: "1.10", images: [{ref: "example.com/a:v1"}], charts: [] } # stays` +
			"\n"},
		{"one line of JSON", "c",
			`{"apiVersion":"boxlift.dev/v1","kind":"Lock","platforms":["linux/amd64"],"components":{"c":{"version":"v1","files":[{"name":"a","url":"https://a.b/c"}],"images":[{"ref":"docker.io/library/a:1"},{"archive":"https://a.b/c","platform":"linux/amd64"}]}}}`},
		{"comments in ranges", "a", head + "  a:\n    version: 1.0\n    upgradesFrom: # from\n    # which\n    - " +
			"'>=0.9.0 <1.1.0' # because\n    # end\n    charts:\n\n    -   name: a # the chart\n        url: " +
			"https://a.b/c\n        # end of the chart\n  b: {version: v1}\n"},
	} {
		for _, ends := range []string{"\n", "\r\n"} {
			d, err := ParseDocument("versions.lock", []byte(strings.ReplaceAll(c.text, "\n", ends)))
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			old := d.Lock()
			if err := d.Update(moved(*old.Component(c.component))); err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			got := string(d.Bytes())
			if strings.Count(got, "\r\n") != strings.Count(got, "\n")*(len(ends)-1) && strings.Contains(c.text, "\n") {
				t.Errorf("%s: the line ends differ", c.name)
			}
			wantComments(t, c.name, c.text, got)
			if ends == "\n" {
				all.WriteString("== " + c.name + "\n" + got + "-- diff\n")
				for _, change := range Diff(old, d.Lock()) {
					fmt.Fprintf(&all, "%s | %s | %s -> %s\n", change.Component, change.Entry, change.Old, change.New)
				}
			}
		}
	}
	golden(t, "update.golden", all.String())
}

// wantComments makes sure that every comment is still there, in its order.
func wantComments(t *testing.T, name, before, after string) {
	t.Helper()
	for line := range strings.Lines(before) {
		_, comment, ok := strings.Cut(line, "#")
		if !ok {
			continue
		}
		_, rest, ok := strings.Cut(after, "#"+strings.TrimRight(comment, "\n"))
		if !ok {
			t.Errorf("%s: the comment #%s is gone or out of order", name, comment)
			return
		}
		after = rest
	}
}

func TestUpdateRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Component)
		want   string
	}{
		"component": {func(c *Component) { c.Name = "x" },
			"update components.x in versions.lock: there is no such component"},
		"shorter":  {func(c *Component) { c.Files = c.Files[1:] }, "only people remove entries"},
		"unpinned": {func(c *Component) { c.Files[0].SHA256 = "" }, "cannot be edited"},
		"smuggled": {func(c *Component) { c.Files[0].SHA256 = shaB + ", size: 5" }, "is not a sha256"},
		"platform": {func(c *Component) { c.Platforms = []Platform{"linux/amd64"} }, "cannot be edited"},
		"version":  {func(c *Component) { c.Version = "v1\n    files: []" }, "update components.k3s in"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := ParseDocument("versions.lock", []byte(good))
			if err != nil {
				t.Fatal(err)
			}
			next := d.Lock().Component("k3s").withoutLines()
			c.change(&next)
			if err := d.Update(next); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if string(d.Bytes()) != good {
				t.Error("the document changed")
			}
		})
	}
}

// TestCompose writes a lock from nothing, with pins and without; what is added to a part of
// it gives the same lock.
func TestCompose(t *testing.T) {
	unpinned := goodLock()
	for _, c := range unpinned.Components {
		for i := range c.Files {
			c.Files[i].SHA256, c.Files[i].Size = "", 0
		}
		for i := range c.Images {
			c.Images[i].SHA256, c.Images[i].Size, c.Images[i].Contents, c.Images[i].Digest = "", 0, nil, ""
		}
	}
	var all strings.Builder
	for _, l := range []*Lock{goodLock(), unpinned} {
		d, err := Compose("versions.lock", "A lock.\n\nIt is new.", l.Platforms, l.Components)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(l.withoutLines(), d.Lock().withoutLines()); diff != "" {
			t.Errorf("lock (-want +got):\n%s", diff)
		}
		for i, c := range l.Components {
			rest := append(append([]Component{}, l.Components[:i]...), l.Components[i+1:]...)
			part, err := Compose("versions.lock", "A lock.\n\nIt is new.", l.Platforms, rest)
			if err != nil {
				t.Fatal(err)
			}
			if err := part.Add(c); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(d.Bytes()), string(part.Bytes())); diff != "" {
				t.Errorf("with %s added (-composed +added):\n%s", c.Name, diff)
			}
		}
		all.Write(d.Bytes())
		all.WriteString("-- diff\n")
		for _, change := range Diff(nil, d.Lock()) {
			fmt.Fprintf(&all, "%s | %s | %s -> %s\n", change.Component, change.Entry, change.Old, change.New)
		}
	}
	golden(t, "compose.golden", all.String())
}

func TestAddRefuses(t *testing.T) {
	for want, text := range map[string]string{
		"it is there already": good,
		"written in braces": "apiVersion: boxlift.dev/v1\nkind: Lock\nplatforms: [linux/amd64]\ncomponents: {a: " +
			"{version: v1}}\n",
	} {
		d, err := ParseDocument("versions.lock", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Add(Component{Name: "k3s", Version: "v1"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestDiffOfWhatIsGone(t *testing.T) {
	old, next := goodLock(), goodLock()
	next.Platforms = next.Platforms[:1]
	next.Components = next.Components[1:]
	next.Components[0].Images = next.Components[0].Images[1:]
	want := []Change{
		{Entry: "platforms", Old: "linux/amd64, linux/arm64/v8", New: "linux/amd64"},
		{Component: "cilium", Entry: "images quay.io/cilium/cilium", Old: "v1.20.0 sha256:aaaaaaaaaaaa"},
		{Component: "k3s", Entry: "version", Old: "v1.36.4+k3s1"},
	}
	got := Diff(old, next)
	if diff := cmp.Diff(want, got[:min(len(got), len(want))]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Diff(old, goodLock()); got != nil {
		t.Errorf("the same lock differs: %v", got)
	}
}
