package bundle_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

func compare(t *testing.T, from, to smallbundle.Bundle) *bundle.Difference {
	t.Helper()
	d, err := bundle.Compare(bundletest.OpenNew(t, from), bundletest.OpenNew(t, to))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// changes lists a difference, one line each; + and - say that bytes are new or gone.
func changes(d *bundle.Difference) []string {
	var lines []string
	for _, c := range d.Components {
		lines = append(lines, strings.TrimSpace("component "+c.Name+" "+string(c.Change)+" "+c.From+" > "+c.To))
	}
	for _, items := range [][]bundle.ItemChange{d.Files, d.Images} {
		for _, i := range items {
			line := i.Component + " " + string(i.Change)
			if i.From != nil {
				line += " " + i.From.Name
			}
			if i.To != nil {
				line += " > " + i.To.Name
			}
			if i.New > 0 {
				line += " +"
			}
			if i.Gone > 0 {
				line += " -"
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func TestCompare(t *testing.T) {
	file := func(name, content string) smallbundle.File { return smallbundle.File{Name: name, Content: content} }
	image := func(ref string, platforms ...smallbundle.Platform) smallbundle.Image {
		return smallbundle.Image{Ref: ref, Platforms: platforms}
	}
	amd64, arm64 := bundletest.On(t, "linux/amd64", "base", "a"), bundletest.On(t, "linux/arm64", "base", "b")
	component := func(c smallbundle.Component) smallbundle.Component {
		if c.Name == "" {
			c.Name, c.Version = "k3s", "v1.0.0"
		}
		return c
	}
	tests := []struct {
		name     string
		from, to smallbundle.Component
		want     []string
	}{
		{"nothing", smallbundle.Component{Files: []smallbundle.File{file("k3s", "1")}},
			smallbundle.Component{Files: []smallbundle.File{file("k3s", "1")}}, nil},
		{"a file", smallbundle.Component{Files: []smallbundle.File{file("k3s", "1"), file("x", "x")}},
			smallbundle.Component{Files: []smallbundle.File{file("k3s", "2"), file("y", "x")}}, []string{
				"lock changed versions.lock > versions.lock + -", "k3s changed k3s > k3s + -", "k3s removed x",
				"k3s added > y",
			}},
		{"a chart of another version", smallbundle.Component{Name: "cilium", Version: "1.20.0",
			Charts: []smallbundle.File{file("cilium", "1")}},
			smallbundle.Component{Name: "cilium", Version: "1.20.1", Charts: []smallbundle.File{file("cilium", "2")}},
			[]string{
				"component cilium changed 1.20.0 > 1.20.1", "lock changed versions.lock > versions.lock + -",
				"cilium changed cilium-1.20.0.tgz > cilium-1.20.1.tgz + -",
			}},
		{"an image under another tag", smallbundle.Component{Images: []smallbundle.Image{image("r.lan/a:1", amd64),
			image("r.lan/b:1", amd64)}},
			smallbundle.Component{Images: []smallbundle.Image{image("r.lan/a:1", amd64), image("r.lan/b:2", amd64)}},
			[]string{
				"lock changed versions.lock > versions.lock + -", "k3s changed r.lan/b:1 > r.lan/b:2",
			}},
		{"which of several tags is not clear",
			smallbundle.Component{Images: []smallbundle.Image{image("r.lan/a:1", amd64)}},
			smallbundle.Component{Images: []smallbundle.Image{image("r.lan/a:2", amd64), image("r.lan/a:3", amd64)}},
			[]string{
				"lock changed versions.lock > versions.lock + -", "k3s removed r.lan/a:1", "k3s added > r.lan/a:2",
				"k3s added > r.lan/a:3",
			}},
		{"a platform more", smallbundle.Component{Images: []smallbundle.Image{image("r.lan:5000/a:1", amd64)}},
			smallbundle.Component{Images: []smallbundle.Image{image("r.lan:5000/a:1", amd64, arm64)}}, []string{
				"lock changed versions.lock > versions.lock + -", "k3s changed r.lan:5000/a:1 > r.lan:5000/a:1 + -",
			}},
		{"a component for another", smallbundle.Component{Name: "a", Version: "v1.0.0"},
			smallbundle.Component{Name: "b", Version: "v1.0.0"}, []string{
				"component a removed v1.0.0 >", "component b added  > v1.0.0", "lock changed versions.lock > " +
					"versions.lock + -",
			}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			// A component without anything is in no index.json.
			from, to := component(test.from), component(test.to)
			if from.Name != to.Name {
				from.Files, to.Files = []smallbundle.File{file("f", "f")}, []smallbundle.File{file("f", "f")}
				test.want = append(test.want, from.Name+" removed f", to.Name+" added > f")
			}
			d := compare(t, smallbundle.Bundle{Components: []smallbundle.Component{from}},
				smallbundle.Bundle{Components: []smallbundle.Component{to}})
			if diff := cmp.Diff(test.want, changes(d)); diff != "" {
				t.Error(diff)
			}
			if d.Same() != (len(test.want) == 0) {
				t.Errorf("the same: %v", d.Same())
			}
		})
	}
}

// TestCompareCountsBytes checks the sums against the sizes of the files.
func TestCompareCountsBytes(t *testing.T) {
	with := func(texts ...string) smallbundle.Bundle {
		return smallbundle.Bundle{Components: []smallbundle.Component{{
			Name: "k3s", Version: "v1.0.0",
			Images: []smallbundle.Image{{Ref: "r.lan/a:1",
				Platforms: []smallbundle.Platform{bundletest.On(t, "linux/amd64", texts...)}}},
			Files: []smallbundle.File{{Name: "f", Content: strings.Join(texts, " ")}},
		}}}
	}
	from, to := with("base", "old"), with("base", "new", "more")
	d := compare(t, from, to)
	var sumNew, sumGone int64
	for _, i := range append(d.Files, d.Images...) {
		sumNew += i.New
		sumGone += i.Gone
	}
	// The manifests of files are no item's: there is one for the lock and one for the file.
	for name, test := range map[string]struct {
		items int64
		whole bundle.Amount
	}{"new": {sumNew, d.New}, "gone": {sumGone, d.Gone}} {
		if left := test.whole.Bytes - test.items; left <= 0 || left > 2000 {
			t.Errorf("%s: the items have %d bytes, the whole %d", name, test.items, test.whole.Bytes)
		}
	}
	back := compare(t, to, from)
	if diff := cmp.Diff([]bundle.Amount{d.New, d.Gone, d.Kept},
		[]bundle.Amount{back.Gone, back.New, back.Kept}); diff != "" {
		t.Errorf("back again: %s", diff)
	}
	if same := compare(t, from, from); same.New.Blobs+same.Gone.Blobs > 0 || same.Kept.Bytes != d.Kept.Bytes+
		d.Gone.Bytes {
		t.Errorf("%+v", same)
	}
}
