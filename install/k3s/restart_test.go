package k3s

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/setup"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// Servers that are down come first, so that those which hold the majority are started again beside none of them.
func TestRotationOrder(t *testing.T) {
	in, fakes := reached(t, sitetest.ThreeServers)
	fakes[0].Unit("k3s").Runs()
	fakes[1].Unit("k3s")
	fakes[2].Unit("k3s").Runs()
	order := func() (all []int) {
		t.Helper()
		hosts, err := in.cluster.RotationOrder(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hosts {
			all = append(all, slices.Index(in.site.Hosts, h))
		}
		return all
	}
	if diff := cmp.Diff([]int{1, 0, 2, 3}, order()); diff != "" {
		t.Error(diff)
	}
	fakes[2].Unit("k3s").Starting(5) // it may wait for the others
	if diff := cmp.Diff([]int{1, 2, 0, 3}, order()); diff != "" {
		t.Error(diff)
	}
	fakes[1].BreakAfter(0)
	if _, err := in.cluster.RotationOrder(t.Context()); !errors.Is(err, hosttest.ErrLost) {
		t.Errorf("a server that does not answer: %v", err)
	}
}

// A server is started again with its new token only while etcd can do without it, and the next one's turn comes when
// its node is Ready again.
func TestRestartStep(t *testing.T) {
	well := kubelet(t, http.StatusOK)
	const unready, why = "etcd failed", "changed since it was started"
	for _, test := range []struct {
		name  string
		place int
		apis  [3]string // what they say of themselves when they are not ready
		late  bool      // the node gets Ready while it is waited for
		why   string
		want  []string // of an error
	}{
		{name: "a server", why: why},
		{name: "its node takes its time", late: true, why: why},
		{name: "another server is down", apis: [3]string{"", unready, ""}, why: why, want: []string{
			"without this server, 1 of 3 servers would be left that answer, and etcd needs a majority of 2", unready,
		}},
		{name: "an agent, while a server is down", place: 3, apis: [3]string{"", unready, ""}, why: why},
	} {
		t.Run(test.name, func(t *testing.T) {
			ready := []corev1.Node{node("host-0", true, ""), node("worker", false, "")}
			lists := 0
			var kubeconfigs []string
			for _, unready := range test.apis {
				api := &clusterAPI{nodes: ready, unready: unready}
				if test.late {
					api.nodes = []corev1.Node{node("host-0", true, "KubeletNotReady")}
					api.listed = func() {
						if lists++; lists == 2 { // the first one asks whether it is registered
							api.nodes = ready
						}
					}
				}
				kubeconfigs = append(kubeconfigs, api.start(t))
			}
			fresh := func(t *testing.T) (*hosttest.Fake, run.Step) {
				in, fakes := reached(t, sitetest.ThreeServers)
				if test.want != nil {
					in.site.Config.Runtime.CommandTimeout = 1
				}
				for i, h := range in.site.Servers() {
					h.Member = true
					write(t, fakes[i], map[string]string{
						K3sDatabases + "/etcd/member/wal": "", site.K3sKubeconfig: kubeconfigs[i],
					})
				}
				h, f := in.site.Hosts[test.place], fakes[test.place]
				f.Program("boxlift-node", helper)
				h.Config.K3s.Config = map[string]any{"kubelet-arg": []string{well}}
				write(t, f, map[string]string{site.K3sBinary: program, site.K3sTokenFile: "next", site.StartedFile: "before"})
				f.Unit(site.Unit(h.Config.Role)).Runs()
				api, err := in.site.APIThrough(t.Context(), in.site.Hosts[0])
				if err != nil {
					t.Fatal(err)
				}
				in.site.API = api
				return f, (&Node{Cluster: in.cluster, Host: h}).restartStep()
			}
			if test.want == nil && !test.late {
				steptest.Prove(t, steptest.Case{Why: test.why, Fresh: fresh})
				return
			}
			f, step := fresh(t)
			before := f.Snapshot(t)
			if test.late {
				if carryOut(t, step); lists < 3 {
					t.Errorf("the next one's turn came when the nodes were listed %d times", lists)
				}
				return
			}
			refuses(t, step, test.want...)
			if diff := cmp.Diff(before, f.Snapshot(t)); diff != "" {
				t.Errorf("without a majority, the server has changed: %s", diff)
			}
		})
	}
	for want, n := range map[string]*kube.Node{
		"its node is not registered": nil, "its node is not Ready: why": {Reason: "why"}, "": {Ready: true},
	} {
		if ready, err := readyAgain(n); ready != (want == "") || (err != nil && err.Error() != want) {
			t.Errorf("%+v: %t, %v", n, ready, err)
		}
	}
}

// K3s that runs with what there is starts again where its tokens are about to change, and for nothing else of a
// rotation.
func TestRestartForTokens(t *testing.T) {
	well := kubelet(t, http.StatusOK)
	for _, test := range []struct {
		phase, id, want string
	}{
		{"", "", ""},
		{TokensPhase, setup.FileID(site.K3sTokenFile), "its tokens change"},
		{TokensPhase, setup.FileID(site.K3sAgentTokenFile), "its tokens change"},
		{TokensPhase, setup.FileID(stagedTokenFile), ""},
		{"servers", setup.FileID(site.K3sTokenFile), ""},
	} {
		_, n, start := startable(t, 0, well)
		carryOut(t, start)
		if test.id != "" {
			n.Host.Changes = []site.Change{{Phase: test.phase, ID: test.id}}
		}
		restart := n.restartStep()
		if reason, err := restart.Needed(t.Context()); reason != test.want || err != nil {
			t.Errorf("%s %s: needed because %q, want %q: %v", test.phase, test.id, reason, test.want, err)
		}
	}
}

// Before a server of etcd is stopped, the others are asked for themselves; a node of a server that install.yaml does
// not have counts as well. Where the server itself does not answer either, there is nothing to lose.
func TestAwaitMajority(t *testing.T) {
	const unready = "etcd failed"
	for _, test := range []struct {
		name  string
		place int
		set   func(in *installation, second *hosttest.Fake)
		apis  [3]string
		nodes []corev1.Node
		// starting tells that k3s on the server is at its start.
		starting bool
		want     string
	}{
		{name: "all are well"},
		{name: "another one is not ready", apis: [3]string{"", "", unready}, want: "10.0.0.13: "},
		{name: "another one is not connected to", want: "10.0.0.12: it is not connected to",
			set: func(in *installation, _ *hosttest.Fake) { in.site.Hosts[1].Conn = nil }},
		{name: "another one runs no API", want: "10.0.0.12: no k3s server runs yet",
			set: func(_ *installation, second *hosttest.Fake) { second.Program("cat", hosttest.Prints("")) }},
		{name: "another one says what is no kubeconfig", want: "10.0.0.12: ",
			set: func(_ *installation, second *hosttest.Fake) {
				second.Program("cat", hosttest.Prints(strings.Repeat("\x1b[2J", 10000)))
			}},
		{name: "another one has not joined yet", apis: [3]string{"", "", unready},
			set: func(in *installation, _ *hosttest.Fake) { in.site.Hosts[2].Member = false }},
		{name: "a fourth one is down", apis: [3]string{"", "", unready},
			nodes: []corev1.Node{node("fourth", true, "KubeletNotReady")},
			want:  "fourth: its node is not Ready: KubeletNotReady"},
		{name: "a fourth and a fifth are well", apis: [3]string{"", "", unready},
			nodes: []corev1.Node{node("fourth", true, ""), node("fifth", true, "")}},
		{name: "it is down itself", apis: [3]string{unready, unready, ""}},
		{name: "its k3s is at its start", apis: [3]string{"", unready, ""}, starting: true},
		{name: "an agent", place: 3, apis: [3]string{"", unready, unready}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, fakes := reached(t, sitetest.ThreeServers)
			in.site.Config.Runtime.CommandTimeout = 1
			for i, h := range in.site.Servers() {
				h.Member = true
				write(t, fakes[i], map[string]string{
					K3sDatabases + "/etcd/member/wal": "",
					site.K3sKubeconfig:                (&clusterAPI{nodes: test.nodes, unready: test.apis[i]}).start(t),
				})
				fakes[i].Unit("k3s").Runs()
			}
			if test.set != nil {
				test.set(in, fakes[1])
			}
			if test.starting {
				fakes[0].Unit("k3s").Starting(9)
			}
			err := in.cluster.AwaitMajority(t.Context(), in.site.Hosts[test.place])
			if (err == nil) != (test.want == "") {
				t.Fatal(err)
			}
			if err != nil {
				text := kubetest.Explained(err)
				kubetest.Contains(t, text, "without this server", test.want, "see `journalctl -u k3s`")
				if strings.Contains(text, "\x1b") || len(text) > 2000 {
					t.Errorf("%q", text)
				}
			}
		})
	}
}
