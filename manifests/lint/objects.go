package lint

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

type labelSet = labels.Set

// ofEveryCluster exists without anybody making it.
var ofEveryCluster = lazyregexp.New(`^(Namespace (default|kube-.*)|` +
	`ClusterRole (admin|cluster-admin|edit|view|system:.*)|ServiceAccount .*/default|` +
	`ConfigMap .*/kube-root-ca\.crt|ServiceAccount kube-.*|Service default/kubernetes)$`)

func (c *check) there(kind, namespace, name string) bool {
	full := kind + " " + name
	if namespace != "" {
		full = kind + " " + namespace + "/" + name
	}
	return c.exists[full] || ofEveryCluster.MatchString(full)
}

func (c *check) mustExist(path, kind, namespace, name string) {
	if !c.there(kind, namespace, name) {
		c.missing(Error, path, kind, namespace, name)
	}
}

func (c *check) missing(severity Severity, path, kind, namespace, name string) {
	full := name
	if namespace != "" {
		full = namespace + "/" + name
	}
	c.found("missing", severity, path, fmt.Sprintf("%s %s does not exist", kind, full),
		"correct the name, or add the object")
}

func (c *check) namespaces(it *item) {
	if namespace := it.namespace(); namespace != "" {
		c.mustExist("metadata.namespace", "Namespace", "", namespace)
	}
}

func (c *check) disruptionBudget(it *item) {
	budget, ok := it.typed.(*policyv1.PodDisruptionBudget)
	if !ok {
		return
	}
	least, most := budget.Spec.MinAvailable, budget.Spec.MaxUnavailable
	switch {
	case least != nil && most != nil:
		c.found("budget-both", Error, "spec", "minAvailable and maxUnavailable exclude each other",
			"keep minAvailable only")
	case most != nil:
		c.found("budget-max-unavailable", Warning, "spec.maxUnavailable",
			"it counts pods that nobody manages as if they could not be missed", "use minAvailable")
	}
	selected := c.selected(it.namespace(), budget.Spec.Selector)
	if len(selected) == 0 {
		c.found("missing", Error, "spec.selector", "no pods of any object have these labels",
			"write the labels of the pods that it is for")
		return
	}
	c.blocked(it, budget, selected)
}

// blocked finds budgets that refuse to have a node emptied.
func (c *check) blocked(it *item, budget *policyv1.PodDisruptionBudget, selected []*item) {
	pods := 0
	for _, other := range selected {
		pods += int(other.replicas)
	}
	if least := budget.Spec.MinAvailable; least != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(least, pods, true)
		switch {
		case err != nil || n <= 0:
		case n >= pods:
			c.found("budget-blocks-drain", Error, "spec.minAvailable",
				fmt.Sprintf("%s of %d pods must stay: none may ever be evicted, and draining a node never ends",
					least.String(), pods), fmt.Sprintf("write at most %d", pods-1))
		case slices.ContainsFunc(selected, c.bound):
			c.found("budget-blocks-drain", Warning, "spec.minAvailable", "the pods share a volume that one node "+
				"holds: an evicted one cannot come up elsewhere while the others are there, so that draining this "+
				"node never ends", "write minAvailable: 0")
		}
	}
	if most := budget.Spec.MaxUnavailable; most != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(most, pods, true); err == nil && n <= 0 {
			c.found("budget-blocks-drain", Error, "spec.maxUnavailable", "no pod may ever be evicted, and draining a "+
				"node never ends", "write minAvailable with less than the number of pods")
		}
	}
}

// bound reports whether pods use a volume that only one node can have.
func (c *check) bound(it *item) bool {
	return slices.ContainsFunc(it.pods.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && c.oneNode(it.namespace(), v.PersistentVolumeClaim.ClaimName)
	})
}

func (c *check) networkPolicy(it *item) {
	policy, ok := it.typed.(*networkingv1.NetworkPolicy)
	if !ok {
		return
	}
	for i, rule := range policy.Spec.Ingress {
		c.ports(fmt.Sprintf("spec.ingress[%d]", i), rule.Ports)
	}
	for i, rule := range policy.Spec.Egress {
		c.ports(fmt.Sprintf("spec.egress[%d]", i), rule.Ports)
	}
}

var (
	digits    = lazyregexp.New(`^\d+$`)
	portRange = lazyregexp.New(`^(\d+)\s*[-:]\s*(\d+)$`)
)

func (c *check) ports(at string, ports []networkingv1.NetworkPolicyPort) {
	for i, p := range ports {
		at := fmt.Sprintf("%s.ports[%d]", at, i)
		text := p.Port != nil && p.Port.Type == intstr.String
		switch {
		case text && portRange.MatchString(p.Port.StrVal):
			m := portRange.FindStringSubmatch(p.Port.StrVal)
			c.found("port-range", Error, at+".port", fmt.Sprintf("%q is taken for a port's name, not for a range",
				p.Port.StrVal), fmt.Sprintf("write port: %s and endPort: %s", m[1], m[2]))
		case text && digits.MatchString(p.Port.StrVal):
			c.found("port-range", Error, at+".port", fmt.Sprintf("%q is text, which is taken for a port's name",
				p.Port.StrVal), "leave out the quotes")
		case p.EndPort != nil && (p.Port == nil || text):
			c.found("port-range", Error, at+".endPort", "a range begins with a port's number",
				"write the first port's number as port")
		case p.EndPort != nil && *p.EndPort < p.Port.IntVal:
			c.found("port-range", Error, at+".endPort", fmt.Sprintf("the range ends (%d) before it begins (%d)",
				*p.EndPort, p.Port.IntVal), "write the lower number as port and the higher one as endPort")
		}
	}
}

