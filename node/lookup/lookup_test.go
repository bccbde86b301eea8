package lookup

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const (
	user, password = "robot$pull", "canary"
	refreshToken   = "refresh-canary"
)

// lan is a registry over TLS that wants to be logged in to.
type lan struct {
	*httptest.Server
	memory http.Handler
	auth   string  // basic, token, or none
	scheme string  // of the token service
	moved  string  // where blobs and manifests by digest lie: another server
	single v1.Hash // the manifest of team/single:1
}

// newLAN has team/multi:1 for linux/amd64 and linux/arm64, and team/single:1 for linux/amd64 alone.
// change is called before it answers.
func newLAN(t *testing.T, auth string, change func(*testing.T, *lan)) *lan {
	t.Helper()
	l := &lan{auth: auth, scheme: "https", memory: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	open := httptest.NewServer(l.memory)
	t.Cleanup(open.Close)
	image := func(architecture string) v1.Image {
		one, err := random.Image(100, 1)
		if err != nil {
			t.Fatal(err)
		}
		config, err := one.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		config.OS, config.Architecture = "linux", architecture
		if one, err = mutate.ConfigFile(one, config); err != nil {
			t.Fatal(err)
		}
		return one
	}
	reference := func(s string) name.Reference {
		r, err := name.ParseReference(strings.TrimPrefix(open.URL, "http://")+"/"+s, name.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var index v1.ImageIndex = empty.Index
	for _, architecture := range []string{"amd64", "arm64"} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image(architecture),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
	}
	single := image("amd64")
	var err error
	if l.single, err = single.Digest(); err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(reference("team/multi:1"), index); err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(reference("team/single:1"), single); err != nil {
		t.Fatal(err)
	}
	l.Server = httptest.NewUnstartedServer(http.HandlerFunc(l.serve))
	l.Config.ErrorLog = log.New(io.Discard, "", 0)
	if change != nil {
		change(t, l)
	}
	l.StartTLS()
	t.Cleanup(l.Close)
	return l
}

func (l *lan) serve(w http.ResponseWriter, r *http.Request) {
	login, given, _ := r.BasicAuth()
	isUser := login == user && given == password
	field := ""
	switch l.auth {
	case "basic":
		if !isUser {
			field = `Basic realm="lan"`
		}
	case "token":
		if r.URL.Path == "/token" {
			_ = r.ParseForm()
			if !isUser && r.PostForm.Get("refresh_token") != refreshToken {
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"no"}]}`, http.StatusUnauthorized)
				return
			}
			// A token is good for what it was asked for.
			_, _ = fmt.Fprintf(w, `{"access_token":%q}`, r.Form.Get("scope")+"="+r.Form.Get("service"))
			return
		}
		repository := strings.Join(strings.Split(r.URL.Path, "/")[2:4], "/")
		if r.Header.Get("Authorization") != "Bearer repository:"+repository+":pull=lan" {
			realm := l.scheme + "://" + r.Host + "/token"
			field = fmt.Sprintf(`Bearer realm="%s",service="lan",scope="repository:%s:pull"`, realm, repository)
		}
	}
	if field != "" {
		w.Header().Set("WWW-Authenticate", field)
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required for \u001b[31m`+given+`"}]}`)
		return
	}
	if l.moved != "" && strings.Contains(r.URL.Path, "sha256:") {
		http.Redirect(w, r, l.moved+r.URL.Path+"?signature=secret", http.StatusTemporaryRedirect)
		return
	}
	l.memory.ServeHTTP(w, r)
}

func (l *lan) authority() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.Certificate().Raw}))
}

// registry is how to talk to it.
func (l *lan) registry(change ...func(*Registry)) Registry {
	r := Registry{URL: l.URL + "/v2", Username: user, Password: password, Authorities: l.authority()}
	for _, c := range change {
		c(&r)
	}
	return r
}

// asked has boxlift-node ask, and reads its answer as boxlift does.
func asked(t *testing.T, r Request) [][]Answer {
	t.Helper()
	r.Version, r.Milliseconds = Version, 60_000
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Run(t.Context(), bytes.NewReader(append(line, '\n')), &out); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{password, refreshToken, "signature"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("the answer has a secret: %s", &out)
		}
	}
	report, err := ReadReport(&out, &r)
	if err != nil {
		t.Fatal(err)
	}
	return report.Images
}

