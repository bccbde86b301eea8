package lint_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/manifests/lint"
)

func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, document := range strings.Split(text, "\n---\n") {
		data, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(data); err != nil {
			t.Fatal(err)
		}
		all = append(all, object)
	}
	return all
}

// check returns findings in a short form: "error image-tag Pod default/p spec.…".
func check(t *testing.T, text string, known ...string) []string {
	t.Helper()
	var all []string
	for _, f := range lint.Check(objects(t, text), lint.Options{Known: known}) {
		if f.Problem == "" || f.Mend == "" || strings.Contains(f.Problem+f.Mend, "\n") {
			t.Errorf("%+v says nothing, or more than a line", f)
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", f.Severity, f.Rule, f.Object, f.Path)))
	}
	return all
}

const fine = "resources: {requests: {cpu: 1m, memory: 1Mi}}"

// pod is a pod with one container, spec and container going on as given.
func pod(spec, container string) string {
	return "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: default}, spec: {" + spec + " containers: [{name: c, " + container + "}]}}"
}

// deployment has pods with label app: NAME.
func deployment(name, replicas, spec, container string) string {
	return "{apiVersion: apps/v1, kind: Deployment, metadata: {name: " + name + ", namespace: default}, spec: {replicas: " + replicas +
		", selector: {matchLabels: {app: " + name + "}}, template: {metadata: {labels: {app: " + name + "}}, spec: {" + spec +
		" containers: [{name: c, image: 'r.lan/a:1', " + fine + ", " + container + "}]}}}}"
}

func budget(spec string) string {
	return "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b, namespace: default}, spec: {selector: {matchLabels: {app: web}}, " + spec + "}}"
}

func policy(port string) string {
	return "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: ports, namespace: default}, spec: {podSelector: {}, ingress: [{ports: [" + port + "]}], egress: [{ports: [{port: 53}]}]}}"
}

func role(rule string) string {
	return "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}, rules: [{" + rule + "}]}"
}

func claim(mode, class string) string {
	return "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: default}, spec: {accessModes: [" + mode + "], storageClassName: " + class + ", resources: {requests: {storage: 1Gi}}}}"
}

func ingress(annotation, backend, more string) string {
	return "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: default, annotations: {traefik.ingress.kubernetes.io/router.middlewares: '" + annotation +
		"'}}, spec: {" + more + " rules: [{host: a.lan, http: {paths: [{path: /, pathType: Prefix, backend: {service: {" + backend + "}}}]}}]}}"
}

const (
	image   = "image: 'r.lan/a:1', " + fine
	service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}}"
	mount   = "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}],"
	near    = "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}]}},"
	sleep   = "image: 'r.lan/a:1', " + fine + ", lifecycle: {preStop: {sleep: {seconds: 5}}}"
	at      = "Pod default/p spec.containers[c]"
)

func join(documents ...string) string { return strings.Join(documents, "\n---\n") }

