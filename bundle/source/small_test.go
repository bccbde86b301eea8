package source

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// smallServer is a registry that lists tags two at a time, whatever is asked for, and has a
// few files.
func smallServer(t *testing.T) (*Client, string) {
	t.Helper()
	tags := []string{"v1", "v2", "v3", "v4", "v5"}
	mux := http.NewServeMux()
	mux.HandleFunc("/v2/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/a/b/tags/list" {
			return // the question for a registry
		}
		from := slices.Index(tags, r.URL.Query().Get("last")) + 1
		page := tags[from:min(from+2, len(tags))]
		if from+2 < len(tags) {
			w.Header().Set("Link", fmt.Sprintf(`</v2/a/b/tags/list?last=%s&n=2>; rel="next"`, page[1]))
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"name": "a/b", "tags": page})
	})
	mux.HandleFunc("/v2/loop/tags/list", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", `</v2/loop/tags/list?last=v1>; rel="next"`)
		_, _ = w.Write([]byte(`{"tags":["v1"]}`))
	})
	mux.HandleFunc("/v2/html/tags/list", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	mux.HandleFunc("/files/", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/files/"))
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", strconv.Itoa(n))
			return
		}
		_, _ = w.Write(make([]byte, n))
	})
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	c := New(Options{MaxTries: 1})
	c.plain = tlsOnly{s.Client().Transport}
	return c, strings.TrimPrefix(s.URL, "https://")
}

func TestTags(t *testing.T) {
	c, host := smallServer(t)
	got, err := c.Tags(t.Context(), host+"/a/b")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"v1", "v2", "v3", "v4", "v5"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A registry that sends in circles is not followed.
	if got, err := c.Tags(t.Context(), host+"/loop"); err != nil || len(got) > 2 {
		t.Errorf("in circles: %v, %v", got, err)
	}
	if _, err := c.Tags(t.Context(), host+"/html"); err == nil || !strings.Contains(err.Error(), "the list of tags: ") {
		t.Errorf("no list: %v", err)
	}
}

func TestNextTag(t *testing.T) {
	for link, want := range map[string]string{
		`</v2/a/tags/list?last=v1&n=2>; rel="next"`:         "v1",
		`<https://evil.example/x?n=1&last=v%2B1>; rel=next`: "v+1",
		`</v2/a/tags/list?last=v1>; rel="prev"`:             "",
		`</v2/a/tags/list?last=v1`:                          "",
		"<%zz>; rel=\"next\"":                               "",
		"":                                                  "",
	} {
		if got := nextTag(link); got != want {
			t.Errorf("%q: got %q, want %q", link, got, want)
		}
	}
}

func TestSmallFiles(t *testing.T) {
	c, host := smallServer(t)
	content, err := c.File(t.Context(), "https://"+host+"/files/100", 100)
	if err != nil || len(content) != 100 {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	if _, err := c.File(t.Context(), "https://"+host+"/files/101", 100); err == nil || !strings.Contains(err.Error(), "it is larger than 100 bytes") {
		t.Errorf("a file that is too large: %v", err)
	}
	if size, err := c.Size(t.Context(), "https://"+host+"/files/12345678"); err != nil || size != 12345678 {
		t.Errorf("%d bytes, %v", size, err)
	}
	for _, err := range []error{
		func() error { _, err := c.File(t.Context(), "http://"+host+"/files/1", 100); return err }(),
		func() error { _, err := c.Size(t.Context(), "http://"+host+"/files/1"); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "only https addresses are allowed") {
			t.Errorf("in the clear: %v", err)
		}
	}
}
