package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/liteboxd/boxlift/install/kube"
)

// eventsOf are an object's, the newest warnings first.
func eventsOf(ctx context.Context, c *kube.Cluster, o kube.Object) ([]corev1.Event, error) {
	namespace := o.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where those of nodes are
	}
	list, err := c.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": o.Kind, "involvedObject.name": o.Name}.String(),
		Limit:         500,
	})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	sortEvents(list.Items)
	return list.Items, nil
}

// eventCount is how often an event was seen.
func eventCount(e corev1.Event) int32 {
	if e.Series != nil {
		return e.Series.Count
	}
	return e.Count
}

// sortEvents puts warnings before others, and newer ones before older ones.
func sortEvents(events []corev1.Event) {
	slices.SortStableFunc(events, func(a, b corev1.Event) int {
		if a.Type != b.Type && (a.Type == corev1.EventTypeWarning || b.Type == corev1.EventTypeWarning) {
			return cmp.Compare(b.Type, a.Type) // "Warning" is greater than "Normal"
		}
		return kube.LastSeen(b).Compare(kube.LastSeen(a))
	})
}

// eventTexts are the first events that say something of their own.
func eventTexts(events []corev1.Event) []string {
	var texts []string
	told := map[string]bool{}
	for _, event := range events {
		if len(texts) == explainEvents {
			break
		}
		if key := event.Reason + event.Message; !told[key] {
			told[key] = true
			texts = append(texts, fmt.Sprintf("event %s %s (%s ago): %s",
				event.Type, event.Reason, age(kube.LastSeen(event)), event.Message))
		}
	}
	return texts
}

// age is how long ago a time was, coarse: who waits is told again only when something has changed.
func age(t time.Time) string {
	past := max(0, time.Since(t))
	if past < time.Minute {
		return past.Truncate(10 * time.Second).String()
	}
	return past.Truncate(time.Minute).String()
}
