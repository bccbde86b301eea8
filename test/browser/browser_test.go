package browser

import (
	"slices"
	"strings"
	"testing"
)

// TestShow proves that what reports must not do is seen when it is done.
func TestShow(t *testing.T) {
	s := Show(t, []byte(`<!doctype html><title>bad</title><body style="margin:0">
<img src="http://a.example/1.png"><img src="https://b.example/2.png"><p style="width:500px">wide</p>
<script>console.error("noise")</script>`), 375, 1280)
	if !slices.ContainsFunc(s.Requests, func(r string) bool { return strings.HasPrefix(r, "GET a.example") }) ||
		!slices.ContainsFunc(s.Requests, func(r string) bool { return strings.HasPrefix(r, "CONNECT b.example") }) {
		t.Errorf("requests: %q", s.Requests)
	}
	if !slices.ContainsFunc(s.Console, func(line string) bool { return strings.Contains(line, "noise") }) {
		t.Errorf("console: %q", s.Console)
	}
	if s.Wide[375] != 500 || s.Wide[1280] != 1280 {
		t.Errorf("wide: %v", s.Wide)
	}
	if !strings.HasPrefix(string(s.PDF), "%PDF-") {
		t.Errorf("printed: %d bytes", len(s.PDF))
	}
}
