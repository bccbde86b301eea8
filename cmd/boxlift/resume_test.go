package main

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/liteboxd/boxlift/install/journal"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
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
		GiveUp, Interrupt []string
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
			name:  "data that is given up",
			began: []string{"--give-up-the-data-on=late,10.0.0.14", "--give-up-the-data-on", "third"},
			noted: []string{
				"--give-up-the-data-on=late", "--give-up-the-data-on=10.0.0.14", "--give-up-the-data-on=third",
			},
			want: options{GiveUp: []string{"late", "10.0.0.14", "third"}},
		},
		{
			name: "data that is given up anew", began: []string{"--give-up-the-data-on=late"},
			given: []string{"--give-up-the-data-on=other"}, noted: []string{"--give-up-the-data-on=other"},
			want: options{GiveUp: []string{"other"}},
		},
		{
			name: "upgrade", isUpgrade: true,
			began: []string{"--kubeconfig=k=1.yaml", "--batch-size=3", "--encrypt-backup-to=age1a", "--encrypt-backup-to=age1b",
				"--drain-nodes-and-end-their-sandboxes", "--interrupt-what-has-its-data-on=b,c"},
			given: []string{"--no-rollback"},
			noted: []string{"--batch-size=3", "--drain-nodes-and-end-their-sandboxes=true", "--encrypt-backup-to=age1a", "--encrypt-backup-to=age1b",
				"--interrupt-what-has-its-data-on=b", "--interrupt-what-has-its-data-on=c", "--kubeconfig=THERE/k=1.yaml", "--no-rollback=true"},
			want: options{Kubeconfig: "THERE/k=1.yaml", NoRollback: true, Size: 3, Drain: true, Recipients: []string{"age1a", "age1b"},
				Interrupt: []string{"b", "c"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Chdir(there)
			before, o := &upgradeOptions{}, &upgradeOptions{}
			kept := func(o *upgradeOptions) *pflag.FlagSet {
				if test.isUpgrade {
					return o.keptFlags()
				}
				return o.keptInstallFlags()
			}
			last := journal.State{Run: journal.Run{BundleFile: "/b.tar", Flags: parsed(t, &before.installOptions, kept(before), test.began...)}}
			// It is gone on with in another folder.
			t.Chdir(t.TempDir())
			parsed(t, &o.installOptions, o.keptInstallFlags(), test.given...)
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
			got := options{
				o.kubeconfig, o.mergeKubeconfig, o.noRollback, o.forceAfter, o.batches.Canary, o.batches.Size, o.accept.Drain,
				o.encryptBackupTo, o.giveUpDataOn, o.accept.Interrupt,
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if o.bundle != "/b.tar" {
				t.Errorf("the bundle is %q", o.bundle)
			}
		})
	}
}

// node add goes on with the hosts that it was given, and with none it does not become an
// installation of all.
func TestResumeOfNodeAdd(t *testing.T) {
	var before, o installOptions
	began := parsed(t, &before, before.keptNodeFlags(), "--hosts=10.0.0.14,late", "--hosts", "third", "--kubeconfig=/k")
	if diff := cmp.Diff([]string{"--hosts=10.0.0.14", "--hosts=late", "--hosts=third", "--kubeconfig=/k"}, began); diff != "" {
		t.Errorf("noted (-want +got):\n%s", diff)
	}
	if err := o.takeUp(journal.State{Run: journal.Run{Command: nodeAdd, Flags: began}}, o.keptNodeFlags()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.14", "late", "third"}, o.hosts); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	for command, want := range map[string]string{
		nodeAdd:       "does not say which hosts",
		"node remove": "the last run was boxlift node remove: run that command again",
	} {
		dir := t.TempDir()
		j, err := journal.Open(filepath.Join(dir, "state.json"))
		if err != nil {
			t.Fatal(err)
		}
		verb, _ := journal.OfCommand(command)
		if err := errors.Join(j.Begin(journal.Run{Verb: verb, Command: command}), j.Close()); err != nil {
			t.Fatal(err)
		}
		o := installOptions{resume: true, state: filepath.Join(dir, "state.json")}
		if err := runResume(t.Context(), io.Discard, &globalOptions{}, o, progress.Discard); !errors.Is(err, site.ErrNothingToResume) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
	}
}

// What a state has for flags may have been written by anybody, or by a later boxlift.
func TestTakeUpRefusesOtherFlags(t *testing.T) {
	for _, text := range []string{"", "kubeconfig", "k.yaml", "--kubeconfig", "-h", "--help", "--help=true", "--=", "--later=1", "--batch-size=1", "--state=/s", "--no-rollback=perhaps"} {
		var o installOptions
		err := o.takeUp(journal.State{Run: journal.Run{Command: "install", Flags: []string{"--kubeconfig=/k", text}}},
			o.keptFlags())
		if !errors.Is(err, site.ErrNothingToResume) || fault.ClassOf(err) != fault.Input {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What a cluster's record has for flags may have been written by anybody who can write to it.
func TestFlagsOfTheRecordAreGivenAnew(t *testing.T) {
	anew := []string{"--accept-drift=true", "--encrypt-backup-to=age1\x1b[2Ja", "--encrypt-backup-to=age1b"}
	for _, test := range []struct {
		name  string
		given []string
		says  []string // of what is missing
	}{
		{name: "none", says: []string{"--accept-drift=true", "--encrypt-backup-to=age1", "--encrypt-backup-to=age1b"}},
		{name: "one of them", given: []string{"--accept-drift"}, says: []string{"--encrypt-backup-to=age1b"}},
		{name: "all", given: []string{"--accept-drift", "--encrypt-backup-to=age1b"}},
		{name: "all, with other values", given: []string{"--accept-drift=false", "--encrypt-backup-to=age1c"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var o upgradeOptions
			given := parsed(t, &o.installOptions, o.keptFlags(), test.given...)
			err := checkAnew(anew, given)
			if (err != nil) != (len(test.says) > 0) || err != nil && fault.ClassOf(err) != fault.Usage {
				t.Fatalf("got %v of class %d", err, fault.ClassOf(err))
			}
			for _, part := range test.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v does not say %s", err, part)
				}
			}
			if err != nil && strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("what the record says goes to the terminal: %q", err)
			}
		})
	}
}

// Resume has the flags that an upgrade has to be given anew; what they mean is the upgrade's.
func TestResumeOfAnInstallationTakesNoFlagsOfAnUpgrade(t *testing.T) {
	var o, u upgradeOptions
	last := journal.State{Run: journal.Run{Command: "install", Flags: []string{"--no-rollback=true"}}}
	parsed(t, &o.installOptions, o.keptFlags(), "--accept-drift")
	if err := o.takeUp(last, o.installOptions.keptFlags()); fault.ClassOf(err) != fault.Usage {
		t.Errorf("got %v", err)
	}
	last.Command = "upgrade"
	u.flags = []string{"--accept-drift=true"}
	if err := u.takeUp(last, u.keptFlags()); err != nil || !u.accept.Drift || !u.noRollback {
		t.Errorf("%v, %+v", err, u.accept)
	}
}
