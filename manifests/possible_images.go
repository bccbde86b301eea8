package manifests

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// isImage reports whether a variable that is called after an image holds the name of one: what containerd takes for a
// name, and no switch and no number.
func isImage(text string) bool {
	if _, err := strconv.ParseBool(text); err == nil {
		return false
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return false
	}
	_, err := reference.ParseNormalizedNamed(text)
	return err == nil
}

// isWhole reports whether a text can only be meant as the name of an image: it has a repository, a tag or a digest. A
// bare word ("disk", "always", "nginx") is anything.
func isWhole(text string) bool { return strings.ContainsAny(text, "/:@") && isImage(text) }

// PossibleImagesOf returns what looks like an image and is in no place where Kubernetes takes one from, in the order of
// the objects: fields of custom resources that are called image or …Image, of which operators make pods, and arguments
// of containers (--config-reloader-image=r/x:1). Whether any of it is pulled, only who wrote the objects knows.
// Container is the field's path or the argument.
func PossibleImagesOf(objects []*unstructured.Unstructured) []ImageUse {
	var all []ImageUse
	for _, object := range objects {
		switch object.GetKind() {
		case "CustomResourceDefinition", "ConfigMap": // examples and defaults of fields; variables and files
			continue
		}
		found := func(image, where string) {
			all = append(all, ImageUse{image, Name(object), where})
		}
		walkFields(object.Object, "", func(image, path string) { found(image, path) })
		_ = walkContainers(object.Object, func(container map[string]any) error {
			inContainer(container, found)
			return nil
		})
	}
	return all
}

// inContainer finds what looks like an image in a container's arguments.
func inContainer(container map[string]any, found func(image, where string)) {
	name, _ := container["name"].(string)
	for _, key := range []string{"command", "args"} {
		list, _ := container[key].([]any)
		before := ""
		for _, one := range list {
			text, _ := one.(string)
			flag, value, isJoined := strings.Cut(text, "=")
			if !isJoined {
				flag, value = before, text
			}
			if before = text; strings.HasPrefix(flag, "-") && isArgument(flag, value) {
				found(value, "argument "+flag+" of the container "+name)
			}
		}
	}
}

// isArgument reports whether the value of a flag looks like an image: the flag says so, or the value names a registry
// and a tag or a digest.
func isArgument(flag, value string) bool {
	if !isWhole(value) || !strings.Contains(value, "/") {
		return false
	}
	if strings.Contains(strings.ToLower(flag), "image") {
		return true
	}
	host, path, _ := strings.Cut(value, "/")
	return strings.ContainsAny(host, ".:") && strings.ContainsAny(path, ":@")
}

// walkFields gives the texts of all fields that are called image, or end so, to found, but for those of pods.
func walkFields(value any, path string, found func(image, path string)) {
	switch value := value.(type) {
	case []any:
		for i, one := range value {
			walkFields(one, path+"["+strconv.Itoa(i)+"]", found)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			at := strings.TrimPrefix(path+"."+key, ".")
			switch key {
			case "containers", "initContainers", "ephemeralContainers", "volumes": // whose images are sure
				continue
			}
			text, isText := value[key].(string)
			if !isText {
				walkFields(value[key], at, found)
				continue
			}
			if isCalledImage := key == "image" || strings.HasSuffix(key, "Image"); isCalledImage && isWhole(text) {
				found(text, at)
			}
		}
	}
}
