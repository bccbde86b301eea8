package push

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// What a token may be good for.
const (
	actionPull = "pull"
	actionPush = "pull,push"
)

// credentials are what one request carries.
type credentials struct {
	header string // of Authorization; empty where none are needed
	// generation is that of the challenge that they answer.
	generation int
}

// authorizer knows how the registry wants to be asked: with nothing, with a password, or
// with tokens of a token service, one for each repository (the distribution project's
// token authentication specification, which Harbor and others follow).
type authorizer struct {
	client *client
	action string
	config authn.AuthConfig

	mu         sync.Mutex
	challenge  *challenge // nil until the registry was asked
	generation int
	tokens     map[string]*token // by scope
}

// token is fetched by the first who needs it.
type token struct {
	mu      sync.Mutex
	value   string
	expires time.Time
}

func newAuthorizer(c *client, o Options, action string) (*authorizer, error) {
	a := &authorizer{client: c, action: action, tokens: make(map[string]*token)}
	switch {
	case o.Username != "":
		a.config = authn.AuthConfig{Username: o.Username, Password: o.Password}
	case o.Keychain != nil:
		registry, err := name.NewRegistry(o.Address)
		if err != nil {
			return nil, &AddressError{}
		}
		found, err := o.Keychain.Resolve(registry)
		if err != nil {
			return nil, fmt.Errorf("read the credentials for %s from the docker configuration: %w", o.Address, err)
		}
		config, err := found.Authorization()
		if err != nil {
			return nil, fmt.Errorf("read the credentials for %s from the docker configuration: %w", o.Address, err)
		}
		a.config = *config
	}
	if err := a.unpack(); err != nil {
		return nil, fmt.Errorf("read the credentials for %s from the docker configuration: %w", o.Address, err)
	}
	return a, nil
}

// unpack takes name and password from where docker may have them together.
func (a *authorizer) unpack() error {
	if a.config.Auth == "" || a.config.Username != "" {
		return nil
	}
	both, err := base64.StdEncoding.DecodeString(a.config.Auth)
	if err != nil {
		return errors.New("what should be base64 is not")
	}
	a.config.Username, a.config.Password, _ = strings.Cut(string(both), ":")
	return nil
}

// anonymous reports whether there is nothing to log in with.
func (a *authorizer) anonymous() bool {
	return a.config.Username == "" && a.config.IdentityToken == "" && a.config.RegistryToken == ""
}

// credentials returns those for a request to a repository, which may read from another.
func (a *authorizer) credentials(ctx context.Context, repository, from string) (*credentials, error) {
	challenge, generation, err := a.known(ctx)
	if err != nil {
		return nil, err
	}
	return a.answer(ctx, challenge, generation, repository, from)
}

// known asks the registry, once, how it wants to be asked.
func (a *authorizer) known(ctx context.Context) (*challenge, int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.challenge != nil {
		return a.challenge, a.generation, nil
	}
	ping := request{method: http.MethodGet, accept: []int{http.StatusOK}, what: "ask how to log in"}
	_, err := a.client.exchange(ctx, ping, &credentials{})
	var refused *Error
	switch {
	case err == nil:
		a.challenge = &challenge{}
	case errors.As(err, &refused) && refused.Status == http.StatusUnauthorized:
		if a.challenge = choose(refused.challenges); a.challenge == nil {
			return nil, 0, err
		}
	default:
		return nil, 0, err
	}
	return a.challenge, a.generation, nil
}

// challenged returns other credentials after a request with the given ones was refused,
// or nil when there are none.
func (a *authorizer) challenged(ctx context.Context, challenges []challenge, refused *credentials, repository, from string) (*credentials, error) {
	a.mu.Lock()
	next := choose(challenges)
	switch {
	case a.generation != refused.generation:
		// Somebody else was here before.
	case a.challenge.scheme == schemeBearer && refused.header != "":
		// The token may have run out; a new one comes from the same place. Harbor asks
		// for a password after a token, and would refuse that as well.
		delete(a.tokens, a.scope(repository, from))
	case next != nil && next.scheme != a.challenge.scheme:
		// Anybody may see this registry, and only those who log in may change it.
		a.challenge = next
		a.generation++
	default:
		a.mu.Unlock()
		return nil, nil
	}
	challenge, generation := a.challenge, a.generation
	a.mu.Unlock()
	return a.answer(ctx, challenge, generation, repository, from)
}

func (a *authorizer) answer(ctx context.Context, challenge *challenge, generation int, repository, from string) (*credentials, error) {
	result := &credentials{generation: generation}
	switch {
	case a.config.RegistryToken != "" && challenge.scheme != "":
		result.header = "Bearer " + a.config.RegistryToken
	case challenge.scheme == schemeBasic && a.config.Username != "":
		result.header = basic(a.config)
	case challenge.scheme == schemeBearer:
		value, err := a.token(ctx, challenge, a.scope(repository, from))
		if err != nil {
			return nil, err
		}
		result.header = "Bearer " + value
	}
	return result, nil
}

func basic(c authn.AuthConfig) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(c.Username+":"+c.Password))
}

// scope says what a token has to be good for.
func (a *authorizer) scope(repository, from string) string {
	scope := "repository:" + repository + ":" + a.action
	if from != "" {
		scope += " repository:" + from + ":" + actionPull
	}
	return scope
}

