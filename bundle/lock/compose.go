package lock

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Compose writes a lock that nobody has written yet. The comment, without its #, becomes
// the head of the file. Entries may lack their pins.
func Compose(name, comment string, platforms []Platform, components []Component) (*Document, error) {
	var b strings.Builder
	for line := range strings.Lines(comment) {
		b.WriteString(strings.TrimRight("# "+strings.TrimRight(line, "\n"), " ") + "\n")
	}
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nplatforms: [%s]\n\ncomponents:", APIVersion, Kind,
		joinPlatforms(platforms))
	for i, c := range components {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(c.render(2))
	}
	d, err := ParseDocument(name, []byte(b.String()+"\n"))
	if err != nil {
		return nil, fmt.Errorf("compose a lock: %w", err)
	}
	return d, nil
}

// first are the components that stand before all others, in this order: the order of
// installation.
var first = []string{"k3s", "cilium", "liteboxd"}

// rank is where a component belongs.
func rank(name string) int {
	if i := slices.Index(first, name); i >= 0 {
		return i
	}
	return len(first)
}

// Add writes a component that the lock does not have, at its place in the order of
// installation.
func (d *Document) Add(c Component) error {
	if d.lock.Component(c.Name) != nil {
		return fmt.Errorf("add components.%s to %s: it is there already", c.Name, d.name)
	}
	components := lookup(d.root, "components")
	if components.Style&yaml.FlowStyle != 0 {
		return fmt.Errorf("add components.%s to %s: the components are written in braces: write each as KEY: VALUE "+
			"lines", c.Name, d.name)
	}
	wanted := d.lock.withoutLines()
	text := c.render(components.Column - 1)
	// What stands above a component belongs to it, so the new one comes right behind the
	// one before it, or behind the key that all are under.
	at, before := d.lineEnd(d.offset(d.rootKey("components"))), 0
	for i, other := range d.lock.Components {
		if rank(other.Name) > rank(c.Name) {
			break
		}
		at, before = d.lineEnd(d.end(components.Content[2*i+1])), i+1
	}
	if before > 0 {
		text = "\n" + text
	} else {
		text += "\n"
	}
	wanted.Components = slices.Insert(wanted.Components, before, c.withoutLines())
	return d.change("add components."+c.Name+" to", wanted, []edit{{at, at, text}})
}

// Update makes a component what next says: another version, addresses, pins, and entries
// that were not there. Each list of next begins with the entries that the list in the
// document has, one for one, changed or not; what comes behind them is added. What is
// pinned in the document has to be pinned in next.
func (d *Document) Update(next Component) error {
	old := d.lock.Component(next.Name)
	if old == nil {
		return fmt.Errorf("update components.%s in %s: there is no such component", next.Name, d.name)
	}
	if len(next.Files) < len(old.Files) || len(next.Charts) < len(old.Charts) || len(next.Images) < len(old.Images) {
		return fmt.Errorf("update components.%s in %s: entries are missing, and only people remove entries", next.Name,
			d.name)
	}
	next.RequiresDrain = old.RequiresDrain // people say so, and take it back
	next.Packages = old.Packages           // no release of upstream has any
	node := lookup(d.root, "components", next.Name)
	var edits []edit
	var keys []pair
	if old.Version != next.Version {
		keys = append(keys, plain("version", quoted(next.Version)))
	}
	ranges, added := d.editRanges(node, old.UpgradesFrom, next.UpgradesFrom)
	edits, keys = append(edits, ranges...), append(keys, added...)

	list := func(key string, n, total int, pairs func(i int) []pair, render func(i int, flow bool, indent int) string) {
		items := lookup(node, key)
		for i := range n {
			if changed := pairs(i); len(changed) > 0 {
				edits = append(edits, d.edits(items.Content[i], changed)...)
			}
		}
		if total == n {
			return
		}
		if items == nil {
			keys = append(keys, pair{key,
				func(flow bool, indent int) string { return renderList(0, total, flow, indent, render) }})
			return
		}
		edits = append(edits, d.appended(items, n, total, render))
	}
	list("files", len(old.Files), len(next.Files),
		func(i int) []pair { return next.Files[i].pairs(old.Files[i]) },
		func(i int, _ bool, _ int) string { return next.Files[i].render() })
	list("charts", len(old.Charts), len(next.Charts),
		func(i int) []pair { return next.Charts[i].pairs(old.Charts[i]) },
		func(i int, _ bool, _ int) string { return next.Charts[i].render() })
	list("images", len(old.Images), len(next.Images),
		func(i int) []pair { return next.Images[i].pairs(old.Images[i]) },
		func(i int, flow bool, indent int) string { return next.Images[i].render(flow, indent) })

	if len(keys) > 0 {
		edits = append(edits, d.edits(node, keys)...)
	}
	wanted := d.lock.withoutLines()
	*wanted.Component(next.Name) = next.withoutLines()
	return d.change("update components."+next.Name+" in", wanted, edits)
}

