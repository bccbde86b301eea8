package inspect

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/hardening"
	"github.com/liteboxd/boxlift/install/host/hosttest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/test/kubetest"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// kubeletRuns is what a hardened kubelet says.
const kubeletRuns = `{"kubeletconfig":{"protectKernelDefaults":true,"authentication":{"anonymous":{"enabled":false},"x509":{"clientCAFile":"/ca"}},
"authorization":{"mode":"Webhook"},"streamingConnectionIdleTimeout":"5m0s","makeIPTablesUtilChains":true,"tlsCertFile":"/c","tlsPrivateKeyFile":"/k",
"tlsCipherSuites":["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}}`

// hardenedPlatform is a look at a server and an agent that are hardened, whose API server refuses privileged pods but
// in the namespace of sandboxes.
func hardenedPlatform(t *testing.T, text string) (*platform, *audit) {
	t.Helper()
	p := looked(t, text)
	for i, f := range p.fakes {
		h := p.inspector.Site.Hosts[i]
		for name, value := range hardening.Sysctls {
			f.WriteFile(t, "/proc/sys/"+strings.ReplaceAll(name, ".", "/"), value+"\n", 0o644)
		}
		service := site.Unit(h.Config.Role)
		f.WriteFile(t, site.UnitDir+service+".service", "[Service]\nExecStart=/usr/local/bin/k3s "+string(h.Config.Role)+"\n", 0o644)
		f.WriteFile(t, site.K3sTokenFile, "the-token\n", 0o600)
		f.WriteFile(t, site.K3sBinary, "k3s", 0o755)
		settings := map[string]any{"token-file": site.K3sTokenFile}
		for _, key := range hardening.Keys(i == 0) {
			if value, _ := hardening.Harden(i == 0, key, nil); value != nil {
				settings[key] = value
			}
		}
		if i == 0 {
			settings["secrets-encryption"] = true
			f.WriteFile(t, site.K3sEncryptionKey, encryptionConfig(encrypts, plainly), 0o600)
			f.WriteFile(t, hardening.AuditLog, `{"level":"Metadata"}`, 0o600)
			if err := os.Chmod(f.Path("/var/lib/rancher/k3s/server/logs"), 0o700); err != nil {
				t.Fatal(err)
			}
			f.WriteFile(t, "/var/lib/rancher/k3s/server/tls/server-ca.key", "a key", 0o600)
		}
		config, err := yaml.Marshal(settings)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteFile(t, site.K3sConfigFile, string(config), 0o600)
		f.WriteFile(t, "/var/lib/rancher/k3s/agent/kubelet.kubeconfig", "a kubeconfig", 0o600)
		f.Program("journalctl", hosttest.Prints(""))
		f.Unit(service).Runs()
		started, err := (&k3s.Node{Cluster: p.inspector.Cluster, Host: h}).Started(t.Context(), service)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteFile(t, site.StartedFile, started+"\n", 0o600)
	}
	for _, node := range []string{"first", "host-1"} {
		p.api.Answer("/api/v1/nodes/"+node+"/proxy/configz", says(kubeletRuns))
	}
	p.api.Answer("/api/v1/namespaces/default/pods", refusal)
	p.api.Answer("/api/v1/namespaces/"+boxSandboxes+"/pods", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("dryRun") != "All" {
			t.Error("a pod is made")
		}
		kubetest.Answer(t, w, "Pod", map[string]any{})
	})
	return p, &audit{inspector: p.inspector}
}

// encryptionConfig is what k3s writes for its API server (k3s, pkg/secretsencrypt).
func encryptionConfig(providers ...string) string {
	return `{"kind":"EncryptionConfiguration","apiVersion":"apiserver.config.k8s.io/v1","resources":[{"resources":["secrets"],"providers":[` +
		strings.Join(providers, ",") + `]}]}`
}

const (
	encrypts = `{"aescbc":{"keys":[{"name":"aescbckey-2026-11-01T00:00:00Z","secret":"S0VZLUNBTkFSWQ=="}]}}`
	plainly  = `{"identity":{}}`
)

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

