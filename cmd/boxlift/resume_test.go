package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/journal"
)

// parsed are the flags that a run of a command line would note.
func parsed(t *testing.T, o *installOptions, kept *pflag.FlagSet, line ...string) []string {
	t.Helper()
	c := &cobra.Command{}
	o.addFlags(c)
	c.Flags().AddFlagSet(kept)
	if err := c.Flags().Parse(line); err != nil {
		t.Fatal(err)
	}
	if err := o.note(c.Flags(), kept); err != nil {
		t.Fatal(err)
	}
	return o.flags
}

func TestTakeUpKeepsToFlags(t *testing.T) {
	there := t.TempDir()
	t.Chdir(there)
	type options struct {
		Kubeconfig        string
		Merge, NoRollback bool
		ForceAfter        time.Duration
		Canary, Size      int
		Drain             bool
		Recipients        []string
	}
	for _, test := range []struct {
		name         string
		isUpgrade    bool
		began, given []string
		// noted is what the state has afterwards. THERE is the folder that the run began in.
		noted []string
		want  options
	}{
		{name: "nothing"},
		{
			name:  "install",
			began: []string{"--kubeconfig", "k.yaml", "--merge-kubeconfig", "--no-rollback", "--force-after=2m", "--key=boxlift.pub", "-o", "json"},
			noted: []string{"--force-after=2m0s", "--kubeconfig=THERE/k.yaml", "--merge-kubeconfig=true", "--no-rollback=true"},
			want:  options{Kubeconfig: "THERE/k.yaml", Merge: true, NoRollback: true, ForceAfter: 2 * time.Minute},
		},
		{
			name: "what is given anew takes its place", began: []string{"--kubeconfig=k=1.yaml", "--merge-kubeconfig", "--no-rollback"},
			given: []string{"--kubeconfig=/other.yaml", "--merge-kubeconfig=false", "--force-after=1m"},
			noted: []string{"--no-rollback=true", "--force-after=1m0s", "--kubeconfig=/other.yaml", "--merge-kubeconfig=false"},
			want:  options{Kubeconfig: "/other.yaml", NoRollback: true, ForceAfter: time.Minute},
		},
		{
			name: "upgrade", isUpgrade: true,
			began: []string{"--kubeconfig=k=1.yaml", "--batch-size=3", "--encrypt-backup-to=age1a", "--encrypt-backup-to=age1b", "--drain-nodes-and-end-their-sandboxes"},
			given: []string{"--no-rollback"},
			noted: []string{"--batch-size=3", "--drain-nodes-and-end-their-sandboxes=true", "--encrypt-backup-to=age1a", "--encrypt-backup-to=age1b", "--kubeconfig=THERE/k=1.yaml", "--no-rollback=true"},
			want:  options{Kubeconfig: "THERE/k=1.yaml", NoRollback: true, Size: 3, Drain: true, Recipients: []string{"age1a", "age1b"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Chdir(there)
			before, o := &upgradeOptions{}, &upgradeOptions{}
			kept := func(o *upgradeOptions) *pflag.FlagSet {
				if test.isUpgrade {
					return o.keptFlags()
				}
				return o.installOptions.keptFlags()
			}
			last := journal.State{Run: journal.Run{BundleFile: "/b.tar", Flags: parsed(t, &before.installOptions, kept(before), test.began...)}}
			// It is gone on with in another folder.
			t.Chdir(t.TempDir())
			parsed(t, &o.installOptions, o.installOptions.keptFlags(), test.given...)
			if err := o.takeUp(last, kept(o)); err != nil {
				t.Fatal(err)
			}
			place := func(text string) string { return strings.Replace(text, "THERE", there, 1) }
			for i := range test.noted {
				test.noted[i] = place(test.noted[i])
			}
			test.want.Kubeconfig = place(test.want.Kubeconfig)
			if diff := cmp.Diff(test.noted, o.flags); diff != "" {
				t.Errorf("noted (-want +got):\n%s", diff)
			}
			got := options{o.kubeconfig, o.mergeKubeconfig, o.noRollback, o.forceAfter, o.batches.Canary, o.batches.Size, o.accept.Drain, o.encryptBackupTo}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if o.bundle != "/b.tar" {
				t.Errorf("the bundle is %q", o.bundle)
			}
		})
	}
}

// What a state has for flags may have been written by anybody, or by a later boxlift.
func TestTakeUpRefusesOtherFlags(t *testing.T) {
	for _, text := range []string{"", "kubeconfig", "k.yaml", "--kubeconfig", "-h", "--help", "--help=true", "--=", "--later=1", "--batch-size=1", "--state=/s", "--no-rollback=perhaps"} {
		var o installOptions
		err := o.takeUp(journal.State{Run: journal.Run{Command: "install", Flags: []string{"--kubeconfig=/k", text}}}, o.keptFlags())
		if !errors.Is(err, install.ErrNothingToResume) || exitCode(err) != exitInput {
			t.Errorf("%q: %v", text, err)
		}
	}
}