// editRanges changes the list of ranges item by item where it can, so that comments in it
// stay.
func (d *Document) editRanges(component *yaml.Node, old, next []string) ([]edit, []pair) {
	if slices.Equal(old, next) {
		return nil, nil
	}
	items := lookup(component, "upgradesFrom")
	if items == nil || len(old) != len(next) {
		return nil, []pair{plain("upgradesFrom", renderRanges(next))}
	}
	var edits []edit
	for i, n := range items.Content {
		edits = append(edits, edit{d.offset(n), d.end(n), strconv.Quote(next[i])})
	}
	return edits, nil
}

// appended adds the items from number n on behind those of a list.
func (d *Document) appended(items *yaml.Node, n, total int, render func(i int, flow bool, indent int) string) edit {
	if items.Style&yaml.FlowStyle != 0 {
		at := d.end(items) - 1
		text := strings.Trim(renderList(n, total, true, items.Column, render), " []")
		if n > 0 {
			text = ", " + text
		}
		return edit{at, at, text}
	}
	at := d.lineEnd(d.end(items))
	return edit{at, at, renderList(n, total, false, items.Column-1, render)}
}

// renderList writes the items from..to-1 behind the colon of a key, in brackets or each
// on a line with so many spaces before it.
func renderList(from, to int, flow bool, indent int, render func(i int, flow bool, indent int) string) string {
	var items []string
	for i := from; i < to; i++ {
		items = append(items, render(i, flow, indent+2))
	}
	if flow {
		return " [" + strings.Join(items, ", ") + "]"
	}
	item := newline(indent) + "- "
	return item + strings.Join(items, item)
}

func (c Component) render(indent int) string {
	var b strings.Builder
	key := newline(indent + 2)
	b.WriteString(newline(indent) + c.Name + ":" + key + "version: " + quoted(c.Version))
	if c.Platforms != nil {
		b.WriteString(key + "platforms: [" + joinPlatforms(c.Platforms) + "]")
	}
	if c.UpgradesFrom != nil {
		b.WriteString(key + "upgradesFrom: " + renderRanges(c.UpgradesFrom))
	}
	if c.RequiresDrain {
		b.WriteString(key + "requiresDrain: true")
	}
	list := func(name string, n int, render func(i int, flow bool, indent int) string) {
		if n > 0 {
			b.WriteString(key + name + ":" + renderList(0, n, false, indent+4, render))
		}
	}
	list("files", len(c.Files), func(i int, _ bool, _ int) string { return c.Files[i].render() })
	list("charts", len(c.Charts), func(i int, _ bool, _ int) string { return c.Charts[i].render() })
	list("images", len(c.Images), func(i int, flow bool, indent int) string { return c.Images[i].render(flow, indent) })
	list("packages", len(c.Packages),
		func(i int, flow bool, indent int) string { return c.Packages[i].render(flow, indent) })
	return b.String()
}

