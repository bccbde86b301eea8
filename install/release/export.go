package release

import (
	"fmt"
	"time"

	"github.com/liteboxd/boxlift/bundle/have"
	"github.com/liteboxd/boxlift/bundle/history"
)

// History is what the record says for those who build bundles; see package history for what is left out.
func (r *Record) History(now time.Time) (*history.History, error) {
	kept, err := r.KeptTrust()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	h := &history.History{APIVersion: history.APIVersion, Kind: history.Kind, Cluster: r.Cluster,
		Written: plain(now), Serial: r.Serial, Releases: make([]history.Release, 0, len(r.Releases))}
	for i := range r.Releases {
		one := &r.Releases[i]
		exported := history.Release{Number: one.Number, State: string(one.State), Bundle: one.Bundle, Serial: one.Serial,
			Components: make([]history.Component, 0, len(one.Components)), Started: plain(one.Started),
			Ended: plain(one.Ended)}
		for _, c := range one.Components {
			exported.Components = append(exported.Components, history.Component{Name: c.Name, Version: c.Version})
		}
		h.Releases = append(h.Releases, exported)
	}
	if kept != nil {
		h.Trust = kept.Version().Number
	}
	return h, nil
}

// Reached is how far the record is; it is for one that has a release.
func (r *Record) Reached() have.Record {
	reached := have.Record{Release: r.Newest().Number, Serial: r.Serial}
	if current := r.Current(); current != nil {
		reached.Bundle = current.Bundle
	}
	return reached
}

func plain(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }
