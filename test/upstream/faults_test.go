package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func TestStatus(t *testing.T) {
	s := start(t)
	rule := s.Inject(Rule{Path: FilePath(chartRef), Skip: 1, Times: 2, Fault: Status{Code: 429, RetryAfter: 1500 * time.Millisecond}})
	var codes []int
	var retry []string
	for range 4 {
		response, _, err := do(t, s, http.MethodGet, chartRef, nil)
		if err != nil {
			t.Fatal(err)
		}
		codes = append(codes, response.StatusCode)
		retry = append(retry, response.Header.Get("Retry-After"))
	}
	if diff := cmp.Diff([]int{200, 429, 429, 200}, codes); diff != "" {
		t.Errorf("status (-expected +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"", "2", "2", ""}, retry); diff != "" {
		t.Errorf("Retry-After (-expected +got):\n%s", diff)
	}
	if rule.Hits() != 2 {
		t.Errorf("hits: %d", rule.Hits())
	}
}

func TestRemove(t *testing.T) {
	s := start(t)
	rule := s.Inject(Rule{Path: FilePath(chartRef), Fault: Status{Code: 500}})
	if response, _, _ := do(t, s, http.MethodGet, chartRef, nil); response.StatusCode != 500 {
		t.Errorf("with the rule: %s", response.Status)
	}
	rule.Remove()
	get(t, s, chartRef)
}

func TestCut(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		s, err := Start(t.Context(), Options{HTTP2: http2})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		for _, after := range []int64{0, 100_000} {
			s.Inject(Rule{Method: http.MethodGet, Path: FilePath(chartRef), Times: 1, Fault: Cut{After: after}})
			response, body, err := do(t, s, http.MethodGet, chartRef, nil)
			if err == nil || int64(len(body)) != after {
				t.Errorf("HTTP/2 %v: got %d bytes, expected %d, and the error %v", http2, len(body), after, err)
			}
			if !http2 && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("expected a reset, got %v", err)
			}
			if http2 != (response.ProtoMajor == 2) {
				t.Errorf("the protocol was %s", response.Proto)
			}
			if whole := get(t, s, chartRef); len(whole) != int(response.ContentLength) {
				t.Errorf("after the cut: %d bytes, expected %d", len(whole), response.ContentLength)
			}
		}
	}
}

func TestCutBlob(t *testing.T) {
	s := start(t)
	blob := s.set.image(pauseRef).Manifests[0].Layers[0]
	address := "https://v2/docker.io/rancher/mirrored-pause/blobs/" + blob.Digest.String()
	cut := blob.Size / 3 // twice that leaves a rest
	s.Inject(Rule{Path: BlobPath(blob.Digest), Fault: Cut{After: cut}})
	if _, body, err := do(t, s, http.MethodGet, address, nil); err == nil || int64(len(body)) != cut {
		t.Errorf("got %d bytes, expected %d, and the error %v", len(body), cut, err)
	}
	// The next part, up to the next cut.
	if _, body, err := do(t, s, http.MethodGet, address, http.Header{"Range": {fmt.Sprintf("bytes=%d-", cut)}}); err == nil || int64(len(body)) != cut {
		t.Errorf("got %d bytes, expected %d, and the error %v", len(body), cut, err)
	}
}

func TestWrongByte(t *testing.T) {
	s := start(t)
	good := get(t, s, releaseURL+"k3s")
	rule := s.Inject(Rule{Path: FilePath(releaseURL + "k3s"), Fault: WrongByte{At: 123_456}})
	check := func(what string, body []byte, from int) {
		t.Helper()
		expected := bytes.Clone(good[from : from+len(body)])
		if at := 123_456 - from; at >= 0 && at < len(expected) {
			expected[at] ^= 0xff
		}
		if !bytes.Equal(body, expected) {
			t.Errorf("%s: not the expected bytes", what)
		}
	}
	check("whole", get(t, s, releaseURL+"k3s"), 0)
	for _, c := range []struct {
		bytes string
		from  int
	}{{"bytes=100000-200000", 100_000}, {"bytes=123456-123456", 123_456}, {"bytes=123457-130000", 123_457}} {
		response, body, err := do(t, s, http.MethodGet, releaseURL+"k3s", http.Header{"Range": {c.bytes}})
		if err != nil || response.StatusCode != http.StatusPartialContent {
			t.Fatalf("%s: %s, %v", c.bytes, response.Status, err)
		}
		check(c.bytes, body, c.from)
	}
	if rule.Hits() != 4 {
		t.Errorf("hits: %d, the redirect must not count", rule.Hits())
	}
}

