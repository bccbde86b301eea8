package push

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/target"
)

func TestChallenges(t *testing.T) {
	for header, want := range map[string][]challenge{
		"":                      nil,
		`Basic realm="harbor"`:  {{scheme: "basic", realm: "harbor"}},
		`basic  realm = harbor`: {{scheme: "basic", realm: "harbor"}},
		"Negotiate":             {{scheme: "negotiate"}},
		`Bearer realm="https://harbor.lan/service/token",service="harbor-registry",scope="repository:plant/x:pull,push"`: {
			{scheme: "bearer", realm: "https://harbor.lan/service/token", service: "harbor-registry"},
		},
		`Negotiate, Bearer realm="a, \"b\" c" , service="s", Basic realm=""`: {
			{scheme: "negotiate"}, {scheme: "bearer", realm: `a, "b" c`, service: "s"}, {scheme: "basic"},
		},
		`realm="of nothing"`:  nil,
		`Bearer realm="open`:  {{scheme: "bearer", realm: "open"}},
		`Bearer realm="open\`: {{scheme: "bearer", realm: "open"}},
		`"`:                   nil,
	} {
		got := parseChallenges([]string{header})
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(challenge{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", header, diff)
		}
	}
}

// FuzzChallenges expects no more of what a registry makes up than that reading it ends,
// and that what was understood is understood again.
func FuzzChallenges(f *testing.F) {
	f.Add(`Bearer realm="https://harbor.lan/service/token",service="harbor-registry"`)
	f.Add(`Negotiate, Basic realm=x, Bearer realm="a\"b"`)
	f.Fuzz(func(t *testing.T, header string) {
		for _, c := range parseChallenges([]string{header}) {
			if strings.ContainsAny(c.scheme, " \t,=\"") || c.scheme == "" {
				t.Fatalf("the scheme %q", c.scheme)
			}
			quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
			again := fmt.Sprintf(`%s realm="%s", service="%s"`, c.scheme, quote.Replace(c.realm), quote.Replace(c.service))
			if diff := cmp.Diff([]challenge{c}, parseChallenges([]string{again}), cmp.AllowUnexported(challenge{})); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", again, diff)
			}
		}
	})
}

// TestKeychain finds credentials in docker's configuration.
func TestKeychain(t *testing.T) {
	s := target.Start(t, target.Options{Auth: target.Basic, Users: users})
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	both := base64.StdEncoding.EncodeToString([]byte(robot + ":" + password))
	if err := os.WriteFile(filepath.Join(dir, "config.json"),
		fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, s.Address(), both), 0o600); err != nil {
		t.Fatal(err)
	}
	o := optionsFor(t, s, func(o *Options) { o.Username, o.Password, o.Keychain = "", "", authn.DefaultKeychain })
	if _, err := Check(t.Context(), o); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(t.Context(), o); err == nil || !strings.Contains(err.Error(), "from the docker configuration") {
		t.Errorf("got %v", err)
	}
}

