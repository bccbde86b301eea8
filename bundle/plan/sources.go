package plan

import (
	"context"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/workload"
)

// SourceCheck is a condition that what components are installed from has to meet for there to be a plan.
type SourceCheck struct {
	// Components are those that are looked into: their charts, or tars of manifests, and values. One that the lock
	// does not have, or that has none of these, is passed over.
	Components []string
	// Check is called with what they are installed from, in the order of the lock: once, beside the rest of planning;
	// not at all when an older bundle is the planned one.
	Check func(ctx context.Context, sources []workload.Source) error
}

// fetchSources fetches what there is a check for ahead of the rest.
func (p *planner) fetchSources(ctx context.Context) ([]workload.Source, error) {
	var list []workload.Source
	for _, c := range p.options.Lock.Components {
		w, ok := workload.Of(p.options.LockName, c)
		if !ok || !slices.Contains(p.options.Sources.Components, c.Name) {
			continue
		}
		s, err := w.Read(func(e workload.Entry) ([]byte, error) { return p.fetchEntry(ctx, e) })
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func (p *planner) fetchEntry(ctx context.Context, e workload.Entry) ([]byte, error) {
	d := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, e.SHA256), Size: e.Size}
	if content, ok := contentIn(p.options.Reuse, d.Digest, e.Most); ok {
		return content, nil
	}
	f := &Fetch{Size: d.Size, Blob: d, Open: p.openURL(e.URL)}
	return f.whole(ctx, e.Most)
}

// RunningCheck is a check that is under way: rendering a chart takes one core as long as planning takes the others.
type RunningCheck struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when err is what there is to say
	err    error
}

// startCheck begins the check of what was fetched. It has to be stopped.
func (p *planner) startCheck(ctx context.Context, sources []workload.Source) *RunningCheck {
	ctx, cancel := context.WithCancel(ctx)
	c := &RunningCheck{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		c.err = p.options.Sources.Check(ctx, sources)
	}()
	return c
}

// Wait returns what the check has found, once it has.
func (c *RunningCheck) Wait() error {
	if c == nil {
		return nil
	}
	<-c.ended
	return c.err
}

// Stop ends the check, which nobody waits for any more.
func (c *RunningCheck) Stop() {
	if c != nil {
		c.cancel()
		<-c.ended
	}
}

// keep makes what was fetched ahead of the rest a part of the plan, so that Build does not
// fetch it again.
func (p *planner) keep(sources []workload.Source) {
	for _, s := range sources {
		p.keepContent(s.Content)
		if s.Values != nil {
			p.keepContent(s.ValuesContent)
		}
	}
}

func (p *planner) keepContent(content []byte) {
	d := digest.FromBytes(content)
	if !p.have[d] {
		return
	}
	p.plan.Content[d] = content
	p.plan.Fetches = slices.DeleteFunc(p.plan.Fetches,
		func(f *Fetch) bool { return f.Archive == nil && f.Blob.Digest == d })
}
