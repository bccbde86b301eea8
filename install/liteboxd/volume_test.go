package liteboxd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// While the database has a volume and no claim, LiteBoxd is not deployed: it would begin anew.
func TestCheckVolume(t *testing.T) {
	marked := func(objects []runtime.Object) []runtime.Object {
		objects[1].(*corev1.PersistentVolume).Labels = map[string]string{VolumeLabel: ""}
		return objects
	}
	pending := func() []runtime.Object { // as Helm would make it, without the volume
		objects := marked(volume("first", dataFolder))
		claim := objects[0].(*corev1.PersistentVolumeClaim)
		claim.Spec.VolumeName, claim.Status.Phase = "", corev1.ClaimPending
		return objects
	}
	for _, test := range []struct {
		name    string
		objects []runtime.Object
		refused bool
	}{
		{"nothing was ever there", nil, false},
		{"the claim has its volume", marked(volume("first", dataFolder)), false},
		{"the claim is missing", marked(volume("first", dataFolder))[1:], true},
		{"the claim has no volume", pending(), true},
		{"a volume that never had the database", volume("first", dataFolder)[1:], false},
	} {
		in, _ := onCluster(t, plain, test.objects...)
		err := in.deployer.checkVolume(t.Context(), "liteboxd-system")
		if errors.Is(err, site.ErrRefused) != test.refused || !test.refused && err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if test.refused {
			kubetest.Contains(t, kubetest.Explained(err), "LiteBoxd would begin anew without it", "the command that was given goes on with it")
		}
	}
}

// A database comes back with the key of its tokens, or not at all.
func TestKeyStep(t *testing.T) {
	for _, test := range []struct {
		name    string
		objects []runtime.Object
		why     string
	}{
		{"the cluster has the key", []runtime.Object{keySecret("the-key")}, ""},
		{"the Secret is missing", nil, "the Secret liteboxd-keys is missing"},
		{"the key is empty", []runtime.Object{keySecret("")}, "the Secret liteboxd-keys is missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			steptest.ProveIn(t, steptest.Wide{Why: test.why,
				Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
					in, m := onCluster(t, plain, test.objects...)
					return m, func() run.Step { return in.deployer.UpgradeTo("").KeyStep([]byte("the-key")) }
				}})
		})
	}
	in, _ := onCluster(t, plain, keySecret("another-key"))
	_, err := in.deployer.UpgradeTo("").KeyStep([]byte("the-key")).Needed(t.Context())
	if !errors.Is(err, site.ErrRefused) || strings.Contains(err.Error(), "another-key") {
		t.Errorf("with another key: %v", err)
	}
}

// The key of a backup is read, and a backup without one is of no use.
func TestKeyIn(t *testing.T) {
	for content, want := range map[string]string{"the-key": "", "": "it is empty", strings.Repeat("x", 5<<10): "the key of the backup"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, backupKeyFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		key, err := KeyIn(dir)
		if want == "" && (err != nil || string(key) != content) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.20q: %q, %v", content, key, err)
		}
	}
	if _, err := KeyIn(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a key: %v", err)
	}
}
