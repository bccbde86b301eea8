package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ask sends one request to a handler, without a network between.
func ask(h http.Handler, method, target string, fields ...string) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t testing.TB, r *http.Response) string {
	t.Helper()
	content, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// codes returns the codes of an error body.
func codes(t testing.TB, content string) []string {
	t.Helper()
	var c struct {
		Errors []struct{ Code, Message string }
	}
	if err := json.Unmarshal([]byte(content), &c); err != nil {
		t.Fatalf("%v: %q", err, content)
	}
	var all []string
	for _, e := range c.Errors {
		if e.Message == "" {
			t.Errorf("%s has no message", e.Code)
		}
		all = append(all, e.Code)
	}
	return all
}

// TestManifests asks for every kind of manifest, by every name that it has.
func TestManifests(t *testing.T) {
	s := newSample(t)
	h := New(s.open(), Options{Log: discard})
	ubuntu, amd64 := text(s.ubuntu, "digest"), text(s.ubuntuAMD64, "digest")
	for _, test := range []struct {
		name      string
		path      string
		digest    string
		mediaType string
	}{
		{"tag, full name", "docker.io/library/ubuntu/manifests/24.04", ubuntu, ocispec.MediaTypeImageIndex},
		{"tag, short name", "library/ubuntu/manifests/24.04", ubuntu, ocispec.MediaTypeImageIndex},
		{"tag, as a mirror", "library/ubuntu/manifests/24.04?ns=docker.io", ubuntu, ocispec.MediaTypeImageIndex},
		{"digest of an index", "library/ubuntu/manifests/" + ubuntu, ubuntu, ocispec.MediaTypeImageIndex},
		{"digest in an index", "library/ubuntu/manifests/" + amd64, amd64, ocispec.MediaTypeImageManifest},
		{"Docker's media type", "quay.io/cilium/cilium/manifests/v1.20.0", text(s.cilium, "digest"), typeDockerManifest},
		{"referrer", "cilium/cilium/manifests/" + text(s.sbom, "digest"), text(s.sbom, "digest"),
			ocispec.MediaTypeImageManifest},
		{"referrer of nothing", "cilium/cilium/manifests/" + text(s.lost, "digest"), text(s.lost, "digest"),
			ocispec.MediaTypeImageManifest},
		{"registry with a port", "rancher/mirrored-pause/manifests/3.6?ns=registry.example.com:5000", "",
			ocispec.MediaTypeImageManifest},
		{"file", "boxlift/k3s/install.sh/manifests/v1.36.4-k3s1", "", ocispec.MediaTypeImageManifest},
		{"file without a version", "boxlift/lock/versions.lock/manifests/latest", "", ocispec.MediaTypeImageManifest},
		{"file for several platforms", "boxlift/k3s/k3s/manifests/v1.36.4-k3s1", "", ocispec.MediaTypeImageIndex},
		{"file for one platform", "boxlift/k3s/k3s/manifests/v1.36.4-k3s1-linux-arm64", text(s.k3sARM, "digest"),
			ocispec.MediaTypeImageManifest},
		{"file by digest", "boxlift/k3s/k3s/manifests/" + text(s.k3sAMD64, "digest"), text(s.k3sAMD64, "digest"),
			ocispec.MediaTypeImageManifest},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := ask(h, "GET", "/v2/"+test.path)
			content := body(t, r)
			if r.StatusCode != 200 {
				t.Fatalf("status %d: %s", r.StatusCode, content)
			}
			d := digest.FromString(content).String()
			if test.digest != "" && d != test.digest {
				t.Errorf("got the bytes of %s, expected %s", d, test.digest)
			}
			want := map[string]string{
				"Content-Type": test.mediaType, "Docker-Content-Digest": d, "Etag": `"` + d + `"`,
				"Content-Length": strconv.Itoa(len(content)), "Docker-Distribution-Api-Version": "registry/2.0",
			}
			head := ask(h, "HEAD", "/v2/"+test.path)
			if got := body(t, head); head.StatusCode != 200 || got != "" {
				t.Errorf("HEAD: status %d with %q", head.StatusCode, got)
			}
			for name, value := range want {
				for _, r := range []*http.Response{r, head} {
					if got := r.Header.Get(name); got != value {
						t.Errorf("%s: %q, expected %q", name, got, value)
					}
				}
			}
			if got := ask(h, "GET", "/v2/"+test.path, "If-None-Match", `"`+d+`"`).StatusCode; got != http.StatusNotModified {
				t.Errorf("with the digest known: status %d", got)
			}
		})
	}
}

