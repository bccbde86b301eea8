package hardening_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/hardening"
)

const suites = "tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384," +
	"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256," +
	"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"

func TestHarden(t *testing.T) {
	const because = ", because cluster.hardening is cis "
	kubelet := []string{"streaming-connection-idle-timeout=5m", "make-iptables-util-chains=true", suites}
	apiServer := []string{
		"enable-admission-plugins=NodeRestriction,EventRateLimit",
		"audit-log-path=/var/lib/rancher/k3s/server/logs/audit.log",
		"audit-log-maxage=30", "audit-log-maxbackup=10", "audit-log-maxsize=100",
		"service-account-extend-token-expiration=false",
		"audit-policy-file=/etc/rancher/k3s/boxlift-audit.yaml",
		"admission-control-config-file=/etc/rancher/k3s/boxlift-admission.yaml",
	}
	but := func(list []string, name string) (rest []string) {
		for _, one := range list {
			if !strings.HasPrefix(one, name+"=") {
				rest = append(rest, one)
			}
		}
		return rest
	}
	with := func(list []string, more ...string) []string { return append(more, list...) }
	tests := []struct {
		name     string
		agent    bool
		key      string
		own      []string
		value    any
		problems []string
	}{
		{name: "an API server that is told nothing", key: "kube-apiserver-arg", value: apiServer},
		{name: "a kubelet that is told nothing", key: "kubelet-arg", agent: true, value: kubelet},
		{name: "what has nothing to do with it stays", key: "kubelet-arg", own: []string{"max-pods=200"},
			value: with(kubelet, "max-pods=200")},
		{name: "the kernel's values", key: "protect-kernel-defaults", value: true},
		{name: "they are asked for already", key: "protect-kernel-defaults", own: []string{"true"}},
		{name: "they are refused", key: "protect-kernel-defaults", own: []string{"false"},
			problems: []string{"found false, expected true" + because + "(kernel)"}},
		{name: "encryption is the cluster's own matter", key: "secrets-encryption"},
		{name: "encryption is asked for", key: "secrets-encryption", own: []string{"true"}},
		{name: "encryption is refused", key: "secrets-encryption", own: []string{"false"},
			problems: []string{"found false, expected true" + because + "(1.2.27, 1.2.28)"}},
		{name: "the administrator's kubeconfig for all", key: "write-kubeconfig-mode", own: []string{"0644"},
			problems: []string{"found 0644, expected 0600 or stricter" + because + "(1.1.13)"}},
		{name: "the administrator's kubeconfig for root alone", key: "write-kubeconfig-mode", own: []string{"400"}},
		{name: "more is kept than is asked for", key: "kube-apiserver-arg", own: []string{"--audit-log-maxage=90"},
			value: with(but(apiServer, "audit-log-maxage"), "--audit-log-maxage=90")},
		{name: "less is kept", key: "kube-apiserver-arg", own: []string{"audit-log-maxage=7"},
			problems: []string{"found audit-log-maxage=7, expected 30 at least" + because + "(1.2.17)"}},
		{name: "the last one counts", key: "kube-apiserver-arg", own: []string{"audit-log-maxage=90", "audit-log-maxage=x"},
			problems: []string{"found audit-log-maxage=x, expected 30 at least" + because + "(1.2.17)"}},
		{name: "a policy of one's own", key: "kube-apiserver-arg", own: []string{"audit-policy-file=/etc/audit.yaml"},
			value: with(but(apiServer, "audit-policy-file"), "audit-policy-file=/etc/audit.yaml")},
		{name: "admission of one's own", key: "kube-apiserver-arg", own: []string{"admission-control-config-file=/etc/psa.yaml"},
			problems: []string{"found admission-control-config-file=/etc/psa.yaml, expected " +
				"/etc/rancher/k3s/boxlift-admission.yaml" + because + "(5.2.1)"}},
		{name: "more plugins", key: "kube-apiserver-arg",
			own: []string{"enable-admission-plugins=AlwaysPullImages, NodeRestriction", "v=2"},
			value: with(but(apiServer, "enable-admission-plugins"), "v=2",
				"enable-admission-plugins=AlwaysPullImages,NodeRestriction,EventRateLimit")},
		{name: "a plugin that lets everything in", key: "kube-apiserver-arg",
			own: []string{"enable-admission-plugins=AlwaysAdmit"}, problems: []string{
				"found enable-admission-plugins=AlwaysAdmit,NodeRestriction,EventRateLimit, expected " +
					"NodeRestriction,EventRateLimit, without AlwaysAdmit" + because + "(1.2.9, 1.2.14)"}},
		{name: "plugins that are turned off, and strangers", key: "kube-apiserver-arg",
			own: []string{"disable-admission-plugins=PodSecurity,DefaultStorageClass", "anonymous-auth", "token-auth-file=/t",
				"authorization-mode=AlwaysAllow", "profiling=true"},
			problems: []string{
				"found anonymous-auth=true, expected false" + because + "(1.2.1)",
				"found token-auth-file=/t, expected not to be given" + because + "(1.2.2)",
				"found authorization-mode=AlwaysAllow, expected Node,RBAC, without AlwaysAllow" + because + "(1.2.6, 1.2.7, 1.2.8)",
				"found disable-admission-plugins=PodSecurity,DefaultStorageClass, expected without NodeRestriction," +
					"EventRateLimit,ServiceAccount,NamespaceLifecycle,PodSecurity" + because + "(1.2.12, 1.2.13)",
				"found profiling=true, expected false" + because + "(1.2.15)",
			}},
		{name: "connections without an end", key: "kubelet-arg", own: []string{"streaming-connection-idle-timeout=0"},
			problems: []string{"found streaming-connection-idle-timeout=0, expected a time above 0, such as 5m" + because + "(4.2.5)"}},
		{name: "longer connections", key: "kubelet-arg", own: []string{"streaming-connection-idle-timeout=4h"},
			value: with(kubelet[1:], "streaming-connection-idle-timeout=4h")},
		{name: "fewer ciphers", key: "kubelet-arg", own: []string{"tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"},
			value: with(kubelet[:2], "tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")},
		{name: "weak ciphers", key: "kubelet-arg", own: []string{"tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA"},
			problems: []string{"found tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA, expected only of "}},
		{name: "the read-only port", agent: true, key: "kubelet-arg", own: []string{"read-only-port=10255"},
			problems: []string{"found read-only-port=10255, expected 0" + because + "(4.2.4)"}},
		{name: "pods that have ended are kept", key: "kube-controller-manager-arg",
			own:      []string{"terminated-pod-gc-threshold=0"},
			problems: []string{"found terminated-pod-gc-threshold=0, expected 1 to 12500" + because + "(1.3.1)"}},
		{name: "added to k3s' own, which does not count", key: "kube-apiserver-arg", own: []string{"authorization-mode+=AlwaysAllow"},
			problems: []string{"found authorization-mode=AlwaysAllow, expected Node,RBAC, without AlwaysAllow" + because + "(1.2.6, 1.2.7, 1.2.8)"}},
		{name: "a list in parts", key: "kube-apiserver-arg", own: []string{"authorization-mode=AlwaysAllow", "authorization-mode=Node,RBAC"},
			problems: []string{"found authorization-mode=AlwaysAllow,Node,RBAC, expected Node,RBAC, without AlwaysAllow" + because + "(1.2.6, 1.2.7, 1.2.8)"}},
		{name: "a list in good parts", key: "kube-apiserver-arg", own: []string{"authorization-mode+=Webhook", "authorization-mode-=Node,RBAC"},
			value: with(apiServer, "authorization-mode+=Webhook", "authorization-mode-=Node,RBAC")},
		{name: "turned off in parts", key: "kube-apiserver-arg",
			own: []string{"disable-admission-plugins=PodSecurity", "disable-admission-plugins=DefaultStorageClass"},
			problems: []string{"found disable-admission-plugins=PodSecurity,DefaultStorageClass, expected without NodeRestriction," +
				"EventRateLimit,ServiceAccount,NamespaceLifecycle,PodSecurity" + because + "(1.2.12, 1.2.13)"}},
		{name: "one weak cipher of several", key: "kubelet-arg",
			own: []string{"tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA", "tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"},
			problems: []string{"found tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, " +
				"expected only of "}},
		{name: "plugins that are added", key: "kube-apiserver-arg", own: []string{"enable-admission-plugins+=AlwaysPullImages"},
			value: with(but(apiServer, "enable-admission-plugins"),
				"enable-admission-plugins=AlwaysPullImages,NodeRestriction,EventRateLimit")},
		{name: "the other words for a name", key: "kube-apiserver-arg", own: []string{"anonymous_auth+=true"},
			problems: []string{"found anonymous-auth=true, expected false" + because + "(1.2.1)"}},
		{name: "a word in quotes", key: "kube-apiserver-arg", own: []string{`authorization-mode=Node,RBAC,"AlwaysAllow"`},
			problems: []string{"found authorization-mode=Node,RBAC,AlwaysAllow, expected Node,RBAC, without AlwaysAllow" + because + "(1.2.6, 1.2.7, 1.2.8)"}},
		{name: "a value before the one that counts", key: "kube-apiserver-arg", own: []string{"audit-log-maxage=7", "audit-log-maxage-=90"},
			problems: []string{"found audit-log-maxage=7, expected 30 at least" + because + "(1.2.17)"}},
		{name: "a value after it", key: "kube-apiserver-arg", own: []string{"audit-log-maxage=7", "audit-log-maxage+=90"},
			value: with(but(apiServer, "audit-log-maxage"), "audit-log-maxage=7", "audit-log-maxage+=90")},
		{name: "an agent has no API server", agent: true, key: "kube-apiserver-arg", own: []string{"profiling=true"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			own := append([]string{}, test.own...)
			value, problems := hardening.Harden(!test.agent, test.key, test.own)
			if diff := cmp.Diff(test.value, value); diff != "" && len(test.problems) == 0 {
				t.Errorf("value: %s", diff)
			}
			if len(problems) != len(test.problems) {
				t.Fatalf("problems: %q", problems)
			}
			for i, want := range test.problems {
				if !strings.HasPrefix(problems[i], want) {
					t.Errorf("problem %q, want %q", problems[i], want)
				}
			}
			if diff := cmp.Diff(own, append([]string{}, test.own...)); diff != "" {
				t.Errorf("what the user gave was changed: %s", diff)
			}
			if list, ok := value.([]string); ok { // what is hardened stays as it is
				if again, problems := hardening.Harden(!test.agent, test.key, list); again != nil || problems != nil {
					t.Errorf("hardened again: %v, %q", again, problems)
				}
			}
		})
	}
}

