package registry

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/ocitar"
)

// statuses are all that the registry answers with.
var statuses = []int{200, 206, 304, 400, 401, 404, 405, 412, 416, 500}

// checkAnswer finds out whether an answer is one of this registry's, and has no bytes but
// those that it says it has.
func checkAnswer(t *testing.T, r *http.Request, w *httptest.ResponseRecorder, blobs map[string][]byte) {
	t.Helper()
	if !slices.Contains(statuses, w.Code) {
		t.Fatalf("status %d", w.Code)
	}
	for name, values := range w.Header() {
		for _, v := range values {
			if strings.ContainsFunc(name+v, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("header field %q: %q", name, v)
			}
		}
	}
	content := w.Body.Bytes()
	d := digest.Digest(w.Header().Get("Docker-Content-Digest"))
	switch {
	case w.Code == 304 || w.Code == 412:
		if len(content) > 0 {
			t.Fatalf("status %d with %q", w.Code, content)
		}
	case w.Code >= 400:
		if codes(t, string(content)) == nil {
			t.Fatalf("status %d without a code", w.Code)
		}
	case d == "":
		if !json.Valid(content) {
			t.Fatalf("neither a blob nor JSON: %q", content)
		}
	case r.Method == "HEAD":
	case w.Code == 200:
		if digest.FromBytes(content) != d {
			t.Fatalf("these are not the bytes of %s: %q", d, content)
		}
	default:
		var from, to, size int
		if _, err := fmt.Sscanf(w.Header().Get("Content-Range"), "bytes %d-%d/%d", &from, &to, &size); err != nil {
			t.Fatal(err)
		}
		whole, ok := blobs[ocitar.BlobName(d)]
		if !ok || len(whole) != size || from < 0 || to >= size || !bytes.Equal(whole[from:to+1], content) {
			t.Fatalf("these are not the bytes %d-%d of %s: %q", from, to, d, content)
		}
	}
}

// FuzzRequest sends whatever net/http takes for a request.
func FuzzRequest(f *testing.F) {
	s := newSample(f)
	file := s.open()
	sum := sha256.Sum256([]byte("secret"))
	var log bytes.Buffer
	handlers := []http.Handler{
		New(file, Options{Log: discard}),
		New(file, Options{Log: lines(&log), Auth: Basic("u", sum)}),
		New(file, Options{Log: discard, Auth: Token(sum), Secured: true}),
	}
	layer, ubuntu := digest.FromBytes(s.layer).String(), text(s.ubuntu, "digest")
	for i, seed := range []string{
		"GET /v2/ HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /v2/docker.io/library/ubuntu/manifests/24.04 HTTP/1.1\r\nHost: h\r\n\r\n",
		"HEAD /v2/library/ubuntu/manifests/" + ubuntu + "?ns=docker.io HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n",
		"GET /v2/library/ubuntu/blobs/" + layer + " HTTP/1.1\r\nHost: h\r\nRange: bytes=100-199\r\n" +
			"Authorization: Basic dTpzZWNyZXQ=\r\n\r\n",
		"GET /v2/library/ubuntu/blobs/" + layer + " HTTP/1.1\r\nHost: h\r\nRange: bytes=-5\r\n" +
			"If-Range: \"" + layer + "\"\r\n\r\n",
		"GET /v2/library/ubuntu/blobs/" + layer + " HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1,3-4\r\n" +
			"If-None-Match: *\r\nAuthorization: Bearer secret\r\n\r\n",
		"GET /v2/library/ubuntu/tags/list?n=1&last=x HTTP/1.0\r\n\r\n",
		"GET /v2/_catalog?n=2 HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /v2/cilium/cilium/referrers/" + text(s.cilium, "digest") + "?artifactType=x HTTP/1.1\r\nHost: h\r\n\r\n",
		"PUT /v2/library/ubuntu/manifests/sha256:x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
		"GET /token?service=boxlift HTTP/1.1\r\nHost: [::1]:5000\r\nAuthorization: Basic dTpzZWNyZXQ=\r\n\r\n",
		"GET http://h/v2/%2e%2e/%00/blobs/sha256:%0a HTTP/1.1\r\nHost: \"h\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		f.Add(byte(i), []byte(seed))
	}
	f.Fuzz(func(t *testing.T, which byte, raw []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			t.Skip()
		}
		r.RemoteAddr = "192.0.2.1:1234"
		log.Reset()
		w := httptest.NewRecorder()
		handlers[int(which)%len(handlers)].ServeHTTP(w, r)
		checkAnswer(t, r, w, s.content)
		if n := log.Len(); n > 3000 || strings.Count(log.String(), "\n") > 1 {
			t.Fatalf("not one bounded line: %q", &log)
		}
	})
}

// FuzzLayout serves an index.json and a manifest that somebody made up. MANIFEST stands for
// the manifest's digest.
func FuzzLayout(f *testing.F) {
	s := newSample(f)
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": s.entries})
	if err != nil {
		f.Fatal(err)
	}
	manifest := s.content[ocitar.BlobName(s.ubuntu["digest"].(digest.Digest))]
	f.Add(index, manifest)
	one := `{"schemaVersion":2,"manifests":[{"digest":"MANIFEST","annotations":{"io.containerd.image.name":"a/b:1"}}]}`
	f.Add([]byte(one), []byte(`{"manifests":[{"digest":"sha256:x"}],"subject":{"digest":"MANIFEST"}}`))
	f.Add([]byte(one), []byte(`{"mediaType":"text/html\r\n","config":{}}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"MANIFEST","artifactType":"x","annotations":{`+
		`"dev.boxlift.component":"..","org.opencontainers.image.title":"A/..//b","dev.boxlift.version":"../-+1"}}]}`),
		manifest)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"MANIFEST","artifactType":"x","annotations":{`+
		`"dev.boxlift.chart":"a..b/../c","dev.boxlift.version":"1.0.0+1"}}]}`), manifest)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"MANIFEST","annotations":{`+
		`"dev.boxlift.chart":"cilium","dev.boxlift.version":"1.20.0+1"}}]}`), manifest)
	f.Fuzz(func(t *testing.T, index, manifest []byte) {
		b := newBuilder(t)
		d := b.blob("", manifest)["digest"].(digest.Digest)
		index = bytes.ReplaceAll(index, []byte("MANIFEST"), []byte(d.String()))
		path := t.TempDir() + "/layout.tar"
		mustWrite(t, path, b.layOut(index))
		file, err := openFile(path)
		if err != nil {
			return
		}
		defer file.Close()
		h := New(file, Options{Log: discard})
		ask := func(target string) *httptest.ResponseRecorder {
			r := httptest.NewRequest("GET", target, nil)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			checkAnswer(t, r, w, b.content)
			return w
		}
		var all struct{ Repositories []string }
		if err := json.Unmarshal(ask("/v2/_catalog").Body.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		for _, name := range all.Repositories {
			base := (&url.URL{Path: "/v2/" + name}).EscapedPath()
			list := ask(base + "/tags/list")
			var answer struct{ Tags []string }
			if err := json.Unmarshal(list.Body.Bytes(), &answer); err != nil || list.Code != 200 {
				t.Fatalf("tags of %q: status %d, %v", name, list.Code, err)
			}
			for _, tag := range answer.Tags {
				if !tagPattern.MatchString(tag) {
					t.Fatalf("the tag %q is none", tag)
				}
				ask(base + "/manifests/" + tag)
			}
			ask(base + "/manifests/" + d.String())
			ask(base + "/referrers/" + d.String())
			ask(base + "/blobs/" + d.String())
		}
	})
}
