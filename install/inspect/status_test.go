package inspect

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/release"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/node/facts"
	"github.com/liteboxd/boxlift/node/images"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// Status sums up hosts and cluster, and differs wherever anything does; an error that there was stays the one.
func TestStatus(t *testing.T) {
	before := errors.New("it could not be looked at all of it")
	for _, test := range []struct {
		name string
		make func(*Inspector)
		err  error
		want error
	}{
		{"the same", func(*Inspector) {}, nil, nil},
		{"a step on a host", func(ins *Inspector) {
			ins.Site.Hosts[1].Changes = []site.Change{{Title: "start k3s", Reason: "it is down"}}
		}, nil, site.ErrDifferent},
		{"a host is not as it is to be", func(ins *Inspector) { ins.Site.Hosts[0].Differences = []string{"x"} }, nil, site.ErrDifferent},
		{"a step on the cluster", func(ins *Inspector) {
			ins.Engine.Cluster.Changes = []site.Change{{Title: "upgrade Cilium", Reason: "it is old"}}
		}, nil, site.ErrDifferent},
		{"a warning", func(ins *Inspector) { ins.Site.Warn("x") }, nil, site.ErrDifferent},
		{"no record", func(ins *Inspector) { ins.Site.API = nil }, nil, nil},
		{"it failed", func(ins *Inspector) { ins.Site.Hosts[0].Differences = []string{"x"} }, before, before},
	} {
		p := looked(t, sitetest.ExampleConfig)
		ins := p.inspector
		ins.Site.Bundle = sitetest.Fresh(t, 1).Bundle
		record := sitetest.RecordOf(t, 1)
		record.Releases[0].Bundle = ins.Site.Bundle.Digest()
		document, err := record.Encode()
		if err != nil {
			t.Fatal(err)
		}
		p.api.Put(t, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: release.SecretNamespace, Name: release.SecretName}, Data: map[string][]byte{release.SecretKey: document},
		})
		test.make(ins)
		s, err := ins.Status(t.Context(), test.err)
		if !errors.Is(err, test.want) || test.want == nil && err != nil || s.Cluster != "example" || len(s.Hosts) != 2 {
			t.Errorf("%s: %+v, %v", test.name, s, err)
		}
		if (s.Release != nil) == (ins.Site.API == nil) {
			t.Errorf("%s: the release is %+v", test.name, s.Release)
		}
		for _, h := range s.Hosts {
			if h.Disk != nil || h.Service == "" {
				t.Errorf("%s: %+v", test.name, h)
			}
		}
	}
}

// What one host is in status: its packs of the bundle, the room of all, and why it could not be looked at.
func TestStatusOf(t *testing.T) {
	pack := bundle.Pack{Component: "k3s", Index: []byte("{}")}
	for _, test := range []struct {
		name string
		host site.Host
		want HostStatus
	}{
		{"nothing is known", site.Host{}, HostStatus{Service: "unknown"}},
		{
			"all", site.Host{
				Config: config.Host{Role: config.Agent}, Service: "active", K3s: version, Node: "a", Images: 3, Packs: []bundle.Pack{pack, {Component: "cilium"}},
				Facts: &facts.Facts{Packs: []facts.Pack{{Name: site.PackName(pack), Size: 5}, {Name: "old.tar", Size: 7}}},
			}, HostStatus{Role: config.Agent, Service: "active", K3s: version, Node: "a", Images: 3, Packs: 1, PackBytes: 12},
		},
		{
			"it differs", site.Host{Err: site.ErrDifferent, Subject: site.Subject{Differences: []string{"b"}}},
			HostStatus{Service: "unknown", Differences: []string{"b"}},
		},
		{"it failed", site.Host{Err: errors.New("no route")}, HostStatus{Service: "unknown", Error: "no route"}},
	} {
		if diff := cmp.Diff(test.want, statusOf(&test.host)); diff != "" {
			t.Errorf("%s, -want +got:\n%s", test.name, diff)
		}
	}
	h := &site.Host{Subject: site.Subject{Changes: []site.Change{{Title: "start k3s", Reason: "it is down"}}}}
	if diff := cmp.Diff([]string{"it is down; boxlift install would start k3s"}, statusOf(h).Differences); diff != "" {
		t.Error(diff)
	}
}

