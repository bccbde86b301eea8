// Package rebuild proves that a bundle is the one that its lock makes.
package rebuild

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

// ErrDiffers is wrapped by errors that say that a bundle is not the one that its lock,
// this version of boxlift and these programs make.
var ErrDiffers = fault.NewKind(fault.Bundle, "not what the lock makes")

// Options say what a bundle is to be made from, as in [plan.Options]. Lock and
// LockContent are required.
type Options struct {
	Lock        *lock.Lock
	LockName    string
	LockContent []byte
	Programs    []plan.Program
	Manifests   []byte
	Version     string
	// SBOM makes the list of software; it is required for bundles that have one.
	SBOM func(ctx context.Context, r *bundle.Reader) ([]byte, error)
	// Reporter is told of the work; nil discards it.
	Reporter progress.Reporter
}

// DiffersError is the first difference between a bundle and what its lock makes. It
// wraps [ErrDiffers].
type DiffersError struct {
	// What differs: an entry of the lock, of index.json, or a member of the file.
	What string
	// Expected is what the lock makes, Found is what the bundle has; "nothing" for none.
	Expected, Found string
	// Offset is where the first byte that differs for it is, from the beginning of the whole
	// bundle, not encrypted and not in volumes; of a delta's own index.json and order, from
	// the beginning of the delta.
	Offset int64
	// Generated says that not the lock but the builder decides on these bytes.
	Generated bool
}

func (e *DiffersError) Error() string {
	return fmt.Sprintf("%v: %s: expected %s, found %s (at offset %d)", ErrDiffers, e.What, e.Expected, e.Found,
		e.Offset)
}

func (e *DiffersError) Unwrap() error { return ErrDiffers }

// Hint says what the difference may come from.
func (e *DiffersError) Hint() string {
	if e.Generated {
		return "this file is the builder's own and not in the lock: another build of the same version of boxlift " +
			"has built the bundle. " +
			"Run this with that build, whose programs --programs names; `boxlift bundle extract --component " +
			bundle.ProgramsComponent + "` takes those out of the bundle, which proves all but them"
	}
	return "the bundle was built from another lock, or changed and signed anew: ask those who built it before you " +
		"install it"
}

// OtherBuilderError says that the bundle cannot be made again by this boxlift, because
// another version has built it.
type OtherBuilderError struct{ Builder, Own string }

func (e *OtherBuilderError) Error() string {
	return fmt.Sprintf("it was built by boxlift %s, and this is %s: the programs, the manifests and the versions "+
		"that a build writes into a bundle are others, so this boxlift cannot make it again", e.Builder, e.Own)
}

// Class makes it something that boxlift cannot do.
func (e *OtherBuilderError) Class() fault.Class { return fault.Input }

// Hint says who can.
func (e *OtherBuilderError) Hint() string {
	return "run it with boxlift " + e.Builder +
		", from where you got this one: what lies in the bundle itself is what is to be proven"
}

// Prove fails unless the bundle is the one that a build from the lock makes, signatures
// and the trust file aside: it plans that build with the bundle as the only registry, without a network and
// without writing anything, and compares index.json, which must be the same bytes, and the
// sequence of all members with their places. Every other byte of a bundle is either content,
// which its name says the sha256 of and [bundle.Reader.Verify] proves, or follows from the sequence
// ([bundle.Open] has refused all else). So Prove and Verify together say that the file is, byte
// for byte, what a build writes, and each blob is read once.
//
// A list of software in the bundle is made again from its layers and compared, for which these
// are read once more.
//
// Of a delta, the whole bundle is compared, and then the delta with the one that leaves out
// the same blobs.
//
// The errors are a [*DiffersError], an [*OtherBuilderError], those of [plan.CheckPins], and
// those that wrap [bundle.ErrInvalid] where the bundle cannot be read.
func Prove(ctx context.Context, r *bundle.Reader, o Options) error {
	if o.Reporter == nil {
		o.Reporter = progress.Discard
	}
	if err := prove(ctx, r, o); err != nil {
		return fmt.Errorf("rebuild %s from %s: %w", r.Path(), o.LockName, err)
	}
	return nil
}

