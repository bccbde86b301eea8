package upstream

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/lock"
	debianpkg "github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

const (
	releaseURL = "https://github.com/k3s-io/k3s/releases/download/v1.36.4%2Bk3s1/"
	chartRef   = "https://helm.cilium.io/cilium-1.20.0.tgz"
	pauseRef   = "docker.io/rancher/mirrored-pause:3.10.2"
	serverRef  = "ghcr.io/fslongjin/liteboxd-server:v0.6.10"
)

// start gives a small server on the user's cache.
func start(t *testing.T) *Server {
	t.Helper()
	s, err := Start(t.Context(), Options{Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// trustingTransport gives one whose connections end with the test.
func trustingTransport(t *testing.T, s *Server) *http.Transport {
	t.Helper()
	tr := s.Transport()
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// do sends a request for an upstream address. The body is read to its end, and err is
// about that; other errors end the test.
func do(t *testing.T, s *Server, method, address string, header http.Header) (response *http.Response, body []byte, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "https://"+s.Addr()+strings.ReplaceAll(pathOf(address), "+", "%2B"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	response, err = (&http.Client{Transport: trustingTransport(t, s)}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := response.Body.Close(); err != nil {
			t.Errorf("close the body: %v", err)
		}
	}()
	body, err = io.ReadAll(response.Body)
	return response, body, err
}

// get is do for what must succeed.
func get(t *testing.T, s *Server, address string) []byte {
	t.Helper()
	response, body, err := do(t, s, http.MethodGet, address, nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("get %s: %s, %v", address, response.Status, err)
	}
	return body
}

// reference is where an upstream image is served.
func reference(t *testing.T, s *Server, ref string) name.Reference {
	t.Helper()
	r, err := name.ParseReference(s.Addr()+"/"+ref, name.StrictValidation)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestImages(t *testing.T) {
	s := start(t)
	seen := map[types.MediaType]int{}
	shared := map[v1.Hash]int{}
	for _, image := range s.Images() {
		t.Run(image.Ref, func(t *testing.T) {
			got, err := remote.Get(reference(t, s, image.Ref), remote.WithTransport(trustingTransport(t, s)), remote.WithContext(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			if got.Digest.String() != image.Digest.String() || string(got.MediaType) != image.MediaType {
				t.Errorf("got %s %s, expected %s %s", got.MediaType, got.Digest, image.MediaType, image.Digest)
			}
			seen[got.MediaType]++
			var platforms []string
			if got.MediaType.IsImage() {
				img, err := got.Image()
				if err != nil {
					t.Fatal(err)
				}
				config, err := img.ConfigFile()
				if err != nil {
					t.Fatal(err)
				}
				platforms = append(platforms, config.OS+"/"+config.Architecture)
				checkImage(t, img, seen, shared)
			} else {
				index, err := got.ImageIndex()
				if err != nil {
					t.Fatal(err)
				}
				platforms = checkIndex(t, index, seen, shared)
			}
			if diff := cmp.Diff(image.Platforms, platforms); diff != "" {
				t.Errorf("platforms (-expected +got):\n%s", diff)
			}
		})
	}
	for mediaType, least := range map[types.MediaType]int{
		types.OCIImageIndex: 10, types.DockerManifestList: 2, types.OCIManifestSchema1: 2,
		types.OCILayer: 30, types.OCILayerZStd: 3, types.DockerLayer: 4, "application/vnd.in-toto+json": 4,
	} {
		if seen[mediaType] < least {
			t.Errorf("%s was seen %d times, expected at least %d", mediaType, seen[mediaType], least)
		}
	}
	most := 0
	for _, n := range shared {
		most = max(most, n)
	}
	if most < 4 {
		t.Errorf("the most used layer is in %d images", most)
	}
}

// checkIndex pulls all of an index and gives its platforms.
func checkIndex(t *testing.T, index v1.ImageIndex, seen map[types.MediaType]int, shared map[v1.Hash]int) (platforms []string) {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range manifest.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if d.Platform.OS != "unknown" {
			platforms = append(platforms, d.Platform.OS+"/"+d.Platform.Architecture)
		} else if d.Annotations["vnd.docker.reference.type"] != "attestation-manifest" {
			t.Errorf("%s: an unknown platform without an attestation", d.Digest)
		}
		checkImage(t, img, seen, shared)
	}
	return platforms
}

// checkImage pulls an image and compares each layer with its digest, its size and the
// digest of its content; a layer that was seen before is not pulled again.
func checkImage(t *testing.T, img v1.Image, seen map[types.MediaType]int, shared map[v1.Hash]int) {
	t.Helper()
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Layers) != len(config.RootFS.DiffIDs) {
		t.Fatalf("%d layers and %d diff IDs", len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	for n, d := range manifest.Layers {
		seen[d.MediaType]++
		shared[d.Digest]++
		if shared[d.Digest] == 1 {
			checkLayer(t, img, d, config.RootFS.DiffIDs[n])
		}
	}
	// An attestation is no image for it: it has layers of an unknown type.
	if config.OS != "unknown" {
		if err := validate.Image(img, validate.Fast); err != nil {
			t.Error(err)
		}
	}
}

// checkLayer reads a layer in its packed form, which checks digest and size at its end.
func checkLayer(t *testing.T, img v1.Image, d v1.Descriptor, diffID v1.Hash) {
	t.Helper()
	l, err := img.LayerByDigest(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := l.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	var content io.Reader = packed
	switch d.MediaType {
	case types.OCILayer, types.DockerLayer:
		content, err = gzip.NewReader(packed)
	case types.OCILayerZStd:
		var z *zstd.Decoder
		if z, err = zstd.NewReader(packed); err == nil {
			defer z.Close()
		}
		content = z
	}
	if err != nil {
		t.Fatalf("layer %s: %v", d.Digest, err)
	}
	hash, _, err := v1.SHA256(content)
	if err != nil || hash != diffID {
		t.Errorf("layer %s: the content is %s, expected %s, %v", d.Digest, hash, diffID, err)
	}
	if _, err := io.Copy(io.Discard, packed); err != nil {
		t.Errorf("layer %s: %v", d.Digest, err)
	}
	if err := packed.Close(); err != nil {
		t.Errorf("layer %s: %v", d.Digest, err)
	}
}

// The two platforms of an image have no layer in common.
func TestPlatformsDiffer(t *testing.T) {
	s := start(t)
	of := map[string]string{}
	for _, image := range s.set.Images {
		for _, m := range image.Manifests {
			for _, l := range m.Layers {
				if arch, ok := of[l.Digest.String()]; ok && arch != m.Arch {
					t.Errorf("%s: layer %s is in %s and %s", image.Ref, l.Digest, arch, m.Arch)
				}
				of[l.Digest.String()] = m.Arch
			}
		}
	}
}

func TestSmallIsSmall(t *testing.T) {
	s := start(t)
	seen := map[string]int64{}
	for _, image := range s.set.Images {
		for _, m := range image.Manifests {
			for _, b := range append(m.Layers, m.Config, m.Blob, image.Root) {
				seen[b.Digest.String()] = b.Size
			}
		}
	}
	for _, f := range s.Files() {
		seen[f.SHA256] = f.Size
	}
	var total int64
	for _, size := range seen {
		total += size
	}
	t.Logf("%d blobs and files, %d kB", len(seen), total/1000)
	if total >= 100_000_000 {
		t.Errorf("the small set has %d bytes, expected less than 100 MB", total)
	}
}

func findSkopeo(t *testing.T) string {
	t.Helper()
	skopeo := debianpkg.Program{Name: "skopeo", Package: "skopeo"}
	need.Programs(t, skopeo)
	return skopeo.Find()
}

func TestSkopeo(t *testing.T) {
	skopeo := findSkopeo(t)
	s := start(t)
	cmd := exec.CommandContext(t.Context(), skopeo, "inspect", "--no-tags", "--format", "{{.Digest}} {{.Architecture}}",
		"docker://"+s.Addr()+"/"+pauseRef)
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+s.CAFile(), "HOME="+t.TempDir(), "XDG_RUNTIME_DIR="+t.TempDir())
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	digest, arch, _ := strings.Cut(strings.TrimSpace(string(output)), " ")
	if expected := s.set.image(pauseRef).Root.Digest.String(); digest != expected || !slices.Contains(arches, arch) {
		t.Errorf("got %q, expected digest %s and an architecture", output, expected)
	}
}

func TestFiles(t *testing.T) {
	s := start(t)
	var addresses []string
	for _, f := range s.Files() {
		addresses = append(addresses, f.URL)
		body := get(t, s, f.URL)
		if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != f.SHA256 || int64(len(body)) != f.Size {
			t.Errorf("%s: the bytes are not those of the record", f.URL)
		}
	}
	for _, expected := range []string{
		"https://raw.githubusercontent.com/k3s-io/k3s/v1.36.4%2Bk3s1/install.sh",
		releaseURL + "k3s", releaseURL + "k3s-arm64", releaseURL + "k3s-images.txt",
		releaseURL + "k3s-airgap-images-amd64.tar.zst", releaseURL + "k3s-airgap-images-arm64.tar.zst",
		releaseURL + "sha256sum-amd64.txt", releaseURL + "sha256sum-arm64.txt",
		chartRef, "https://helm.cilium.io/index.yaml", "https://update.k3s.io/v1-release/channels",
	} {
		if !slices.Contains(addresses, expected) {
			t.Errorf("%s is not served", expected)
		}
	}
}

func TestChecksumFiles(t *testing.T) {
	s := start(t)
	for _, arch := range arches {
		expected := map[string]bool{k3sName(arch): true, archiveName(arch): true}
		for line := range strings.Lines(string(get(t, s, releaseURL+"sha256sum-"+arch+".txt"))) {
			sum, file, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
			if !ok || !expected[file] {
				t.Errorf("%s: unexpected line %q", arch, line)
				continue
			}
			delete(expected, file)
			if got := sha256.Sum256(get(t, s, releaseURL+file)); hex.EncodeToString(got[:]) != sum {
				t.Errorf("%s: the sum of %s is wrong", arch, file)
			}
		}
		if len(expected) > 0 {
			t.Errorf("%s: no lines for %v", arch, expected)
		}
	}
}

// The program for this machine runs and knows its version.
func TestK3sRuns(t *testing.T) {
	s := start(t)
	arch := strings.TrimSpace(goEnv(t, "GOARCH"))
	if !slices.Contains(arches, arch) || strings.TrimSpace(goEnv(t, "GOOS")) != "linux" {
		need.LeaveOut(t, "there is no k3s for this machine")
	}
	file := filepath.Join(t.TempDir(), "k3s")
	if err := os.WriteFile(file, get(t, s, releaseURL+k3sName(arch)), 0o755); err != nil {
		t.Fatal(err)
	}
	output, err := exec.CommandContext(t.Context(), file, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(output), Quick.K3s) {
		t.Errorf("k3s --version: %v, %q", err, output)
	}
}

func goEnv(t *testing.T, key string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "go", "env", key).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(output)
}

func TestConditionsAndRanges(t *testing.T) {
	s := start(t)
	blob := s.set.image(pauseRef).Manifests[0].Layers[0]
	blobURL := "https://v2/docker.io/rancher/mirrored-pause/blobs/" + blob.Digest.String()
	for _, address := range []string{chartRef, releaseURL + "k3s", blobURL} {
		full, body, err := do(t, s, http.MethodGet, address, nil)
		if err != nil || full.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", address, full.Status, err)
		}
		etag := full.Header.Get("ETag")
		if etag == "" || full.Header.Get("Accept-Ranges") != "bytes" && address != blobURL {
			t.Errorf("%s: ETag %q, Accept-Ranges %q", address, etag, full.Header.Get("Accept-Ranges"))
		}
		for _, c := range []struct {
			name   string
			method string
			header http.Header
			status int
			body   []byte
		}{
			{"head", http.MethodHead, nil, 200, []byte{}},
			{"range", http.MethodGet, http.Header{"Range": {"bytes=1000-1999"}}, 206, body[1000:2000]},
			{"open range", http.MethodGet, http.Header{"Range": {"bytes=5000-"}}, 206, body[5000:]},
			{"beyond", http.MethodGet, http.Header{"Range": {fmt.Sprintf("bytes=%d-", len(body))}}, 416, nil},
			{"same", http.MethodGet, http.Header{"If-None-Match": {etag}}, 304, []byte{}},
			{"if range", http.MethodGet, http.Header{"Range": {"bytes=7-8"}, "If-Range": {etag}}, 206, body[7:9]},
			{"if range changed", http.MethodGet, http.Header{"Range": {"bytes=7-8"}, "If-Range": {`"other"`}}, 200, body},
		} {
			response, got, err := do(t, s, c.method, address, c.header)
			if err != nil {
				t.Errorf("%s, %s: %v", address, c.name, err)
			}
			if response.StatusCode != c.status {
				t.Errorf("%s, %s: status %d, expected %d", address, c.name, response.StatusCode, c.status)
			}
			if c.body != nil && string(got) != string(c.body) {
				t.Errorf("%s, %s: %d bytes that are not the %d expected ones", address, c.name, len(got), len(c.body))
			}
			if c.method == http.MethodHead && response.ContentLength != int64(len(body)) {
				t.Errorf("%s, %s: Content-Length %d, expected %d", address, c.name, response.ContentLength, len(body))
			}
		}
	}
}

func TestReleaseRedirect(t *testing.T) {
	s := start(t)
	client := &http.Client{
		Transport:     trustingTransport(t, s),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	status := func(address string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, response.Header.Get("Location")
	}
	code, location := status("https://" + s.Addr() + "/github.com/k3s-io/k3s/releases/download/v1.36.4+k3s1/k3s")
	if code != http.StatusFound || !strings.HasPrefix(location, "https://"+s.Addr()+"/"+assetHost+"/") {
		t.Fatalf("status %d, location %q", code, location)
	}
	if code, _ := status(location); code != http.StatusOK {
		t.Errorf("the signed address: status %d", code)
	}
	unsigned, _, _ := strings.Cut(location, "?")
	if code, _ := status(unsigned); code != http.StatusForbidden {
		t.Errorf("the address without its signature: status %d", code)
	}
}

// Each archive is a layout that has the images of its platform, whole.
func TestArchives(t *testing.T) {
	s := start(t)
	for _, arch := range arches {
		t.Run(arch, func(t *testing.T) {
			var index ocispec.Index
			var docker []struct {
				Config           string
				RepoTags, Layers []string
			}
			members := map[string][]byte{}
			var names []string
			for name, data := range untar(t, s.set.Releases[0].Archives[arch].File) {
				names = append(names, name)
				members[name] = data
			}
			slices.Sort(names)
			if err := json.Unmarshal(members["index.json"], &index); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(members["manifest.json"], &docker); err != nil {
				t.Fatal(err)
			}
			used := map[string]bool{"blobs/": true, "blobs/sha256/": true, "index.json": true, "manifest.json": true, "oci-layout": true}
			read := func(d ocispec.Descriptor, v any) {
				t.Helper()
				name := "blobs/sha256/" + d.Digest.Encoded()
				used[name] = true
				data, ok := members[name]
				if !ok {
					t.Fatalf("%s is missing", name)
				}
				if d.Digest.Algorithm().FromBytes(data) != d.Digest || int64(len(data)) != d.Size {
					t.Fatalf("%s has other bytes", name)
				}
				if v == nil {
					return
				}
				if err := json.Unmarshal(data, v); err != nil {
					t.Fatal(err)
				}
			}
			var refs []string
			for _, root := range index.Manifests {
				ref := root.Annotations["io.containerd.image.name"]
				refs = append(refs, ref)
				if tag := root.Annotations["org.opencontainers.image.ref.name"]; !strings.HasSuffix(ref, ":"+tag) {
					t.Errorf("%s: ref.name is %q", ref, tag)
				}
				if root.Digest != s.set.image(ref).Root.Digest {
					t.Errorf("%s: the digest is not the registry's", ref)
				}
				var children ocispec.Index
				read(root, &children)
				if len(children.Manifests) < 2 {
					t.Errorf("%s: the index has %d manifests", ref, len(children.Manifests))
				}
				for _, child := range children.Manifests {
					if child.Platform.Architecture != arch {
						if _, ok := members["blobs/sha256/"+child.Digest.Encoded()]; ok {
							t.Errorf("%s: the manifest for %s is in the archive", ref, child.Platform.Architecture)
						}
						continue
					}
					var m ocispec.Manifest
					read(child, &m)
					read(m.Config, nil)
					for _, l := range m.Layers {
						read(l, nil)
					}
				}
			}
			for _, name := range names {
				if !used[name] {
					t.Errorf("%s belongs to no image", name)
				}
			}
			slices.Sort(refs)
			if diff := cmp.Diff(strings.Join(refs, "\n")+"\n", string(get(t, s, releaseURL+"k3s-images.txt"))); diff != "" {
				t.Errorf("k3s-images.txt (-archive +list):\n%s", diff)
			}
			for _, d := range docker {
				for _, name := range append(d.Layers, d.Config) {
					if _, ok := members[name]; !ok {
						t.Errorf("manifest.json names %s, which is missing", name)
					}
				}
			}
			if len(docker) != len(refs) {
				t.Errorf("manifest.json has %d images, index.json %d", len(docker), len(refs))
			}
		})
	}
}

// untar reads a .tar.zst with the window that k3s takes.
func untar(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := zstd.NewReader(f, zstd.WithDecoderMaxWindow(32<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	members := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return members
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := members[header.Name]; ok {
			t.Fatalf("%s comes twice", header.Name)
		}
		if members[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSkopeoReadsArchive(t *testing.T) {
	skopeo := findSkopeo(t)
	s := start(t)
	dir := t.TempDir()
	for name, data := range untar(t, s.set.Releases[0].Archives["amd64"].File) {
		if strings.HasSuffix(name, "/") {
			continue
		}
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	output, err := exec.CommandContext(t.Context(), skopeo, "--override-arch", "amd64", "--override-os", "linux",
		"inspect", "--format", "{{.Architecture}}", "oci:"+dir+":1.14.6").CombinedOutput()
	if err != nil || strings.TrimSpace(string(output)) != "amd64" {
		t.Errorf("%v: %s", err, output)
	}
}

func TestLocks(t *testing.T) {
	s := start(t)
	for _, o := range []LockOptions{
		{},
		{Platforms: []string{"linux/amd64"}, Components: []string{"k3s"}},
		{Platforms: []string{"linux/arm64"}, K3sRefs: true},
	} {
		open, err := lock.Parse("open", s.LockYAML(o))
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		for _, c := range open.Components {
			for _, f := range c.Files {
				if f.SHA256 != "" {
					t.Errorf("%+v: %s has a pin", o, f.URL)
				}
			}
			for _, m := range c.Images {
				if m.Digest != "" || m.SHA256 != "" {
					t.Errorf("%+v: %s%s has a pin", o, m.Ref, m.Archive)
				}
			}
		}
		data, err := s.PinnedLockYAML(o)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		pinned, err := lock.Parse("pinned", data)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		if missing := pinned.Unpinned(); missing != nil {
			t.Errorf("%+v: not pinned: %v", o, missing)
		}
	}
}

func TestMirrors(t *testing.T) {
	s := start(t)
	expected := []string{"docker.cnb.cool", "docker.io", "ghcr.io", "github.com", "helm.cilium.io", "quay.io",
		"raw.githubusercontent.com", "release-assets.githubusercontent.com", "update.k3s.io"}
	for i, host := range expected {
		expected[i] = host + "=" + s.Addr() + "/" + host
	}
	if diff := cmp.Diff(expected, s.Mirrors()); diff != "" {
		t.Errorf("(-expected +got):\n%s", diff)
	}
}

// Layers are the same bytes whenever they are made, and so is an archive.
func TestDeterministic(t *testing.T) {
	if testing.Short() {
		t.Skip("makes layers twice")
	}
	files, err := sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := &generator{size: Small, logf: t.Logf}
	for _, spec := range []layerSpec{{Name: "one", Size: 5_000}, {Name: "two", Size: 5_000, Zstd: true}} {
		var made []layer
		for range 2 {
			l, err := g.makeLayer(t.Context(), storage(t.TempDir()), spec, "amd64", files["amd64"])
			if err != nil {
				t.Fatal(err)
			}
			made = append(made, l)
		}
		if made[0] != made[1] {
			t.Errorf("%s: %v and %v", spec.Name, made[0], made[1])
		}
	}
	s := start(t)
	a, err := createArtifact(t.TempDir(), "archive", 0o600, func(w io.Writer) error {
		return writeArchive(t.Context(), w, storage(s.set.Registry), s.set.of(&s.set.Releases[0], k3s), "arm64")
	})
	if err != nil {
		t.Fatal(err)
	}
	if expected := s.set.Releases[0].Archives["arm64"].SHA256; a.SHA256 != expected {
		t.Errorf("the archive's sha256 is %s, before it was %s", a.SHA256, expected)
	}
}

func TestOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	boom := errors.New("boom")
	err := once(t.Context(), dir, func(_ context.Context, partial string) error {
		return errors.Join(os.WriteFile(filepath.Join(partial, "half"), nil, 0o600), boom)
	})
	if !errors.Is(err, boom) || exists(dir) {
		t.Fatalf("a failed fill: %v, the folder exists: %v", err, exists(dir))
	}
	fills := 0
	done := make(chan error)
	for range 4 {
		go func() {
			done <- once(t.Context(), dir, func(_ context.Context, partial string) error {
				fills++ // guarded by the lock on the folder
				return os.WriteFile(filepath.Join(partial, "whole"), nil, 0o600)
			})
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if fills != 1 || !exists(filepath.Join(dir, "whole")) || exists(filepath.Join(dir, "half")) {
		t.Errorf("filled %d times", fills)
	}
}

func TestUnknownSize(t *testing.T) {
	if s, err := Start(t.Context(), Options{Size: "huge"}); err == nil {
		t.Errorf("started %v", s.Addr())
	}
}
