package journal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzRead expects that a state that can be read is the same when it was written and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":999,"result":"done"}`))
	f.Add([]byte(`{"version":1,"command":"install","flags":["--kubeconfig=/x"],` +
		`"steps":[{"phase":"a","host":"b","title":"c","result":"running"}]}`))
	f.Add([]byte("null"))
	f.Add([]byte("[]"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "state.json")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		state, err := Read(path)
		if err != nil {
			return
		}
		j := &Journal{path: path, state: state}
		if err := errors.Join(j.write(), j.read()); err != nil {
			t.Fatalf("%q was read, and cannot be written and read again: %v", content, err)
		}
		if diff := cmp.Diff(state, j.state, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%q changed: %s", content, diff)
		}
	})
}