func prove(ctx context.Context, r *bundle.Reader, o Options) error {
	if err := plan.CheckPins(o.LockName, o.Lock); err != nil {
		return err
	}
	if builder := r.Version(); builder != o.Version {
		return &OtherBuilderError{Builder: builder, Own: o.Version}
	}
	contents, err := r.Contents()
	if err != nil {
		return err
	}
	if err := compareLock(r, o); err != nil {
		return err
	}
	if err := compareRoots(r, contents, o.Lock); err != nil {
		return err
	}
	p, err := plan.NewFrom(ctx, plan.Options{
		Lock: o.Lock, LockName: o.LockName, LockContent: o.LockContent, Programs: o.Programs, Manifests: o.Manifests,
		Version: o.Version,
		// Where a tag points to now is no question of this bundle.
		AllowMovedTags: true, Reporter: o.Reporter,
	}, registryIn{r, contents})
	if err != nil && !errors.Is(err, bundle.ErrInvalid) && ctx.Err() == nil {
		err = fmt.Errorf("%w: no bundle is made of it: %w", ErrDiffers, err)
	}
	if err != nil {
		return err
	}
	without := p
	document, hasList, err := r.SBOM()
	if err != nil {
		return err
	}
	if hasList {
		if p, err = p.WithSBOM(document); err != nil {
			return err
		}
	}
	if err := compareEntries(r, p); err != nil {
		return err
	}
	if err := compareBytes(ocitar.IndexFile, r.Tar(), p.Index, r.Index()); err != nil {
		return err
	}
	if err := compareMembers(p.Members, r.Tar(), contents.BlobNames()); err != nil {
		return err
	}
	if _, delta := r.DeltaIndex(); delta != nil {
		if err := compareDelta(r, p, contents.BlobNames()); err != nil {
			return err
		}
	}
	if !hasList {
		return nil
	}
	return compareSBOM(ctx, r, without, document, o)
}

// compareSBOM makes the list of software again, of the bundle without it.
func compareSBOM(ctx context.Context, r *bundle.Reader, p *plan.Plan, found []byte, o Options) error {
	if o.SBOM == nil {
		return errors.New("it has a list of its software, and nothing is given that makes it")
	}
	if err := r.RequireAll(); err != nil {
		return fmt.Errorf("list its software again: %w", err)
	}
	without, err := p.Read(r)
	if err != nil {
		return err
	}
	expected, err := o.SBOM(ctx, without)
	if err != nil {
		return err
	}
	return compareAt("file "+format.Label(bundle.ProgramsComponent, bundle.SBOMFile, ""),
		offsetOf(r.Tar(), ocitar.BlobName(digest.FromBytes(found))), expected, found)
}

// registryIn is a bundle as the registry of the images in it.
type registryIn struct {
	bundle   *bundle.Reader
	contents *bundle.Contents
}

// Resolve is never asked: tags are not looked up.
func (b registryIn) Resolve(context.Context, string) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, errors.ErrUnsupported
}

// Manifest reads it from the bundle.
func (b registryIn) Manifest(
	_ context.Context, _ string, d digest.Digest,
) (content []byte, mediaType string, err error) {
	if content, err = b.read(d, format.MaxManifestSize); err != nil {
		return nil, "", err
	}
	for _, image := range b.contents.Images {
		if image.Digest == d {
			return content, image.MediaType, nil
		}
	}
	mediaType, err = format.OwnMediaType(ocispec.Descriptor{Digest: d},
		func(ocispec.Descriptor) ([]byte, error) { return content, nil })
	return content, mediaType, err
}

// Config reads it from the bundle.
func (b registryIn) Config(_ context.Context, _ string, d digest.Digest) ([]byte, error) {
	return b.read(d, format.MaxConfigSize)
}

func (b registryIn) read(d digest.Digest, limit int64) ([]byte, error) {
	e, ok := b.bundle.Tar().Blob(d)
	if !ok {
		return nil, fmt.Errorf("%w: it has no blob %s", bundle.ErrInvalid, d)
	}
	if e.Size > limit {
		return nil, fmt.Errorf("%w: blob %s has %d bytes, %d is the most for what it is", bundle.ErrInvalid, d, e.Size,
			limit)
	}
	return b.bundle.ReadJSON(ocispec.Descriptor{Digest: d, Size: e.Size})
}

