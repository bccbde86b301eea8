package drain

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestForbids(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	budget := func(name, app string, allowed int32) policyv1.PodDisruptionBudget {
		return policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 1, DesiredHealthy: 2}}
	}
	for name, c := range map[string]struct {
		budgets []policyv1.PodDisruptionBudget
		want    string
	}{
		"none":          {nil, ""},
		"another's":     {[]policyv1.PodDisruptionBudget{budget("b", "db", 0)}, ""},
		"allows":        {[]policyv1.PodDisruptionBudget{budget("b", "web", 1)}, ""},
		"forbids":       {[]policyv1.PodDisruptionBudget{budget("b", "web", 0)}, "PodDisruptionBudget b does not let go: it allows 0 disruptions, with 1 pods healthy and 2 needed"},
		"more than one": {[]policyv1.PodDisruptionBudget{budget("b", "web", 1), budget("c", "web", 1)}, "more than one PodDisruptionBudget covers, which Kubernetes does not support: b, c"},
	} {
		if got := forbids(c.budgets, pod); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
