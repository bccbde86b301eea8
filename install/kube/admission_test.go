package kube

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/test/kubetest"
)

// Whether a pod is let in is asked without making one.
func TestAdmitsPrivileged(t *testing.T) {
	for _, test := range []struct {
		name          string
		answer        http.HandlerFunc
		admitted      bool
		why, mistaken string
	}{
		{"let in", func(w http.ResponseWriter, _ *http.Request) { kubetest.Answer(t, w, "Pod", corev1.Pod{}) }, true, "", ""},
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 403, "Forbidden", "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": privileged\n\x1b[2J")
		}, false, "violates PodSecurity", ""},
		{"a quota", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 403, "Forbidden", `pods "x" is forbidden: exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0`)
		}, false, "", "exceeded quota"},
		{"no rights", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 403, "Forbidden", `pods is forbidden: User "x" cannot create resource "pods" in the namespace "apps"`)
		}, false, "", "cannot create resource"},
		{"no namespace", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 404, "NotFound", `namespaces "apps" not found`)
		}, false, "", `ask whether namespace apps takes a privileged pod: namespaces "apps" not found`},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := answering(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method+" "+r.URL.Path != "POST /api/v1/namespaces/apps/pods" || r.URL.Query().Get("dryRun") != "All" {
					t.Errorf("asked for %s %s", r.Method, r.URL)
				}
				test.answer(w, r)
			})
			admitted, why, err := c.AdmitsPrivileged(kubetest.Within(t), "apps")
			if admitted != test.admitted || !strings.Contains(why, test.why) || strings.ContainsAny(why, "\n\x1b") ||
				(err == nil) != (test.mistaken == "") || err != nil && !strings.Contains(err.Error(), test.mistaken) {
				t.Errorf("%t, %q, %v", admitted, why, err)
			}
		})
	}
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	text := strings.NewReplacer("\n", `\n`, "\x1b", `\u001b`, `"`, `\"`).Replace(message)
	_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"` + reason + `","message":"` + text + `"}`))
}

func TestKubeletConfig(t *testing.T) {
	answer := `{"kubeletconfig":{}}`
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/first/proxy/configz" {
			refuse(w, 404, "NotFound", "not here")
			return
		}
		_, _ = w.Write([]byte(answer))
	})
	document, err := KubeletConfig(kubetest.Within(t), c, "first")
	if err != nil || string(document) != answer {
		t.Errorf("%s, %v", document, err)
	}
	if _, err := KubeletConfig(kubetest.Within(t), c, "second"); err == nil || !strings.Contains(err.Error(), "ask the kubelet of second") {
		t.Errorf("%v", err)
	}
	answer = strings.Repeat(" ", maxKubeletConfig+1)
	if _, err := KubeletConfig(kubetest.Within(t), c, "first"); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("%v", err)
	}
}
