package helm

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/internal/outsideyaml"
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

// MaxValues bounds the values of a file, in bytes.
const MaxValues = 256 << 10

// ParseValues reads the values of a file: one YAML mapping, or nothing, of at most MaxValues. A key that is there twice
// is an error.
func ParseValues(content []byte) (map[string]any, error) {
	strict := outsideyaml.Reader{MaxSize: MaxValues, MaxNodes: maxRenderedNodes}
	var values map[string]any
	documents := 0
	for document, err := range strict.Documents(content) {
		if err != nil {
			return nil, fmt.Errorf("read values: %w", err)
		}
		if documents++; documents > 1 {
			return nil, errors.New("read values: there are several YAML documents, one is expected")
		}
		if len(document.Content) == 0 || document.Content[0].Tag == "!!null" {
			continue // nothing but comments
		}
		if document.Content[0].Kind != yaml.MappingNode {
			return nil, errors.New("read values: they are no mapping")
		}
		if err := document.Decode(&values); err != nil {
			return nil, fmt.Errorf("read values: %w", err)
		}
	}
	return values, nil
}

// MergeValues returns values with others over them, as Helm does with several files: mappings are merged, and of
// everything else the other one counts. Neither is changed.
func MergeValues(values, over map[string]any) map[string]any {
	merged := clone(values)
	for key, value := range over {
		below, isBelow := merged[key].(map[string]any)
		if above, isAbove := value.(map[string]any); isBelow && isAbove {
			merged[key] = MergeValues(below, above)
			continue
		}
		merged[key] = cloneValue(value)
	}
	return merged
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
