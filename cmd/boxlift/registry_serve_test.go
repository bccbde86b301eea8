package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/test/certificate"
)

// TestRegistryServe builds and signs a bundle, serves it, pulls from it and ends the server
// as Ctrl-C does: one file, and encrypted volumes.
func TestRegistryServe(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("one file", func(t *testing.T) { serveForm(t, identity, "b.tar") })
	t.Run("encrypted volumes", func(t *testing.T) {
		serveForm(t, identity, "b.tar.000", "--split", "256KiB", "--encrypt-to", identity.Recipient().String())
	})
}

func serveForm(t *testing.T, identity *age.X25519Identity, name string, form ...string) {
	s := newSite(t)
	s.write(t, "identity", []byte(identity.String()))
	s.buildSigned(t, form...)
	s.write(t, "token", []byte("canary\n"))
	before := files(t, s.dir)
	served := s.serve(t, "--bundle", name, "--identity", "identity", "--token-file", "token")
	address := served.address

	r, err := bundle.Open(filepath.Join(s.dir, name), identity)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if want := "digest: " + r.Digest().String() + "\n"; served.digest != want {
		t.Errorf("it says %q, expected %q", served.digest, want)
	}
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, token string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/v2/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(content)
	}
	for _, image := range contents.Images {
		repository, tag, _ := strings.Cut(image.Name, ":")
		if status, content := get(repository+"/manifests/"+tag, "canary"); status != 200 || digest.FromString(content) != image.Digest {
			t.Errorf("%s: status %d, %.200s", image.Name, status, content)
		}
		for _, l := range image.Platforms[0].Layers {
			if status, content := get(repository+"/blobs/"+l.Digest.String(), "canary"); status != 200 || digest.FromString(content) != l.Digest {
				t.Errorf("%s: status %d, %d bytes", l.Digest, status, len(content))
			}
		}
	}
	var catalog struct{ Repositories []string }
	if _, content := get("_catalog", "canary"); json.Unmarshal([]byte(content), &catalog) != nil || !slices.Contains(catalog.Repositories, "boxlift/lock/versions.lock") {
		t.Errorf("the catalogue is %s", content)
	}
	if status, _ := get("_catalog", "wrong"); status != 401 {
		t.Errorf("with a wrong token: status %d", status)
	}

	log := served.stop(t)
	if strings.Contains(log, "canary") || !strings.Contains(log, "path=/v2/_catalog status=401") {
		t.Errorf("the log: %s", log)
	}
	if diff := cmp.Diff(before, files(t, s.dir)); diff != "" {
		t.Errorf("something was written: %s", diff)
	}
}

// buildSigned makes a key and builds the bundle b.tar, in the form that the flags say.
func (s *packerSite) buildSigned(t *testing.T, form ...string) {
	t.Helper()
	s.env = append(s.env, passwordVariable+"=password")
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "boxlift", args...)
		cmd.Dir, cmd.Env = s.dir, s.env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	run("key", "generate")
	build := slices.DeleteFunc(slices.Clone(s.args), func(a string) bool { return a == "--unsigned" })
	run(slices.Concat(build, form, []string{"--key", "boxlift.key", "-o", "b.tar"})...)
}

// serving is a boxlift registry serve that wants credentials.
type serving struct {
	address, digest string // what it says when it begins
	cmd             *exec.Cmd
	log             bytes.Buffer
}

// serve starts boxlift registry serve on a free port.
func (s *packerSite) serve(t *testing.T, args ...string) *serving {
	t.Helper()
	served := &serving{cmd: exec.CommandContext(t.Context(), "boxlift", append([]string{"registry", "serve", "--key", "boxlift.pub", "--listen", "127.0.0.1:0"}, args...)...)}
	served.cmd.Dir, served.cmd.Env, served.cmd.Stderr = s.dir, s.env, &served.log
	out, err := served.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := served.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = served.cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(first, " at ")
	address, rest, ok := strings.Cut(rest, ": ")
	if !ok || !strings.HasPrefix(first, "serving ") || !strings.Contains(rest, "credentials are needed to pull") {
		t.Fatalf("it says %q", first)
	}
	served.address = address
	if served.digest, err = lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return served
}

// stop ends the server as Ctrl-C does, and returns what it has logged.
func (s *serving) stop(t *testing.T) string {
	t.Helper()
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, &s.log)
	}
	return s.log.String()
}

