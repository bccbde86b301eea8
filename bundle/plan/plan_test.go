package plan_test

import (
	"errors"
	"os"
	"testing"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/plan"
	"github.com/liteboxd/boxlift/bundle/source"
	"github.com/liteboxd/boxlift/test/bundletest"
)

func TestMain(m *testing.M) { os.Exit(bundletest.Main(m)) }

// TestUnpinned lists all pins that are missing, before anything is asked for.
func TestUnpinned(t *testing.T) {
	l, err := lock.Parse("my.lock", []byte(bundletest.Unpinned))
	if err != nil {
		t.Fatal(err)
	}
	_, err = plan.New(t.Context(), plan.Options{Lock: l, LockName: "my.lock", LockContent: []byte(bundletest.Unpinned),
		Source: source.New(source.Options{})})
	var missing *plan.UnpinnedError
	if !errors.As(err, &missing) {
		t.Fatal(err)
	}
	bundletest.Golden(t, "unpinned.golden", err.Error()+"\n"+missing.Hint()+"\n")
}
