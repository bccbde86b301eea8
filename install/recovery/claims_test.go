package recovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/foldertar"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const (
	claimFolder = "/var/lib/rancher/k3s/storage/pvc-1_gov_data"
	records     = claimFolder + "/records.jsonl"
	withClaims  = sitetest.ExampleConfig + "workloads:\n  - {name: gov-native, namespace: gov, backup: {claims: [data]}}\n"
)

// folderHelper is boxlift-node, with its own way to save and restore folders.
func folderHelper(ctx context.Context, c *hosttest.Call) int {
	var err error
	switch {
	case len(c.Args) == 3 && c.Args[0] == "save-folder":
		_, err = foldertar.Write(ctx, c.Host.Path(c.Args[2]), c.Stdout)
	case len(c.Args) == 5 && c.Args[0] == "restore-folder":
		var report foldertar.Report
		if report, err = foldertar.Restore(ctx, c.Stdin, c.Args[4], c.Host.Path(c.Args[2])); err == nil {
			err = json.NewEncoder(c.Stdout).Encode(report)
		}
	default:
		return helper(ctx, c)
	}
	if err != nil {
		_, _ = fmt.Fprintln(c.Stderr, err)
		return 1
	}
	return 0
}

// volume is the claim gov/data with its volume on a host, in a folder.
func volume(t *testing.T, api *kubetest.Memory, host, folder string) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "gov", Name: "data"}}
	claim.Spec.VolumeName, claim.Status.Phase = "pv-1", corev1.ClaimBound
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.HostPath = &corev1.HostPathVolumeSource{Path: folder}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{host}}},
	}}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "labelled-" + host, Labels: map[string]string{corev1.LabelHostname: host}}}
	node.Name = host
	api.Put(t, claim, pv, node)
}

