package helm

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/liteboxd/boxlift/internal/printable"
)

// clone copies maps and lists: Helm changes those that it is given.
func clone(values map[string]any) map[string]any {
	out := make(map[string]any, len(values))
	for key, value := range values {
		out[key] = cloneValue(value)
	}
	return out
}

func cloneValue(value any) any {
	switch value := value.(type) {
	case map[string]any:
		return clone(value)
	case []any:
		out := make([]any, len(value))
		for i, v := range value {
			out[i] = cloneValue(v)
		}
		return out
	}
	return value
}

// plain returns values in the types that JSON knows, as Helm's records have them.
// They come from JSON, or load has seen that they can be written as it.
func plain(values map[string]any) map[string]any {
	data, err := json.Marshal(values)
	if err != nil {
		panic("helm: values: " + err.Error())
	}
	out := map[string]any{}
	if err := json.Unmarshal(data, &out); err != nil {
		panic("helm: values: " + err.Error())
	}
	if out == nil { // null
		out = map[string]any{}
	}
	return out
}

// changedPaths returns the paths, such as "operator.replicas", at which two values differ,
// sorted. Paths only: values may be secrets.
func changedPaths(a, b map[string]any) []string {
	var paths []string
	for _, key := range slices.Sorted(maps.Keys(union(a, b))) {
		left, inA := a[key]
		right, inB := b[key]
		leftMap, okLeft := left.(map[string]any)
		rightMap, okRight := right.(map[string]any)
		switch {
		case inA && inB && okLeft && okRight:
			for _, path := range changedPaths(leftMap, rightMap) {
				paths = append(paths, printable.Line(key)+"."+path)
			}
		case inA != inB || !reflect.DeepEqual(left, right):
			paths = append(paths, printable.Line(key))
		}
	}
	return paths
}

func union(a, b map[string]any) map[string]bool {
	keys := map[string]bool{}
	for key := range a {
		keys[key] = true
	}
	for key := range b {
		keys[key] = true
	}
	return keys
}
