package manifests

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// valuesFile is the file of a site's folder that is merged into ConfigMap's data.
const valuesFile = "values.env"

// refusedVariables must not come from a site's folder; the text says what to do instead.
var refusedVariables = func() map[string]string {
	const (
		security = "a secret does not belong in files that are rendered and kept: give it in install.yaml, " +
			"liteboxd.security"
		fixed = "Service, probes and volume depend on it: leave it out"
	)
	return map[string]string{
		"SANDBOX_TOKEN_ENCRYPTION_KEY": security,
		"ADMIN_PASSWORD":               security,
		"ADMIN_INITIAL_PASSWORD":       security,
		"ADMIN_USERNAME":               "it goes with the password: give it in install.yaml, liteboxd.security",
		"CONTROL_NAMESPACE":            "many objects carry it: give it in install.yaml, liteboxd.namespaceSystem",
		"SANDBOX_NAMESPACE":            "many objects carry it: give it in install.yaml, liteboxd.namespaceSandbox",
		"PORT":                         fixed,
		"API_PORT":                     fixed,
		"GATEWAY_PORT":                 fixed,
		"DATA_DIR":                     fixed,
		"KUBECONFIG":                   "in a cluster, the programs use their service accounts: leave it out",
	}
}()

// secretVariables are those of them whose value nobody may read.
var secretVariables = []string{"SANDBOX_TOKEN_ENCRYPTION_KEY", "ADMIN_PASSWORD", "ADMIN_INITIAL_PASSWORD"}

var variableName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// parseValues reads lines of KEY=VALUE. Lines that begin with # are comments; a value reaches to
// the end of its line, without the spaces around it. Nothing is expanded and nothing unquoted.
func parseValues(data []byte) (map[string]string, error) {
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%s is not UTF-8", valuesFile)
	}
	values, lines := map[string]string{}, map[string]int{}
	for i, line := range strings.Split(strings.TrimPrefix(string(data), "\uFEFF"), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, err := parseValue(line)
		if err == nil && lines[key] > 0 {
			err = fmt.Errorf("%s is in line %d already", key, lines[key])
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", valuesFile, i+1, err)
		}
		values[key], lines[key] = value, i+1
	}
	return values, nil
}

// parseValue never quotes the value in an error: it may be a password in the wrong place.
func parseValue(line string) (key, value string, err error) {
	key, value, found := strings.Cut(line, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	switch {
	case !found:
		return "", "", fmt.Errorf("no = in the line: want KEY=VALUE")
	case strings.HasPrefix(key, "export "):
		return "", "", fmt.Errorf("this is no shell script: leave out export")
	case !variableName.MatchString(key):
		return "", "", fmt.Errorf("what is before the = is not a variable's name: letters, digits and _, at most 128")
	case refusedVariables[key] != "":
		return "", "", fmt.Errorf("%s cannot be set here: %s", key, refusedVariables[key])
	case strings.IndexFunc(value, unicode.IsControl) >= 0:
		return "", "", fmt.Errorf("the value of %s has a control character in it", key)
	case len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0]:
		return "", "", fmt.Errorf("the quotes around the value of %s would become part of it: leave them out", key)
	}
	return key, value, nil
}