// The files of a claim come from the node that has its volume. One that is not there, or whose host is down, is told
// of; one that could not be brought back is refused.
func TestCreateBackupWithClaims(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(*testing.T, []*hosttest.Fake, *kubetest.Memory)
		warn string // where it goes on without them
		fail string
	}{
		{name: "on the agent", make: func(t *testing.T, _ []*hosttest.Fake, api *kubetest.Memory) { volume(t, api, "host-1", claimFolder) }},
		{name: "a file that is cut once", make: func(t *testing.T, f []*hosttest.Fake, api *kubetest.Memory) {
			volume(t, api, "host-1", claimFolder)
			f[1].FailNext("boxlift-node", 1, "records: "+foldertar.ErrChanged.Error())
		}},
		{name: "no claim yet", make: func(*testing.T, []*hosttest.Fake, *kubetest.Memory) {},
			warn: "without the files of the claim gov/data"},
		{name: "the host is down", make: func(t *testing.T, f []*hosttest.Fake, api *kubetest.Memory) {
			volume(t, api, "away", claimFolder)
		}, warn: "it is on the node away"},
		{name: "a file system of a network", make: func(t *testing.T, _ []*hosttest.Fake, api *kubetest.Memory) {
			volume(t, api, "host-1", "/mnt/nfs")
		}, fail: "is no folder that k3s' local storage has made"},
		{name: "an older boxlift-node", make: func(t *testing.T, f []*hosttest.Fake, api *kubetest.Memory) {
			volume(t, api, "host-1", claimFolder)
			f[1].Program("boxlift-node", helper)
		}, fail: "unknown command"},
		{name: "a disk that fails", make: func(t *testing.T, f []*hosttest.Fake, api *kubetest.Memory) {
			volume(t, api, "host-1", claimFolder)
			f[1].FailNext("boxlift-node", 1, "Input/output error")
		}, fail: "Input/output error"},
		{name: "a host that sends something else", make: func(t *testing.T, f []*hosttest.Fake, api *kubetest.Memory) {
			volume(t, api, "host-1", claimFolder)
			f[1].Program("boxlift-node", hosttest.Prints("no tar"))
		}, fail: "not the files of a folder"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes, api, _ := running(t, backup.SQLite)
			in.site.Config.Workloads = example(t, withClaims).site.Config.Workloads
			fakes[1].WriteFile(t, records, "the first record", 0o600)
			fakes[1].Program("boxlift-node", folderHelper)
			test.make(t, fakes, api)
			before := fakes[1].Snapshot(t)
			report, err := in.recovery.CreateBackup(t.Context(), Settings{})
			if test.fail != "" {
				if err == nil || !strings.Contains(err.Error(), test.fail) || !strings.Contains(err.Error(), "gov/data") {
					t.Errorf("%+v, %v", report, err)
				}
				if left, err := os.ReadDir(BackupsDir(in.site.StatePath, "example")); err != nil || len(left) > 0 {
					t.Errorf("left are %v, %v", left, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if told := strings.Join(in.site.Warnings, "; "); test.warn == "" && told != "" || !strings.Contains(told, test.warn) {
				t.Errorf("it warns of %q", told)
			}
			if fakes[1].Snapshot(t) != before {
				t.Error("the host is not as it was")
			}
			want := []backup.Claim{{Workload: "gov-native", Namespace: "gov", Name: "data", Node: "host-1", Path: claimFolder, Entries: 2, Bytes: 16}}
			if test.warn != "" {
				want = nil
			}
			if diff := cmp.Diff(want, report.Claims); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// claimBackup is a backup with the files of a claim on the agent.
func claimBackup(t *testing.T, content string) *backup.Reader {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "records.jsonl"), []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	report, err := foldertar.Write(t.Context(), dir, &b)
	if err != nil {
		t.Fatal(err)
	}
	record, err := backup.EncodeClaims([]backup.Claim{{Workload: "gov-native", Namespace: "gov", Name: "data", Node: "host-1", Path: claimFolder,
		Entries: report.Entries, Bytes: report.Bytes}})
	if err != nil {
		t.Fatal(err)
	}
	return backupWith(t, backup.Manifest{}, map[string]string{backup.ClaimsRecord: string(record), backup.ClaimFiles("gov", "data"): b.String()})
}

// The files of a claim are put back on its node before k3s starts there, over whatever there is, and on no other host.
func TestRestoreStepWithClaims(t *testing.T) {
	r := claimBackup(t, "the first record")
	for _, test := range []struct {
		name   string
		place  int
		before map[string]string
		want   string
	}{
		{"a new host", 1, nil, "the first record"},
		{"newer records", 1, map[string]string{records: "the second record", claimFolder + "/more": "x"},
			"the first record"},
		{"another host", 0, map[string]string{records: "its own"}, "its own"},
		{"back already by this restore", 1,
			map[string]string{records: "as it is", run.RestoreDir + "/claim_gov_data": restoredID}, "as it is"},
		{"back by another restore", 1, map[string]string{records: "as it is", run.RestoreDir + "/claim_gov_data": "another\n"}, "the first record"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *hosttest.Fake
			steptest.Prove(t, steptest.Case{Why: "it is of 2026-01-02T03:04:05Z", Fresh: func(t *testing.T) (*hosttest.Fake, run.Step) {
				in, fakes := restoringTo(t, sitetest.ExampleConfig, r)
				last = fakes[test.place]
				last.Program("boxlift-node", folderHelper)
				last.WriteFile(t, run.RestoringFile, restoredID, 0o600)
				for name, content := range test.before {
					last.WriteFile(t, name, content, 0o600)
				}
				h := in.site.Hosts[test.place]
				return last, (&hostRestore{recovery: in.recovery, host: h, node: &k3s.Node{Cluster: in.cluster, Host: h}}).step()
			}})
			if got := last.ReadFile(t, records); got != test.want {
				t.Errorf("the records are %q", got)
			}
			if more := last.ReadFile(t, claimFolder+"/more"); more != "" {
				t.Errorf("there is still %q", more)
			}
		})
	}
}

// What fails leaves the files as they were, and the host waiting.
func TestRestoreStepWithClaimsFails(t *testing.T) {
	for _, test := range []struct {
		name string
		fail func(*testing.T, *hosttest.Fake, *backup.Reader)
		want string
	}{
		{"a full disk", func(_ *testing.T, f *hosttest.Fake, _ *backup.Reader) {
			f.FailNext("boxlift-node", 1, "no space left on device")
		}, "no space left on device"},
		{"an older boxlift-node", func(_ *testing.T, f *hosttest.Fake, _ *backup.Reader) {
			f.FailNext("boxlift-node", 2, "unknown command")
		}, "unknown command"},
		{"a backup that was changed since it was proven", func(t *testing.T, _ *hosttest.Fake, r *backup.Reader) {
			whole, err := os.ReadFile(r.Path())
			if err == nil {
				err = os.WriteFile(r.Path(), bytes.Replace(whole, []byte("the first record"), []byte("the worst record"), 1), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, "another sha256"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := claimBackup(t, "the first record")
			in, fakes := restoringTo(t, sitetest.ExampleConfig, r)
			f, h := fakes[1], in.site.Hosts[1]
			f.Program("boxlift-node", folderHelper)
			f.WriteFile(t, run.RestoringFile, restoredID, 0o600)
			f.WriteFile(t, records, "as it was", 0o600)
			test.fail(t, f, r)
			err := (&hostRestore{recovery: in.recovery, host: h, node: &k3s.Node{Cluster: in.cluster, Host: h}}).step().Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("it went on: %v", err)
			}
			if f.ReadFile(t, records) != "as it was" || f.ReadFile(t, run.RestoringFile) != restoredID || f.ReadFile(t, run.RestoredFile) != "" {
				t.Errorf("the records are %q, and the host waits for %q", f.ReadFile(t, records), f.ReadFile(t, run.RestoringFile))
			}
		})
	}
}

// What is not in a backup, or has no place any more, is told before anything changes.
func TestCheckClaims(t *testing.T) {
	r := claimBackup(t, "the first record")
	const without = sitetest.ExampleConfig
	other := strings.ReplaceAll(withClaims, "claims: [data]", "claims: [data, more]")
	for _, test := range []struct {
		name, config string
		r            *backup.Reader
		want         string
	}{
		{"there", withClaims, r, ""},
		{"one that install.yaml does not name", without, r, ""},
		{"one that is not there", other, r, "the backup has no files of the claim gov/more"},
		{"a backup from before", withClaims, backupWith(t, backup.Manifest{}, nil),
			"the backup has no files of the claim gov/data"},
		{"neither", without, backupWith(t, backup.Manifest{}, nil), ""},
	} {
		in, _ := restoringTo(t, test.config, test.r)
		in.site.K3s, in.engine.Restores = "v1.34.4+k3s1", true
		err := in.recovery.CheckRestore()
		if (err == nil) != (test.want == "") || err != nil && (!errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	for _, config := range []string{withClaims, without} {
		in, _ := restoringTo(t, config, r)
		if err := in.recovery.CheckClaimNodes(); err != nil || in.site.Warnings != nil {
			t.Errorf("its node is there: %v, %q", err, in.site.Warnings)
		}
		in.site.Hosts[1].Hostname = "new"
		err := in.recovery.CheckClaimNodes()
		if asked := config == withClaims; asked != (err != nil) || asked == (len(in.site.Warnings) > 0) || err != nil && !errors.Is(err, site.ErrRefused) {
			t.Errorf("its node is not there: %v, %q", err, in.site.Warnings)
		}
	}
}

// A host without room for the files is refused, before anything changes, unless they are there already.
func TestCheckRoom(t *testing.T) {
	r := claimBackup(t, "the first record")
	const header = "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
	for _, test := range []struct {
		name, df string
		place    int
		done     string // a note of this restore on the host
		want     string
	}{
		{"room", header + "/dev/sda1 100 50 50 50% /\n", 1, "", ""},
		{"none", header + "/dev/sda1 100 95 5 95% /\n", 1, "", "the files of the claim gov/data have no room"},
		{"none, on a host that has none of them", header + "/dev/sda1 100 95 5 95% /\n", 0, "", ""},
		{"none, on a host that is restored", header + "/dev/sda1 100 95 5 95% /\n", 1, run.RestoredFile, ""},
		{"none, and they are back", header + "/dev/sda1 100 95 5 95% /\n", 1, run.RestoreDir + "/claim_gov_data", ""},
		{"none, and others are back", header + "/dev/sda1 100 95 5 95% /\n", 1, run.RestoreDir + "/claim_gov_more",
			"have no room"},
		{"an answer that is none", "\x1b[31m", 1, "", "df printed"},
		{"a number that is none", header + "/dev/sda1 100 50 99999999999999999999 50% /\n", 1, "", "df printed"},
	} {
		in, fakes := restoringTo(t, withClaims, r)
		f := fakes[test.place]
		f.WriteFile(t, "/var/lib/x", "", 0o600)
		f.Program("df", func(_ context.Context, c *hosttest.Call) int {
			if len(c.Args) != 2 || c.Args[1] != "/var/lib" {
				return 1
			}
			_, _ = io.WriteString(c.Stdout, test.df)
			return 0
		})
		if test.done != "" {
			f.WriteFile(t, test.done, restoredID, 0o600)
		}
		err := in.recovery.CheckRestoring(t.Context(), in.site.Hosts[test.place])
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
