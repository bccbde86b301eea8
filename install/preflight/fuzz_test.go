package preflight

import (
	"encoding/json"
	"testing"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/node/facts"
)

// FuzzJudge expects of whatever a host says about itself that it is judged, and that each finding
// says what was found and on which host.
func FuzzJudge(f *testing.F) {
	for _, role := range []config.Role{config.Server, config.Agent} {
		text, err := json.Marshal(goodHost("a", "10.0.0.11", role, 'a').Facts)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"network":{"interfaces":[{"name":"x","addresses":["10.0.0.11/24","::/0","10.0.0.300/99"]}],` +
		`"routes":[{"destination":"x"}]}}`))
	f.Add([]byte(`{"ports":[{"protocol":"tcp","address":"","port":6443}],"clock":{"now":"never"},` +
		`"kernel":{"release":"."}}`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var told facts.Facts
		if json.Unmarshal(text, &told) != nil {
			return
		}
		need, subjects := goodCluster()
		subjects[0].Facts = &told
		for _, finding := range Judge(need, subjects) {
			if finding.Check == "" || finding.Severity == "" || finding.Found == "" {
				t.Errorf("a finding without words: %+v", finding)
			}
		}
	})
}
