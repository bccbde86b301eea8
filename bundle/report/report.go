// Package report makes of a bundle a document for people: what it is, who signed it, what is in it, how large its parts
// are, and which software with which licences.
//
// Contract: it says what the bundle's manifests, its list of software and the approval that it is given say, and looks
// nowhere else. The document depends on these and on the version of boxlift alone: it has no time and no path. Texts of
// the bundle stay texts (see package page). What is missing of the list of software is said in its place.
package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/approval"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/internal/page"
	"github.com/liteboxd/boxlift/internal/progress"
)

// Bundle is what is reported of.
type Bundle struct {
	Reader *bundle.Reader
	// Approval says by whom the bundle is signed; nil where nobody has checked that.
	Approval *approval.Approval
	// Software is what is in its layers and files; nil where that could not be read, which Unread says why.
	Software *sbom.Software
	Unread   error
}

// Make makes the document. Version is that of this boxlift. Errors wrap [bundle.ErrInvalid] when the bundle is damaged.
func Make(b Bundle, version string) (*page.Document, error) {
	contents, err := b.Reader.Contents()
	if err != nil {
		return nil, err
	}
	sections := b.sections(contents)
	return &page.Document{
		Kind: texts.Kind, Title: b.title(contents), Made: texts.Made.With(version),
		Facts: b.facts(contents), Notices: b.notices(), Sections: sections,
	}, nil
}

// Sections are those about the bundle, for documents about something that runs it.
func Sections(b Bundle) ([]page.Section, error) {
	contents, err := b.Reader.Contents()
	if err != nil {
		return nil, err
	}
	return b.sections(contents), nil
}

func (b Bundle) sections(contents *bundle.Contents) []page.Section {
	sections := []page.Section{componentSection(contents), sizeSection(contents), imageSection(contents),
		fileSection(contents)}
	if packages := packageSection(contents); len(packages.Tables[0].Rows) > 0 {
		sections = append(sections, packages)
	}
	return append(sections, b.softwareSection())
}

// title names the components that have versions, as the lock has them.
func (b Bundle) title(contents *bundle.Contents) page.Text {
	var names []string
	for _, c := range contents.Describe() {
		if c.Version != "" && c.Name != bundle.ProgramsComponent && len(names) < 4 {
			names = append(names, c.Name+" "+c.Version)
		}
	}
	if len(names) == 0 {
		names = append(names, b.Reader.Digest().String())
	}
	return page.Plain(strings.Join(names, ", "))
}

func (b Bundle) facts(contents *bundle.Contents) []page.Fact {
	r := b.Reader
	facts := []page.Fact{
		{Name: texts.Digest, Value: page.Plain(r.Digest().String()).Marked(page.Code)},
		{Name: texts.Size, Value: sizeOf(r.Size())},
		{Name: texts.Platforms, Value: platforms(contents.Platforms())},
		{Name: texts.Builder, Value: page.Plain("boxlift " + r.Version())},
		{Name: texts.SignedBy, Value: b.signers()},
	}
	for _, f := range []page.Fact{
		{Name: texts.Serial, Value: page.Plain(r.Validity().SerialText())},
		{Name: texts.Audience, Value: page.Plain(strings.ReplaceAll(r.Validity().AudienceText(), ",", ", "))},
		{Name: texts.NotAfter, Value: page.Plain(r.Validity().NotAfterText())},
	} {
		if !f.Value.IsEmpty() {
			facts = append(facts, f)
		}
	}
	return append(facts, page.Fact{Name: texts.Images, Value: page.Number(len(contents.Images))},
		page.Fact{Name: texts.Files, Value: page.Number(len(contents.Files))})
}

// signers are those that count, or those whose signatures nobody has checked.
func (b Bundle) signers() page.Text {
	if b.Approval != nil {
		var names []string
		for _, s := range b.Approval.Signers {
			names = append(names, s.String())
		}
		return page.Plain(strings.Join(names, "; ")).Marked(page.Good)
	}
	keys := b.Reader.Signatures().Keys()
	if len(keys) == 0 {
		return texts.Nobody.Marked(page.Warned)
	}
	return texts.Unchecked.With(strings.Join(keys, ", ")).Marked(page.Warned)
}