func renderRanges(ranges []string) string {
	var all []string
	for _, r := range ranges {
		all = append(all, strconv.Quote(r))
	}
	return "[" + strings.Join(all, ", ") + "]"
}

func (f File) render() string {
	return braces("name", f.Name, "platform", string(f.Platform), "url", f.URL, "sha256", f.SHA256, "size",
		sizeText(f.Size))
}

func (c Chart) render() string {
	return braces("name", c.Name, "url", c.URL, "sha256", c.SHA256, "size", sizeText(c.Size))
}

// render writes an archive on lines of its own where it may: what it holds is long.
func (m Image) render(flow bool, indent int) string {
	if m.Ref != "" {
		return braces("ref", m.Ref, "digest", string(m.Digest))
	}
	if flow {
		text := braces("archive", m.Archive, "platform", string(m.Platform), "sha256", m.SHA256, "size",
			sizeText(m.Size))
		if m.Contents != nil {
			text = strings.TrimSuffix(text, "}") + ", contents:" + m.Contents.render(true, indent+2) + "}"
		}
		return text
	}
	key := newline(indent)
	text := "archive: " + quoted(m.Archive) + key + "platform: " + string(m.Platform)
	if m.SHA256 != "" {
		text += key + "sha256: " + quoted(m.SHA256)
	}
	if m.Size != 0 {
		text += key + "size: " + sizeText(m.Size)
	}
	if m.Contents != nil {
		text += key + "contents:" + m.Contents.render(false, indent+2)
	}
	return text
}

// braces writes keys and their values in braces; those without a value are left out.
func braces(keysAndValues ...string) string {
	var all []string
	for i := 0; i < len(keysAndValues); i += 2 {
		key, value := keysAndValues[i], keysAndValues[i+1]
		if value == "" {
			continue
		}
		if key != "size" { // the only number
			value = quoted(value)
		}
		all = append(all, key+": "+value)
	}
	return "{" + strings.Join(all, ", ") + "}"
}

func sizeText(size int64) string {
	if size == 0 {
		return ""
	}
	return strconv.FormatInt(size, 10)
}

// pairs are the keys of f whose values are not those of old.
func (f File) pairs(old File) []pair {
	return changed("name", old.Name, f.Name, "platform", string(old.Platform), string(f.Platform),
		"url", old.URL, f.URL, "sha256", old.SHA256, f.SHA256, "size", sizeText(old.Size), sizeText(f.Size))
}

func (c Chart) pairs(old Chart) []pair {
	return changed("name", old.Name, c.Name, "url", old.URL, c.URL, "sha256", old.SHA256, c.SHA256, "size",
		sizeText(old.Size), sizeText(c.Size))
}

func (m Image) pairs(old Image) []pair {
	pairs := changed("ref", old.Ref, m.Ref, "digest", string(old.Digest), string(m.Digest),
		"archive", old.Archive, m.Archive, "platform", string(old.Platform), string(m.Platform),
		"sha256", old.SHA256, m.SHA256, "size", sizeText(old.Size), sizeText(m.Size))
	if m.Contents != nil && !m.Contents.equal(old.Contents) {
		pairs = append(pairs, pair{"contents", m.Contents.render})
	}
	return pairs
}

func (c *Contents) equal(other *Contents) bool {
	return other != nil && slices.Equal(c.Images, other.Images) && slices.Equal(c.Blobs, other.Blobs)
}

// changed makes pairs of the keys whose old and new value, which follow each key, differ.
func changed(keysAndValues ...string) []pair {
	var pairs []pair
	for i := 0; i < len(keysAndValues); i += 3 {
		key, old, value := keysAndValues[i], keysAndValues[i+1], keysAndValues[i+2]
		if old == value || value == "" {
			continue
		}
		if key != "size" {
			value = quoted(value)
		}
		pairs = append(pairs, plain(key, value))
	}
	return pairs
}