// TestMadeIndex looks at the one thing that is not in the file byte for byte.
func TestMadeIndex(t *testing.T) {
	s := newSample(t)
	h := New(s.open(), Options{Log: discard})
	r := ask(h, "GET", "/v2/boxlift/k3s/k3s/manifests/v1.36.4-k3s1")
	var got any
	content := body(t, r)
	if err := json.Unmarshal([]byte(content), &got); err != nil {
		t.Fatal(err)
	}
	of := func(d object, architecture string) any {
		return map[string]any{
			"mediaType": ocispec.MediaTypeImageManifest, "digest": text(d, "digest"),
			"size": float64(d["size"].(int)), "artifactType": "application/vnd.boxlift.file.v1",
			"platform": map[string]any{"os": "linux", "architecture": architecture},
		}
	}
	want := map[string]any{
		"schemaVersion": 2.0, "mediaType": ocispec.MediaTypeImageIndex,
		"manifests": []any{of(s.k3sAMD64, "amd64"), of(s.k3sARM, "arm64")},
	}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Error(diff)
	}
	d := r.Header.Get("Docker-Content-Digest")
	if again := body(t, ask(h, "GET", "/v2/boxlift/k3s/k3s/manifests/"+d)); again != content {
		t.Errorf("by digest it is %q", again)
	}
}

// TestBlobs asks for all of a blob and for parts of it.
func TestBlobs(t *testing.T) {
	s := newSample(t)
	h := New(s.open(), Options{Log: discard})
	d := digest.FromBytes(s.layer).String()
	path := "/v2/library/ubuntu/blobs/" + d
	n := len(s.layer)
	size := strconv.Itoa(n)
	other := `"sha256:` + strings.Repeat("0", 64) + `"`
	for _, test := range []struct {
		name     string
		fields   []string
		status   int
		from, to int
	}{
		{"all", nil, 200, 0, n},
		{"first byte", []string{"Range", "bytes=0-0"}, 206, 0, 1},
		{"middle", []string{"Range", "bytes=1000-1999"}, 206, 1000, 2000},
		{"from", []string{"Range", "bytes=5000-"}, 206, 5000, n},
		{"suffix", []string{"Range", "bytes=-7"}, 206, n - 7, n},
		{"longer suffix than there is", []string{"Range", "bytes=-99999999"}, 206, 0, n},
		{"beyond the end", []string{"Range", "bytes=10-99999999"}, 206, 10, n},
		{"several ranges", []string{"Range", "bytes=0-1,5-6"}, 200, 0, n},
		{"range of the same blob", []string{"Range", "bytes=1-2", "If-Range", `"` + d + `"`}, 206, 1, 3},
		{"range of another blob", []string{"Range", "bytes=1-2", "If-Range", other}, 200, 0, n},
		{"known", []string{"If-None-Match", other + `, "` + d + `"`}, 304, 0, 0},
		{"another is known", []string{"If-None-Match", other}, 200, 0, n},
		{"after the end", []string{"Range", "bytes=" + size + "-"}, 416, 0, 0},
		{"backwards", []string{"Range", "bytes=9-3"}, 416, 0, 0},
		{"no number", []string{"Range", "bytes=a-b"}, 416, 0, 0},
		{"overflow", []string{"Range", "bytes=99999999999999999999-"}, 416, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := ask(h, "GET", path, test.fields...)
			content := body(t, r)
			if r.StatusCode != test.status {
				t.Fatalf("status %d: %.200q", r.StatusCode, content)
			}
			switch test.status {
			case 416:
				if diff := cmp.Diff([]string{codeRangeInvalid}, codes(t, content)); diff != "" {
					t.Error(diff)
				}
				return
			case 206:
				want := "bytes " + strconv.Itoa(test.from) + "-" + strconv.Itoa(test.to-1) + "/" + size
				if got := r.Header.Get("Content-Range"); got != want {
					t.Errorf("Content-Range %q, expected %q", got, want)
				}
			}
			if content != string(s.layer[test.from:test.to]) {
				t.Errorf("%d wrong bytes", len(content))
			}
			if got := r.Header.Get("Content-Length"); test.status != 304 && got != strconv.Itoa(test.to-test.from) {
				t.Errorf("Content-Length %q", got)
			}
		})
	}
	head := ask(h, "HEAD", path)
	for name, want := range map[string]string{
		"Content-Length": size, "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes",
		"Docker-Content-Digest": d,
	} {
		if got := head.Header.Get(name); got != want {
			t.Errorf("HEAD: %s %q, expected %q", name, got, want)
		}
	}
}