// TestRegistryServeORAS pulls everything that a bundle holds with the client library of
// oras, as it is without options: over TLS, with a password, a token that it is given, and
// one that it has to ask for.
func TestRegistryServeORAS(t *testing.T) {
	s := newSite(t)
	s.buildSigned(t)
	cert, key, err := certificate.New()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	s.write(t, "server.crt", cert)
	s.write(t, "server.key", key)
	s.write(t, "secret", []byte("canary\n"))
	blobs := tarBlobs(t, filepath.Join(s.dir, "b.tar"))
	for _, test := range []struct {
		name         string
		flags        []string
		right, wrong auth.Credential
	}{
		{
			"basic", []string{"--username", "lan", "--password-file", "secret"},
			auth.Credential{Username: "lan", Password: "canary"}, auth.Credential{Username: "lan", Password: "wrong"},
		},
		{"token", []string{"--token-file", "secret"}, auth.Credential{AccessToken: "canary"}, auth.Credential{AccessToken: "wrong"}},
		{
			"token for a password", []string{"--token-file", "secret"},
			auth.Credential{Username: "any", Password: "canary"}, auth.Credential{Username: "any", Password: "wrong"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			served := s.serve(t, append([]string{"--bundle", "b.tar", "--tls-cert", "server.crt", "--tls-key", "server.key"}, test.flags...)...)
			host, ok := strings.CutPrefix(served.address, "https://")
			if !ok {
				t.Fatalf("it is served at %s", served.address)
			}
			open := func(c auth.Credential) *remote.Registry {
				r, err := remote.NewRegistry(host)
				if err != nil {
					t.Fatal(err)
				}
				transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
				t.Cleanup(transport.CloseIdleConnections)
				r.Client = &auth.Client{
					Client: &http.Client{Transport: retry.NewTransport(transport)}, Cache: auth.NewCache(), Credential: auth.StaticCredential(host, c),
				}
				return r
			}
			var refused *errcode.ErrorResponse
			if err := open(test.wrong).Ping(t.Context()); !errors.As(err, &refused) || refused.StatusCode != http.StatusUnauthorized {
				t.Errorf("with a wrong secret: %v", err)
			}
			pulled := pullAll(t, open(test.right), blobs)
			for d := range blobs {
				if !pulled[d] {
					t.Errorf("%s is in the bundle and was not pulled", d)
				}
			}
			if log := served.stop(t); strings.Contains(log, "canary") {
				t.Errorf("the log has the secret: %s", log)
			}
		})
	}
}

// pullAll copies all tags of all repositories into a layout, with what refers to them, and
// returns the digests of what lies there, each checked. Of an index of more platforms than
// the bundle has, it copies those that are among blobs.
func pullAll(t *testing.T, r *remote.Registry, blobs map[digest.Digest]bool) map[digest.Digest]bool {
	t.Helper()
	dir := t.TempDir()
	store, err := oci.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	pull := func(from *remote.Repository, reference string) {
		t.Helper()
		if _, err := oras.ExtendedCopy(t.Context(), from, reference, store, "", oras.DefaultExtendedCopyOptions); err != nil {
			t.Errorf("pull %s: %v", reference, err)
		}
	}
	pullTag := func(from *remote.Repository, tag string) {
		t.Helper()
		root, err := from.Resolve(t.Context(), tag)
		if err != nil {
			t.Fatal(err)
		}
		parts, err := content.Successors(t.Context(), from, root)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(parts, func(d ocispec.Descriptor) bool { return !blobs[d.Digest] }) {
			pull(from, tag)
			return
		}
		index, err := content.FetchAll(t.Context(), from, root) // which checks its digest
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Push(t.Context(), root, bytes.NewReader(index)); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
			t.Fatal(err)
		}
		for _, part := range parts {
			if blobs[part.Digest] {
				pull(from, part.Digest.String())
			} else if _, err := from.Resolve(t.Context(), part.Digest.String()); !errors.Is(err, errdef.ErrNotFound) {
				t.Errorf("%s, which the bundle does not have: %v", part.Digest, err)
			}
		}
	}
	if err := r.Repositories(t.Context(), "", func(names []string) error {
		for _, name := range names {
			repository, err := r.Repository(t.Context(), name)
			if err != nil {
				return err
			}
			from := repository.(*remote.Repository)
			if err := from.Tags(t.Context(), "", func(tags []string) error {
				for _, tag := range tags {
					pullTag(from, tag)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	stored, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256"))
	if err != nil {
		t.Fatal(err)
	}
	pulled := make(map[digest.Digest]bool)
	for _, entry := range stored {
		blob, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if d := digest.FromBytes(blob); d.Encoded() != entry.Name() {
			t.Errorf("what was pulled as %s is %s", entry.Name(), d)
		}
		pulled[digest.NewDigestFromEncoded(digest.SHA256, entry.Name())] = true
	}
	return pulled
}

// tarBlobs are the digests of all that a bundle holds.
func tarBlobs(t *testing.T, path string) map[digest.Digest]bool {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	blobs := make(map[digest.Digest]bool)
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if hex, ok := strings.CutPrefix(header.Name, "blobs/sha256/"); ok && hex != "" {
			blobs[digest.NewDigestFromEncoded(digest.SHA256, hex)] = true
		}
	}
	if len(blobs) == 0 {
		t.Fatal("the bundle is empty")
	}
	return blobs
}

// files lists a folder with sizes and times.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			list = append(list, path+" "+info.ModTime().String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
