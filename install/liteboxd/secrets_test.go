package liteboxd

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const (
	plain = "cluster: {name: example, servers: [{host: 10.0.0.11, agent: true}]}\nliteboxd: {}\n"
	// siteKey and sitePassword are what a site may give in install.yaml.
	siteKey, sitePassword = "0123456789abcdef0123456789abcdef", "the-password-of-the-site"
	secretsPath           = "/api/v1/namespaces/" + system + "/secrets/"
)

// given is an install.yaml with a key, a password or both.
func given(key, password string) string {
	text := "{"
	if key != "" {
		text += "sandboxTokenEncryptionKey: " + key + ", "
	}
	if password != "" {
		text += "adminInitialPassword: " + password
	}
	return strings.Replace(plain, "liteboxd: {}", "liteboxd: {security: "+text+"}}", 1)
}

// made is a cluster in which what is made at random counts as the same.
type made struct{ *kubetest.Memory }

var random = regexp.MustCompile(`"(` + keyVariable + `|` + passwordVariable + `)":"[^"]+"`)

func (m made) Snapshot(t testing.TB) string {
	return random.ReplaceAllString(m.Memory.Snapshot(t), `"$1":"made"`)
}

// LiteBoxd's key and first login are made where they are missing, and never made anew.
func TestSecretsStep(t *testing.T) {
	theirs := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system, Labels: map[string]string{"team": "shop"}}}
	for _, test := range []struct {
		name, text string
		objects    []runtime.Object
		why        string
		// key and password are what is there then, "" for what was made at random.
		key, password string
	}{
		{name: "nothing is there", text: plain, why: "the Secret " + manifests.KeysSecret + " is missing"},
		{name: "somebody has made the namespace", text: plain, objects: []runtime.Object{theirs}, why: "is missing"},
		{name: "the key is missing", text: plain, objects: []runtime.Object{loginSecret("x")},
			why: "the Secret " + manifests.KeysSecret + " is missing", password: "x"},
		{name: "the key is empty", text: plain, objects: []runtime.Object{keySecret(""), loginSecret("x")},
			why: "the Secret " + manifests.KeysSecret + " is missing", password: "x"},
		{name: "the login is missing", text: plain, objects: []runtime.Object{keySecret("k")},
			why: "the Secret " + manifests.AuthSecret + " is missing", key: "k"},
		{name: "both are there", text: plain, objects: []runtime.Object{keySecret("k"), loginSecret("x")}, key: "k",
			password: "x"},
		{name: "the key of install.yaml is there", text: given(siteKey, sitePassword),
			objects: []runtime.Object{keySecret(siteKey), loginSecret("changed since")}, key: siteKey,
			password: "changed since"},
		{name: "install.yaml has both", text: given(siteKey, sitePassword), why: "is missing", key: siteKey,
			password: sitePassword},
		{name: "data is there, and install.yaml has its key", text: given(siteKey, ""),
			objects: volume("first", "/data"),
			why:     "is missing", key: siteKey},
	} {
		t.Run(test.name, func(t *testing.T) {
			var m *kubetest.Memory
			steptest.ProveIn(t, steptest.Wide{Why: test.why,
				Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
					var in *installation
					in, m = onCluster(t, test.text, test.objects...)
					return made{m}, in.deployer.secretsStep
				}})
			key, password := valueOf(t, m, manifests.KeysSecret, keyVariable),
				valueOf(t, m, manifests.AuthSecret, passwordVariable)
			if bytes, err := hex.DecodeString(key); test.key == "" && (err != nil || len(bytes) != 32) ||
				test.key != "" && key != test.key {
				t.Errorf("the key is %q, want %q: %v", key, test.key, err)
			}
			if test.password == "" && len(password) < 20 || test.password != "" && password != test.password {
				t.Errorf("the password is %q, want %q", password, test.password)
			}
			if got := valueOf(t, m, manifests.AuthSecret, usernameVariable); got != "admin" {
				t.Errorf("the first user is %q", got)
			}
			// One that install.yaml has is known already, and so is one that was there before: others are shown, once.
			shown := valueOf(t, m, manifests.AuthSecret, shownMark) != ""
			if wanted := test.password == sitePassword; shown != wanted {
				t.Errorf("it counts as shown: %v", shown)
			}
			if test.why == "" {
				return
			}
			namespace := m.Object(t, "/api/v1/namespaces/"+system)
			if got := namespace.GetAnnotations()["meta.helm.sh/release-name"]; got != seed.LiteBoxdRelease {
				t.Errorf("the namespace is of the release %q", got)
			}
		})
	}
}

