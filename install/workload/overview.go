package workload

import (
	"context"
	"slices"
	"time"

	"github.com/liteboxd/boxlift/install/config/workloads"
	"github.com/liteboxd/boxlift/install/kube/helm"
)

// Overview is what is known of a workload.
type Overview struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	// Listed reports whether install.yaml has it.
	Listed bool `json:"listed"`
	// Version is what runs, "" where nothing does; State is Helm's word for it, Since when it came to be so.
	Version  string    `json:"version,omitempty"`
	Revision int       `json:"revision,omitempty"`
	State    string    `json:"state,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

// Overview tells of the workloads of install.yaml, in their order, and of the others that boxlift has put on the
// cluster.
func (r *Room) Overview(ctx context.Context) ([]Overview, error) {
	list := []Overview{}
	for _, w := range r.Site.Config.Workloads {
		list = append(list, Overview{Name: w.Name, Namespace: w.Namespace, Listed: true})
	}
	installed, err := r.installed(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range installed {
		if !slices.ContainsFunc(r.Site.Config.Workloads, func(w workloads.Workload) bool {
			return w.Name == i.Name && w.Namespace == i.Namespace
		}) {
			list = append(list, Overview{Name: i.Name, Namespace: i.Namespace})
		}
	}
	for i := range list {
		o := &list[i]
		state, err := helm.Current(ctx, r.Site.API, o.Namespace, o.Name)
		if err != nil {
			return nil, err
		}
		if state != nil {
			o.Version, o.Revision, o.State, o.Since = state.ChartVersion, state.Revision, state.Status,
				state.Since.UTC().Truncate(time.Second)
		}
	}
	return list, nil
}