// A disk whose use cannot be found out is told of and is no difference; nothing that a host says of it is taken unread.
func TestMeasureDisks(t *testing.T) {
	for _, test := range []struct {
		name    string
		program hosttest.Program
		want    bool
	}{
		{"well", hosttest.Prints(`{"version":1,"packs":1,"files":2,"content":3,"free":4,"total":5}`), true},
		{"an older helper", hosttest.Fails(2, "unknown command"), false},
		{"no helper", nil, false},
		{"another form", hosttest.Prints(`{"version":99}`), false},
		{"less than nothing", hosttest.Prints(`{"version":1,"packs":-1}`), false},
		{"nothing", hosttest.Prints(""), false},
		{"huge", hosttest.Prints(strings.Repeat(`{"version":1}`, 1<<17)), false},
		{"for a terminal", hosttest.Prints("\x1b[31m"), false},
	} {
		p := looked(t, sitetest.ExampleConfig)
		for i, h := range p.inspector.Site.Hosts[:1] {
			h.Facts = &facts.Facts{}
			p.fakes[i].Program("boxlift-node", test.program)
		}
		disks := p.inspector.measureDisks(t.Context())
		if (disks[0] != nil) != test.want || disks[1] != nil || p.inspector.Site.Hosts[0].Err != nil || p.inspector.Site.Warnings != nil {
			t.Errorf("%s: %+v", test.name, disks)
		}
		if test.want {
			if diff := cmp.Diff(&images.DiskUse{Version: 1, Packs: 1, Files: 2, Content: 3, Free: 4, Total: 5}, disks[0]); diff != "" {
				t.Error(diff)
			}
		}
	}
}

// Which LiteBoxd runs is known from Helm, and from its image where somebody else has deployed it.
func TestFindRunning(t *testing.T) {
	for _, test := range []struct {
		name   string
		config string
		make   func(*platform)
		want   string // LiteBoxd
		cilium string
	}{
		{"boxlift's", boxesConfig, func(p *platform) {
			p.api.Put(t, kubetest.HelmRelease(t, "kube-system", "liteboxd", "v0.6.11", "deployed", 1))
		}, "v0.6.11", ""},
		{"somebody's", boxesConfig, func(p *platform) {
			p.api.Put(t, deployment(boxSystem, "liteboxd-api", "registry.lan/liteboxd-server:v0.6.9"))
		}, "v0.6.9", ""},
		{"another program", boxesConfig, func(*platform) {}, "", ""},
		{"none is asked for", sitetest.ExampleConfig, func(p *platform) {
			p.api.Put(t, deployment(boxSystem, "liteboxd-api", "registry.lan/liteboxd-server:v0.6.9"))
		}, "", ""},
		{"Cilium's newest revision", sitetest.ExampleConfig, func(p *platform) {
			p.api.Put(t, kubetest.HelmRelease(t, "kube-system", "cilium", "1.20.0", "pending-upgrade", 10),
				kubetest.HelmRelease(t, "kube-system", "cilium", "1.19.1", "deployed", 9))
		}, "", "1.20.0 pending-upgrade"},
		{"an earlier revision that cannot be read", sitetest.ExampleConfig, func(p *platform) {
			s := kubetest.HelmRelease(t, "kube-system", "cilium", "1.19.1", "superseded", 1)
			s.Data["release"] = []byte("\x1b[31m")
			p.api.Put(t, s, kubetest.HelmRelease(t, "kube-system", "cilium", "1.20.0", "deployed", 2))
		}, "", "1.20.0 deployed"},
	} {
		p := looked(t, test.config)
		test.make(p)
		r, err := p.inspector.FindRunning(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		cilium := ""
		if r.Cilium != nil {
			cilium = r.Cilium.ChartVersion + " " + r.Cilium.Status
		}
		if r.LiteBoxd != test.want || cilium != test.cilium || len(r.Nodes) != 2 {
			t.Errorf("%s: LiteBoxd %q, Cilium %q, %d nodes", test.name, r.LiteBoxd, cilium, len(r.Nodes))
		}
	}
	for _, path := range []string{"/api/v1/nodes", "/api/v1/namespaces/kube-system/secrets", "/apis/apps/v1/namespaces/" + boxSystem + "/deployments"} {
		p := looked(t, boxesConfig)
		p.api.Answer(path, unavailable)
		if r, err := p.inspector.FindRunning(t.Context()); err == nil {
			t.Errorf("%s does not answer: %+v", path, r)
		}
	}
}

// The record is compared with the bundle and with what runs; one that cannot be read is a difference, and so is none.
func TestCompareRecord(t *testing.T) {
	for _, test := range []struct {
		name  string
		state release.State
		text  string // of the record; "" for one release
		want  []string
	}{
		{"another bundle, and another k3s", release.Succeeded, "", []string{"is of bundle", "release 1: the node first runs k3s " + version + ", not v1.35.8+k3s1", "release 1: there is no Helm release cilium"}},
		{"a release that failed", release.Failed, "", []string{"release 1 (install, bundle", "is failed since"}},
		{"none", "", "none", []string{"the cluster has no record of releases"}},
		{"damaged", "", "\x1b[31m{", []string{"the record of releases cannot be used"}},
	} {
		p := looked(t, sitetest.ExampleConfig)
		p.inspector.Site.Bundle = sitetest.Fresh(t, 9).Bundle
		record := sitetest.RecordOf(t, 9)
		record.Releases[0].State, record.Releases[0].Bundle = test.state, digest.FromString("x")
		record.Releases[0].Components = []release.Component{{Name: "k3s", Version: "v1.35.8+k3s1"}, {Name: "cilium", Version: "1.20.0"}}
		document := []byte(test.text)
		if test.text == "" {
			var err error
			if document, err = record.Encode(); err != nil {
				t.Fatal(err)
			}
		}
		if test.text != "none" {
			p.api.Put(t, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: release.SecretNamespace, Name: release.SecretName}, Data: map[string][]byte{release.SecretKey: document},
			})
		}
		newest, differences := p.inspector.compareRecord(t.Context())
		all := strings.Join(differences, "\n")
		for _, want := range test.want {
			if !strings.Contains(all, want) {
				t.Errorf("%s: want %q in:\n%s", test.name, want, all)
			}
		}
		if (newest != nil) != (test.text == "") || strings.Contains(all, "\x1b") {
			t.Errorf("%s: %+v\n%q", test.name, newest, all)
		}
	}
}

