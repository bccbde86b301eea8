//go:build linux

package registry

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/liteboxd/boxlift/test/certificate"
	"github.com/liteboxd/boxlift/test/containerd"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/toolbin"
)

// lan is a registry as others find it: with TLS and credentials.
type lan struct {
	*sample
	*running
	pair *pair
	log  *buffer
	home string
}

const (
	user   = "boxlift"
	secret = "0123456789abcdef"
)

func newLAN(t *testing.T, auth *Auth) *lan {
	l := &lan{sample: newSample(t), pair: newPair(t), log: &buffer{}, home: t.TempDir()}
	l.running = startServer(t, New(l.open(), Options{Log: lines(l.log), Auth: auth, Secured: true}), l.pair.config(t))
	both := base64.StdEncoding.EncodeToString([]byte(user + ":" + secret))
	config, err := json.Marshal(object{"auths": object{l.address: object{"auth": both}}})
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(l.home, "config.json"), config)
	return l
}

// auths are both ways to be let in, for clients that have a user name and a password.
func auths() map[string]*Auth {
	sum := sha256.Sum256([]byte(secret))
	return map[string]*Auth{"basic": Basic(user, sum), "bearer": Token(sum)}
}

func (l *lan) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "HOME="+l.home, "DOCKER_CONFIG="+l.home, "SSL_CERT_FILE="+l.pair.cert,
		"HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, &stderr)
	}
	return string(out), err
}

func (l *lan) mustRun(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.run(t, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, l.log)
	}
	return out
}

func TestSkopeo(t *testing.T) {
	p := debian.Program{Name: "skopeo", Package: "skopeo"}
	need.Programs(t, p)
	for name, auth := range auths() {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, auth)
			certs := t.TempDir()
			mustWrite(t, filepath.Join(certs, "ca.crt"), mustRead(t, l.pair.cert))
			skopeo := []string{p.Find(), "--insecure-policy", "--override-os=linux", "--override-arch=amd64"}
			image := "docker://" + l.address + "/docker.io/library/ubuntu"
			raw := l.mustRun(t, append(skopeo, "inspect", "--raw", "--cert-dir="+certs, "--creds="+user+":"+secret,
				image+":24.04")...)
			if got := digest.FromString(raw).String(); got != text(l.ubuntu, "digest") {
				t.Errorf("the index is %s", got)
			}
			for _, tag := range []string{"docker.io/library/ubuntu:24.04", "library/ubuntu@" + text(l.ubuntu, "digest"),
				"quay.io/cilium/cilium:v1.20.0"} {
				to := t.TempDir()
				l.mustRun(t, append(skopeo, "copy", "--src-cert-dir="+certs, "--src-creds="+user+":"+secret,
					"docker://"+l.address+"/"+tag, "dir:"+to)...)
				files, err := filepath.Glob(filepath.Join(to, "*"))
				if err != nil || len(files) < 4 {
					t.Errorf("%s: %v, %v", tag, files, err)
				}
			}
			tags := l.mustRun(t, append(skopeo, "list-tags", "--cert-dir="+certs, "--creds="+user+":"+secret, image)...)
			if !strings.Contains(tags, `"Noble"`) {
				t.Errorf("tags: %s", tags)
			}
			out, err := l.run(t, append(skopeo, "inspect", "--cert-dir="+certs, "--creds="+user+":wrong", image+":24.04")...)
			if err == nil {
				t.Errorf("a wrong password gets in: %s", out)
			}
			if strings.Contains(l.log.String(), secret) {
				t.Error("the log has the password")
			}
		})
	}
	t.Run("static token", func(t *testing.T) {
		l := newLAN(t, Token(sha256.Sum256([]byte(secret))))
		certs := t.TempDir()
		mustWrite(t, filepath.Join(certs, "ca.crt"), mustRead(t, l.pair.cert))
		l.mustRun(t, p.Find(), "--insecure-policy", "copy", "--override-arch=amd64", "--src-cert-dir="+certs,
			"--src-registry-token="+secret,
			"docker://"+l.address+"/library/ubuntu:24.04", "dir:"+t.TempDir())
		if strings.Contains(l.log.String(), tokenPath+" ") {
			t.Error("a token was exchanged for itself although the client had it")
		}
	})
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestCrane(t *testing.T) {
	crane := toolbin.Build(t, "crane")
	for name, auth := range auths() {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, auth)
			ubuntu := l.address + "/library/ubuntu:24.04"
			if got := strings.TrimSpace(l.mustRun(t, crane, "digest", ubuntu)); got != text(l.ubuntu, "digest") {
				t.Errorf("the digest is %s", got)
			}
			l.mustRun(t, crane, "validate", "--platform=linux/amd64", "--remote", ubuntu)
			l.mustRun(t, crane, "validate", "--remote", l.address+"/quay.io/cilium/cilium:v1.20.0")
			l.mustRun(t, crane, "pull", "--platform=linux/amd64", "--format=oci", ubuntu, filepath.Join(t.TempDir(), "ubuntu"))
			if got := l.mustRun(t, crane, "blob",
				l.address+"/library/ubuntu@"+digest.FromBytes(l.layer).String()); got != string(l.layer) {
				t.Errorf("%d bytes of another blob", len(got))
			}
			catalog := strings.Fields(l.mustRun(t, crane, "catalog", l.address))
			if !slices.Contains(catalog, "docker.io/library/ubuntu") {
				t.Errorf("the catalogue is %q", catalog)
			}
			if diff := cmp.Diff([]string{"24.04", "latest", "Noble"},
				strings.Fields(l.mustRun(t, crane, "ls", l.address+"/library/ubuntu"))); diff != "" {
				t.Error(diff)
			}
			if _, err := l.run(t, crane, "copy", ubuntu, l.address+"/library/ubuntu:new"); err == nil {
				t.Error("something was pushed")
			}
			if _, err := l.run(t, crane, "digest", l.address+"/rancher/mirrored-pause:3.6"); err == nil ||
				!strings.Contains(err.Error(), "several registries") {
				t.Errorf("an ambiguous name: %v", err)
			}
		})
	}
}

// TestORASCommand pulls files, and finds what refers to an image, as docs/registry.md says.
func TestORASCommand(t *testing.T) {
	tool := toolbin.Build(t, "oras")
	for name, auth := range auths() {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, auth)
			to := t.TempDir()
			for _, args := range [][]string{
				{l.address + "/boxlift/lock/versions.lock:latest"},
				{"--platform", "linux/arm64", l.address + "/boxlift/k3s/k3s:v1.36.4-k3s1"},
			} {
				l.mustRun(t, append([]string{tool, "pull", "--output", to}, args...)...)
			}
			for name, want := range map[string]string{"versions.lock": "kind: Lock\n", "k3s": "k3s for arm64"} {
				if got := string(mustRead(t, filepath.Join(to, name))); got != want {
					t.Errorf("%s has %q", name, got)
				}
			}
			if got := l.mustRun(t, tool, "discover", "--format", "json",
				l.address+"/quay.io/cilium/cilium:v1.20.0"); !strings.Contains(got, text(l.sbom, "digest")) {
				t.Errorf("what refers to the image: %s", got)
			}
			if _, err := l.run(t, tool, "tag", l.address+"/library/ubuntu:24.04", "new"); err == nil {
				t.Error("a tag was set")
			}
			layout := filepath.Join(t.TempDir(), "layout")
			l.mustRun(t, tool, "copy", "--recursive", l.address+"/quay.io/cilium/cilium:v1.20.0", "--to-oci-layout",
				layout+":v1.20.0")
			l.mustRun(t, tool, "manifest", "fetch", "--oci-layout", layout+"@"+text(l.sbom, "digest"))
		})
	}
}

// TestORAS uses the client library of oras.
func TestORAS(t *testing.T) {
	for name, a := range auths() {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, a)
			repository := func(name string) *remote.Repository {
				r, err := remote.NewRepository(l.address + "/" + name)
				if err != nil {
					t.Fatal(err)
				}
				r.Client = &auth.Client{Client: l.pair.client(), Cache: auth.NewCache(),
					Credential: auth.StaticCredential(l.address, auth.Credential{Username: user, Password: secret})}
				return r
			}
			for _, test := range []struct {
				repository, tag string
				want            string
				options         oras.CopyOptions
			}{
				{"boxlift/k3s/install.sh", "v1.36.4-k3s1", "#!/bin/sh\n", oras.DefaultCopyOptions},
				{"boxlift/lock/versions.lock", "latest", "kind: Lock\n", oras.DefaultCopyOptions},
				{"boxlift/k3s/k3s", "v1.36.4-k3s1-linux-arm64", "k3s for arm64", oras.DefaultCopyOptions},
			} {
				store := memory.New()
				d, err := oras.Copy(t.Context(), repository(test.repository), test.tag, store, "", test.options)
				if err != nil {
					t.Fatalf("%v\n%s", err, l.log)
				}
				content := fetch(t, store, fetchManifest(t, store, d).Layers[0])
				if content != test.want {
					t.Errorf("%s has %q", test.repository, content)
				}
			}
			// The index of a file's platforms is whole.
			store := memory.New()
			if _, err := oras.Copy(t.Context(), repository("boxlift/k3s/k3s"), "v1.36.4-k3s1", store, "",
				oras.DefaultCopyOptions); err != nil {
				t.Error(err)
			}
			var found []ocispec.Descriptor
			subject := ocispec.Descriptor{MediaType: typeDockerManifest, Digest: l.cilium["digest"].(digest.Digest),
				Size: int64(l.cilium["size"].(int))}
			err := repository("quay.io/cilium/cilium").Referrers(t.Context(), subject, "application/spdx+json",
				func(r []ocispec.Descriptor) error {
					found = append(found, r...)
					return nil
				})
			if err != nil || len(found) != 1 || found[0].Digest.String() != text(l.sbom, "digest") {
				t.Errorf("referrers %v, %v", found, err)
			}
			if got := fetchManifest(t, repository("quay.io/cilium/cilium"),
				found[0]); got.ArtifactType != "application/spdx+json" {
				t.Errorf("the referrer is %v", got)
			}
			// It comes along where everything about an image is copied.
			store = memory.New()
			if _, err := oras.ExtendedCopy(t.Context(), repository("quay.io/cilium/cilium"), "v1.20.0", store, "",
				oras.DefaultExtendedCopyOptions); err != nil {
				t.Fatal(err)
			}
			if referrers, err := store.Predecessors(t.Context(), subject); err != nil || len(referrers) != 1 ||
				referrers[0].Digest != found[0].Digest {
				t.Errorf("copied with %v, %v", referrers, err)
			}
		})
	}
}

func fetch(t *testing.T, from oras.ReadOnlyTarget, d ocispec.Descriptor) string {
	t.Helper()
	r, err := from.Fetch(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return body(t, &http.Response{Body: r})
}

func fetchManifest(t *testing.T, from oras.ReadOnlyTarget, d ocispec.Descriptor) ocispec.Manifest {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal([]byte(fetch(t, from, d)), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestContainerd pulls through mirrors, as k3s has them for nodes: images keep their names.
func TestContainerd(t *testing.T) {
	ctr := slices.Concat(containerd.Start(t).Ctr, []string{"--namespace", "k8s.io"})
	for name, auth := range auths() {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, auth)
			hosts := t.TempDir()
			for _, registry := range []string{"docker.io", "quay.io", "ghcr.io"} {
				if err := os.MkdirAll(filepath.Join(hosts, registry), 0o755); err != nil {
					t.Fatal(err)
				}
				// The first endpoint is a node that is down.
				mustWrite(t, filepath.Join(hosts, registry, "hosts.toml"), fmt.Appendf(nil, "server = \"https://127.0.0.1:1\"\n"+
					"[host.\"https://127.0.0.1:2\"]\n  capabilities = [\"pull\", \"resolve\"]\n"+
					"[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = %q\n", l.url, l.pair.cert))
			}
			pull := func(ref string) (string, error) {
				return l.run(t, slices.Concat(ctr,
					[]string{"images", "pull", "--hosts-dir", hosts, "--user", user + ":" + secret, "--platform", "linux/amd64",
						"--snapshotter", "native", ref})...)
			}
			for ref, d := range map[string]string{
				"docker.io/library/ubuntu:24.04":                             text(l.ubuntu, "digest"),
				"docker.io/library/ubuntu@" + text(l.ubuntu, "digest"):       text(l.ubuntu, "digest"),
				"quay.io/cilium/cilium:v1.20.0":                              text(l.cilium, "digest"),
				"docker.io/rancher/mirrored-pause:3.6":                       "",
				"quay.io/cilium/cilium@" + text(l.cilium, "digest"):          text(l.cilium, "digest"),
				"docker.io/library/ubuntu:Noble@" + text(l.ubuntu, "digest"): text(l.ubuntu, "digest"),
			} {
				if _, err := pull(ref); err != nil {
					t.Errorf("%v\n%s", err, l.log)
					continue
				}
				list := l.mustRun(t, slices.Concat(ctr, []string{"images", "list", "name==" + ref})...)
				if !strings.Contains(list, ref) || !strings.Contains(list, d) {
					t.Errorf("%s is not there as %s: %s", ref, d, list)
				}
				l.mustRun(t, slices.Concat(ctr, []string{"images", "remove", "--sync", ref})...)
			}
			if !strings.Contains(l.log.String(), "ns=docker.io") {
				t.Errorf("containerd did not say whose mirror it asked: %s", l.log)
			}
			// What only another registry has is not mixed up with it.
			for _, ref := range []string{"ghcr.io/cilium/cilium:v1.20.0", "docker.io/library/ubuntu:none"} {
				if _, err := pull(ref); err == nil {
					t.Errorf("%s was pulled", ref)
				}
			}
		})
	}
}

