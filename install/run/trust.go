package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/trustfile"
	"github.com/liteboxd/boxlift/node/wire"
)

// Each host has the newest trust file that its site keeps. It is there for what hosts check by themselves, and it is
// a floor: where the cluster's record is lost, or comes back from an old backup, the hosts that survived still know
// what was revoked. A host brings nothing into the site by this. Its file counts where owners have signed it on from
// what the cluster keeps or the operator names, and else is something to tell.

// hostTrust is what a host has in the place of its trust file.
type hostTrust struct {
	host   string
	policy *trust.Policy
}

// askHosts reads the trust files of all hosts that can be asked, the oldest first. What is none is told of.
func (rec *Record) askHosts(ctx context.Context) {
	hosts := rec.connected()
	var mutex sync.Mutex
	rec.ofHosts = nil
	rec.Site.AtOnce(hosts, func(h *site.Host) {
		if ctx.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeoutCause(ctx, RecordTimeout, fmt.Errorf("given up after %v", RecordTimeout))
		defer cancel()
		found, err := trustfile.Read(ctx, h.Conn)
		if err == nil {
			err = found.Fault
		}
		if err != nil {
			rec.Site.Warn("%s: the trust file there counts for nothing: %v", h.Name, err)
			return
		}
		if found.Policy != nil {
			mutex.Lock()
			defer mutex.Unlock()
			rec.ofHosts = append(rec.ofHosts, hostTrust{h.Name, found.Policy})
		}
	})
	slices.SortFunc(rec.ofHosts, func(a, b hostTrust) int {
		return cmp.Or(cmp.Compare(a.policy.Version().Number, b.policy.Version().Number), cmp.Compare(a.host, b.host))
	})
}

// connected are the hosts that are connected to and have not failed.
func (rec *Record) connected() []*site.Host {
	return slices.DeleteFunc(slices.Clone(rec.Site.Hosts),
		func(h *site.Host) bool { return h.Conn == nil || h.Err != nil })
}

// floor is the newest trust file that hosts have and that follows on one, or that one itself where none is newer. by
// says which hosts have it, as in "the host a keeps", and is "" where none has. Without one to hold them against,
// those of hosts count for nothing.
func (rec *Record) floor(on *trust.Policy, now time.Time) (newest *trust.Policy, by string) {
	if on == nil {
		if n := len(rec.ofHosts); n > 0 {
			last := rec.ofHosts[n-1]
			rec.Site.Warn(
				"%s has version %d of a trust file (%s), which counts for nothing where neither the cluster nor "+
					"the operator has one to hold it against: name the site's with --trust", last.host,
				last.policy.Version().Number, last.policy.Digest())
		}
		return nil, ""
	}
	newest = on
	var names []string
	for _, h := range rec.ofHosts {
		p, err := newest.Accept(h.policy.File(), now)
		switch {
		case errors.Is(err, trust.ErrOlder):
		case err != nil:
			rec.Site.Warn(
				"%s: the trust file there, of version %d (%s), counts for nothing: it does not follow on version "+
					"%d (%s): %v", h.host, h.policy.Version().Number, h.policy.Digest(), newest.Version().Number, newest.Digest(),
				err)
		case p != newest:
			newest, names = p, []string{h.host}
		case names != nil:
			names = append(names, h.host)
		}
	}
	switch len(names) {
	case 0:
		return newest, ""
	case 1:
		return newest, "the host " + names[0] + " keeps"
	}
	return newest, "the hosts " + strings.Join(names, ", ") + " keep"
}

// keptTrust is the trust file that a record, nil for none, keeps, or a newer one that follows on it or on the one that
// the operator names, and that hosts have; nil for none. by says who has it, as in "the cluster keeps".
func (rec *Record) keptTrust(r *release.Record, now time.Time) (held *trust.Policy, by string, err error) {
	held, err = r.KeptTrust()
	if err != nil {
		return nil, "", &RecordError{fmt.Errorf("%w: %w", release.ErrInvalid, err)}
	}
	on := held
	if named := rec.Demand.Policy; on == nil {
		on = named
	} else if named != nil {
		if p, err := on.Accept(named.File(), now); err == nil {
			on = p
		}
	}
	newest, names := rec.floor(on, now)
	if names == "" {
		return held, "the cluster keeps", nil
	}
	return newest, names, nil
}

// siteTrust is the newest trust file that is known of the site: by which the bundle was judged, that the cluster
// keeps, or, where it cannot be asked, its copy beside the state; nil for none.
func (rec *Record) siteTrust(ctx context.Context) (*trust.Policy, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, RecordTimeout, fmt.Errorf("given up after %v", RecordTimeout))
	defer cancel()
	_, r, _, err := rec.OpenRecord(ctx)
	if err != nil {
		if r, err = release.ReadFile(rec.RecordCopy()); err != nil {
			r = nil // the record tells of it
		}
	}
	named := rec.Demand.Policy
	if rec.Approval != nil && rec.Approval.Policy != nil {
		named = rec.Approval.Policy
	}
	newest, err := r.NewestTrust(named, time.Now())
	if err != nil && named != nil {
		rec.Site.Warn("the trust file that is named comes to no host: %v", err)
		return r.KeptTrust()
	}
	return newest, err
}

// reachAgents connects to the agents. Those that cannot be reached, and servers that could not be, are told of.
func (rec *Record) reachAgents(ctx context.Context) {
	failed := func(h *site.Host, err error) {
		rec.Site.Warn(
			"%s could not be reached, and gets the trust file by the next run that reaches it: %v", h.Name, err)
	}
	for _, h := range rec.Site.Servers() {
		if h.Conn == nil {
			failed(h, site.ErrHosts)
		}
	}
	rec.Site.AtOnce(rec.Site.Agents(), func(h *site.Host) {
		if err := rec.Site.Connect(ctx, h); err != nil {
			h.Conn = nil
			failed(h, err)
		}
	})
}

// BringTrust brings the newest trust file that is known of the site to all hosts that are connected to.
func (rec *Record) BringTrust(ctx context.Context) error {
	newest, err := rec.siteTrust(ctx)
	if err != nil || newest == nil {
		return err
	}
	return rec.Engine.EachHost(ctx, rec.connected(), func(ctx context.Context, h *site.Host) error {
		return rec.Engine.RunSteps(ctx, "trust", &h.Subject, []Step{rec.trustStep(h, newest)})
	})
}

// trustStep brings a trust file to a host.
func (rec *Record) trustStep(h *site.Host, newest *trust.Policy) Step {
	return Step{
		ID: "file:" + wire.TrustFile, Title: "keep the site's trust file", Alone: true, Unrecorded: true,
		Needed: func(ctx context.Context) (string, error) {
			found, err := trustfile.Read(ctx, h.Conn)
			if err != nil {
				return "", err
			}
			reason, finding := found.Reason(newest, time.Now())
			if finding != "" {
				rec.Site.Warn("%s: %s", h.Name, finding)
			}
			return reason, nil
		},
		Run: func(ctx context.Context) error { return trustfile.Write(ctx, h.Conn, newest, time.Now()) },
	}
}
