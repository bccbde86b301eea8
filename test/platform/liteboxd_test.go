//go:build linux

package platform

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/relocation"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/database"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/kubetest"
)

const (
	boxSystem, boxSandboxes = "liteboxd-system", "liteboxd-sandbox"
	// boxVolume is the volume of LiteBoxd's database at first, on server-1, and boxFolder where it is.
	boxVolume = "pvc-1"
	boxFolder = "/var/lib/rancher/k3s/storage/pvc-1_liteboxd-system_liteboxd-api-data"
)

// boxManifest is what uses LiteBoxd's database, as its release has it.
const boxManifest = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: liteboxd-api-data, namespace: liteboxd-system, annotations: {helm.sh/resource-policy: keep}}
spec: {accessModes: [ReadWriteOnce], storageClassName: local-path, resources: {requests: {storage: 5Gi}}}
---
` + boxAPI + "---\n" + boxGateway

const (
	boxAPI = `apiVersion: apps/v1
kind: Deployment
metadata: {name: liteboxd-api, namespace: liteboxd-system}
spec:
  replicas: 1
  selector: {matchLabels: {app: liteboxd-api}}
  template:
    metadata: {labels: {app: liteboxd-api}}
    spec:
      containers: [{name: api, image: api}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: liteboxd-api-data}}]
`
	boxGateway = `apiVersion: apps/v1
kind: Deployment
metadata: {name: liteboxd-gateway, namespace: liteboxd-system}
spec:
  replicas: 2
  selector: {matchLabels: {app: liteboxd-gateway}}
  template:
    metadata: {labels: {app: liteboxd-gateway}}
    spec:
      containers: [{name: gateway, image: gateway}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: liteboxd-api-data}}]
