package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// prepared does what is needed before k3s is changed on a host, in its order, as a run that begins now does.
func (m *move) prepared(ctx context.Context) (done []string, err error) {
	found, err := readKept(ctx, m.host)
	if err != nil {
		return nil, err
	}
	m.takeUp(found)
	if err := m.lookAtMove(ctx); err != nil {
		return nil, err
	}
	what, err := m.toKeep(ctx)
	if err != nil {
		return nil, err
	}
	for _, step := range m.prepareSteps(what) {
		reason, err := step.Needed(ctx)
		if err == nil && reason != "" {
			done = append(done, step.ID+" because "+reason)
			err = step.Run(ctx)
		}
		if err != nil {
			return done, fmt.Errorf("%s: %w", step.Title, err)
		}
	}
	return done, nil
}

// anew is the same move by a run that begins now.
func (m *move) anew() *move {
	return &move{upgrader: m.upgrader, host: m.host, phase: m.phase, wanted: m.wanted}
}

// toDrain is a host whose node is to be drained, with a pod that can run elsewhere and one of a DaemonSet.
func toDrain(t *testing.T) (*move, *hosttest.Fake, *kubetest.Memory) {
	t.Helper()
	m, f, api := toMove(t)
	m.upgrader.Upgrade.Accept.Drain, m.upgrader.Cluster.Crossing.Minor = true, true
	api.Put(t, aPod("shop", "web"))
	return m, f, api
}

// What k3s is has been kept before anything else, and pods are noted anew only where k3s alone is started again.
func TestPrepare(t *testing.T) {
	const keeps, notes = "keep-k3s because k3s is about to change", "note-pods because k3s is about to be started again"
	for _, test := range []struct {
		name string
		set  func(*testing.T, *move, *hosttest.Fake)
		want []string
	}{
		{"another program", func(*testing.T, *move, *hosttest.Fake) {}, []string{keeps}},
		{"another program, and it is to be drained", func(_ *testing.T, m *move, _ *hosttest.Fake) {
			m.upgrader.Upgrade.Accept.Drain, m.upgrader.Cluster.Crossing.Minor = true, true
		}, []string{keeps, "drain-node because it is asked for; sandboxes on the node end"}},
		{"its new program is there, and runs with old settings", func(t *testing.T, m *move, f *hosttest.Fake) {
			if err := m.keep(t.Context()); err != nil {
				t.Fatal(err)
			}
			isNew(t, f)
			m.host.Binary = ""
		}, []string{notes}},
		{"its new program is there, and was never started", func(t *testing.T, m *move, f *hosttest.Fake) {
			if err := m.keep(t.Context()); err != nil {
				t.Fatal(err)
			}
			isNew(t, f)
			f.WriteFile(t, site.StartedFile, "", 0o600)
			m.host.Binary = ""
		}, nil},
		{"no k3s", func(t *testing.T, _ *move, f *hosttest.Fake) {
			if err := os.Remove(f.Path(site.K3sBinary)); err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, f, api := toMove(t)
			api.Put(t, aPod("shop", "web"))
			test.set(t, m, f)
			done, err := m.anew().prepared(t.Context())
			if diff := cmp.Diff(test.want, done); diff != "" || err != nil {
				t.Errorf("%v: %s", err, diff)
			}
		})
	}
}

// Wherever draining is broken off, the host keeps what k3s was, and that pods are to come to its node again: the next
// run drains it to the end, and knows that nobody else keeps pods off it.
func TestDrainGoesOn(t *testing.T) {
	check := func(t *testing.T, m *move, api *kubetest.Memory) {
		t.Helper()
		k, err := readKept(t.Context(), m.host)
		if err != nil || k == nil || k.K3s != oldK3s || !k.Drained || k.Cordoned || len(k.Pods) > 0 {
			t.Errorf("kept is %+v, %v", k, err)
		}
		node := api.Object(t, "/api/v1/nodes/host-1").Object["spec"]
		if fmt.Sprint(node) != "map[unschedulable:true]" || api.Object(t, "/api/v1/namespaces/shop/pods/web") != nil {
			t.Errorf("the node is %v", node)
		}
	}
	for _, byHost := range []bool{true, false} {
		for n := 0; ; n++ {
			m, f, api := toDrain(t)
			breaks := map[bool]func(int){true: f.BreakAfter, false: api.BreakAfter}[byHost]
			breaks(n)
			_, broken := m.prepared(t.Context())
			breaks(-1)
			if broken != nil && !errors.Is(broken, hosttest.ErrLost) && !api.Lost(broken) {
				t.Fatalf("after %d operations: %v", n, broken)
			}
			if broken != nil {
				if _, err := m.anew().prepared(t.Context()); err != nil {
					t.Fatalf("again, after %d operations: %v", n, err)
				}
			}
			check(t, m, api)
			if broken == nil {
				break
			}
		}
	}
}

// A node with data that is on no other is not drained, unless its host may be down: nothing of it is begun.
func TestDrainStopsForData(t *testing.T) {
	for _, accepted := range []string{"first", "host-1"} {
		m, _, api := toDrain(t)
		m.upgrader.Upgrade.Accept.Interrupt = []string{accepted}
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}}
		v.Status.Phase = corev1.VolumeBound
		v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/srv"}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data"}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"host-1"}},
			}}},
		}}
		api.Put(t, kubetest.Labelled("host-1", nil), v)
		_, err := m.prepared(t.Context())
		if accepted == "host-1" {
			if err != nil || api.Object(t, "/api/v1/namespaces/shop/pods/web") != nil {
				t.Errorf("its host may be down: %v", err)
			}
			continue
		}
		if !errors.Is(err, site.ErrRefused) || !strings.Contains(err.Error(), "shop/data") ||
			!strings.Contains(err.Error(), "host-1 to let what uses it be down meanwhile") {
			t.Errorf("%q may be down: %v", accepted, err)
		}
		if api.Changes() != nil {
			t.Errorf("the cluster was changed: %q", api.Changes())
		}
	}
}
