package push

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode"
)

// FuzzRefusal expects of whatever a registry answers an error of a bounded length, without control
// characters.
func FuzzRefusal(f *testing.F) {
	f.Add(401, "Unauthorized", `Bearer realm="https://r.test/token",service="r"`, "",
		[]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"no","detail":"why"}]}`))
	f.Add(429, "Too Many\x1b[2J", "", "30", []byte("<html>slow down"))
	f.Add(500, "", "Basic", "Fri, 02 Jan 2026 03:04:15 GMT", []byte(`{"errors":[{},{},{},{},{},{}]}`))
	f.Add(0, "\xff", ",,=", "-1", []byte("{"))
	c := &client{base: &url.URL{Scheme: "https", Host: "registry.test"}, host: "registry.test"}
	f.Fuzz(func(t *testing.T, code int, status, challenge, retry string, content []byte) {
		response := &http.Response{StatusCode: code, Status: status, Header: http.Header{
			"Www-Authenticate": {challenge}, "Retry-After": {retry},
		}}
		err := c.refusal(&subject{what: "push a blob"}, response, content)
		if err == nil {
			t.Fatal("no error")
		}
		text := err.Error()
		if len(text) > 4*maxText+1000 || strings.ContainsFunc(text, unicode.IsControl) {
			t.Errorf("an error of %d bytes: %q", len(text), text)
		}
	})
}
