package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/liteboxd/edge"
	"github.com/liteboxd/boxlift/test/liteboxd/edge/edgetest"
	"github.com/liteboxd/boxlift/test/liteboxd/store"
)

const rawKey = "0123456789abcdef0123456789abcdef"

// allow answers access reviews, with no for one verb and resource.
func allow(client *fake.Clientset, verb, resource string) {
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action k8stesting.Action) (bool, runtime.Object, error) {
		review := action.(k8stesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		asked := review.Spec.ResourceAttributes
		name := asked.Resource
		if asked.Subresource != "" {
			name += "/" + asked.Subresource
		}
		review.Status.Allowed = asked.Verb != verb || name != resource
		return true, review, nil
	})
}

func newTestAPI(t *testing.T, env map[string]string, objects ...runtime.Object) (*api, *fake.Clientset) {
	t.Helper()
	common, err := edge.ReadSettings(func(name string) string {
		if name == "SANDBOX_TOKEN_ENCRYPTION_KEY" && env[name] == "" {
			return rawKey
		}
		return env[name]
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	common.Log = slog.New(slog.DiscardHandler)
	s, err := readSettings(common)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := db.EnsureAdmin(t.Context(), "admin", "password", ""); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(objects...)
	echo := func(_ context.Context, e execution) error {
		if e.stdin == nil {
			_, err := io.WriteString(e.stdout, strings.Join(e.command, " "))
			return err
		}
		_, err := io.Copy(e.stdout, e.stdin)
		return err
	}
	a := newAPI(s, edge.Release{Version: "v0.6.10", Schema: 1}, db, client, echo)
	a.server.Settle = 0
	return a, client
}

// client talks to the API as a user who has logged in.
type client struct {
	t      *testing.T
	server *httptest.Server
	cookie *http.Cookie
}

func login(t *testing.T, a *api) *client {
	t.Helper()
	c := &client{t: t, server: httptest.NewServer(a.server.Handler)}
	t.Cleanup(c.server.Close)
	response, _ := c.do(http.MethodPost, "/api/v1/auth/login", `{"username":"admin","password":"password"}`)
	for _, cookie := range response.Cookies() {
		if cookie.Name == "liteboxd_session" {
			c.cookie = cookie
		}
	}
	if c.cookie == nil {
		t.Fatalf("login: %s, no cookie", response.Status)
	}
	return c
}

func (c *client) do(method, path, body string) (*http.Response, map[string]any) {
	c.t.Helper()
	request, err := http.NewRequestWithContext(c.t.Context(), method, c.server.URL+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if c.cookie != nil {
		request.AddCookie(c.cookie)
	}
	response, err := c.server.Client().Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // only read
	data, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	document := map[string]any{}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &document); err != nil {
			c.t.Fatalf("%s %s: %v: %s", method, path, err, data)
		}
	}
	return response, document
}

func (c *client) must(status int, method, path, body string) map[string]any {
	c.t.Helper()
	response, document := c.do(method, path, body)
	if response.StatusCode != status {
		c.t.Fatalf("%s %s: %s, %v", method, path, response.Status, document)
	}
	return document
}

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		name, key, value, problem string
	}{
		{"no key", "", "", "SANDBOX_TOKEN_ENCRYPTION_KEY: it is not set"},
		{"short key", "SANDBOX_TOKEN_ENCRYPTION_KEY", "short", "16, 24 or 32 bytes"},
		{"raw key", "SANDBOX_TOKEN_ENCRYPTION_KEY", rawKey, ""},
		{"hexadecimal key", "SANDBOX_TOKEN_ENCRYPTION_KEY", strings.Repeat("0f", 24), ""},
		{"base64 key", "SANDBOX_TOKEN_ENCRYPTION_KEY", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", ""},
		{"retention", "SANDBOX_METADATA_RETENTION_DAYS", "0", "SANDBOX_METADATA_RETENTION_DAYS"},
		{"session", "SESSION_MAX_AGE", "x", "SESSION_MAX_AGE"},
		{"write timeout", "WRITE_TIMEOUT", "x", "WRITE_TIMEOUT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readSettings(&edge.Settings{Getenv: func(name string) string {
				if name == c.key {
					return c.value
				}
				if name == "SANDBOX_TOKEN_ENCRYPTION_KEY" && c.key != "" {
					return rawKey
				}
				return ""
			}})
			if c.problem == "" && err != nil || c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("error %v, expected %q", err, c.problem)
			}
		})
	}
}

