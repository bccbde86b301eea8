package liteboxd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// backedUp is a cluster whose LiteBoxd is backed up, on the way to another version.
func backedUp(t *testing.T) (*installation, *kubetest.Memory, *hosttest.Fake, *Change) {
	t.Helper()
	in, m := onCluster(t, plain, running()...)
	f := in.databaseHost(t, true)
	in.site.Backup = in.keep(t, Backup{
		Cluster: "example", From: 3, To: "v0.6.11", SHA256: ones, Rows: runningRows, Sandboxes: runningSandboxes,
	})
	return in, m, f, in.deployer.UpgradeTo("v0.6.11")
}

// What was changed is compared with its backup until that has come to an end, by this run or a later one.
func TestCompareStep(t *testing.T) {
	for _, byHost := range []bool{true, false} {
		for _, compared := range []bool{false, true} {
			why := map[bool]string{false: "LiteBoxd was changed"}[compared]
			t.Run(fmt.Sprintf("compared %v/host %v", compared, byHost), func(t *testing.T) {
				steptest.ProveIn(t, steptest.Wide{Why: why,
					Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
						in, m, f, u := backedUp(t)
						if b, dir, err := u.uncompared(); err != nil {
							t.Fatal(err)
						} else if b.Compared = compared; writeBackup(b, dir) != nil {
							t.Fatal("the record cannot be written")
						}
						return whole{m, f, in, byHost},
							func() run.Step { return in.comparing() }
					}})
			})
		}
	}
	// Without a backup there is nothing to compare with.
	in, m := onCluster(t, plain)
	m.BreakAfter(0)
	if err := in.deployer.UpgradeTo("v0.6.11").CompareStep().Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// comparing is the step as one that says whether there is something to compare: it proves, and is asked nothing.
func (in *installation) comparing() run.Step {
	u := in.deployer.UpgradeTo("v0.6.11")
	step := u.CompareStep()
	step.Needed = func(context.Context) (string, error) {
		before, _, err := u.uncompared()
		if before == nil {
			return "", err
		}
		return "LiteBoxd was changed", nil
	}
	return step
}

// What is lost is an error, what users may have done themselves a warning, and both are told once.
func TestCompareStepTells(t *testing.T) {
	for _, test := range []struct {
		name     string
		meets    func(*testing.T, *installation, *kubetest.Memory, *hosttest.Fake)
		lost     []string
		warnings []string
	}{
		{name: "nothing", meets: func(*testing.T, *installation, *kubetest.Memory, *hosttest.Fake) {}},
		{name: "users went on working", meets: func(t *testing.T, _ *installation, m *kubetest.Memory,
			f *hosttest.Fake) {
			m.Put(t, sandboxPod("sandbox-new", "first", 5))
			changeDatabase(t, f, "INSERT INTO templates VALUES ('d', '')", "DELETE FROM sandboxes")
		}},
		{name: "sandboxes have gone", meets: func(t *testing.T, _ *installation, m *kubetest.Memory, _ *hosttest.Fake) {
			m.Remove(t, "/api/v1/namespaces/"+sandboxes+"/pods/sandbox-a")
		}, warnings: []string{"these sandboxes are gone: sandbox-a on first"}},
		{name: "templates have gone", meets: func(t *testing.T, _ *installation, _ *kubetest.Memory, f *hosttest.Fake) {
			changeDatabase(t, f, "DELETE FROM templates WHERE id = 'b'")
		}, warnings: []string{"these rows of LiteBoxd's database are gone: templates 'b'"}},
		{name: "a sandbox was started again", meets: func(t *testing.T, in *installation, m *kubetest.Memory,
			_ *hosttest.Fake) {
			restart(t, m)
		}, lost: []string{"the sandbox sandbox-b on first was started again"}},
		{name: "a restore starts all of them",
			meets: func(t *testing.T, in *installation, m *kubetest.Memory, _ *hosttest.Fake) {
				in.engine.Restores = true
				restart(t, m)
			}},
		{name: "the database was begun anew", meets: func(t *testing.T, in *installation, m *kubetest.Memory,
			f *hosttest.Fake) {
			restart(t, m)
			changeDatabase(t, f, "DROP TABLE templates")
		}, lost: []string{"the sandbox sandbox-b on first was started again",
			"all 3 rows of the table templates of the database are gone"}},
		{name: "the database has gone", meets: func(t *testing.T, _ *installation, _ *kubetest.Memory,
			f *hosttest.Fake) {
			if err := os.Remove(f.Path(dataFolder + "/" + DatabaseFile)); err != nil {
				t.Fatal(err)
			}
		}, lost: []string{"all 3 rows of the table templates of the database are gone"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, m, f, u := backedUp(t)
			test.meets(t, in, m, f)
			step := u.CompareStep()
			err := step.Run(t.Context())
			if (err == nil) != (test.lost == nil) {
				t.Fatalf("got %v, want %q", err, test.lost)
			}
			if err != nil {
				kubetest.Contains(t, err.Error(), append(test.lost, in.site.Backup)...)
			}
			if len(in.site.Warnings) != len(test.warnings) {
				t.Errorf("warnings %q, want %q", in.site.Warnings, test.warnings)
			}
			kubetest.Contains(t, strings.Join(in.site.Warnings, "\n"), test.warnings...)
			if reason, err := in.comparing().Needed(t.Context()); reason != "" || err != nil {
				t.Errorf("it is told again: %q, %v", reason, err)
			}
			if _, err := os.Stat(filepath.Join(in.site.Backup, "after.db")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("what it was compared with is still there: %v", err)
			}
		})
	}
}

