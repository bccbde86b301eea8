//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/upstream"
)

// cutDownloads is how many downloads are cut, the largest ones.
const cutDownloads = 6

// measureResume cuts the largest downloads at nine tenths, and counts what comes over the
// line after all.
func (f *fixture) measureResume(ctx context.Context) ([]figure, error) {
	downloads, err := f.downloads()
	if err != nil {
		return nil, err
	}
	var once int64
	for _, d := range downloads {
		once += d.Size
	}
	slices.SortStableFunc(downloads, func(a, b download) int { return int(min(max(b.Size-a.Size, -1), 1)) })
	var cuts []string
	var atRisk int64
	for _, d := range downloads[:cutDownloads] {
		cuts = append(cuts, "-cut", fmt.Sprintf("%d:%s", d.Size*9/10, servedPath(d.URL)))
		atRisk += d.Size
		note("resume: cut %s of %s after nine tenths", d.URL[strings.LastIndex(d.URL, "/")+1:], megabytes(d.Size))
	}
	output := f.path("resumed.tar")
	requests, c, err := f.buildFrom(ctx, output, nil, cuts...)
	if err != nil {
		return nil, err
	}
	report("boxlift", c)
	if err := sameBundle(output, f.bundle()); err != nil {
		return nil, err
	}
	if err := os.Remove(output); err != nil {
		return nil, err
	}
	var sent int64
	ranges := 0
	for _, r := range requests {
		sent += r.Bytes
		if r.Range != "" {
			ranges++
		}
	}
	if ranges < cutDownloads {
		return nil, fmt.Errorf("%d downloads were gone on with, %d were cut", ranges, cutDownloads)
	}
	ratio := float64(sent) / float64(once)
	// All that came twice, as if it had come for the downloads that were cut alone.
	worst := 1 + float64(sent-once)/float64(atRisk)
	return []figure{
		{"resume: bytes over the wire, all downloads", megabytes(sent), megabytes(once), times(ratio), "<= 1.01x", ratio <= 1.01},
		{"resume: of the six largest, cut at 90 %", megabytes(atRisk + sent - once), megabytes(atRisk), times(worst), "<= 1.01x", worst <= 1.01},
	}, nil
}

// servedPath makes an expression for the path that serves an address. A release's file is
// served at another place than the one that leads there.
func servedPath(address string) string {
	_, path, _ := strings.Cut(strings.TrimPrefix(address, "https://"), "/")
	if !strings.HasPrefix(path, "github.com/") {
		return "^/" + regexp.QuoteMeta(path) + "$"
	}
	return upstream.FilePath("https://" + path)
}

// buildFrom builds from a stand-in of its own, and returns what that was asked for.
func (f *fixture) buildFrom(ctx context.Context, output string, args []string, behaviour ...string) (requests []upstream.Request, c cost, err error) {
	dir := f.path("other-upstream")
	log := filepath.Join(dir, "requests")
	stop, mirrors, err := f.startUpstream(ctx, f.size, dir, append(behaviour, "-requests", log)...)
	if err != nil {
		return nil, c, err
	}
	other := *f
	other.upstream, other.mirrors = dir, mirrors
	settle()
	build := other.build(ctx, output)
	build.Args = append(build.Args, args...)
	c, err = measure(build)
	if err := errors.Join(err, stop()); err != nil {
		return nil, c, err
	}
	content, err := os.ReadFile(log)
	if err != nil {
		return nil, c, err
	}
	return requests, c, json.Unmarshal(content, &requests)
}

