package helm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseValues(t *testing.T) {
	bomb := "a: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("b%d: &a%d [%s*a%d]\n", i, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 8), i)
	}
	for name, c := range map[string]struct {
		content string
		want    map[string]any
		err     string
	}{
		"nothing":        {"", nil, ""},
		"comments":       {"# nothing\n---\n# here\n", nil, ""},
		"values":         {"a: {b: [1, x]}\n", map[string]any{"a": map[string]any{"b": []any{1, "x"}}}, ""},
		"a key twice":    {"a: 1\na: 2\n", nil, "read values: "},
		"a list":         {"- a\n", nil, "they are no mapping"},
		"two documents":  {"a: 1\n---\nb: 2\n", nil, "several YAML documents"},
		"too large":      {"a: " + strings.Repeat("x", MaxValues), nil, "read values: "},
		"no YAML":        {"a: [", nil, "read values: "},
		"an alias bomb":  {bomb, nil, "read values: "},
		"text with tabs": {"a: |\n  x\ty\n", map[string]any{"a": "x\ty\n"}, ""},
	} {
		got, err := ParseValues([]byte(c.content))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" && c.err == "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// FuzzParseValues looks for values that are read in two ways, that are larger than they may be, or that are changed by
// being merged with themselves or with nothing.
func FuzzParseValues(f *testing.F) {
	for _, text := range []string{
		"", "# nothing\n", "a: 1\n", "a: {b: [1, 2.5, x, null, true]}\nc: |\n  text\n", "a: &x {b: 1}\nc: *x\n", "<<: {a: 1}\n",
		"a: 1\na: 2\n", "- a\n", "a: 1\n---\nb: 2\n", "1: x\n", "a: .nan\n", "? {a: b}\n: c\n", "a: !!binary aGk=\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		values, err := ParseValues(content)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "read values: ") || values != nil {
				t.Errorf("%v, with %v", err, values)
			}
			return
		}
		if len(content) > MaxValues {
			t.Errorf("%d bytes were taken", len(content))
		}
		again, err := ParseValues(bytes.Clone(content))
		if diff := cmp.Diff(values, again, cmpopts.EquateNaNs()); diff != "" || err != nil {
			t.Errorf("read again: %v, %s", err, diff)
		}
		for _, over := range []map[string]any{nil, again} {
			if diff := cmp.Diff(again, MergeValues(values, over), cmpopts.EquateNaNs(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("merged: %s", diff)
			}
		}
		if _, err := json.Marshal(values); err == nil && values != nil {
			if one := plain(values); !cmp.Equal(one, plain(one)) {
				t.Errorf("%v is no plain form", one)
			}
		}
	})
}