// The summary's look at a cluster has all of it or fails.
func TestLookAround(t *testing.T) {
	p := looked(t, sitetest.ExampleConfig)
	p.api.Put(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		aNode("host-1", notReady("\x1b[31mno CNI"), func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	p.api.Put(t, aNode("first", func(n *corev1.Node) { n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": "true"} }))
	o, err := p.inspector.overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []site.NodeOverview{
		{Name: "first", State: "Ready", Role: "server", Version: version}, {Name: "host-1", State: "KubeletNotReady: \ufffd[31mno CNI, cordoned", Role: "agent", Version: version},
	}
	if diff := cmp.Diff(want, o.Nodes); diff != "" || len(o.Workloads) != 8 || len(o.Services) != 1 || len(o.Namespaces) != 1 {
		t.Errorf("%d workloads, %d services, %q, -want +got:\n%s", len(o.Workloads), len(o.Services), o.Namespaces,
			diff)
	}
	for _, path := range []string{"/api/v1/nodes", "/apis/apps/v1/deployments", "/api/v1/services", "/api/v1/namespaces"} {
		p.api.Answer(path, senseless)
		if _, err := p.inspector.overview(t.Context()); err == nil {
			t.Errorf("%s answers without sense, and that is taken for something", path)
		}
		p.api.Answer(path, nil)
	}
}

// The access to the cluster is the operator's alone, keeps what else the file has, and is made of nothing but what a
// server's own file is to have.
func TestExportKubeconfig(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "config"), filepath.Join(dir, "link")
	other := strings.ReplaceAll(serversKubeconfig, "default", "home")
	if err := errors.Join(os.WriteFile(file, []byte(other), 0o644), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	p := looked(t, sitetest.ExampleConfig)
	p.inspector.Kubeconfig, p.inspector.MergeKubeconfig = link, true
	p.fakes[0].WriteFile(t, site.K3sKubeconfig, serversKubeconfig, 0o600)
	if err := p.inspector.exportKubeconfig(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	c, err := clientcmd.LoadFromFile(file)
	if err != nil || len(c.Contexts) != 2 || c.Clusters["example"].Server != "https://10.0.0.11:6443" || c.CurrentContext != "home" {
		t.Errorf("%+v, %v", c, err)
	}
	// The operator's own machine is called by the address that others reach it by.
	own := p.inspector.Site.Hosts[0]
	own.Config.Local, own.Config.Host, own.IP = true, "localhost", netip.MustParseAddr("10.0.0.5")
	for _, nodeIP := range []string{"10.0.0.11", ""} {
		want := "https://10.0.0.11:6443"
		if nodeIP == "" {
			own.Config.NodeIP, want = netip.Addr{}, "https://10.0.0.5:6443"
		}
		if err := p.inspector.exportKubeconfig(t.Context()); err != nil {
			t.Fatal(err)
		}
		if c, err := clientcmd.LoadFromFile(file); err != nil || c.Clusters["example"].Server != want {
			t.Errorf("nodeIP %q: %+v, %v", nodeIP, c.Clusters["example"], err)
		}
	}
	p.inspector.MergeKubeconfig, p.inspector.Site.Config.Cluster.APIEndpoint = false, "k3s.example:443"
	if err := p.inspector.exportKubeconfig(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c, err := clientcmd.LoadFromFile(file); err != nil || len(c.Contexts) != 1 || c.Clusters["example"].Server != "https://k3s.example:443" {
		t.Errorf("%+v, %v", c, err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, served := range []string{"", "{", "\x00\x1b[31m", strings.Repeat("a: b\n", 1<<20), strings.Replace(serversKubeconfig, "user: default", "user: other", 1)} {
		p.fakes[0].WriteFile(t, site.K3sKubeconfig, served, 0o600)
		if err := p.inspector.exportKubeconfig(t.Context()); err == nil || len(err.Error()) > 4000 {
			t.Errorf("%.20q: %v", served, err)
		}
	}
	if err := os.Truncate(file, maxKubeconfig+1); err != nil {
		t.Fatal(err)
	}
	p.inspector.MergeKubeconfig = true
	p.fakes[0].WriteFile(t, site.K3sKubeconfig, serversKubeconfig, 0o600)
	if err := p.inspector.exportKubeconfig(t.Context()); err == nil || !strings.Contains(err.Error(), "is the most") {
		t.Errorf("a huge file was merged into: %v", err)
	}
	if err := os.Truncate(file, int64(len(before))); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("what failed has changed the file: %v", err)
	}
}
