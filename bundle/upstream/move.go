package upstream

import (
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/bundle/lock"
)

// Move makes a component of a lock that of the release, for [lock.Document.Update]: the
// entries that the release has too get its addresses and tags, those that only the release
// has are added. A pin stays where what it pins stays.
//
// Entries that only the lock has are the user's own. Those with the tag of the component's
// version move along, unless the lock has the new tag too; the others, which are returned
// too, stay as they are.
func (r *Published) Move(old lock.Component) (next lock.Component, kept []string) {
	next = old
	next.Version = r.Version
	// Ranges that somebody has thought about are not guessed at.
	if slices.Equal(old.UpgradesFrom, UpgradesFrom(r.Name, old.Version)) {
		next.UpgradesFrom = r.UpgradesFrom
	}

	files := moveList(old.Files, r.Files, moveFile, func(mine, theirs lock.File) bool {
		return mine.Name == theirs.Name && mine.Platform.Match(theirs.Platform)
	})
	charts := moveList(old.Charts, r.Charts, func(_, theirs lock.Chart) lock.Chart { return theirs },
		func(mine, theirs lock.Chart) bool { return mine.Name == theirs.Name })
	// A lock may have another tag of a repository beside the release's.
	images := moveList(old.Images, r.imagesLike(old.Images), moveImage, isSame, func(mine, theirs lock.Image) bool {
		return replaces(mine, theirs) && mine.Ref != "" && r.sameTag(mine.Ref, old.Version) == lock.Tag(theirs.Ref)
	}, replaces)
	next.Files, next.Charts, next.Images = files.entries, charts.entries, images.entries

	for _, i := range files.kept {
		kept = append(kept, next.Files[i].Name)
	}
	for _, i := range charts.kept {
		kept = append(kept, next.Charts[i].Name)
	}
	for _, i := range images.kept {
		image := &next.Images[i]
		if tag := r.sameTag(image.Ref, old.Version); tag != "" {
			ref := lock.Repository(image.Ref) + ":" + tag
			if !slices.ContainsFunc(next.Images, func(m lock.Image) bool { return m.Ref == ref }) {
				*image = lock.Image{Ref: ref}
				continue
			}
		}
		kept = append(kept, image.Ref+image.Archive)
	}
	return next, kept
}

// sameTag is the tag of the release that corresponds to a tag of the old version; "" when
// the tag is not made of that.
func (r *Published) sameTag(ref, old string) string {
	bare := strings.TrimPrefix(r.Version, "v")
	switch {
	case ref == "":
		return ""
	case lock.Tag(ref) == strings.TrimPrefix(old, "v"):
		return bare
	case lock.Tag(ref) == "v"+strings.TrimPrefix(old, "v"):
		return "v" + bare
	}
	return ""
}

// imagesLike gives the release's images in the form that the lock has them in: a lock that
// lists them one by one gets no archive.
func (r *Published) imagesLike(old []lock.Image) []lock.Image {
	isArchive := func(m lock.Image) bool { return m.Archive != "" }
	if len(old) == 0 || slices.ContainsFunc(old, isArchive) || !slices.ContainsFunc(r.Images, isArchive) {
		return r.Images
	}
	images := slices.DeleteFunc(slices.Clone(r.Images), isArchive)
	for _, ref := range r.ArchiveImages {
		images = append(images, lock.Image{Ref: ref})
	}
	return images
}

// isSame reports whether an image of a release is listed in a lock already.
func isSame(mine, theirs lock.Image) bool {
	return mine.Ref == theirs.Ref && mine.Archive == theirs.Archive && replaces(mine, theirs)
}

// replaces reports whether an image of a release takes the place of one in a lock.
func replaces(mine, theirs lock.Image) bool {
	if mine.Ref == "" || theirs.Ref == "" {
		return mine.Ref == theirs.Ref && mine.Platform.Match(theirs.Platform)
	}
	return lock.Repository(mine.Ref) == lock.Repository(theirs.Ref)
}

// movedList is what a list becomes; kept are the numbers of those that have nothing to do
// with the release.
type movedList[T any] struct {
	entries []T
	kept    []int
}

// moveList looks for what takes the place of each entry by one rule after another, the
// strictest first, so that the order of the entries decides only where no rule can.
func moveList[T any](mine, theirs []T, move func(mine, theirs T) T, rules ...func(mine, theirs T) bool) movedList[T] {
	moved := movedList[T]{entries: slices.Clone(mine)}
	rest := slices.Clone(theirs)
	isMoved := make([]bool, len(mine))
	for _, rule := range rules {
		for i := range mine {
			if isMoved[i] {
				continue
			}
			j := slices.IndexFunc(rest, func(t T) bool { return rule(mine[i], t) })
			if j < 0 {
				continue
			}
			moved.entries[i], isMoved[i] = move(mine[i], rest[j]), true
			rest = slices.Delete(rest, j, j+1)
		}
	}
	for i := range mine {
		if !isMoved[i] {
			moved.kept = append(moved.kept, i)
		}
	}
	moved.entries = append(moved.entries, rest...)
	return moved
}

func moveFile(mine, theirs lock.File) lock.File {
	theirs.Platform = mine.Platform // as it is spelled there
	if mine.URL == theirs.URL && theirs.SHA256 == "" || mine.SHA256 == theirs.SHA256 {
		theirs.SHA256, theirs.Size = mine.SHA256, max(theirs.Size, mine.Size)
	}
	return theirs
}

// moveImage keeps what is known of an archive whose bytes are the same: those of two
// releases sometimes are.
func moveImage(mine, theirs lock.Image) lock.Image {
	theirs.Platform = mine.Platform
	if mine.Ref == theirs.Ref && mine.SHA256 == theirs.SHA256 {
		theirs.Digest, theirs.Size, theirs.Contents = mine.Digest, mine.Size, mine.Contents
	}
	return theirs
}
