package liteboxd

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// controlPod is a pod of LiteBoxd's own, which was told to end a minute ago if it is leaving.
func controlPod(name, uid, node string, leaving bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: types.UID(uid)}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	if leaving {
		at := metav1.NewTime(time.Now().Add(-time.Minute).Truncate(time.Second))
		p.DeletionTimestamp, p.Finalizers = &at, []string{"example.com/none"}
	}
	return p
}

// down is a node that does not report.
func down(name string) *corev1.Node {
	n := kubetest.Labelled(name, nil)
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	return n
}

// Pods that were replaced are waited for where somebody ends them, and only those.
func TestDrainStepIsNeeded(t *testing.T) {
	first := kubetest.Labelled("first", nil)
	for _, test := range []struct {
		name    string
		objects []runtime.Object
		broken  bool
		why     string
		err     string
	}{
		{name: "nothing runs"},
		{name: "all stay", objects: []runtime.Object{first, controlPod("a", "1", "first", false)}},
		{name: "one leaves", objects: []runtime.Object{
			first, controlPod("a", "1", "first", false), controlPod("b", "2", "first", true)},
			why: "b still have connections"},
		{name: "two leave", objects: []runtime.Object{
			first, controlPod("a", "1", "first", true), controlPod("b", "2", "first", true)},
			why: "a, b still have connections"},
		{name: "one on a node that is down, and not in install.yaml", objects: []runtime.Object{
			first, down("old"), controlPod("a", "1", "old", true)}},
		{name: "one on a node of install.yaml that is down", objects: []runtime.Object{
			down("first"), controlPod("a", "1", "first", true)}, why: "a still have connections"},
		{name: "a sandbox leaves", objects: []runtime.Object{first, leavingSandbox()}},
		{name: "the API does not answer", broken: true, err: "list pods"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, m := onCluster(t, plain, test.objects...)
			in.site.Hosts[0].Hostname = "first"
			if test.broken {
				m.BreakAfter(0)
			}
			reason, err := in.deployer.UpgradeTo("v0.6.11").drainReason(t.Context())
			if diff := cmp.Diff(test.why, reason); diff != "" {
				t.Error(diff)
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
			if m.Changes() != nil {
				t.Errorf("looking has changed %q", m.Changes())
			}
		})
	}
}

func leavingSandbox() *corev1.Pod {
	p := controlPod("sandbox-a", "9", "first", true)
	p.Namespace = sandboxes
	return p
}

// The step ends when the pods have, without a hand laid on any; when they do not, it says which, and may be done again.
func TestDrainStepWaits(t *testing.T) {
	objects := []runtime.Object{
		kubetest.Labelled("first", nil), controlPod("a", "1", "first", true), controlPod("b", "2", "first", false),
	}
	const path = "/api/v1/namespaces/" + system + "/pods"
	for _, test := range []struct {
		name  string
		meets func(*testing.T, *installation, *kubetest.Memory) context.Context
		want  []string
	}{
		{name: "it ends", meets: func(t *testing.T, _ *installation, m *kubetest.Memory) context.Context {
			onFifth(m, func() { m.Remove(t, path+"/a") })
			return t.Context()
		}},
		{name: "one of the same name comes", meets: func(t *testing.T, _ *installation,
			m *kubetest.Memory) context.Context {
			onFifth(m, func() { m.Put(t, controlPod("a", "7", "first", false)) })
			return t.Context()
		}},
		{name: "it takes longer than it is given",
			meets: func(t *testing.T, in *installation, _ *kubetest.Memory) context.Context {
				in.site.Config.LiteBoxd.TerminationGrace = 50*time.Millisecond - time.Minute // what is waited besides
				return t.Context()
			}, want: []string{"not gone after", "pod liteboxd-system/a", "see what the pods wait for"}},
		{name: "the run is told to end", meets: func(t *testing.T, _ *installation,
			m *kubetest.Memory) context.Context {
			ctx, cancel := context.WithCancelCause(t.Context())
			onFifth(m, func() { cancel(errors.New("interrupted by the operator")) })
			return ctx
		}, want: []string{"interrupted by the operator", "pod liteboxd-system/a"}},
		{name: "the API goes", meets: func(t *testing.T, in *installation, m *kubetest.Memory) context.Context {
			in.site.Config.LiteBoxd.TerminationGrace = 50*time.Millisecond - time.Minute
			m.BreakAfter(4)
			return t.Context()
		}, want: []string{"pod liteboxd-system/a"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, m := onCluster(t, plain, objects...)
			in.site.Hosts[0].Hostname = "first"
			u := in.deployer.UpgradeTo("v0.6.11")
			step := u.drainStep()
			err := step.Run(test.meets(t, in, m))
			m.BreakAfter(-1)
			if (err == nil) != (test.want == nil) {
				t.Fatalf("got %v", err)
			}
			if err != nil {
				kubetest.Contains(t, kubetest.Explained(err), test.want...)
			}
			reason, lookErr := u.drainReason(t.Context())
			if (reason == "") != (err == nil) || lookErr != nil {
				t.Errorf("after that: %q, %v", reason, lookErr)
			}
			if m.Changes() != nil {
				t.Errorf("it has changed %q", m.Changes())
			}
		})
	}
}

