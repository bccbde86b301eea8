package backups

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
)

// s3Server is the server that rclone serves S3 with, in memory, over TLS. It checks signatures.
type s3Server struct {
	S3
	backend gofakes3.Backend
	// spoil changes what is asked for, when it is set.
	spoil func(http.ResponseWriter, *http.Request) bool
}

func startS3(t *testing.T) *s3Server {
	t.Helper()
	s := &s3Server{backend: s3mem.New()}
	if err := s.backend.CreateBucket(t.Context(), "backups"); err != nil {
		t.Fatal(err)
	}
	handler := gofakes3.New(s.backend, gofakes3.WithV4Auth(map[string]string{"site": "very-secret"})).Server()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.spoil == nil || !s.spoil(w, r) {
			handler.ServeHTTP(w, r)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // what clients say of its certificate
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	s.S3 = S3{Endpoint: server.URL, Bucket: "backups", Prefix: "of/sites", Region: "us-east-1", AccessKey: "site",
		SecretKey: "very-secret", CA: string(ca)}
	return s
}

// object reads one of them.
func (s *s3Server) object(t *testing.T, name string) string {
	t.Helper()
	o, err := s.backend.GetObject(t.Context(), "backups", "of/sites/lan-1/node-1/"+name, nil)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(o.Contents)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// Backups come to a bucket whole, one that was cut off there is brought again, and old ones go there.
func TestS3(t *testing.T) {
	there := startS3(t)
	for _, name := range []string{"of/sites/lan-1/node-1/notes.txt", "of/sites/lan-1/node-1/deep/x", "of/sites/lan-1/node-2/y"} {
		if _, err := there.backend.PutObject(t.Context(), "backups", name, nil, strings.NewReader("x"), 1); err != nil {
			t.Fatal(err)
		}
	}
	s := newServer(t)
	s.Config.KeepDays = 1
	s.Config.Targets = []Target{{Name: "s3", S3: &there.S3}}
	first := s.round().Backups[0].File
	mine, err := os.ReadFile(s.Root + own + "/" + first)
	if err != nil {
		t.Fatal(err)
	}
	if there.object(t, first) != string(mine) {
		t.Error("what came to the bucket is something else")
	}
	const name = "of/sites/lan-1/node-1/"
	if _, err := there.backend.PutObject(t.Context(), "backups", name+first, nil, strings.NewReader("cut"), 3); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(time.Hour)
	s.round()
	if there.object(t, first) != string(mine) {
		t.Error("one that was cut off was not brought again")
	}
	var status *Status
	for range 4 {
		s.now = s.now.AddDate(0, 0, 1)
		status = s.round()
	}
	if diff := cmp.Diff([]TargetStatus{{Name: "s3", Files: 3, Newest: s.now}}, status.Targets); diff != "" {
		t.Error(diff)
	}
	list, err := there.backend.ListBucket(t.Context(), "backups", nil, gofakes3.ListBucketPage{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range list.Contents {
		names = append(names, o.Key)
	}
	if len(names) != 6 || slices.Contains(names, name+first) {
		t.Errorf("%q", names)
	}
}

// What is wrong with a bucket is told, without secrets, and the backup that was made stays.
func TestS3Refused(t *testing.T) {
	other := startS3(t)
	for _, test := range []struct {
		name   string
		change func(*s3Server)
		want   string
	}{
		{"another secret", func(s *s3Server) { s.SecretKey = "CANARY" }, "SignatureDoesNotMatch"},
		{"another key", func(s *s3Server) { s.AccessKey = "nobody" }, "InvalidAccessKeyId"},
		{"no such bucket", func(s *s3Server) { s.Bucket = "none" }, "list the bucket none: HTTP 404, NoSuchBucket"},
		{"no authority", func(s *s3Server) { s.CA = "" }, "certificate"},
		{"no certificate", func(s *s3Server) { s.CA = "x" }, "no certificate in PEM"},
		{"nobody listens", func(s *s3Server) { s.Endpoint = "https://127.0.0.1:1" }, "refused"},
		{"it sends elsewhere", func(s *s3Server) {
			s.spoil = func(w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, other.Endpoint+"/backups", http.StatusTemporaryRedirect)
				return true
			}
		}, "HTTP 307"},
		{"it stores nothing", func(s *s3Server) {
			s.spoil = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut {
					http.Error(w, "<Error><Code>SlowDown</Code><Message>come again \x1b[2J</Message></Error>",
						http.StatusServiceUnavailable)
				}
				return r.Method == http.MethodPut
			}
		}, "HTTP 503"},
		{"it stores something else", func(s *s3Server) {
			s.spoil = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, suffix) {
					_, _ = io.WriteString(w, "something else")
					return true
				}
				return false
			}
		}, errReadBack.Error()},
		{"pages without an end", func(s *s3Server) {
			s.spoil = func(w http.ResponseWriter, _ *http.Request) bool {
				_, _ = io.WriteString(w, "<R><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken></R>")
				return true
			}
		}, "more than 65536 files"},
		{"no way to the next page", func(s *s3Server) {
			s.spoil = func(w http.ResponseWriter, _ *http.Request) bool {
				_, _ = io.WriteString(w, "<R><IsTruncated>true</IsTruncated></R>")
				return true
			}
		}, "does not say how to go on"},
		{"no list", func(s *s3Server) {
			s.spoil = func(w http.ResponseWriter, _ *http.Request) bool {
				_, _ = io.WriteString(w, "<html>")
				return true
			}
		}, "XML"},
	} {
		t.Run(test.name, func(t *testing.T) {
			there := startS3(t)
			test.change(there)
			s := newServer(t)
			s.Config.Targets = []Target{{Name: "s3", S3: &there.S3}}
			status, err := Run(t.Context(), s.Options)
			if err == nil || !strings.Contains(status.Targets[0].Error, test.want) || status.Error != "" {
				t.Errorf("%+v, %v", status, err)
			}
			if text := status.Targets[0].Error; status.Newest() == nil || strings.Contains(text, "CANARY") ||
				strings.Contains(text, "very-secret") || strings.Contains(text, "\x1b") {
				t.Errorf("%+v", status)
			}
			if status.Targets[0].Files != 0 {
				t.Errorf("%d files are said to be there", status.Targets[0].Files)
			}
		})
	}
}

