package run_test

import (
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/wire"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// TestTrustStep: the site's trust file comes to a host, broken off or not, and replaces nothing that is newer.
func TestTrustStep(t *testing.T) {
	one := trusttest.First(t)
	two := trusttest.Next(t, one, trusttest.Revoke(t, "ann", "laptop lost"))
	three := trusttest.Next(t, two, func(*trust.Version) {})
	fork := trusttest.Next(t, one, func(v *trust.Version) { v.Keys = v.Keys[:3] })
	content := func(p *trust.Policy) string {
		text, err := p.File().Since(p.Version().Number).Encode()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, test := range []struct {
		name, there, why, warns string
		want                    *trust.Policy
	}{
		{"a new host", "", wire.TrustFile + " is missing", "", two},
		{"an older one", content(one), "version 1 is there, and the site has version 2", "", two},
		{"the same", content(two), "", "", two},
		{"a newer one", content(three), "", "a: version 3 of the trust file is there", three},
		{"garbage", "garbage", "is no trust file", "", two},
		{"a fork", content(fork), "does not follow on the site's version 2", "a: the trust file there, of version 2",
			two},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			var of *site.Site
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				last, of = hosttest.New(t, "a"), sitetest.Fresh(t, 0)
				last.WriteFile(t, "/var/lib/boxlift/of-others", "", 0o600)
				if test.there != "" {
					last.WriteFile(t, wire.TrustFile, test.there, 0o644)
				}
				h := &site.Host{Conn: last}
				h.Name = "a"
				return last, run.TrustStep(&run.Record{Site: of}, h, two)
			}})
			if last.ReadFile(t, wire.TrustFile) != content(test.want) {
				t.Errorf("the host has %.100q", last.ReadFile(t, wire.TrustFile))
			}
			if text := strings.Join(of.Warnings, "\n"); !strings.Contains(text, test.warns) && test.why == "" {
				t.Errorf("warnings: %q", text)
			}
		})
	}
}
