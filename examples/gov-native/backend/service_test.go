package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newTestService(folder string) *service {
	set := settings{folder: folder, limit: 1 << 20, site: "town hall", host: "pod-1"}
	s := newService(set, slog.New(slog.NewTextHandler(io.Discard, nil)))
	s.health.patience = time.Minute // the disk has others to serve
	return s
}

func ask(s *service, method, target, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return w
}

func TestRequests(t *testing.T) {
	s := newTestService(t.TempDir())
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/", "", 200, `{"host":"pod-1","name":"gov-native","site":"town hall","version":"v0.0.0-dev"}`},
		{"GET", "/other", "", 404, "not found"},
		{"DELETE", "/records", "", 405, "Method Not Allowed"},
		{"GET", "/healthz", "", 200, "ok"},
		{"GET", "/livez", "", 200, "ok"},
		{"GET", "/records", "", 200, `{"records":[],"next":0,"damaged":0}`},
		{"GET", "/records?from=1", "", 400, "no record begins there"},

		{"POST", "/records", `{"text": "ä <b>"}`, 201, `"text":"ä \u003cb\u003e"`},
		{"POST", "/records", "", 400, `want {"text": "..."}`},
		{"POST", "/records", "null", 400, "no text"},
		{"POST", "/records", `{"text": ""}`, 400, "no text"},
		{"POST", "/records", `{"text": 1}`, 400, "cannot unmarshal number"},
		{"POST", "/records", `{"text": "a", "id": "b"}`, 400, `unknown field "id"`},
		{"POST", "/records", `{"text": "a"} {}`, 400, "nothing after it"},
		{"POST", "/records", "{\"text\": \"\xff\"}", 400, "no UTF-8"},
		{"POST", "/records", `{"text": "` + strings.Repeat(`\u003c`, maxText) + `"}`, 201, `"text":"\u003c`},
		{"POST", "/records", `{"text": "` + strings.Repeat("a", maxText+1) + `"}`, 413, "want at most 16384"},
		{"POST", "/records", `{"text": "` + strings.Repeat("a", maxBody) + `"}`, 413, "more than 99328 bytes"},

		{"GET", "/records?limit=1", "", 200, `"text":"ä \u003cb\u003e"`},
		{"GET", "/records?from=1", "", 400, "no record begins there"},
		{"GET", "/records?from=99999999", "", 400, "no record begins there"},
		{"GET", "/records?from=-1", "", 400, `from is "-1": want a number`},
		{"GET", "/records?limit=0", "", 400, "want a number from 1 to 1000"},
		{"GET", "/records?limit=x", "", 400, "want a number from 1 to 1000"},

		{"GET", "/metrics", "", 200, "\ngov_native_build_info{version=\"v0.0.0-dev\"} 1\n"},
		{"GET", "/metrics", "", 200, "\ngov_native_records_added_total 2\n"},
		{"GET", "/metrics", "", 200, "\ngov_native_records_failed_total 0\n"},
	} {
		w := ask(s, c.method, c.target, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s %.40q: %d %.200s, want %d and %q", c.method, c.target, c.body, w.Code, w.Body, c.status, c.want)
		}
	}
}

// What is in the way of a data folder is what /healthz and the answers to new records say; /livez asks for a new start
// only where one helps, which is when the kernel lost what was written.
func TestFolders(t *testing.T) {
	full := t.TempDir() // /dev/full answers each write as a full disk does
	if err := os.Symlink("/dev/full", filepath.Join(full, fileName)); err != nil {
		t.Fatal(err)
	}
	unsynced := t.TempDir() // a pipe takes what is written, and cannot bring it to a disk
	if err := syscall.Mkfifo(filepath.Join(unsynced, fileName), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	type answers struct{ Healthz, Add, Again, Livez int }
	for _, c := range []struct {
		name, folder, why string
		want              answers
	}{
		{"missing", filepath.Join(t.TempDir(), "missing"), "no such file or directory", answers{503, 503, 503, 200}},
		{"a file", file, "not a directory", answers{503, 503, 503, 200}},
		{"full", full, "no space left on device", answers{200, 507, 507, 200}},
		{"lost", unsynced, "did not reach the disk", answers{503, 503, 503, 503}},
	} {
		s := newTestService(c.folder)
		first := ask(s, "POST", "/records", `{"text": "a"}`)
		got := answers{
			Add: first.Code, Again: ask(s, "POST", "/records", `{"text": "b"}`).Code,
			Healthz: ask(s, "GET", "/healthz", "").Code, Livez: ask(s, "GET", "/livez", "").Code,
		}
		if diff := cmp.Diff(c.want, got); diff != "" || !strings.Contains(first.Body.String(), c.why) {
			t.Errorf("%s: %s, want %q; answers (-want +got):\n%s", c.name, first.Body, c.why, diff)
		}
		if metrics := ask(s, "GET", "/metrics", "").Body.String(); !strings.Contains(metrics, "records_failed_total 2\n") {
			t.Errorf("%s: metrics:\n%s", c.name, metrics)
		}
	}
}

// The file ends before its limit, and what is in it stays readable.
func TestLimit(t *testing.T) {
	s := newTestService(t.TempDir())
	s.records.limit = 2000
	body, kept := `{"text": "`+strings.Repeat("a", 500)+`"}`, 0
	for range 10 {
		switch w := ask(s, "POST", "/records", body); w.Code {
		case http.StatusCreated:
			kept++
		case http.StatusInsufficientStorage:
		default:
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
	}
	info, err := os.Stat(s.records.path)
	if err != nil || info.Size() > 2000 || kept != 3 {
		t.Errorf("%d records were kept, %v, %v", kept, info.Size(), err)
	}
	var p page
	if err := json.Unmarshal(ask(s, "GET", "/records", "").Body.Bytes(), &p); err != nil || len(p.Records) != kept {
		t.Errorf("%d records: %v", len(p.Records), err)
	}
}

// With all places taken, requests for records are sent away, and those of probes are not.
func TestTooMany(t *testing.T) {
	s := newTestService(t.TempDir())
	for range maxRequests {
		s.requests <- struct{}{}
	}
	if w := ask(s, "GET", "/records", ""); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v: %s", w.Code, w.Header(), w.Body)
	}
	if w := ask(s, "GET", "/healthz", ""); w.Code != 200 {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	<-s.requests
	if w := ask(s, "GET", "/records", ""); w.Code != 200 {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

// While an attempt to write hangs, there is no second one: whoever asks is told that the folder does not answer.
func TestSilentFolder(t *testing.T) {
	s := newTestService(t.TempDir())
	s.health.turn <- struct{}{}
	s.health.patience = time.Millisecond
	if w := ask(s, "GET", "/healthz", ""); w.Code != 503 || !strings.Contains(w.Body.String(), "does not answer") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	<-s.health.turn
	s.health.patience = time.Minute
	if w := ask(s, "GET", "/healthz", ""); w.Code != 200 {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	left, err := os.ReadDir(s.folder)
	if err != nil || len(left) > 0 {
		t.Errorf("the folder has %v, %v", left, err)
	}
}