func TestKeys(t *testing.T) {
	if diff := cmp.Diff([]string{"protect-kernel-defaults", "kubelet-arg"}, hardening.Keys(false)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"write-kubeconfig-mode", "kube-apiserver-arg", "secrets-encryption",
		"kube-controller-manager-arg", "kube-scheduler-arg", "protect-kernel-defaults", "kubelet-arg"},
		hardening.Keys(true)); diff != "" {
		t.Error(diff)
	}
}

// What is given to k3s in files can be read, and says what it is to say.
func TestFiles(t *testing.T) {
	var policy struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Rules      []struct{ Level string }
	}
	if err := yaml.Unmarshal(hardening.AuditPolicy(), &policy); err != nil || policy.Kind != "Policy" ||
		policy.APIVersion != "audit.k8s.io/v1" || policy.Rules[len(policy.Rules)-1].Level != "Metadata" {
		t.Errorf("audit policy: %+v, %v", policy, err)
	}
	var admission struct {
		Plugins []struct {
			Name          string
			Configuration struct {
				Defaults   map[string]string
				Exemptions struct{ Namespaces []string }
				Limits     []map[string]any
			}
		}
	}
	if err := yaml.Unmarshal(hardening.Admission(), &admission); err != nil || len(admission.Plugins) != 2 {
		t.Fatalf("admission: %+v, %v", admission, err)
	}
	security := admission.Plugins[0]
	if security.Name != "PodSecurity" || security.Configuration.Defaults["enforce"] != "restricted" ||
		!cmp.Equal(security.Configuration.Exemptions.Namespaces, []string{"kube-system"}) {
		t.Errorf("Pod Security: %+v", security)
	}
	if limits := admission.Plugins[1]; limits.Name != "EventRateLimit" || len(limits.Configuration.Limits) != 1 {
		t.Errorf("limits of events: %+v", limits)
	}
	if text := string(hardening.SysctlConfig()); !strings.HasPrefix(text, "# ") || strings.Count(text, " = ") != 6 {
		t.Errorf("sysctls: %s", text)
	}
}
