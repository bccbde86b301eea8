package boundedjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
)

func TestCount(t *testing.T) {
	for content, want := range map[string]int{
		``:                       0,
		`1`:                      0,
		`{}`:                     1,
		`[{},{},{}]`:             6,
		`{"a":1,"b":[1,2]}`:      4,
		`{"a,{[":"\"},{[\\","b"`: 2,
		`"\\",`:                  1,
		`"not ended \`:           0,
	} {
		if got := boundedjson.Count([]byte(content)); got != want {
			t.Errorf("%s: got %d, expected %d", content, got, want)
		}
	}
}

func TestUnmarshal(t *testing.T) {
	var v []struct{}
	if err := boundedjson.Unmarshal([]byte(`[{},{}]`), &v, 4); err != nil || len(v) != 2 {
		t.Errorf("as many as are allowed: %v, %v", v, err)
	}
	v = nil
	if err := boundedjson.Unmarshal([]byte(`[{},{}]`), &v, 3); !errors.Is(err, boundedjson.ErrTooMuch) || v != nil {
		t.Errorf("one too many: %v, %v", v, err)
	}
	var text string
	for size, fits := range map[int]bool{1 << 20: true, 1<<20 + 1: false} {
		content := []byte(`"` + strings.Repeat("a", size) + `"`)
		if err := boundedjson.Unmarshal(content, &text, 1); (err == nil) != fits {
			t.Errorf("a string of %d bytes: %v", size, err)
		}
	}
	if err := boundedjson.Unmarshal([]byte(`[`), &v, 3); err == nil {
		t.Error("no JSON: no error")
	}
}

// FuzzCount compares the count with the values that a decoder finds.
func FuzzCount(f *testing.F) {
	for _, content := range []string{`{"a":[1,{"b":null}],"\"":"\\"}`, `[[],[],{}]`, `"\u0022,"`} {
		f.Add([]byte(content))
	}
	var values func(v any) int
	values = func(v any) int {
		n := 1
		switch v := v.(type) {
		case []any:
			for _, of := range v {
				n += values(of)
			}
		case map[string]any:
			for _, of := range v {
				n += values(of)
			}
		}
		return n
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		n := boundedjson.Count(content)
		var v any
		if json.Unmarshal(content, &v) != nil {
			return
		}
		// The outermost value has no mark of its own unless it is a list or an object.
		if got := values(v); got > n+1 {
			t.Errorf("%q has %d values, and %d were counted", content, got, n)
		}
	})
}

// FuzzUnmarshalExact compares it with what it says: the content, without white space, is what is written of its value.
func FuzzUnmarshalExact(f *testing.F) {
	for _, content := range []string{` {"a": 1,"b":"x y\\\" ","c":[ ],"d":{"e" : " "}}`, `{"a":1,"b":"x","d":null}`, `{"a":1.0}`, `{"d":"<"}`} {
		f.Add([]byte(content))
	}
	type value struct {
		A int             `json:"a"`
		B string          `json:"b"`
		C []string        `json:"c,omitempty"`
		D json.RawMessage `json:"d,omitempty"`
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		var v, again value
		err := boundedjson.UnmarshalExact(content, &v, 100)
		if boundedjson.Unmarshal(content, &again, 100) != nil {
			if err == nil {
				t.Errorf("%q is taken, and cannot be decoded", content)
			}
			return
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, content); err != nil {
			t.Fatal(err)
		}
		written, writeErr := json.Marshal(again)
		if want := writeErr == nil && bytes.Equal(compact.Bytes(), written); want != (err == nil) {
			t.Errorf("%q: %v, and what is written is %q", content, err, written)
		}
	})
}

func TestUnmarshalExact(t *testing.T) {
	for name, test := range map[string]struct {
		content string
		says    string // "" for content that is taken
	}{
		"exact":               {`{"a":1,"b":"x"}`, ""},
		"white space":         {" {\n \"a\": 1, \"b\": \"x\" }\n", ""},
		"an unknown field":    {`{"a":1,"b":"x","c":0}`, "unknown or repeated"},
		"a repeated field":    {`{"a":2,"a":1,"b":"x"}`, "unknown or repeated"},
		"other capitals":      {`{"A":1,"b":"x"}`, "unknown or repeated"},
		"another spelling":    {`{"a":1,"b":"\u0078"}`, "another spelling"},
		"another order":       {`{"b":"x","a":1}`, "another spelling"},
		"too many values":     {`{"a":1,"b":"x","c":[1,2,3,4]}`, "too much JSON"},
		"something behind it": {`{"a":1,"b":"x"}{}`, "invalid character"},
		"white space within":  {`{"a":1,"b":"x "}`, ""},
		"a quote within":      {`{"a":1,"b":"\" \\"}`, ""},
		"less":                {`{"a":1}`, "unknown or repeated"},
		"nothing":             {``, "unexpected end"},
	} {
		var v struct {
			A int    `json:"a"`
			B string `json:"b"`
		}
		err := boundedjson.UnmarshalExact([]byte(test.content), &v, 4)
		if test.says == "" && (err != nil || v.A != 1 || v.B == "") {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
		if test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}
