package supportbundle

import "github.com/liteboxd/boxlift/install/release"

// Releases is what cluster/releases.json and operator/releases.json say: the record of releases without locks and
// without the trust file.
type Releases struct {
	Cluster  string            `json:"cluster"`
	Serial   int64             `json:"serial,omitempty"`
	Releases []release.Release `json:"releases"`
	Events   []release.Event   `json:"events,omitempty"`
	Adopted  []release.Adopted `json:"adopted,omitempty"`
}

// ReleasesOf is that of a record.
func ReleasesOf(r *release.Record) Releases {
	return Releases{Cluster: r.Cluster, Serial: r.Serial, Releases: r.Releases, Events: r.Events, Adopted: r.Adopted}
}