// valueOf is a value in a Secret of LiteBoxd's, "" when it is not there.
func valueOf(t *testing.T, m *kubetest.Memory, name, key string) string {
	t.Helper()
	object := m.Object(t, secretsPath+name)
	if object == nil {
		return ""
	}
	data, _ := object.Object["data"].(map[string]any)
	text, _ := data[key].(string)
	value, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

// Two installations have neither key nor password in common.
func TestSecretsAreNoDefaults(t *testing.T) {
	seen := map[string]bool{"liteboxd-admin": true}
	for range 2 {
		in, m := onCluster(t, plain)
		if err := in.deployer.secretsStep().Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, key := range map[string]string{manifests.KeysSecret: keyVariable,
			manifests.AuthSecret: passwordVariable} {
			value := valueOf(t, m, name, key)
			if seen[value] {
				t.Errorf("%s is made a second time", key)
			}
			seen[value] = true
		}
	}
}

// What others have put into the Secrets stays.
func TestSecretsOfOthersStay(t *testing.T) {
	login := secret(manifests.AuthSecret, map[string]string{"SMTP_PASSWORD": "theirs"})
	in, m := onCluster(t, plain, keySecret("k"), login)
	step := in.deployer.secretsStep()
	if reason, err := step.Needed(t.Context()); err != nil || !strings.Contains(reason, manifests.AuthSecret) {
		t.Fatalf("%q, %v", reason, err)
	}
	if err := step.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	theirs, own := valueOf(t, m, manifests.AuthSecret, "SMTP_PASSWORD"),
		valueOf(t, m, manifests.AuthSecret, passwordVariable)
	if theirs != "theirs" || own == "" {
		t.Errorf("theirs is %q, the password %q", theirs, own)
	}
}

// Nothing is written where that could lose what was stored with another key, nor where others are at home.
func TestSecretsAreRefused(t *testing.T) {
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system, Annotations: map[string]string{
		"meta.helm.sh/release-name": "shop\x1b[2J", "meta.helm.sh/release-namespace": "default",
	}}}
	waiting := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: system,
		Name: manifests.DataClaim}}
	for _, test := range []struct {
		name, text string
		objects    []runtime.Object
		instead    func(http.ResponseWriter, *http.Request) bool
		want       []string
		refused    bool
	}{
		{name: "install.yaml has another key", text: given(siteKey, ""),
			objects: []runtime.Object{keySecret("another")},
			want:    []string{"is not the key that the cluster has", "take it out of install.yaml"}, refused: true},
		{name: "data without its key", text: plain, objects: volume("first", "/data"),
			want:    []string{"LiteBoxd's data is there", system + "/" + manifests.KeysSecret, backupKeyFile},
			refused: true},
		{name: "a claim that waits for a volume has no data", text: plain, objects: []runtime.Object{waiting}},
		{name: "the namespace is another release's", text: plain, objects: []runtime.Object{other},
			want: []string{"belongs to the Helm release default/shop\ufffd[2J"}},
		{name: "the API does not let boxlift read Secrets", text: plain,
			instead: answering("/secrets/", http.StatusForbidden, "no"),
			want:    []string{"get Secret " + system + "/" + manifests.KeysSecret}},
		{name: "the API fails at the second one", text: plain, objects: []runtime.Object{keySecret("k")},
			instead: answering(manifests.AuthSecret, http.StatusInternalServerError, "no"),
			want:    []string{"get Secret", manifests.AuthSecret}},
		{name: "something else answers", text: plain,
			instead: answering("", http.StatusOK, "<html>Please log in</html>"),
			want:    []string{"get Secret"}},
		{name: "an answer without an end", text: plain,
			instead: answering("", http.StatusOK, `{"kind":"Secret","data":{"`),
			want:    []string{"get Secret"}},
		{name: "a key that is no text of a Secret", text: plain,
			instead: answering("", http.StatusOK, `{"kind":"Secret","apiVersion":"v1","data":{"`+keyVariable+`":7}}`),
			want:    []string{"get Secret"}},
		{name: "the claim cannot be looked at", text: plain,
			instead: answering("persistentvolumeclaims", http.StatusInternalServerError, "no"),
			want:    []string{"get PersistentVolumeClaim"}},
		{name: "the key cannot be written", text: plain, instead: func(w http.ResponseWriter, r *http.Request) bool {
			return r.Method == http.MethodPatch && answering(manifests.KeysSecret, http.StatusForbidden, "no")(w, r)
		}, want: []string{"put Secret " + system + "/" + manifests.KeysSecret}},
	} {
		t.Run(test.name, func(t *testing.T) {
			in, m := onCluster(t, test.text, test.objects...)
			m.Instead = test.instead
			step := in.deployer.secretsStep()
			_, err := step.Needed(t.Context())
			if err == nil {
				err = step.Run(t.Context())
			}
			if test.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || errors.Is(err, site.ErrRefused) != test.refused {
				t.Fatalf("got %v, want refused: %v", err, test.refused)
			}
			kubetest.Contains(t, kubetest.Explained(err), test.want...)
			for _, name := range []string{manifests.KeysSecret, manifests.AuthSecret} {
				before := ""
				for _, object := range test.objects {
					if s, ok := object.(*corev1.Secret); ok && s.Name == name {
						before = string(s.Data[keyVariable])
					}
				}
				if got := valueOf(t, m, name, keyVariable); got != before {
					t.Errorf("%s has %q now", name, got)
				}
			}
		})
	}
}

// answering answers requests whose path has a part with a text.
func answering(part string, code int, text string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, part) {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text) // the caller may have gone
		return true
	}
}

// Before there is a cluster, a plan says that the Secrets will be made.
func TestSecretsWithoutCluster(t *testing.T) {
	in := example(t, plain)
	reason, err := in.deployer.secretsStep().Needed(t.Context())
	if diff := cmp.Diff("there is no cluster yet", reason); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
}
