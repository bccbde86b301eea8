// Package supportbundle collects what somebody elsewhere needs to see of a cluster that does not do what it is to:
// logs, states, configuration and objects, without secrets, in one archive (package archive).
//
// Contract: it only looks, and puts nothing on a host. A host that cannot be reached, an API that does not answer,
// and whatever fails or takes too long are items with an error, and all else is collected. Hosts are collected from
// at the same time; each item ends after [Settings.ItemTimeout] and each host after [Settings.HostTimeout]. What a
// host sends goes through the redactor into the archive and is never in memory. Of Secrets the API is asked for
// names, types and the names of their entries, never for what is in them; of ConfigMaps too, but for those of Cilium
// and CoreDNS. Files with tokens, keys and kubeconfigs are not read on hosts.
package supportbundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/supportbundle/archive"
	"github.com/liteboxd/boxlift/internal/printable"
)

// Settings bound what is collected.
type Settings struct {
	// Since is from when on logs are asked for.
	Since time.Time
	// LogBytes is how much of each log is taken: its end.
	LogBytes int64
	// ItemTimeout bounds each item, HostTimeout all of one host, with logging in.
	ItemTimeout, HostTimeout time.Duration
}

// Collector collects from the hosts and the cluster of a site.
type Collector struct {
	Site   *site.Site
	Engine *run.Engine
	Settings
}

// maxItem bounds what is not a log, in bytes.
const maxItem = 16 << 20

// Collect brings what there is into the archive. It fails when that cannot be written. The error wraps
// [site.ErrHosts] or [ErrUnreached] when hosts or the API could not be reached, which the archive says, too.
func (c *Collector) Collect(ctx context.Context, a *archive.Writer) error {
	if err := c.fromHosts(ctx, a); err != nil {
		return err
	}
	clusterErr, err := c.fromCluster(ctx, a)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(c.Engine.HostErrors(), clusterErr)
}

// fromHosts collects from all hosts at the same time. The error is of the archive.
func (c *Collector) fromHosts(ctx context.Context, a *archive.Writer) error {
	names := folders(c.Site.Hosts)
	errs := make(chan error, len(c.Site.Hosts))
	task := c.Site.Reporter.Task("collect from "+printable.Counted(len(c.Site.Hosts), "host"), 0)
	failed := c.Engine.EachHost(ctx, c.Site.Hosts, func(ctx context.Context, h *site.Host) error {
		ctx, cancel := context.WithTimeoutCause(ctx, c.HostTimeout,
			fmt.Errorf("given up after %v for the host", c.HostTimeout))
		defer cancel()
		of := hostItems{Collector: c, archive: a, host: h, folder: "hosts/" + names[h]}
		connectErr := c.Site.Connect(ctx, h)
		if connectErr != nil {
			errs <- a.Add(ctx, of.item("connection.txt", "a connection to the host"), maxItem,
				func(context.Context, io.Writer) (archive.Cut, error) { return archive.Whole, connectErr })
			return connectErr
		}
		errs <- of.collect(ctx)
		return nil
	})
	task.Done(failed)
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// folders are the names of hosts in the archive, no two alike.
func folders(hosts []*site.Host) map[*site.Host]string {
	names, taken := make(map[*site.Host]string), make(map[string]bool)
	for _, h := range hosts {
		name := archive.Name(h.Config.Host)
		if h.Config.Name != "" {
			name = archive.Name(h.Config.Name)
		}
		for i, first := 2, name; taken[name]; i++ {
			name = fmt.Sprintf("%s-%d", first, i)
		}
		names[h], taken[name] = name, true
	}
	return names
}

// hostItems collects from one host.
type hostItems struct {
	*Collector
	archive *archive.Writer
	host    *site.Host
	folder  string
}

func (of hostItems) item(name, source string) archive.Item {
	return archive.Item{Path: of.folder + "/" + name, Host: of.host.Name, Source: source}
}

// add has a program's output collected.
func (of hostItems) add(ctx context.Context, name string, most int64, isLog bool, source string, args ...string) error {
	get := func(ctx context.Context, w io.Writer) (archive.Cut, error) {
		if ctx.Err() != nil {
			return archive.Whole, context.Cause(ctx) // nobody need connect again to find that out
		}
		ctx, cancel := context.WithTimeoutCause(ctx, of.ItemTimeout, fmt.Errorf("given up after %v", of.ItemTimeout))
		defer cancel()
		if !isLog {
			return archive.Whole, of.stream(ctx, w, source, args)
		}
		end := &logEnd{w: w}
		err := of.stream(ctx, end, source, args)
		if end.wasCut {
			return archive.CutHead, err
		}
		return archive.Whole, err
	}
	return of.archive.Add(ctx, of.item(name, source), most, get)
}

// stream runs a program as root, and has what it prints written.
func (of hostItems) stream(ctx context.Context, w io.Writer, title string, args []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// What it has printed to stdout is in the archive, which masks; errors may show stderr, and are masked there as
	// well.
	p, err := of.host.Conn.Start(ctx, host.Command{Title: title, Args: args, Root: true, HideOutput: true})
	if err != nil {
		return err
	}
	closeErr := p.Stdin.Close()
	_, copyErr := io.Copy(w, p.Stdout)
	if copyErr != nil {
		cancel() // it may go on printing for ever
	}
	waitErr := p.Wait()
	if copyErr != nil && !errors.Is(waitErr, context.Canceled) {
		return errors.Join(copyErr, waitErr)
	}
	var exit *host.ExitError
	switch {
	case copyErr != nil:
		return copyErr
	case errors.As(waitErr, &exit) && exit.Code == absentExit:
		return archive.ErrAbsent
	case waitErr != nil:
		return waitErr
	}
	return closeErr
}
