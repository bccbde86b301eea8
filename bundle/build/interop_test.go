package build_test

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	orascontent "oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/build"
	"github.com/liteboxd/boxlift/bundle/extract"
	"github.com/liteboxd/boxlift/bundle/format"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/test/bundletest"
	"github.com/liteboxd/boxlift/test/containerd"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
	"github.com/liteboxd/boxlift/test/toolbin"
	"github.com/liteboxd/boxlift/test/trusttest"
)

// program returns the path of a program of Debian's.
func program(t *testing.T, name, debianPackage string) string {
	t.Helper()
	p := debian.Program{Name: name, Package: debianPackage}
	need.Programs(t, p)
	return p.Find()
}

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "HOME="+bundletest.Dir(),
		"COSIGN_PASSWORD=password",
		// Whatever a program would fetch, it does not get.
		"HTTP_PROXY=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1")
	if strings.HasSuffix(args[0], "apt-get") {
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = errors.Join(err, errors.New(strings.Join(args, " ")+": "+stderr.String()))
	}
	return string(out), err
}

func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	out, err := run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// trusting is the reference with a trust file in it, which other programs have no use for.
func trusting(t *testing.T) string {
	t.Helper()
	content, err := trusttest.First(t).File().Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "trusting.tar")
	if _, err := buildAs(t, path, func(o *build.Options) { o.Trust = content }); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSkopeo reads every image of a bundle, and of the packs cut from it.
