package config

import (
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// schema is as much of JSON Schema as install.yaml needs. It is draft 7, the newest
// that the YAML plug-ins of editors know.
type schema struct {
	Schema               string             `json:"$schema,omitempty"`
	Title                string             `json:"title,omitempty"`
	Description          string             `json:"description,omitempty"`
	Ref                  string             `json:"$ref,omitempty"`
	Type                 any                `json:"type,omitempty"` // a string or a list of them
	Enum                 []string           `json:"enum,omitempty"`
	Pattern              string             `json:"pattern,omitempty"`
	MinLength            int                `json:"minLength,omitempty"`
	Minimum              *int               `json:"minimum,omitempty"`
	Maximum              *int               `json:"maximum,omitempty"`
	Items                *schema            `json:"items,omitempty"`
	MaxItems             int                `json:"maxItems,omitempty"`
	Properties           map[string]*schema `json:"properties,omitempty"`
	PropertyNames        *schema            `json:"propertyNames,omitempty"`
	AdditionalProperties any                `json:"additionalProperties,omitempty"` // false or a *schema
	Required             []string           `json:"required,omitempty"`
	AllOf                []*schema          `json:"allOf,omitempty"`
	AnyOf                []*schema          `json:"anyOf,omitempty"`
	OneOf                []*schema          `json:"oneOf,omitempty"`
	Definitions          map[string]*schema `json:"definitions,omitempty"`
}

// Schema returns the JSON schema (draft 7) of install.yaml, for editors. What it refuses,
// Parse refuses; Parse knows more: addresses, versions, and what does not go together.
func Schema() []byte {
	d := &decoder{
		lookupEnv:   func(string) (string, bool) { return "", false },
		definitions: map[string]*schema{},
	}
	root := &schema{
		Schema: "http://json-schema.org/draft-07/schema#",
		Title:  "install.yaml of boxlift",
	}
	d.config(node{d: d}.describe(root))
	root.Definitions = d.definitions
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("config: schema: " + err.Error()) // nothing but strings, numbers, lists and maps
	}
	return append(out, '\n')
}

// describe is a node that fills in s when it is read.
func (n node) describe(s *schema) node {
	return node{d: n.d, yaml: &yaml.Node{}, path: n.path, schema: s}
}

func (n node) describeMapping(fields []field) {
	s := n.schema
	s.Type, s.AdditionalProperties, s.Properties = "object", false, make(map[string]*schema, len(fields))
	for _, f := range fields {
		value := &schema{Description: f.doc}
		s.Properties[f.key] = value
		if f.required {
			s.Required = append(s.Required, f.key)
		}
		f.read(n.describe(value))
	}
}

// defined reads a node as read does. In the schema, read's part has a name and stands
// only once, which a part that contains itself needs.
func (n node) defined(name string, read func(node)) {
	if n.schema == nil {
		read(n)
		return
	}
	// In draft 7 nothing counts beside $ref, so it gets a schema of its own.
	n.schema.AllOf = []*schema{{Ref: "#/definitions/" + name}}
	if _, known := n.d.definitions[name]; !known {
		s := &schema{}
		n.d.definitions[name] = s
		read(n.describe(s))
	}
}

// needs says that a mapping must have one of these keys; only is for exactly one.
func (n node) needs(only bool, keys ...string) {
	if n.schema == nil {
		return
	}
	choices := make([]*schema, len(keys))
	for i, k := range keys {
		choices[i] = &schema{Required: []string{k}}
	}
	if only {
		n.schema.OneOf = choices
	} else {
		n.schema.AnyOf = choices
	}
}

// among says that a text is one of these, or comes from a variable.
func (n node) among(texts ...string) {
	if n.schema != nil {
		n.schema.Type, n.schema.MinLength = nil, 0
		n.schema.AnyOf = []*schema{{Enum: texts}, referenceSchema()}
	}
}

// referenceSchema is a text with ${NAME} in it, which may stand for anything.
func referenceSchema() *schema {
	return &schema{Type: "string", Pattern: `\$\{[A-Za-z_][A-Za-z0-9_]*\}`}
}