// TestOpenToReaders pushes to a registry that anybody may read and only users may change:
// it does not ask for credentials at first.
func TestOpenToReaders(t *testing.T) {
	s := target.Start(t, target.Options{})
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if name, secret, ok := r.BasicAuth(); r.Method == http.MethodGet || r.Method == http.MethodHead ||
			ok && name == robot && secret == password {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="users"`)
		target.Refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		return true
	})
	o := optionsFor(t, s)
	expectComplete(t, o, mustPush(t, o))
	o.Username = ""
	s = target.Start(t, target.Options{Auth: target.Basic, Users: users})
	o.Address, o.CA = s.Address(), s.CA()
	var e *Error
	if _, err := pushWith(t.Context(), o, impatient); !errors.As(err, &e) || e.Status != http.StatusUnauthorized {
		t.Errorf("without credentials: %v", err)
	}
}

// TestTokensRunOut pushes to a registry that soon takes a token no more.
func TestTokensRunOut(t *testing.T) {
	s := target.Start(t, target.Options{Kind: target.Debian, Auth: target.Token, Users: users})
	var mu sync.Mutex
	used := make(map[string]int)
	refused := 0
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		mu.Lock()
		defer mu.Unlock()
		if used[token]++; !ok || used[token] <= 8 {
			return false
		}
		refused++
		// Harbor asks for a password after a token, which is not what it wants.
		w.Header().Set("WWW-Authenticate", `Basic realm="harbor"`)
		target.Refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "token is expired")
		return true
	})
	o := optionsFor(t, s)
	result := mustPush(t, o)
	if refused == 0 {
		t.Error("no token was refused")
	}
	s.Heal()
	expectComplete(t, o, result)
}

// TestTokenServices asks services that behave otherwise than Harbor's.
func TestTokenServices(t *testing.T) {
	for name, test := range map[string]struct {
		config authn.AuthConfig
		answer string
		status int
		want   string // of the next request's header, or of the error
	}{
		"access token":   {authn.AuthConfig{Username: "a", Password: "b"}, `{"access_token":"t"}`, 200, "Bearer t"},
		"identity token": {authn.AuthConfig{IdentityToken: "canary"}, `{"access_token":"t"}`, 200, "Bearer t"},
		"registry token": {authn.AuthConfig{RegistryToken: "r"}, ``, 500, "Bearer r"},
		"no token":       {authn.AuthConfig{}, `{"canary":1}`, 200, "its answer has no token"},
		"no JSON":        {authn.AuthConfig{}, `canary`, 200, "its answer has no token"},
		"refused": {authn.AuthConfig{Username: "a", Password: "b"}, `{"errors":[{"code":"DENIED","message":"m"}]}`,
			403, "the registry answered 403 Forbidden: DENIED: m"},
	} {
		t.Run(name, func(t *testing.T) {
			var service *httptest.Server
			service = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasPrefix(r.URL.Path, "/v2/") && r.Header.Get("Authorization") != "":
					w.Header().Set("Got", r.Header.Get("Authorization"))
				case strings.HasPrefix(r.URL.Path, "/v2/"):
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+service.URL+`/token",service="s"`)
					w.WriteHeader(http.StatusUnauthorized)
				case test.config.IdentityToken != "" && (r.Method != http.MethodPost || r.FormValue("refresh_token") != "canary"):
					w.WriteHeader(http.StatusBadRequest)
				default:
					w.WriteHeader(test.status)
					fmt.Fprint(w, test.answer)
				}
			}))
			defer service.Close()
			c, err := newClient(Options{
				Address: strings.TrimPrefix(service.URL, "http://"), PlainHTTP: true, Keychain: fixed(test.config),
				Log: slog.New(slog.DiscardHandler), Reporter: progress.Discard,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			impatient(&pusher{client: c})
			header, err := c.ask(t.Context(), http.MethodHead, &subject{repository: "a/b"}, "manifests/1")
			text := fmt.Sprint(err)
			if err == nil {
				text = header.Get("Got")
			}
			if !strings.Contains(text, test.want) || strings.Contains(text, "canary") {
				t.Errorf("got %s, expected %s", text, test.want)
			}
		})
	}
}

// TestRealms expects passwords to be sent over TLS only where the registry is.
func TestRealms(t *testing.T) {
	c, err := newClient(Options{Address: "harbor.lan", Username: robot, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	for _, realm := range []string{"http://harbor.lan/service/token", "ftp://harbor.lan", "", "/service/token", "https:",
		":"} {
		_, err := c.choose([]string{fmt.Sprintf("Bearer realm=%q", realm)})
		if err == nil || !strings.Contains(err.Error(), "expected one with https") {
			t.Errorf("%s: got %v", realm, err)
		}
	}
}

// fixed is a keychain with one entry.
type fixed authn.AuthConfig

func (f fixed) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig(f)), nil
}
