package preflight

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/node/lookup"
)

// Images that a host does not get are told with what each place has said, and what to do there.
func TestImages(t *testing.T) {
	answer := func(state lookup.State, detail string) ImageAnswer {
		return ImageAnswer{Registry: "r.lan", Place: "team/api:1", Setting: "seeding.external",
			Answer: lookup.Answer{State: state, Detail: detail}}
	}
	const head = "the image r.lan/team/api:1 is not in the bundle, and the host does not get it: asked for team/api:1, r.lan"
	for _, c := range []struct {
		answer      ImageAnswer
		found, hint string
	}{
		{answer(lookup.Absent, "it answers 404 Not Found"), head + ": it answers 404 Not Found",
			"push team/api:1 to r.lan, or correct the image's name or the rewrites in install.yaml"},
		{answer(lookup.Denied, "it answers 401 Unauthorized"), head + ": it answers 401 Unauthorized",
			"correct the login for r.lan in seeding.external of install.yaml, or let it pull team/api:1 there"},
		{answer(lookup.OtherPlatform, "it has it for linux/arm64 only"), head + ": it has it for linux/arm64 only",
			"push team/api:1 for linux/amd64 to r.lan"},
		{answer(lookup.Unreached, "no route to host"), head + " gave no answer: no route to host",
			"see to it that the host reaches r.lan and trusts its certificate: `curl -v https://r.lan/v2/` on the host; its " +
				"authority belongs into seeding.external"},
		{answer(lookup.Odd, "it answers 503 Service Unavailable"), head + ": it answers 503 Service Unavailable",
			"see to it that r.lan answers as a registry, or correct seeding.external in install.yaml"},
	} {
		var findings []Finding
		s := Subject{Name: "first", Platform: "linux/amd64",
			Images: []ImageFault{{Image: "r.lan/team/api:1", Answers: []ImageAnswer{c.answer}}}}
		judgeImages(&judgement{Subject: &s, check: "images", findings: &findings})
		want := []Finding{{Host: "first", Check: "images", Severity: Error, Found: c.found, Hint: c.hint,
			Needed: "the image for linux/amd64, from where install.yaml says that nodes pull it, or in the bundle"}}
		if diff := cmp.Diff(want, findings); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.answer.State, diff)
		}
	}
}