func (b Bundle) notices() []page.Notice {
	var all []page.Notice
	if b.Approval != nil {
		for _, text := range b.Approval.Warnings {
			all = append(all, page.Notice{Mark: page.Warned, Text: page.Said(text)})
		}
	}
	if d := b.Reader.Delta(); d != nil {
		all = append(all, page.Notice{Mark: page.Warned, Text: texts.Delta.With(d.LeftOut.Blobs,
			progress.Bytes(d.LeftOut.Bytes), progress.Bytes(d.WholeSize))})
	}
	return all
}

func sizeOf(n int64) page.Text { return page.Plain(progress.Bytes(n)) }

func platforms(all []lock.Platform) page.Text {
	names := make([]string, 0, len(all))
	for _, p := range all {
		names = append(names, string(p))
	}
	slices.Sort(names)
	return page.Plain(strings.Join(slices.Compact(names), ", "))
}

func componentSection(contents *bundle.Contents) page.Section {
	t := page.Table{Columns: []page.Column{{Title: texts.Component}, {Title: texts.Version}, {Title: texts.Platforms},
		{Title: texts.Files, Numeric: true}, {Title: texts.Images, Numeric: true}, {Title: texts.Size, Numeric: true}}}
	for _, c := range contents.Describe() {
		t.Rows = append(t.Rows, []page.Text{page.Plain(c.Name), page.Plain(c.Version), platforms(c.Platforms),
			page.Number(c.Files), page.Number(c.Images), sizeOf(c.Size)})
	}
	return page.Section{ID: "components", Title: texts.Components, About: texts.ComponentsAbout,
		Tables: []page.Table{t}}
}

func imageSection(contents *bundle.Contents) page.Section {
	t := page.Table{Columns: []page.Column{{Title: texts.Image}, {Title: texts.Component}, {Title: texts.Platforms},
		{Title: texts.Layers, Numeric: true}, {Title: texts.Size, Numeric: true}, {Title: texts.Digest}}}
	for _, image := range contents.Images {
		var size int64
		layers := make(map[digest.Digest]bool)
		names := make([]lock.Platform, 0, len(image.Platforms))
		for _, p := range image.Platforms {
			names = append(names, p.Platform)
			size += p.Size()
			for _, l := range p.Layers {
				layers[l.Digest] = true
			}
		}
		t.Rows = append(t.Rows, []page.Text{page.Plain(image.Name), page.Plain(image.Component), platforms(names),
			page.Number(len(layers)), sizeOf(size), page.Plain(image.Digest.String()).Marked(page.Code)})
	}
	return page.Section{ID: "images", Title: texts.Images, About: texts.ImagesAbout, Tables: []page.Table{t}}
}

func fileSection(contents *bundle.Contents) page.Section {
	t := page.Table{Columns: []page.Column{{Title: texts.File}, {Title: texts.Component}, {Title: texts.Platforms},
		{Title: texts.Size, Numeric: true}, {Title: texts.Digest}}}
	for _, f := range contents.Files {
		if !f.IsOSPackage() {
			t.Rows = append(t.Rows, []page.Text{page.Plain(f.Name), page.Plain(f.Component),
				page.Plain(string(f.Platform)), sizeOf(f.Size), page.Plain(f.Digest.String()).Marked(page.Code)})
		}
	}
	return page.Section{ID: "files", Title: texts.Files, Tables: []page.Table{t}}
}

func packageSection(contents *bundle.Contents) page.Section {
	t := page.Table{Columns: []page.Column{{Title: texts.Package}, {Title: texts.Version}, {Title: texts.Release},
		{Title: texts.Architecture}, {Title: texts.Size, Numeric: true}, {Title: texts.Digest}}}
	for _, f := range contents.Files {
		if f.IsOSPackage() {
			t.Rows = append(t.Rows, []page.Text{page.Plain(f.Package.Name), page.Plain(f.Package.Version),
				page.Plain(f.Package.Release()), page.Plain(f.Package.Architecture), sizeOf(f.Size),
				page.Plain(f.Digest.String()).Marked(page.Code)})
		}
	}
	return page.Section{ID: "os-packages", Title: texts.OSPackages, About: texts.OSPackagesAbout,
		Tables: []page.Table{t}}
}

