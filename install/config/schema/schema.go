package schema

import (
	"encoding/json"
	"strings"
)

// jsonSchema is as much of JSON Schema as install.yaml needs. It is draft 7, the newest
// that the YAML plug-ins of editors know.
type jsonSchema struct {
	Schema               string                 `json:"$schema,omitempty"`
	Title                string                 `json:"title,omitempty"`
	Description          string                 `json:"description,omitempty"`
	Ref                  string                 `json:"$ref,omitempty"`
	Type                 any                    `json:"type,omitempty"` // a string or a list of them
	Enum                 []string               `json:"enum,omitempty"`
	Pattern              string                 `json:"pattern,omitempty"`
	MinLength            int                    `json:"minLength,omitempty"`
	Minimum              *int                   `json:"minimum,omitempty"`
	Maximum              *int                   `json:"maximum,omitempty"`
	Items                *jsonSchema            `json:"items,omitempty"`
	MaxItems             int                    `json:"maxItems,omitempty"`
	Properties           map[string]*jsonSchema `json:"properties,omitempty"`
	PropertyNames        *jsonSchema            `json:"propertyNames,omitempty"`
	AdditionalProperties any                    `json:"additionalProperties,omitempty"` // false or a *jsonSchema
	Required             []string               `json:"required,omitempty"`
	AllOf                []*jsonSchema          `json:"allOf,omitempty"`
	AnyOf                []*jsonSchema          `json:"anyOf,omitempty"`
	OneOf                []*jsonSchema          `json:"oneOf,omitempty"`
	Definitions          map[string]*jsonSchema `json:"definitions,omitempty"`
}

// Describe returns the JSON schema (draft 7) of what read reads, for editors. What it refuses,
// reading refuses too.
func Describe(title string, read func(Node)) []byte {
	d := &Document{definitions: map[string]*jsonSchema{}}
	root := &jsonSchema{Schema: "http://json-schema.org/draft-07/schema#", Title: title}
	read(Node{document: d}.describe(root))
	root.Definitions = d.definitions
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("config: schema: " + err.Error()) // nothing but strings, numbers, lists and maps
	}
	return append(out, '\n')
}

// describe is a node that fills in s when it is read.
func (n Node) describe(s *jsonSchema) Node {
	return Node{document: n.document, in: nowhere(n.in.Path), schema: s}
}

func (n Node) describeMapping(fields []Field) {
	s := n.schema
	s.Type, s.AdditionalProperties, s.Properties = "object", false, make(map[string]*jsonSchema, len(fields))
	for _, f := range fields {
		value := &jsonSchema{Description: f.doc}
		s.Properties[f.key] = value
		if f.required {
			s.Required = append(s.Required, f.key)
		}
		f.read(n.describe(value))
	}
}

// Describes reports whether the node has no value and is there for the schema: then nothing
// that is read from it means anything.
func (n Node) Describes() bool { return n.schema != nil }

// DescribeAs gives the schema a type, of a node whose value is read without any other method.
func (n Node) DescribeAs(kind string) {
	if n.schema != nil {
		n.schema.Type = kind
	}
}

// Defined reads a node as read does. In the schema, read's part has a name and stands
// only once, which a part that contains itself needs.
func (n Node) Defined(name string, read func(Node)) {
	if n.schema == nil {
		read(n)
		return
	}
	// In draft 7 nothing counts beside $ref, so it gets a schema of its own.
	n.schema.AllOf = []*jsonSchema{{Ref: "#/definitions/" + name}}
	if _, known := n.document.definitions[name]; !known {
		s := &jsonSchema{}
		n.document.definitions[name] = s
		read(n.describe(s))
	}
}

// Needs says in the schema that a mapping must have one of these keys, or all keys of one choice that is several with
// spaces between them; only is for exactly one.
func (n Node) Needs(only bool, choices ...string) {
	if n.schema == nil {
		return
	}
	schemas := make([]*jsonSchema, len(choices))
	for i, keys := range choices {
		schemas[i] = &jsonSchema{Required: strings.Fields(keys)}
	}
	if only {
		n.schema.OneOf = schemas
	} else {
		n.schema.AnyOf = schemas
	}
}

// Among says in the schema that a text is one of these, or comes from a variable.
func (n Node) Among(texts ...string) {
	if n.schema != nil {
		n.schema.Type, n.schema.MinLength = nil, 0
		n.schema.AnyOf = []*jsonSchema{{Enum: texts}, referenceSchema()}
	}
}

// referenceSchema is a text with ${NAME} in it, which may stand for anything.
func referenceSchema() *jsonSchema {
	return &jsonSchema{Type: "string", Pattern: `\$\{[A-Za-z_][A-Za-z0-9_]*\}`}
}