func TestSkopeo(t *testing.T) {
	skopeo := program(t, "skopeo", "skopeo")
	r := bundletest.MustOpen(t, bundletest.Reference(t))
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	dir, withTrust := t.TempDir(), trusting(t)
	for _, image := range contents.Images {
		skopeoReads(t, skopeo, "oci-archive:"+withTrust+":"+image.Name, image)
		from := "oci-archive:" + bundletest.Reference(t) + ":" + image.Name
		skopeoReads(t, skopeo, from, image)
		for _, p := range image.Platforms {
			skopeoCopies(t, skopeo, from, p)
		}
	}
	for _, platform := range []lock.Platform{"linux/amd64", "linux/arm64"} {
		packs, err := r.Packs(platform, bundle.PackOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, pack := range packs {
			path := bundletest.WritePack(t, r, pack, dir)
			for _, image := range contents.Images {
				for _, p := range image.Platforms {
					if image.Component == pack.Component && platform.Match(p.Platform) {
						skopeoReads(t, skopeo, "oci-archive:"+path+":"+image.Name, image)
						skopeoCopies(t, skopeo, "oci-archive:"+path+":"+image.Name, p)
					}
				}
			}
		}
	}
}

func skopeoReads(t *testing.T, skopeo, from string, image bundle.Image) {
	t.Helper()
	if got := digest.FromString(mustRun(t, skopeo, "inspect", "--raw", from)); got != image.Digest {
		t.Errorf("%s has the digest %s, in its registry %s", from, got, image.Digest)
	}
}

// skopeoCopies expects that a copy keeps the manifest's bytes, which name all others.
func skopeoCopies(t *testing.T, skopeo, from string, p format.PlatformImage) {
	t.Helper()
	to := t.TempDir()
	mustRun(t, skopeo, "copy", "--quiet", "--insecure-policy", "--preserve-digests",
		"--override-os", p.Platform.OS(), "--override-arch", p.Platform.Architecture(), from, "dir:"+to)
	if got := digest.FromBytes(bundletest.MustRead(t, filepath.Join(to, "manifest.json"))); got != p.Manifest.Digest {
		t.Errorf("%s for %s was copied as %s, expected %s", from, p.Platform, got, p.Manifest.Digest)
	}
	for _, d := range p.Blobs()[1:] {
		if got := digest.FromBytes(bundletest.MustRead(t, filepath.Join(to, d.Digest.Encoded()))); got != d.Digest {
			t.Errorf("%s: blob %s was copied as %s", from, d.Digest, got)
		}
	}
}

// TestContainerd imports a whole bundle, and one image that was taken out of it.
func TestContainerd(t *testing.T) {
	r := bundletest.MustOpen(t, bundletest.Reference(t))
	contents, err := r.Contents()
	if err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(t.TempDir(), "taken.tar")
	pause := bundletest.ImageOf(t, bundletest.PauseRef)
	if err := extract.Archive(t.Context(), r, taken, []bundle.Image{pause}); err != nil {
		t.Fatal(err)
	}
	for path, images := range map[string][]bundle.Image{
		bundletest.Reference(t): contents.Images, trusting(t): contents.Images, taken: {pause},
	} {
		d := containerd.Start(t)
		ctr := func(args ...string) string {
			t.Helper()
			return mustRun(t, slices.Concat(d.Ctr, []string{"--namespace", "k8s.io", "images"}, args)...)
		}
		ctr("import", "--no-unpack", path)
		listed := make(map[string]string)
		for _, line := range strings.Split(strings.TrimSpace(ctr("list")), "\n")[1:] {
			fields := strings.Fields(line)
			listed[fields[0]] = fields[2]
		}
		want := make(map[string]string)
		for _, image := range images {
			want[image.Name] = image.Digest.String()
			on, ok := image.On("linux/amd64")
			if !ok {
				t.Fatalf("%s is not for linux/amd64", image.Name)
			}
			for _, blob := range on.Platforms[0].Blobs() {
				if got := digest.FromBytes(
					bundletest.MustRead(t, filepath.Join(d.Content, blob.Digest.Encoded()))); got != blob.Digest {
					t.Errorf("%s: blob %s was imported as %s", image.Name, blob.Digest, got)
				}
			}
		}
		if diff := cmp.Diff(want, listed); diff != "" {
			t.Errorf("images of %s (-want +got):\n%s", path, diff)
		}
	}
}

// TestORASLayout has the library of oras read every image and file of a bundle as it is.
func TestORASLayout(t *testing.T) {
	for name, path := range map[string]string{"the reference": bundletest.Reference(t), "with a trust file": trusting(t)} {
		t.Run(name, func(t *testing.T) { orasReads(t, path) })
	}
}

func orasReads(t *testing.T, path string) {
	t.Helper()
	store, err := oci.NewFromTar(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	contents, err := bundletest.MustOpen(t, path).Contents()
	if err != nil {
		t.Fatal(err)
	}
	// It proves what it fetches.
	fetch := func(d ocispec.Descriptor) {
		t.Helper()
		if _, err := orascontent.FetchAll(t.Context(), store, d); err != nil {
			t.Errorf("%s: %v", d.Digest, err)
		}
	}
	for _, image := range contents.Images {
		d, err := store.Resolve(t.Context(), image.Name)
		if err != nil || d.Digest != image.Digest {
			t.Errorf("%s is %s, expected %s: %v", image.Name, d.Digest, image.Digest, err)
		}
		fetch(format.Plain(d))
		for _, p := range image.Platforms {
			for _, blob := range p.Blobs() {
				fetch(blob)
			}
		}
	}
	for _, f := range contents.Files {
		fetch(ocispec.Descriptor{MediaType: f.MediaType, Digest: f.Digest, Size: f.Size})
	}
	if len(contents.Images) == 0 || len(contents.Files) == 0 {
		t.Error("there is nothing in it")
	}
}

// untar unpacks a bundle, which nothing but other programs needs.
func untar(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for members := tar.NewReader(f); ; {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(members)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		bundletest.MustWrite(t, name, content)
	}
}

// TestLayout has go-containerregistry check every image of the unpacked bundle, down to
// the files in the layers.
func TestLayout(t *testing.T) {
	dir := untar(t, bundletest.Reference(t))
	contents, err := bundletest.MustOpen(t, bundletest.Reference(t)).Contents()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range contents.Images {
		for _, p := range image.Platforms {
			hash, err := v1.NewHash(p.Manifest.Digest.String())
			if err != nil {
				t.Fatal(err)
			}
			onlyEntry(t, dir, p.Manifest)
			loaded, err := layout.Path(dir).Image(hash)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Image(loaded); err != nil {
				t.Errorf("%s for %s: %v", image.Name, p.Platform, err)
			}
		}
	}
}

// TestCrane pushes every image of the unpacked bundle into an empty registry, and finds
// it there under the digest that upstream has.
func TestCrane(t *testing.T) {
	crane := toolbin.Build(t, "crane")
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	dir := untar(t, bundletest.Reference(t))
	contents, err := bundletest.MustOpen(t, bundletest.Reference(t)).Contents()
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range contents.Images {
		repository := address + "/" + strings.Split(image.Name, ":")[0]
		whole := format.IsIndex(image.MediaType)
		for _, p := range image.Platforms {
			to := repository + ":" + p.Platform.Architecture()
			cranePush(t, crane, dir, p.Manifest, to)
			if got := strings.TrimSpace(mustRun(t, crane, "digest", to)); got != p.Manifest.Digest.String() {
				t.Errorf("%s for %s is %s, expected %s", image.Name, p.Platform, got, p.Manifest.Digest)
			}
			mustRun(t, crane, "validate", "--remote", to)
		}
		// An index can be pushed when all that it names is in the bundle.
		if whole && image.Component != "liteboxd" {
			cranePush(t, crane, dir, ocispec.Descriptor{MediaType: format.OCIMediaType(image.MediaType),
				Digest: image.Digest, Size: image.Size}, repository+":all")
			if got := strings.TrimSpace(mustRun(t, crane, "digest", repository+":all")); got != image.Digest.String() {
				t.Errorf("%s is %s, expected %s", image.Name, got, image.Digest)
			}
		}
	}
}

func cranePush(t *testing.T, crane, dir string, d ocispec.Descriptor, to string) {
	t.Helper()
	onlyEntry(t, dir, d)
	mustRun(t, crane, "push", dir, to)
}

// onlyEntry makes one manifest the only entry of a layout, where crane looks for it.
func onlyEntry(t *testing.T, dir string, d ocispec.Descriptor) {
	t.Helper()
	index, err := json.Marshal(
		ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{d}})
	if err != nil {
		t.Fatal(err)
	}
	bundletest.MustWrite(t, filepath.Join(dir, "index.json"), index)
}

// TestCosignVerifiesBundles has both sides make a key, boxlift sign a bundle with it, and
// cosign and openssl verify what is in the bundle.
func TestCosignVerifiesBundles(t *testing.T) {
	cosign := toolbin.Build(t, "cosign")
	openssl := program(t, "openssl", "openssl")
	for name, makeKey := range map[string]func(t *testing.T, dir string){
		"cosign's key": func(t *testing.T, dir string) {
			t.Chdir(dir)
			mustRun(t, cosign, "generate-key-pair")
		},
		"boxlift's key": func(t *testing.T, dir string) {
			private, public, err := signature.GenerateKey([]byte("password"))
			if err != nil {
				t.Fatal(err)
			}
			bundletest.MustWrite(t, filepath.Join(dir, "cosign.key"), private)
			bundletest.MustWrite(t, filepath.Join(dir, "cosign.pub"), public)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			makeKey(t, dir)
			signer, err := signature.LoadSigner(bundletest.MustRead(t, filepath.Join(dir, "cosign.key")),
				[]byte("password"))
			if err != nil {
				t.Fatal(err)
			}
			s := bundletest.UpstreamServer(t)
			path := filepath.Join(dir, "b.tar")
			bundletest.MustBuild(t, bundletest.SmallLock(t), bundletest.NewClient(s), path, signer)
			key, err := signature.ParsePublicKey(bundletest.MustRead(t, filepath.Join(dir, "cosign.pub")))
			if err != nil {
				t.Fatal(err)
			}
			if err := bundletest.MustOpen(t, path).VerifySignature(key); err != nil {
				t.Error(err)
			}

			files := untar(t, path)
			at := func(name string) string { return filepath.Join(files, name) }
			pub := filepath.Join(dir, "cosign.pub")
			byBundle := []string{cosign, "verify-blob", "--key", pub, "--insecure-ignore-tlog", "--bundle",
				at("index.json.sigstore.json"), at("index.json")}
			mustRun(t, byBundle...)
			der, err := base64.StdEncoding.DecodeString(string(bundletest.MustRead(t, at("index.json.sig"))))
			if err != nil {
				t.Fatal(err)
			}
			bundletest.MustWrite(t, at("index.der"), der)
			byOpenSSL := []string{openssl, "dgst", "-sha256", "-verify", pub, "-signature", at("index.der"),
				at("index.json")}
			mustRun(t, byOpenSSL...)

			bundletest.MustWrite(t, at("index.json"), append(bundletest.MustRead(t, at("index.json")), ' '))
			for _, args := range [][]string{byBundle, byOpenSSL} {
				if out, err := run(t, args...); err == nil {
					t.Errorf("%q accepted another index.json: %s", args, out)
				}
			}
		})
	}
}
