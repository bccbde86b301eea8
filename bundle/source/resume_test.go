package source

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/liteboxd/boxlift/bundle/ocitar"
	"github.com/liteboxd/boxlift/test/upstream"
)

const archiveURL = "https://github.com/k3s-io/k3s/releases/download/v1.36.4%2Bk3s1/k3s-airgap-images-amd64.tar.zst"

// origins are the kinds of servers that something pinned comes from.
func origins(t *testing.T) map[string]origin {
	t.Helper()
	largest := origin{}
	c := client(t)
	for _, image := range server.Images() {
		if image.Ref != webRef {
			continue
		}
		content, _, err := c.Manifest(t.Context(), "ghcr.io/fslongjin/web", image.Digest)
		if err != nil {
			t.Fatal(err)
		}
		for _, layer := range manifestLayers(t, content) {
			if layer.Size > largest.size {
				largest = origin{
					path: upstream.BlobPath(layer.Digest), size: layer.Size, sum: layer.Digest.Encoded(),
					open: func(t *testing.T, c *Client, from int64) (*Stream, error) {
						return c.BlobFrom(t.Context(), "ghcr.io/fslongjin/web", layer.Digest, from)
					},
				}
			}
		}
	}
	redirected := largest
	redirected.path, redirected.redirect = "^/cdn.*"+largest.path, largest.path
	return map[string]origin{
		"file": file(t, chartURL), "file behind a redirect": file(t, archiveURL),
		"blob": largest, "blob behind a redirect": redirected,
	}
}

type origin struct {
	path     string // of the rules
	redirect string // of what is redirected, if anything
	size     int64
	sum      string
	open     func(t *testing.T, c *Client, from int64) (*Stream, error)
}

func file(t *testing.T, url string) origin {
	t.Helper()
	for _, f := range server.Files() {
		if f.URL == url {
			return origin{path: upstream.FilePath(url), size: f.Size, sum: f.SHA256, open: func(t *testing.T, c *Client, from int64) (*Stream, error) {
				return c.OpenPinned(t.Context(), url, from)
			}}
		}
	}
	t.Fatalf("no file %s", url)
	return origin{}
}

// TestResume cuts everything that can be cut where it can be gone on with.
func TestResume(t *testing.T) {
	tests := map[string]struct {
		// rules misbehave after the first answer was cut at nine tenths.
		rules []upstream.Fault
		// sent is what may come over the line, in tenths of the whole.
		sent int64
	}{
		"cut":                        {nil, 10},
		"server without ranges":      {[]upstream.Fault{upstream.IgnoreRange{}}, 19},
		"a range further on":         {[]upstream.Fault{upstream.ShiftRange{By: 7}}, 20},
		"a range further back":       {[]upstream.Fault{upstream.ShiftRange{By: -7}}, 20},
		"a range past the end":       {[]upstream.Fault{upstream.ShiftRange{By: 1 << 40}}, 19},
		"another ETag":               {[]upstream.Fault{upstream.NewETag{Tag: `"other"`}}, 19},
		"a weak ETag":                {[]upstream.Fault{upstream.NewETag{Tag: `W/"other"`}}, 19},
		"no ETag any more":           {[]upstream.Fault{upstream.NewETag{}}, 19},
		"cut again":                  {[]upstream.Fault{upstream.Cut{After: 10}}, 10},
		"cut and no ranges":          {[]upstream.Fault{upstream.IgnoreRange{}, upstream.Cut{After: 10}}, 20},
		"too many requests":          {[]upstream.Fault{upstream.Status{Code: 429, RetryAfter: time.Second}}, 10},
		"not at the moment":          {[]upstream.Fault{upstream.Status{Code: 503}}, 10},
		"nothing arrives for a time": {[]upstream.Fault{upstream.Slow{BytesPerSecond: 1}}, 10},
	}
	for place, origin := range origins(t) {
		for name, test := range tests {
			t.Run(place+"/"+name, func(t *testing.T) {
				heal(t)
				if origin.redirect != "" {
					server.Inject(upstream.Rule{Path: "^/v2/.*" + origin.redirect, Fault: upstream.Redirect{}})
				}
				cut := server.Inject(upstream.Rule{Path: origin.path, Times: 1, Fault: upstream.Cut{After: origin.size * 9 / 10}})
				for _, fault := range test.rules {
					rule := upstream.Rule{Path: origin.path, Method: "GET", Skip: 1, Times: 1, Fault: fault}
					switch fault.(type) {
					case upstream.IgnoreRange, upstream.ShiftRange:
						rule.Skip = 0 // the first request has no range
					}
					server.Inject(rule)
				}
				c := client(t, func(o *Options) { o.IdleTimeout = 300 * time.Millisecond })
				s, err := origin.open(t, c, 0)
				content := read(t, s, err)
				if got := digest.FromBytes(content).Encoded(); got != origin.sum || s.Size != origin.size || !s.Spliced() {
					t.Errorf("%d bytes of %d came, the announced size is %d, spliced: %t; digest %s, expected %s",
						len(content), origin.size, s.Size, s.Spliced(), got, origin.sum)
				}
				var sent int64
				for _, r := range server.Requests() {
					if r.Status == 200 || r.Status == 206 {
						sent += r.Bytes
					}
				}
				// TLS records that are cut are lost, and the answer that is given up has begun.
				const lost = 64 << 10
				if cut.Hits() != 1 || sent > origin.size*test.sent/10+lost {
					t.Errorf("%d hits; %d bytes were sent of something with %d", cut.Hits(), sent, origin.size)
				}
			})
		}
	}
}