// TestRefusals has a case for each way not to get anything.
func TestRefusals(t *testing.T) {
	s := newSample(t)
	h := New(s.open(), Options{Log: discard})
	none := digest.FromString("none").String()
	layer := digest.FromBytes(s.layer).String()
	for _, test := range []struct {
		method, path string
		status       int
		code         string
		text         string
	}{
		{"GET", "/", 404, codeUnsupported, "/v2/"},
		{"GET", "/v1/", 404, codeUnsupported, "/v2/"},
		{"GET", "/token", 404, codeUnsupported, ""},
		{"GET", "/v2/x", 404, codeNameUnknown, ""},
		{"GET", "/v2/library/ubuntu/blobs/uploads/", 404, codeUnsupported, ""},
		{"GET", "/v2/library/ubuntu/tags/other", 404, codeUnsupported, ""},
		{"GET", "/v2/library/fedora/manifests/40", 404, codeNameUnknown, "library/fedora"},
		{"GET", "/v2/library/ubuntu/manifests/24.04?ns=quay.io", 404, codeNameUnknown, "quay.io/library/ubuntu"},
		{"GET", "/v2/docker.io/library/ubuntu/manifests/24.04?ns=docker.io", 404, codeNameUnknown, ""},
		{"GET", "/v2/rancher/mirrored-pause/manifests/3.6", 404, codeNameUnknown,
			`"docker.io/rancher/mirrored-pause","registry.example.com:5000/rancher/mirrored-pause"`},
		{"GET", "/v2/../../etc/passwd/manifests/latest", 404, codeNameInvalid, ""},
		{"GET", "/v2/-/manifests/latest", 404, codeNameInvalid, ""},
		{"GET", "/v2/" + strings.Repeat("a/", 600) + "b/manifests/latest", 404, codeNameInvalid, "…"},
		{"GET", "/v2/library/ubuntu/manifests/25.04", 404, codeManifestUnknown, "25.04"},
		{"GET", "/v2/library/ubuntu/manifests/.INVALID", 404, codeManifestUnknown, ""},
		{"GET", "/v2/library/ubuntu/manifests/" + none, 404, codeManifestUnknown, none},
		{"GET", "/v2/library/ubuntu/manifests/" + text(s.ubuntuARM64, "digest"), 404, codeManifestUnknown, ""},
		// Neither a layer nor another repository's manifest is one of this repository.
		{"GET", "/v2/library/ubuntu/manifests/" + layer, 404, codeManifestUnknown, ""},
		{"GET", "/v2/library/ubuntu/manifests/" + text(s.cilium, "digest"), 404, codeManifestUnknown, ""},
		{"GET", "/v2/library/ubuntu/manifests/sha256:totallywrong", 400, codeDigestInvalid, ""},
		{"GET", "/v2/library/ubuntu/manifests/" + digest.SHA512.FromString("x").String(), 404, codeManifestUnknown, ""},
		{"GET", "/v2/library/ubuntu/blobs/" + none, 404, codeBlobUnknown, none},
		{"GET", "/v2/library/ubuntu/blobs/latest", 400, codeDigestInvalid, ""},
		{"GET", "/v2/library/ubuntu/blobs/md5:d41d8cd98f00b204e9800998ecf8427e", 404, codeBlobUnknown, ""},
		{"GET", "/v2/library/ubuntu/blobs/" + digest.SHA512.FromString("x").String(), 404, codeBlobUnknown, ""},
		{"GET", "/v2/library/fedora/blobs/" + layer, 404, codeNameUnknown, ""},
		{"GET", "/v2/library/fedora/tags/list", 404, codeNameUnknown, ""},
		{"GET", "/v2/library/ubuntu/tags/list?n=x", 400, codePageInvalid, ""},
		{"GET", "/v2/library/ubuntu/tags/list?n=-1", 400, codePageInvalid, ""},
		{"GET", "/v2/library/ubuntu/referrers/x", 400, codeDigestInvalid, ""},
		{"POST", "/v2/library/ubuntu/blobs/uploads/", 405, codeUnsupported, "read-only"},
		{"PUT", "/v2/library/ubuntu/manifests/24.04", 405, codeUnsupported, "read-only"},
		{"PUT", "/v2/library/ubuntu/manifests/sha256:totallywrong", 400, codeDigestInvalid, ""},
		{"PATCH", "/v2/library/ubuntu/blobs/uploads/1", 405, codeUnsupported, "read-only"},
		{"DELETE", "/v2/library/ubuntu/manifests/" + text(s.ubuntu, "digest"), 405, codeUnsupported, "read-only"},
		{"DELETE", "/v2/library/ubuntu/blobs/" + layer, 405, codeUnsupported, "read-only"},
	} {
		r := ask(h, test.method, test.path)
		content := body(t, r)
		if r.StatusCode != test.status || !strings.Contains(content, test.text) {
			t.Errorf("%s %.120s: status %d, expected %d: %s", test.method, test.path, r.StatusCode, test.status, content)
		}
		if diff := cmp.Diff([]string{test.code}, codes(t, content)); diff != "" {
			t.Errorf("%s %.120s: %s", test.method, test.path, diff)
		}
		if got := r.Header.Get("Content-Type"); got != "application/json" {
			t.Errorf("%s %.120s: Content-Type %q", test.method, test.path, got)
		}
		if test.method == "GET" {
			if got := ask(h, "HEAD", test.path).StatusCode; got != test.status {
				t.Errorf("HEAD %.120s: status %d, expected %d", test.path, got, test.status)
			}
		}
	}
}

