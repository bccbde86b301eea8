package hardening

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// header begins files that boxlift writes.
const header = "# Written by boxlift, because cluster.hardening is cis; changes made here are lost.\n"

// AuditPolicy is what the API server writes down of requests: who asked for what, and what came of it, never what was
// in them. Events, looks at the health of servers and renewals of leases are left out: they are most of all requests,
// and say nothing of anybody's doings.
func AuditPolicy() []byte {
	return []byte(header + `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    nonResourceURLs: ["/healthz*", "/livez*", "/readyz*", "/version"]
  - level: None
    resources: [{group: "", resources: [events]}, {group: events.k8s.io, resources: [events]}]
  - level: None
    verbs: [get, update]
    resources: [{group: coordination.k8s.io, resources: [leases]}]
  - level: Metadata
`)
}

// ExemptNamespaces are those to which Pod Security does not apply: what k3s itself runs, and Cilium, need the host.
var ExemptNamespaces = []string{"kube-system"}

// Admission configures the admission plugins. A namespace that says nothing gets the level restricted. LiteBoxd's two
// namespaces say theirs in labels, which count more than what is here: baseline for itself, and privileged for
// sandboxes, since a persistent one has a privileged container. Events are limited far above what a cluster makes.
func Admission() []byte {
	return []byte(header + fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: PodSecurity
    configuration:
      apiVersion: pod-security.admission.config.k8s.io/v1
      kind: PodSecurityConfiguration
      defaults:
        {enforce: restricted, enforce-version: latest, audit: restricted, audit-version: latest, warn: restricted,
         warn-version: latest}
      exemptions: {usernames: [], runtimeClasses: [], namespaces: [%s]}
  - name: EventRateLimit
    configuration:
      apiVersion: eventratelimit.admission.k8s.io/v1alpha1
      kind: Configuration
      limits: [{type: Server, qps: 5000, burst: 20000}]
`, strings.Join(ExemptNamespaces, ", ")))
}

// Sysctls are the values that a kubelet insists on which is to leave the kernel as it is (Kubernetes,
// pkg/kubelet/cm). Any other kubelet sets them itself, so that they stay harmlessly when hardening ends.
var Sysctls = map[string]string{
	"kernel.keys.root_maxbytes": "25000000", "kernel.keys.root_maxkeys": "1000000", "kernel.panic": "10",
	"kernel.panic_on_oops": "1", "vm.overcommit_memory": "1", "vm.panic_on_oom": "0",
}

// SysctlNames are the names of Sysctls, sorted.
func SysctlNames() []string { return slices.Sorted(maps.Keys(Sysctls)) }

// SysctlConfig is the content of [SysctlFile].
func SysctlConfig() []byte {
	text := header
	for _, name := range SysctlNames() {
		text += name + " = " + Sysctls[name] + "\n"
	}
	return []byte(text)
}

// File is what an item says of a file, or of all files that a pattern of the shell matches. What is not there is as it
// is to be.
type File struct {
	Item, Path string
	// Mode is the widest mode, 0 where only the owner counts, which is root.
	Mode uint32
}

const data = "/var/lib/rancher/k3s"

var serverFiles = []File{
	{"1.1.11, 1.1.12", data + "/server/db/etcd", 0o700},
	{"1.1.13, 1.1.14", data + "/server/cred/admin.kubeconfig", 0o600},
	{"1.1.13, 1.1.14", "/etc/rancher/k3s/k3s.yaml", 0o600},
	{"1.1.15, 1.1.16", data + "/server/cred/scheduler.kubeconfig", 0o600},
	{"1.1.17, 1.1.18", data + "/server/cred/controller.kubeconfig", 0o600},
	{"1.1.19", data + "/server/tls", 0},
	{"1.1.20", data + "/server/tls/*.crt", 0o644},
	{"1.1.20", data + "/server/tls/etcd/*.crt", 0o644},
	{"1.1.21", data + "/server/tls/*.key", 0o600},
	{"1.1.21", data + "/server/tls/etcd/*.key", 0o600},
	{"audit", data + "/server/logs", 0o700},
}

var nodeFiles = []File{
	{"4.1.3, 4.1.4", data + "/agent/kubeproxy.kubeconfig", 0o600},
	{"4.1.5, 4.1.6", data + "/agent/kubelet.kubeconfig", 0o600},
	{"4.1.7, 4.1.8", data + "/agent/client-ca.crt", 0o600},
}

// Files are those of a host.
func Files(server bool) []File {
	if server {
		return slices.Concat(serverFiles, nodeFiles)
	}
	return nodeFiles
}
