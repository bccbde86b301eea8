package lint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/manifests"
)

func (c *check) workload(it *item) {
	spec := &it.pods.Spec
	for _, list := range []struct {
		field      string
		containers []corev1.Container
	}{{"initContainers", spec.InitContainers}, {"containers", spec.Containers}} {
		for _, container := range list.containers {
			at := fmt.Sprintf("%s.%s[%s]", it.at, list.field, container.Name)
			c.image(at, container)
			c.requests(at, container)
			c.environment(it, at, container)
		}
	}
	c.grace(it)
	c.volumes(it)
	c.sqlite(it)
	if account := spec.ServiceAccountName; account != "" && account != "default" {
		c.mustExist(it.at+".serviceAccountName", "ServiceAccount", it.namespace(), account)
	}
	for i, secret := range spec.ImagePullSecrets {
		c.mustExist(fmt.Sprintf("%s.imagePullSecrets[%d]", it.at, i), "Secret", it.namespace(), secret.Name)
	}
}

func (c *check) image(at string, container corev1.Container) {
	moving := false
	ref, err := name.ParseReference(container.Image)
	tag, isTag := ref.(name.Tag)
	switch {
	case err != nil:
		c.found("image-tag", Error, at+".image", fmt.Sprintf("%q is not an image's name", container.Image),
			"write registry/repository:tag")
	case isTag && !strings.HasSuffix(container.Image, ":"+tag.TagStr()):
		moving = true
		c.found("image-tag", Error, at+".image", container.Image+" has neither tag nor digest", "write the version: "+
			container.Image+":VERSION")
	case isTag && tag.TagStr() == "latest":
		moving = true
		c.found("image-latest", Error, at+".image", container.Image+" is another image tomorrow",
			"write the version instead of latest")
	}
	switch {
	case container.ImagePullPolicy == corev1.PullAlways:
		c.found("pull-policy", Error, at+".imagePullPolicy",
			"Always asks a registry at every start, and there may be none", "write imagePullPolicy: IfNotPresent")
	case container.ImagePullPolicy == "" && moving:
		c.found("pull-policy", Error, at+".imagePullPolicy", "without a fixed tag it is Always by default, which "+
			"asks a registry at every start", "write imagePullPolicy: IfNotPresent")
	}
}

func (c *check) requests(at string, container corev1.Container) {
	for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		_, requested := container.Resources.Requests[resource]
		_, limited := container.Resources.Limits[resource] // is the request where there is none
		if !requested && !limited {
			c.found("requests", Warning, at+".resources.requests."+string(resource), "no "+string(resource)+
				" is set aside for it: it goes first when the node is full", "write how much it needs at least")
		}
	}
}

