package upstream

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// tokenPath is where bearer tokens are given out. No upstream host is called token.
const tokenPath = "/token"

// Auth protects repositories the way registries do.
type Auth struct {
	// Prefix of the repositories, with the upstream host: "ghcr.io/fslongjin". It matches
	// whole path parts.
	Prefix string
	// Username and Password that are asked for. Without a username anybody gets a bearer
	// token, as on the big public registries, but a token is needed.
	Username, Password string
	// Basic takes username and password on each request instead of a bearer token.
	Basic bool
}

type authRule struct {
	Auth
	tokens map[string]bool // given out; guarded by Server.mu
}

// RequireAuth protects repositories until Heal is called. From then on the registry's
// base, /v2/, asks for credentials too, as clients look there for the way to log in;
// repositories under no rule stay open.
func (s *Server) RequireAuth(a Auth) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.auth = append(s.auth, &authRule{Auth: a, tokens: map[string]bool{}})
}

// repositoryOf takes the repository out of a registry path: "/v2/a/b/manifests/x" -> "a/b".
func repositoryOf(path string) string {
	path, ok := strings.CutPrefix(path, "/v2/")
	if !ok {
		return ""
	}
	for _, kind := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"} {
		if i := strings.LastIndex(path, kind); i >= 0 {
			return path[:i]
		}
	}
	return ""
}

func (s *Server) authFor(repository string) *authRule {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rule := range s.auth {
		if repository == rule.Prefix || strings.HasPrefix(repository, rule.Prefix+"/") {
			return rule
		}
	}
	return nil
}

// authorize answers with 401 and says true when credentials are wanted that did not come.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request) (refused bool) {
	if r.URL.Path != "/v2/" && r.URL.Path != "/v2" && repositoryOf(r.URL.Path) == "" {
		return false
	}
	repository := repositoryOf(r.URL.Path)
	rule := s.authFor(repository)
	if repository == "" {
		s.mu.Lock()
		if len(s.auth) > 0 {
			rule = s.auth[len(s.auth)-1]
		}
		s.mu.Unlock()
	}
	if rule == nil || s.admits(rule, r) {
		return false
	}
	challenge := fmt.Sprintf(`Basic realm="%s"`, s.addr)
	if !rule.Basic {
		challenge = fmt.Sprintf(`Bearer realm="https://%s%s",service="%s"`, s.addr, tokenPath, s.addr)
		if repository != "" {
			challenge += fmt.Sprintf(`,scope="repository:%s:pull"`, repository)
		}
	}
	w.Header().Set("WWW-Authenticate", challenge)
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	writeJSON(w, http.StatusUnauthorized, map[string]any{"errors": []map[string]string{
		{"code": "UNAUTHORIZED", "message": "authentication required"}}})
	return true
}

func (s *Server) admits(rule *authRule, r *http.Request) bool {
	if rule.Basic {
		return rule.knows(r)
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok && rule.tokens[token]
}

func (rule *authRule) knows(r *http.Request) bool {
	username, password, ok := r.BasicAuth()
	return ok &&
		subtle.ConstantTimeCompare([]byte(username), []byte(rule.Username)) == 1 &&
		subtle.ConstantTimeCompare([]byte(password), []byte(rule.Password)) == 1
}

// serveToken gives a token for the scopes asked for, good for their rules only.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
		return
	}
	token := rand.Text()
	for _, scope := range strings.Fields(strings.Join(r.URL.Query()["scope"], " ")) {
		parts := strings.Split(scope, ":")
		if len(parts) != 3 || parts[0] != "repository" {
			http.Error(w, "malformed scope", http.StatusBadRequest)
			return
		}
		rule := s.authFor(parts[1])
		if rule == nil {
			continue // an open repository takes any token
		}
		if rule.Username != "" && !rule.knows(r) {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"details": "incorrect username or password"})
			return
		}
		s.mu.Lock()
		rule.tokens[token] = true
		s.mu.Unlock()
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"token": token, "access_token": token, "expires_in": 300,
		"issued_at": time.Now().UTC().Format(time.RFC3339),
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}
