package seed

import (
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// boxlift's registry, and its authority, go from hosts that are not to have them any more, whole.
func TestRetireSteps(t *testing.T) {
	for _, test := range []struct {
		name, config string
		files        []string
		id, why      string
	}{
		{"never had one", "", nil, "remove-registry", ""},
		{"the unit", "", []string{run.RegistryUnit}, "remove-registry", run.RegistryUnit + " is there"},
		{"the folder", "", []string{run.RegistryDir + "/config.json", run.RegistryDir + "/tls.pem"}, "remove-registry", run.RegistryDir + " is there"},
		{"all of it", "", []string{run.RegistryUnit, run.RegistryDir + "/config.json", run.RegistryProgram}, "remove-registry", "is there"},
		{"never had an authority", "", nil, "remove-registry-authority", ""},
		{"its authority", "", []string{k3sRegistryCA}, "remove-registry-authority", k3sRegistryCA + " is there"},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.Prove(t, steptest.Case{Why: test.why, Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				in := seeded(t, sitetest.ExampleConfig+test.config)
				h := in.site.Hosts[0]
				f := hosttest.New(t, h.Name)
				h.Conn = f
				for _, name := range test.files {
					f.WriteFile(t, name, "x", 0o600)
				}
				for _, step := range in.seeder.retireSteps(h) {
					if step.ID == test.id {
						return f, step
					}
				}
				t.Fatal("there is no such step")
				return nil, run.Step{}
			}})
		})
	}
	// Where the site asks for them, they stay.
	in := seeded(t, sitetest.ExampleConfig+sitetest.OwnRegistry)
	if steps := in.seeder.retireSteps(in.site.Hosts[0]); len(steps) != 0 {
		t.Errorf("%d steps", len(steps))
	}
	if steps := in.seeder.retireSteps(in.site.Hosts[1]); len(steps) != 1 { // an agent serves nothing
		t.Errorf("%d steps", len(steps))
	}
}
