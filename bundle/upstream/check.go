package upstream

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/ospackages"
	"github.com/liteboxd/boxlift/bundle/pieces"
)

// Outdated compares a lock with what upstream has now: tags that stand for another digest
// than the locked one, files whose size or published checksum is another, and components
// of which there is a newer patch of the same minor version. Each change says what is
// locked and what is new. OS packages are resolved anew, for which the indexes of their
// archives are fetched. Nothing else that is large is fetched: tags and files are asked about
// with HEAD; what lies on this host is read. It makes at most parallelism requests at a time, and reports all that it
// could not find out beside what it could.
func (f *Finder) Outdated(ctx context.Context, l *lock.Lock, parallelism int) ([]lock.Change, error) {
	o := &outdated{finder: f, packages: &ospackages.Finder{Source: f.Source}}
	for _, c := range l.Components {
		o.component(l, c)
	}
	changes := make([][]lock.Change, len(o.questions))
	errs := make([]error, len(o.questions))
	var group errgroup.Group
	group.SetLimit(parallelism)
	for i, q := range o.questions {
		group.Go(func() error {
			var err error
			if changes[i], err = q.ask(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %s: %w", q.component, q.entry, err)
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	return slices.Concat(changes...), errors.Join(errs...)
}

// outdated collects what there is to ask.
type outdated struct {
	finder    *Finder
	packages  *ospackages.Finder
	questions []question
	digests   memo[string]            // of tags, by reference
	sizes     memo[int64]             // of files, by address
	disk      memo[string]            // checksums of what lies on this host, by address
	sums      memo[map[string]string] // published checksums, by address
	charts    memo[[]chartVersion]    // by address of their index
}

// memo keeps what was answered: the same thing is asked once.
type memo[T any] struct {
	mu      sync.Mutex
	answers map[string]*answer[T]
}

type answer[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (m *memo[T]) get(key string, ask func() (T, error)) (T, error) {
	m.mu.Lock()
	a, ok := m.answers[key]
	if !ok {
		if m.answers == nil {
			m.answers = make(map[string]*answer[T])
		}
		a = new(answer[T])
		m.answers[key] = a
	}
	m.mu.Unlock()
	a.once.Do(func() { a.value, a.err = ask() })
	return a.value, a.err
}

// question asks what upstream has in the place of what an entry locks.
type question struct {
	component, entry string
	ask              func(context.Context) ([]lock.Change, error)
}

func (o *outdated) component(l *lock.Lock, c lock.Component) {
	platforms := c.PlatformsIn(l)
	wanted := func(p lock.Platform) bool { return p == "" || slices.ContainsFunc(platforms, p.Match) }
	if Check(c.Name, c.Version) == nil {
		o.add(c.Name, "version", c.Version, func(ctx context.Context) (string,
			error) {
			return o.newer(ctx, c.Name, c.Version)
		})
	}
	for _, file := range c.Files {
		if wanted(file.Platform) {
			o.file(c.Name, strings.TrimSpace("files "+file.Name+" "+string(file.Platform)), file.URL, file.SHA256,
				file.Size)
		}
	}
	for _, chart := range c.Charts {
		if entry := "charts " + chart.Name; strings.HasPrefix(chart.URL, ciliumCharts) {
			o.add(c.Name, entry, "sha256:"+chart.SHA256, func(ctx context.Context) (string,
				error) {
				return o.chart(ctx, chart.URL)
			})
		} else {
			o.file(c.Name, entry, chart.URL, chart.SHA256, chart.Size)
		}
	}
	for _, image := range c.Images {
		if image.Ref == "" {
			if wanted(image.Platform) {
				o.file(c.Name, "images "+string(image.Platform), image.Archive, image.SHA256, image.Size)
			}
			continue
		}
		o.add(c.Name, "images "+image.Ref, string(image.Digest), func(ctx context.Context) (string, error) {
			return o.digests.get(image.Ref, func() (string, error) {
				now, err := o.finder.Source.Resolve(ctx, image.Ref)
				return string(now.Digest), err
			})
		})
	}
	for _, s := range c.Packages {
		if wanted(s.Platform) {
			o.questions = append(o.questions, question{c.Name, "packages " + s.Release() + " " + string(s.Platform),
				func(ctx context.Context) ([]lock.Change, error) { return o.packages.Changed(ctx, c.Name, s) }})
		}
	}
}

// add adds a question that has one answer; "" when upstream does not say.
func (o *outdated) add(component, entry, locked string, ask func(context.Context) (string, error)) {
	o.questions = append(o.questions, question{component, entry, func(ctx context.Context) ([]lock.Change, error) {
		now, err := ask(ctx)
		if err != nil || now == "" || now == locked {
			return nil, err
		}
		return []lock.Change{{Component: component, Entry: entry, Old: locked, New: now}}, nil
	}})
}

// file asks for the published checksum where there is one, and for the size otherwise.
func (o *outdated) file(component, entry, address, pinned string, size int64) {
	if strings.HasPrefix(address, "file:") {
		o.add(component, entry, "sha256:"+pinned, func(ctx context.Context) (string, error) {
			return o.disk.get(address, func() (string, error) { return o.hash(ctx, address) })
		})
		return
	}
	if folder, name, ok := cutRelease(address); ok {
		o.add(component, entry, "sha256:"+pinned, func(ctx context.Context) (string,
			error) {
			return o.checksum(ctx, folder, name)
		})
		return
	}
	if strings.HasPrefix(address, ciliumCLIReleases) {
		o.add(component, entry, "sha256:"+pinned, func(ctx context.Context) (string, error) {
			return o.sum(ctx, address+ciliumCLISum, path.Base(address))
		})
		return
	}
	o.add(component, entry, strconv.FormatInt(size, 10)+" bytes", func(ctx context.Context) (string, error) {
		now, err := o.sizes.get(address, func() (int64, error) { return o.finder.Source.Size(ctx, address) })
		if err != nil || now < 0 {
			return "", err
		}
		return strconv.FormatInt(now, 10) + " bytes", nil
	})
}

// hash reads what lies on this host.
func (o *outdated) hash(ctx context.Context, address string) (string, error) {
	stream, err := o.finder.Source.Open(ctx, address)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(h, pieces.Until(ctx, stream))
	return digest.NewDigest(digest.SHA256, h).String(), errors.Join(err, stream.Close())
}

// cutRelease takes the address of a file of a k3s release apart.
func cutRelease(address string) (folder, name string, ok bool) {
	rest, ok := strings.CutPrefix(address, k3sReleases)
	if !ok {
		return "", "", false
	}
	version, name, ok := strings.Cut(rest, "/")
	return k3sReleases + version + "/", name, ok
}

// checksum is the published one of a file of a k3s release.
func (o *outdated) checksum(ctx context.Context, folder, name string) (string, error) {
	arch := "amd64"
	if strings.Contains(name, "arm64") {
		arch = "arm64"
	}
	return o.sum(ctx, folder+"sha256sum-"+arch+".txt", name)
}

// sum is the one of a file in a list of checksums; "" when it is not there.
func (o *outdated) sum(ctx context.Context, address, name string) (string, error) {
	sums, err := o.sums.get(address, func() (map[string]string, error) { return o.finder.sumsAt(ctx, address) })
	if err != nil || sums[name] == "" {
		return "", err
	}
	return "sha256:" + sums[name], nil
}

// chart is the published checksum of one of Cilium's charts.
func (o *outdated) chart(ctx context.Context, address string) (string, error) {
	charts, err := o.ciliumIndex(ctx)
	if err != nil {
		return "", err
	}
	for _, chart := range charts {
		if chart.Digest != "" && address == chartAddress(chart.Version) {
			return "sha256:" + strings.TrimPrefix(chart.Digest, "sha256:"), nil
		}
	}
	return "", nil
}

func (o *outdated) ciliumIndex(ctx context.Context) ([]chartVersion, error) {
	const address = ciliumCharts + "index.yaml"
	return o.charts.get(address, func() ([]chartVersion, error) {
		content, err := o.finder.Source.File(ctx, address, maxIndex)
		if err != nil {
			return nil, err
		}
		charts, err := parseIndex(content, Cilium)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", address, err)
		}
		return charts, nil
	})
}

// newer asks for the newest patch; "" when there is none.
func (o *outdated) newer(ctx context.Context, name, version string) (string, error) {
	all, err := o.versions(ctx, name, version)
	return newest(name, version, all), err
}

// versions lists those that upstream says it has; of k3s' it says only which is the newest.
func (o *outdated) versions(ctx context.Context, name, version string) ([]string, error) {
	switch name {
	case K3s:
		content, err := o.finder.Source.File(ctx, k3sChannels, maxList)
		if err != nil {
			return nil, err
		}
		channels, err := parseChannels(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k3sChannels, err)
		}
		v, _ := parseVersion(version) // Check has accepted it
		return []string{channels[fmt.Sprintf("v%d.%d", v.major, v.minor)]}, nil
	case Cilium:
		charts, err := o.ciliumIndex(ctx)
		var all []string
		for _, chart := range charts {
			all = append(all, chart.Version)
		}
		return all, err
	}
	return o.finder.Source.Tags(ctx, liteboxdServer)
}
