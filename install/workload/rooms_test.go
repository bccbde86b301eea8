package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/kube/helm"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/smallbundle"
)

func TestMain(m *testing.M) {
	if helm.RendersChart() {
		os.Exit(helm.RenderChart())
	}
	os.Exit(m.Run())
}

const image = "registry.lan/team/backend:1"

// component is a component of the bundle that a workload is made from.
func component(name, version string, files ...smallbundle.File) smallbundle.Component {
	return smallbundle.Component{Name: name, Version: version, Files: files}
}

// manifestsTar is a file of manifests.
func manifestsTar(t *testing.T, files map[string]string) smallbundle.File {
	t.Helper()
	all := make(map[string][]byte)
	for name, content := range files {
		all[name] = []byte(content)
	}
	content, err := kubetest.Tar(all)
	if err != nil {
		t.Fatal(err)
	}
	return smallbundle.File{Name: bundle.ManifestsFile, Content: string(content)}
}

// chartOf is a component with a chart, and perhaps a file of values.
func chartOf(t *testing.T, name, version string, templates map[string]string, values string) smallbundle.Component {
	t.Helper()
	c := component(name, version)
	c.Charts = []smallbundle.File{{Name: name, Content: string(kubetest.Chart(t, version, templates))}}
	if values != "" {
		c.Files = []smallbundle.File{{Name: bundle.ValuesFile, Content: values}}
	}
	return c
}

// rooms has the room that tests are about, and what is below it.
type rooms struct{ *Room }

// room is that of a site whose bundle has components, and images for linux/amd64.
func room(t *testing.T, text string, images []string, components ...smallbundle.Component) rooms {
	t.Helper()
	var carried []smallbundle.Image
	for _, ref := range images {
		carried = append(carried, smallbundle.Image{Ref: ref, Platforms: []smallbundle.Platform{
			{Name: "linux/amd64", Layers: [][]byte{smallbundle.Layer(t, map[string]string{"program": ref})}}}})
	}
	components = append([]smallbundle.Component{{Name: site.K3sComponent, Version: "v1.36.4+k3s1", Images: carried}},
		components...)
	path := filepath.Join(t.TempDir(), "b.tar")
	smallbundle.Write(t, path, smallbundle.Bundle{Components: components})
	r, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Parse("install.yaml", []byte("cluster: {servers: [{host: 10.0.0.1, agent: true}]}\n"+text),
		func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	s := &site.Site{Config: c, Reporter: progress.Discard, Misfit: site.ErrConfig, Bundle: r, Contents: contents,
		K3s: "v1.36.4+k3s1", StatePath: filepath.Join(t.TempDir(), "state.json")}
	s.Config.Runtime.CommandTimeout = 4 * time.Second
	for _, h := range c.Hosts() {
		s.Hosts = append(s.Hosts, &site.Host{Config: h, Subject: site.Subject{Name: site.HostName(h)}})
	}
	engine := &run.Engine{Site: s, Holds: run.NewHolds()}
	record := &run.Record{Site: s, Engine: engine}
	engine.Record = record
	cluster := &k3s.Cluster{Site: s, Engine: engine, Record: record, Seeder: &seed.Seeder{Site: s, Engine: engine}}
	return rooms{Room: &Room{Site: s, Engine: engine, Cluster: cluster}}
}

// connect connects the site with a cluster.
func (r rooms) connect(t *testing.T, m *kubetest.Memory) {
	t.Helper()
	api, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	r.Site.API = api
}

// settings is an object that has no pods.
func settings(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {a: %q}\n", name, value)
}

// claim is a volume that somebody's data is on.
const claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n" +
	"spec: {storageClassName: later, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"

// later makes volumes when a pod needs one.
func later() *storagev1.StorageClass {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Provisioner: "nobody",
		VolumeBindingMode: &mode}
}