// onFifth does something when the fifth request comes: four are asked before the wait.
func onFifth(m *kubetest.Memory, do func()) {
	requests := 0
	m.Instead = func(http.ResponseWriter, *http.Request) bool {
		if requests++; requests == 5 {
			do()
		}
		return false
	}
}

// Connections are cut off when the operator's patience is over, not before, once for each pod, and no other pod is hit.
func TestOverduePodsAreEnded(t *testing.T) {
	const path = "/api/v1/namespaces/" + system + "/pods/"
	in, m := onCluster(t, plain, kubetest.Labelled("first", nil), down("old"), controlPod("a", "1", "first", true),
		controlPod("b", "2", "first", false), controlPod("c", "3", "old", true), leavingSandbox())
	in.site.Hosts[0].Hostname = "first"
	u := in.deployer.UpgradeTo("v0.6.11")
	look := func(what string, patience time.Duration, want ...string) {
		t.Helper()
		in.deployer.ForceAfter = patience
		before := len(m.Changes())
		u.endOverdue(t.Context())
		if diff := cmp.Diff(want, m.Changes()[before:], cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	look("seen for the first time", time.Nanosecond)
	look("seen for less than it may take", time.Hour)
	m.Instead = func(w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodDelete && answering(path, http.StatusInternalServerError, "no")(w, r)
	}
	look("the API does not take it", time.Nanosecond)
	m.Instead = nil
	m.BreakAfter(0)
	look("the API does not answer", time.Nanosecond)
	m.BreakAfter(-1)
	// In between, another pod of the name came, whom nobody has told anything.
	m.Instead = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			m.Put(t, controlPod("a", "7", "first", false))
		}
		return false
	}
	look("it is over", time.Nanosecond, "DELETE "+path+"a grace 1")
	m.Instead = nil
	if o := m.Object(t, path+"a"); o == nil || o.GetUID() != "7" {
		t.Errorf("the later pod was ended: %v", o)
	}
	look("it has gone", time.Nanosecond)
	m.Put(t, controlPod("b", "2", "first", true))
	look("another one leaves", time.Nanosecond)
	look("it is over for that one", time.Nanosecond, "DELETE "+path+"b grace 1")
	m.Put(t, controlPod("b", "2", "first", true))
	look("told already, and it takes its time", time.Nanosecond)
}

// Whoever has named no patience cuts nothing off.
func TestPatienceWithoutEnd(t *testing.T) {
	in, m := onCluster(t, plain, kubetest.Labelled("first", nil), controlPod("a", "1", "first", true))
	u := in.deployer.UpgradeTo("v0.6.11")
	u.forceLater(t.Context())()
	if u.seen != nil || m.Changes() != nil {
		t.Errorf("%v, %q", u.seen, m.Changes())
	}
	in.deployer.ForceAfter = time.Hour
	u.forceLater(t.Context())()
	if diff := cmp.Diff([]string(nil), m.Changes()); diff != "" {
		t.Error(diff)
	}
	pods := []kube.Pod{{Name: "a"}, {Name: "b"}}
	if got := podNames(pods); got != "a, b" {
		t.Errorf("got %q", got)
	}
}