// compareLock compares the lock in the bundle with the one that is given, byte for byte.
func compareLock(r *bundle.Reader, o Options) error {
	found, content, err := r.Lock()
	if err != nil {
		return err
	}
	if bytes.Equal(content, o.LockContent) {
		return nil
	}
	at := samePrefix(content, o.LockContent)
	e, _ := r.Tar().Blob(digest.FromBytes(content))
	differs := &DiffersError{Offset: e.Offset + int64(at)}
	if changes := lock.Diff(found, o.Lock); len(changes) > 0 {
		first := changes[0]
		differs.What = strings.TrimPrefix(first.Component+": "+first.Entry, ": ")
		differs.Expected, differs.Found = orNothing(first.New), orNothing(first.Old)
	} else {
		// What [lock.Diff] does not tell of is in the bundle all the same.
		differs.What = fmt.Sprintf("line %d", 1+bytes.Count(content[:at], []byte("\n")))
		differs.Expected, differs.Found = lineAt(o.LockContent, at), lineAt(content, at)
	}
	differs.What = bundle.LockFile + " in the bundle: " + differs.What
	return differs
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// samePrefix returns how many bytes two texts have in common at their beginning.
func samePrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// lineAt quotes the line that a place is in, or nothing behind the end.
func lineAt(content []byte, at int) string {
	if at >= len(content) {
		return "nothing"
	}
	line := content[bytes.LastIndexByte(content[:at], '\n')+1:]
	line, _, _ = bytes.Cut(line, []byte("\n"))
	return quoted(line)
}

// maxQuoted bounds what a message quotes of a bundle, in bytes.
const maxQuoted = 200

func quoted(content []byte) string {
	if len(content) > maxQuoted {
		return fmt.Sprintf("%q and %d bytes more", content[:maxQuoted], len(content)-maxQuoted)
	}
	return fmt.Sprintf("%q", content)
}

// compareRoots looks for the images that the lock pins: without their manifests, no bundle
// can be planned.
func compareRoots(r *bundle.Reader, contents *bundle.Contents, l *lock.Lock) error {
	for _, c := range l.Components {
		for _, want := range c.Images {
			if want.Ref == "" {
				continue
			}
			differs := &DiffersError{What: "image " + want.Ref + " of " + c.Name, Expected: want.Digest.String(),
				Found: "nothing", Offset: indexOffset(r)}
			for _, image := range contents.Images {
				if image.Component == c.Name && image.Name == want.Ref {
					differs.Found = image.Digest.String()
					differs.Offset += int64(max(0, bytes.Index(r.Index(), []byte(image.Digest))))
				}
			}
			if differs.Found != differs.Expected {
				return differs
			}
		}
	}
	return nil
}

// indexOffset is where the content of index.json begins in the whole bundle.
func indexOffset(r *bundle.Reader) int64 { return offsetOf(r.Tar(), ocitar.IndexFile) }

func offsetOf(tar *ocitar.Places, member string) int64 {
	for _, e := range tar.Layout().Entries {
		if e.Name == member {
			return e.Offset
		}
	}
	return 0
}

// compareEntries compares the entries of index.json, so that what differs has a name.
func compareEntries(r *bundle.Reader, p *plan.Plan) error {
	want, got := p.Entries, r.Entries()
	own := func(d ocispec.Descriptor) ([]byte, error) { return ownContent(p, d) }
	for i := range max(len(want), len(got)) {
		if i < len(want) && i < len(got) && bytes.Equal(descriptorText(want[i]), descriptorText(got[i])) {
			continue
		}
		differs := &DiffersError{Expected: "nothing", Found: "nothing",
			Offset: indexOffset(r) + int64(samePrefix(p.Index, r.Index()))}
		switch {
		case i < len(want) && !isNamed(got, want[i]):
			differs.describe(want[i])
			differs.Expected = entryText(want[i], own)
		case i < len(got) && !isNamed(want, got[i]):
			differs.describe(got[i])
			differs.Found = entryText(got[i], r.ReadJSON)
		case i < len(want) && i < len(got) && entryName(want[i]) == entryName(got[i]):
			differs.describe(want[i])
			differs.Expected, differs.Found = entryText(want[i], own), entryText(got[i], r.ReadJSON)
			if differs.Expected == differs.Found {
				a, b := descriptorText(want[i]), descriptorText(got[i])
				from := max(0, samePrefix(a, b)-maxQuoted/2)
				differs.Expected, differs.Found = quoted(a[from:]), quoted(b[from:])
			}
		default:
			differs.What = fmt.Sprintf("%s: entry %d", ocitar.IndexFile, i)
			if i < len(want) {
				differs.Expected = entryName(want[i])
			}
			if i < len(got) {
				differs.Found = entryName(got[i])
			}
		}
		return differs
	}
	return nil
}

// describe says what an entry of index.json is.
func (e *DiffersError) describe(d ocispec.Descriptor) {
	e.What = entryName(d)
	component, title := d.Annotations[format.AnnotationComponent], d.Annotations[ocispec.AnnotationTitle]
	e.Generated = component == bundle.ProgramsComponent || component == bundle.ManifestsComponent &&
		title == bundle.ManifestsFile
}

// entryName is unique in a bundle.
func entryName(d ocispec.Descriptor) string {
	component := d.Annotations[format.AnnotationComponent]
	if image := d.Annotations[format.AnnotationImageName]; image != "" {
		return "image " + image + " of " + component
	}
	var platform lock.Platform
	if d.Platform != nil {
		platform = format.PlatformOf(*d.Platform)
	}
	title := d.Annotations[ocispec.AnnotationTitle]
	if d.ArtifactType == format.PackageArtifactType {
		title = d.Annotations[format.AnnotationFamily] + "/" + d.Annotations[format.AnnotationSuite] + " " + title
	}
	return "file " + format.Label(component, title, platform)
}

func isNamed(all []ocispec.Descriptor, d ocispec.Descriptor) bool {
	name := entryName(d)
	for _, other := range all {
		if entryName(other) == name {
			return true
		}
	}
	return false
}

// entryText says which bytes an entry stands for: of a file, those of the file.
func entryText(d ocispec.Descriptor, read format.JSONReader) string {
	if d.ArtifactType != "" {
		if manifest, err := format.ReadManifest(d, read); err == nil && len(manifest.Layers) == 1 {
			d = manifest.Layers[0]
		}
	}
	return fmt.Sprintf("%s with %d bytes", d.Digest, d.Size)
}

func descriptorText(d ocispec.Descriptor) []byte {
	text, _ := json.Marshal(d) // of strings, numbers and maps of strings
	return text
}

// ownContent is the content that a plan has at hand.
func ownContent(p *plan.Plan, d ocispec.Descriptor) ([]byte, error) {
	content, ok := p.Content[d.Digest]
	if !ok {
		return nil, format.ErrAbsent
	}
	return content, nil
}

func compareBytes(member string, tar *ocitar.Places, want, got []byte) error {
	return compareAt(member, offsetOf(tar, member), want, got)
}

// compareAt compares contents of which the one that was found is at an offset.
func compareAt(what string, offset int64, want, got []byte) error {
	if bytes.Equal(want, got) {
		return nil
	}
	at := samePrefix(want, got)
	return &DiffersError{What: what, Expected: bytesAt(want, at), Found: bytesAt(got, at), Offset: offset + int64(at)}
}

func bytesAt(content []byte, at int) string {
	if at == len(content) {
		return "its end"
	}
	return quoted(content[at:min(len(content), at+32)])
}

// compareMembers compares the sequence of members, those of the signature and the trust file aside. names
// are those of blobs.
func compareMembers(want []ocitar.Member, tar *ocitar.Places, names map[digest.Digest]string) error {
	describe := func(m ocitar.Member) string {
		text := fmt.Sprintf("%s with %d bytes", m.Name, m.Size)
		if name := names[m.Digest()]; name != "" {
			text += " (of " + name + ")"
		}
		return text
	}
	i := 0
	for _, e := range tar.Layout().Entries {
		switch e.Name {
		case ocitar.SigstoreBundleFile, ocitar.SignatureFile, ocitar.TrustFile:
			continue
		}
		expected := "the end of the file"
		if i < len(want) {
			if want[i] == e.Member {
				i++
				continue
			}
			expected = describe(want[i])
		}
		return &DiffersError{What: fmt.Sprintf("member %d", i), Expected: expected, Found: describe(e.Member),
			Offset: e.HeaderOffset()}
	}
	if i < len(want) {
		return &DiffersError{What: fmt.Sprintf("member %d", i), Expected: describe(want[i]),
			Found: "the end of the file", Offset: tar.Layout().Size - ocitar.TrailerSize}
	}
	return nil
}

// compareDelta compares a delta with the one of the plan that leaves out the same blobs.
func compareDelta(r *bundle.Reader, p *plan.Plan, names map[digest.Digest]string) error {
	index, parsed := r.DeltaIndex()
	sizes := make(map[digest.Digest]int64, len(parsed.LeftOut))
	for _, blob := range parsed.LeftOut {
		sizes[blob.Digest] = blob.Size
	}
	p.Since = plan.BaseOf(parsed.Since, sizes)
	want, _, err := p.Delta(r.Signature())
	if err != nil {
		return err
	}
	if err := compareBytes(ocitar.IndexFile, r.Stored(), want.Index, index); err != nil {
		return fmt.Errorf("the delta: %w", err)
	}
	if err := compareMembers(want.Members, r.Stored(), names); err != nil {
		return fmt.Errorf("the delta: %w", err)
	}
	return nil
}
