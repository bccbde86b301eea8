// Package need says what a test cannot do without. Where the machine does not have it,
// the test is left out with the reason, or, where everything must run, it fails.
package need

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/liteboxd/boxlift/test/debian"
)

// Variable names the environment variable that, set to 1, says that everything must run.
const Variable = "BOXLIFT_REQUIRE_HOSTS"

// LeaveOut ends a test that cannot run here.
func LeaveOut(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(Variable) == "1" {
		t.Fatal("cannot run here: " + why)
	}
	t.Skip(why)
}

// Root is needed for what the text says.
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		LeaveOut(t, why+" needs root")
	}
}

// Programs are needed, and installed if they can be.
func Programs(t testing.TB, programs ...debian.Program) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := debian.Ensure(ctx, func(line string) { t.Log(line) }, programs...); err != nil {
		LeaveOut(t, err.Error())
	}
}
