package diagnosis

import (
	"fmt"
	"slices"
	"strings"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// ofPod is evidence of a pod. Pods that have the same trouble on the same host are one finding.
func ofPod(o *Observation, p Pod, line string) Evidence {
	return Evidence{Host: o.hostOf(p.Node), Line: "pod " + p.Namespace + "/" + p.Name + ": " + line,
		Values: map[string]string{"NODE": p.Node, "NAMESPACE": p.Namespace, "POD": p.Name}}
}

// evicted finds pods that a kubelet has ended because its node lacked something.
func evicted(o *Observation) []Evidence {
	var all []Evidence
	for _, p := range o.Pods {
		if p.Reason == "Evicted" {
			all = append(all, ofPod(o, p, "Evicted: "+p.Message))
		}
	}
	for _, e := range o.Events {
		if e.Reason == "Evicted" && e.Kind == "Pod" {
			all = append(all, Evidence{Line: fmt.Sprintf("pod %s/%s: Evicted: %s", e.Namespace, e.Name, e.Message)})
		}
	}
	return all
}

// noVolume is how the scheduler says that a pod waits for a volume.
var noVolume = lazyregexp.New(`unbound immediate PersistentVolumeClaims|persistentvolumeclaim "[^"]*" not found|` +
	`volume node affinity conflict|binding volumes`)

func unschedulable(o *Observation) []Evidence { return unscheduled(o, false) }

func unscheduled(o *Observation, forVolume bool) []Evidence {
	var all []Evidence
	for _, p := range o.Pods {
		if p.Unscheduled != "" && noVolume.MatchString(p.Unscheduled) == forVolume {
			all = append(all, ofPod(o, p, p.Unscheduled))
		}
	}
	return all
}

// volumeEvents are the reasons of events about volumes that do not come to pods.
var volumeEvents = []string{"ProvisioningFailed", "FailedMount", "FailedAttachVolume", "FailedBinding",
	"VolumeFailedDelete"}

func volumeLost(o *Observation) []Evidence {
	all := unscheduled(o, true)
	for _, e := range o.Events {
		if slices.Contains(volumeEvents, e.Reason) {
			all = append(all, Evidence{Line: fmt.Sprintf("%s %s/%s: %s: %s", e.Kind, e.Namespace, e.Name, e.Reason,
				e.Message)})
		}
	}
	return all
}

// outOfMemory finds containers that the kernel has ended at their limit.
func outOfMemory(o *Observation) []Evidence {
	return containers(o, func(c Container) bool { return c.Ended == "OOMKilled" }, func(c Container) string {
		return fmt.Sprintf("container %s was ended by the kernel (OOMKilled), and started %d times again", c.Name,
			c.Restarts)
	})
}

func crashing(o *Observation) []Evidence {
	return containers(o, func(c Container) bool { return c.Waiting == "CrashLoopBackOff" && c.Ended != "OOMKilled" },
		func(c Container) string {
			return fmt.Sprintf("container %s ends with exit code %d (%s), and was started %d times again", c.Name,
				c.Code, c.Ended, c.Restarts)
		})
}

// containers are those for which which holds. Each pod's are a finding of their own.
func containers(o *Observation, which func(Container) bool, text func(Container) string) []Evidence {
	var all []Evidence
	for _, p := range o.Pods {
		for _, c := range p.Containers {
			if which(c) {
				e := ofPod(o, p, text(c))
				e.Subject = "pod " + p.Namespace + "/" + p.Name
				e.Values["CONTAINER"] = c.Name
				all = append(all, e)
			}
		}
	}
	return all
}

// pull is why an image does not come.
type pull int

const (
	notPulled   pull = iota // nobody has it, or nobody was asked who could have it
	noRegistry              // a registry of the site does not answer
	pullRefused             // a registry answers, and does not let the node in, or is not believed
)

// How containerd says why an image does not come (v1.7 and v2: core/remotes/docker), and the kubelet why it does not
// even ask.
var (
	pullWaits = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName",
		"RegistryUnavailable"}
	refusal = lazyregexp.New(`(?i)unauthorized|authorization failed|\b40[13]\b|access denied|` +
		`insufficient_scope|x509:`)
	connection = lazyregexp.New(`dial tcp|i/o timeout|no such host|connection re(fused|set)|` +
		`TLS handshake timeout|\b50[0-9]\b|EOF`)
	// sandboxImage is the image that every pod needs beside its own.
	sandboxImage = lazyregexp.New(`failed to (get|pull) (the )?sandbox image "?([^"\s]+)`)
)

// reasonOf classifies what was said of an image that does not come. A registry that is not the site's is none that the
// node was to ask: k3s falls back to the internet's when its mirrors do not have the image.
func (o *Observation) reasonOf(said string) pull {
	ours := slices.ContainsFunc(o.Registries, func(r string) bool { return strings.Contains(said, r) })
	switch {
	case ours && connection.MatchString(said):
		return noRegistry
	case ours && refusal.MatchString(said):
		return pullRefused
	}
	return notPulled
}

// pulls finds images that do not come, for a reason.
func pulls(reason pull) look {
	return func(o *Observation) []Evidence {
		var all []Evidence
		for _, p := range o.Pods {
			for _, c := range p.Containers {
				if !slices.Contains(pullWaits, c.Waiting) {
					continue
				}
				said := c.Message
				for _, e := range o.Events { // the newest attempt; a back-off by itself does not say why
					if e.Kind == "Pod" && e.Namespace == p.Namespace && e.Name == p.Name && e.Reason == "Failed" &&
						strings.Contains(e.Message, "pull") {
						said += "; " + e.Message
						break
					}
				}
				if o.reasonOf(said) != reason {
					continue
				}
				e := ofPod(o, p, fmt.Sprintf("%s: %s: %s", c.Waiting, c.Image, said))
				e.Subject = "image " + c.Image
				e.Values["IMAGE"] = c.Image
				all = append(all, e)
			}
		}
		for _, e := range o.Events {
			m := sandboxImage.FindStringSubmatch(e.Message)
			if e.Reason == "FailedCreatePodSandBox" && m != nil && o.reasonOf(e.Message) == reason {
				all = append(all, Evidence{Subject: "image " + m[3], Values: map[string]string{"IMAGE": m[3]},
					Line: fmt.Sprintf("pod %s/%s: %s", e.Namespace, e.Name, e.Message)})
			}
		}
		return all
	}
}