func (c *check) environment(it *item, at string, container corev1.Container) {
	for i, source := range container.EnvFrom {
		at := fmt.Sprintf("%s.envFrom[%d]", at, i)
		if ref := source.ConfigMapRef; ref != nil && !isTrue(ref.Optional) {
			c.mustExist(at, "ConfigMap", it.namespace(), ref.Name)
		}
		if ref := source.SecretRef; ref != nil && !isTrue(ref.Optional) {
			c.mustExist(at, "Secret", it.namespace(), ref.Name)
		}
	}
	for _, variable := range container.Env {
		at := fmt.Sprintf("%s.env[%s]", at, variable.Name)
		if variable.Name == "KUBECONFIG" {
			c.found("kubeconfig", Error, at, "the program is given a kubeconfig file",
				"take it out: in the cluster it uses its service account")
		}
		if variable.ValueFrom == nil {
			continue
		}
		if ref := variable.ValueFrom.ConfigMapKeyRef; ref != nil && !isTrue(ref.Optional) {
			c.mustHold(at, it.namespace(), ref.Name, ref.Key)
		}
		if ref := variable.ValueFrom.SecretKeyRef; ref != nil && !isTrue(ref.Optional) {
			c.mustExist(at, "Secret", it.namespace(), ref.Name)
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

// mustHold looks for a key of a ConfigMap.
func (c *check) mustHold(at, namespace, config, key string) {
	c.mustExist(at, "ConfigMap", namespace, config)
	for _, it := range c.items {
		if object, ok := it.typed.(*corev1.ConfigMap); ok && object.Namespace == namespace && object.Name == config {
			_, text := object.Data[key]
			_, binary := object.BinaryData[key]
			if !text && !binary {
				c.found("missing", Error, at, fmt.Sprintf("ConfigMap %s/%s has no key %s", namespace, config, key),
					"add the key, or write one that it has")
			}
		}
	}
}

// grace compares the time that pods are given to leave with what they do in it.
func (c *check) grace(it *item) {
	grace, at := int64(30), it.at+".terminationGracePeriodSeconds" // 30 is Kubernetes' default
	if seconds := it.pods.Spec.TerminationGracePeriodSeconds; seconds != nil {
		grace = *seconds
	}
	for _, container := range it.pods.Spec.Containers {
		before := preStop(container)
		drain, err := c.drain(it, container)
		switch {
		case err != nil:
			c.found("grace", Error, at, err.Error(), "write a duration such as 120s")
		case before > 0 && drain > 0 && grace < before+drain:
			c.found("grace", Error, at, fmt.Sprintf("%d s are less than what %s may take to leave: %d s of preStop, "+
				"and %d s for its connections (2 s and twice SHUTDOWN_TIMEOUT)", grace, container.Name, before, drain),
				fmt.Sprintf("write at least %d, or shorten SHUTDOWN_TIMEOUT", before+drain))
		case before > 0 && grace <= before:
			c.found("grace", Error, at, fmt.Sprintf("%d s are over when preStop of %s is (%d s): it is killed "+
				"without having been asked to leave", grace, container.Name, before),
				fmt.Sprintf("write more than %d", before))
		}
	}
}

var sleeps = lazyregexp.New(`\bsleep (\d{1,6})\b`)

// preStop is how many seconds a container sleeps before it is asked to leave; 0 when that
// cannot be told.
func preStop(container corev1.Container) int64 {
	if container.Lifecycle == nil || container.Lifecycle.PreStop == nil {
		return 0
	}
	hook := container.Lifecycle.PreStop
	if hook.Sleep != nil {
		return hook.Sleep.Seconds
	}
	if hook.Exec != nil {
		if m := sleeps.FindStringSubmatch(strings.Join(hook.Exec.Command, " ")); m != nil {
			seconds, _ := strconv.ParseInt(m[1], 10, 64)
			return seconds
		}
	}
	return 0
}

// drain is how many seconds a container may take for its connections; 0 when it does not say.
func (c *check) drain(it *item, container corev1.Container) (int64, error) {
	const variable = "SHUTDOWN_TIMEOUT"
	value := ""
	for _, source := range container.EnvFrom {
		if source.ConfigMapRef != nil {
			value = c.setting(it.namespace(), source.ConfigMapRef.Name, variable)
		}
	}
	for _, v := range container.Env {
		if v.Name == variable {
			value = v.Value
		}
	}
	if value == "" {
		return 0, nil
	}
	timeout, err := time.ParseDuration(value)
	if err != nil || timeout < 0 {
		return 0, fmt.Errorf("%s of %s is %q, which is not a duration", variable, container.Name, value)
	}
	return int64((manifests.Drain(timeout) + time.Second - 1) / time.Second), nil
}

func (c *check) setting(namespace, config, key string) string {
	for _, it := range c.items {
		if object, ok := it.typed.(*corev1.ConfigMap); ok && object.Namespace == namespace && object.Name == config {
			return object.Data[key]
		}
	}
	return ""
}

func (c *check) volumes(it *item) {
	for _, volume := range it.pods.Spec.Volumes {
		at := fmt.Sprintf("%s.volumes[%s]", it.at, volume.Name)
		if holdsKubeconfig(volume) {
			c.found("kubeconfig", Error, at, "a kubeconfig file is mounted",
				"take it out: in the cluster the program uses its service account")
		}
		if source := volume.ConfigMap; source != nil && !isTrue(source.Optional) {
			c.mustExist(at, "ConfigMap", it.namespace(), source.Name)
		}
		if source := volume.Secret; source != nil && !isTrue(source.Optional) {
			c.mustExist(at, "Secret", it.namespace(), source.SecretName)
		}
		if source := volume.Projected; source != nil {
			c.projected(it, at, source.Sources)
		}
		if source := volume.PersistentVolumeClaim; source != nil {
			c.mustExist(at, "PersistentVolumeClaim", it.namespace(), source.ClaimName)
			c.spread(it, at, source.ClaimName)
		}
	}
}

func (c *check) projected(it *item, at string, sources []corev1.VolumeProjection) {
	for _, source := range sources {
		if s := source.ConfigMap; s != nil && !isTrue(s.Optional) {
			c.mustExist(at, "ConfigMap", it.namespace(), s.Name)
		}
		if s := source.Secret; s != nil && !isTrue(s.Optional) {
			c.mustExist(at, "Secret", it.namespace(), s.Name)
		}
	}
}

func holdsKubeconfig(volume corev1.Volume) bool {
	names := []string{volume.Name}
	if volume.Secret != nil {
		names = append(names, volume.Secret.SecretName)
		for _, item := range volume.Secret.Items {
			names = append(names, item.Key)
		}
	}
	if volume.ConfigMap != nil {
		names = append(names, volume.ConfigMap.Name)
	}
	if volume.HostPath != nil {
		names = append(names, volume.HostPath.Path)
	}
	return slices.ContainsFunc(names, func(name string) bool {
		name = strings.ToLower(name)
		return strings.Contains(name, "kubeconfig") || strings.HasSuffix(name, "/.kube/config") ||
			strings.HasSuffix(name, "/k3s.yaml")
	})
}

// spread finds pods that share a volume which only one node can attach, and that the scheduler
// may put on several.
func (c *check) spread(it *item, at, claim string) {
	if !c.oneNode(it.namespace(), claim) || c.pinned(it.namespace(), claim) || it.together() {
		return
	}
	users := int32(0)
	for _, other := range c.items {
		if other.mounts(it.namespace(), claim) {
			users += other.replicas
		}
	}
	if users > 1 {
		c.found("volume-spread", Warning, at, fmt.Sprintf("claim %s can be attached to one node only, %d pods use "+
			"it, and nothing keeps them together", claim, users),
			"add a required podAffinity on kubernetes.io/hostname, or use a storage class with ReadWriteMany")
	}
}

// together reports whether pods ask to be on the node of others.
func (it *item) together() bool {
	a := it.pods.Spec.Affinity
	return a != nil && a.PodAffinity != nil &&
		slices.ContainsFunc(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
			func(t corev1.PodAffinityTerm) bool {
				return t.TopologyKey == corev1.LabelHostname
			})
}

func (it *item) mounts(namespace, claim string) bool {
	return it.pods != nil && it.namespace() == namespace && slices.ContainsFunc(it.pods.Spec.Volumes,
		func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
		})
}

func (c *check) claim(namespace, name string) *corev1.PersistentVolumeClaim {
	for _, it := range c.items {
		if claim, ok := it.typed.(*corev1.PersistentVolumeClaim); ok && claim.Namespace == namespace &&
			claim.Name == name {
			return claim
		}
	}
	return nil
}

// oneNode reports whether a claim's volume can be attached to one node only.
func (c *check) oneNode(namespace, name string) bool {
	claim := c.claim(namespace, name)
	return claim != nil && !slices.ContainsFunc(claim.Spec.AccessModes,
		func(mode corev1.PersistentVolumeAccessMode) bool {
			return mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany
		})
}

// pinned reports whether the volume itself lies on a node, so that the scheduler cannot spread
// its pods.
func (c *check) pinned(namespace, name string) bool {
	claim := c.claim(namespace, name)
	return claim != nil && claim.Spec.StorageClassName != nil && *claim.Spec.StorageClassName == "local-path"
}

func (c *check) sqlite(it *item) {
	if it.pods.Labels["app"] == manifests.API && it.replicas > 1 {
		c.found("sqlite-replicas", Error, "spec.replicas", fmt.Sprintf("%d replicas of the API would write to one "+
			"SQLite file and do all background work several times", it.replicas), "write replicas: 1")
	}
}