// TestLists asks for names, all at once and in pages.
func TestLists(t *testing.T) {
	h := New(newSample(t).open(), Options{Log: discard})
	all := []any{
		"boxlift/k3s/install.sh", "boxlift/k3s/k3s", "boxlift/lock/versions.lock",
		"docker.io/library/ubuntu", "docker.io/rancher/mirrored-pause",
		"quay.io/cilium/cilium", "registry.example.com:5000/rancher/mirrored-pause",
	}
	tags := func(names ...any) any {
		return map[string]any{"name": "library/ubuntu", "tags": append([]any{}, names...)}
	}
	repositories := func(names ...any) any { return map[string]any{"repositories": append([]any{}, names...)} }
	for _, test := range []struct {
		path, link string
		want       any
	}{
		{"", "", map[string]any{}},
		{"library/ubuntu/tags/list", "", tags("24.04", "latest", "Noble")},
		{"library/ubuntu/tags/list?n=2", `</v2/library/ubuntu/tags/list?last=latest&n=2>; rel="next"`,
			tags("24.04", "latest")},
		{"library/ubuntu/tags/list?n=1&ns=docker.io",
			`</v2/library/ubuntu/tags/list?last=24.04&n=1&ns=docker.io>; rel="next"`, tags("24.04")},
		{"library/ubuntu/tags/list?n=2&last=latest", "", tags("Noble")},
		{"library/ubuntu/tags/list?n=0", "", tags()},
		{"library/ubuntu/tags/list?last=zzz", "", tags()},
		// It need not be there.
		{"library/ubuntu/tags/list?last=aaa", "", tags("latest", "Noble")},
		{"library/ubuntu/tags/list?n=99999999999", "", tags("24.04", "latest", "Noble")},
		{"_catalog", "", repositories(all...)},
		{"_catalog?n=3", `</v2/_catalog?last=boxlift%2Flock%2Fversions.lock&n=3>; rel="next"`, repositories(all[:3]...)},
		{"_catalog?n=4&last=boxlift%2Flock%2Fversions.lock", "", repositories(all[3:]...)},
	} {
		r := ask(h, "GET", "/v2/"+test.path)
		var got any
		if err := json.Unmarshal([]byte(body(t, r)), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" || r.StatusCode != 200 {
			t.Errorf("%s: status %d: %s", test.path, r.StatusCode, diff)
		}
		if got := r.Header.Get("Link"); got != test.link {
			t.Errorf("%s: Link %q, expected %q", test.path, got, test.link)
		}
	}
}