func TestLookup(t *testing.T) {
	set := func(f func(*Registry)) func(*lan) Registry { return func(l *lan) Registry { return l.registry(f) } }
	whole := set(func(*Registry) {})
	for _, c := range []struct {
		name, auth            string
		registry              func(*lan) Registry
		change                func(*testing.T, *lan)
		repository, reference string
		platform              string // linux/amd64 without one
		state                 State
		detail                string // a part of it
	}{
		{name: "an index, with a password", auth: "basic", registry: whole, state: Found},
		{name: "with a token", auth: "token", registry: whole, state: Found},
		{name: "with base64 of both", auth: "token", state: Found, registry: set(func(r *Registry) {
			r.Username, r.Password, r.Basic = "", "", "cm9ib3QkcHVsbDpjYW5hcnk="
		})},
		{name: "with an identity token", auth: "token", state: Found, registry: set(func(r *Registry) {
			r.Username, r.Password, r.IdentityToken = "", "", refreshToken
		})},
		{name: "without a login, where none is needed", registry: set(func(r *Registry) { r.Username, r.Password = "", "" }),
			state: Found},
		{name: "another platform of the index", auth: "token", registry: whole, platform: "linux/arm64", state: Found},
		{name: "a single manifest", auth: "token", registry: whole, repository: "team/single", state: Found},
		{name: "for another platform", auth: "basic", registry: whole, repository: "team/single", platform: "linux/arm64",
			state: OtherPlatform, detail: "it has it for linux/amd64 only"},
		{name: "an index without the platform", auth: "basic", registry: whole, platform: "linux/s390x", state: OtherPlatform,
			detail: "it has it for linux/amd64, linux/arm64 only"},
		{name: "no such tag", auth: "token", registry: whole, reference: "2", state: Absent, detail: "404 Not Found: MANIFEST_UNKNOWN"},
		{name: "no such repository", auth: "basic", registry: whole, repository: "team/other", state: Absent, detail: "404 Not Found: NAME_UNKNOWN"},
		{name: "a wrong password", auth: "basic", registry: set(func(r *Registry) { r.Password = "wrong" }), state: Denied,
			detail: "401 Unauthorized: UNAUTHORIZED: authentication required"},
		{name: "no login", auth: "basic", registry: set(func(r *Registry) { r.Username, r.Password = "", "" }), state: Denied,
			detail: "401 Unauthorized"},
		{name: "a wrong password for a token", auth: "token", registry: set(func(r *Registry) { r.Password = "wrong" }),
			state: Denied, detail: ": it answers 401 Unauthorized: UNAUTHORIZED: no"},
		{name: "a token service without TLS", auth: "token", registry: whole, change: func(_ *testing.T, l *lan) { l.scheme = "http" },
			state: Odd, detail: "has no TLS: no login is sent there"},
		{name: "an authority that nobody trusts", auth: "basic", registry: set(func(r *Registry) { r.Authorities = "" }),
			state: Unreached, detail: "certificate signed by unknown authority"},
		{name: "which does not matter", auth: "basic", state: Found,
			registry: set(func(r *Registry) { r.Authorities, r.Insecure = "", true })},
		{name: "a file that is not there", auth: "basic", registry: set(func(r *Registry) { r.CAFile = "/none/ca.crt" }),
			state: Unreached, detail: "its authority: stat /none/ca.crt: no such file"},
		{name: "nobody there", registry: set(func(r *Registry) { r.URL = "https://127.0.0.1:1/v2" }), state: Unreached,
			detail: "connection refused"},
		{name: "redirected, without the login", auth: "token", registry: whole, repository: "team/single", state: Found,
			change: func(t *testing.T, l *lan) {
				storage := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Authorization") != "" {
						t.Error("another host gets the login")
					}
					l.memory.ServeHTTP(w, r)
				}))
				t.Cleanup(storage.Close)
				_, port, _ := net.SplitHostPort(storage.Listener.Addr().String())
				l.moved = "https://example.com:" + port // which httptest's certificate is for
			}},
		{name: "redirected away from TLS", auth: "token", registry: whole, repository: "team/single", state: Unreached,
			detail: "it redirects from https to http", change: func(_ *testing.T, l *lan) { l.moved = "http://example.com" }},
		{name: "in circles", registry: whole, state: Unreached, detail: "it redirects more than 10 times",
			change: func(_ *testing.T, l *lan) {
				l.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					http.Redirect(w, r, r.URL.Path, http.StatusFound)
				})
			}},
		{name: "other bytes than the digest's", registry: whole, reference: "sha256:" + strings.Repeat("0", 64), state: Odd,
			detail: "has the digest sha256:", change: func(_ *testing.T, l *lan) { l.answer(200, typeIndex, "{}") }},
		{name: "no manifest", registry: whole, state: Odd, detail: `no manifest that containerd takes, but "text/html"`,
			change: func(_ *testing.T, l *lan) { l.answer(200, "text/html", "{}") }},
		{name: "a page", registry: whole, state: Odd, detail: "no manifest",
			change: func(_ *testing.T, l *lan) { l.answer(200, "text/html", "<html>") }},
		{name: "without an end", registry: whole, state: Odd, detail: "its answer has more than 4194304 bytes",
			change: func(_ *testing.T, l *lan) { l.answer(200, typeIndex, strings.Repeat(" ", maxManifest+1)) }},
		{name: "busy", registry: whole, state: Odd, detail: "it answers 503 Service Unavailable",
			change: func(_ *testing.T, l *lan) { l.answer(503, "text/plain", "\x1b[31mno") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLAN(t, c.auth, c.change)
			s := Source{Repository: "team/multi", Reference: "1"}
			if c.repository != "" {
				s.Repository = c.repository
			}
			if c.reference != "" {
				s.Reference = c.reference
			}
			if c.platform == "" {
				c.platform = "linux/amd64"
			}
			got := asked(t, Request{Platform: c.platform, Registries: []Registry{c.registry(l)}, Images: [][]Source{{s}},
				Addresses: map[string]string{"example.com": "127.0.0.1"}})[0][0]
			if got.State != c.state || !strings.Contains(got.Detail, c.detail) || (got.Detail == "") != (c.state == Found) {
				t.Errorf("it is %s: %q, expected %s: %q", got.State, got.Detail, c.state, c.detail)
			}
		})
	}
}