// restart has a sandbox's container have been started once more, in the pod that it was.
func restart(t *testing.T, m *kubetest.Memory) {
	t.Helper()
	m.Put(t, sandboxPod("sandbox-b", "first", 3))
}

// What cannot be compared now is compared by the next run: nothing that is lost goes untold.
func TestCompareStepFails(t *testing.T) {
	for name, test := range map[string]struct {
		meets func(*testing.T, *installation, *kubetest.Memory, *hosttest.Fake)
		want  string
	}{
		"no API": {func(_ *testing.T, _ *installation, m *kubetest.Memory, _ *hosttest.Fake) { m.BreakAfter(0) },
			"list pods"},
		"the host lies": {func(_ *testing.T, _ *installation, _ *kubetest.Memory, f *hosttest.Fake) {
			f.Program("boxlift-node", hosttest.Prints("{}"))
		}, "it has no sha256"},
		"a damaged database": {func(t *testing.T, _ *installation, _ *kubetest.Memory, f *hosttest.Fake) {
			content := f.ReadFile(t, dataFolder+"/"+DatabaseFile)
			f.WriteFile(t, dataFolder+"/"+DatabaseFile, content[:4096]+strings.Repeat("x", len(content)-4096), 0o600)
		}, "damaged database"},
		"a volume that nobody finds": {func(t *testing.T, _ *installation, m *kubetest.Memory, _ *hosttest.Fake) {
			m.Put(t, volume("first", "")...)
		}, "cannot be read on any node now"},
	} {
		in, m, f, u := backedUp(t)
		step := u.CompareStep()
		test.meets(t, in, m, f)
		if err := step.Run(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		b, _, err := u.uncompared()
		if err != nil || b == nil {
			t.Errorf("%s: the next run finds %v, %v", name, b, err)
		}
	}
	in, _, _, u := backedUp(t)
	if err := os.WriteFile(filepath.Join(in.site.Backup, backupRecord), []byte(`[]`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := u.CompareStep().Run(t.Context()); err == nil {
		t.Error("a record that is none is no error")
	}
}

// A change is followed by what makes sure of it, and one that fails is compared at once, since no step comes after it.
func TestChangeSteps(t *testing.T) {
	failed := errors.New("the rollout failed")
	var stop context.CancelFunc
	const lost = "the sandbox sandbox-b on first was started again"
	for _, test := range []struct {
		name   string
		change func(context.Context, *installation, *kubetest.Memory) error
		want   []string
		not    string
		// next says that the next run compares.
		next bool
	}{
		{name: "it goes well", change: func(context.Context, *installation, *kubetest.Memory) error { return nil },
			next: true},
		{name: "it fails, and nothing is lost", want: []string{failed.Error()}, not: "since LiteBoxd was changed",
			change: func(context.Context, *installation, *kubetest.Memory) error { return failed }},
		{name: "it fails, and a sandbox was started again", want: []string{failed.Error(), lost},
			change: func(_ context.Context, in *installation, m *kubetest.Memory) error {
				restart(t, m)
				return failed
			}},
		{name: "it fails, with the API", want: []string{failed.Error(), "list pods"}, next: true,
			change: func(_ context.Context, _ *installation, m *kubetest.Memory) error {
				m.BreakAfter(0)
				return failed
			}},
		{name: "the run is told to end", want: []string{"context canceled"}, not: "list pods", next: true,
			change: func(ctx context.Context, in *installation, m *kubetest.Memory) error {
				restart(t, m)
				stop()
				return ctx.Err()
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, m, _, u := backedUp(t)
			var ctx context.Context
			ctx, stop = context.WithCancel(t.Context())
			defer stop()
			steps := u.changeSteps(run.Step{ID: "deploy-liteboxd", Title: "deploy LiteBoxd",
				Run: func(ctx context.Context) error {
					return test.change(ctx, in, m)
				}})
			var ids []string
			for _, s := range steps {
				ids = append(ids, s.ID)
			}
			if diff := cmp.Diff([]string{"deploy-liteboxd", "drain-liteboxd", "compare-liteboxd"}, ids); diff != "" {
				t.Error(diff)
			}
			err := steps[0].Run(ctx)
			if (err == nil) != (test.want == nil) {
				t.Fatalf("got %v", err)
			}
			if err != nil {
				kubetest.Contains(t, err.Error(), test.want...)
			}
			if test.not != "" && strings.Contains(err.Error(), test.not) {
				t.Errorf("got %v", err)
			}
			m.BreakAfter(-1)
			if reason, err := in.comparing().Needed(t.Context()); (reason != "") != test.next || err != nil {
				t.Errorf("the next run compares because %q, %v", reason, err)
			}
		})
	}
	// A first rollout has no backup: its own error is all there is to say.
	in, _ := onCluster(t, plain)
	u := in.deployer.UpgradeTo("v0.6.11")
	err := u.roll(t.Context(), func(context.Context) error { return failed })
	if !errors.Is(err, failed) || err.Error() != failed.Error() {
		t.Errorf("got %v", err)
	}
}
