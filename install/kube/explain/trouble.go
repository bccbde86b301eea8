package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Trouble is a container that does not run as it should.
type Trouble struct {
	Container corev1.ContainerStatus
	Text      string // what it is, not fit for a terminal yet: see kube.Brief
	Crashes   bool
	Unready   bool // it runs, and its probe fails
}

// Troubles looks at the containers in the order in which they are started.
func Troubles(p *corev1.Pod) []Trouble {
	images := map[string]string{}
	for _, container := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		images[container.Name] = container.Image
	}
	var all []Trouble
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		t := Trouble{Container: s}
		about := fmt.Sprintf("container %s (image %s)", s.Name, images[s.Name])
		waiting, ended, before := s.State.Waiting, s.State.Terminated, s.LastTerminationState.Terminated
		switch {
		case waiting != nil && before != nil:
			t.Crashes = true
			t.Text = fmt.Sprintf("%s crashes: %s: %s, started %d times again",
				about, waiting.Reason, exit(before), s.RestartCount)
		case waiting != nil && waiting.Reason != "PodInitializing" && waiting.Reason != "ContainerCreating":
			t.Text = fmt.Sprintf("%s waits: %s: %s", about, waiting.Reason, waiting.Message)
		case ended != nil && ended.ExitCode != 0:
			t.Crashes = true
			t.Text = fmt.Sprintf("%s has ended: %s", about, exit(ended))
		case s.State.Running != nil && !s.Ready && before != nil:
			t.Crashes = true
			t.Text = fmt.Sprintf("%s runs again after it had ended: %s, started %d times again",
				about, exit(before), s.RestartCount)
		case s.State.Running != nil && !s.Ready && p.DeletionTimestamp == nil:
			t.Unready = true
			t.Text = fmt.Sprintf("%s runs for %s and is not ready", about, age(s.State.Running.StartedAt.Time))
		default:
			continue
		}
		all = append(all, t)
	}
	return all
}

func exit(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Reason != "" && t.Reason != "Error" {
		text += " (" + t.Reason + ")"
	}
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}
