package install

import (
	"testing"

	"github.com/liteboxd/boxlift/test/sitetest"
)

func example(t *testing.T, text string, components ...string) *installation {
	t.Helper()
	s := sitetest.Example(t, text, components...)
	in := newRooms(Options{Config: s.Config, Reporter: s.Reporter})
	in.site.Contents, in.site.Hosts = s.Contents, s.Hosts
	return in
}
