// Package redact takes secrets out of texts of others, before somebody else is to read them: logs, configuration,
// answers of an API.
//
// Contract: what goes through a [Writer], [Redactor.Text] or [Redactor.Value] comes out with [Mark] in place of
//
//   - values of keys that are called like a secret (password, token, secret, authorization and the like), in YAML,
//     JSON, JSON within a string, logfmt, environments, flags of programs, INI and TOML, in one line or over several,
//     and values of entries whose name is called so;
//   - tokens of k3s, bearer and basic credentials, JSON web tokens, secret keys of age, PEM private keys, hashes of
//     passwords, the user and password of URLs and of data source names, tokens of bootstrapping and of well-known
//     forges;
//   - long runs of base64, which keys and certificates are made of, even where their beginning was cut off;
//   - texts that the caller knows to be secret, wherever they stand, also in base64, in JSON and in URLs.
//
// How the text is cut into writes makes no difference. Where it is not clear where a secret ends, more is masked
// rather than less. A line that is longer than [MaxLine] loses its end. Control characters do not come out, so that
// the text can be shown on a terminal. It needs as much memory as one line, does not know where the text comes from,
// and never fails.
//
// It cannot know a secret that stands alone without looking like one, such as a password within a sentence or a key
// in hexadecimal, which looks as a digest does.
package redact

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// Mark stands where something was taken out. It is a plain scalar in YAML.
const Mark = "<redacted>"

// minKnown is the shortest text, in bytes, that is masked wherever it stands: shorter ones are parts of too much else.
const minKnown = 6

// Redactor masks secrets. It may be used by several goroutines at once.
type Redactor struct {
	known []string // the longest first
}

// New returns a redactor that masks, besides what looks like a secret, these texts. Of those with several lines each
// line counts.
func New(secrets ...string) *Redactor {
	var known []string
	for _, secret := range secrets {
		for line := range strings.Lines(secret) {
			line = strings.TrimSpace(line)
			if len(line) < minKnown {
				continue
			}
			known = append(known, line, base64.StdEncoding.EncodeToString([]byte(line)), url.QueryEscape(line),
				url.PathEscape(line))
			if quoted, err := json.Marshal(line); err == nil { // strings are always good
				known = append(known, strings.Trim(string(quoted), `"`))
			}
		}
	}
	slices.SortFunc(known, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	return &Redactor{known: slices.Compact(known)}
}

// Text is a whole text without its secrets.
func (r *Redactor) Text(text string) string {
	var out bytes.Buffer
	w := r.Writer(&out)
	_, _ = w.Write([]byte(text)) // a buffer takes all
	_ = w.Close()
	return out.String()
}

// Value is a document, as [encoding/json] decodes it into an any, without its secrets: a copy. Keys, booleans and null
// stay, and every text in it is masked as [Redactor.Text] does it.
func (r *Redactor) Value(v any) any { return r.value(v, false) }

// value masks all texts and numbers where hidden, but for those whose key says that they are none.
func (r *Redactor) value(v any, hidden bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		name, _ := v["name"].(string)
		for key, one := range v {
			hide := hidden && !isHarmless(key) || isSecret(key) || key == "value" && isSecret(name)
			out[r.Text(key)] = r.value(one, hide)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, one := range v {
			before := ""
			if i > 0 {
				before, _ = v[i-1].(string)
			}
			isFlag := strings.HasPrefix(before, "-") && !strings.ContainsAny(before, "= ") && isSecret(before)
			out[i] = r.value(one, hidden || isFlag)
		}
		return out
	case string:
		if hidden && v != "" {
			return Mark
		}
		return r.Text(v)
	case nil, bool:
		return v
	}
	if hidden {
		return Mark
	}
	return v
}
