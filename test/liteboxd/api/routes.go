package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/test/liteboxd/edge"
	"github.com/liteboxd/boxlift/test/liteboxd/store"
)

const (
	// sessionCookie holds a session's token after a login.
	sessionCookie = "liteboxd_session"
	bodyLimit     = 1 << 20
)

// refusal is an error with the status to answer with.
type refusal struct {
	status int
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Errorf(format, args...)}
}

// answer is what a request leads to: a document, or nil for none.
type answer func(r *http.Request) (status int, document any, err error)

func (a *api) routes() http.Handler {
	mux := http.NewServeMux()
	open := func(pattern string, f answer) { mux.Handle(pattern, a.handle(f)) }
	authorized := func(pattern string, f answer) { mux.Handle(pattern, a.authorize(a.handle(f))) }

	open("GET /api/v1/version", func(*http.Request) (int, any, error) {
		return http.StatusOK, map[string]string{"version": a.release.Version}, nil
	})
	mux.HandleFunc("POST /api/v1/auth/login", a.login)
	authorized("POST /api/v1/auth/api-keys", a.createKey)
	authorized("GET /api/v1/templates", func(r *http.Request) (int, any, error) {
		return listed(a.store.Templates(r.Context()))
	})
	authorized("POST /api/v1/templates", a.createTemplate)
	authorized("GET /api/v1/images/prepull", func(r *http.Request) (int, any, error) {
		return listed(a.store.Prepulls(r.Context()))
	})
	authorized("POST /api/v1/images/prepull", a.createPrepull)
	authorized("GET /api/v1/sandboxes", a.listSandboxes)
	authorized("POST /api/v1/sandboxes", a.createSandbox)
	authorized("GET /api/v1/sandboxes/{id}", a.getSandbox)
	authorized("DELETE /api/v1/sandboxes/{id}", a.removeSandbox)
	authorized("GET /api/v1/sandboxes/{id}/logs", a.logs)
	authorized("POST /api/v1/sandboxes/{id}/exec", a.run)
	mux.Handle("GET /api/v1/sandboxes/{id}/exec/interactive", a.authorize(http.HandlerFunc(a.interact)))
	return mux
}

func listed[T any](list []T, err error) (int, any, error) {
	if list == nil {
		list = []T{} // not null
	}
	return http.StatusOK, map[string]any{"items": list}, err
}

func (a *api) handle(f answer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, document, err := f(r)
		if err != nil {
			a.refuse(w, r, err)
			return
		}
		if document == nil {
			w.WriteHeader(status)
			return
		}
		edge.Answer(w, status, document)
	})
}

func (a *api) refuse(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	var known *refusal
	switch {
	case errors.As(err, &known):
		status = known.status
	case errors.Is(err, store.ErrNotFound):
		status = http.StatusNotFound
	default:
		a.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err.Error())
	}
	edge.Refuse(w, status, err)
}

// authorize lets those pass who have a session's cookie or an API key.
func (a *api) authorize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		session := ""
		if cookie, err := r.Cookie(sessionCookie); err == nil {
			session = cookie.Value
		}
		key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		known, err := a.store.Known(r.Context(), session, key)
		if err == nil && !known {
			err = refuse(http.StatusUnauthorized, "log in first")
		}
		if err != nil {
			a.refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func read(r *http.Request, v any) error {
	decoder := json.NewDecoder(io.LimitReader(r.Body, bodyLimit))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return refuse(http.StatusBadRequest, "read the request: %w", err)
	}
	return nil
}

func (a *api) login(w http.ResponseWriter, r *http.Request) {
	var who struct{ Username, Password string }
	err := read(r, &who)
	token := ""
	if err == nil {
		token, err = a.store.Login(r.Context(), who.Username, who.Password, a.sessionAge)
	}
	if errors.Is(err, store.ErrNotFound) {
		err = refuse(http.StatusUnauthorized, "no %w", err)
	}
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: sessionCookie, Value: token, Path: "/", MaxAge: int(a.sessionAge.Seconds()), HttpOnly: true})
	edge.Answer(w, http.StatusOK, map[string]string{"username": who.Username})
}

func (a *api) createKey(r *http.Request) (int, any, error) {
	var wanted struct{ Name string }
	if err := read(r, &wanted); err != nil {
		return 0, nil, err
	}
	key, err := a.store.AddAPIKey(r.Context(), wanted.Name)
	return http.StatusCreated, map[string]string{"name": wanted.Name, "key": key}, err
}

func (a *api) createTemplate(r *http.Request) (int, any, error) {
	t := &store.Template{}
	if err := read(r, t); err != nil {
		return 0, nil, err
	}
	if t.Name == "" || t.Spec.Image == "" {
		return 0, nil, refuse(http.StatusBadRequest, "a template needs a name and spec.image")
	}
	return http.StatusCreated, t, a.store.AddTemplate(r.Context(), t)
}

func (a *api) createPrepull(r *http.Request) (int, any, error) {
	var wanted struct{ Image string }
	if err := read(r, &wanted); err != nil {
		return 0, nil, err
	}
	if wanted.Image == "" {
		return 0, nil, refuse(http.StatusBadRequest, "a prepull needs an image")
	}
	p, err := a.store.AddPrepull(r.Context(), wanted.Image)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, p, a.startPrepull(r.Context(), p)
}

