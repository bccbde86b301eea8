package kube

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// LastSeen is when an event was seen for the last time. Clients note that in one of three places: the older form of
// events has lastTimestamp, the newer one eventTime, and series once it has come again
// (https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/).
func LastSeen(e corev1.Event) time.Time {
	t := e.LastTimestamp.Time
	if e.EventTime.After(t) {
		t = e.EventTime.Time
	}
	if e.Series != nil && e.Series.LastObservedTime.After(t) {
		t = e.Series.LastObservedTime.Time
	}
	return t
}