func (c *check) roles(it *item) {
	var rules []rbacv1.PolicyRule
	switch o := it.typed.(type) {
	case *rbacv1.Role:
		rules = o.Rules
	case *rbacv1.ClusterRole:
		rules = o.Rules
	}
	for i, rule := range rules {
		for _, list := range []struct {
			field  string
			values []string
		}{{"apiGroups", rule.APIGroups}, {"resources", rule.Resources}, {"verbs", rule.Verbs},
			{"nonResourceURLs", rule.NonResourceURLs}} {
			if slices.ContainsFunc(list.values, func(v string) bool { return strings.Contains(v, "*") }) {
				c.found("wildcard", Error, fmt.Sprintf("rules[%d].%s", i, list.field), "* grants what nobody has "+
					"thought of, and what comes with later versions", "name what is needed, one by one")
			}
		}
	}
}

func (c *check) references(it *item) {
	switch o := it.typed.(type) {
	case *rbacv1.RoleBinding:
		c.binding(it.namespace(), o.RoleRef, o.Subjects)
	case *rbacv1.ClusterRoleBinding:
		c.binding("", o.RoleRef, o.Subjects)
	case *corev1.Service:
		c.service(o)
	case *networkingv1.Ingress:
		c.ingress(o)
	}
}

func (c *check) binding(namespace string, role rbacv1.RoleRef, subjects []rbacv1.Subject) {
	if role.Kind == "ClusterRole" {
		namespace = ""
	}
	c.mustExist("roleRef", role.Kind, namespace, role.Name)
	for i, subject := range subjects {
		if subject.Kind == rbacv1.ServiceAccountKind {
			c.mustExist(fmt.Sprintf("subjects[%d]", i), subject.Kind, subject.Namespace, subject.Name)
		}
	}
}

func (c *check) service(service *corev1.Service) {
	if len(service.Spec.Selector) == 0 {
		return // its endpoints are made by somebody else
	}
	selected := c.selected(service.Namespace, &metav1.LabelSelector{MatchLabels: service.Spec.Selector})
	if len(selected) == 0 {
		c.found("missing", Error, "spec.selector", "no pods of any object have these labels",
			"write the labels of the pods that it is for")
		return
	}
	for i, port := range service.Spec.Ports {
		if name := port.TargetPort.StrVal; name != "" && !slices.ContainsFunc(selected,
			func(it *item) bool { return it.hasPort(name) }) {
			c.found("missing", Error, fmt.Sprintf("spec.ports[%d].targetPort", i),
				fmt.Sprintf("no container of its pods has a port called %s", name),
				"write the port's number, or name the container's port")
		}
	}
}

func (it *item) hasPort(name string) bool {
	return slices.ContainsFunc(it.pods.Spec.Containers, func(container corev1.Container) bool {
		return slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
	})
}

func (c *check) ingress(ingress *networkingv1.Ingress) {
	if backend := ingress.Spec.DefaultBackend; backend != nil {
		c.backend(ingress.Namespace, "spec.defaultBackend", backend)
	}
	for i, rule := range ingress.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for j, path := range rule.HTTP.Paths {
			c.backend(ingress.Namespace, fmt.Sprintf("spec.rules[%d].http.paths[%d].backend", i, j), &path.Backend)
		}
	}
	for i, tls := range ingress.Spec.TLS {
		// Certificates are made by hand or by a controller; without one, Traefik shows its own.
		if tls.SecretName != "" && !c.there("Secret", ingress.Namespace, tls.SecretName) {
			c.missing(Warning, fmt.Sprintf("spec.tls[%d].secretName", i), "Secret", ingress.Namespace, tls.SecretName)
		}
	}
	c.middlewares(ingress)
}

func (c *check) backend(namespace, at string, backend *networkingv1.IngressBackend) {
	if backend.Service == nil {
		return
	}
	c.mustExist(at, "Service", namespace, backend.Service.Name)
	for _, it := range c.items {
		service, ok := it.typed.(*corev1.Service)
		if !ok || service.Namespace != namespace || service.Name != backend.Service.Name {
			continue
		}
		want := backend.Service.Port
		if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
			return want.Name != "" && p.Name == want.Name || want.Name == "" && p.Port == want.Number
		}) {
			c.found("missing", Error, at, fmt.Sprintf("Service %s/%s has no such port", namespace, service.Name),
				"write a port that it has")
		}
	}
}

const middlewares = "traefik.ingress.kubernetes.io/router.middlewares"

// middlewares looks for Traefik's middlewares, whose names begin with their namespace.
func (c *check) middlewares(ingress *networkingv1.Ingress) {
	for _, one := range strings.Split(ingress.Annotations[middlewares], ",") {
		full, provider, _ := strings.Cut(strings.TrimSpace(one), "@")
		if full == "" || provider != "kubernetescrd" {
			continue
		}
		if !slices.ContainsFunc(c.items, func(it *item) bool {
			return it.raw.GetKind() == "Middleware" && it.namespace()+"-"+it.raw.GetName() == full
		}) {
			c.found("missing", Error, "metadata.annotations["+middlewares+"]",
				fmt.Sprintf("there is no Middleware whose namespace and name give %s: Traefik would answer 404 to "+
					"everything", full), "write <namespace>-<name>@kubernetescrd")
		}
	}
}
