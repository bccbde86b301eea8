package push

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// credentialOf returns what the user gave to log in with, or docker's configuration has.
func credentialOf(o Options) (auth.Credential, error) {
	switch {
	case o.Username != "":
		return auth.Credential{Username: o.Username, Password: o.Password}, nil
	case o.Keychain == nil:
		return auth.EmptyCredential, nil
	}
	at, err := name.NewRegistry(o.Address)
	if err != nil {
		return auth.EmptyCredential, &AddressError{}
	}
	found, err := o.Keychain.Resolve(at)
	var config *authn.AuthConfig
	if err == nil {
		config, err = found.Authorization()
	}
	if err != nil {
		return auth.EmptyCredential,
			fmt.Errorf("read the credentials for %s from the docker configuration: %w", o.Address, err)
	}
	return auth.Credential{
		Username: config.Username, Password: config.Password,
		RefreshToken: config.IdentityToken, AccessToken: config.RegistryToken,
	}, nil
}

// unauthorized is the answer of a registry that wants a token.
func unauthorized(r *http.Request, challenge string) *http.Response {
	return &http.Response{
		StatusCode: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {challenge}},
		Body: http.NoBody, Request: r,
	}
}

// knownBearer returns the challenge that tokens answer, or "" where none is known.
func (c *client) knownBearer() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bearer
}

// challenged puts one challenge that [auth.Client] can meet in place of those of an answer, or
// none: it reads the first one only.
func (c *client) challenged(r *http.Request, response *http.Response) error {
	header, err := c.choose(response.Header.Values("WWW-Authenticate"))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case strings.HasPrefix(header, "Bearer"):
		c.bearer = header
	case c.bearer != "" && strings.HasPrefix(r.Header.Get("Authorization"), "Bearer"):
		// The token may have run out; a new one comes from the same place. Harbor asks for a
		// password after a token, and would refuse that as well.
		header = c.bearer
	}
	if header == "" {
		response.Header.Del("WWW-Authenticate")
	} else {
		response.Header.Set("WWW-Authenticate", header)
	}
	return nil
}

// choose returns the first challenge that can be met, or "".
func (c *client) choose(headers []string) (string, error) {
	for _, o := range parseChallenges(headers) {
		switch {
		case c.credential.AccessToken != "":
			return "Bearer realm=" + strconv.Quote(c.base.String()), nil
		case o.scheme == "basic" && c.credential.Username != "" && c.credential.Password != "":
			return "Basic", nil
		case o.scheme == "bearer":
			realm, err := url.Parse(o.realm)
			if err != nil || realm.Host == "" || realm.Scheme != "https" && realm.Scheme != c.base.Scheme {
				return "", c.newError(&subject{what: whatLogin},
					fmt.Errorf("the registry names the address %q, expected one with %s", o.realm, c.base.Scheme))
			}
			// oras refuses token services at private addresses, where a site has its own.
			return fmt.Sprintf("Bearer realm=%q,service=%s", elsewhere(c.base, realm), strconv.Quote(o.service)), nil
		}
	}
	return "", nil
}

// checkToken expects a token in the answer of a token service, which is not repeated in
// errors.
func (c *client) checkToken(s *subject, content []byte) error {
	var got struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if json.Unmarshal(content, &got) != nil || got.Token == "" && got.AccessToken == "" {
		return c.newError(s, errors.New("its answer has no token"))
	}
	return nil
}

// challenge is one of a WWW-Authenticate header (RFC 9110, 11.6.1).
type challenge struct {
	scheme         string // in lower case
	realm, service string
}

var (
	// wordPattern is a scheme, or a parameter with = and a word or a quoted text.
	wordPattern   = lazyregexp.New(`(?s)([^ \t,="]+)([ \t]*=[ \t]*("((?:[^"\\]|\\.?)*)"?|[^ \t,]*))?`)
	escapePattern = lazyregexp.New(`(?s)\\(.?)`)
)

// parseChallenges reads WWW-Authenticate headers as far as they can be understood: some
// have several challenges, and commas stand between those as well as within.
func parseChallenges(headers []string) []challenge {
	var result []challenge
	for _, header := range headers {
		for _, m := range wordPattern.FindAllStringSubmatch(header, -1) {
			word, value := strings.ToLower(m[1]), m[3]
			if m[2] == "" {
				result = append(result, challenge{scheme: word})
				continue
			}
			if strings.HasPrefix(value, `"`) {
				value = escapePattern.ReplaceAllString(m[4], "$1")
			}
			if len(result) == 0 {
				continue
			}
			switch last := &result[len(result)-1]; word {
			case "realm":
				last.realm = value
			case "service":
				last.service = value
			}
		}
	}
	return result
}