func TestReferrers(t *testing.T) {
	s := newSample(t)
	distant := s.referrer(digest.SHA512.FromString("elsewhere"))
	s.entry(distant, nil)
	h := New(s.open(), Options{Log: discard})
	sbom := map[string]any{
		"mediaType": ocispec.MediaTypeImageManifest, "digest": text(s.sbom, "digest"), "size": float64(s.sbom["size"].(int)),
		"artifactType": "application/spdx+json", "annotations": map[string]any{"kind": "sbom"},
	}
	lost := map[string]any{
		"mediaType": ocispec.MediaTypeImageManifest, "digest": text(s.lost, "digest"), "size": float64(s.lost["size"].(int)),
		"artifactType": "application/vnd.example.signature", // its config's
	}
	far := map[string]any{
		"mediaType": ocispec.MediaTypeImageManifest, "digest": text(distant, "digest"),
		"size":         float64(distant["size"].(int)),
		"artifactType": "application/vnd.example.signature",
	}
	for _, test := range []struct {
		name, path, filtered string
		want                 []any
	}{
		{"one", text(s.cilium, "digest"), "", []any{sbom}},
		{"that type", text(s.cilium, "digest") + "?artifactType=application%2Fspdx%2Bjson", "artifactType", []any{sbom}},
		{"another type", text(s.cilium, "digest") + "?artifactType=x", "artifactType", []any{}},
		{"none", text(s.ubuntu, "digest"), "", []any{}},
		{"of what is not there", digest.FromString("nowhere").String(), "", []any{lost}},
		{"of what nobody knows", digest.FromString("unknown").String(), "", []any{}},
		{"of another algorithm's digest", digest.SHA512.FromString("elsewhere").String(), "", []any{far}},
		{"of what has a digest of an unknown algorithm", "example+b64u:LCa0a2j_xo", "", []any{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := ask(h, "GET", "/v2/cilium/cilium/referrers/"+test.path)
			var got any
			if err := json.Unmarshal([]byte(body(t, r)), &got); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{"schemaVersion": 2.0, "mediaType": ocispec.MediaTypeImageIndex, "manifests": test.want}
			if diff := cmp.Diff(any(want), got); diff != "" {
				t.Error(diff)
			}
			if r.StatusCode != 200 || r.Header.Get("Content-Type") != ocispec.MediaTypeImageIndex ||
				r.Header.Get("OCI-Filters-Applied") != test.filtered {
				t.Errorf("status %d, header %v", r.StatusCode, r.Header)
			}
		})
	}
}

