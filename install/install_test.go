package install

import (
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/sitetest"
)

func TestCheckConfig(t *testing.T) {
	named := func(k3s, cilium string) string {
		text := strings.Replace(sitetest.ExampleConfig, "    k3s:\n", "    k3s:\n      version: "+k3s+"\n", 1)
		return strings.Replace(text, "cilium: {", "cilium: {version: "+cilium+", ", 1)
	}
	tests := []struct {
		name       string
		config     string
		components []string
		want       []string
	}{
		{name: "no versions named", config: sitetest.ExampleConfig, components: []string{"k3s=v1.36.4+k3s1", "cilium=1.20.0"}},
		{name: "the same versions", config: named("v1.36.4+k3s1", "1.20.0"), components: []string{"k3s=v1.36.4+k3s1", "cilium=1.20.0"}},
		{
			name: "other versions", config: named("v1.30.6+k3s1",
				"1.18.6"), components: []string{"k3s=v1.36.4+k3s1", "cilium=1.20.0"},
			want: []string{"asks for k3s v1.30.6+k3s1, the bundle carries v1.36.4+k3s1", "asks for Cilium 1.18.6, the bundle carries 1.20.0"},
		},
		{name: "no k3s", config: sitetest.ExampleConfig, components: []string{"cilium=1.20.0"}, want: []string{`carries no component "k3s"`}},
		{name: "no Cilium", config: sitetest.ExampleConfig, components: []string{"k3s=v1.36.4+k3s1"}, want: []string{`carries no component "cilium"`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := example(t, test.config, test.components...).checkConfig()
			if (err == nil) != (test.want == nil) {
				t.Fatalf("got %v, want errors %q", err, test.want)
			}
			if err != nil && !errors.Is(err, site.ErrConfig) {
				t.Errorf("%v is not ErrConfig", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not say %q", err, want)
				}
			}
		})
	}
}
