package sitetest

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/liteboxd/boxlift/install/kube"
)

// StorageAPI answers as an API server does that is asked for nodes, volumes and pods, and keeps what else it was
// asked for.
type StorageAPI struct {
	sync.Mutex
	Nodes   []corev1.Node
	Volumes []corev1.PersistentVolume
	Others  []string
}

func (a *StorageAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.Lock()
	defer a.Unlock()
	var list any
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/nodes":
		list = corev1.NodeList{Items: a.Nodes}
	case "GET /api/v1/persistentvolumes":
		list = corev1.PersistentVolumeList{Items: a.Volumes}
	case "GET /api/v1/pods":
		list = corev1.PodList{}
	default:
		a.Others = append(a.Others, r.Method+" "+r.URL.Path)
		http.Error(w, "no", http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

// Connect is boxlift's way to it.
func (a *StorageAPI) Connect(t *testing.T) *kube.Cluster {
	t.Helper()
	server := httptest.NewTLSServer(a)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	config := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: '%s', certificate-authority-data: %s}}],
contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}]}`,
		server.URL, base64.StdEncoding.EncodeToString(ca))
	api, err := kube.Connect(kube.Options{Name: "server", Kubeconfig: []byte(config), Dial: (&net.Dialer{}).DialContext})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// NewStorageAPI has nodes, and on one of them a volume of k3s' provisioner.
func NewStorageAPI(node, namespace, claim string, nodes ...string) *StorageAPI {
	a := &StorageAPI{}
	for _, name := range nodes {
		var n corev1.Node
		n.Name, n.Labels = name, map[string]string{corev1.LabelHostname: name}
		a.Nodes = append(a.Nodes, n)
	}
	var v corev1.PersistentVolume
	v.Name, v.Status.Phase = "pvc-1", corev1.VolumeBound
	v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/var/lib/rancher/k3s/storage/pvc-1"}
	v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: claim}
	onNode := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn}
	onNode.Values = []string{node}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{onNode}}},
	}}
	a.Volumes = append(a.Volumes, v)
	return a
}