// token returns one for the scope that is good for a while yet.
func (a *authorizer) token(ctx context.Context, challenge *challenge, scope string) (string, error) {
	a.mu.Lock()
	t, ok := a.tokens[scope]
	if !ok {
		t = &token{}
		a.tokens[scope] = t
	}
	a.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.value != "" && time.Now().Before(t.expires) {
		return t.value, nil
	}
	value, lifetime, err := a.fetch(ctx, challenge, scope)
	if err != nil {
		return "", err
	}
	// A request that starts now must arrive while the token is good.
	t.value, t.expires = value, time.Now().Add(lifetime*9/10)
	return value, nil
}

const (
	// maxToken bounds the answer of a token service, in bytes.
	maxToken = 64 << 10
	// usualLifetime is that of a token whose service does not say it (token
	// authentication specification: 60 seconds).
	usualLifetime = time.Minute
)

// fetch asks the token service for a token.
func (a *authorizer) fetch(ctx context.Context, challenge *challenge, scope string) (string, time.Duration, error) {
	realm, err := url.Parse(challenge.realm)
	r := request{what: "log in at its token service"}
	if err != nil || realm.Host == "" || realm.Scheme != "https" && realm.Scheme != a.client.base.Scheme {
		return "", 0, a.client.newError(r, fmt.Errorf("the registry names the address %q, expected one with %s", challenge.realm, a.client.base.Scheme))
	}
	message, err := a.tokenRequest(ctx, realm, challenge.service, scope)
	if err != nil {
		return "", 0, a.client.failure(r, err)
	}
	response, err := a.client.http.Do(message)
	if err != nil {
		return "", 0, a.client.failure(r, noAnswer(ctx, err))
	}
	defer response.Body.Close() //nolint:errcheck // what matters of it is read
	content, err := io.ReadAll(io.LimitReader(response.Body, maxToken))
	if err != nil {
		return "", 0, a.client.failure(r, noAnswer(ctx, err))
	}
	if response.StatusCode != http.StatusOK {
		return "", 0, a.client.refusal(r, response, content)
	}
	var got struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
	}
	// The content is not repeated in an error: there may be a token in it.
	if json.Unmarshal(content, &got) != nil || got.Token == "" && got.AccessToken == "" {
		return "", 0, a.client.newError(r, errors.New("its answer has no token"))
	}
	if got.Token == "" {
		got.Token = got.AccessToken
	}
	lifetime := usualLifetime
	if got.ExpiresIn > 0 {
		lifetime = time.Duration(min(got.ExpiresIn, 24*60*60)) * time.Second
	}
	return got.Token, lifetime, nil
}

func (a *authorizer) tokenRequest(ctx context.Context, realm *url.URL, service, scope string) (*http.Request, error) {
	values := url.Values{"service": {service}}
	if a.config.IdentityToken != "" {
		values.Set("scope", scope)
		values.Set("grant_type", "refresh_token")
		values.Set("client_id", "boxlift")
		values.Set("refresh_token", a.config.IdentityToken)
		message, err := http.NewRequestWithContext(ctx, http.MethodPost, realm.String(), strings.NewReader(values.Encode()))
		if err == nil {
			message.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			message.Header.Set("User-Agent", a.client.agent)
		}
		return message, err
	}
	values["scope"] = strings.Fields(scope)
	query := realm.Query()
	maps.Copy(query, values)
	address := *realm
	address.RawQuery = query.Encode()
	message, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err == nil {
		message.Header.Set("User-Agent", a.client.agent)
		if a.config.Username != "" {
			message.Header.Set("Authorization", basic(a.config))
		}
	}
	return message, err
}

// Authentication schemes of registries, in lower case.
const (
	schemeBasic  = "basic"
	schemeBearer = "bearer"
)

// challenge is one of a WWW-Authenticate header (RFC 9110, 11.6.1).
type challenge struct {
	scheme         string // in lower case
	realm, service string
}

// choose returns the first challenge that can be met, or nil.
func choose(challenges []challenge) *challenge {
	for _, c := range challenges {
		if c.scheme == schemeBasic || c.scheme == schemeBearer {
			return &c
		}
	}
	return nil
}

// parseChallenges reads WWW-Authenticate headers as far as they can be understood: some
// have several challenges, and commas stand between those as well as within.
func parseChallenges(headers []string) []challenge {
	var result []challenge
	for _, rest := range headers {
		for {
			rest = strings.TrimLeft(rest, " \t,")
			word, after := cutWord(rest)
			if word == "" {
				break
			}
			value, next, isParameter := cutValue(after)
			if !isParameter {
				result = append(result, challenge{scheme: strings.ToLower(word)})
				rest = after
				continue
			}
			rest = next
			if len(result) == 0 {
				continue
			}
			switch last := &result[len(result)-1]; strings.ToLower(word) {
			case "realm":
				last.realm = value
			case "service":
				last.service = value
			}
		}
	}
	return result
}

func cutWord(s string) (word, rest string) {
	end := strings.IndexAny(s, " \t,=\"")
	if end < 0 {
		end = len(s)
	}
	return s[:end], s[end:]
}

// cutValue takes what follows a parameter's name: = and a word, or = and a quoted text.
func cutValue(s string) (value, rest string, ok bool) {
	s, ok = strings.CutPrefix(strings.TrimLeft(s, " \t"), "=")
	if !ok {
		return "", s, false
	}
	s = strings.TrimLeft(s, " \t")
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexAny(s, " \t,")
		if end < 0 {
			end = len(s)
		}
		return s[:end], s[end:], true
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return b.String(), "", true
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), "", true
}
