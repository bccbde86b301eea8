package seed

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// What hosts say is shown without what could steer a terminal, and not without bound.
func TestHostsErrorIsFitToBeShown(t *testing.T) {
	in := example(t, sitetest.ExampleConfig)
	in.site.Hosts[0].Fail(&shipError{&wire.Failure{Text: "no room\x1b]0;title\a\u009b2J" + strings.Repeat("x", 4<<20)}})
	text := in.engine.HostErrors().Error()
	if strings.ContainsAny(text, "\x1b\a\u009b") || len(text) > 2*run.MaxHostError {
		t.Errorf("%d bytes: %.100q", len(text), text)
	}
}
