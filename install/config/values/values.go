// Package values reads values of Helm charts that install.yaml has: a mapping of anything, in bounded room.
package values

import (
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Helm values are bounded as everything else is: they travel in every release that the
// cluster keeps.
const (
	maxDepth = 20
	maxSize  = 64 << 10 // bytes of all keys and texts, after ${NAME} is replaced
)

var keyPattern = lazyregexp.New(`^[^\x00-\x1f\x7f]{1,253}$`)

// Read reads a mapping of anything: mappings become map[string]any, lists []any,
// scalars string, bool, int64, float64 or nil. what is what a key is one of, in problems, such as "a key of Cilium's
// values". Each is told of every value with the way to it from the top, such as "image.tag"; nil is nobody.
func Read(n schema.Node, what string, each func(n schema.Node, key string)) map[string]any {
	if n.Describes() {
		n.DescribeAs("object")
		return nil
	}
	if !n.IsMapping() {
		if n.Usable("a mapping") {
			n.Fail("found %s, expected a mapping", n.Kind())
		}
		return nil
	}
	r := &reader{what: what, each: each}
	values, _ := r.value(n, "", 0).(map[string]any)
	if r.size > maxSize {
		n.Fail("found more than %d KiB of values, expected less", maxSize>>10)
	}
	if len(values) == 0 {
		return nil
	}
	return values
}

type reader struct {
	what string
	each func(n schema.Node, key string)
	size int // bytes, so far
}

// value reads one value; key is the way to it from the top of the values.
func (r *reader) value(n schema.Node, key string, depth int) any {
	if r.size > maxSize {
		return nil
	}
	if depth > maxDepth {
		n.Fail("found more than %d mappings and lists inside each other, expected fewer", maxDepth)
		return nil
	}
	if key != "" && r.each != nil {
		r.each(n, key)
	}
	switch {
	case n.IsMapping():
		result := map[string]any{}
		n.Entries(r.what, keyPattern, func(k string, _, v schema.Node) {
			r.size += len(k)
			result[k] = r.value(v, below(key, k), depth+1)
		})
		return result
	case n.IsList():
		result := []any{}
		n.List(func(_ int, item schema.Node) { result = append(result, r.value(item, key+"[]", depth+1)) })
		return result
	case n.IsNothing():
		return nil // for Helm: without the chart's default
	}
	if f, ok := n.Decimal(); ok {
		return f
	}
	v, _ := n.Plain(schema.AnyText, "text, a number, true or false, a list or a mapping")
	if s, ok := v.(string); ok {
		r.size += len(s)
	}
	return v
}

// below is the key of a value inside another.
func below(key, inner string) string {
	if key == "" {
		return inner
	}
	return key + "." + inner
}