// TestReferrersOfRepository finds referrers that have names where they can be pulled only:
// where what they refer to is, and under their own names.
func TestReferrersOfRepository(t *testing.T) {
	s := newSample(t)
	signature := s.referrer(s.cilium["digest"].(digest.Digest))
	s.image("quay.io/signatures/cilium:v1.20.0", signature)
	h := New(s.open(), Options{Log: discard})
	for repository, want := range map[string]bool{
		"quay.io/cilium/cilium": true, "quay.io/signatures/cilium": true, "docker.io/library/ubuntu": false,
	} {
		list := body(t, ask(h, "GET", "/v2/"+repository+"/referrers/"+text(s.cilium, "digest")))
		if got := strings.Contains(list, text(signature, "digest")); got != want {
			t.Errorf("%s: the signature is listed: %t, expected %t: %s", repository, got, want, list)
		}
		status := 404
		if want {
			status = 200
		}
		if got := ask(h, "GET", "/v2/"+repository+"/manifests/"+text(signature, "digest")).StatusCode; got != status {
			t.Errorf("%s: the signature: status %d, expected %d", repository, got, status)
		}
	}
}

// TestDamagedManifest changes what a digest names: it is not served, and the log says why.
func TestDamagedManifest(t *testing.T) {
	s := newSample(t)
	name := "blobs/sha256/" + strings.TrimPrefix(text(s.cilium, "digest"), "sha256:")
	s.content[name] = bytes.Replace(s.content[name], []byte(`"layers"`), []byte(`"Layers"`), 1)
	var log bytes.Buffer
	h := New(s.open(), Options{Log: lines(&log)})
	r := ask(h, "GET", "/v2/cilium/cilium/manifests/v1.20.0")
	if got := codes(t, body(t, r)); r.StatusCode != 500 || got[0] != codeUnknown {
		t.Errorf("status %d, %v", r.StatusCode, got)
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), text(s.cilium, "digest")) {
		t.Errorf("the log does not say what is damaged: %s", &log)
	}
	// The rest is served on.
	if got := ask(h, "GET", "/v2/library/ubuntu/manifests/"+text(s.ubuntuAMD64, "digest")).StatusCode; got != 200 {
		t.Errorf("an image that is whole: status %d", got)
	}
}

func TestBasic(t *testing.T) {
	h := New(newSample(t).open(), Options{Log: discard, Auth: Basic("boxlift", sha256.Sum256([]byte("right")))})
	for _, test := range []struct {
		name, username, password string
		status                   int
	}{
		{"right", "boxlift", "right", 200},
		{"wrong password", "boxlift", "wrong", 401},
		{"no password", "boxlift", "", 401},
		{"other user", "root", "right", 401},
		{"nobody", "", "", 401},
	} {
		for _, path := range []string{"/v2/", "/v2/_catalog", "/v2/x/manifests/y", "/token", "/x"} {
			r := httptest.NewRequest("GET", path, nil)
			if test.username != "" {
				r.SetBasicAuth(test.username, test.password)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if test.status == 401 && w.Code != 401 || test.status != 401 && w.Code == 401 {
				t.Errorf("%s: %s: status %d", test.name, path, w.Code)
			}
			if got := w.Header().Get("WWW-Authenticate"); w.Code == 401 && got != `Basic realm="boxlift"` {
				t.Errorf("%s: challenge %q", test.name, got)
			}
		}
	}
	for _, field := range []string{"Basic", "Basic !!", "Bearer right", "basic " + strings.Repeat("A", 9000),
		"Digest username=boxlift"} {
		if got := ask(h, "GET", "/v2/", "Authorization", field).StatusCode; got != 401 {
			t.Errorf("%.30q: status %d", field, got)
		}
	}
	if got := ask(h, "DELETE", "/v2/library/ubuntu/manifests/24.04").StatusCode; got != 401 {
		t.Errorf("who has no password is told what could be deleted: status %d", got)
	}
}

func TestToken(t *testing.T) {
	h := New(newSample(t).open(), Options{Log: discard, Secured: true, Auth: Token(sha256.Sum256([]byte("secret")))})
	r := ask(h, "GET", "http://registry.lan:5000/v2/")
	if got := r.Header.Get("WWW-Authenticate"); r.StatusCode != 401 ||
		got != `Bearer realm="https://registry.lan:5000/token",service="boxlift"` {
		t.Errorf("status %d, challenge %q", r.StatusCode, got)
	}
	for field, status := range map[string]int{
		"Bearer secret": 200, "bearer secret": 200, "Bearer wrong": 401, "Bearer ": 401, "secret": 401,
		"Basic c2VjcmV0OnNlY3JldA==": 401,
	} {
		if got := ask(h, "GET", "/v2/", "Authorization", field).StatusCode; got != status {
			t.Errorf("%q: status %d, expected %d", field, got, status)
		}
	}
	exchange := httptest.NewRequest("GET", "/token?service=boxlift&scope=repository:x:pull", nil)
	exchange.SetBasicAuth("anybody", "secret")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, exchange)
	var answer struct{ Token string }
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 200 || answer.Token != "secret" {
		t.Errorf("status %d, %v: %s", w.Code, err, w.Body)
	}
	exchange.SetBasicAuth("anybody", "wrong")
	w = httptest.NewRecorder()
	h.ServeHTTP(w, exchange)
	if w.Code != 401 || w.Header().Get("WWW-Authenticate") != `Basic realm="boxlift"` {
		t.Errorf("status %d, %v", w.Code, w.Header())
	}
	hostile := httptest.NewRequest("GET", "/v2/", nil)
	hostile.Host = `x",realm="https://evil`
	w = httptest.NewRecorder()
	h.ServeHTTP(w, hostile)
	if w.Code != 400 || w.Header().Get("WWW-Authenticate") != "" {
		t.Errorf("status %d, %v", w.Code, w.Header())
	}
}

