package upgrade

import (
	"testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/steptest"
)

// What a host keeps of the version before goes when the upgrade is confirmed; what cannot be read is not taken for
// nothing.
func TestForgetPreviousStep(t *testing.T) {
	const kept = `{"format":1,"bundle":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","k3s":"v1.35.8+k3s1","pods":[]}`
	fresh := func(text string) func(*testing.T) (*hosttest.Fake, run.Step) {
		return func(t *testing.T) (*hosttest.Fake, run.Step) {
			f := hosttest.New(t, "a")
			if text != "" {
				f.WriteFile(t, k3s.KeptFile, text, 0o600)
				f.WriteFile(t, k3s.PreviousDir+"/k3s", "the program of before", 0o755)
			}
			return f, forgetStep(&site.Host{Conn: f})
		}
	}
	steptest.Prove(t, steptest.Case{Fresh: fresh("")})
	steptest.Prove(t, steptest.Case{Fresh: fresh(kept), Why: "k3s v1.35.8+k3s1 is kept"})
	for _, text := range []string{"{", `{"format":2,"bundle":"","k3s":"","pods":[]}`, `{"format":1,"more":1}`} {
		_, step := fresh(text)(t)
		if reason, err := step.Needed(t.Context()); err == nil {
			t.Errorf("%s: %q", text, reason)
		}
	}
}