func TestIgnoreRange(t *testing.T) {
	s := start(t)
	rule := s.Inject(Rule{Path: FilePath(chartRef), Fault: IgnoreRange{}})
	whole := get(t, s, chartRef)
	response, body, err := do(t, s, http.MethodGet, chartRef, http.Header{"Range": {"bytes=10-19"}})
	if err != nil || response.StatusCode != http.StatusOK || !bytes.Equal(body, whole) {
		t.Errorf("%s with %d bytes, %v", response.Status, len(body), err)
	}
	if rule.Hits() != 1 {
		t.Errorf("hits: %d, expected the one with a range", rule.Hits())
	}
	if last := s.Requests()[1]; last.Range != "bytes=10-19" {
		t.Errorf("the log says %+v", last)
	}
}

// What is slow can be left: Close does not wait for it.
// TestStall has bodies that stop, and one that does not, of an answer and of an error.
func TestStall(t *testing.T) {
	s := start(t)
	s.Inject(Rule{Path: "/none$", Fault: Stall{After: 3}})
	s.Inject(Rule{Path: FilePath(chartRef), Times: 1, Fault: Stall{After: 100}})
	s.Inject(Rule{Path: "^/v2/$", Fault: Endless{}})
	for path, read := range map[string]int64{"/none": 3, pathOf(chartRef): 100, "/v2/": 1 << 20} {
		ctx, cancel := context.WithCancel(t.Context())
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.Addr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := trustingTransport(t, s).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, response.Body, read); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		cancel()
		_ = response.Body.Close()
	}
	for _, r := range s.Requests() {
		if most := map[string]int64{"/none": 3, pathOf(chartRef): 100, "/v2/": 1 << 40}[r.Path]; r.Bytes > most {
			t.Errorf("%s: %d bytes were sent", r.Path, r.Bytes)
		}
	}
	get(t, s, chartRef) // it was hit once only
}

// TestSilent has a request that nothing answers, also not once the server is asked for something else.
func TestSilent(t *testing.T) {
	s := start(t)
	fault := s.Inject(Rule{Path: FilePath(chartRef), Times: 1, Fault: Silent{}})
	gone := errors.New("the client goes")
	ctx, cancel := context.WithCancelCause(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.Addr()+pathOf(chartRef), nil)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		response, err := trustingTransport(t, s).RoundTrip(request)
		if err == nil {
			err = errors.Join(errors.New("it is answered"), response.Body.Close())
		}
		answered <- err
	}()
	for deadline := time.Now().Add(time.Minute); fault.Hits() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the request did not come within a minute")
		}
	}
	get(t, s, chartRef)
	cancel(gone)
	if err := <-answered; !errors.Is(err, gone) {
		t.Error(err)
	}
}

func TestSlow(t *testing.T) {
	s := start(t)
	good := get(t, s, chartRef)
	s.Inject(Rule{Path: FilePath(chartRef), Fault: Slow{BytesPerSecond: 1000}})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.Addr()+pathOf(chartRef), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := trustingTransport(t, s).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 120)
	if _, err := io.ReadFull(response.Body, first); err != nil || !bytes.Equal(first, good[:120]) {
		t.Errorf("the first bytes: %v", err)
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if sent := s.Requests()[1].Bytes; sent < 120 || sent >= int64(len(good)) {
		t.Errorf("sent %d bytes", sent)
	}
}

