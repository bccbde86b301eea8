package explain

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/liteboxd/boxlift/install/kube"
	"github.com/liteboxd/boxlift/test/kubetest"
)

// answering is a cluster whose API server has a few answers.
func answering(t *testing.T, handler http.HandlerFunc) *kube.Cluster {
	t.Helper()
	api := kubetest.NewAPI(t, handler)
	c, err := kube.Connect(kube.Options{Name: "pure", Kubeconfig: api.Kubeconfig, Dial: api.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestTroubles(t *testing.T) {
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	ended := func(code int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
	}
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init", Image: "i:1"}},
			Containers:     []corev1.Container{{Name: "pull", Image: "p:1"}, {Name: "loop", Image: "l:1"}, {Name: "soon", Image: "s:1"}, {Name: "fine", Image: "f:1"}, {Name: "again", Image: "a:1"}, {Name: "late", Image: "t:1"}},
		},
		Status: corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", State: ended(3, "Error")}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "pull", State: waiting("ImagePullBackOff", `Back-off pulling image "p:1"`)},
				{Name: "loop", State: waiting("CrashLoopBackOff", "back-off"), LastTerminationState: ended(137, "OOMKilled"), RestartCount: 4},
				{Name: "soon", State: waiting("ContainerCreating", "")},
				{Name: "fine", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Ready: true},
				{Name: "again", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: ended(1, "Error"), RestartCount: 1},
				{Name: "late", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}},
			},
		},
	}
	var got []string
	for _, trouble := range Troubles(pod) {
		got = append(got, fmt.Sprint(trouble.Crashes, trouble.Unready, " ", trouble.Text))
	}
	want := []string{
		"true false container init (image i:1) has ended: exit code 3",
		`false false container pull (image p:1) waits: ImagePullBackOff: Back-off pulling image "p:1"`,
		"true false container loop (image l:1) crashes: CrashLoopBackOff: exit code 137 (OOMKilled), started 4 times again",
		"true false container again (image a:1) runs again after it had ended: exit code 1, started 1 times again",
		"false true container late (image t:1) runs for 0s and is not ready",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("troubles (-want +got):\n%s", diff)
	}
}

func TestEventTexts(t *testing.T) {
	now := time.Now()
	event := func(kind, reason, message string, ago time.Duration) corev1.Event {
		return corev1.Event{Type: kind, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(now.Add(-ago))}
	}
	var events []corev1.Event
	for i := range 4 {
		events = append(events, event("Normal", fmt.Sprint("N", i), "n", time.Duration(i)*time.Hour))
	}
	events = append(events, event("Warning", "Old", "w", 9*time.Hour), event("Warning", "New", "w", 8*time.Hour),
		event("Warning", "New", "w", 10*time.Hour))
	sortEvents(events)
	var reasons []string
	for _, text := range eventTexts(events) {
		reasons = append(reasons, strings.Fields(text)[2])
	}
	if diff := cmp.Diff([]string{"New", "Old", "N0", "N1", "N2"}, reasons); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// Whatever an object says, an explanation stays small and does nothing to a terminal.
func TestExplanationIsBounded(t *testing.T) {
	hostile := strings.Repeat("\x1b[2J\u202e evil\r\n", 1000)
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/pods"):
			var list corev1.PodList
			for i := range 5 {
				p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Status: corev1.PodStatus{Message: hostile}}
				for range 40 {
					p.Status.Conditions = append(p.Status.Conditions,
						corev1.PodCondition{Type: "X", Status: "False", Message: hostile})
				}
				list.Items = append(list.Items, p)
			}
			kubetest.Answer(t, w, "PodList", list)
		case strings.HasSuffix(r.URL.Path, "/events"):
			kubetest.Answer(t, w, "EventList", corev1.EventList{Items: []corev1.Event{{Type: hostile, Reason: hostile, Message: hostile}}})
		case strings.HasSuffix(r.URL.Path, "/nodes"):
			kubetest.Answer(t, w, "NodeList", corev1.NodeList{})
		default:
			kubetest.Answer(t, w, "DaemonSet", appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{}}})
		}
	})
	text := Object(kubetest.Within(t), c, kube.Object{Kind: kube.DaemonSet, Namespace: "default", Name: "x"})
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) != explainLines {
		t.Errorf("%d lines, want %d", len(lines), explainLines)
	}
	for _, line := range lines {
		if n := len([]rune(strings.TrimLeft(line, " "))); n > 400 {
			t.Errorf("a line of %d characters", n)
		}
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) || r == '\u202e' }) {
			t.Errorf("not printable: %q", line)
		}
	}
}

// An image that nobody has is given up for after a while, a pod's other troubles are not.
func TestSetbackOfImages(t *testing.T) {
	c := &kube.Cluster{}
	for reason, want := range map[string]time.Duration{
		"ImagePullBackOff": imagePatience, "ErrImagePull": imagePatience, "InvalidImageName": imagePatience, "CreateContainerError": 0,
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Status: corev1.PodStatus{Phase: corev1.PodPending,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}}}
		s := setbackOf(t.Context(), c, p)
		if s == nil || s.Patience != want || !strings.Contains(s.Text, reason) {
			t.Errorf("%s: %+v, want %v", reason, s, want)
		}
	}
}

// What people read while they wait does not change each second.
func TestAge(t *testing.T) {
	for past, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 9 * time.Second: "0s", 14 * time.Second: "10s", 59 * time.Second: "50s",
		61 * time.Second: "1m0s", 3*time.Hour + 30*time.Second: "3h0m0s",
	} {
		if got := age(time.Now().Add(-past)); got != want {
			t.Errorf("%v: %s, want %s", past, got, want)
		}
	}
}