// answer has the registry say one thing only.
func (l *lan) answer(status int, mediaType, text string) {
	l.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	})
}

// TestAuthorityOfTheHost trusts what a file on the host has.
func TestAuthorityOfTheHost(t *testing.T) {
	l := newLAN(t, "basic", nil)
	file := filepath.Join(t.TempDir(), "ca.crt")
	for text, state := range map[string]State{l.authority(): Found, "nothing": Unreached} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := asked(t, Request{Platform: "linux/amd64", Images: [][]Source{{{Repository: "team/multi", Reference: "1"}}},
			Registries: []Registry{l.registry(func(r *Registry) { r.Authorities, r.CAFile = "", file })}})[0][0]
		if got.State != state {
			t.Errorf("with %.10q it is %s: %s", text, got.State, got.Detail)
		}
	}
}

// TestSourcesInOrder asks several registries until one has the image, by a name that only the request knows.
func TestSourcesInOrder(t *testing.T) {
	l := newLAN(t, "token", nil)
	u, err := url.Parse(l.URL)
	if err != nil {
		t.Fatal(err)
	}
	named := l.registry(func(r *Registry) { r.URL = "https://example.com:" + u.Port() + "/v2" }) // httptest's certificate has it
	nobody := l.registry(func(r *Registry) { r.URL = "https://127.0.0.1:1/v2" })
	got := asked(t, Request{
		Platform: "linux/amd64", Registries: []Registry{nobody, named}, Addresses: map[string]string{"example.com": "127.0.0.1"},
		Images: [][]Source{
			{{0, "team/multi", "1"}, {1, "team/multi", "1"}, {0, "team/multi", "1"}},
			{{1, "team/single", l.single.String()}},
			{{1, "team/none", "1"}, {0, "team/multi", "1"}},
			{},
		},
	})
	var states [][]State
	for _, answers := range got {
		one := []State{}
		for _, a := range answers {
			one = append(one, a.State)
		}
		states = append(states, one)
	}
	if diff := cmp.Diff([][]State{{Unreached, Found}, {Found}, {Absent, Unreached}, {}}, states); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

func TestChallenges(t *testing.T) {
	for _, c := range []struct {
		field, scheme string
		parameters    map[string]string
	}{
		{`Bearer realm="https://a/t",service="b c",scope="x:y:pull,push"`, "bearer",
			map[string]string{"realm": "https://a/t", "service": "b c", "scope": "x:y:pull,push"}},
		{`BASIC Realm = lan`, "basic", map[string]string{"realm": "lan"}},
		{`Bearer realm="a\"b\\c", error=insufficient_scope , realm="second"`, "bearer",
			map[string]string{"realm": `a"b\c`, "error": "insufficient_scope"}},
		{`Bearer realm="open`, "bearer", map[string]string{}},
		{`Negotiate`, "negotiate", map[string]string{}},
		{``, "", map[string]string{}},
	} {
		scheme, parameters := parseChallenge(c.field)
		if diff := cmp.Diff(c.parameters, parameters); scheme != c.scheme || diff != "" {
			t.Errorf("%q is %q (-want +got):\n%s", c.field, scheme, diff)
		}
	}
}

// TestHostileRequests refuses what boxlift does not ask, without a word of a login.
func TestHostileRequests(t *testing.T) {
	const head = `{"version":1,"platform":"linux/amd64","milliseconds":1,`
	for _, text := range []string{
		``, `{}`, head + `"registries":[],"images":[],"more":"canary"}`,
		`{"version":2,"platform":"linux/amd64","milliseconds":1,"registries":[],"images":[]}`,
		`{"version":1,"platform":"linux/amd64","milliseconds":120001,"registries":[],"images":[]}`,
		`{"version":1,"platform":"../x","milliseconds":1,"registries":[],"images":[]}`,
		head + `"registries":[{"url":"file:///etc/passwd"}],"images":[]}`,
		head + `"registries":[{"url":"https://canary@a.lan/v2"}],"images":[]}`,
		head + `"registries":[{"url":"https://a.lan/v2","basic":"canary\n"}],"images":[]}`,
		head + `"registries":[],"images":[[{"registry":0,"repository":"a","reference":"1"}]]}`,
		head + `"registries":[{"url":"https://a.lan/v2"}],"images":[[{"registry":0,"repository":"../a","reference":"1"}]]}`,
		head + `"registries":[{"url":"https://a.lan/v2"}],"images":[[{"registry":0,"repository":"a","reference":"1/../../x"}]]}`,
	} {
		var out bytes.Buffer
		err := Run(t.Context(), strings.NewReader(text+"\n"), &out)
		if err == nil || out.Len() != 0 {
			t.Errorf("%s: %v, %s", text, err, &out)
		} else if strings.Contains(err.Error(), "canary\n") {
			t.Errorf("%s: the error has the login: %v", text, err)
		}
	}
}

// TestHostileReports refuses answers that do not fit the question.
func TestHostileReports(t *testing.T) {
	r := &Request{Images: [][]Source{{{}, {}}}}
	for _, c := range []struct {
		text string
		ok   bool
	}{
		{`{"version":1,"images":[[{"state":"found"}]]}`, true},
		{`{"version":1,"images":[[{"state":"absent","detail":"404"},{"state":"odd"}]]}`, true},
		{`{"version":1,"images":[[{"state":"absent"}]]}`, false},
		{`{"version":1,"images":[[{"state":"found"},{"state":"found"}]]}`, false},
		{`{"version":1,"images":[[{"state":"odd"},{"state":"odd"},{"state":"odd"}]]}`, false},
		{`{"version":1,"images":[[]]}`, false},
		{`{"version":1,"images":[]}`, false},
		{`{"version":2,"images":[[{"state":"found"}]]}`, false},
		{`{"version":1,"images":[[{"state":"fine"}]]}`, false},
		{`{"version":1,"images":[[{"state":"absent","detail":"` + strings.Repeat("x", 1<<16) + `"},{"state":"odd"}]]}`, false},
	} {
		if _, err := ReadReport(strings.NewReader(c.text+"\n"), r); (err == nil) != c.ok {
			t.Errorf("%.200s: %v", c.text, err)
		}
	}
}

func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer realm="https://a/t",service="b c",scope=x`)
	f.Add(`Basic realm="\`)
	f.Add(`a b=,c="d"e,=`)
	f.Fuzz(func(t *testing.T, field string) {
		_, parameters := parseChallenge(field)
		size := 0
		for key, value := range parameters {
			size += len(key) + len(value)
		}
		if size > len(field) {
			t.Errorf("%q has %d bytes of parameters", field, size)
		}
	})
}

// FuzzReport reads whatever a host says.
func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"version":1,"images":[[{"state":"absent","detail":"404"},{"state":"found"}]]}`))
	f.Add([]byte(`{"version":1,"images":[[{"state":"absent","detail":"` + "\x1b" + `[31m"},{"state":"odd"}]]}`))
	r := &Request{Images: [][]Source{{{}, {}}}}
	f.Fuzz(func(t *testing.T, line []byte) {
		report, err := ReadReport(bytes.NewReader(append(line, '\n')), r)
		if err != nil {
			return
		}
		for _, a := range report.Images[0] {
			if strings.ContainsFunc(a.Detail, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' }) {
				t.Errorf("the detail is %q", a.Detail)
			}
		}
	})
}