func TestMoveTag(t *testing.T) {
	s := start(t)
	tr := trustingTransport(t, s)
	for _, image := range []string{pauseRef, serverRef, "ghcr.io/fslongjin/web:v0.6.10"} {
		ref := reference(t, s, image)
		before, err := remote.Get(ref, remote.WithTransport(tr))
		if err != nil {
			t.Fatal(err)
		}
		moved := s.MoveTag(image)
		after, err := remote.Get(ref, remote.WithTransport(tr))
		if err != nil {
			t.Fatal(err)
		}
		if after.Digest == before.Digest || after.Digest.String() != moved.String() {
			t.Errorf("%s: before %s, after %s, expected %s", image, before.Digest, after.Digest, moved)
		}
		head, err := remote.Head(ref, remote.WithTransport(tr))
		if err != nil || head.Digest != after.Digest {
			t.Errorf("%s: head says %v, %v", image, head, err)
		}
		if after.MediaType.IsIndex() {
			index, err := after.ImageIndex()
			if err != nil {
				t.Fatal(err)
			}
			checkIndex(t, index, map[types.MediaType]int{}, map[v1.Hash]int{})
		}
		if _, err := remote.Get(ref.Context().Digest(before.Digest.String()), remote.WithTransport(tr)); err != nil {
			t.Errorf("%s: the old digest: %v", image, err)
		}
		s.Heal()
		if again, err := remote.Get(ref, remote.WithTransport(tr)); err != nil || again.Digest != before.Digest {
			t.Errorf("%s: after healing %v, %v", image, again, err)
		}
	}
}

func TestAuth(t *testing.T) {
	for _, c := range []struct {
		name   string
		auth   Auth
		with   authn.Authenticator
		admits bool
		scheme string // of the last request
	}{
		{"token", Auth{Username: "robot", Password: "s3cret"}, &authn.Basic{Username: "robot", Password: "s3cret"}, true, "Bearer"},
		{"token, wrong password", Auth{Username: "robot", Password: "s3cret"}, &authn.Basic{Username: "robot", Password: "other"}, false, ""},
		{"token, no user", Auth{Username: "robot", Password: "s3cret"}, authn.Anonymous, false, ""},
		{"anonymous token", Auth{}, authn.Anonymous, true, "Bearer"},
		{"basic", Auth{Username: "robot", Password: "s3cret", Basic: true}, &authn.Basic{Username: "robot", Password: "s3cret"}, true, "Basic"},
		{"basic, wrong password", Auth{Username: "robot", Password: "s3cret", Basic: true}, &authn.Basic{Username: "robot", Password: "other"}, false, "Basic"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t)
			c.auth.Prefix = "ghcr.io/fslongjin"
			s.RequireAuth(c.auth)
			options := []remote.Option{remote.WithTransport(trustingTransport(t, s)), remote.WithAuth(c.with)}
			got, err := remote.Get(reference(t, s, serverRef), options...)
			switch {
			case c.admits && err != nil:
				t.Fatal(err)
			case c.admits:
				index, err := got.ImageIndex()
				if err != nil {
					t.Fatal(err)
				}
				checkIndex(t, index, map[types.MediaType]int{}, map[v1.Hash]int{})
			default:
				var refused *transport.Error
				if !errors.As(err, &refused) || refused.StatusCode != http.StatusUnauthorized {
					t.Errorf("expected 401, got %v", err)
				}
			}
			requests := s.Requests()
			if last := requests[len(requests)-1]; last.Auth != c.scheme && c.scheme != "" {
				t.Errorf("the last request: %+v", last)
			}
			// Other repositories stay open, also to clients that ask for a token first.
			if c.auth.Basic || c.with == authn.Anonymous {
				if _, err := remote.Get(reference(t, s, pauseRef), options...); err != nil {
					t.Errorf("a public image: %v", err)
				}
			}
		})
	}
}