// Each rule has objects that break it and such that do not.
var cases = []struct {
	name string
	text string
	want []string
}{
	{"fine", pod("", image), nil},

	{"schema: unknown field", pod("nodeSelectr: {a: b},", image), []string{"error schema Pod default/p"}},
	{"schema: wrong type", pod("hostname: [a],", image), []string{"error schema Pod default/p"}},
	{"schema: custom resource", "{apiVersion: example.lan/v1, kind: Thing, metadata: {name: a, namespace: default}, spec: {anything: [1]}}", nil},

	{"image-tag: none", pod("", "imagePullPolicy: IfNotPresent, image: r.lan/a, "+fine), []string{"error image-tag " + at + ".image"}},
	{"image-tag: port is no tag", pod("", "imagePullPolicy: IfNotPresent, image: 'r.lan:5000/a', "+fine), []string{"error image-tag " + at + ".image"}},
	{"image-tag: nonsense", pod("", "image: 'R.lan/A B', "+fine), []string{"error image-tag " + at + ".image"}},
	{"image-tag: digest", pod("", "image: 'r.lan/a@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855', "+fine), nil},
	{"image-latest", pod("", "imagePullPolicy: IfNotPresent, image: 'r.lan/a:latest', "+fine), []string{"error image-latest " + at + ".image"}},
	{"image-latest: digest", pod("", "image: 'r.lan/a:latest@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855', "+fine), nil},
	{"image: init container", pod("initContainers: [{name: i, imagePullPolicy: Always, "+image+"}],", image), []string{"error pull-policy Pod default/p spec.initContainers[i].imagePullPolicy"}},

	{"pull-policy: Always", pod("", "imagePullPolicy: Always, "+image), []string{"error pull-policy " + at + ".imagePullPolicy"}},
	{"pull-policy: by default", pod("", "image: r.lan/a, "+fine), []string{"error image-tag " + at + ".image", "error pull-policy " + at + ".imagePullPolicy"}},
	{"pull-policy: IfNotPresent", pod("", "imagePullPolicy: IfNotPresent, "+image), nil},

	{"requests: none", pod("", "image: 'r.lan/a:1'"), []string{"warning requests " + at + ".resources.requests.cpu", "warning requests " + at + ".resources.requests.memory"}},
	{"requests: limits stand in", pod("", "image: 'r.lan/a:1', resources: {limits: {cpu: 1m}, requests: {memory: 1Mi}}"), nil},

	{"budget-both", join(deployment("web", "3", "", ""), budget("minAvailable: 1, maxUnavailable: 1")), []string{"error budget-both PodDisruptionBudget default/b spec"}},
	{"budget-max-unavailable", join(deployment("web", "3", "", ""), budget("maxUnavailable: 1")), []string{"warning budget-max-unavailable PodDisruptionBudget default/b spec.maxUnavailable"}},
	{"budget: fine", join(deployment("web", "3", "", ""), budget("minAvailable: 2")), nil},
	{"budget-blocks-drain: all", join(deployment("web", "1", "", ""), budget("minAvailable: 1")), []string{"error budget-blocks-drain PodDisruptionBudget default/b spec.minAvailable"}},
	{"budget-blocks-drain: percentage", join(deployment("web", "3", "", ""), budget("minAvailable: 67%")), []string{"error budget-blocks-drain PodDisruptionBudget default/b spec.minAvailable"}},
	{"budget-blocks-drain: none may go", join(deployment("web", "3", "", ""), budget("maxUnavailable: 0%")), []string{"error budget-blocks-drain PodDisruptionBudget default/b spec.maxUnavailable", "warning budget-max-unavailable PodDisruptionBudget default/b spec.maxUnavailable"}},
	{"budget-blocks-drain: one node", join(claim("ReadWriteOnce", "local-path"), deployment("web", "2", mount, ""), budget("minAvailable: 1")), []string{"warning budget-blocks-drain PodDisruptionBudget default/b spec.minAvailable"}},
	{"budget-blocks-drain: many nodes", join(claim("ReadWriteMany", "nfs"), deployment("web", "2", mount, ""), budget("minAvailable: 1")), nil},
	{"budget-blocks-drain: zero", join(claim("ReadWriteOnce", "local-path"), deployment("web", "1", mount, ""), budget("minAvailable: 0")), nil},
	{"budget for nobody", join(deployment("other", "3", "", ""), budget("minAvailable: 1")), []string{"error missing PodDisruptionBudget default/b spec.selector"}},

	{"port-range: text", policy("{port: 3000-65535}"), []string{"error port-range NetworkPolicy default/ports spec.ingress[0].ports[0].port"}},
	{"port-range: number as text", policy("{port: '80'}"), []string{"error port-range NetworkPolicy default/ports spec.ingress[0].ports[0].port"}},
	{"port-range: backwards", policy("{port: 3000, endPort: 2000}"), []string{"error port-range NetworkPolicy default/ports spec.ingress[0].ports[0].endPort"}},
	{"port-range: no begin", policy("{endPort: 2000}"), []string{"error port-range NetworkPolicy default/ports spec.ingress[0].ports[0].endPort"}},
	{"port-range: name and end", policy("{port: http, endPort: 2000}"), []string{"error port-range NetworkPolicy default/ports spec.ingress[0].ports[0].endPort"}},
	{"port-range: fine", policy("{port: 3000, endPort: 65535}, {port: http}, {port: 80, endPort: 80}"), nil},

	{"wildcard: verbs", role("apiGroups: [''], resources: [pods], verbs: ['*']"), []string{"error wildcard ClusterRole r rules[0].verbs"}},
	{"wildcard: resources", role("apiGroups: [''], resources: ['*'], verbs: [get]"), []string{"error wildcard ClusterRole r rules[0].resources"}},
	{"wildcard: subresources", role("apiGroups: [''], resources: ['pods/*'], verbs: [get]"), []string{"error wildcard ClusterRole r rules[0].resources"}},
	{"wildcard: groups", role("apiGroups: ['*'], resources: [pods], verbs: [get]"), []string{"error wildcard ClusterRole r rules[0].apiGroups"}},
	{"wildcard: URLs", role("nonResourceURLs: ['*'], verbs: [get]"), []string{"error wildcard ClusterRole r rules[0].nonResourceURLs"}},
	{"wildcard: fine", role("apiGroups: [''], resources: [pods], verbs: [get]"), nil},

	{"missing: namespace", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: nowhere}}", []string{"error missing ConfigMap nowhere/a metadata.namespace"}},
	{"missing: service account", pod("serviceAccountName: a,", image), []string{"error missing Pod default/p spec.serviceAccountName"}},
	{"missing: pull secret", pod("imagePullSecrets: [{name: a}],", image), []string{"error missing Pod default/p spec.imagePullSecrets[0]"}},
	{"missing: envFrom", pod("", image+", envFrom: [{configMapRef: {name: a}}, {secretRef: {name: b}}, {configMapRef: {name: c, optional: true}}]"), []string{"error missing " + at + ".envFrom[0]", "error missing " + at + ".envFrom[1]"}},
	{"missing: env", pod("", image+", env: [{name: A, valueFrom: {configMapKeyRef: {name: a, key: k}}}, {name: B, valueFrom: {secretKeyRef: {name: b, key: k}}}, {name: C, valueFrom: {secretKeyRef: {name: c, key: k, optional: true}}}]"), []string{"error missing " + at + ".env[A]", "error missing " + at + ".env[B]"}},
	{"missing: key", join("{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: default}, data: {k: v}}", pod("", image+", env: [{name: A, valueFrom: {configMapKeyRef: {name: a, key: k}}}, {name: B, valueFrom: {configMapKeyRef: {name: a, key: x}}}]")), []string{"error missing " + at + ".env[B]"}},
	{"missing: volumes", pod("volumes: [{name: a, configMap: {name: a}}, {name: b, secret: {secretName: b}}, {name: c, persistentVolumeClaim: {claimName: c}}, {name: d, projected: {sources: [{configMap: {name: d}}, {secret: {name: d}}, {serviceAccountToken: {path: t}}]}}, {name: e, emptyDir: {}}],", image),
		[]string{"error missing Pod default/p spec.volumes[a]", "error missing Pod default/p spec.volumes[b]", "error missing Pod default/p spec.volumes[c]", "error missing Pod default/p spec.volumes[d]", "error missing Pod default/p spec.volumes[d]"}},
	{"missing: role and subject", "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: b, namespace: default}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}, subjects: [{kind: ServiceAccount, name: a, namespace: default}, {kind: User, name: u, apiGroup: rbac.authorization.k8s.io}]}",
		[]string{"error missing RoleBinding default/b roleRef", "error missing RoleBinding default/b subjects[0]"}},
	{"missing: cluster's own role", "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: b}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}, subjects: [{kind: ServiceAccount, name: default, namespace: default}]}", nil},
	{"missing: pods of a service", join(deployment("other", "1", "", ""), service), []string{"error missing Service default/web spec.selector"}},
	{"missing: port of a service's pods", join(deployment("web", "1", "", ""), service), []string{"error missing Service default/web spec.ports[0].targetPort"}},
	{"missing: service", ingress("", "name: web, port: {name: http}", ""), []string{"error missing Ingress default/i spec.rules[0].http.paths[0].backend"}},
	{"missing: default service", ingress("", "name: web, port: {name: http}", "defaultBackend: {service: {name: none, port: {number: 1}}},"), []string{"error missing Ingress default/i spec.defaultBackend", "error missing Ingress default/i spec.rules[0].http.paths[0].backend"}},
	{"missing: service's port", join(deployment("web", "1", "", "ports: [{name: http, containerPort: 80}]"), service, ingress("", "name: web, port: {number: 81}", "")), []string{"error missing Ingress default/i spec.rules[0].http.paths[0].backend"}},
	{"missing: certificate and middleware", join(deployment("web", "1", "", "ports: [{name: http, containerPort: 80}]"), service, ingress("default-retry@kubernetescrd,other@file", "name: web, port: {number: 80}", "tls: [{secretName: s}],")),
		[]string{"error missing Ingress default/i metadata.annotations[traefik.ingress.kubernetes.io/router.middlewares]", "warning missing Ingress default/i spec.tls[0].secretName"}},
	{"missing: nothing", join(deployment("web", "1", "", "ports: [{name: http, containerPort: 80}]"), service, ingress("default-retry@kubernetescrd", "name: web, port: {name: http}", ""), "{apiVersion: traefik.io/v1alpha1, kind: Middleware, metadata: {name: retry, namespace: default}}"), nil},

	{"grace: preStop alone", pod("terminationGracePeriodSeconds: 5,", sleep), []string{"error grace Pod default/p spec.terminationGracePeriodSeconds"}},
	{"grace: default", pod("", image+", lifecycle: {preStop: {exec: {command: [/bin/sh, -c, sleep 40]}}}"), []string{"error grace Pod default/p spec.terminationGracePeriodSeconds"}},
	{"grace: drain", pod("terminationGracePeriodSeconds: 246,", sleep+", env: [{name: SHUTDOWN_TIMEOUT, value: 120s}]"), []string{"error grace Pod default/p spec.terminationGracePeriodSeconds"}},
	{"grace: drain from a ConfigMap", join("{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: default}, data: {SHUTDOWN_TIMEOUT: 5m}}", pod("terminationGracePeriodSeconds: 300,", sleep+", envFrom: [{configMapRef: {name: a}}]")), []string{"error grace Pod default/p spec.terminationGracePeriodSeconds"}},
	{"grace: no duration", pod("", sleep+", env: [{name: SHUTDOWN_TIMEOUT, value: '120'}]"), []string{"error grace Pod default/p spec.terminationGracePeriodSeconds"}},
	{"grace: fine", pod("terminationGracePeriodSeconds: 247,", sleep+", env: [{name: SHUTDOWN_TIMEOUT, value: 120s}]"), nil},

	{"sqlite-replicas", deployment("liteboxd-api", "2", "", ""), []string{"error sqlite-replicas Deployment default/liteboxd-api spec.replicas"}},
	{"sqlite-replicas: others", deployment("liteboxd-gateway", "2", "", ""), nil},

	{"kubeconfig: secret", join("{apiVersion: v1, kind: Secret, metadata: {name: my-kubeconfig, namespace: default}}", pod("volumes: [{name: v, secret: {secretName: my-kubeconfig}}],", image)), []string{"error kubeconfig Pod default/p spec.volumes[v]"}},
	{"kubeconfig: host", pod("volumes: [{name: v, hostPath: {path: /root/.kube/config}}],", image), []string{"error kubeconfig Pod default/p spec.volumes[v]"}},
	{"kubeconfig: variable", pod("", image+", env: [{name: KUBECONFIG, value: /x}]"), []string{"error kubeconfig " + at + ".env[KUBECONFIG]"}},
	{"kubeconfig: none", pod("volumes: [{name: v, hostPath: {path: /var/log}}],", image), nil},

	{"volume-spread", join(claim("ReadWriteOnce", "longhorn"), deployment("web", "2", mount, "")), []string{"warning volume-spread Deployment default/web spec.template.spec.volumes[v]"}},
	{"volume-spread: two kinds of pods", join(claim("ReadWriteOnce", "longhorn"), deployment("web", "1", mount, ""), deployment("other", "1", mount+near, "")), []string{"warning volume-spread Deployment default/web spec.template.spec.volumes[v]"}},
	{"volume-spread: together", join(claim("ReadWriteOnce", "longhorn"), deployment("web", "2", mount+near, "")), nil},
	{"volume-spread: on a node", join(claim("ReadWriteOnce", "local-path"), deployment("web", "2", mount, "")), nil},
	{"volume-spread: many nodes", join(claim("ReadWriteMany", "nfs"), deployment("web", "2", mount, "")), nil},
	{"volume-spread: one pod", join(claim("ReadWriteOnce", "longhorn"), deployment("web", "1", mount, "")), nil},
}

