package registry

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/liteboxd/boxlift/internal/printable"
)

// Codes of the distribution specification 1.1, "Error Codes", and of its predecessor for
// what it has no code for.
const (
	codeBlobUnknown     = "BLOB_UNKNOWN"
	codeDigestInvalid   = "DIGEST_INVALID"
	codeManifestUnknown = "MANIFEST_UNKNOWN"
	codeNameInvalid     = "NAME_INVALID"
	codeNameUnknown     = "NAME_UNKNOWN"
	codeUnauthorized    = "UNAUTHORIZED"
	codeUnsupported     = "UNSUPPORTED"
	codeTooMany         = "TOOMANYREQUESTS"
	codePageInvalid     = "PAGINATION_NUMBER_INVALID"
	codeRangeInvalid    = "RANGE_INVALID"
	codeUnknown         = "UNKNOWN"
)

// failure is an answer that is no success.
type failure struct {
	status  int
	Code    string `json:"code"`
	Message string `json:"message"`
	Detail  any    `json:"detail,omitempty"`
	// cause is what the log may know and the client need not.
	cause error
}

func fail(status int, code, message string, detail any) *failure {
	if text, ok := detail.(string); ok {
		detail = printable.Clip(text, maxName)
	}
	return &failure{status: status, Code: code, Message: message, Detail: detail}
}

// broken is a failure of this side.
func broken(cause error) *failure {
	f := fail(http.StatusInternalServerError, codeUnknown, "the registry cannot read this; its log says more", nil)
	f.cause = cause
	return f
}

// write answers with the failure.
func (f *failure) write(w http.ResponseWriter) {
	content, err := json.Marshal(struct {
		Errors []*failure `json:"errors"`
	}{[]*failure{f}})
	if err != nil {
		content = []byte(`{"errors":[]}`) // strings and lists of them always have a form in JSON
	}
	writeJSON(w, "application/json", f.status, content)
}

func writeJSON(w http.ResponseWriter, mediaType string, status int, content []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(status)
	_, _ = w.Write(content) // who does not take the answer does not get it
}