// measureReuse builds from an identical bundle, beside builds from the stand-in: where all
// has to be copied, unless the folder's filesystem can do better, and where it can.
func (f *fixture) measureReuse(ctx context.Context) ([]figure, error) {
	reuse := []string{"--reuse", f.bundle()}
	output := f.path("again.tar")
	requests, _, err := f.buildFrom(ctx, output, reuse)
	if err != nil {
		return nil, err
	}
	if err := sameBundle(output, f.bundle()); err != nil {
		return nil, err
	}
	if err := os.Remove(output); err != nil {
		return nil, err
	}
	fetched := 0
	for _, r := range requests {
		if r.Method == http.MethodGet && r.Path != "/v2/" {
			fetched++
		}
	}
	figures := []figure{{"reuse: blobs, files and manifests fetched", fmt.Sprint(fetched), "", "", "0", fetched == 0}}
	copied, err := f.compareReuse(ctx, "reuse", f.bundle(), output)
	if err != nil {
		return nil, err
	}
	var shared []figure
	err = f.withSharedBlocks(ctx, func(dir string) error {
		older := filepath.Join(dir, "bundle.tar")
		if err := copyFile(older, f.bundle()); err != nil {
			return err
		}
		shared, err = f.compareReuse(ctx, "reuse, blocks shared", older, filepath.Join(dir, "again.tar"))
		return err
	})
	return slices.Concat(figures, copied, shared), err
}

// compareReuse builds a bundle from an identical one, and from the stand-in.
func (f *fixture) compareReuse(ctx context.Context, title, older, output string) ([]figure, error) {
	var builds, reuses []cost
	for range turns {
		c, err := f.measureOneBuild(ctx, output)
		if err != nil {
			return nil, err
		}
		builds = append(builds, c)
		settle()
		again := f.build(ctx, output)
		again.Args = append(again.Args, "--reuse", older)
		if c, err = measure(again); err != nil {
			return nil, err
		}
		report("boxlift --reuse", c)
		reuses = append(reuses, c)
		if err := os.Remove(output); err != nil {
			return nil, err
		}
	}
	wallRatio := median(reuses, wall).Seconds() / median(builds, wall).Seconds()
	cpuRatio := median(reuses, cpu).Seconds() / median(builds, cpu).Seconds()
	return []figure{
		{title + ": wall, beside a full build", seconds(median(reuses, wall)), seconds(median(builds, wall)), times(wallRatio), "<= 0.5x", wallRatio <= 0.5},
		{title + ": CPU, beside a full build", seconds(median(reuses, cpu)), seconds(median(builds, cpu)), times(cpuRatio), "", true},
		{title + ": bytes written", megabytes(median(reuses, written)), megabytes(median(builds, written)), "", "", true},
		{title + ": peak memory", megabytes(median(reuses, peak)), megabytes(median(builds, peak)), "", "", true},
	}, nil
}

// withSharedBlocks mounts, until do returns, a filesystem on which files can have blocks in
// common.
func (f *fixture) withSharedBlocks(ctx context.Context, do func(dir string) error) (err error) {
	mkfs := debian.Program{Name: "mkfs.btrfs", Package: "btrfs-progs"}
	if err := debian.Ensure(ctx, func(text string) { note("%s", text) }, mkfs); err != nil {
		return err
	}
	disk, dir := f.path("disk"), f.path("shared")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(disk)) }()
	info, err := os.Stat(f.bundle())
	if err != nil {
		return err
	}
	if err := os.Truncate(disk, 1<<30+4*info.Size()); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := runQuietly(exec.CommandContext(ctx, mkfs.Find(), "--quiet", disk)); err != nil {
		return err
	}
	if err := runQuietly(exec.CommandContext(ctx, "mount", "-o", "loop", disk, dir)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, 0)) }()
	return do(dir)
}

func copyFile(to, from string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // it was only read
	target, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	_, err = io.Copy(target, source)
	return err
}

// sameBundle compares the bundle digests, which builds have verified.
func sameBundle(a, b string) error {
	first, err := bundleDigest(a)
	if err != nil {
		return err
	}
	second, err := bundleDigest(b)
	if err != nil {
		return err
	}
	if first != second {
		return fmt.Errorf("%s is %s, and %s is %s", a, first, b, second)
	}
	return nil
}

func bundleDigest(path string) (_ digest.Digest, err error) {
	r, err := bundle.Open(path)
	if err != nil {
		return "", err
	}
	return r.Digest(), r.Close()
}