// A bucket of many pages is read to its end, and one whose objects do not fit into a request is told of.
func TestS3Pages(t *testing.T) {
	const pages = 3
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, query := 0, r.URL.Query()
		_, _ = fmt.Sscanf(query.Get("continuation-token"), "next/%d=", &page)
		if query.Get("list-type") != "2" || query.Get("prefix") != "c/n/" || query.Get("delimiter") != "/" {
			http.Error(w, "asked for something else: "+r.URL.RawQuery, http.StatusBadRequest)
			return
		}
		_, _ = fmt.Fprintf(w, "<R><Contents><Key>c/n/%d</Key><Size>%d</Size></Contents><Contents><Key>c/m/x</Key></Contents>"+
			"<IsTruncated>%t</IsTruncated><NextContinuationToken>next/%d=</NextContinuationToken></R>", page, page*10,
			page < pages-1, page+1)
	}))
	t.Cleanup(server.Close)
	b, err := openBucket(t.Context(), S3{Endpoint: server.URL, Bucket: "b", Region: "r", AccessKey: "a", SecretKey: "s"}, "c", "n")
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.list()
	if diff := cmp.Diff(map[string]int64{"0": 0, "1": 10, "2": 20}, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	large := filepath.Join(t.TempDir(), "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, maxObject+1)); err != nil {
		t.Fatal(err)
	}
	if err := b.put(large, "large", ofNothing); err == nil || !strings.Contains(err.Error(), "in one piece") {
		t.Error(err)
	}
}