func TestTokenKey(t *testing.T) {
	one, err := parseTokenKey(rawKey)
	if err != nil {
		t.Fatal(err)
	}
	other, err := parseTokenKey(strings.Repeat("x", 32))
	if err != nil {
		t.Fatal(err)
	}
	sealed := one.seal("token")
	if got, err := one.open(sealed, one.id); err != nil || got != "token" {
		t.Errorf("%q, %v", got, err)
	}
	for name, f := range map[string]func() (string, error){
		"another key":      func() (string, error) { return other.open(sealed, one.id) },
		"another key's ID": func() (string, error) { return one.open(sealed, "v2") },
		"too short":        func() (string, error) { return one.open(sealed[:3], one.id) },
	} {
		if got, err := f(); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Each right is asked for, and one that is missing ends the program and is named.
func TestMissingRights(t *testing.T) {
	a, _ := newTestAPI(t, nil)
	for _, r := range rights("liteboxd-sandbox") {
		resource, _, _ := strings.Cut(r.Resource, ".")
		for verb := range strings.FieldsSeq(r.Verbs) {
			client := fake.NewClientset()
			allow(client, verb, resource)
			a.client = client
			err := a.prepare(t.Context())
			if err == nil || !strings.Contains(err.Error(), "must not "+verb+" "+r.Resource) {
				t.Errorf("%s %s: %v", verb, r.Resource, err)
			}
		}
	}
}

// What the API server forbids is an error also where no review was asked.
func TestForbiddenLists(t *testing.T) {
	for _, resource := range []string{"namespaces", "nodes", "persistentvolumes", "volumeattachments", "pods",
		"persistentvolumeclaims", "events", "jobs", "deployments", "networkpolicies"} {
		a, client := newTestAPI(t, nil)
		allow(client, "", "")
		client.PrependReactor("*", resource, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
		})
		if err := a.prepare(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", resource, err)
		}
	}
}

// Whatever the policies say, the API replaces them and leaves others alone.
func TestPolicies(t *testing.T) {
	const namespace = "liteboxd-sandbox"
	changed := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "allow-gateway-ingress", Namespace: namespace, Labels: map[string]string{"of": "a site"}, Annotations: map[string]string{"of": "a site"}},
		Spec:       networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolTCP, 80, 0)}}}},
	}
	own := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "own", Namespace: namespace}}
	a, client := newTestAPI(t, map[string]string{"CONTROL_NAMESPACE": "control"}, changed, own)
	allow(client, "", "")
	if err := a.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := client.NetworkingV1().NetworkPolicies(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]networkingv1.NetworkPolicySpec{}
	for _, p := range list.Items {
		got[p.Name] = p.Spec
		if p.Name == changed.Name && (len(p.Labels) > 0 || len(p.Annotations) > 0) {
			t.Errorf("%s keeps its labels %v and annotations %v", p.Name, p.Labels, p.Annotations)
		}
	}
	want := policies("control")
	want["own"] = own.Spec
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	rule := got[changed.Name].Ingress[0]
	if p := rule.Ports[0]; p.Port.IntVal != 3000 || *p.EndPort != 65535 || rule.From[0].NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] != "control" {
		t.Errorf("the gateway's rule is %+v", rule)
	}
}

// What boxlift's manifests say of the policies that the API replaces is what it replaces them with,
// and they, and nothing else, are marked.
func TestPoliciesOfManifests(t *testing.T) {
	r, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: manifests.Parameters{
		SystemNamespace: "control", SandboxResources: true,
		Images: manifests.Images{API: "a.test/a:1", Gateway: "a.test/g:1", Web: "a.test/w:1", Helper: "a.test/h:1"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]networkingv1.NetworkPolicySpec{}
	for _, object := range r.Objects() {
		if object.GetAnnotations()[manifests.RewrittenBy] != manifests.API {
			continue
		}
		var p networkingv1.NetworkPolicy
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &p, true); err != nil {
			t.Fatal(err)
		}
		got[p.Name] = p.Spec
	}
	if diff := cmp.Diff(policies("control"), got); diff != "" {
		t.Errorf("(-written by the API +in the manifests):\n%s", diff)
	}
}

// With domains, a sandbox is not let out by the policy for all of the internet.
func TestAllowedDomains(t *testing.T) {
	a, _ := newTestAPI(t, nil)
	for name, c := range map[string]struct {
		spec   store.TemplateSpec
		labels bool
	}{
		"all of the internet": {store.TemplateSpec{InternetAccess: true}, true},
		"some domains":        {store.TemplateSpec{InternetAccess: true, AllowedDomains: []string{"example.org"}}, false},
		"nothing":             {store.TemplateSpec{}, false},
	} {
		pod, err := a.pod(store.Sandbox{ID: "x"}, c.spec, "token")
		if err != nil || (pod.Labels[internetLabel] == "true") != c.labels {
			t.Errorf("%s: %v, %v", name, pod, err)
		}
	}
}

