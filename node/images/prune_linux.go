package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/internal/printable"
	"github.com/liteboxd/boxlift/node/hostfile"
	"github.com/liteboxd/boxlift/node/pack"
	"github.com/liteboxd/boxlift/node/programs"
	"github.com/liteboxd/boxlift/node/wire"
)

// PruneOptions say where [Prune] works. The zero value is k3s' and boxlift's own places.
type PruneOptions struct {
	// ImagesDir has the packs; "" means wire.ImagesDir.
	ImagesDir string
	// FilesDir is the constant of that name when it is "".
	FilesDir string
	// DataDir is where k3s unpacks its programs; "" means programs.DefaultDir.
	DataDir string
	// Proc has the processes that may run from there; "" means /proc.
	Proc string
	// Ctr is the command to ask containerd with; nil means DefaultK3s and "ctr".
	Ctr []string
}

// Prune removes what neither the current release nor the previous one needs: packs, what
// only these packs brought into containerd, and files of bundles.
//
// A pack stays when a container is made from an image that no other pack that stays brings,
// be it running or not: as long as its record is in containerd its pod may start it again.
// So does a pack that cannot be read, since nobody knows what it brings. An image's name
// goes only when it still stands for what the pack brought and is pinned, as k3s and
// boxlift leave what they import; without a pin the kubelet looks after it. When k3s may
// have imported images from other archives as well, all images stay.
//
// What k3s has unpacked of itself and neither runs from any more nor did before goes as well, unless processes still
// do.
//
// Images go before their packs, so that a run that is cut short leaves what tells the next
// one where to go on.
func Prune(ctx context.Context, o PruneOptions, request PruneRequest) (PruneReport, error) {
	o.ImagesDir, o.FilesDir = cmp.Or(o.ImagesDir, wire.ImagesDir), cmp.Or(o.FilesDir, wire.FilesDir)
	o.DataDir, o.Proc = cmp.Or(o.DataDir, programs.DefaultDir), cmp.Or(o.Proc, procDir)
	if len(o.Ctr) == 0 {
		o.Ctr = []string{DefaultK3s, "ctr"}
	}
	if err := request.validate(); err != nil {
		return PruneReport{}, err
	}
	p := &pruner{
		PruneOptions: o, request: request, report: PruneReport{Version: PruneVersion, Items: []PruneItem{}},
		imageCheck: &imageCheck{Options: Options{ImagesDir: o.ImagesDir, Ctr: o.Ctr}},
		madeFrom:   make(map[string]digest.Digest),
	}
	if err := p.prune(ctx); err != nil {
		return PruneReport{}, err
	}
	return p.report, nil
}

type pruner struct {
	PruneOptions
	*imageCheck
	request PruneRequest
	report  PruneReport

	// record says what the releases need; recorded, that it is on the disk.
	record   *releaseRecord
	recorded bool

	// packs and files are those on the disk, sizes theirs by path. others are names in the
	// images directory that k3s imports as well.
	packs, files, others []string
	sizes                map[string]int64

	// stays has the reason for each pack that stays.
	stays      map[string]string
	containerd *containerdState
	containers []container
	// madeFrom caches what containers were made from, by their names.
	madeFrom map[string]digest.Digest
}

func (p *pruner) prune(ctx context.Context) error {
	if p.request.Remove {
		unlock, err := p.lock()
		if err != nil {
			return err
		}
		defer unlock()
	}
	if err := p.list(); err != nil {
		return err
	}
	if err := p.takeRecord(); err != nil {
		return err
	}
	p.stays = make(map[string]string)
	for _, name := range p.packs {
		if reason := p.neededBy(func(r Needs) []string { return r.Packs }, name); reason != "" {
			p.stays[name] = reason
		}
	}
	var images []PruneItem
	if len(p.stays) < len(p.packs) {
		var err error
		if images, err = p.look(ctx); err != nil {
			return err
		}
	}
	p.itemize(images)
	folders, err := programs.Folders(p.Proc, p.DataDir)
	if err != nil {
		return err
	}
	for _, f := range folders {
		p.report.Items = append(p.report.Items, PruneItem{Kind: PruneData, Name: f.Name, Size: f.Size, Remove: f.Old,
			Reason: cleanReason(f.Reason)})
	}
	if len(p.report.Items) > maxPruneItems {
		return fmt.Errorf("there are %d packs, files and images, more than the %d that are looked at",
			len(p.report.Items),
			maxPruneItems)
	}
	if !p.request.Remove {
		return nil
	}
	return p.remove(ctx)
}