// A blob is elsewhere, and credentials stay where they belong.
func TestRedirect(t *testing.T) {
	s := start(t)
	s.RequireAuth(Auth{Prefix: "ghcr.io/fslongjin", Username: "robot", Password: "s3cret"})
	s.Inject(Rule{Path: "^/v2/.*/blobs/", Fault: Redirect{}})
	got, err := remote.Get(reference(t, s, serverRef), remote.WithTransport(trustingTransport(t, s)),
		remote.WithAuth(&authn.Basic{Username: "robot", Password: "s3cret"}))
	if err != nil {
		t.Fatal(err)
	}
	index, err := got.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	checkIndex(t, index, map[types.MediaType]int{}, map[v1.Hash]int{})
	elsewhere := 0
	for _, r := range s.Requests() {
		if strings.HasPrefix(r.Path, blobFolder) {
			elsewhere++
			if r.Status != http.StatusOK || r.Auth != "" {
				t.Errorf("%+v", r)
			}
		} else if strings.Contains(r.Path, "/blobs/") && r.Status != http.StatusTemporaryRedirect {
			t.Errorf("%+v", r)
		}
	}
	if elsewhere == 0 {
		t.Error("no blob came from elsewhere")
	}
	if response, _, _ := do(t, s, http.MethodGet, "https://cdn.quay.io/v2/ghcr.io/x/blobs/sha256:00", nil); response.StatusCode != http.StatusForbidden {
		t.Errorf("without a signature: %s", response.Status)
	}
}

// A token for one repository opens no other.
func TestTokenScope(t *testing.T) {
	s := start(t)
	s.RequireAuth(Auth{Prefix: "quay.io"})
	s.RequireAuth(Auth{Prefix: "ghcr.io/fslongjin", Username: "robot", Password: "s3cret"})
	response, body, err := do(t, s, http.MethodGet, "https://token", nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", response.Status, err)
	}
	var answer struct{ Token string }
	if err := json.Unmarshal(body, &answer); err != nil || answer.Token == "" {
		t.Fatalf("%s: %v", body, err)
	}
	response, _, _ = do(t, s, http.MethodGet, "https://v2/ghcr.io/fslongjin/liteboxd-server/manifests/v0.6.10",
		http.Header{"Authorization": {"Bearer " + answer.Token}})
	challenge := response.Header.Get("WWW-Authenticate")
	if response.StatusCode != http.StatusUnauthorized || !strings.Contains(challenge, `scope="repository:ghcr.io/fslongjin/liteboxd-server:pull"`) {
		t.Errorf("%s, %s", response.Status, challenge)
	}
}

func TestSkopeoLogsIn(t *testing.T) {
	skopeo := findSkopeo(t)
	s := start(t)
	s.RequireAuth(Auth{Prefix: "ghcr.io/fslongjin", Username: "robot", Password: "s3cret"})
	for creds, ok := range map[string]bool{"robot:s3cret": true, "robot:wrong": false} {
		cmd := exec.CommandContext(t.Context(), skopeo, "--override-arch", "amd64", "inspect", "--no-tags", "--creds", creds, "docker://"+s.Addr()+"/"+serverRef)
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+s.CAFile(), "HOME="+t.TempDir())
		if output, err := cmd.CombinedOutput(); (err == nil) != ok {
			t.Errorf("%s: %v\n%s", creds, err, output)
		}
	}
}

func TestRequests(t *testing.T) {
	s := start(t)
	whole := get(t, s, chartRef)
	if _, _, err := do(t, s, http.MethodGet, chartRef, http.Header{"Range": {"bytes=0-9"}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := do(t, s, http.MethodHead, chartRef, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := do(t, s, http.MethodGet, "https://helm.cilium.io/none", nil); err != nil {
		t.Fatal(err)
	}
	path := "/helm.cilium.io/cilium-1.20.0.tgz"
	expected := []Request{
		{Method: "GET", Path: path, Status: 200, Bytes: int64(len(whole))},
		{Method: "GET", Path: path, Status: 206, Bytes: 10, Range: "bytes=0-9"},
		{Method: "HEAD", Path: path, Status: 200},
		{Method: "GET", Path: "/helm.cilium.io/none", Status: 404, Bytes: 19},
	}
	if diff := cmp.Diff(expected, s.Requests()); diff != "" {
		t.Errorf("(-expected +got):\n%s", diff)
	}
	s.ResetRequests()
	if left := s.Requests(); len(left) > 0 {
		t.Errorf("after the reset: %v", left)
	}
}

func TestMalformedRulesPanic(t *testing.T) {
	s := start(t)
	for _, rule := range []Rule{
		{},
		{Fault: Status{Code: 200}},
		{Fault: Cut{After: -1}},
		{Fault: Slow{}},
		{Path: "(", Fault: IgnoreRange{}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was taken", rule)
				}
			}()
			s.Inject(rule)
		}()
	}
}
