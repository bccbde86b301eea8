package inspect

import (
	"strings"
	"testing"
	"time"

	machine "github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/renewal"
	node "github.com/liteboxd/boxlift/node/renewal"
)

// Who looks after certificates is not looked after by anybody else: that it does not run is a failure as its failing is.
func TestJudgeRenewal(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	runs := machine.Service{Load: "loaded", Active: "active", Enabled: true}
	for _, test := range []struct {
		name   string
		timer  machine.Service
		result string
		state  *node.State
		want   string
	}{
		{"nothing there", machine.Service{Load: "not-found", Active: "inactive"}, "success", nil, "failed boxlift-renewal.timer is not there: nobody renews"},
		{"stopped", machine.Service{Load: "loaded", Active: "inactive"}, "success", &node.State{Looked: now}, "failed boxlift-renewal.timer is inactive"},
		{"new", runs, "success", nil, "ok the timer runs, and has not looked yet"},
		{"broken", runs, "exit-code", nil, "failed the program that renews certificates failed: exit-code"},
		{"well", runs, "success", &node.State{Looked: now, Ends: now.Add(300 * day)}, "ok looked on 2026-11-26, the first certificate of k3s ends on 2027-09-22"},
		{"failed", runs, "exit-code", &node.State{Looked: now, Failed: now, Error: "no"}, "failed the renewal of certificates failed: no"},
		{"silent", runs, "success", &node.State{Looked: now.Add(-11 * day)}, "failed the certificates were looked at last on 2026-11-15"},
		{"waiting", runs, "success", &node.State{Looked: now, Ends: now.Add(79 * day), Waits: "second is not Ready"}, "ok looked on 2026-11-26, the first certificate of k3s ends on 2027-02-13; it waits to renew: second"},
		{"waiting for long", runs, "success", &node.State{Looked: now, Ends: now.Add(60 * day), Waits: "second is not Ready"}, "warning certificates end in 60 days and are not renewed yet: second"},
	} {
		c := judgeRenewal("a", &renewal.Found{Timer: test.timer, Result: test.result, State: test.state}, now)
		if got := verdict(t, c) + " " + c.Detail; !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
