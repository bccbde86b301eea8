package manifests

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// isImage reports whether a text can only be meant as the name of an image: it is in the form that containerd takes,
// and has a repository, a tag or a digest. A bare word ("true", "always", "nginx") is anything.
func isImage(text string) bool {
	if !strings.ContainsAny(text, "/:@") {
		return false
	}
	_, err := reference.ParseNormalizedNamed(text)
	return err == nil
}

// PossibleImagesOf returns what looks like an image and is in no place where Kubernetes takes one from, in the order of
// the objects: fields of custom resources that are called image or …Image, of which operators make pods, arguments of
// containers (--config-reloader-image=r/x:1), and bare words in variables that are called …_IMAGE. Whether any of it is
// pulled, only who wrote the objects knows. Container is the field's path or the argument.
func PossibleImagesOf(objects []*unstructured.Unstructured) []ImageUse {
	var all []ImageUse
	for _, object := range objects {
		if object.GetKind() == "CustomResourceDefinition" { // its fields have examples and defaults
			continue
		}
		found := func(image, where string) {
			all = append(all, ImageUse{image, Name(object), where})
		}
		if object.GetKind() == "ConfigMap" {
			data, _ := object.Object["data"].(map[string]any)
			for _, key := range slices.Sorted(maps.Keys(data)) {
				if text, _ := data[key].(string); isImageVariable(key) && isWord(text) {
					found(text, key)
				}
			}
			continue
		}
		walkFields(object.Object, "", func(image, path string) { found(image, path) })
		_ = walkContainers(object.Object, func(container map[string]any) error {
			inContainer(container, found)
			return nil
		})
	}
	return all
}

// isWord reports whether a text is the bare name of an image, and not a number or a switch.
func isWord(text string) bool {
	if strings.ContainsAny(text, "/:@") {
		return false
	}
	if _, err := strconv.ParseBool(text); err == nil {
		return false
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return false
	}
	_, err := reference.ParseNormalizedNamed(text)
	return err == nil
}

// inContainer finds what looks like an image in a container's variables and arguments.
func inContainer(container map[string]any, found func(image, where string)) {
	name, _ := container["name"].(string)
	env, _ := container["env"].([]any)
	for _, one := range env {
		variable, _ := one.(map[string]any)
		key, _ := variable["name"].(string)
		if value, _ := variable["value"].(string); isImageVariable(key) && isWord(value) {
			found(value, "variable "+key+" of the container "+name)
		}
	}
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
	if !isImage(value) || !strings.Contains(value, "/") {
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
			if isCalledImage := key == "image" || strings.HasSuffix(key, "Image"); isCalledImage && isImage(text) {
				found(text, at)
			}
		}
	}
}
