package survey

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/liteboxd/boxlift/install/liteboxd"
	"github.com/liteboxd/boxlift/install/preflight"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/test/sitetest"
)

// siteRegistry is a registry in memory, over TLS and with a login, that has these images for linux/amd64. It returns its
// address and the file of its authority.
func siteRegistry(t *testing.T, images ...string) (address, caFile string) {
	t.Helper()
	memory := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "puller" || password != "canary" {
			w.Header().Set("WWW-Authenticate", `Basic realm="site"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		memory.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	address = strings.TrimPrefix(s.URL, "https://")
	for _, image := range images {
		one, err := random.Image(100, 1)
		if err != nil {
			t.Fatal(err)
		}
		config, err := one.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		config.OS, config.Architecture = "linux", "amd64"
		if one, err = mutate.ConfigFile(one, config); err != nil {
			t.Fatal(err)
		}
		to, err := name.ParseReference(address + "/" + image)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(to, one, remote.WithTransport(s.Client().Transport),
			remote.WithAuth(&authn.Basic{Username: "puller", Password: "canary"})); err != nil {
			t.Fatal(err)
		}
	}
	caFile = filepath.Join(t.TempDir(), "ca.crt")
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(caFile, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return address, caFile
}

// TestImagesFromElsewhere has hosts ask the site's own registry for LiteBoxd's images, which are not in the bundle:
// where it has all of them, the hosts are fit, and where not, each host says which registry has said what.
func TestImagesFromElsewhere(t *testing.T) {
	all := []string{"team/api:1", "team/gateway:1", "team/web:1", "team/helper:1"}
	const registries = `registries:
  configs:
    "ADDRESS": {auth: {username: puller, password: PASSWORD}, tls: {ca_file: CAFILE}}
`
	const external = `seeding:
  mode: external
  external:
    address: "ADDRESS"
    pull: {username: puller, password: PASSWORD}
    caFile: CAFILE
`
	const mirror = `registries:
  mirrors:
    images.example: {endpoint: ["https://ADDRESS"], rewrite: {"^(.*)$": "team/$1"}}
  configs:
    "ADDRESS": {auth: {username: puller, password: PASSWORD}, tls: {ca_file: CAFILE}}
`
	for _, c := range []struct {
		name, settings, password string
		images                   []string // that the registry has
		prefix                   string   // of the images, ADDRESS/team without one
		found, hint              string   // of the findings on every host, "" for none
	}{
		{name: "by registries", settings: registries, images: all},
		{name: "by an endpoint with a rewrite", settings: mirror, images: all, prefix: "images.example"},
		{name: "by the external registry", settings: external, images: all, prefix: "other.example/team"},
		{name: "one is missing", settings: registries, images: all[1:],
			found: "the image ADDRESS/team/api:1 is not in the bundle, and the host does not get it: asked for team/api:1, " +
				"ADDRESS: it answers 404 Not Found: NAME_UNKNOWN: Unknown name",
			hint: "push team/api:1 to ADDRESS"},
		{name: "missing at the external registry", settings: external, images: all[1:], prefix: "other.example/team",
			found: "the image other.example/team/api:1 is not in the bundle, and the host does not get it: asked for team/api:1, " +
				"ADDRESS: it answers 404", hint: "push team/api:1 to ADDRESS"},
		{name: "another password", settings: registries, images: all, password: "wrong",
			found: "ADDRESS: it answers 401 Unauthorized", hint: `correct the login for ADDRESS in registries.configs["ADDRESS"] of install.yaml`},
	} {
		t.Run(c.name, func(t *testing.T) {
			address, caFile := siteRegistry(t, c.images...)
			password, prefix := "canary", address+"/team"
			if c.password != "" {
				password = c.password
			}
			if c.prefix != "" {
				prefix = c.prefix
			}
			fill := strings.NewReplacer("ADDRESS", address, "PASSWORD", password, "CAFILE", caFile)
			in, fakes := surveyed(t, exampleWith(fill.Replace(c.settings)))
			rendered, err := manifests.Render(manifests.Overlay{Bases: manifests.Embedded(), Parameters: manifests.Parameters{
				Images: manifests.Images{API: prefix + "/api:1", Gateway: prefix + "/gateway:1", Web: prefix + "/web:1",
					Helper: prefix + "/helper:1"},
			}})
			if err != nil {
				t.Fatal(err)
			}
			// Their names say where they are, so no check that needs no host stands in the way.
			if err := in.deployer.CheckImages(rendered.Images()); err != nil {
				t.Fatal(err)
			}
			in.deployer.Deployment = &liteboxd.Deployment{Rendered: rendered}
			err = in.preflight(t, t.Context(), true)
			var found []preflight.Finding
			for _, f := range in.surveyor.Findings {
				if f.Check == "images" {
					found = append(found, f)
				}
			}
			if c.found == "" {
				if err != nil || len(found) > 0 {
					t.Fatalf("%v, %v", err, found)
				}
				return
			}
			if err == nil || strings.Contains(err.Error(), password) {
				t.Errorf("the run: %v", err)
			}
			hosts := make([]string, 0, len(found))
			for _, f := range found {
				if !slices.Contains(hosts, f.Host) {
					hosts = append(hosts, f.Host)
				}
			}
			if len(hosts) != len(in.site.Hosts) {
				t.Fatalf("hosts that tell of it: %q", hosts)
			}
			if f := found[0]; f.Severity != preflight.Error || !strings.Contains(f.Found, fill.Replace(c.found)) ||
				!strings.HasPrefix(f.Hint, fill.Replace(c.hint)) || !strings.Contains(f.Needed, "linux/amd64") {
				t.Errorf("the finding is %+v", f)
			}
			for _, h := range in.site.Hosts {
				for _, command := range fakes[h.Config.Host].Commands() {
					if strings.Contains(command, password) {
						t.Errorf("%s: a login is among the arguments: %s", h.Name, command)
					}
					if strings.HasPrefix(command, "put ") && command != "put "+site.HelperPath {
						t.Errorf("%s: it was changed before: %s", h.Name, command)
					}
				}
			}
		})
	}
}

// exampleWith is the example with LiteBoxd and more.
func exampleWith(more string) string {
	return fmt.Sprintf("%sliteboxd: {}\n%s", strings.ReplaceAll(sitetest.ExampleConfig, `"--disable=traefik", `, ""), more)
}