// sandbox is how a sandbox is shown.
type sandbox struct {
	ID          string `json:"id"`
	Template    string `json:"template"` // its identifier
	Image       string `json:"image"`
	Status      string `json:"status"`
	Pod         string `json:"pod"`
	PodUID      string `json:"podUID,omitempty"`
	PodIP       string `json:"podIP,omitempty"`
	Node        string `json:"node,omitempty"`
	AccessURL   string `json:"accessUrl"`
	AccessToken string `json:"accessToken,omitempty"` // not in lists
	CreatedAt   string `json:"createdAt"`
	ExpiresAt   string `json:"expiresAt"`
}

func (a *api) show(b store.Sandbox, pod *corev1.Pod) sandbox {
	shown := sandbox{
		ID: b.ID, Template: b.TemplateID, Image: b.Image, Status: b.Status, Pod: PodPrefix + b.ID,
		AccessURL: a.gatewayURL + "/api/v1/sandbox/" + b.ID,
		CreatedAt: b.CreatedAt.UTC().Format(time.RFC3339), ExpiresAt: b.ExpiresAt.UTC().Format(time.RFC3339),
	}
	pods := map[string]corev1.Pod{}
	if pod != nil {
		pods[pod.Name] = *pod
		shown.PodUID, shown.PodIP, shown.Node = string(pod.UID), pod.Status.PodIP, pod.Spec.NodeName
	}
	shown.Status = podStatus(pods, b.ID)
	return shown
}

func (a *api) listSandboxes(r *http.Request) (int, any, error) {
	rows, err := a.store.Sandboxes(r.Context())
	if err != nil {
		return 0, nil, err
	}
	v, err := a.look(r.Context())
	if err != nil {
		return 0, nil, err
	}
	var list []sandbox
	for _, b := range rows {
		var pod *corev1.Pod
		if p, ok := v.pods[PodPrefix+b.ID]; ok {
			pod = &p
		}
		list = append(list, a.show(b, pod))
	}
	return listed(list, nil)
}

func (a *api) createSandbox(r *http.Request) (int, any, error) {
	var wanted struct {
		Template string // its name or identifier
		TTL      int    // seconds; an hour by default
	}
	if err := read(r, &wanted); err != nil {
		return 0, nil, err
	}
	if wanted.TTL <= 0 {
		wanted.TTL = 3600
	}
	ctx := r.Context()
	t, err := a.template(ctx, wanted.Template)
	if err != nil {
		return 0, nil, err
	}
	token := store.NewSecret()
	created := time.Now().Truncate(time.Second)
	b := store.Sandbox{
		ID: store.NewSecret()[:8], TemplateID: t.ID, TemplateVersion: t.Version, Image: t.Spec.Image, Status: "pending",
		TokenHash: store.Hash(token), TokenCiphertext: a.tokens.seal(token), TokenKeyID: a.tokens.id,
		CreatedAt: created, ExpiresAt: created.Add(time.Duration(wanted.TTL) * time.Second),
	}
	if t.Spec.InternetAccess { // without it, domains say nothing
		b.AllowedDomains = t.Spec.AllowedDomains
	}
	pod, err := a.pod(b, t.Spec, token)
	if err != nil {
		return 0, nil, err
	}
	if err := a.store.AddSandbox(ctx, b); err != nil {
		return 0, nil, err
	}
	pod, err = a.client.CoreV1().Pods(a.SandboxNamespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		err = fmt.Errorf("make the pod of sandbox %s: %w", b.ID, err)
		return 0, nil, errors.Join(err, a.store.SetSandboxStatus(ctx, b, store.Deleted, err.Error()))
	}
	shown := a.show(b, pod)
	shown.AccessToken = token
	return http.StatusCreated, shown, nil
}

func (a *api) template(ctx context.Context, name string) (store.Template, error) {
	templates, err := a.store.Templates(ctx)
	if err != nil {
		return store.Template{}, err
	}
	for _, t := range templates {
		if t.Name == name || t.ID == name {
			return t, nil
		}
	}
	return store.Template{}, refuse(http.StatusBadRequest, "there is no template %q", name)
}

func (a *api) getSandbox(r *http.Request) (int, any, error) {
	b, err := a.store.Sandbox(r.Context(), r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	token, err := a.tokens.open(b.TokenCiphertext, b.TokenKeyID)
	if err != nil {
		return 0, nil, err
	}
	v, err := a.look(r.Context())
	if err != nil {
		return 0, nil, err
	}
	var pod *corev1.Pod
	if p, ok := v.pods[PodPrefix+b.ID]; ok {
		pod = &p
	}
	shown := a.show(b, pod)
	shown.AccessToken = token
	return http.StatusOK, shown, nil
}

func (a *api) removeSandbox(r *http.Request) (int, any, error) {
	b, err := a.store.Sandbox(r.Context(), r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, a.deleteSandbox(r.Context(), b, "asked for")
}

func (a *api) logs(r *http.Request) (int, any, error) {
	b, err := a.store.Sandbox(r.Context(), r.PathValue("id"))
	if err != nil {
		return 0, nil, err
	}
	limit := int64(bodyLimit)
	text, err := a.client.CoreV1().Pods(a.SandboxNamespace).GetLogs(PodPrefix+b.ID,
		&corev1.PodLogOptions{Container: container, LimitBytes: &limit}).DoRaw(r.Context())
	return http.StatusOK, map[string]string{"logs": string(text)}, err
}
