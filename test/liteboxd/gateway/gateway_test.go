package gateway

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"

	"github.com/liteboxd/boxlift/test/liteboxd/edge"
	"github.com/liteboxd/boxlift/test/liteboxd/edge/edgetest"
	"github.com/liteboxd/boxlift/test/liteboxd/store"
)

const token = "the sandbox's token"

// newTestGateway has the sandboxes "box", whose pod is at 127.0.0.1, "pending" and "podless".
func newTestGateway(t *testing.T) (*gateway, *fake.Clientset) {
	t.Helper()
	settings, err := edge.ReadSettings(func(string) string { return "" }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	settings.Log, settings.ShutdownTimeout = slog.New(slog.DiscardHandler), time.Minute
	db, err := store.Open(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	now := time.Now()
	for _, id := range []string{"box", "pending", "podless"} {
		if err := db.AddSandbox(t.Context(), store.Sandbox{ID: id, Status: "running", TokenCiphertext: []byte("sealed"), TokenHash: store.Hash(token), CreatedAt: now, ExpiresAt: now.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(id string, phase corev1.PodPhase, ip string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "sandbox-" + id, Namespace: settings.SandboxNamespace}, Status: corev1.PodStatus{Phase: phase, PodIP: ip}}
	}
	client := fake.NewClientset(pod("box", corev1.PodRunning, "127.0.0.1"), pod("pending", corev1.PodPending, ""))
	g := newGateway(settings, db, client)
	g.server.Settle = 0
	return g, client
}

// newSandbox answers with the path, and echoes WebSocket messages. It returns its port.
func newSandbox(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !edge.IsWebSocket(r) {
			_, _ = io.WriteString(w, r.URL.RequestURI()+" "+r.Header.Get(tokenHeader)) // the client's loss
			return
		}
		upgrader := websocket.Upgrader{}
		connection, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = connection.Close() }() // over in any case
		for {
			kind, message, err := connection.ReadMessage()
			if err != nil || connection.WriteMessage(kind, message) != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestForward(t *testing.T) {
	g, _ := newTestGateway(t)
	server := httptest.NewServer(g.server.Handler)
	defer server.Close()
	port := newSandbox(t)
	for _, c := range []struct {
		path, token string
		status      int
		body        string
	}{
		{"box/port/" + port + "/a/b?c=d", token, 200, "/a/b?c=d "},
		{"box/port/" + port, token, 200, "/ "},
		{"box/port/" + port + "/", token, 200, "/ "},
		{"box/port/" + port + "/a", "", 401, "access token"},
		{"box/port/" + port + "/a", token + "x", 401, "access token"},
		{"other/port/" + port + "/a", token, 404, "other"},
		{"podless/port/" + port + "/a", token, 404, "no pod"},
		{"pending/port/" + port + "/a", token, 503, "Pending"},
		{"box/port/0/a", token, 400, "no port"},
		{"box/port/x/a", token, 400, "no port"},
		{"box/port/1/a", token, 502, "does not answer"},
		{"box", token, 404, ""},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/v1/sandbox/"+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(tokenHeader, c.token)
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if closed := response.Body.Close(); err != nil || closed != nil {
			t.Fatal(err, closed)
		}
		if response.StatusCode != c.status || !strings.Contains(string(body), c.body) {
			t.Errorf("%s: %s, %s", c.path, response.Status, body)
		}
	}
}

// Through the API server, the port is part of the pod's name.
func TestThroughAPI(t *testing.T) {
	g, _ := newTestGateway(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
	defer upstream.Close()
	if err := g.goThrough(&rest.Config{Host: upstream.URL}); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/sandbox/box/port/8080/a", nil)
	request.Header.Set(tokenHeader, token)
	g.server.Handler.ServeHTTP(w, request)
	if want := "/api/v1/namespaces/liteboxd-sandbox/pods/sandbox-box:8080/proxy/a"; w.Body.String() != want {
		t.Errorf("%d: %s, expected %s", w.Code, w.Body, want)
	}
}

// A WebSocket goes on while the gateway drains, and the gateway waits for its end.
func TestWebSocketDrains(t *testing.T) {
	g, _ := newTestGateway(t)
	port := newSandbox(t)
	edgetest.Drains(t, g.server.Run, "/api/v1/sandbox/box/port/"+port+"/ws", http.Header{tokenHeader: {token}})
}

// The gateway goes on where it must not look at namespaces, and ends where it must not look at pods.
func TestRights(t *testing.T) {
	for resource, ok := range map[string]bool{"namespaces": true, "pods": false} {
		g, client := newTestGateway(t)
		client.PrependReactor("create", "selfsubjectaccessreviews", func(action k8stesting.Action) (bool, runtime.Object, error) {
			review := action.(k8stesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
			review.Status.Allowed = true
			return true, review, nil
		})
		client.PrependReactor("*", resource, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
		})
		if err := g.prepare(t.Context()); (err == nil) != ok {
			t.Errorf("without %s: %v", resource, err)
		}
	}
}