// softwareSection lists packages with their licences.
func (b Bundle) softwareSection() page.Section {
	s := page.Section{ID: "software", Title: texts.Software, About: texts.SoftwareAbout}
	if b.Software == nil {
		why := page.Text{}
		if b.Unread != nil {
			why = page.Said(b.Unread.Error())
		}
		s.Notices = append(s.Notices, page.Notice{Mark: page.Warned, Text: texts.SoftwareUnread.With(why)})
		return s
	}
	if n := len(b.Software.Incomplete); n > 0 {
		s.Notices = append(s.Notices, page.Notice{Mark: page.Warned, Text: texts.Incomplete.With(n)})
		t := page.Table{Title: texts.IncompleteImages, Columns: []page.Column{{Title: texts.Image}}}
		for _, text := range b.Software.Incomplete {
			t.Rows = append(t.Rows, []page.Text{page.Said(text)})
		}
		s.Tables = append(s.Tables, t)
	}
	rows, licenses := make([]software, 0, len(b.Software.Packages)), make(map[string]int)
	for _, p := range b.Software.Packages {
		one := software{kind: p.URL.Type, name: strings.TrimPrefix(p.URL.Namespace+"/"+p.URL.Name, "/"),
			version: p.URL.Version, license: p.License}
		if len(p.In) > 0 {
			one.first, one.more = p.In[0].Name, len(p.In)-1
		}
		rows = append(rows, one)
	}
	slices.SortFunc(rows, compareSoftware)
	t := page.Table{Title: texts.Packages, Narrow: true, Columns: []page.Column{{Title: texts.Package},
		{Title: texts.Version}, {Title: texts.Ecosystem}, {Title: texts.License}, {Title: texts.In}}}
	for _, one := range rows {
		licenses[one.license]++
		t.Rows = append(t.Rows, one.row())
	}
	return addLicenses(s, licenses, t)
}

// software is a package as its row shows it.
type software struct {
	kind, name, version, license string
	first                        string // image or file that it is in
	more                         int    // others
}

func compareSoftware(a, b software) int {
	return cmp.Or(strings.Compare(a.kind, b.kind), strings.Compare(a.name, b.name),
		strings.Compare(a.version, b.version), strings.Compare(a.license, b.license),
		strings.Compare(a.first, b.first), cmp.Compare(a.more, b.more))
}

func (s software) row() []page.Text {
	in := page.Plain(s.first)
	if s.more > 0 {
		in = texts.AndMore.With(s.first, s.more)
	}
	return []page.Text{page.Plain(s.name), page.Plain(s.version), page.Plain(s.kind), license(s.license), in}
}

func license(text string) page.Text {
	if text == "" {
		return texts.NoLicense.Marked(page.Faint)
	}
	return page.Plain(text)
}

// addLicenses adds the table of licences, the most frequent first, and that of packages.
func addLicenses(s page.Section, licenses map[string]int, packages page.Table) page.Section {
	names := make([]string, 0, len(licenses))
	for name := range licenses {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(licenses[b], licenses[a]), strings.Compare(a, b))
	})
	t := page.Table{Title: texts.Licenses, Narrow: true, Columns: []page.Column{{Title: texts.License},
		{Title: texts.Packages, Numeric: true}}}
	for _, name := range names {
		t.Rows = append(t.Rows, []page.Text{license(name), page.Number(licenses[name])})
	}
	s.Tables = append(s.Tables, t, packages)
	return s
}

// share is a part in percent.
func share(part, whole int64) page.Text {
	if whole == 0 {
		return page.Text{}
	}
	return page.Plain(fmt.Sprintf("%.1f %%", float64(part)/float64(whole)*100))
}
