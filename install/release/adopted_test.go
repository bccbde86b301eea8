package release

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAdopted: a node is adopted on its machine, and on no other.
func TestAdopted(t *testing.T) {
	r := New("lan-1")
	one, two := Adopted{Node: "one", MachineID: "1111"}, Adopted{Node: "two", MachineID: "2222"}
	if !r.Adopt(one, two) || r.Adopt(two, one) || !r.HasAdopted(one) {
		t.Errorf("%+v", r.Adopted)
	}
	for _, other := range []Adopted{{"one", "2222"}, {"three", "1111"}, {"one", ""}, {}} {
		if r.HasAdopted(other) || (*Record)(nil).HasAdopted(other) {
			t.Errorf("%+v was adopted", other)
		}
	}
	again := Adopted{Node: "one", MachineID: "3333"}
	if want := []Adopted{two, again}; !r.Adopt(again) || cmp.Diff(want, r.Adopted) != "" {
		t.Errorf("a machine that was set up anew: %+v", r.Adopted)
	}
}

// TestAdoptedForm: an older boxlift, which would leave the nodes out, does not take such a record for one of its own.
func TestAdoptedForm(t *testing.T) {
	for _, serial := range []int64{0, 7} {
		r := New("lan-1")
		begin(t, r, serialRun("a", serial))
		r.Adopt(Adopted{Node: "one", MachineID: "1111"})
		document, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		read, err := Decode(document)
		if err != nil || cmp.Diff(r, read) != "" || read.Format != VerbFormat {
			t.Fatalf("%v\n%s", err, cmp.Diff(r, read))
		}
		for from, to := range map[string]string{
			`"format":4`:                  `"format":2`,
			`"node":"one"`:                `"node":""`,
			`"machineID":"1111"`:          `"machineID":"\u001b[2J"`,
			`{"node":"one","machineID":`:  `{"node":"one","machine":`,
			`"adopted":[{"node":"one",`:   `"adopted":[{"node":"` + strings.Repeat("x", maxText+1) + `",`,
			`"adopted":[{"node":"one","m`: `"adopted":[` + strings.Repeat(`{"node":"x","machineID":"y"},`, maxAdopted) + `{"node":"one","m`,
		} {
			broken := strings.Replace(string(document), from, to, 1)
			if _, err := Decode([]byte(broken)); !errors.Is(err, ErrInvalid) || broken == string(document) {
				t.Errorf("%.80s: %v", to, err)
			}
		}
	}
}
