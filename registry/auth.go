package registry

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/liteboxd/boxlift/internal/bulktls"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// tokenPath is where clients that have the token as a password exchange it, as the Bearer
// challenge tells them to.
const tokenPath = "/token"

// Auth says who may pull. Secrets are known by their sha256 only, and compared in a time
// that does not depend on them.
type Auth struct {
	bearer   bool
	username [sha256.Size]byte
	secret   [sha256.Size]byte
}

// Basic lets in who has the user name and a password with that sha256.
func Basic(username string, passwordSHA256 [sha256.Size]byte) *Auth {
	return &Auth{username: sha256.Sum256([]byte(username)), secret: passwordSHA256}
}

// Token lets in who sends a bearer token with that sha256. Clients that are configured
// with a user name and a password get in as well, with any name and the token as the
// password: they exchange it at /token for itself, as they do at other registries.
func Token(tokenSHA256 [sha256.Size]byte) *Auth {
	return &Auth{bearer: true, secret: tokenSHA256}
}

// realmHost are the Host headers that may stand in a challenge.
var realmHost = lazyregexp.New(`^[a-zA-Z0-9.:_\[\]-]{1,255}$`)

// admits reports whether a request may be answered.
func (a *Auth) admits(r *http.Request) bool {
	if !a.bearer {
		username, password, ok := r.BasicAuth()
		return a.matches(username, password) && ok
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], a.secret[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

func (a *Auth) matches(username, password string) bool {
	name, secret := sha256.Sum256([]byte(username)), sha256.Sum256([]byte(password))
	same := subtle.ConstantTimeCompare(secret[:], a.secret[:])
	if !a.bearer {
		same &= subtle.ConstantTimeCompare(name[:], a.username[:])
	}
	return same == 1
}

// challenge says what credentials are asked for.
func (a *Auth) challenge(w http.ResponseWriter, r *http.Request, secured bool) *failure {
	value := `Basic realm="boxlift"`
	if a.bearer && r.URL.Path != tokenPath {
		if !realmHost.MatchString(r.Host) {
			return fail(http.StatusBadRequest, codeUnsupported, "the Host header is not that of a host", nil)
		}
		scheme := "http"
		if secured {
			scheme = "https"
		}
		value = `Bearer realm="` + scheme + "://" + r.Host + tokenPath + `",service="boxlift"`
	}
	w.Header().Set("WWW-Authenticate", value)
	return fail(http.StatusUnauthorized, codeUnauthorized, "credentials are needed, or these are wrong", nil)
}

// exchange answers with the token for a password that is the token.
func (a *Auth) exchange(w http.ResponseWriter, r *http.Request, secured bool) *failure {
	username, password, ok := r.BasicAuth()
	if !a.matches(username, password) || !ok {
		return a.challenge(w, r, secured)
	}
	bulktls.Authenticated(r.Context())
	content, err := json.Marshal(map[string]any{"token": password, "access_token": password, "expires_in": 3600})
	if err != nil {
		return broken(err)
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, "application/json", http.StatusOK, content)
	return nil
}
