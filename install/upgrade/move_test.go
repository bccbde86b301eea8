package upgrade

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/gate"
	"github.com/liteboxd/boxlift/install/members"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// Nodes are drained one by one: each is looked at by itself, before an upgrade begins and before it is drained.
func TestDrainingStopsWhatHasItsDataThere(t *testing.T) {
	in := example(t, sitetest.RemovingConfig)
	api := sitetest.NewStorageAPI("b", "liteboxd-system", "liteboxd-api-data", "a", "b")
	in.site.API = api.Connect(t)
	u := &planner{upgrader: in.upgrader}
	u.is.Nodes = []gate.Node{{Name: "a"}, {Name: "b"}}
	if err := u.lookForData(t.Context()); err != nil || u.is.Nodes[1].Holds != nil {
		t.Errorf("without draining: %v, %v", u.is.Nodes, err)
	}
	u.options.Accept.Drain = true
	if err := u.lookForData(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"LiteBoxd's database (the claim liteboxd-system/liteboxd-api-data), up to 5.0 GiB, in " +
		members.LocalStorage + "/pvc-1"}
	if diff := cmp.Diff([][]string{nil, want}, [][]string{u.is.Nodes[0].Holds, u.is.Nodes[1].Holds}); diff != "" {
		t.Error(diff)
	}

	for _, test := range []struct {
		node    string
		named   []string
		refused bool
	}{
		{"a", nil, false},
		{"b", nil, true},
		{"b", []string{"a", "10.0.0.13"}, true},
		{"b", []string{"b"}, false},
		{"b", []string{"10.0.0.12"}, false},
	} {
		in.upgrader.Upgrade = &Upgrading{Settings: Settings{Accept: gate.Accept{Drain: true, Interrupt: test.named}}}
		h := in.site.Hosts[1]
		h.Config.Name = test.node
		err := (&move{upgrader: in.upgrader, host: h}).checkData(t.Context())
		if errors.Is(err, site.ErrRefused) != test.refused || err != nil && !strings.Contains(err.Error(), want[0]) {
			t.Errorf("%s, with %v named: %v", test.node, test.named, err)
		}
	}
	if api.Others != nil {
		t.Errorf("the cluster was asked for %q", api.Others)
	}
}
