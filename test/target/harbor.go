package target

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Harbor is how Harbor differs from the registry that it is built around: repositories
// are in projects, which must exist and have quotas, members and rules. It answers with
// the statuses, codes and texts that Harbor 2 has.
type Harbor struct {
	// Projects that exist, with what each may hold in bytes; 0 means any amount.
	Projects map[string]int64
	// PullOnly are users who may not push.
	PullOnly []string
	// ImmutableTags may not be given other contents.
	ImmutableTags bool
	// ReadOnly is Harbor's own mode, in which it takes no changes.
	ReadOnly bool

	mu   sync.Mutex
	used map[string]int64
}

// allowed returns what of the actions a token is given for.
func (h *Harbor) allowed(user, repository string, actions []string) []string {
	project, _, _ := strings.Cut(repository, "/")
	if _, ok := h.Projects[project]; !ok {
		return []string{}
	}
	if slices.Contains(h.PullOnly, user) {
		return slices.DeleteFunc(slices.Clone(actions), func(a string) bool { return a != "pull" })
	}
	return actions
}

var paths = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs|tags)/(.*)$`)

// refuse answers what Harbor does not pass on to the registry that keeps data.
func (h *Harbor) refuse(w http.ResponseWriter, r *http.Request, data string) bool {
	parts := paths.FindStringSubmatch(r.URL.Path)
	if parts == nil {
		return false
	}
	repository, kind, rest := parts[1], parts[2], parts[3]
	project, _, inProject := strings.Cut(repository, "/")
	limit, exists := h.Projects[project]
	if r.Header.Get("Authorization") == "" {
		return false // the registry asks for credentials
	}
	changes := r.Method != http.MethodGet && r.Method != http.MethodHead
	used, fits := int64(0), true
	if r.Method == http.MethodPut && kind == "blobs" && exists && inProject && !h.ReadOnly {
		used, fits = h.take(project, limit, r.ContentLength)
	}
	switch {
	case !exists || !inProject:
		Refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", fmt.Sprintf("project %s not found", project))
	case changes && h.ReadOnly:
		Refuse(w, http.StatusForbidden, "DENIED", "The system is in read only mode. Any modification is prohibited.")
	case !fits:
		Refuse(w, http.StatusForbidden, "DENIED", fmt.Sprintf("Quota exceeded when processing the request of adding %d B of storage resource, which when updated to current usage of %d B will exceed the configured upper limit of %d B.", r.ContentLength, used, limit))
	case r.Method == http.MethodPut && kind == "manifests" && h.protected(data, repository, rest):
		Refuse(w, http.StatusPreconditionFailed, "PRECONDITION", fmt.Sprintf("Failed to process request due to '%s:%s' configured as immutable.", repository, rest))
	default:
		return false
	}
	return true
}

// take takes what a blob needs of a project's quota, unless it does not fit; used is what was
// in use before.
func (h *Harbor) take(project string, limit, size int64) (used int64, fits bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.used == nil {
		h.used = make(map[string]int64)
	}
	used = h.used[project]
	if limit > 0 && used+size > limit {
		return used, false
	}
	h.used[project] += size
	return used, true
}

// protected reports whether a tag is there already and may not change.
func (h *Harbor) protected(data, repository, tag string) bool {
	if !h.ImmutableTags || strings.HasPrefix(tag, "sha256:") {
		return false
	}
	_, err := os.Stat(filepath.Join(data, "docker/registry/v2/repositories", repository, "_manifests/tags", tag))
	return err == nil
}
