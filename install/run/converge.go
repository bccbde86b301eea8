package run

import (
	"slices"

	"github.com/liteboxd/boxlift/install/site"
)

// WholeCluster tells whether every host of install.yaml is well so far.
func (en *Engine) WholeCluster() bool {
	return !slices.ContainsFunc(en.Site.Hosts, func(h *site.Host) bool { return h.Err != nil })
}
