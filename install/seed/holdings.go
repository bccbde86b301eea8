package seed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
)

// Holding is what one host holds of bundles.
type Holding struct {
	Host     string `json:"host"`
	Platform string `json:"platform,omitempty"`
	Blobs    int    `json:"blobs"`
	Bytes    int64  `json:"bytes"`
	Error    string `json:"error,omitempty"`
}

// Have finds out what all hosts hold.
func (sd *Seeder) Have(ctx context.Context) (*have.Have, []Holding, error) {
	hosts := make([]have.Host, len(sd.Site.Hosts))
	_ = sd.Engine.EachHost(ctx, sd.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		task := sd.Site.Reporter.Task("look at what "+h.Name+" holds", 0)
		held, err := sd.holding(ctx, h)
		task.Done(err)
		if err == nil {
			hosts[slices.Index(sd.Site.Hosts, h)] = *held
		}
		return err
	})
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	holdings := make([]Holding, len(sd.Site.Hosts))
	for i, h := range sd.Site.Hosts {
		holdings[i] = Holding{Host: h.Name, Platform: string(h.Platform), Blobs: len(hosts[i].Blobs)}
		for _, size := range hosts[i].Blobs {
			holdings[i].Bytes += size
		}
		if h.Err != nil {
			holdings[i].Error = h.Err.Error()
		}
	}
	if err := sd.Engine.HostErrors(); err != nil {
		return nil, holdings, err
	}
	return have.Of(sd.Site.Config.Cluster.Name, hosts), holdings, nil
}

func (sd *Seeder) holding(ctx context.Context, h *site.Host) (*have.Host, error) {
	if err := sd.Site.Connect(ctx, h); err != nil {
		return nil, err
	}
	held := &have.Host{Name: h.Name, Platform: h.Platform}
	var err error
	if held.Blobs, err = HeldBlobs(ctx, h); err != nil {
		return nil, err
	}
	if err := addFiles(ctx, h, held.Blobs); err != nil {
		return nil, err
	}
	record, err := h.Read(ctx, path.Join(wire.FilesDir, "releases.json"))
	if err != nil {
		return nil, err
	}
	held.Bundles = recordedBundles(record)
	return held, nil
}

// The scripts that look at a host. Both list nothing where there is nothing.
const (
	// packsScript lists the members of all packs in a folder, of those that are set aside as well.
	packsScript = `for f in "$1"/boxlift-*.tar "$1"/boxlift-*.tar.aside; do [ ! -f "$f" ] || tar -tvf "$f" || exit 1; done`
	// filesScript prints size and sha256 of all files in a folder, and of one more.
	filesScript = `for f in "$1"/* "$2"; do [ ! -f "$f" ] || { stat -c %s "$f" && sha256sum <"$f"; } || exit 1; done`
)

// HeldBlobs are the sizes of the blobs in the packs on a host, by their names in the packs.
// Packs got their names only when every blob was proven.
func HeldBlobs(ctx context.Context, h *site.Host) (map[digest.Digest]int64, error) {
	out, err := h.Root(ctx, "list what packs hold", "/bin/sh", "-c", packsScript, "sh", wire.ImagesDir)
	if err != nil {
		return nil, err
	}
	return parseMembers(string(out))
}

// parseMembers reads blobs from what `tar -tv` prints: mode, owner, size, date, time, name.
func parseMembers(listing string) (map[digest.Digest]int64, error) {
	held := make(map[digest.Digest]int64)
	for line := range strings.Lines(listing) {
		fields := strings.Fields(line)
		if len(fields) != 6 {
			return nil, fmt.Errorf("list what packs hold: tar printed %.200q", line)
		}
		encoded, isBlob := strings.CutPrefix(fields[5], "blobs/sha256/")
		size, err := strconv.ParseInt(fields[2], 10, 64)
		d := digest.NewDigestFromEncoded(digest.SHA256, encoded)
		if !isBlob || d.Validate() != nil {
			continue
		}
		if err != nil || size < 0 {
			return nil, fmt.Errorf("list what packs hold: tar printed %.200q", line)
		}
		held[d] = size
	}
	return held, nil
}

// addFiles adds the files of bundles that are on the host. Their names have no more than the
// beginning of their digests.
func addFiles(ctx context.Context, h *site.Host, blobs map[digest.Digest]int64) error {
	out, err := h.Root(ctx, "look at files of bundles", "/bin/sh", "-c", filesScript, "sh", wire.FilesDir+"/files",
		site.HelperPath)
	if err != nil {
		return err
	}
	return parseFiles(string(out), blobs)
}

// parseFiles reads pairs of lines: a size, and what sha256sum prints.
func parseFiles(listing string, blobs map[digest.Digest]int64) error {
	lines := strings.Split(strings.TrimSuffix(listing, "\n"), "\n")
	if listing == "" {
		return nil
	}
	for i := 0; i < len(lines); i += 2 {
		if i+1 == len(lines) {
			return fmt.Errorf("look at files of bundles: the host printed %.200q last", lines[i])
		}
		size, err := strconv.ParseInt(lines[i], 10, 64)
		sum, _, _ := strings.Cut(lines[i+1], " ")
		d := digest.NewDigestFromEncoded(digest.SHA256, sum)
		if err = errors.Join(err, d.Validate()); err != nil || size < 0 {
			return fmt.Errorf("look at files of bundles: the host printed %.200q and %.200q", lines[i], lines[i+1])
		}
		blobs[d] = size
	}
	return nil
}

// recordedBundles are the digests of the bundles that a host has in its record of releases.
// What cannot be read says nothing: they only inform.
func recordedBundles(record string) []digest.Digest {
	type release struct {
		ID digest.Digest `json:"id"`
	}
	var r struct {
		Current  release  `json:"current"`
		Previous *release `json:"previous"`
	}
	if json.Unmarshal([]byte(record), &r) != nil {
		return nil
	}
	var bundles []digest.Digest
	for _, one := range []*release{&r.Current, r.Previous} {
		if one != nil && one.ID.Validate() == nil && one.ID.Algorithm() == digest.SHA256 &&
			!slices.Contains(bundles, one.ID) {
			bundles = append(bundles, one.ID)
		}
	}
	return bundles
}

// Account splits what a host is to hold into what it lacks and what it has, each blob once.
// there are the packs and files that it has whole, by path, held the sizes of the blobs in
// any of its packs.
func Account(want wire.Want, there map[string]bool, held map[digest.Digest]int64) (ship, kept map[digest.Digest]int64) {
	ship, kept = make(map[digest.Digest]int64), make(map[digest.Digest]int64)
	add := func(d digest.Digest, size int64, has bool) {
		if has {
			kept[d] = size
		} else {
			ship[d] = size
		}
	}
	for _, p := range want.Packs {
		for _, b := range p.Blobs {
			size, isHeld := held[b.Digest]
			add(b.Digest, b.Size, there[want.ImagesDir+"/"+p.Name] || isHeld && size == b.Size)
		}
	}
	for _, f := range want.Files {
		add(f.Digest, f.Size, there[f.Path])
	}
	for d := range kept {
		delete(ship, d) // one pack has it, and gives it to the other
	}
	return ship, kept
}
