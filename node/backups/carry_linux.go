package backups

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// carryTimeout is how long one target may take in one round. What is not there by then goes on in the next one.
const carryTimeout = 2 * time.Hour

// place is where a target has the backups of this server: a folder, one on an SFTP server, or a part of a bucket.
type place interface {
	// list are the files there, with their sizes.
	list() (map[string]int64, error)
	// put copies a file there. It has its name only when it was read back and has the sha256.
	put(file, name, digest string) error
	remove(name string) error
	close() error
}

// open makes ready the folder of this server at a target.
func (r *round) open(ctx context.Context, t Target) (place, error) {
	switch {
	case t.SFTP != nil:
		return openSFTP(ctx, *t.SFTP, r.Config.Cluster, r.Config.Node)
	case t.S3 != nil:
		return openBucket(ctx, *t.S3, r.Config.Cluster, r.Config.Node)
	}
	return r.openFolder(ctx, t.Folder)
}

// partPrefix and partSuffix are around the name of what is not whole yet.
const partPrefix, partSuffix = ".", ".part"

// carry brings a target what it lacks of the sound backups, the newest first, and removes what is too old there.
func (r *round) carry(ctx context.Context, t Target, before []TargetStatus) TargetStatus {
	s := TargetStatus{Name: t.Name}
	if i := slices.IndexFunc(before, func(b TargetStatus) bool { return b.Name == t.Name }); i >= 0 {
		s = before[i]
	}
	ctx, cancel := context.WithTimeout(ctx, carryTimeout)
	defer cancel()
	have, err := r.bring(ctx, t)
	if err != nil {
		s.Error = shown(err)
	} else {
		s.Error = ""
	}
	if have != nil {
		s.Files, s.Newest = len(have), time.Time{}
		for _, name := range have {
			if at, _ := r.Config.timeOf(name); at.After(s.Newest) {
				s.Newest = at
			}
		}
	}
	return s
}

// bring does that, and returns what is there then, as far as it is known.
func (r *round) bring(ctx context.Context, t Target) (have []string, err error) {
	p, err := r.open(ctx, t)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	files, err := p.list()
	if err != nil {
		return nil, err
	}
	have = []string{}
	for name := range files {
		if _, ok := r.Config.timeOf(name); ok {
			have = append(have, name)
			continue
		}
		rest, begins := strings.CutPrefix(name, partPrefix)
		whole, ends := strings.CutSuffix(rest, partSuffix)
		if _, ok := r.Config.timeOf(whole); ok && begins && ends {
			if err := p.remove(name); err != nil { // of a round that was killed
				return have, err
			}
		}
	}
	for _, k := range r.status.Backups {
		if size, is := files[k.File]; !k.Sound() || is && size == k.Bytes {
			continue
		}
		if ctx.Err() != nil {
			return have, fmt.Errorf("not all was carried: %w", context.Cause(ctx))
		}
		if err := p.put(filepath.Join(r.folder, k.File), k.File, k.SHA256); err != nil {
			return have, fmt.Errorf("%s: %w", k.File, err)
		}
		if !slices.Contains(have, k.File) {
			have = append(have, k.File)
		}
	}
	// What is sound here is not too old there, however many there are.
	for _, name := range r.Config.expired(have, r.Now()) {
		if slices.ContainsFunc(r.status.Backups, func(k Kept) bool { return k.File == name }) {
			continue
		}
		if err := p.remove(name); err != nil {
			return have, fmt.Errorf("remove an old backup: %w", err)
		}
		have = slices.DeleteFunc(have, func(h string) bool { return h == name })
	}
	return have, nil
}