func TestRules(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, check(t, c.text)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Pods are found in every kind that makes some.
func TestKinds(t *testing.T) {
	const template = "template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, imagePullPolicy: Always, " + image + "}]}}"
	for kind, object := range map[string]string{
		"Deployment":  "apiVersion: apps/v1, spec: {selector: {}, " + template + "}",
		"StatefulSet": "apiVersion: apps/v1, spec: {selector: {}, serviceName: s, " + template + "}",
		"DaemonSet":   "apiVersion: apps/v1, spec: {selector: {}, " + template + "}",
		"ReplicaSet":  "apiVersion: apps/v1, spec: {selector: {}, " + template + "}",
		"Job":         "apiVersion: batch/v1, spec: {" + template + "}",
		"CronJob":     "apiVersion: batch/v1, spec: {schedule: '* * * * *', jobTemplate: {spec: {" + template + "}}}",
	} {
		t.Run(kind, func(t *testing.T) {
			got := check(t, "{kind: "+kind+", metadata: {name: a, namespace: default}, "+object+"}")
			if len(got) != 1 || !strings.HasPrefix(got[0], "error pull-policy "+kind+" default/a spec.") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestKnown(t *testing.T) {
	text := join(pod("serviceAccountName: a,", image), "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: monitoring}}")
	if got := check(t, text, "ServiceAccount default/a", "Namespace monitoring"); len(got) > 0 {
		t.Errorf("got %q", got)
	}
	if got := check(t, text, "ServiceAccount other/a"); len(got) != 2 {
		t.Errorf("got %q", got)
	}
}

// The project's own objects break no rule, whatever the parameters.
func TestOwnBases(t *testing.T) {
	for name, change := range map[string]func(*manifests.Parameters){
		"default":    func(*manifests.Parameters) {},
		"one host":   func(p *manifests.Parameters) { p.Host, p.GatewayHost = "a.lan", "a.lan" },
		"renamed":    func(p *manifests.Parameters) { p.SystemNamespace, p.SandboxNamespace = "control", "boxes" },
		"longhorn":   func(p *manifests.Parameters) { p.StorageClass = "longhorn" },
		"one":        func(p *manifests.Parameters) { p.GatewayReplicas = 1 },
		"no sandbox": func(p *manifests.Parameters) { p.SandboxResources = false },
	} {
		t.Run(name, func(t *testing.T) {
			p := manifests.Parameters{
				Images:           manifests.Images{API: "r.lan/l/api:1", Gateway: "r.lan/l/gateway:1", Web: "r.lan/l/web:1", Helper: "r.lan/l/helper:1"},
				SandboxResources: true, SystemNamespace: "liteboxd-system",
			}
			change(&p)
			r, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: p})
			if err != nil {
				t.Fatal(err)
			}
			known := manifests.MadeByInstaller(p.SystemNamespace)
			if got := lint.Check(r.Objects(), lint.Options{Known: known}); len(got) > 0 {
				t.Errorf("got %+v", got)
			}
			// Without what the installer makes, the API's three variables are missing: the rules do look.
			if got := lint.Check(r.Objects(), lint.Options{}); len(got) != 3 {
				t.Errorf("without %q: %+v", known, got)
			}
		})
	}
}

// Every rule is in the user's reference and in the table above, and no other is.
func TestRulesAreDocumented(t *testing.T) {
	var rules []string
	for _, file := range []string{"lint.go", "pods.go", "objects.go"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:c\.found|Finding\{)\("([a-z-]+)"`).FindAllStringSubmatch(string(data), -1) {
			rules = append(rules, m[1])
		}
	}
	slices.Sort(rules)
	rules = slices.Compact(rules)
	reference, err := os.ReadFile("../../docs/manifests.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (?:error|warning)").FindAllStringSubmatch(string(reference), -1) {
		documented = append(documented, m[1])
	}
	slices.Sort(documented)
	documented = slices.Compact(documented)
	if diff := cmp.Diff(rules, documented); diff != "" {
		t.Errorf("rules (-in the code +in docs/manifests.md):\n%s", diff)
	}
	for _, rule := range rules {
		if !slices.ContainsFunc(cases, func(c struct {
			name string
			text string
			want []string
		}) bool {
			return slices.ContainsFunc(c.want, func(w string) bool { return strings.Contains(w, " "+rule+" ") })
		}) {
			t.Errorf("no case breaks %s", rule)
		}
	}
}
