package plan

import (
	"context"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/source"
)

// ChartCheck is a condition that a chart has to meet for there to be a plan.
type ChartCheck struct {
	// Component is whose first chart it is about.
	Component string
	// Check is called with the chart's archive, which is empty when the component has none:
	// once, beside the rest of planning; not at all when an older bundle is the planned one.
	Check func(ctx context.Context, chart []byte) error
}

// maxChart bounds a chart, in bytes; Cilium's has some 230 kB.
const maxChart = 8 << 20

// fetchChart fetches the chart that there is a check for ahead of the rest.
func (p *planner) fetchChart(ctx context.Context) ([]byte, error) {
	for _, c := range p.options.Lock.Components {
		if c.Name != p.options.Chart.Component || len(c.Charts) == 0 {
			continue
		}
		locked := c.Charts[0]
		d := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, locked.SHA256), Size: locked.Size}
		if chart, ok := contentIn(p.options.Reuse, d.Digest, maxChart); ok {
			return chart, nil
		}
		f := &Fetch{Size: d.Size, Blob: d, Open: p.openURL(locked.URL)}
		chart, err := f.whole(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", format.Label(c.Name, source.BaseName(locked.URL), ""), err)
		}
		return chart, nil
	}
	return nil, nil
}

// RunningCheck is a check that is under way: rendering a chart takes one core as long as planning takes the others.
type RunningCheck struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when err is what there is to say
	err    error
}

// startChart begins the check of a chart. It has to be stopped.
func (p *planner) startChart(ctx context.Context, chart []byte) *RunningCheck {
	ctx, cancel := context.WithCancel(ctx)
	c := &RunningCheck{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		c.err = p.options.Chart.Check(ctx, chart)
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
func (p *planner) keep(content []byte) {
	d := digest.FromBytes(content)
	if !p.have[d] {
		return
	}
	p.plan.Content[d] = content
	p.plan.Fetches = slices.DeleteFunc(p.plan.Fetches,
		func(f *Fetch) bool { return f.Archive == nil && f.Blob.Digest == d })
}
