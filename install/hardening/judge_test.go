package hardening_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/liteboxd/boxlift/install/hardening"
)

// failed are the items that are not as they are to be, with what was looked at and what was found. Each has a remedy,
// and no other has one.
func failed(t *testing.T, findings ...hardening.Finding) []string {
	t.Helper()
	var texts []string
	for _, f := range findings {
		if f.OK != (f.Remedy == "") || f.Item == "" || f.What == "" || f.Found == "" || f.Expected == "" {
			t.Errorf("incomplete: %+v", f)
		}
		if !f.OK {
			texts = append(texts, f.Item+": "+f.What+": "+f.Found)
		}
	}
	return texts
}

func TestJudgeServer(t *testing.T) {
	given := map[string][]string{}
	for _, key := range hardening.Keys(true) {
		if value, _ := hardening.Harden(true, key, nil); value != nil {
			if list, ok := value.([]string); ok {
				given[key] = list
			}
		}
	}
	if texts := failed(t, hardening.JudgeServer(given)...); texts != nil {
		t.Errorf("what boxlift gives is not what it expects: %q", texts)
	}
	want := []string{
		"1.2.9, 1.2.14: kube-apiserver-arg enable-admission-plugins: not given",
		"1.2.16: kube-apiserver-arg audit-log-path: not given", "1.2.17: kube-apiserver-arg audit-log-maxage: not given",
		"1.2.18: kube-apiserver-arg audit-log-maxbackup: not given", "1.2.19: kube-apiserver-arg audit-log-maxsize: not given",
		"1.2.30: kube-apiserver-arg service-account-extend-token-expiration: not given",
		"1.3.1: kube-controller-manager-arg terminated-pod-gc-threshold: not given",
		"3.2.1: kube-apiserver-arg audit-policy-file: not given",
		"5.2.1: kube-apiserver-arg admission-control-config-file: not given",
	}
	if diff := cmp.Diff(want, failed(t, hardening.JudgeServer(nil)...)); diff != "" {
		t.Errorf("k3s as it is by itself: %s", diff)
	}
	given["kube-scheduler-arg"] = []string{"bind-address=0.0.0.0"}
	given["write-kubeconfig-mode"] = []string{"0644"}
	if diff := cmp.Diff([]string{"1.1.13: write-kubeconfig-mode: 0644", "1.4.2: kube-scheduler-arg bind-address: 0.0.0.0"},
		failed(t, hardening.JudgeServer(given)...)); diff != "" {
		t.Error(diff)
	}
}

// A server is judged by all that its arguments come to, however they are written.
func TestJudgeServerArguments(t *testing.T) {
	for _, test := range []struct{ given, want string }{
		{"authorization-mode+=AlwaysAllow", "authorization-mode: AlwaysAllow"},
		{"authorization-mode=AlwaysAllow authorization-mode=Node,RBAC", "authorization-mode: AlwaysAllow,Node,RBAC"},
		{"authorization-mode=Node,RBAC authorization-mode-=Webhook", ""},
		{"disable-admission-plugins=PodSecurity disable-admission-plugins=X", "disable-admission-plugins: PodSecurity,X"},
		{"tls-cipher-suites+=TLS_RSA_WITH_RC4_128_SHA", "tls-cipher-suites: TLS_RSA_WITH_RC4_128_SHA"},
		{"enable-admission-plugins+=AlwaysAdmit", "enable-admission-plugins: NodeRestriction,EventRateLimit,AlwaysAdmit"},
		{"anonymous-auth-=true", "anonymous-auth: true"},
		{"token_auth_file+=/t", "token-auth-file: /t"},
	} {
		value, _ := hardening.Harden(true, "kube-apiserver-arg", nil)
		hardened, ok := value.([]string)
		if !ok {
			t.Fatal("an API server is given nothing")
		}
		texts := failed(t, hardening.JudgeServer(map[string][]string{
			"kube-apiserver-arg":          append(hardened, strings.Fields(test.given)...),
			"kube-controller-manager-arg": {"terminated-pod-gc-threshold=100"},
		})...)
		switch {
		case test.want == "" && texts == nil:
		case test.want == "" || len(texts) != 1 || !strings.HasSuffix(texts[0], "kube-apiserver-arg "+test.want):
			t.Errorf("%s: %q", test.given, texts)
		}
	}
}

func TestJudgeEncryption(t *testing.T) {
	for _, test := range []struct {
		found hardening.Encryption
		want  string
	}{
		{hardening.Encryption{Set: true, HasKey: true, Provider: "aescbc"}, ""},
		{hardening.Encryption{Set: true, HasKey: true, Provider: "secretbox"}, ""},
		{hardening.Encryption{Set: true, HasKey: true, Provider: "identity"}, "on, but Secrets are written with the provider identity"},
		{hardening.Encryption{Set: true, HasKey: true}, "on, but Secrets are written with the provider unknown"},
		{hardening.Encryption{}, "off"},
		{hardening.Encryption{Set: true}, "on, but there is no key"},
		{hardening.Encryption{HasKey: true, Provider: "aescbc"}, "off, and there is a key"},
	} {
		texts := strings.Join(failed(t, hardening.JudgeEncryption(test.found)), "")
		if (texts == "") != (test.want == "") || !strings.HasSuffix(texts, test.want) {
			t.Errorf("%+v: %q", test.found, texts)
		}
	}
}

