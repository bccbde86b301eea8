package report

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/internal/page"
)

const (
	// leastTile is the part of all bytes below which blobs are put together on the map: one in so many.
	leastTile = 1500
	// listedBlobs is how many of the largest blobs are in the table.
	listedBlobs = 40
)

// blob is a layer or a file, which several images may have.
type blob struct {
	digest    digest.Digest
	size      int64
	component string
	name      string // of the first image or file that has it
	part      string // which layer it is: "3/8"; "" for a file
	platform  string
	images    int // that have it
}

// label is the name without what most of them have in common.
func (b *blob) label() page.Text {
	name := path.Base(b.name)
	if b.part == "" {
		return page.Plain(name)
	}
	return texts.LayerOf.With(name, b.part)
}

// blobs are all layers and files, the largest first, and how many bytes they and all else have: manifests and configs.
func blobs(contents *bundle.Contents) (all []*blob, total int64) {
	known := make(map[digest.Digest]*blob)
	other := make(map[digest.Digest]bool)
	add := func(b blob) *blob {
		if known[b.digest] == nil {
			known[b.digest] = &b
			all = append(all, &b)
			total += b.size
		}
		return known[b.digest]
	}
	small := func(d digest.Digest, size int64) {
		if !other[d] && known[d] == nil {
			other[d] = true
			total += size
		}
	}
	for _, f := range contents.Files {
		add(blob{digest: f.Digest, size: f.Size, component: f.Component, name: f.Name, platform: string(f.Platform)})
	}
	for _, image := range contents.Images {
		seen := make(map[*blob]bool)
		for _, p := range image.Platforms {
			for i, l := range p.Layers {
				b := add(blob{digest: l.Digest, size: l.Size, component: image.Component, name: image.Name,
					part: fmt.Sprintf("%d/%d", i+1, len(p.Layers)), platform: string(p.Platform)})
				if !seen[b] {
					seen[b] = true
					b.images++
				}
			}
			small(p.Manifest.Digest, p.Manifest.Size)
			small(p.Config.Digest, p.Config.Size)
		}
		small(image.Digest, image.Size)
	}
	slices.SortStableFunc(all, func(a, b *blob) int {
		return cmp.Or(cmp.Compare(b.size, a.size), strings.Compare(a.digest.String(), b.digest.String()))
	})
	return all, total
}

// sizeSection shows how large layers and files are.
func sizeSection(contents *bundle.Contents) page.Section {
	all, total := blobs(contents)
	s := page.Section{ID: "size", Title: texts.SizeMap, About: texts.SizeMapAbout}
	if m := sizeMap(all, total); len(m.Groups) > 0 {
		s.Map = m
	}
	t := page.Table{Title: texts.Largest, Columns: []page.Column{{Title: texts.Layer}, {Title: texts.Platforms},
		{Title: texts.Component}, {Title: texts.Size, Numeric: true}, {Title: texts.Share, Numeric: true},
		{Title: texts.InImages, Numeric: true}, {Title: texts.Digest}}}
	rest := total
	for _, b := range all[:min(len(all), listedBlobs)] {
		rest -= b.size
		what, in := page.Plain(b.name), page.Text{}
		if b.part != "" {
			what, in = texts.LayerOf.With(b.name, b.part), page.Number(b.images)
		}
		t.Rows = append(t.Rows, []page.Text{what, page.Plain(b.platform), page.Plain(b.component), sizeOf(b.size),
			share(b.size, total), in, page.Plain(b.digest.String()).Marked(page.Code)})
	}
	t.Rows = append(t.Rows, []page.Text{texts.Others.With(max(len(all)-listedBlobs, 0)), {}, {}, sizeOf(rest),
		share(rest, total), {}, {}})
	s.Tables = []page.Table{t}
	return s
}

// sizeMap makes a group of each component, and a tile of each layer and file that is large enough to be seen.
func sizeMap(all []*blob, total int64) *page.Map {
	type sum struct {
		group page.Group
		size  int64
		small int
		rest  int64
	}
	sums := make(map[string]*sum)
	var names []string
	for _, b := range all {
		if b.size <= 0 {
			continue
		}
		g := sums[b.component]
		if g == nil {
			g = &sum{group: page.Group{Name: page.Plain(b.component)}}
			sums[b.component] = g
			names = append(names, b.component)
		}
		g.size += b.size
		if b.size < total/leastTile {
			g.small, g.rest = g.small+1, g.rest+b.size
			continue
		}
		tile := page.Tile{Name: b.label(), Size: b.size, Note: page.Plain(b.platform)}
		if b.images > 1 {
			tile.Note = texts.Shared.With(b.platform, b.images)
		}
		g.group.Tiles = append(g.group.Tiles, tile)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(sums[b].size, sums[a].size) })
	m := &page.Map{About: texts.MapAbout}
	for _, name := range names {
		g := sums[name]
		if g.small > 0 {
			g.group.Tiles = append(g.group.Tiles, page.Tile{Name: texts.Smaller.With(g.small), Size: g.rest})
			slices.SortStableFunc(g.group.Tiles, func(a, b page.Tile) int { return cmp.Compare(b.Size, a.Size) })
		}
		m.Groups = append(m.Groups, g.group)
	}
	return m
}
