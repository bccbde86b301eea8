package liteboxd

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/liteboxd/boxlift/install/ca"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/steptest"
)

// signed is a cluster in which certificates count as the same.
type signed struct{ *kubetest.Memory }

var pairs = regexp.MustCompile(`"(tls\.crt|tls\.key)":"[^"]+"`)

func (s signed) Snapshot(t testing.TB) string {
	return pairs.ReplaceAllString(s.Memory.Snapshot(t), `"$1":"signed"`)
}

// LiteBoxd's names have a certificate of the site's authority, which is replaced when it is not good for them any more.
func TestIngressStep(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "authority")
	newAuthority := func(folder string) *ca.Authority {
		a, err := ca.Make(ca.Options{Folder: folder, Name: "plant", Password: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	authority, other := newAuthority(folder), newAuthority(filepath.Join(t.TempDir(), "other"))
	having := func(a *ca.Authority, names ...string) *corev1.Secret {
		pair, err := a.Issuer.Issue(names)
		if err != nil {
			t.Fatal(err)
		}
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: manifests.IngressSecret},
			Type: corev1.SecretTypeTLS, Data: secretOf(pair)}
	}
	names := []string{"liteboxd.local", "gateway.liteboxd.local"}
	broken := having(authority, names...)
	broken.Data = map[string][]byte{"tls.crt": []byte("\x1b[2J"), "tls.key": nil}
	for _, test := range []struct {
		name  string
		there *corev1.Secret
		why   string
	}{
		{"none", nil, "the Secret liteboxd-ingress-tls is missing"},
		{"a good one", having(authority, names...), ""},
		{"for other names", having(authority, "old.local"), "the certificate is for old.local"},
		{"of another authority", having(other, names...), "another authority signed the certificate"},
		{"none in it", broken, "the certificate cannot be used"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var m *kubetest.Memory
			steptest.ProveIn(t, steptest.Wide{Why: test.why, Fresh: func(t *testing.T) (steptest.World, func() run.Step) {
				var in *installation
				objects := []runtime.Object{keySecret("k")} // and with it the namespace
				if test.there != nil {
					objects = append(objects, test.there.DeepCopy())
				}
				in, m = onCluster(t, plain, objects...)
				in.site.Config.Authority.Folder = folder
				return signed{m}, in.deployer.ingressStep
			}})
			chain := valueOf(t, m, manifests.IngressSecret, "tls.crt")
			if authority.RootOf([]byte(chain)) == nil || strings.Contains(chain, "PRIVATE") {
				t.Errorf("it is under another root: %s", chain)
			}
			pair := []byte(chain + valueOf(t, m, manifests.IngressSecret, "tls.key"))
			if reason := authority.Issuer.Reason(pair, names); reason != "" {
				t.Errorf("what it has is no good: %s", reason)
			}
			if got := m.Object(t, secretsPath+manifests.IngressSecret).Object["type"]; got != "kubernetes.io/tls" {
				t.Errorf("its type is %v", got)
			}
		})
	}
}

// Traefik serves LiteBoxd with TLS, too, where the site has an authority, and without it as before.
func TestRenderTLS(t *testing.T) {
	for _, tls := range []bool{false, true} {
		r, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: manifests.Parameters{TLS: tls,
			Images: manifests.Images{API: "a.lan/a:1", Gateway: "a.lan/b:1", Web: "a.lan/c:1", Helper: "a.lan/d:1"}}})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(strings.Split(string(r.YAML()), "---\n"), func(s string) bool {
			return strings.Contains(s, "kind: Ingress\n") &&
				strings.Contains(s, "secretName: "+manifests.IngressSecret) && strings.Contains(s, "entrypoints: web,websecure")
		})
		if (i >= 0) != tls {
			t.Errorf("with TLS %t: found %t", tls, i >= 0)
		}
	}
}
