package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/test/upstream"
)

func TestRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, w, upstream.Options{Dir: dir}, []string{"quick"}, behaviour{requests: filepath.Join(dir, "requests")})
		ended <- errors.Join(err, w.Close())
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(errors.Join(err, <-ended))
	}
	addr := strings.TrimSpace(strings.TrimPrefix(line, "https://"))

	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if !strings.Contains(read("mirrors"), "docker.io="+addr+"/docker.io\n") {
		t.Errorf("mirrors: %s", read("mirrors"))
	}
	if !strings.HasPrefix(read("ca.pem"), "-----BEGIN CERTIFICATE-----\n") {
		t.Errorf("ca.pem: %s", read("ca.pem"))
	}
	for name, pinned := range map[string]bool{"versions.lock": true, "unpinned.lock": false} {
		l, err := lock.Parse(name, []byte(read(name)))
		if err != nil {
			t.Fatal(err)
		}
		if got := len(l.Unpinned()) == 0; got != pinned {
			t.Errorf("%s: all pinned: %v, expected %v", name, got, pinned)
		}
	}

	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := read("requests"); got != "[]" {
		t.Errorf("it says that it was asked for %s", got)
	}
}

func TestParseCut(t *testing.T) {
	rule, err := parseCut("90:/blobs/sha256:0$")
	if err != nil || rule.Path != "/blobs/sha256:0$" || rule.Fault != (upstream.Cut{After: 90}) || rule.Times != 1 {
		t.Errorf("%+v, %v", rule, err)
	}
	for _, s := range []string{"", "90", "-1:a", "x:a", "90:("} {
		if _, err := parseCut(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

func TestUnknownRelease(t *testing.T) {
	if err := run(t.Context(), nil, upstream.Options{Dir: t.TempDir()}, []string{"quick", "ancient"}, behaviour{}); err == nil {
		t.Error("a release that is not there was served")
	}
}
