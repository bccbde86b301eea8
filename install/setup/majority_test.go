package setup

import (
	"context"
	"errors"
	"testing"

	"github.com/liteboxd/boxlift/install/run"
)

// Only steps that start something are asked, and no further one after the first that is needed.
func TestStartingReason(t *testing.T) {
	broken := errors.New("no answer")
	asked := func(reason string, err error) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return reason, err }
	}
	tests := []struct {
		name  string
		steps []run.Step
		want  string
		err   error
	}{
		{"none", nil, "", nil},
		{"nothing is started by it", []run.Step{{Needed: asked("a label", nil)}, {Needed: asked("", nil), Starts: true}}, "", nil},
		{"a file that k3s reads", []run.Step{{Needed: asked("", nil), Starts: true}, {Needed: asked("another config", nil), Starts: true}, {Needed: asked("", broken), Starts: true}}, "another config", nil},
		{"it cannot be told", []run.Step{{Needed: asked("", broken), Starts: true}}, "", broken},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got, err := StartingReason(t.Context(), test.steps); got != test.want || !errors.Is(err, test.err) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
