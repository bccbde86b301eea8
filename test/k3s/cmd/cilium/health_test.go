package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHealth(t *testing.T) {
	h := &health{}
	status := func(path string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	for _, step := range []struct {
		do   func()
		want int
	}{
		{func() {}, 503},
		{func() { h.set(nil) }, 200},
		{func() { h.set(errors.New("no")) }, 503},
		{func() { h.fail(); h.set(nil) }, 500},
	} {
		step.do()
		if got := status("/healthz"); got != step.want {
			t.Errorf("status %d, expected %d", got, step.want)
		}
	}
	if got := status("/other"); got != 404 {
		t.Errorf("another path: status %d", got)
	}
}