// refusal is what an API server says that lets no privileged pod in.
func refusal(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"violates PodSecurity \"restricted:latest\""}`))
}

// boxSandboxes is the namespace of sandboxes.
const boxSandboxes = "liteboxd-sandbox"

const withBox = sitetest.ExampleConfig + "liteboxd: {ingressHost: box.lan}\n"

func TestHardeningItems(t *testing.T) {
	first, second := "first (10.0.0.11)", "10.0.0.12"
	for _, test := range []struct {
		name   string
		change func(t *testing.T, p *platform)
		want   []string // what failed, with where
	}{
		{"hardened", func(*testing.T, *platform) {}, nil},
		{"a drop-in of somebody's", func(t *testing.T, p *platform) {
			p.fakes[0].WriteFile(t, site.K3sConfigDropIns+"/site.yaml",
				"kube-apiserver-arg+: [anonymous-auth=true]\n", 0o600)
		}, []string{"1.2.1 " + first}},
		{"what k3s does by itself", func(t *testing.T, p *platform) {
			p.fakes[0].WriteFile(t, site.K3sConfigFile, "{}\n", 0o600)
		}, []string{"1.2.9, 1.2.14 " + first, "1.2.16 " + first, "1.2.17 " + first, "1.2.18 " + first, "1.2.19 " + first,
			"1.2.30 " + first, "1.3.1 " + first, "3.2.1 " + first, "5.2.1 " + first, "1.2.27, 1.2.28 " + first, "audit " + first,
			"running " + first}},
		{"k3s was not started again", func(t *testing.T, p *platform) {
			p.fakes[1].WriteFile(t, site.StartedFile, "something else", 0o600)
		}, []string{"running " + second}},
		{"no log", func(t *testing.T, p *platform) {
			if err := os.Remove(p.fakes[0].Path(hardening.AuditLog)); err != nil {
				t.Fatal(err)
			}
		}, []string{"audit " + first}},
		{"a log for all", func(t *testing.T, p *platform) {
			p.fakes[0].WriteFile(t, hardening.AuditLog, "{}", 0o644)
		}, []string{"audit " + first}},
		{"a kubeconfig for all", func(t *testing.T, p *platform) {
			p.fakes[1].WriteFile(t, "/var/lib/rancher/k3s/agent/kubelet.kubeconfig", "x", 0o644)
		}, []string{"4.1.5, 4.1.6 " + second}},
		{"another kernel", func(t *testing.T, p *platform) {
			p.fakes[1].WriteFile(t, "/proc/sys/kernel/panic", "0\n", 0o644)
		}, []string{"kernel " + second}},
		{"a kubelet that was told otherwise", func(_ *testing.T, p *platform) {
			p.api.Answer("/api/v1/nodes/host-1/proxy/configz", says(strings.Replace(kubeletRuns, `"enabled":false`, `"enabled":true`, 1)))
		}, []string{"4.2.1 " + second}},
		{"a kubelet that says nothing", func(_ *testing.T, p *platform) {
			p.api.Answer("/api/v1/nodes/host-1/proxy/configz", says("\x1b[31mno"))
		}, []string{"4.2 " + second}},
		{"pods are let in", func(t *testing.T, p *platform) {
			p.api.Answer("/api/v1/namespaces/default/pods", func(w http.ResponseWriter, _ *http.Request) { kubetest.Answer(t, w, "Pod", map[string]any{}) })
		}, []string{"5.2.1, 5.2.2 "}},
		{"sandboxes are refused", func(_ *testing.T, p *platform) {
			p.api.Answer("/api/v1/namespaces/"+boxSandboxes+"/pods", refusal)
		}, []string{"sandbox "}},
		{"encryption was turned off", func(t *testing.T, p *platform) { // by k3s secrets-encrypt disable
			p.fakes[0].WriteFile(t, site.K3sEncryptionKey, encryptionConfig(plainly, encrypts), 0o600)
		}, []string{"1.2.27, 1.2.28 " + first}},
		{"an encryption that nobody knows", func(t *testing.T, p *platform) {
			p.fakes[0].WriteFile(t, site.K3sEncryptionKey, "\x1b[2J", 0o600)
		}, []string{"1.2.27, 1.2.28 " + first}},
		{"a host without a node", func(_ *testing.T, p *platform) { p.nodes = p.nodes[:1] }, []string{"4.2 " + second}},
		{"a quota instead of Pod Security", func(_ *testing.T, p *platform) {
			p.api.Answer("/api/v1/namespaces/default/pods", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusForbidden)
				_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"exceeded quota: few"}`))
			})
		}, []string{"5.2.1, 5.2.2 "}},
		{"no agent", func(_ *testing.T, p *platform) { p.inspector.Site.Hosts[1].Err = errors.New("no route") },
			[]string{"host " + second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, a := hardenedPlatform(t, withBox)
			test.change(t, p)
			if err := a.judgeHosts(t.Context()); err != nil && p.inspector.Site.Hosts[1].Err == nil {
				t.Fatal(err)
			}
			a.judgeCluster(t.Context(), p.nodes)
			var failed []string
			for _, i := range a.items {
				if i.State == HealthFailed {
					failed = append(failed, i.Item+" "+i.Subject)
				}
				if i.State == HealthOK && i.Remedy != "" || i.What == "" || i.Found == "" || strings.ContainsAny(i.Found, "\x1b\n") ||
					strings.Contains(i.Found, "S0VZ") {
					t.Errorf("unfit: %+v", i)
				}
			}
			if diff := cmp.Diff(test.want, failed); diff != "" {
				t.Errorf("%s\n%+v", diff, a.items)
			}
			if err := unhardened(a.items); (err == nil) != (test.want == nil) || err != nil && !errors.Is(err, ErrUnhealthy) {
				t.Errorf("%v", err)
			}
		})
	}
}
