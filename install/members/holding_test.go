package members

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/localdata"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// What is held is told by host, as much of it as people read; the ways out are those of what is held.
func TestHeldIsTold(t *testing.T) {
	claims := func(host string, n int) []localdata.Holding {
		var held []localdata.Holding
		for i := range n {
			held = append(held, localdata.Holding{Host: host, Use: localdata.Claimed, Namespace: "shop",
				Claim: fmt.Sprintf("c%d", i)})
		}
		return held
	}
	const sandboxes, copying, backup = "deleted in LiteBoxd", "copy what is needed elsewhere",
		"a backup of LiteBoxd is made first"
	const moving, confirming = "boxlift liteboxd move --to NODE", "removed with boxlift liteboxd move --confirm"
	for _, test := range []struct {
		name         string
		held         []localdata.Holding
		text, not    []string
		hint, hintNo []string
	}{
		{name: "the database", held: []localdata.Holding{{Host: "a", Use: localdata.Database, Namespace: "s",
			Claim: "d"}},
			text: []string{"a holds\n  LiteBoxd's database"}, hint: []string{"keep the host", backup, moving, "backup restore --only"},
			hintNo: []string{sandboxes, copying, confirming}},
		{name: "the database as it was before", held: []localdata.Holding{{Host: "a", Use: localdata.Former, Namespace: "s",
			Claim: "d", Path: "/x"}}, text: []string{"LiteBoxd's database as it was before (the claim s/d), in /x"},
			hint: []string{"keep the host", confirming}, hintNo: []string{sandboxes, copying, backup, moving}},
		{name: "a sandbox", held: []localdata.Holding{{Host: "a", Use: localdata.Sandbox, Sandbox: "7f"}},
			text: []string{"persistent sandbox 7f"}, hint: []string{sandboxes}, hintNo: []string{backup, copying}},
		{name: "a folder that nobody knows", held: []localdata.Holding{{Host: "a", Use: localdata.Stray,
			Path: "/x\x1b[2J"}},
			text: []string{"/x\ufffd[2J"}, hint: []string{copying}, hintNo: []string{backup, sandboxes}},
		{name: "as many as are told", held: claims("a", maxHeld), text: []string{"shop/c19"}, not: []string{"more"}},
		{name: "many, on two hosts", held: append(claims("a", maxHeld+3), claims("b", 1)...),
			text: []string{"shop/c19", "\n  3 more\nb holds\n"}, not: []string{"shop/c20"}},
		{name: "a host with a name in colours", held: claims("a\nb\x1b[2J", 1), text: []string{"[2J holds"},
			not: []string{"a\nb", "\x1b"}},
	} {
		err := error(&heldError{test.held})
		if !errors.Is(err, site.ErrRefused) {
			t.Errorf("%s: it is not refused", test.name)
		}
		kubetest.Contains(t, err.Error(), test.text...)
		hint := strings.Join(fault.Hints(err), "")
		kubetest.Contains(t, hint, append(test.hint, giveUpFlag)...)
		for _, part := range test.not {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is in %q", test.name, part, err)
			}
		}
		for _, part := range test.hintNo {
			if strings.Contains(hint, part) {
				t.Errorf("%s: %q is in the hint %q", test.name, part, hint)
			}
		}
	}
}

// folderOn is a volume that is a folder of a node, claimed as namespace/name.
func folderOn(node, name, namespace, claim string) *corev1.PersistentVolume {
	volumes := sitetest.NewStorageAPI(node, namespace, claim).Volumes
	volumes[0].Name = name
	return &volumes[0]
}

// Between two steps of a removal anything may happen: what only that host holds stops the next step, and changes
// nothing.
func TestRemovalStopsForData(t *testing.T) {
	for _, test := range []struct {
		name   string
		volume *corev1.PersistentVolume
		change func(*corev1.PersistentVolume)
		giveUp []string
		held   bool
	}{
		{name: "a volume of the host", volume: folderOn("worker", "pvc-1", "shop", "data"), held: true},
		{name: "one of another host", volume: folderOn("server", "pvc-1", "shop", "data")},
		{name: "one that is given up", volume: folderOn("worker", "pvc-1", "shop", "data"), giveUp: []string{"worker"}},
		{name: "another host's are given up", volume: folderOn("worker", "pvc-1", "shop", "data"),
			giveUp: []string{"server"}, held: true},
		{name: "one that the cluster deletes", volume: folderOn("worker", "pvc-1", "shop", "data"),
			change: func(v *corev1.PersistentVolume) {
				v.Status.Phase, v.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased,
					corev1.PersistentVolumeReclaimDelete
			}},
		{name: "one that was kept", volume: folderOn("worker", "pvc-1", "shop", "data"),
			change: func(v *corev1.PersistentVolume) {
				v.Status.Phase, v.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased,
					corev1.PersistentVolumeReclaimRetain
			}, held: true},
		{name: "one of a network", volume: folderOn("worker", "pvc-1", "shop", "data"),
			change: func(v *corev1.PersistentVolume) {
				v.Spec.HostPath, v.Spec.NodeAffinity = nil, nil
				v.Spec.NFS = &corev1.NFSVolumeSource{Server: "nas", Path: "/"}
			}},
	} {
		in, m := onCluster(t, sitetest.ExampleConfig, working()...)
		in.members.GiveUpDataOn = test.giveUp
		f := agent(t, onAgent...)
		r := &removal{members: in.members, node: kube.Node{Name: "worker", Ready: true}, reason: "it is to be removed"}
		if err := in.members.judgeData(t.Context(), []*removal{r}); err != nil {
			t.Fatalf("%s: before it was made: %v", test.name, err)
		}
		if test.change != nil {
			test.change(test.volume)
		}
		m.Put(t, test.volume)
		before := m.Snapshot(t) + f.Snapshot(t)
		for _, step := range r.steps(f) {
			if step.ID == "drain-node" {
				continue // it follows at once on the first step
			}
			var held *heldError
			if err := step.Run(t.Context()); errors.As(err, &held) != test.held || err != nil && !test.held {
				t.Errorf("%s: %s: %v", test.name, step.ID, err)
			}
		}
		if changed := m.Snapshot(t)+f.Snapshot(t) != before; changed == test.held {
			t.Errorf("%s: changed %v, %q", test.name, changed, m.Changes())
		}
	}
	// What the API does not tell is not taken for nothing.
	in, m := onCluster(t, sitetest.ExampleConfig, working()...)
	m.Instead = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/persistentvolumes") {
			http.Error(w, "no", http.StatusForbidden)
			return true
		}
		return false
	}
	r := &removal{members: in.members, node: kube.Node{Name: "worker", Ready: true}, reason: "it is to be removed"}
	if err := r.steps(nil)[2].Run(t.Context()); err == nil || m.Changes() != nil {
		t.Errorf("%v, changed %q", err, m.Changes())
	}
}

