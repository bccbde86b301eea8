package sitekey

import (
	"bytes"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

const path = "/api/v1/namespaces/" + SecretNamespace + "/secrets/" + SecretName

// cluster is a cluster in memory, in whose description keys are left out: each is another one.
type cluster struct{ *kubetest.Memory }

var keys = regexp.MustCompile(`("` + regexp.QuoteMeta(SecretKey) + `":)"[^"]*"`)

func (c cluster) Snapshot(t testing.TB) string {
	t.Helper()
	return keys.ReplaceAllString(c.Memory.Snapshot(t), "$1")
}

// keeper keeps the key of a cluster in memory.
func keeper(t *testing.T, m *kubetest.Memory) *Keeper {
	t.Helper()
	s := sitetest.Example(t, sitetest.ExampleConfig)
	api, err := kube.Connect(kube.Options{Name: "first", Kubeconfig: m.Kubeconfig, Dial: m.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	s.API = api
	return &Keeper{Site: s, Engine: &run.Engine{Site: s, Holds: run.NewHolds()}}
}

// carrying is a Secret that carries this as its key.
func carrying(key []byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: SecretNamespace, Name: SecretName}, Type: secretKind,
		Data: map[string][]byte{SecretKey: key}}
}

func newKey(t *testing.T) []byte {
	t.Helper()
	key, err := signature.GeneratePlainKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// The key is made where there is none, and otherwise left alone, also when it is none.
func TestStep(t *testing.T) {
	for _, test := range []struct {
		name        string
		there       *corev1.Secret
		why, warns  string
		staysAsItIs bool
	}{
		{name: "no key", why: "the Secret boxlift-site-key is missing"},
		{name: "a key", there: carrying(newKey(t)), staysAsItIs: true},
		{name: "no key in it", there: carrying([]byte("\x1b[2Jx")), staysAsItIs: true,
			warns: "the key of the site cannot be used: Secret kube-system/boxlift-site-key: read private key: no PEM block"},
		{name: "nothing in it", there: carrying(nil), staysAsItIs: true, warns: "cannot be used"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last *Keeper
			var in *kubetest.Memory
			steptest.ProveIn(t, steptest.Wide{Why: test.why, Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
				in = kubetest.NewMemory(t)
				if test.there != nil {
					in.Put(t, test.there)
				}
				last = keeper(t, in)
				return cluster{in}, last.step
			}})
			if got := strings.Join(last.Site.Warnings, "\n"); !strings.Contains(got, test.warns) || test.warns == "" && got != "" {
				t.Errorf("warns %q, want %q", got, test.warns)
			}
			data, err := last.Site.API.Secret(t.Context(), SecretNamespace, SecretName)
			if err != nil {
				t.Fatal(err)
			}
			if test.staysAsItIs {
				if diff := cmp.Diff(test.there.Data, data); diff != "" || len(in.Changes()) > 0 {
					t.Errorf("it was changed, by %q: %s", in.Changes(), diff)
				}
				return
			}
			if _, err := Read(t.Context(), last.Site.API); err != nil {
				t.Error(err)
			}
		})
	}
	// Before there is a cluster, who looks is told of it all the same.
	k := keeper(t, kubetest.NewMemory(t))
	k.Site.API = nil
	if reason, err := k.step().Needed(t.Context()); reason != "there is no cluster yet" || err != nil {
		t.Errorf("without a cluster: %q, %v", reason, err)
	}
}

// Many runs at once make one key, and all of them find that one.
func TestAtOnce(t *testing.T) {
	m := kubetest.NewMemory(t)
	const runs = 8
	var looked, done sync.WaitGroup
	looked.Add(runs)
	for range runs {
		k := keeper(t, m)
		done.Go(func() {
			reason, err := k.step().Needed(t.Context())
			if reason == "" || err != nil {
				t.Errorf("it is needed because %q: %v", reason, err)
			}
			looked.Done()
			looked.Wait() // none makes one before all have seen that there is none
			if err := k.step().Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	if n := len(m.Changes()); n != runs {
		t.Errorf("%d tried to make one, not %d", n, runs)
	}
	k := keeper(t, m)
	first, err := Read(t.Context(), k.Site.API)
	if err != nil {
		t.Fatal(err)
	}
	version := m.Object(t, path).GetResourceVersion()
	if err := makeKey(t.Context(), k.Site.API); err != nil {
		t.Error(err)
	}
	again, err := Read(t.Context(), k.Site.API)
	if err != nil || signature.KeyID(first.PublicKey()) != signature.KeyID(again.PublicKey()) ||
		m.Object(t, path).GetResourceVersion() != version {
		t.Errorf("it was written over: %v", err)
	}
}

// Errors say what to do, and nothing of the key.
func TestRead(t *testing.T) {
	whole := newKey(t)
	for name, test := range map[string]struct {
		there *corev1.Secret
		is    error
		class fault.Class
		hint  string
	}{
		"missing":   {nil, ErrMissing, fault.Input, "boxlift install makes it"},
		"cut off":   {carrying(whole[:len(whole)/2]), ErrInvalid, fault.Host, "put it back from a backup"},
		"twice":     {carrying(append(whole, whole...)), ErrInvalid, fault.Host, "boxlift trust succeed"},
		"damaged":   {carrying(bytes.Replace(whole, []byte("MIG"), []byte("AAA"), 1)), ErrInvalid, fault.Host, "delete the Secret"},
		"without":   {&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: SecretNamespace, Name: SecretName}}, ErrInvalid, fault.Host, "delete the Secret"},
		"otherwise": {carrying([]byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")), ErrInvalid, fault.Host, "delete the Secret"},
	} {
		t.Run(name, func(t *testing.T) {
			m := kubetest.NewMemory(t)
			if test.there != nil {
				m.Put(t, test.there)
			}
			_, err := Read(t.Context(), keeper(t, m).Site.API)
			if !errors.Is(err, test.is) || fault.ClassOf(err) != test.class ||
				!strings.Contains(strings.Join(fault.Hints(err), " "), test.hint) {
				t.Fatalf("%v, with hints %q", err, fault.Hints(err))
			}
			for _, line := range strings.Split(string(whole), "\n") {
				if len(line) > 20 && !strings.HasPrefix(line, "-") && strings.Contains(err.Error(), line[:20]) {
					t.Errorf("it shows the key: %v", err)
				}
			}
		})
	}
	m := kubetest.NewMemory(t)
	m.Instead = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	if _, err := Read(t.Context(), keeper(t, m).Site.API); err == nil || errors.Is(err, ErrMissing) || errors.Is(err, ErrInvalid) {
		t.Errorf("an API that refuses: %v", err)
	}
}
