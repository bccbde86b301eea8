package helm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// answering is a cluster whose API server has a few answers.
func answering(t *testing.T, handler http.HandlerFunc) *kube.Cluster {
	t.Helper()
	api := kubetest.NewAPI(t, handler)
	c, err := kube.Connect(kube.Options{Name: "pure", Kubeconfig: api.Kubeconfig, Dial: api.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// policyServer is an API server with one network policy; whatever is applied, it answers that.
func policyServer(t *testing.T, is string) *kube.Cluster {
	t.Helper()
	const group = `{"name":"networking.k8s.io","versions":[{"groupVersion":"networking.k8s.io/v1","version":"v1"}],` +
		`"preferredVersion":{"groupVersion":"networking.k8s.io/v1","version":"v1"}}`
	const policies = "/apis/networking.k8s.io/v1/namespaces/boxes/networkpolicies/dns"
	content, err := yaml.YAMLToJSON([]byte(is))
	if err != nil {
		t.Fatal(err)
	}
	return answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch at := r.Method + " " + r.URL.Path; {
		case at == "GET /api":
			fmt.Fprint(w, `{"kind":"APIVersions","versions":[]}`)
		case at == "GET /apis":
			fmt.Fprintf(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[%s]}`, group)
		case at == "GET /apis/networking.k8s.io/v1":
			fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"networking.k8s.io/v1","resources":[`+
				`{"name":"networkpolicies","namespaced":true,"kind":"NetworkPolicy","verbs":["get","patch"]}]}`)
		case at == "GET "+policies:
			_, _ = w.Write(content)
		case at == "PATCH "+policies && r.URL.Query().Get("dryRun") == "All":
			var applied map[string]any
			if err := json.NewDecoder(r.Body).Decode(&applied); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if err := json.NewEncoder(w).Encode(applied); err != nil {
				t.Error(err)
			}
		default:
			http.Error(w, "no "+at, http.StatusNotFound)
		}
	})
}

// An object that a program replaces as a whole is compared without what it takes away with that.
func TestCompareRewritten(t *testing.T) {
	const bare = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: dns, namespace: boxes%s}\n" +
		"spec: {podSelector: {}, policyTypes: [%s]}\n"
	const mark, labels = ", annotations: {boxlift.dev/rewritten-by: api}", ", labels: {team: blue}"
	for name, test := range map[string]struct {
		rendered, is string
		want         string
	}{
		"replaced":             {fmt.Sprintf(bare, mark+labels, "Egress"), fmt.Sprintf(bare, "", "Egress"), ""},
		"labelled by somebody": {fmt.Sprintf(bare, mark, "Egress"), fmt.Sprintf(bare, labels, "Egress"), ""},
		"says something else": {fmt.Sprintf(bare, mark, "Egress"), fmt.Sprintf(bare, "", "Ingress"),
			"NetworkPolicy boxes/dns was changed: spec.policyTypes"},
		"no mark": {fmt.Sprintf(bare, labels, "Egress"), fmt.Sprintf(bare, "", "Egress"),
			"NetworkPolicy boxes/dns was changed: metadata.annotations, metadata.labels"},
	} {
		t.Run(name, func(t *testing.T) {
			c := policyServer(t, test.is)
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(test.rendered), &object.Object); err != nil {
				t.Fatal(err)
			}
			found, err := compare(kubetest.Within(t), c, []*unstructured.Unstructured{object},
				kube.ReleaseName{Namespace: "kube-system", Name: "liteboxd"})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, found[0].reason()); diff != "" {
				t.Errorf("reason (-want +got):\n%s", diff)
			}
			d, err := found[0].diff()
			if err != nil || (d == nil) != (test.want == "") {
				t.Errorf("diff %+v, %v", d, err)
			}
		})
	}
}

// Nobody is told to delete what data would go with.
func TestHintsDeleteNoData(t *testing.T) {
	const form = `Unable to continue with install: %s "boxes" in namespace "" exists and cannot be imported into the ` +
		`current release: invalid ownership metadata; label validation error: missing key "app.kubernetes.io/managed-by"`
	for kind, deletes := range map[string]bool{
		"Namespace": false, "PersistentVolumeClaim": false, "PersistentVolume": false, "CustomResourceDefinition": false,
		"Secret": false, "Deployment": true, "ConfigMap": true,
	} {
		hints := map[string]string{
			"of another": ownershipHint(fmt.Sprintf(form, kind),
				kube.ReleaseName{Namespace: "kube-system", Name: "liteboxd"}),
			"immutable": (&comparison{object: kube.Object{Kind: kind, Namespace: "plant", Name: "boxes"},
				refused: errors.New("spec.x: field is immutable")}).hint(),
		}
		if got := strings.Contains(hints["of another"], "delete it, or"); got != deletes {
			t.Errorf("%s of another: %s", kind, hints["of another"])
		}
		if got := strings.Contains(hints["immutable"], "kubectl -n plant delete"); got != deletes {
			t.Errorf("%s that is immutable: %s", kind, hints["immutable"])
		}
		if want := "with the label app.kubernetes.io/managed-by=Helm"; !strings.Contains(hints["of another"], want) {
			t.Errorf("%s of another: %s", kind, hints["of another"])
		}
	}
}