// A database that is given up is backed up first; of a host that is gone for good there is none to be had, which is
// said with the last backup that has one.
func TestGivenUpDatabase(t *testing.T) {
	for _, test := range []struct {
		name    string
		forget  bool
		ended   bool
		backups []liteboxd.Backup
		want    string
		warning string
	}{
		{name: "its host may come back", want: "remove worker: nothing was changed"},
		{name: "it is gone for good, without a backup", forget: true,
			warning: "the last one beside the state is unknown"},
		{name: "it is gone for good, with backups", forget: true, warning: "/20260102T030405.000Z",
			backups: []liteboxd.Backup{{SHA256: "ab"}, {}}},
		{name: "the run was told to end", forget: true, ended: true, want: "nothing was changed"},
	} {
		in, m := onCluster(t, sitetest.ExampleConfig, working()...)
		in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
		for i, b := range test.backups {
			dir := filepath.Join(in.site.Beside("liteboxd-backups"), fmt.Sprintf("2026010%dT030405.000Z", i+2))
			text, err := json.Marshal(b)
			if err := errors.Join(err, os.MkdirAll(dir, 0o700),
				os.WriteFile(filepath.Join(dir, "backup.json"), text, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		if test.ended {
			end()
		}
		r := &removal{members: in.members, node: kube.Node{Name: "worker"}, forgetUnreachable: test.forget}
		err := r.backUpDatabase(ctx, localdata.Holding{Host: "worker", Use: localdata.Database,
			Namespace: "liteboxd-system"})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
		text := strings.Join(in.site.Warnings, "\n")
		if (text == "") != (test.warning == "") || !strings.Contains(text, test.warning) {
			t.Errorf("%s: warnings %q, want %q", test.name, text, test.warning)
		}
		if test.warning != "" {
			kubetest.Contains(t, text, "NO BACKUP", "cluster.absentAgentLogin")
		}
		if m.Changes() != nil {
			t.Errorf("%s: changed %q", test.name, m.Changes())
		}
	}
}

// Only agents that are certainly others than the hosts of install.yaml are removed unasked.
func TestAbsentNodesThatStay(t *testing.T) {
	config := strings.Replace(sitetest.RemovingConfig, "10.0.0.12, password", "10.0.0.12, name: worker, password", 1)
	server := map[string]string{"node-role.kubernetes.io/control-plane": "true"}
	addressed := func(n *corev1.Node, address string) *corev1.Node {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		return n
	}
	for _, test := range []struct {
		name   string
		nodes  []runtime.Object
		failed bool
		want   string
		goes   bool
	}{
		{name: "an agent", nodes: []runtime.Object{addressed(kubetest.Labelled("late", nil), "10.0.0.99")}, goes: true},
		{name: "a server", nodes: []runtime.Object{addressed(kubetest.Labelled("late", server), "10.0.0.99")},
			want: "it is a server, which boxlift never removes by itself"},
		{name: "a host of install.yaml has failed",
			nodes:  []runtime.Object{addressed(kubetest.Labelled("late", nil), "10.0.0.99")},
			failed: true, want: "it stays until every host of install.yaml is there"},
		{name: "one with the address of a host",
			want: "its name, machine-id or an address is that of worker (10.0.0.12)",
			nodes: []runtime.Object{addressed(kubetest.Labelled("worker", nil), "10.0.0.50"),
				addressed(kubetest.Labelled("late", nil), "10.0.0.12")}},
		{name: "one that is down, and whose host is not reached",
			nodes: []runtime.Object{addressed(down("late", nil), "10.0.0.99")},
			want:  ForgetCommand("late")},
	} {
		in, _ := onCluster(t, config, test.nodes...)
		in.site.Conns = site.NewConnections(in.site.Config, nil, nil)
		if test.failed {
			in.site.Hosts[1].Fail(errors.New("no route"))
		}
		nodes, err := in.site.API.Nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		removals, err := in.members.absentRemovals(t.Context(), nodes)
		if err != nil || (len(removals) == 1) != test.goes || len(removals) > 1 {
			t.Errorf("%s: %v, %v", test.name, removals, err)
		}
		text := strings.Join(in.site.Warnings, "\n")
		if (text == "") != test.goes || !strings.Contains(text, test.want) {
			t.Errorf("%s: warnings %q, want %q", test.name, text, test.want)
		}
	}
}
