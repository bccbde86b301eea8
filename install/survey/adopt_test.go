package survey

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// A host that was adopted is in its cluster: nobody takes it for one that is about to join, and preflight judges it as
// boxlift's own.
func TestAdoptedIsOwn(t *testing.T) {
	in := adoptedExample(t, sitetest.ThreeServers)
	for _, h := range in.site.Hosts {
		h.Facts = &facts.Facts{Units: []facts.Unit{{Name: site.Unit(h.Config.Role) + ".service", LoadState: "loaded", ActiveState: "active"}}}
		h.Facts.K3s = facts.K3s{Path: site.K3sBinary, Version: in.site.K3s}
		if k3s.IsNew(h) {
			t.Errorf("%s is new", h.Name)
		}
	}
	judged := func() []string {
		var texts []string
		for _, f := range preflight.Judge(in.surveyor.Needs(), in.surveyor.Subjects()) {
			if f.Check == "k3s" {
				texts = append(texts, f.Host+": "+f.Found+"; "+f.Hint)
			}
		}
		return texts
	}
	if got := judged(); got != nil {
		t.Errorf("%q", got)
	}
	if in.site.Hosts[0].Facts.K3s.Managed {
		t.Error("what a host has said was changed")
	}
	in.site.Hosts[0].Adopted = nil
	if got := judged(); len(got) != 1 || !strings.Contains(got[0], "and not by boxlift; if it is a node of the cluster of install.yaml, boxlift adopt") {
		t.Errorf("%q", got)
	}
	in.site.Hosts[0].Facts.K3s.Version = "v1.35.0+k3s1"
	if got := judged(); len(got) != 2 {
		t.Errorf("another version: %q", got)
	}
}
