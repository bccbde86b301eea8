package liteboxd

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
	nodedatabase "github.com/liteboxd/boxlift/node/database"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// Where LiteBoxd is, unless install.yaml says otherwise.
const system, sandboxes = "liteboxd-system", "liteboxd-sandbox"

// onCluster is the site of an install.yaml with a cluster that has objects, and an empty folder for its state.
func onCluster(t *testing.T, text string, objects ...runtime.Object) (*installation, *kubetest.Memory) {
	t.Helper()
	in, m := example(t, text), kubetest.NewMemory(t, objects...)
	in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
	in.reach(t, m)
	return in, m
}

// reach connects the site with a cluster.
func (in *installation) reach(t *testing.T, m *kubetest.Memory) {
	t.Helper()
	api, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	in.site.API = api
}

// keySecret is the Secret with the key of the stored tokens, loginSecret that with the first login.
func keySecret(key string) *corev1.Secret {
	return secret(manifests.KeysSecret, map[string]string{keyVariable: key})
}

func loginSecret(password string) *corev1.Secret {
	return secret(manifests.AuthSecret, map[string]string{usernameVariable: "admin", passwordVariable: password})
}

func secret(name string, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}, Data: map[string][]byte{}}
	for key, value := range data {
		s.Data[key] = []byte(value)
	}
	return s
}

// volume is the claim of LiteBoxd's database, bound to a volume which is a folder of a node, and the volume.
func volume(node, folder string) []runtime.Object {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: manifests.DataClaim}}
	claim.Spec.VolumeName, claim.Status.Phase = "pvc-1", corev1.ClaimBound
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}}
	v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: folder}
	if folder == "" {
		v.Spec.HostPath, v.Spec.NFS = nil, &corev1.NFSVolumeSource{Server: "nas", Path: "/"}
	}
	on := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
		Values: []string{node}}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{on}}},
	}}
	return []runtime.Object{claim, v}
}

// sandboxPod is the pod of a sandbox.
func sandboxPod(name, node string, restarts int32) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: sandboxes, Name: name,
		Labels: map[string]string{"app": SandboxApp}}}
	p.UID, p.Spec.NodeName, p.Status.Phase = types.UID("uid of "+name), node, corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: restarts}}
	return p
}

// revision is one of LiteBoxd's release, as Helm keeps it.
func revision(version int, status common.Status, manifest string) *corev1.Secret {
	r := &release.Release{
		Name: seed.LiteBoxdRelease, Namespace: seed.ReleasesNamespace, Version: version, Manifest: manifest,
		Info:  &release.Info{Status: status},
		Chart: &chart.Chart{Metadata: &chart.Metadata{Name: "liteboxd", Version: fmt.Sprintf("0.6.%d", version)}},
	}
	var made *corev1.Secret
	client := fake.NewClientset()
	client.PrependReactor("create", "secrets", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if create, ok := action.(k8stesting.CreateAction); ok {
			made, _ = create.GetObject().(*corev1.Secret)
		}
		return true, made, nil
	})
	store := storage.Init(driver.NewSecrets(client.CoreV1().Secrets(seed.ReleasesNamespace)))
	if err := store.Create(r); err != nil {
		panic(err) // a reactor does not fail
	}
	made.Namespace = seed.ReleasesNamespace
	delete(made.Labels, "createdAt") // nobody asks for it, and it is another one each time
	return made
}

// dataFolder is where the volume of LiteBoxd's database is on its host.
const dataFolder = "/var/lib/rancher/k3s/storage/pvc-1"

// databaseHost lets the site's first host be one with LiteBoxd's database, and with a boxlift-node that copies
// databases.
// It has the templates of users if it is to have a database.
func (in *installation) databaseHost(t *testing.T, withDatabase bool) *hosttest.Fake {
	t.Helper()
	h := in.site.Hosts[0]
	f := hosttest.New(t, h.Name)
	h.Conn, h.Hostname = f, "first"
	f.WriteFile(t, site.HelperPath, "boxlift-node", 0o755)
	f.Program("boxlift-node", func(ctx context.Context, c *hosttest.Call) int {
		var options nodedatabase.Options
		flags := flag.NewFlagSet(c.Args[0], flag.ContinueOnError)
		flags.SetOutput(c.Stderr)
		flags.StringVar(&options.Source, "source", "", "")
		flags.StringVar(&options.Target, "target", "", "")
		if err := flags.Parse(c.Args[1:]); err != nil || c.Args[0] != "snapshot-sqlite" {
			return 2
		}
		options.Source, options.Target = c.Host.Path(options.Source), c.Host.Path(options.Target)
		report, err := nodedatabase.Copy(ctx, options)
		if err == nil {
			err = json.NewEncoder(c.Stdout).Encode(report)
		}
		if err != nil {
			fmt.Fprintln(c.Stderr, "boxlift-node:", err)
			return 1
		}
		return 0
	})
	if withDatabase {
		changeDatabase(t, f,
			"CREATE TABLE templates (id TEXT PRIMARY KEY, spec TEXT)",
			"INSERT INTO templates VALUES ('a', ''), ('b', ''), ('c', '')",
			"CREATE TABLE sandboxes (id TEXT PRIMARY KEY)", "INSERT INTO sandboxes VALUES ('1')")
	}
	return f
}

// changeDatabase does something to LiteBoxd's database, which it makes if it has to.
func changeDatabase(t *testing.T, f *hosttest.Fake, statements ...string) {
	t.Helper()
	file := f.Path(dataFolder + "/" + DatabaseFile)
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=synchronous(0)") // the disk of a test need not keep it
	err = errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o755))
	for _, statement := range statements {
		if err == nil {
			_, err = db.ExecContext(t.Context(), statement)
		}
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}