// lock keeps receivers away: they take content from packs that are there.
func (p *pruner) lock() (unlock func(), err error) {
	var unlocks []func()
	unlock = func() {
		for _, u := range unlocks {
			u()
		}
	}
	for _, dir := range []string{p.PruneOptions.ImagesDir, p.FilesDir} {
		free, u, err := hostfile.Lock(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			unlocks = append(unlocks, u)
			if !free {
				err = errors.New("another boxlift-node is at work there; wait for it to end")
			}
		}
		if err != nil {
			unlock()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
	}
	return unlock, nil
}

// list finds out what is on the disk.
func (p *pruner) list() error {
	p.sizes = make(map[string]int64)
	err := p.eachEntry(p.PruneOptions.ImagesDir, func(name string, info fs.FileInfo) {
		switch {
		case pack.IsStored(name) && info.Mode().IsRegular():
			stored, aside := strings.CutSuffix(name, pack.AsideSuffix)
			if aside {
				p.sizes[path.Join(p.PruneOptions.ImagesDir, stored)] += info.Size()
			}
			if !slices.Contains(p.packs, stored) {
				p.packs = append(p.packs, stored)
			}
		case info.IsDir() || isArchive(name):
			p.others = append(p.others, name)
		}
	})
	if err != nil {
		return err
	}
	return p.eachEntry(p.storedDir(), func(name string, info fs.FileInfo) {
		if storedFileName.MatchString(name) && info.Mode().IsRegular() {
			p.files = append(p.files, name)
		}
	})
}

func (p *pruner) storedDir() string { return path.Join(p.FilesDir, storedFiles) }

func (p *pruner) eachEntry(dir string, each func(name string, info fs.FileInfo)) error {
	entries, err := os.ReadDir(dir) // sorted by names
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		p.sizes[path.Join(dir, e.Name())] = info.Size()
		each(e.Name(), info)
	}
	return nil
}

