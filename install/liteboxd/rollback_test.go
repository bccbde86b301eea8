package liteboxd

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/release/common"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/install/workload"
	"github.com/liteboxd/boxlift/manifests"
)

// What LiteBoxd has in a namespace, as far as it is told by that where it is.
const objectsIn = `apiVersion: apps/v1
kind: Deployment
metadata: {name: liteboxd-api, namespace: NAMESPACE}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: default-deny-all, namespace: liteboxd-sandbox}
`

// LiteBoxd goes back to what was rolled out once, in the namespaces that it is in; else nothing is touched.
func TestRollBackIsRefused(t *testing.T) {
	here, elsewhere := strings.Replace(objectsIn, "NAMESPACE", system, 1),
		strings.Replace(objectsIn, "NAMESPACE", "plant", 1)
	for _, test := range []struct {
		name     string
		objects  []runtime.Object
		revision int
		broken   bool
		want     string
		refused  bool
	}{
		{name: "never rolled out", want: "it is not installed", refused: true},
		{name: "nothing before it", objects: []runtime.Object{revision(1, common.StatusDeployed, here)},
			want: "before revision 1 there is none that was rolled out and differs", refused: true},
		{name: "no such revision", revision: 7, want: "no such revision: 7", refused: true,
			objects: []runtime.Object{revision(1, common.StatusSuperseded, "a"),
				revision(2, common.StatusDeployed, here)}},
		{name: "one that has failed", revision: 1, want: "1 is failed", refused: true,
			objects: []runtime.Object{revision(1, common.StatusFailed, "a"), revision(2, common.StatusDeployed, here)}},
		{name: "install.yaml has another namespace", want: "LiteBoxd is in the namespace plant", refused: true,
			objects: []runtime.Object{revision(1, common.StatusSuperseded, "a"),
				revision(2, common.StatusDeployed, elsewhere)}},
		{name: "what runs cannot be read", want: "read what was rendered",
			objects: []runtime.Object{revision(1, common.StatusSuperseded, "a"),
				revision(2, common.StatusDeployed, "{]")}},
		{name: "the API does not answer", broken: true, want: "read release"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, m := onCluster(t, plain, test.objects...)
			if test.broken {
				m.BreakAfter(0)
			}
			err := in.deployer.RollBack(t.Context(), test.revision)
			if err == nil || errors.Is(err, site.ErrRefused) != test.refused ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if m.Changes() != nil || in.backupFiles(t) != nil {
				t.Errorf("changed %q, backups %q", m.Changes(), in.backupFiles(t))
			}
		})
	}
}

// What runs is what the last good revision has: neither what was tried since, nor what somebody else has rolled out.
func TestRunningObjects(t *testing.T) {
	here := strings.Replace(objectsIn, "NAMESPACE", system, 1)
	deployed := []kube.Object{
		{Kind: "Deployment", Namespace: system, Name: "liteboxd-api"},
		{Kind: "NetworkPolicy", Namespace: sandboxes, Name: "default-deny-all"},
	}
	other := revision(1, common.StatusDeployed, here)
	other.Labels["name"] = "another"
	for name, test := range map[string]struct {
		objects []runtime.Object
		want    []kube.Object
	}{
		"nothing":    {nil, nil},
		"rolled out": {[]runtime.Object{revision(1, common.StatusDeployed, here)}, deployed},
		"the next one fails": {[]runtime.Object{revision(1, common.StatusDeployed, here),
			revision(2, common.StatusFailed, "")}, deployed},
		"never good":      {[]runtime.Object{revision(1, common.StatusFailed, here)}, nil},
		"another release": {[]runtime.Object{other}, nil},
	} {
		in, _ := onCluster(t, plain, test.objects...)
		got, err := in.deployer.runningObjects(t.Context())
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
}

// A LiteBoxd that install.yaml does not know of is left alone, and told of.
func TestForgottenLiteBoxd(t *testing.T) {
	const without = "cluster: {name: example, servers: [{host: 10.0.0.11, agent: true}]}\n"
	for _, test := range []struct {
		name, text string
		objects    []runtime.Object
		want       string
	}{
		{"there is none", without, nil, ""},
		{"it runs", without, []runtime.Object{revision(9, common.StatusDeployed, "")},
			"LiteBoxd 0.6.9 runs on the cluster"},
		{"install.yaml has it", plain, []runtime.Object{revision(9, common.StatusDeployed, "")}, ""},
	} {
		in, m := onCluster(t, test.text, test.objects...)
		err := in.deployer.warnOfLiteBoxd(t.Context())
		text := strings.Join(in.site.Warnings, "\n")
		if err != nil || (text == "") != (test.want == "") || !strings.Contains(text, test.want) || m.Changes() != nil {
			t.Errorf("%s: %v, warnings %q, changed %q", test.name, err, text, m.Changes())
		}
	}
	in, m := onCluster(t, without)
	m.BreakAfter(0)
	if err := in.deployer.warnOfLiteBoxd(t.Context()); !m.Lost(err) {
		t.Errorf("without an answer: %v", err)
	}
}

// What is waited for, and what needs parts of k3s, is told from the objects that are rendered.
func TestDeploymentObjects(t *testing.T) {
	rendered, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: manifests.Parameters{
		Images: manifests.Images{API: "r.lan/a:1", Gateway: "r.lan/g:1", Web: "r.lan/w:1", Helper: "r.lan/h:1"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	d := &Deployment{Rendered: rendered}
	var names []string
	for _, w := range d.Workloads() {
		names = append(names, w.Kind+" "+w.Name)
	}
	want := []string{
		"Deployment " + manifests.API, "Deployment " + manifests.Gateway, "Deployment " + manifests.NetworkController,
		"Deployment liteboxd-web",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	for part, needed := range map[string]bool{workload.PartTraefik: true, "local-storage": true, "servicelb": false} {
		if d.Needs(part) != needed {
			t.Errorf("it needs %s: %v", part, !needed)
		}
	}
}
