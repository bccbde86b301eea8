package members

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// A node gets the labels and taints of install.yaml, loses those that it had from there, and keeps what is others'.
func TestNodeStep(t *testing.T) {
	const path = "/api/v1/nodes/worker"
	type marks struct {
		labels map[string]string
		taints []config.Taint
	}
	pool := config.Taint{Key: "pool", Value: "sandboxes", Effect: "NoSchedule"}
	theirs := corev1.Taint{Key: "theirs", Value: "x", Effect: corev1.TaintEffectNoExecute}
	for _, test := range []struct {
		name string
		// before is what an earlier run had, others what somebody else has done to the node since.
		before *marks
		others func(*corev1.Node)
		wanted marks
		why    string
		labels map[string]string
		taints []string
	}{
		{name: "nothing is wanted"},
		{name: "a new node", wanted: marks{map[string]string{"team": "a"}, []config.Taint{pool}},
			why: "label team=a, taint pool=sandboxes:NoSchedule", labels: map[string]string{"team": "a"},
			taints: []string{"pool=sandboxes:NoSchedule"}},
		{name: "as it is to be", before: &marks{map[string]string{"team": "a"}, []config.Taint{pool}},
			wanted: marks{map[string]string{"team": "a"}, []config.Taint{pool}}, labels: map[string]string{"team": "a"},
			taints: []string{"pool=sandboxes:NoSchedule"}},
		{name: "others have changed it", before: &marks{map[string]string{"team": "a"}, []config.Taint{pool}},
			others: func(n *corev1.Node) { n.Labels["team"], n.Spec.Taints[0].Value = "b\x1b[2J", "shops" },
			wanted: marks{map[string]string{"team": "a"}, []config.Taint{pool}},
			why:    "label team=a (was b\ufffd[2J), taint pool=sandboxes:NoSchedule",
			labels: map[string]string{"team": "a"},
			taints: []string{"pool=sandboxes:NoSchedule"}},
		{name: "others have made it so", others: func(n *corev1.Node) {
			n.Labels["team"], n.Spec.Taints = "a",
				[]corev1.Taint{{Key: "pool", Value: "sandboxes", Effect: corev1.TaintEffectNoSchedule}}
		}, wanted: marks{map[string]string{"team": "a"}, []config.Taint{pool}},
			why:    "labels are taken over, taints are taken over",
			labels: map[string]string{"team": "a"}, taints: []string{"pool=sandboxes:NoSchedule"}},
		{name: "no more wanted", before: &marks{map[string]string{"team": "a", "disk": "ssd"}, []config.Taint{pool}},
			others: func(n *corev1.Node) {
				n.Labels["zone"], n.Spec.Taints = "z", append(n.Spec.Taints, theirs)
			}, wanted: marks{labels: map[string]string{"disk": "ssd"}},
			why:    "label team goes, taint pool=sandboxes:NoSchedule goes",
			labels: map[string]string{"disk": "ssd", "zone": "z"}, taints: []string{"theirs=x:NoExecute"}},
		{name: "a record that is not boxlift's", others: func(n *corev1.Node) {
			n.Annotations = map[string]string{"boxlift.dev/taints": `{"all": "theirs"}`}
			n.Spec.Taints = []corev1.Taint{theirs}
		}, wanted: marks{taints: []config.Taint{pool}}, why: "taint pool=sandboxes:NoSchedule",
			taints: []string{"theirs=x:NoExecute", "pool=sandboxes:NoSchedule"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *installation
			steptest.ProveIn(t, steptest.Wide{Why: test.why,
				Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
					in, m := onCluster(t, sitetest.ExampleConfig, kubetest.Labelled("worker", nil))
					last = in
					h := in.site.Hosts[1]
					if test.before != nil {
						h.Config.Labels, h.Config.Taints = test.before.labels, test.before.taints
						if err := in.members.NodeStep(h, "worker").Run(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					if test.others != nil {
						n, err := in.site.API.Node(t.Context(), "worker")
						if err != nil {
							t.Fatal(err)
						}
						test.others(n)
						m.Put(t, n)
					}
					h.Config.Labels, h.Config.Taints = test.wanted.labels, test.wanted.taints
					return m, func() run.Step { return in.members.NodeStep(h, "worker") }
				}})
			nodes, err := last.site.API.Nodes(t.Context())
			if err != nil || len(nodes) != 1 {
				t.Fatalf("%v, %v", nodes, err)
			}
			delete(nodes[0].Labels, corev1.LabelHostname)
			if len(nodes[0].Labels) == 0 {
				nodes[0].Labels = nil
			}
			var taints []string
			for _, taint := range nodes[0].Taints {
				taints = append(taints, taint.String())
			}
			if diff := cmp.Diff([]any{test.labels, test.taints}, []any{nodes[0].Labels, taints}); diff != "" {
				t.Error(diff)
			}
		})
	}
	// Two who write at the same time do not lose what the other has written.
	in, m := onCluster(t, sitetest.ExampleConfig, kubetest.Labelled("worker", nil))
	h := in.site.Hosts[1]
	h.Config.Taints = []config.Taint{pool}
	met := false
	m.Instead = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && !met {
			met = true
			n := kubetest.Labelled("worker", map[string]string{"meanwhile": "x"})
			n.Spec.Taints = []corev1.Taint{theirs}
			m.Put(t, n)
		}
		return false
	}
	if err := in.members.NodeStep(h, "worker").Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := kube.Node{}
	if nodes, err := in.site.API.Nodes(t.Context()); err != nil {
		t.Fatal(err)
	} else {
		n = nodes[0]
	}
	if len(n.Taints) != 2 || n.Labels["meanwhile"] != "x" || len(m.Changes()) != 2 {
		t.Errorf("%v, %v, after %q: %v", n.Taints, n.Labels, m.Changes(), m.Object(t, path).GetAnnotations())
	}
}

// A node that has gone is said to have gone, so that its host fails alone; what is not answered is no node that has
// gone.
func TestNodeStepFails(t *testing.T) {
	for name, test := range map[string]struct {
		node    string
		instead func(http.ResponseWriter, *http.Request) bool
		gone    bool
		want    string
	}{
		"no such node": {node: "other", gone: true, want: "no such node: other"},
		"the API does not let boxlift read": {node: "worker", want: "get node worker",
			instead: func(w http.ResponseWriter, _ *http.Request) bool {
				http.Error(w, "no", http.StatusForbidden)
				return true
			}},
		"something else answers": {node: "worker", want: "get node worker",
			instead: func(w http.ResponseWriter, _ *http.Request) bool {
				_, _ = w.Write([]byte("<html>"))
				return true
			}},
		"the API does not let boxlift write": {node: "worker", want: "set labels of node worker",
			instead: func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet {
					return false
				}
				http.Error(w, "no", http.StatusForbidden)
				return true
			}},
	} {
		in, m := onCluster(t, sitetest.ExampleConfig, kubetest.Labelled("worker", nil))
		m.Instead = test.instead
		h := in.site.Hosts[1]
		h.Config.Labels = map[string]string{"team": "a"}
		step := in.members.NodeStep(h, test.node)
		_, err := step.Needed(t.Context())
		if err == nil {
			err = step.Run(t.Context())
		}
		if err == nil || errors.Is(err, kube.ErrNoNode) != test.gone || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
