//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/source"
)

const (
	// turns is how often boxlift and its floor are measured, each; shortTurns is that for
	// what takes less than a few seconds.
	turns       = 3
	shortTurns  = 7
	parallelism = 6
)

// build is the build as users run it.
func (f *fixture) build(ctx context.Context, output string) *exec.Cmd {
	return f.buildOf(ctx, f.lockFile(), output)
}

func (f *fixture) buildOf(ctx context.Context, lock, output string) *exec.Cmd {
	args := []string{"bundle", "build", "-f", lock, "-o", output,
		"--key", "boxlift.key", "--parallelism", fmt.Sprint(parallelism)}
	return f.boxlift(ctx, append(args, mirrorFlags(f.mirrors)...)...)
}

func mirrorFlags(mirrors []string) []string {
	var flags []string
	for _, m := range mirrors {
		flags = append(flags, "--mirror", m)
	}
	return flags
}

func (f *fixture) measureBuild(ctx context.Context) ([]figure, error) {
	downloads, err := f.downloads()
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(f.bundle())
	if err != nil {
		return nil, err
	}
	var builds, floors, synced []cost
	for range turns {
		for _, sync := range []bool{false, true} {
			c, err := f.measureDownload(ctx, downloads, sync)
			if err != nil {
				return nil, err
			}
			if sync {
				synced = append(synced, c)
			} else {
				floors = append(floors, c)
			}
		}
		c, err := f.measureOneBuild(ctx, f.path("again.tar"))
		if err != nil {
			return nil, err
		}
		builds = append(builds, c)
	}
	var fetched int64
	for _, d := range downloads {
		fetched += d.Size
	}
	note("build: %d downloads of %s for a bundle of %s", len(downloads), megabytes(fetched), megabytes(info.Size()))
	cpuRatio := median(builds, cpu).Seconds() / median(floors, cpu).Seconds()
	wallRatio := median(builds, wall).Seconds() / median(floors, wall).Seconds()
	syncedRatio := median(builds, wall).Seconds() / median(synced, wall).Seconds()
	writtenRatio := float64(median(builds, written)) / float64(info.Size())
	return []figure{
		{"build: CPU", seconds(median(builds, cpu)), seconds(median(floors, cpu)), times(cpuRatio), "<= 1.4x", cpuRatio <= 1.4},
		{"build: wall", seconds(median(builds, wall)), seconds(median(floors, wall)), times(wallRatio), "<= 1.3x", wallRatio <= 1.3},
		{"build: wall, floor syncs its file too", seconds(median(builds, wall)), seconds(median(synced, wall)), times(syncedRatio), "", true},
		{"build: bytes written, of the bundle", megabytes(median(builds, written)), megabytes(info.Size()), times(writtenRatio), "<= 1.02x", writtenRatio <= 1.02},
		{"build: peak memory", megabytes(median(builds, peak)), megabytes(median(floors, peak)), "", "<= 96 MB", median(builds, peak) <= 96e6},
	}, nil
}

func (f *fixture) measureOneBuild(ctx context.Context, output string) (cost, error) {
	settle()
	c, err := measure(f.build(ctx, output))
	report("boxlift", c)
	return c, errors.Join(err, os.Remove(output))
}

func (f *fixture) measureDownload(ctx context.Context, downloads []download, sync bool) (cost, error) {
	job := downloadJob{
		CAFile: filepath.Join(f.upstream, "ca.pem"), Output: f.path("floor"),
		Parallelism: parallelism, Sync: sync, Downloads: downloads,
	}
	settle()
	c, err := f.measureFloor(ctx, "floor-download", job)
	report(fmt.Sprintf("floor (sync: %v)", sync), c)
	return c, errors.Join(err, os.Remove(job.Output))
}

// measureFloor runs a floor program.
func (f *fixture) measureFloor(ctx context.Context, name string, job any) (c cost, err error) {
	text, err := json.Marshal(job)
	if err != nil {
		return cost{}, err
	}
	if err := os.WriteFile(f.path("job.json"), text, 0o600); err != nil {
		return cost{}, err
	}
	stdin, err := os.Open(f.path("job.json"))
	if err != nil {
		return cost{}, err
	}
	defer func() { err = errors.Join(err, stdin.Close()) }()
	cmd, err := floor(ctx, name, stdin)
	if err != nil {
		return cost{}, err
	}
	return measure(cmd)
}

func report(who string, c cost) {
	note("  %-20s cpu %s (system %s), wall %s, written %s, peak %s",
		who, seconds(c.cpu), seconds(c.system), seconds(c.wall), megabytes(c.written), megabytes(c.peak))
}

// downloads lists everything that a build has to fetch, in the order of the bundle.
func (f *fixture) downloads() (_ []download, err error) {
	r, err := bundle.Open(f.bundle())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	contents, err := r.Contents()
	if err != nil {
		return nil, err
	}
	locked, _, err := r.Lock()
	if err != nil {
		return nil, err
	}
	endpoints := make(map[string]string)
	for _, text := range f.mirrors {
		m, err := source.ParseMirror(text)
		if err != nil {
			return nil, err
		}
		endpoints[m.Host] = m.Endpoint
	}
	list := &downloadList{endpoints: endpoints, have: make(map[digest.Digest]bool)}
	for _, c := range locked.Components {
		for _, file := range c.Files {
			list.addFile(file.URL, file.SHA256, file.Size)
		}
		for _, chart := range c.Charts {
			list.addFile(chart.URL, chart.SHA256, chart.Size)
		}
		for _, image := range c.Images {
			if image.Archive == "" {
				continue
			}
			list.addFile(image.Archive, image.SHA256, image.Size)
			for _, b := range image.Contents.Blobs {
				list.have[b.Digest] = true
			}
		}
	}
	for _, image := range contents.Images {
		repository, err := source.Repository(image.Name)
		if err != nil {
			return nil, err
		}
		list.add(repository, "manifests", image.Digest, image.Size, image.MediaType)
		for _, p := range image.Platforms {
			list.add(repository, "manifests", p.Manifest.Digest, p.Manifest.Size, p.Manifest.MediaType)
			list.add(repository, "blobs", p.Config.Digest, p.Config.Size, "")
			for _, l := range p.Layers {
				list.add(repository, "blobs", l.Digest, l.Size, "")
			}
		}
	}
	return list.downloads, nil
}

type downloadList struct {
	endpoints map[string]string
	have      map[digest.Digest]bool
	downloads []download
}

func (l *downloadList) addFile(address, sum string, size int64) {
	host, rest, _ := strings.Cut(strings.TrimPrefix(address, "https://"), "/")
	l.downloads = append(l.downloads, download{URL: "https://" + l.endpoints[host] + "/" + rest, SHA256: sum, Size: size})
}

func (l *downloadList) add(repository, kind string, d digest.Digest, size int64, accept string) {
	if l.have[d] {
		return
	}
	l.have[d] = true
	host, name, _ := strings.Cut(repository, "/")
	endpoint, prefix, _ := strings.Cut(l.endpoints[host], "/")
	address := url.URL{Scheme: "https", Host: endpoint, Path: "/v2/" + prefix + "/" + name + "/" + kind + "/" + d.String()}
	l.downloads = append(l.downloads, download{URL: address.String(), Accept: accept, SHA256: d.Encoded(), Size: size})
}