func TestJudgeSysctls(t *testing.T) {
	if texts := failed(t, hardening.JudgeSysctls(hardening.Sysctls)); texts != nil {
		t.Errorf("%q", texts)
	}
	values := maps.Clone(hardening.Sysctls)
	delete(values, "kernel.panic")
	values["vm.overcommit_memory"] = "0"
	if diff := cmp.Diff([]string{"kernel: sysctls: kernel.panic=unknown, vm.overcommit_memory=0"},
		failed(t, hardening.JudgeSysctls(values))); diff != "" {
		t.Error(diff)
	}
}

func TestJudgeKubelet(t *testing.T) {
	const good = `{"kubeletconfig":{"protectKernelDefaults":true,"authentication":{"anonymous":{"enabled":false},
"x509":{"clientCAFile":"/ca"}},"authorization":{"mode":"Webhook"},"streamingConnectionIdleTimeout":"5m0s",
"makeIPTablesUtilChains":true,"tlsCertFile":"/c","tlsPrivateKeyFile":"/k","tlsCipherSuites":["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}}`
	for _, test := range []struct {
		from, to string
		want     []string
	}{
		{"", "", nil},
		{`"protectKernelDefaults":true,`, "", []string{"kernel: kubelet protectKernelDefaults: false"}},
		{`"enabled":false`, `"enabled":true`, []string{"4.2.1: kubelet anonymous authentication: true"}},
		{`"enabled":false`, ``, []string{"4.2.1: kubelet anonymous authentication: not given"}},
		{"Webhook", "AlwaysAllow", []string{"4.2.2: kubelet authorization: AlwaysAllow"}},
		{"/ca", "", []string{"4.2.3: kubelet clientCAFile: not given"}},
		{`"tlsCertFile":"/c"`, `"readOnlyPort":10255`, []string{"4.2.4: kubelet readOnlyPort: 10255", "4.2.9: kubelet tlsCertFile: not given"}},
		{"5m0s", "0s", []string{"4.2.5: kubelet streamingConnectionIdleTimeout: 0s"}},
		{`"makeIPTablesUtilChains":true`, `"makeIPTablesUtilChains":false`, []string{"4.2.6: kubelet makeIPTablesUtilChains: false"}},
		{`"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"`, "", []string{"4.2.12: kubelet tlsCipherSuites: not given"}},
		{`"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"`, `"TLS_RSA_WITH_RC4_128_SHA"`, []string{"4.2.12: kubelet tlsCipherSuites: TLS_RSA_WITH_RC4_128_SHA"}},
	} {
		if !strings.Contains(good, test.from) {
			t.Fatalf("%q is not in the document", test.from)
		}
		findings, err := hardening.JudgeKubelet([]byte(strings.Replace(good, test.from, test.to, 1)))
		if err != nil {
			t.Errorf("%s: %v", test.to, err)
		}
		if diff := cmp.Diff(test.want, failed(t, findings...)); diff != "" {
			t.Errorf("%q instead of %q: %s", test.to, test.from, diff)
		}
	}
	for _, text := range []string{"", "[]", "{}", `{"kubeletconfig":null}`, `{"kubeletconfig":{"readOnlyPort":"x"}}`, "404 page not found"} {
		if findings, err := hardening.JudgeKubelet([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, findings)
		}
	}
}

func TestJudgeFile(t *testing.T) {
	key := hardening.File{Item: "1.1.21", Path: "/k/*.key", Mode: 0o600}
	folder := hardening.File{Item: "1.1.19", Path: "/k"}
	for _, test := range []struct {
		file  hardening.File
		mode  uint32
		owner int
		want  string
	}{
		{key, 0o600, 0, ""}, {key, 0o400, 0, ""}, {key, 0o640, 0, "0640"}, {key, 0o600, 7, "0600, of user 7"},
		{folder, 0o755, 0, ""}, {folder, 0o700, 7, "0700, of user 7"},
	} {
		texts := strings.Join(failed(t, hardening.JudgeFile(test.file, "/k/a.key", test.mode, test.owner)), "")
		if want := test.want; (texts == "") != (want == "") || !strings.HasSuffix(texts, ": "+want) && want != "" {
			t.Errorf("%+v: %q", test, texts)
		}
	}
}

func FuzzJudgeKubelet(f *testing.F) {
	f.Add([]byte(`{"kubeletconfig":{"protectKernelDefaults":true,"tlsCipherSuites":["x"]}}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		findings, err := hardening.JudgeKubelet(document)
		if (err == nil) != (len(findings) > 0) {
			t.Errorf("%d findings, and %v", len(findings), err)
		}
	})
}