// isArchive reports whether k3s takes images from a file of that name, or a list of them.
func isArchive(name string) bool {
	return slices.ContainsFunc(
		[]string{".tar", ".tar.lz4", ".tar.bz2", ".tbz", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".txt"},
		func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// takeRecord reads what is recorded, and records the current release if it is told.
func (p *pruner) takeRecord() error {
	name := path.Join(p.FilesDir, recordName)
	r, err := readRecord(p.FilesDir)
	if err != nil {
		r = nil
		p.report.Note = fmt.Sprintf("%s cannot be used, so everything counts as the previous release's: %v", name, err)
	}
	switch release := p.request.Release; {
	case release == nil && r == nil && err != nil:
		return fmt.Errorf("%s, which says what the releases on this host need, cannot be used: %w", name, err)
	case release == nil && r == nil:
		return fmt.Errorf("nothing says what the releases on this host need: there is no %s", name)
	case release == nil:
		p.record = r
	case p.request.Current:
		p.record = r.succeed(*release, p.packs, p.files)
		if err := p.record.write(p.FilesDir); err != nil {
			return fmt.Errorf("record the current release in %s: %w", name, err)
		}
	case r == nil:
		p.record = r.succeed(*release, p.packs, p.files)
	default:
		p.record = r
	}
	p.recorded = r != nil || p.request.Current
	p.report.Current = p.record.Current.ID
	if p.record.Previous != nil {
		p.report.Previous = p.record.Previous.ID
	}
	return nil
}

// neededBy says which release needs a pack or file, or is "".
func (p *pruner) neededBy(names func(Needs) []string, name string) string {
	switch {
	case slices.Contains(names(p.record.Current), name):
		return "the current release needs it"
	case p.request.Release != nil && slices.Contains(names(*p.request.Release), name):
		return "the given bundle needs it"
	case p.record.Previous == nil || p.request.DropPrevious || !slices.Contains(names(*p.record.Previous), name):
		return ""
	case p.record.Previous.ID == "":
		return "it was there before releases were recorded, and counts as the previous release's"
	}
	return "the previous release needs it"
}

// look decides which packs stay although no release needs them, and what becomes of the
// images of those that go.
func (p *pruner) look(ctx context.Context) ([]PruneItem, error) {
	if err := p.readPromises(); err != nil {
		return nil, err
	}
	for _, bad := range p.unusable {
		if p.stays[bad.Pack] == "" {
			p.stays[bad.Pack] = "it cannot be read, so nobody knows which images it brings: " + bad.Text
		}
		p.others = append(p.others, bad.Pack)
	}
	if len(p.stays) == len(p.packs) {
		return nil, nil
	}
	var err error
	if p.containerd, err = p.state(ctx); err != nil {
		return nil, fmt.Errorf("find out which images are used: %w", err)
	}
	out, err := p.ctr(ctx, listTimeout, "containers", "ls")
	if err == nil {
		p.containers, err = parseContainers(out)
	}
	if err != nil {
		return nil, fmt.Errorf("find out which images are used: %w", err)
	}
	for _, promise := range p.promises {
		if p.stays[promise.pack] != "" || p.staysElsewhere(promise) {
			continue
		}
		if user := p.userOf(ctx, promise); user != "" {
			p.stays[promise.pack] = fmt.Sprintf("container %s uses its image %s", clipName(user), promise.name)
		}
	}
	return p.images(), nil
}

// clipName shortens the long hexadecimal names that containers have.
func clipName(name string) string { return name[:min(len(name), 12)] }

// staysElsewhere reports whether a pack that stays brings the same image under the same name.
func (p *pruner) staysElsewhere(wanted promise) bool {
	return slices.ContainsFunc(p.promises, func(other promise) bool {
		return p.stays[other.pack] != "" && other.name == wanted.name && other.target == wanted.target
	})
}

// userOf names a container that is made from an image, or is "".
func (p *pruner) userOf(ctx context.Context, wanted promise) string {
	for _, c := range p.containers {
		switch target := p.containerd.targets[c.image]; {
		case target == wanted.target, slices.Contains(wanted.blobs, digest.Digest(c.image)):
			return c.name
		case c.image != wanted.name:
		default:
			// The name has come to stand for another image. Which of the two the container is
			// made from, only its own record says.
			if id := p.imageOf(ctx, c); id == "" || slices.Contains(wanted.blobs, id) {
				return c.name
			}
		}
	}
	return ""
}

// container is one of containerd's containers, and the name of the image it was made from.
type container struct{ name, image string }

// parseContainers reads what "ctr containers ls" prints: a heading, and for each container
// its name, its image and its runtime.
func parseContainers(out []byte) ([]container, error) {
	var list []container
	first := true
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		switch {
		case first && len(fields) >= 2 && fields[0] == "CONTAINER" && fields[1] == "IMAGE":
			first = false
		case first:
			return nil, fmt.Errorf("expected the heading CONTAINER IMAGE, got %.100q", line)
		case len(fields) == 0:
		case len(fields) < 2:
			return nil, fmt.Errorf("expected a container and its image, got %.200q", line)
		default:
			list = append(list, container{name: fields[0], image: fields[1]})
		}
	}
	if first {
		return nil, errors.New("ctr printed no containers, not even a heading")
	}
	return list, nil
}

// criMetadata is where containerd's CRI plugin keeps what it knows of a container.
const criMetadata = "io.cri-containerd.container.metadata"

// imageOf is the digest of the configuration of the image that a container is made from, or
// "" when its record does not say it.
func (p *pruner) imageOf(ctx context.Context, c container) digest.Digest {
	id, known := p.madeFrom[c.name]
	if known {
		return id
	}
	if imageName.MatchString(c.name) { // nothing that ctr takes for a flag
		if out, err := p.ctr(ctx, listTimeout, "containers", "info", c.name); err == nil {
			id = parseImageID(out)
		}
	}
	p.madeFrom[c.name] = id
	return id
}

// parseImageID reads what "ctr containers info" prints.
func parseImageID(out []byte) digest.Digest {
	var info struct {
		Extensions map[string]struct {
			Value []byte `json:"value"`
		}
	}
	if json.Unmarshal(out, &info) != nil {
		return ""
	}
	var metadata struct {
		Version  string
		Metadata struct{ ImageRef digest.Digest }
	}
	if json.Unmarshal(info.Extensions[criMetadata].Value, &metadata) != nil || metadata.Version != "v1" ||
		wire.ValidateDigest(metadata.Metadata.ImageRef) != nil {
		return ""
	}
	return metadata.Metadata.ImageRef
}

// images lists what containerd has from the packs that go, and what becomes of it.
func (p *pruner) images() []PruneItem {
	items := make(map[string]PruneItem)
	for _, promise := range p.promises {
		if p.stays[promise.pack] != "" || p.staysElsewhere(promise) ||
			p.containerd.targets[promise.name] != promise.target {
			continue
		}
		items[promise.name] = p.judgeImage(promise)
	}
	p.addOtherNames(items)
	p.addSizes(items)
	names := make([]PruneItem, 0, len(items))
	for _, item := range items {
		names = append(names, item)
	}
	slices.SortFunc(names, func(a, b PruneItem) int { return strings.Compare(a.Name, b.Name) })
	return names
}

// judgeImage decides about the name under which a pack brought an image.
func (p *pruner) judgeImage(of promise) PruneItem {
	item := PruneItem{Kind: PruneImage, Name: of.name}
	switch {
	case len(p.others) > 0:
		item.Reason = fmt.Sprintf("k3s may have it from %s as well, which boxlift does not look into", p.others[0])
	case !p.containerd.pinned[of.name]:
		item.Reason = "it is not pinned, so it may be somebody else's; the kubelet removes it when the disk fills up"
	default:
		item.Remove = true
		item.Reason = fmt.Sprintf("only %s brings it, and no container uses it", of.pack)
	}
	return item
}

// addOtherNames adds the names that k3s and containerd have given to images that go: with
// the digest, for other registries, and the image's ID. Those that others have given stay,
// and then so does the ID, by which the kubelet knows the image.
func (p *pruner) addOtherNames(items map[string]PruneItem) {
	going := make(map[digest.Digest][]promise)
	for _, of := range p.promises {
		if item := items[of.name]; item.Remove && p.containerd.targets[of.name] == of.target {
			going[of.target] = append(going[of.target], of)
		}
	}
	for target, promises := range going {
		foreign := slices.ContainsFunc(p.promises,
			func(other promise) bool { return other.target == target && p.stays[other.pack] != "" })
		var ids []string
		for name, its := range p.containerd.targets {
			if its != target {
				continue
			}
			item, listed := items[name]
			if !listed && slices.Contains(promises[0].blobs, digest.Digest(name)) {
				ids = append(ids, name)
				continue
			}
			if !listed {
				item = PruneItem{Kind: PruneImage, Name: name,
					Reason: "neither boxlift nor k3s has given this name to " + promises[0].name}
				i := slices.IndexFunc(promises, func(of promise) bool { return isCopy(name, of) })
				if i >= 0 && p.containerd.pinned[name] {
					item.Remove, item.Reason = true, "another name of "+promises[i].name
				}
				items[name] = item
			}
			foreign = foreign || !item.Remove
		}
		for _, id := range ids {
			if !foreign && !p.neededID(digest.Digest(id)) {
				items[id] = PruneItem{Kind: PruneImage, Name: id, Remove: true, Reason: "the ID of " + promises[0].name}
			}
		}
	}
}

// neededID reports whether an image of a pack that stays has this ID.
func (p *pruner) neededID(id digest.Digest) bool {
	return slices.ContainsFunc(p.promises, func(other promise) bool {
		return p.stays[other.pack] != "" && slices.Contains(other.blobs, id)
	})
}

// isCopy reports whether k3s gives such a name to an image that it imports: its name with
// the digest instead of the tag, or either of the two in another registry.
func isCopy(name string, of promise) bool {
	path := func(name string) string {
		_, rest, _ := strings.Cut(name, "/")
		return rest
	}
	withDigest := digestName(of.name, of.target)
	return name == withDigest || path(name) != "" && (path(name) == path(of.name) || path(name) == path(withDigest))
}

// addSizes gives to each image that goes what is in containerd for it alone; what several
// that go have in common counts for the first.
func (p *pruner) addSizes(items map[string]PruneItem) {
	counted := make(map[digest.Digest]bool)
	for _, of := range p.promises {
		if item, goes := items[of.name]; p.stays[of.pack] != "" || goes && !item.Remove {
			for _, d := range of.blobs {
				counted[d] = true
			}
		}
	}
	for _, of := range p.promises {
		item, listed := items[of.name]
		if !listed || !item.Remove || p.containerd.targets[of.name] != of.target {
			continue
		}
		for _, d := range of.blobs {
			if !counted[d] && p.containerd.content[d] {
				item.Size += p.blobs[d]
				counted[d] = true
			}
		}
		items[of.name] = item
	}
}

// itemize fills the report.
func (p *pruner) itemize(images []PruneItem) {
	add := func(kind PruneKind, dir, name, stays string) {
		item := PruneItem{Kind: kind, Name: name, Size: p.sizes[path.Join(dir, name)], Remove: stays == "",
			Reason: stays}
		if item.Remove {
			item.Reason = p.unneeded()
		}
		p.report.Items = append(p.report.Items, item)
	}
	for _, name := range p.packs {
		add(PrunePack, p.PruneOptions.ImagesDir, name, p.stays[name])
	}
	for _, name := range p.files {
		add(PruneFile, p.storedDir(), name, p.neededBy(func(r Needs) []string { return r.Files }, name))
	}
	for _, item := range images {
		item.Reason = cleanReason(item.Reason)
		p.report.Items = append(p.report.Items, item)
	}
}

// cleanReason bounds what may quote names that others have given.
func cleanReason(text string) string {
	const maxReason = 1 << 10
	return printable.Short(text, maxReason)
}

// unneeded is why packs and files go.
func (p *pruner) unneeded() string {
	if p.request.DropPrevious {
		return "the current release does not need it, and the previous one is not kept"
	}
	return "neither the current release nor the previous one needs it"
}

// remove carries out what the report says.
func (p *pruner) remove(ctx context.Context) error {
	var images []string
	for _, item := range p.report.Items {
		if item.Kind == PruneImage && item.Remove {
			images = append(images, item.Name)
		}
	}
	// What goes with the last name of a call is collected before it returns.
	const names = 64
	for chunk := range slices.Chunk(images, names) {
		if _, err := p.ctr(ctx, importTimeout, append([]string{"images", "rm", "--sync"}, chunk...)...); err != nil {
			return fmt.Errorf("remove images from containerd: %w", err)
		}
	}
	for _, item := range p.report.Items {
		dir := p.storedDir()
		names := []string{item.Name}
		switch item.Kind {
		case PruneData:
			dir = p.DataDir
		case PrunePack:
			dir, names = p.PruneOptions.ImagesDir, []string{item.Name, item.Name + pack.AsideSuffix}
		}
		if item.Kind == PruneImage || !item.Remove {
			continue
		}
		for _, name := range names {
			if err := removeIn(dir, name); err != nil {
				return fmt.Errorf("remove the %s %s: %w", item.Kind, name, err)
			}
		}
	}
	p.report.Removed = true
	if !p.request.DropPrevious || !p.recorded {
		return nil
	}
	p.record.Previous, p.report.Previous = nil, ""
	if err := p.record.write(p.FilesDir); err != nil {
		return fmt.Errorf("record that nothing is kept for the previous release: %w", err)
	}
	return nil
}

func removeIn(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()          //nolint:errcheck // a directory
	return root.RemoveAll(name) // nothing there is no error
}