// TestContainerdRefusesCertificate has containerd meet a certificate that is not valid by its
// clock: one that has ended, or, which is what a node sees whose clock is behind, one that
// has not begun. It asks the next endpoint; where there is none, it says why at once.
func TestContainerdRefusesCertificate(t *testing.T) {
	ctr := slices.Concat(containerd.Start(t).Ctr, []string{"--namespace", "k8s.io"})
	day := 24 * time.Hour
	for name, test := range map[string]struct {
		from  time.Duration // from now on, for a day
		wants string
	}{
		"ended": {-2 * day, "is after"}, "not begun": {day, "is before"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, auths()["basic"])
			from := time.Now().Add(test.from)
			cert, key, err := certificate.Valid(from, from.Add(day))
			if err != nil {
				t.Fatal(err)
			}
			refused := newPair(t)
			replace(t, refused.cert, cert)
			replace(t, refused.key, key)
			first := startServer(t, New(l.open(), Options{Log: discard, Secured: true}), refused.config(t))
			pull := func(endpoints ...string) (string, error) {
				hosts := t.TempDir()
				dir := filepath.Join(hosts, "docker.io")
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				mustWrite(t, filepath.Join(dir, "hosts.toml"),
					[]byte("server = \"https://127.0.0.1:1\"\n"+strings.Join(endpoints, "")))
				return l.run(t, slices.Concat(ctr, []string{
					"images", "pull", "--hosts-dir", hosts, "--user", user + ":" + secret, "--platform", "linux/amd64",
					"--snapshotter", "native", "docker.io/library/ubuntu:24.04",
				})...)
			}
			endpoint := func(url, ca string) string {
				return fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = %q\n", url, ca)
			}
			if _, err := pull(endpoint(first.url, refused.cert)); err == nil ||
				!strings.Contains(err.Error(), "certificate has expired or is not yet valid") ||
				!strings.Contains(err.Error(), test.wants) {
				t.Errorf("without another endpoint: %v", err)
			}
			if _, err := pull(endpoint(first.url, refused.cert), endpoint(l.url, l.pair.cert)); err != nil {
				t.Errorf("with another endpoint: %v\n%s", err, l.log)
			}
			list := l.mustRun(t, slices.Concat(ctr, []string{"images", "list"})...)
			if !strings.Contains(list, text(l.ubuntu, "digest")) {
				t.Errorf("the image is not there: %s", list)
			}
			l.mustRun(t, slices.Concat(ctr, []string{"images", "remove", "--sync", "docker.io/library/ubuntu:24.04"})...)
		})
	}
}
