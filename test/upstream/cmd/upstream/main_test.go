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
		err := run(ctx, w, upstream.Small, dir, "127.0.0.1:0")
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
}