// TestFrom begins in the middle, as a build does that was killed.
func TestFrom(t *testing.T) {
	for place, origin := range origins(t) {
		for name, faults := range map[string][]upstream.Fault{
			"range": nil, "no ranges": {upstream.IgnoreRange{}}, "shifted": {upstream.ShiftRange{By: -1}}, "cut": {upstream.Cut{After: 100}},
		} {
			t.Run(place+"/"+name, func(t *testing.T) {
				heal(t)
				s, err := origin.open(t, client(t), 0)
				whole := read(t, s, err)
				for _, fault := range faults {
					server.Inject(upstream.Rule{Path: origin.path, Times: 1, Fault: fault})
				}
				for _, from := range []int64{1, origin.size - 1, origin.size} {
					s, err := origin.open(t, client(t), from)
					if err != nil {
						t.Fatal(err)
					}
					rest, err := io.ReadAll(s)
					if err != nil || !bytes.Equal(rest, whole[from:]) {
						t.Errorf("%d bytes came from %d on, of %d: %v", len(rest), from, origin.size, err)
					}
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// TestUnproven goes on only with what is the same version of a file for sure.
func TestUnproven(t *testing.T) {
	tests := map[string]struct {
		fault upstream.Rule
		want  string // in the error; "" for success
	}{
		"same ETag":       {upstream.Rule{Skip: 1 << 20, Fault: upstream.NewETag{}}, ""},
		"no ranges":       {upstream.Rule{Fault: upstream.IgnoreRange{}}, ""},
		"no ETag":         {upstream.Rule{Fault: upstream.NewETag{}}, "the server does not say which version of it this is"},
		"a weak ETag":     {upstream.Rule{Fault: upstream.NewETag{Tag: `W/"1"`}}, "the server does not say which version of it this is"},
		"another ETag":    {upstream.Rule{Skip: 1, Fault: upstream.NewETag{Tag: `"2"`}}, `it changed while it came: its ETag is "\"2\"" now`},
		"ETag disappears": {upstream.Rule{Skip: 1, Fault: upstream.NewETag{}}, `it changed while it came: its ETag is "" now`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			heal(t)
			test.fault.Path = "cilium-1.20.0"
			server.Inject(test.fault)
			server.Inject(upstream.Rule{Path: "cilium-1.20.0", Times: 1, Fault: upstream.Cut{After: 1000}})
			s, err := client(t).Open(t.Context(), chartURL)
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(s)
			if test.want != "" {
				wantError(t, err, 200, test.want)
				if !errors.Is(err, ErrAnew) {
					t.Error("not ErrAnew")
				}
			} else if got := digest.FromBytes(content).Encoded(); err != nil || got != file(t, chartURL).sum {
				t.Errorf("%d bytes came: %v", len(content), err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestContentRange has a server that says what no server should.
func TestContentRange(t *testing.T) {
	const whole = "0123456789"
	tests := map[string]struct {
		header, body string
		good         bool // whether the range is taken as it is
	}{
		"as asked":           {"bytes 4-9/10", "456789", true},
		"size unknown":       {"bytes 4-9/*", "456789", true},
		"ends early":         {"bytes 4-6/10", "456", true},
		"none":               {"", "456789", false},
		"other unit":         {"lines 4-9/10", "456789", false},
		"further on":         {"bytes 5-9/10", "56789", false},
		"further back":       {"bytes 3-9/10", "3456789", false},
		"reversed":           {"bytes 4-3/10", "", false},
		"past the end":       {"bytes 4-10/10", "4567890", false},
		"longer body":        {"bytes 4-8/10", "456789", false},
		"garbage behind":     {"bytes 4-9/10 ", "456789", true}, // spaces around a field belong to no field
		"garbage in front":   {"xbytes 4-9/10", "456789", false},
		"number out of size": {"bytes 4-9/99999999999999999999", "456789", false},
		"sign":               {"bytes +4-9/10", "456789", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			asked := 0
			liar := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked++
				switch from := r.Header.Get("Range"); {
				case from == "bytes=4-":
					w.Header()["Content-Range"] = []string{test.header}
					w.WriteHeader(http.StatusPartialContent)
					_, _ = io.WriteString(w, test.body)
				case from == "bytes=7-":
					w.Header().Set("Content-Range", "bytes 7-9/10")
					w.WriteHeader(http.StatusPartialContent)
					_, _ = io.WriteString(w, whole[7:])
				default:
					_, _ = io.WriteString(w, whole)
				}
			}))
			defer liar.Close()
			c := New(Options{MaxTries: 1, Pause: time.Millisecond, Authorities: trusting(liar)})
			s, err := c.OpenPinned(t.Context(), liar.URL, 4)
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(s)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if want := whole[4:]; err != nil || string(content) != want {
				t.Errorf("got %q, %v", content, err)
			}
			if one := asked == 1 || test.body == "456"; one != test.good {
				t.Errorf("%d requests, expected that the range is taken: %t", asked, test.good)
			}
		})
	}
}

// TestOtherSize has a server that gives something else in the middle.
func TestOtherSize(t *testing.T) {
	first := true
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !first {
			_, _ = io.WriteString(w, "something longer")
			return
		}
		first = false
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "0123")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	s, err := New(Options{MaxTries: 1, Pause: time.Millisecond, Authorities: trusting(server)}).OpenPinned(t.Context(), server.URL, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the error stays
		_, err = io.ReadAll(s)
		wantError(t, err, 200, "it changed while it came: it has 16 bytes now, and had 10 before")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestMirrorsInTurn asks one mirror after another, also in the middle of a download.
func TestMirrorsInTurn(t *testing.T) {
	heal(t)
	want := file(t, chartURL)
	dead := httptest.NewTLSServer(nil)
	deadAddress := strings.TrimPrefix(dead.URL, "https://")
	dead.Close()
	c := New(Options{MaxTries: 2, Pause: time.Millisecond, Mirrors: []Mirror{
		{"helm.cilium.io", deadAddress},
		{"helm.cilium.io", server.Addr() + "/first"},
		{"helm.cilium.io", server.Addr() + "/helm.cilium.io"},
	}})
	server.Inject(upstream.Rule{Path: want.path, Times: 1, Fault: upstream.Cut{After: 1000}})
	s, err := c.OpenPinned(t.Context(), chartURL, 0)
	if got := digest.FromBytes(read(t, s, err)).Encoded(); got != want.sum {
		t.Errorf("got %s", got)
	}
	type asked struct{ path, span string }
	var got []asked
	for _, r := range server.Requests() {
		got = append(got, asked{r.Path, r.Range})
	}
	if diff := cmp.Diff([]asked{
		{"/first/cilium-1.20.0.tgz", ""}, {"/helm.cilium.io/cilium-1.20.0.tgz", ""},
		{"/first/cilium-1.20.0.tgz", "bytes=1000-"}, {"/helm.cilium.io/cilium-1.20.0.tgz", "bytes=1000-"},
	}, got, cmp.AllowUnexported(asked{})); diff != "" {
		t.Errorf("requests (-expected +got):\n%s", diff)
	}

	_, err = c.Open(t.Context(), "https://helm.cilium.io/none.tgz")
	wantError(t, err, 404, "none of the 3 mirrors of helm.cilium.io could give it: ",
		"/first/none.tgz: the server answered 404", "refused")
}

// TestPauseForAll: what one request was told counts for the others.
func TestPauseForAll(t *testing.T) {
	heal(t)
	server.Inject(upstream.Rule{Path: "cilium-1.20.0", Times: 1, Fault: upstream.Status{Code: 429, RetryAfter: time.Second}})
	told := make(chan struct{}, 1)
	c := client(t, func(o *Options) { o.Retrying = func(error, time.Duration) { told <- struct{}{} } })
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		s, err := c.Open(t.Context(), chartURL)
		if err == nil {
			err = s.Close()
		}
		ended <- err
	}()
	<-told
	s, err := c.Open(t.Context(), "https://helm.cilium.io/index.yaml")
	if err := errors.Join(err, s.Close(), <-ended); err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("the other request waited for %v only", waited)
	}

	server.Inject(upstream.Rule{Path: "index.yaml", Fault: upstream.Status{Code: 429, RetryAfter: 6 * time.Hour}})
	_, err = client(t).Open(t.Context(), "https://helm.cilium.io/index.yaml")
	wantError(t, err, 429, "it asks to come back in 6h0m0s")
}

// TestFolder reads a kustomize folder as the tar that is made of it, and nothing that lies beside it.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"a/kustomization.yaml": "{}", "a/b/c": "inside", "secret": "outside", "bare/file": "x",
		"both/kustomization.yaml": "{}", "both/oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "both/index.json": "{}",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret", filepath.Join(dir, "a", "link")); err != nil {
		t.Fatal(err)
	}
	pack := "b/c"
	packing := New(Options{Folder: dir, PackFolder: func(files fs.FS) ([]byte, error) { return fs.ReadFile(files, pack) }})
	stream, err := packing.OpenPinned(t.Context(), "file:a", 2)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(stream)
	if err != nil || string(content) != "side" || stream.Size != 6 {
		t.Errorf("got %q of %d bytes, %v", content, stream.Size, err)
	}
	if size, err := packing.Size(t.Context(), "file:a"); size != 6 || err != nil {
		t.Errorf("it has %d bytes, %v", size, err)
	}
	if _, err := packing.File(t.Context(), "file:a", 5); err == nil || !strings.Contains(err.Error(), "larger than 5 bytes") {
		t.Errorf("a bound: %v", err)
	}
	for address, want := range map[string]bool{"file:a": true, "file:bare": true, "file:secret": false, "file:none": false, "https://a": false} {
		if got := packing.IsFolder(address); got != want {
			t.Errorf("%s is a folder: %v", address, got)
		}
	}
	wantDisk := func(c *Client, address, want string) {
		t.Helper()
		_, err := c.Open(t.Context(), address)
		if !errors.As(err, new(*DiskError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", address, err, want)
		}
	}
	wantDisk(packing, "file:bare", "it is not the folder of an OCI image layout")
	wantDisk(New(Options{Folder: dir}), "file:a", "it is not the folder of an OCI image layout")
	pack = "link"
	wantDisk(packing, "file:a", "path escapes from parent")
	pack = "none"
	wantDisk(packing, "file:a", "no such file")
	if stream, err := packing.Open(t.Context(), "file:both"); err != nil || stream.Size != 3072 {
		t.Errorf("an OCI image layout: %v", err)
	}
}

// TestDisk reads what lies on this host.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	absolute := put("a file+more", "content")
	blob := strings.Repeat("a layer ", 300)
	put("layout/oci-layout", "{ \"imageLayoutVersion\": \"1.0.0\" }\n")
	put("layout/index.json", "{}")
	put("layout/blobs/sha256/"+digest.FromString(blob).Encoded(), blob)
	put("layout/blobs/sha256/.left-over", "of a program that was killed")
	put("folder/file", "")
	c := New(Options{Folder: dir})

	for _, address := range []string{"file:a%20file%2Bmore", "file:" + strings.ReplaceAll(strings.ReplaceAll(absolute, " ", "%20"), "+", "%2B")} {
		s, err := c.OpenPinned(t.Context(), address, 3)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(s)
		if err != nil || string(content) != "tent" || s.Size != 7 || s.Spliced() {
			t.Errorf("%s: %q of %d bytes, %v", address, content, s.Size, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	s, err := c.Open(t.Context(), "file:layout")
	whole := read(t, s, err)
	if _, err := ocitar.NewReader(bytes.NewReader(whole), s.Size); err != nil {
		t.Error(err)
	}
	// Locks pin it: another one would need all of them made anew.
	const golden = "e7be738e1a4467e83b9c4af7405b9e181131197dea58604ec1759ded69c08c69"
	if got := digest.FromBytes(whole).Encoded(); got != golden {
		t.Errorf("the layout's tar has the sha256 %s, expected %s", got, golden)
	}
	for _, from := range []int64{1, 511, 512, 1000, 5000, s.Size - 1, s.Size} {
		s, err := c.OpenPinned(t.Context(), "file:layout", from)
		if err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(s)
		if err != nil || !bytes.Equal(rest, whole[from:]) {
			t.Errorf("%d bytes from %d on, %v", len(rest), from, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for address, want := range map[string]string{
		"file:none":        "none: no such file or directory",
		"file:folder":      "folder: it is not the folder of an OCI image layout: oci-layout: no such file or directory",
		"file:/dev/null":   "read /dev/null: it is neither a file nor a folder",
		"file:a%zz":        "invalid URL escape",
		"file:folder/file": "",
	} {
		s, err := c.Open(t.Context(), address)
		if err == nil {
			err = s.Close()
		}
		var failed *DiskError
		if want == "" && err != nil || want != "" && (!errors.As(err, &failed) || !strings.Contains(err.Error(), want) || failed.Hint() == "") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestProxy goes through what HTTPS_PROXY names.
// TestOutside tells what leads out of the lock's folder, also over links.
func TestOutside(t *testing.T) {
	folder, elsewhere := t.TempDir(), t.TempDir()
	err := errors.Join(
		os.WriteFile(filepath.Join(elsewhere, "secret"), nil, 0o600),
		os.WriteFile(filepath.Join(folder, "a file"), nil, 0o600),
		os.Symlink(elsewhere, filepath.Join(folder, "out")),
		os.Symlink(".", filepath.Join(folder, "in")),
		os.Symlink(folder, filepath.Join(elsewhere, "back")),
	)
	if err != nil {
		t.Fatal(err)
	}
	inside := []string{
		"https://example.com/../../file", "file:a%20file", "file:none/none", "file:in/in/a%20file", "file:x/../a%20file",
		"file:" + filepath.Join(folder, "none"), "file:" + filepath.Join(elsewhere, "back", "none"), "file:out/back/none",
	}
	outside := []string{
		"file:../secret", "file:%2E%2E/secret", "file:/etc/passwd", "file:out/secret", "file:in/out/none",
		"file:x/../../secret", "file:" + folder + "-other/file",
	}
	for _, from := range []string{folder, filepath.Join(elsewhere, "back")} {
		if diff := cmp.Diff(outside, Outside(from, append(inside, outside...))); diff != "" {
			t.Errorf("from %s (-expected +got):\n%s", from, diff)
		}
	}
	t.Chdir(folder)
	if diff := cmp.Diff(outside, Outside(".", append(inside, outside...))); diff != "" {
		t.Errorf("from the working directory (-expected +got):\n%s", diff)
	}
}

func TestProxy(t *testing.T) {
	heal(t)
	connections.Store(0)
	c := New(Options{MaxTries: 1})
	_, err := c.Open(t.Context(), "https://example.com/escapes")
	wantError(t, err, 400, "https://example.com/escapes: ")
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections through the proxy", n)
	}
}

func trusting(s *httptest.Server) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return pool
}

func manifestLayers(t *testing.T, content []byte) []ocispec.Descriptor {
	t.Helper()
	var manifest ocispec.Manifest
	if err := json.Unmarshal(content, &manifest); err != nil {
		t.Fatal(err)
	}
	return manifest.Layers
}
