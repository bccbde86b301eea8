package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestAnswers(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /there/index/db.json", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /silent/index/db.json", func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // an empty answer could still reach a client that is closing
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	if err := answers(t.Context(), server.URL+"/there/", time.Minute); err != nil {
		t.Error(err)
	}
	if err := answers(t.Context(), "file:///srv/database", 0); err != nil {
		t.Error(err)
	}
	for name, patience := range map[string]time.Duration{"/nothing": time.Minute, "/silent": 50 * time.Millisecond} {
		if answers(t.Context(), server.URL+name, patience) == nil {
			t.Errorf("%s is taken for a database", name)
		}
	}
}