func TestAuthorization(t *testing.T) {
	a, _ := newTestAPI(t, nil)
	c := login(t, a)
	key, _ := c.must(http.StatusCreated, http.MethodPost, "/api/v1/auth/api-keys", `{"name":"ci"}`)["key"].(string)
	nobody := &client{t: t, server: c.server}
	if got := nobody.must(http.StatusOK, http.MethodGet, "/api/v1/version", "")["version"]; got != "v0.6.10" {
		t.Errorf("version %v", got)
	}
	for _, path := range []string{"templates", "sandboxes", "images/prepull", "sandboxes/x", "sandboxes/x/logs", "sandboxes/x/exec/interactive"} {
		nobody.must(http.StatusUnauthorized, http.MethodGet, "/api/v1/"+path, "")
	}
	nobody.must(http.StatusUnauthorized, http.MethodPost, "/api/v1/auth/login", `{"username":"admin","password":"wrong"}`)
	nobody.must(http.StatusBadRequest, http.MethodPost, "/api/v1/auth/login", `{"user":"admin"}`)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.server.URL+"/api/v1/templates", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+key)
	response, err := c.server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("with a key: %s, %v", response.Status, err)
	}
}

// A sandbox from its template to its end: the row, the pod, and what of the token is kept.
func TestSandbox(t *testing.T) {
	a, fakes := newTestAPI(t, map[string]string{"GATEWAY_URL": "http://gateway.example"})
	c := login(t, a)
	c.must(http.StatusBadRequest, http.MethodPost, "/api/v1/sandboxes", `{"template":"none"}`)
	c.must(http.StatusBadRequest, http.MethodPost, "/api/v1/templates", `{"name":"nginx"}`)
	c.must(http.StatusCreated, http.MethodPost, "/api/v1/templates", `{"name":"nginx","spec":{"image":"docker.io/library/nginx:alpine","cpu":"200m","internetAccess":true}}`)
	created := c.must(http.StatusCreated, http.MethodPost, "/api/v1/sandboxes", `{"template":"nginx","ttl":600}`)
	id, token := created["id"].(string), created["accessToken"].(string)
	if created["accessUrl"] != "http://gateway.example/api/v1/sandbox/"+id {
		t.Errorf("accessUrl %v", created["accessUrl"])
	}
	row, err := a.store.Sandbox(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if row.TokenHash != store.Hash(token) || bytes.Contains(row.TokenCiphertext, []byte(token)) {
		t.Errorf("the row has %+v for the token %s", row, token)
	}
	pods := fakes.CoreV1().Pods("liteboxd-sandbox")
	pod, err := pods.Get(t.Context(), "sandbox-"+id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "liteboxd", "sandbox-id": id, "liteboxd.io/managed-by": "liteboxd-server", "liteboxd.io/internet-access": "true"}
	if diff := cmp.Diff(labels, pod.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"liteboxd.io/access-token", "liteboxd/created-at", "liteboxd/ttl"}, slices.Sorted(maps.Keys(pod.Annotations))); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	main := pod.Spec.Containers[0]
	if pod.Annotations["liteboxd.io/access-token"] != token || pod.Annotations["liteboxd/ttl"] != "600" || len(pod.OwnerReferences) != 0 ||
		pod.Spec.RestartPolicy != corev1.RestartPolicyNever || *pod.Spec.AutomountServiceAccountToken || main.Name != "main" ||
		main.Resources.Limits.Cpu().String() != "200m" || main.Resources.Limits.Memory().String() != "512Mi" ||
		main.Resources.Requests.Cpu().String() != "100m" || main.Resources.Requests.Memory().String() != "128Mi" ||
		len(pod.Spec.Tolerations) != 3 || pod.Spec.Tolerations[0].Effect != "" {
		t.Errorf("the pod is %+v", pod)
	}

	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, "10.42.0.9"
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := a.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	shown := c.must(http.StatusOK, http.MethodGet, "/api/v1/sandboxes/"+id, "")
	if shown["status"] != "running" || shown["podIP"] != "10.42.0.9" || shown["accessToken"] != token {
		t.Errorf("shown: %v", shown)
	}
	list := c.must(http.StatusOK, http.MethodGet, "/api/v1/sandboxes", "")["items"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["accessToken"] != nil {
		t.Errorf("listed: %v", list)
	}
	if out := c.must(http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+id+"/exec", `{"command":["echo","a"]}`); out["stdout"] != "echo a" {
		t.Errorf("exec: %v", out)
	}
	c.must(http.StatusOK, http.MethodGet, "/api/v1/sandboxes/"+id+"/logs", "")
	c.must(http.StatusNoContent, http.MethodDelete, "/api/v1/sandboxes/"+id, "")
	c.must(http.StatusNotFound, http.MethodGet, "/api/v1/sandboxes/"+id, "")
	if _, err := pods.Get(t.Context(), "sandbox-"+id, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod of a deleted sandbox: %v", err)
	}
	rows, err := a.store.Rows(t.Context())
	if err != nil || rows["sandbox_status_history"] != 2 || rows["sandbox_reconcile_runs"] != 1 {
		t.Errorf("rows %v, %v", rows, err)
	}
}

// A token that was encrypted with another key is an error, not another token.
func TestLostKey(t *testing.T) {
	a, _ := newTestAPI(t, nil)
	c := login(t, a)
	c.must(http.StatusCreated, http.MethodPost, "/api/v1/templates", `{"name":"nginx","spec":{"image":"nginx:alpine"}}`)
	id := c.must(http.StatusCreated, http.MethodPost, "/api/v1/sandboxes", `{"template":"nginx"}`)["id"].(string)
	other, err := parseTokenKey(strings.Repeat("x", 32))
	if err != nil {
		t.Fatal(err)
	}
	a.tokens = other
	c.must(http.StatusInternalServerError, http.MethodGet, "/api/v1/sandboxes/"+id, "")
}

func TestReconcileExpiresAndLoses(t *testing.T) {
	a, _ := newTestAPI(t, nil)
	past := time.Now().Add(-time.Hour)
	for id, expires := range map[string]time.Time{"expired": past, "lost": time.Now().Add(time.Hour)} {
		if err := a.store.AddSandbox(t.Context(), store.Sandbox{ID: id, Status: "running", TokenCiphertext: []byte("sealed"), CreatedAt: past, ExpiresAt: expires}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := a.store.Sandboxes(t.Context())
	if err != nil || len(left) != 1 || left[0].ID != "lost" || left[0].Status != "lost" {
		t.Errorf("left: %+v, %v", left, err)
	}
}

func TestPrepull(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	a, fakes := newTestAPI(t, nil, node("a", corev1.ConditionTrue), node("b", corev1.ConditionTrue), node("c", corev1.ConditionFalse))
	c := login(t, a)
	c.must(http.StatusBadRequest, http.MethodPost, "/api/v1/images/prepull", `{}`)
	id := c.must(http.StatusCreated, http.MethodPost, "/api/v1/images/prepull", `{"image":"nginx:alpine"}`)["id"].(string)
	jobs := fakes.BatchV1().Jobs("liteboxd-sandbox")
	job, err := jobs.Get(t.Context(), "prepull-"+id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *job.Spec.Completions != 2 || *job.Spec.Parallelism != 2 || *job.Spec.BackoffLimit != 0 || *job.Spec.TTLSecondsAfterFinished != 300 {
		t.Errorf("the job is %+v", job.Spec)
	}
	status := func() string {
		t.Helper()
		if err := a.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		items := c.must(http.StatusOK, http.MethodGet, "/api/v1/images/prepull", "")["items"].([]any)
		return items[0].(map[string]any)["status"].(string)
	}
	if got := status(); got != "pulling" {
		t.Errorf("with one pod of two: %s", got)
	}
	job.Status.Succeeded = 2
	if _, err := jobs.UpdateStatus(t.Context(), job, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := status(); got != "completed" {
		t.Errorf("with two pods: %s", got)
	}
}

// What is typed comes back, also while the server drains, and the server waits for its end.
func TestInteractiveExec(t *testing.T) {
	a, fakes := newTestAPI(t, map[string]string{"SHUTDOWN_TIMEOUT": "1m"})
	allow(fakes, "", "")
	now := time.Now()
	if err := a.store.AddSandbox(t.Context(), store.Sandbox{ID: "box", Status: "running", TokenCiphertext: []byte("sealed"), CreatedAt: now, ExpiresAt: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	key, err := a.store.AddAPIKey(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	edgetest.Drains(t, a.serve, "/api/v1/sandboxes/box/exec/interactive", http.Header{"Authorization": {"Bearer " + key}})
}
