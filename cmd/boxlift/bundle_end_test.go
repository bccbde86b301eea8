package main

import (
	"strings"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/bundle/lock"
)

func TestEndText(t *testing.T) {
	end := time.Date(2027, 6, 30, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		end  time.Time
		now  time.Time
		want string
	}{
		{"no end", time.Time{}, end, ""},
		{"before it", end, end.Add(-time.Second), ""},
		{"the last moment", end, end, ""},
		{
			"after it, in another zone", end, end.Add(time.Second).In(time.FixedZone("east", 3600)),
			"until 2027-06-30T00:00:00Z, and this machine's clock says 2027-06-30T00:00:01Z",
		},
	} {
		got := endText(lock.Validity{NotAfter: c.end}, c.now)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