// TestAccessLog makes requests that want to write more than one line, or a secret.
func TestAccessLog(t *testing.T) {
	var log bytes.Buffer
	h := New(newSample(t).open(), Options{Log: lines(&log), Auth: Basic("boxlift", sha256.Sum256([]byte("canary")))})
	r := httptest.NewRequest("GET", "/v2/library/ubuntu/blobs/x%0Alevel=ERROR%1b[31m?ns=docker.io%0A&token=canary", nil)
	r.SetBasicAuth("boxlift", "canary")
	r.Header.Set("User-Agent", strings.Repeat("agent\u202e", 1000))
	r.Header.Set("Cookie", "canary")
	h.ServeHTTP(httptest.NewRecorder(), r)
	line := log.String()
	if strings.Count(line, "\n") != 1 || len(line) > 1000 {
		t.Errorf("not one bounded line: %q", line)
	}
	for _, bad := range []string{"canary", "Y2FuYXJ5", "\x1b", `\x1b`, `\u202e`, `\n`} {
		if strings.Contains(line, bad) {
			t.Errorf("the line has %q: %q", bad, line)
		}
	}
	for _, good := range []string{"from=192.0.2.1:1234", "method=GET",
		"/v2/library/ubuntu/blobs/x level=ERROR\ufffd[31m\"", "ns=\"docker.io \"", "status=404"} {
		if !strings.Contains(line, good) {
			t.Errorf("the line lacks %q: %q", good, line)
		}
	}
	log.Reset()
	ask(h, "GET", "/v2/")
	if !strings.Contains(log.String(), "status=401") {
		t.Errorf("no line: %q", &log)
	}
}

// TestTurns has one more who wants a blob than are served at a time.
func TestTurns(t *testing.T) {
	s := newSample(t)
	h := &handler{content: s.open(), options: Options{Log: discard}, transfers: make(chan struct{}, 1)}
	path := "/v2/library/ubuntu/blobs/" + digest.FromBytes(s.layer).String()
	h.transfers <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil).WithContext(ctx))
	if got := codes(t, w.Body.String()); w.Code != 429 || got[0] != codeTooMany || w.Header().Get("Retry-After") == "" {
		t.Errorf("who goes while waiting: status %d, %v", w.Code, got)
	}
	if got := ask(h, "HEAD", path).StatusCode; got != 200 {
		t.Errorf("who wants no bytes waits: status %d", got)
	}
	waited := make(chan int)
	go func() { waited <- ask(h, "GET", path).StatusCode }()
	<-h.transfers
	if got := <-waited; got != 200 {
		t.Errorf("who waits: status %d", got)
	}
	for range 3 {
		if got := ask(h, "GET", path).StatusCode; got != 200 {
			t.Errorf("turns are not given back: status %d", got)
		}
	}
}