`
)

// withLiteBoxd is a platform with a LiteBoxd that runs, whose database is on server-1, and with a sandbox.
func withLiteBoxd(t *testing.T) *Platform {
	t.Helper()
	p := installed(t, Bundle(t, older))
	agent := p.node("agent-1")
	agent.Spec.Taints = nil
	objects := append(kubetest.BoundVolume(boxSystem, manifests.DataClaim, "local-path", boxVolume, boxFolder, "server-1"),
		agent, kubetest.HelmReleaseOf(t, "kube-system", "liteboxd", "0.6.10", "deployed", 3, boxManifest),
		decoded(t, boxAPI), decoded(t, boxGateway), boxKey(), boxSandbox("sandbox-a", "server-1"))
	p.API.Put(t, objects...)
	p.makeBox(t, p.Hosts[0], boxFolder, "INSERT INTO templates VALUES ('a'), ('b')")
	p.control()
	return p
}

func decoded(t *testing.T, text string) runtime.Object {
	t.Helper()
	return kubetest.Decode(t, text)
}

func boxKey() *corev1.Secret {
	s := &corev1.Secret{Data: map[string][]byte{"SANDBOX_TOKEN_ENCRYPTION_KEY": []byte("the-key")}}
	s.Namespace, s.Name = boxSystem, manifests.KeysSecret
	return s
}

// boxSandbox is the pod of a sandbox.
func boxSandbox(name, node string) *corev1.Pod {
	s := &corev1.Pod{}
	s.Namespace, s.Name, s.Labels = boxSandboxes, name, map[string]string{"app": liteboxd.SandboxApp}
	s.UID, s.Spec.NodeName, s.Status.Phase = "uid of the sandbox", node, corev1.PodRunning
	return s
}

// makeBox makes LiteBoxd's database in a folder of a host.
func (p *Platform) makeBox(t *testing.T, h *Host, folder string, statements ...string) {
	t.Helper()
	file := h.Path(filepath.Join(folder, liteboxd.DatabaseFile))
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", "file:"+file)
	for _, statement := range append([]string{"CREATE TABLE templates (id TEXT PRIMARY KEY)",
		"CREATE TABLE api_keys (id TEXT)", "INSERT INTO api_keys VALUES ('k')"}, statements...) {
		if err == nil {
			_, err = db.ExecContext(t.Context(), statement)
		}
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// templates are those in the database of LiteBoxd's claim, and on which host it is.
func (p *Platform) templates(t *testing.T) (host string, ids []string) {
	t.Helper()
	var claim corev1.PersistentVolumeClaim
	var v corev1.PersistentVolume
	if !p.object("/api/v1/namespaces/"+boxSystem+"/persistentvolumeclaims/"+manifests.DataClaim, &claim) ||
		!p.object("/api/v1/persistentvolumes/"+claim.Spec.VolumeName, &v) {
		return "", nil
	}
	name := v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
	folder := boxFolder
	if v.Spec.Local != nil {
		folder = v.Spec.Local.Path
	}
	i := slices.IndexFunc(p.Hosts, func(h *Host) bool { return h.Name() == name })
	db, err := sql.Open("sqlite", "file:"+p.Hosts[i].Path(filepath.Join(folder, liteboxd.DatabaseFile))+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT id FROM templates ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return name, ids
}

// boxOptions are those of a run on a platform with LiteBoxd.
func (p *Platform) boxOptions(t testing.TB) (install.Options, *reporter) {
	t.Helper()
	o, told := p.options(t, nil)
	c, _, err := config.Parse("install.yaml", []byte(installYAML+"liteboxd: {}\n"),
		func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	o.Config = c
	return o, told
}

func moveTo(node string) func(context.Context, *testing.T, *Platform, bool) error {
	return func(ctx context.Context, t *testing.T, p *Platform, resume bool) error {
		o, _ := p.boxOptions(t)
		o.Resume = resume
		_, err := install.MoveLiteBoxd(ctx, o, node)
		return err
	}
}

// LiteBoxd's database comes to another node whenever the run that moves it is killed, and the volume from before stays
// until it is said that it can go.
func TestMoveKilled(t *testing.T) {
	k := killing{stride: 2, begin: withLiteBoxd, work: moveTo("agent-1")}
	k.run(t)
}

// A move that is confirmed leaves one volume, whenever the run is killed.
func TestConfirmMoveKilled(t *testing.T) {
	k := killing{
		stride: 1,
		begin: func(t *testing.T) *Platform {
			p := withLiteBoxd(t)
			if err := moveTo("agent-1")(t.Context(), t, p, false); err != nil {
				t.Fatal(err)
			}
			return p
		},
		work: func(ctx context.Context, t *testing.T, p *Platform, resume bool) error {
			o, _ := p.boxOptions(t)
			o.Resume = resume
			_, err := install.ConfirmMove(ctx, o, false)
			return err
		},
	}
	k.run(t)
}

// A move brings everything over, is told in a dry run that changes nothing, and can be taken back by another one once
// it was confirmed.
func TestMove(t *testing.T) {
	p := withLiteBoxd(t)
	before := p.exact(t)
	o, _ := p.boxOptions(t)
	o.DryRun = true
	summary, err := install.MoveLiteBoxd(t.Context(), o, "agent-1")
	if err != nil {
		t.Fatal(err)
	}
	var titles []string
	for _, c := range summary.Changes {
		titles = append(titles, c.ID)
	}
	want := "back-up-liteboxd stop-liteboxd copy-liteboxd-database bind-volume start-liteboxd keep-former-volume"
	if got := strings.Join(titles, " "); got != want {
		t.Errorf("a dry run would do %s, want %s", got, want)
	}
	if after := p.exact(t); after != before {
		t.Errorf("a dry run has changed something")
	}
	for i, to := range []string{"agent-1", "server-1"} {
		o, _ := p.boxOptions(t)
		summary, err := install.MoveLiteBoxd(t.Context(), o, to)
		if err != nil {
			t.Fatal(err)
		}
		if host, ids := p.templates(t); host != to || strings.Join(ids, "") != "ab" {
			t.Errorf("after the move to %s: %q on %s", to, ids, host)
		}
		kubetest.Contains(t, strings.Join(summary.Warnings, "\n"), "boxlift liteboxd move --confirm removes it")
		if summary.Backup == "" {
			t.Error("no backup is named")
		}
		if i == 0 {
			o, _ := p.boxOptions(t)
			_, err := install.MoveLiteBoxd(t.Context(), o, "server-1")
			if err == nil || !strings.Contains(err.Error(), "is kept since the last time that it was moved") {
				t.Errorf("a move before the last one was confirmed: %v", err)
			}
		}
		o, _ = p.boxOptions(t)
		if _, err := install.ConfirmMove(t.Context(), o, false); err != nil {
			t.Fatal(err)
		}
		if n := len(p.API.OfKind(t, corev1.SchemeGroupVersion.WithKind("PersistentVolume"))); n != 1 {
			t.Errorf("%d volumes are left", n)
		}
		for _, h := range p.Hosts {
			left, err := filepath.Glob(h.Path("/var/lib/rancher/k3s/storage/*"))
			if n := map[bool]int{true: 1}[h.Name() == to]; err != nil || len(left) != n {
				t.Errorf("%s: %q, %v, want %d", h.Name(), left, err, n)
			}
		}
	}
	if r := p.API.Object(t, "/api/v1/namespaces/"+boxSandboxes+"/pods/sandbox-a"); r == nil {
		t.Error("the sandbox is gone")
	}
}

// A move that fails, wherever that is, goes back to the volume from before, with LiteBoxd running, and a later one goes
// there.
func TestMoveGoesBack(t *testing.T) {
	begin := withLiteBoxd(t)
	for _, breaks := range []string{"agent-1", "server-1"} {
		for n := 0; ; n++ {
			p := begin.Copy(t)
			i := slices.IndexFunc(p.Hosts, func(h *Host) bool { return h.Name() == breaks })
			p.Hosts[i].BreakAfter(n)
			o, told := p.boxOptions(t)
			summary, err := install.MoveLiteBoxd(t.Context(), o, "agent-1")
			p.Hosts[i].BreakAfter(-1)
			host, ids := p.templates(t)
			if err == nil {
				t.Logf("%s broke at %d places", breaks, n)
				if host != "agent-1" || n == 0 {
					t.Errorf("%s, broken off after %d operations: it is on %s", breaks, n, host)
				}
				break
			}
			what := fmt.Sprintf("%s breaks after %d operations (%v)", breaks, n, err)
			if host != "server-1" || strings.Join(ids, "") != "ab" {
				t.Errorf("%s: %q on %q", what, ids, host)
			}
			for name, want := range map[string]int64{"liteboxd-api": 1, "liteboxd-gateway": 2} {
				d := p.API.Object(t, "/apis/apps/v1/namespaces/"+boxSystem+"/deployments/"+name)
				if has, _, _ := unstructured.NestedInt64(d.Object, "status", "availableReplicas"); has != want {
					t.Errorf("%s: %s has %d pods: %+v %q", what, name, has, summary, told.told)
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}

// restoreBox puts LiteBoxd back from the newest backup.
func restoreBox(ctx context.Context, t *testing.T, p *Platform, to string, dial site.Dial) (*run.Summary, error) {
	t.Helper()
	o, _ := p.boxOptions(t)
	if dial != nil {
		o.Dial = dial
	}
	s, closing, err := install.NewestBackupOfLiteBoxd(ctx, o, nil, func(text string) { t.Log(text) })
	if err != nil {
		return nil, err
	}
	defer closing() //nolint:errcheck // it was only read
	return install.RestoreLiteBoxd(ctx, o, s, to)
}

// onAgent is a platform whose LiteBoxd is on the agent, of which there is a backup, and to which a template came since.
func onAgent(t *testing.T) *Platform {
	t.Helper()
	p := withLiteBoxd(t)
	if err := moveTo("agent-1")(t.Context(), t, p, false); err != nil {
		t.Fatal(err)
	}
	o, _ := p.boxOptions(t)
	if _, err := install.ConfirmMove(t.Context(), o, false); err != nil {
		t.Fatal(err)
	}
	folders, err := filepath.Glob(p.Hosts[1].Path("/var/lib/rancher/k3s/storage/*"))
	if err != nil || len(folders) != 1 {
		t.Fatal(folders, err)
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(folders[0], liteboxd.DatabaseFile))
	if err == nil {
		_, err = db.ExecContext(t.Context(), "INSERT INTO templates VALUES ('later')")
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return p
}

// gone has the agent be lost, with a sandbox that ran there, and a persistent one that is on it alone.
func (p *Platform) gone(t *testing.T) site.Dial {
	t.Helper()
	ran := boxSandbox("sandbox-b", "agent-1")
	ran.UID = "uid of another sandbox"
	p.API.Put(t, ran)
	p.API.Put(t, kubetest.BoundVolume(boxSandboxes, "sandbox-data-7f", "local-path", "pvc-7f",
		"/var/lib/rancher/k3s/storage/pvc-7f_liteboxd-sandbox_sandbox-data-7f", "agent-1")...)
	p.report(p.node("agent-1"), corev1.ConditionUnknown)
	return func(ctx context.Context, h config.Host) (host.Host, error) {
		if h.Host == "10.0.0.12" {
			return nil, errors.New("no route to host")
		}
		return p.Dial(ctx, h)
	}
}

// When the node with LiteBoxd's database is gone, one command brings it back on another one, and says what is lost. The
// volume of the node that is gone stays.
func TestRestoreLiteBoxdOfLostNode(t *testing.T) {
	p := onAgent(t)
	dial := p.gone(t)
	var before corev1.PersistentVolumeClaim
	p.object("/api/v1/namespaces/"+boxSystem+"/persistentvolumeclaims/"+manifests.DataClaim, &before)
	o, _ := p.boxOptions(t)
	o.Dial = dial
	if _, err := install.MoveLiteBoxd(t.Context(), o, "server-1"); err == nil ||
		!strings.Contains(kubetest.Explained(err), "boxlift backup restore --only liteboxd brings LiteBoxd back") {
		t.Errorf("a move of what is gone: %v", err)
	}
	source, closing, err := install.NewestBackupOfLiteBoxd(t.Context(), o, nil, func(text string) { t.Log(text) })
	if err != nil {
		t.Fatal(err)
	}
	losses, err := install.LossesOfLiteBoxd(t.Context(), o, source, "")
	if err := errors.Join(err, closing()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&relocation.Losses{
		Backup: source.Path, Since: source.Time, Lost: "agent-1", Pods: []string{"sandbox-b"}, Sandboxes: []string{"7f"},
		To: "server-1",
	}, losses); diff != "" {
		t.Errorf("what is lost: %s", diff)
	}
	summary, err := restoreBox(t.Context(), t, p, "", dial)
	if err != nil {
		t.Fatal(err)
	}
	if host, ids := p.templates(t); host != "server-1" || strings.Join(ids, "") != "ab" {
		t.Errorf("after the restore: %q on %s", ids, host)
	}
	kubetest.Contains(t, strings.Join(summary.Warnings, "\n"), "what was done since is on agent-1 only",
		"is kept: should the host come back, it is there", "persistent sandboxes have their volumes on agent-1, and wait for it: 7f")
	var v corev1.PersistentVolume
	if !p.object("/api/v1/persistentvolumes/"+before.Spec.VolumeName, &v) ||
		v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || v.Status.Phase != corev1.VolumeReleased {
		t.Errorf("the volume of the node that is gone: %+v", v)
	}
	if left, err := filepath.Glob(p.Hosts[1].Path("/var/lib/rancher/k3s/storage/*/" + liteboxd.DatabaseFile)); err != nil || len(left) != 1 {
		t.Errorf("on the host that is gone: %q, %v", left, err)
	}
	// It is not removed unseen.
	if _, err := install.ConfirmMove(t.Context(), o, false); err == nil {
		t.Error("the volume of a host that is not reached was removed")
	}
	if _, err := install.ConfirmMove(t.Context(), o, true); err != nil {
		t.Error(err)
	}
	if p.object("/api/v1/persistentvolumes/"+before.Spec.VolumeName, &v) {
		t.Error("the volume of the host that is forgotten is still there")
	}
}

// Whenever the restore on another node is killed, the next run brings LiteBoxd back there.
func TestRestoreLiteBoxdKilled(t *testing.T) {
	k := killing{
		stride: 3, keepsState: true, // where the backup is
		begin: func(t *testing.T) *Platform {
			p := onAgent(t)
			p.gone(t)
			return p
		},
		work: func(ctx context.Context, t *testing.T, p *Platform, _ bool) error {
			_, err := restoreBox(ctx, t, p, "server-1", p.gone(t))
			return err
		},
	}
	k.run(t)
}

// LiteBoxd is put back where it is: what is there is backed up first, and kept.
func TestRestoreLiteBoxdInPlace(t *testing.T) {
	p := onAgent(t)
	summary, err := restoreBox(t.Context(), t, p, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if host, ids := p.templates(t); host != "agent-1" || strings.Join(ids, "") != "ab" {
		t.Errorf("after the restore: %q on %s", ids, host)
	}
	rows, err := database.Read(t.Context(), filepath.Join(summary.Backup, liteboxd.BackupDatabase), "templates")
	if err != nil || len(rows["templates"]) != 3 {
		t.Errorf("the backup of what was there: %v, %v", rows, err)
	}
	kubetest.Contains(t, strings.Join(summary.Warnings, "\n"), "boxlift liteboxd move --confirm removes it")
	// The newest backup is not that of what was to be replaced.
	if _, err := restoreBox(t.Context(), t, p, "server-1", nil); err != nil {
		t.Fatal(err)
	}
	if host, ids := p.templates(t); host != "server-1" || strings.Join(ids, "") != "ab" {
		t.Errorf("after the second restore: %q on %s", ids, host)
	}
}

// What cannot be moved, or not to there, is refused before anything is touched.
func TestMoveRefused(t *testing.T) {
	begin := withLiteBoxd(t)
	change := func(t *testing.T, p *Platform, edit func(*corev1.PersistentVolume)) {
		t.Helper()
		var v corev1.PersistentVolume
		p.object("/api/v1/persistentvolumes/"+boxVolume, &v)
		edit(&v)
		p.API.Put(t, &v)
	}
	for _, test := range []struct {
		name, to string
		prepare  func(*testing.T, *Platform)
		want     []string
	}{
		{"a node that is not there", "agent-9", nil, []string{`the cluster has no node "agent-9"`, "agent-1, server-1"}},
		{"a node that is cordoned", "agent-1", func(t *testing.T, p *Platform) {
			n := p.node("agent-1")
			n.Spec.Unschedulable = true
			p.API.Put(t, n)
		}, []string{"LiteBoxd cannot run on the node agent-1: liteboxd-api: the node is cordoned"}},
		{"a node with a taint, by its address", "10.0.0.12", func(t *testing.T, p *Platform) {
			n := p.node("agent-1")
			n.Spec.Taints = []corev1.Taint{{Key: "pool", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
			p.API.Put(t, n)
		}, []string{"do not go with the node's labels and taints"}},
		{"somebody else uses the database", "agent-1", func(t *testing.T, p *Platform) {
			other := boxSandbox("reader", "server-1")
			other.Namespace, other.Spec.Volumes = boxSystem, []corev1.Volume{{Name: "v"}}
			other.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: manifests.DataClaim}
			p.API.Put(t, other)
		}, []string{"pod liteboxd-system/reader, which is none of LiteBoxd's, uses its database"}},
		{"no LiteBoxd", "agent-1", func(t *testing.T, p *Platform) {
			p.API.Remove(t, "/api/v1/namespaces/kube-system/secrets/sh.helm.release.v1.liteboxd.v3")
		}, []string{"LiteBoxd is not on the cluster"}},
		{"network storage", "agent-1", func(t *testing.T, p *Platform) {
			change(t, p, func(v *corev1.PersistentVolume) {
				v.Spec.HostPath, v.Spec.NFS = nil, &corev1.NFSVolumeSource{Server: "nas", Path: "/x"}
			})
		}, []string{"the volume pvc-1, which is no folder of one node"}},
		{"a volume of any node", "agent-1", func(t *testing.T, p *Platform) {
			change(t, p, func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = nil })
		}, []string{"the volume pvc-1, which is no folder of one node"}},
		{"its node is not Ready, and its host is there", "agent-1", func(t *testing.T, p *Platform) {
			p.report(p.node("server-1"), corev1.ConditionUnknown)
		}, []string{"is not Ready, and whose host is reached", "boxlift install starts k3s there again"}},
		{"no claim", "agent-1", func(t *testing.T, p *Platform) {
			change(t, p, func(v *corev1.PersistentVolume) {
				v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			})
			p.API.Remove(t, "/api/v1/namespaces/"+boxSystem+"/persistentvolumeclaims/"+manifests.DataClaim)
		}, []string{"LiteBoxd has no database yet"}},
		{"no helper", "agent-1", func(t *testing.T, p *Platform) {
			if err := os.Remove(p.Hosts[1].Path(site.HelperPath)); err != nil {
				t.Fatal(err)
			}
		}, []string{"boxlift install brings it"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := begin.Copy(t)
			if test.prepare != nil {
				test.prepare(t, p)
			}
			changes := len(p.API.Changes())
			o, _ := p.boxOptions(t)
			summary, err := install.MoveLiteBoxd(t.Context(), o, test.to)
			if err == nil || summary == nil || summary.ChangeCount() != 0 {
				t.Fatalf("%+v, %v", summary, err)
			}
			kubetest.Contains(t, kubetest.Explained(err), test.want...)
			if made := p.API.Changes()[changes:]; len(made) > 0 {
				t.Errorf("it has asked for %q", made)
			}
		})
	}
}

// What came of an earlier run to another place is taken away, as long as LiteBoxd has not run with it.
func TestMoveElsewhere(t *testing.T) {
	p := withLiteBoxd(t)
	var left *Platform
	p.Watch(func(m Moment) {
		if left == nil && m.After && m.What == "POST /api/v1/persistentvolumes" {
			left = p.Copy(t)
		}
	})
	if err := moveTo("agent-1")(t.Context(), t, p, false); err != nil {
		t.Fatal(err)
	}
	p.Watch(nil)
	o, _ := left.boxOptions(t)
	if _, err := install.ConfirmMove(t.Context(), o, false); err == nil || !strings.Contains(err.Error(), "is on its way to agent-1") {
		t.Errorf("a confirmation in the middle of a move: %v", err)
	}
	if _, err := install.MoveLiteBoxd(t.Context(), o, "server-1"); err != nil {
		t.Fatal(err)
	}
	if host, ids := left.templates(t); host != "server-1" || strings.Join(ids, "") != "ab" {
		t.Errorf("%q on %q", ids, host)
	}
	if folders, err := filepath.Glob(left.Hosts[1].Path("/var/lib/rancher/k3s/storage/*")); err != nil || len(folders) > 0 {
		t.Errorf("on the agent is left %q, %v", folders, err)
	}
}

// insert adds a template to the database of LiteBoxd's claim, as a user does.
func (p *Platform) insert(t *testing.T, id string) {
	t.Helper()
	var claim corev1.PersistentVolumeClaim
	var v corev1.PersistentVolume
	if !p.object("/api/v1/namespaces/"+boxSystem+"/persistentvolumeclaims/"+manifests.DataClaim, &claim) ||
		!p.object("/api/v1/persistentvolumes/"+claim.Spec.VolumeName, &v) {
		t.Fatal("LiteBoxd has no volume")
	}
	node := v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
	i := slices.IndexFunc(p.Hosts, func(h *Host) bool { return h.Name() == node })
	file := p.Hosts[i].Path(filepath.Join(kube.FolderOf(&v), liteboxd.DatabaseFile))
	db, err := sql.Open("sqlite", "file:"+file)
	if err == nil {
		_, err = db.ExecContext(t.Context(), "INSERT INTO templates VALUES (?)", id)
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// leftWhen is what is left when a run is killed as soon as something is so.
func leftWhen(t *testing.T, p *Platform, is func(*Platform) bool, work func(*Platform) error) *Platform {
	t.Helper()
	var left *Platform
	p.Watch(func(m Moment) {
		if left == nil && m.After && is(p) {
			left = p.Copy(t)
		}
	})
	err := work(p)
	p.Watch(nil)
	if left == nil {
		t.Fatalf("it never is: %v", err)
	}
	left.control()
	return left
}

// relocated are the volumes that have come so far on their way, by name.
func (p *Platform) relocated(t *testing.T, stage string) []corev1.PersistentVolume {
	t.Helper()
	var all []corev1.PersistentVolume
	for _, o := range p.API.OfKind(t, corev1.SchemeGroupVersion.WithKind("PersistentVolume")) {
		var v corev1.PersistentVolume
		if p.object("/api/v1/persistentvolumes/"+o.GetName(), &v) && v.Annotations["boxlift.dev/relocation"] == stage {
			all = append(all, v)
		}
	}
	return all
}

// isUsed reports whether LiteBoxd has been started with the volume that it is being brought to.
func (p *Platform) isUsed(t *testing.T) bool {
	t.Helper()
	var d appsv1.Deployment
	return len(p.relocated(t, "started")) > 0 &&
		p.object("/apis/apps/v1/namespaces/"+boxSystem+"/deployments/liteboxd-gateway", &d) && d.Status.AvailableReplicas > 0
}

// everywhere are the templates in all databases on all hosts.
func (p *Platform) everywhere(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, h := range p.Hosts {
		files, err := filepath.Glob(h.Path("/var/lib/rancher/k3s/storage/*/" + liteboxd.DatabaseFile))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			rows, err := database.Read(t.Context(), file, "templates")
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range rows["templates"] {
				all = append(all, strings.Trim(id, "'"))
			}
		}
	}
	return all
}

// whole reports volumes whose folder has no database.
func (p *Platform) whole(t *testing.T, when string) {
	t.Helper()
	for _, o := range p.API.OfKind(t, corev1.SchemeGroupVersion.WithKind("PersistentVolume")) {
		var v corev1.PersistentVolume
		if !p.object("/api/v1/persistentvolumes/"+o.GetName(), &v) || v.Spec.NodeAffinity == nil {
			continue
		}
		node := v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
		i := slices.IndexFunc(p.Hosts, func(h *Host) bool { return h.Name() == node })
		file := p.Hosts[i].Path(filepath.Join(kube.FolderOf(&v), liteboxd.DatabaseFile))
		if _, err := os.Stat(file); err != nil {
			t.Errorf("%s: the volume %s on %s is empty: %v", when, v.Name, node, err)
		}
	}
}

// What users do after a move was killed, with LiteBoxd on the other node, stays where it is, whatever the next run
// does.
func TestMoveKilledAndUsed(t *testing.T) {
	move := func(to string, resume bool) func(*testing.T, *Platform) error {
		return func(t *testing.T, p *Platform) error { return moveTo(to)(t.Context(), t, p, resume) }
	}
	confirm := func(t *testing.T, p *Platform) error {
		o, _ := p.boxOptions(t)
		_, err := install.ConfirmMove(t.Context(), o, false)
		return err
	}
	const unfinished = "by a run that did not come to its end"
	begin := leftWhen(t, withLiteBoxd(t), func(p *Platform) bool { return p.isUsed(t) },
		func(p *Platform) error { return move("agent-1", false)(t, p) })
	begin.insert(t, "later")
	for _, test := range []struct {
		name      string
		work      func(*testing.T, *Platform) error
		want      string // of the error, "" for none
		host, ids string // where the database is then, and what is in it
	}{
		{"the same again", move("agent-1", false), "", "agent-1", "ablater"},
		{"resumed", move("agent-1", true), "", "agent-1", "ablater"},
		{"to another node", move("server-1", false), unfinished, "agent-1", "ablater"},
		{"confirmed", confirm, unfinished, "agent-1", "ablater"},
		{"a host that fails", func(t *testing.T, p *Platform) error {
			p.Hosts[1].BreakAfter(3)
			defer p.Hosts[1].BreakAfter(-1)
			return move("agent-1", false)(t, p)
		}, "agent-1", "agent-1", "ablater"},
		{"a backup is put back", func(t *testing.T, p *Platform) error {
			_, err := restoreBox(t.Context(), t, p, "server-1", nil)
			return err
		}, "", "server-1", "ab"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := begin.Copy(t)
			err := test.work(t, p)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if host, ids := p.templates(t); host != test.host || strings.Join(ids, "") != test.ids {
				t.Errorf("%q on %q, want %q on %s", ids, host, test.ids, test.host)
			}
			p.whole(t, test.name)
			if rows := p.everywhere(t); !slices.Contains(rows, "later") {
				t.Errorf("what a user has made is nowhere: %q", rows)
			}
		})
	}
}

// What LiteBoxd went back from is neither written over nor removed, though it is where the next move would go.
func TestMoveLeavesWhatWasUsed(t *testing.T) {
	p := withLiteBoxd(t)
	// Its host fails when it is compared, and the run that goes back dies when the claim has its volume again.
	left := leftWhen(t, p, func(p *Platform) bool {
		if p.isUsed(t) {
			p.Hosts[1].BreakAfter(0)
		}
		var claim corev1.PersistentVolumeClaim
		return len(p.relocated(t, "started")) > 0 &&
			p.object("/api/v1/namespaces/"+boxSystem+"/persistentvolumeclaims/"+manifests.DataClaim, &claim) &&
			claim.Spec.VolumeName == boxVolume && claim.DeletionTimestamp == nil
	}, func(p *Platform) error { return moveTo("agent-1")(t.Context(), t, p, false) })
	left.Hosts[1].BreakAfter(-1)
	used := left.relocated(t, "started")[0]
	if err := moveTo("agent-1")(t.Context(), t, left, false); err != nil {
		t.Fatal(err)
	}
	if now := left.relocated(t, "left"); len(now) != 1 || now[0].Name != used.Name {
		t.Errorf("kept: %+v, want %s", now, used.Name)
	}
	left.whole(t, "after the move")
	o, _ := left.boxOptions(t)
	summary, err := install.ConfirmMove(t.Context(), o, false)
	if err != nil {
		t.Fatal(err)
	}
	kubetest.Contains(t, strings.Join(summary.Warnings, "\n"), used.Name, "before it went back: it stays")
	if now := left.relocated(t, "left"); len(now) != 1 {
		t.Errorf("after the confirmation: %+v", now)
	}
	left.whole(t, "after the confirmation")
}

// A move that was killed when the database was copied goes on when the node that it came from is lost, and no older
// backup takes its place.
func TestMoveGoesOnWithoutTheFormerNode(t *testing.T) {
	p := onAgent(t)
	for _, stage := range []string{"copied", "bound"} {
		t.Run(stage, func(t *testing.T) {
			left := leftWhen(t, p.Copy(t), func(p *Platform) bool {
				all := p.relocated(t, "copied")
				var claim corev1.PersistentVolumeClaim
				return len(all) > 0 && (stage == "copied" ||
					p.object("/api/v1/namespaces/"+boxSystem+"/persistentvolumeclaims/"+manifests.DataClaim, &claim) &&
						claim.Spec.VolumeName == all[0].Name)
			}, func(p *Platform) error { return moveTo("server-1")(t.Context(), t, p, false) })
			dial := left.gone(t)
			if stage == "copied" {
				if _, err := restoreBox(t.Context(), t, left, "server-1", dial); err == nil ||
					!strings.Contains(kubetest.Explained(err), "boxlift liteboxd move --to server-1") {
					t.Errorf("an older backup is put back: %v", err)
				}
			}
			o, _ := left.boxOptions(t)
			o.Dial = dial
			if _, err := install.MoveLiteBoxd(t.Context(), o, "server-1"); err != nil {
				t.Fatal(err)
			}
			if host, ids := left.templates(t); host != "server-1" || strings.Join(ids, "") != "ablater" {
				t.Errorf("%q on %q", ids, host)
			}
		})
	}
}
