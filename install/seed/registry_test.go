package seed

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/authority"
	"github.com/liteboxd/boxlift/install/run"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/progress"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// Who asks a registry learns whether it is the right one and takes the login.
func TestRegistryLogin(t *testing.T) {
	mine, err := authority.Open(authority.Options{Dir: filepath.Join(t.TempDir(), "mine"), Cluster: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := authority.Open(authority.Options{Dir: filepath.Join(t.TempDir(), "other"), Cluster: "other"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := mine.Issue([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair, pair)
	if err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != run.RegistryUsername || password != mine.Password() || r.URL.Path != "/v2/" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	defer server.Close()
	plain := httptest.NewServer(handler)
	defer plain.Close()
	dial := new(net.Dialer).DialContext
	login := RegistryLogin{Address: server.Listener.Addr().String(), Username: run.RegistryUsername, Password: mine.Password(), Ca: mine.CA()}

	if err := login.Ask(t.Context(), dial); err != nil {
		t.Errorf("the right login: %v", err)
	}
	for what, change := range map[string]func(*RegistryLogin){
		"HTTP 401":                 func(l *RegistryLogin) { l.Password = "wrong" },
		"unknown authority":        func(l *RegistryLogin) { l.Ca = other.CA() },
		"holds no certificate":     func(l *RegistryLogin) { l.Ca = []byte("nothing") },
		"does not look like a TLS": func(l *RegistryLogin) { l.Address = plain.Listener.Addr().String() },
	} {
		wrong := login
		change(&wrong)
		if err := wrong.Ask(t.Context(), dial); err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), mine.Password()) {
			t.Errorf("want %q, got %v", what, err)
		}
	}
	for what, change := range map[string]func(*RegistryLogin){
		"any certificate": func(l *RegistryLogin) { l.Insecure, l.Ca = true, nil },
		"no TLS":          func(l *RegistryLogin) { l.Plain, l.Address = true, plain.Listener.Addr().String() },
	} {
		other := login
		change(&other)
		if err := other.Ask(t.Context(), dial); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The program is told where to listen and who may ask, and not the password.
func TestRegistrySettings(t *testing.T) {
	in := seeded(t, sitetest.ExampleConfig+sitetest.OwnRegistry)
	in.site.StatePath = filepath.Join(t.TempDir(), "state.json")
	in.site.Hosts[0].IP = netip.MustParseAddr("10.0.0.11")
	s := &registryServer{in.seeder, in.site.Hosts[0]}
	content, err := s.settings()
	if err != nil {
		t.Fatal(err)
	}
	a, err := in.seeder.authority()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(a.Password()))
	want := map[string]string{
		"address": "10.0.0.11:5443", "imagesDir": run.RegistryImages, "certificate": run.RegistryPair, "key": run.RegistryPair,
		"username": run.RegistryUsername, "passwordSHA256": hex.EncodeToString(sum[:]),
	}
	var got map[string]string
	if err := json.Unmarshal(content, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if again, err := s.settings(); err != nil || string(again) != string(content) {
		t.Errorf("the second time it is another one: %v", err)
	}
}

// A run that only looks makes no authority, and one that is there is used by both.
func TestAuthorityIsMadeOnlyByChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	open := func(acts bool) (*authority.Authority, []string) {
		t.Helper()
		in := seeded(t, sitetest.ExampleConfig+sitetest.OwnRegistry)
		in.site.StatePath, in.site.Hosts[0].Member = path, true
		goThrough := in.engine.Look
		if acts {
			goThrough = in.engine.Apply
		}
		if _, err := in.seeder.authority(); err != nil { // somebody may have asked before
			t.Fatal(err)
		}
		if err := goThrough(t.Context(), []run.Phase{{Name: "registry", Look: func(ctx context.Context) error {
			return in.engine.RunSteps(ctx, "registry", &in.engine.Cluster, []run.Step{in.seeder.authorityStep()})
		}}}); err != nil {
			t.Fatal(err)
		}
		a, err := in.seeder.authority()
		if err != nil {
			t.Fatal(err)
		}
		return a, in.engine.Cluster.Differences
	}
	dir := filepath.Join(filepath.Dir(path), "registry-ca", "example")
	_, told := open(false)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) || len(told) != 1 || !strings.Contains(told[0], dir+" is missing") {
		t.Fatalf("looked at: %v, told %q", err, told)
	}
	made, _ := open(true)
	for _, acts := range []bool{false, true} {
		if a, told := open(acts); a.Password() != made.Password() || string(a.CA()) != string(made.CA()) || told != nil {
			t.Errorf("acts: %t: another authority is used; told %q", acts, told)
		}
	}
}

// What is left of boxlift's registry is looked for where the mode does without it, and
// nowhere while a host may still pull from it.
func TestWhatIsRetired(t *testing.T) {
	titles := func(in *installation, h *site.Host) string {
		var list []string
		for _, s := range in.seeder.retireSteps(h) {
			list = append(list, s.Title)
		}
		return strings.Join(list, ", ")
	}
	const both = "remove boxlift's registry, remove the authority of the registry"
	for text, want := range map[string][2]string{
		"":                   {both, both},
		sitetest.OwnRegistry: {"", "remove boxlift's registry"},
		sitetest.Harbor:      {both, both},
		strings.Replace(sitetest.Harbor, "    pull:", "    caFile: ca.crt\n    pull:", 1): {"remove boxlift's registry", "remove boxlift's registry"},
	} {
		in := seeded(t, sitetest.ExampleConfig+text)
		if got := [2]string{titles(in, in.site.Hosts[0]), titles(in, in.site.Hosts[1])}; got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	in := seeded(t, sitetest.ExampleConfig)
	in.engine.Only = []string{}
	if err := in.seeder.Retire(t.Context()); err != nil { // it would ask hosts that are not there
		t.Error(err)
	}
}

// The password that nodes have is that of boxlift's user at one of the servers' registries.
func TestPasswordIn(t *testing.T) {
	in := seeded(t, sitetest.ExampleConfig+sitetest.OwnRegistry)
	const good = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
	for text, want := range map[string]string{
		"": "",
		"configs: {'10.0.0.11:5443': {auth: {username: boxlift, password: " + good + "}}}":                                                     good,
		"configs: {'10.0.0.11:5443': {auth: {username: somebody, password: " + good + "}}}":                                                    "",
		"configs: {'10.0.0.99:5443': {auth: {username: boxlift, password: " + good + "}}}":                                                     "",
		"configs: {'10.0.0.11:5443': {auth: {username: boxlift, password: word}}}":                                                             "",
		"configs: {a.lan: {auth: {username: boxlift, password: word}}, '10.0.0.11:5443': {auth: {username: boxlift, password: " + good + "}}}": good,
	} {
		var file RegistriesFile
		if err := yaml.Unmarshal([]byte(text), &file); err != nil {
			t.Fatal(err)
		}
		if got := in.seeder.passwordIn(&file); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// Where the cluster's authority is not at hand, all hosts get another one, or none does.
func TestLostAuthority(t *testing.T) {
	for _, test := range []struct {
		name                      string
		known, has                bool // whether nodes have a password of it, and whether it lies here
		only                      []string
		refused, warned, toldOnce bool
	}{
		{name: "it lies here", known: true, has: true},
		{name: "no node has pulled from there yet"},
		{name: "all hosts", known: true, warned: true, toldOnce: true},
		{name: "a host that joins", known: true, only: []string{"10.0.0.12"}, refused: true},
	} {
		for _, acts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, acts: %t", test.name, acts), func(t *testing.T) {
				in := seeded(t, sitetest.ExampleConfig+sitetest.OwnRegistry)
				told := new(messages)
				in.site.StatePath, in.engine.Only, in.site.Reporter = filepath.Join(t.TempDir(), "state.json"), test.only, told
				if test.has {
					if _, err := authority.Open(in.seeder.AuthorityOptions()); err != nil {
						t.Fatal(err)
					}
				}
				if test.known {
					in.seeder.registryCA.password = strings.Repeat("0a", 32)
				}
				goThrough := in.engine.Look
				if acts {
					goThrough = in.engine.Apply
				}
				err := goThrough(t.Context(), []run.Phase{{Name: "preflight", Look: in.seeder.JudgeAuthority}})
				if errors.Is(err, site.ErrRefused) != test.refused || len(in.site.Warnings) > 0 != test.warned {
					t.Errorf("%v, %q", err, in.site.Warnings)
				}
				if (len(*told) == 1) != (acts && test.toldOnce) {
					t.Errorf("told %q", *told)
				}
			})
		}
	}
	in := seeded(t, sitetest.ExampleConfig+sitetest.OwnRegistry)
	in.site.StatePath, in.seeder.registryCA.password = filepath.Join(t.TempDir(), "state.json"), strings.Repeat("0a", 32)
	if a, err := in.seeder.authority(); err != nil || a.Password() != in.seeder.registryCA.password {
		t.Errorf("the password that nodes have is not kept: %v", err)
	}
}

// messages keeps what the operator is told.
type messages []string

func (m *messages) Message(text string) { *m = append(*m, text) }

func (*messages) Task(string, int64) progress.Task { return progress.Discard.Task("", 0) }
