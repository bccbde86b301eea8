// Command upstream runs the stand-in for the internet in the foreground, for benchmarks
// and demonstrations that want it in a process of its own.
//
// It writes ca.pem, mirrors (one HOST=ADDRESS a line), versions.lock (with every pin) and
// unpinned.lock (without any) into the folder given by -dir; with more than one of
// -releases also NAME.lock and NAME-unpinned.lock for each. After them it prints the
// address on standard output. With -cut it cuts downloads, and with -requests it says in the
// end what it was asked for. It stops on SIGINT, on SIGTERM, and with -stdin when
// standard input ends, which it does when the parent process dies.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/liteboxd/boxlift/test/upstream"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("upstream: ")
	size := flag.String("size", "small", "small or large")
	dir := flag.String("dir", ".", "folder for ca.pem, mirrors, versions.lock and unpinned.lock")
	names := flag.String("releases", "quick",
		"any of quick and quick-next, or any of oldest, older and newer, with commas between them; the locks are for the first")
	addr := flag.String("addr", "127.0.0.1:0", "loopback address to listen on")
	var cuts []upstream.Rule
	flag.Func("cut", "AFTER:PATH: cut the first answer to a GET whose path matches the expression after so many bytes (repeatable)", func(s string) error {
		rule, err := parseCut(s)
		cuts = append(cuts, rule)
		return err
	})
	requests := flag.String("requests", "", "write what was asked for to this file when it stops, as JSON")
	stdin := flag.Bool("stdin", false, "stop when standard input ends")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if *stdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // however it ends
			stop()
		}()
	}
	err := run(ctx, os.Stdout, upstream.Options{Size: upstream.Size(*size), Dir: *dir, Addr: *addr, Logf: log.Printf}, strings.Split(*names, ","), behaviour{cuts, *requests})
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

var releases = map[string]upstream.Release{
	"quick": upstream.Quick, "quick-next": upstream.QuickNext,
	"oldest": upstream.Oldest, "older": upstream.Older, "newer": upstream.Newer,
}

// behaviour is what a server does besides serving.
type behaviour struct {
	cuts     []upstream.Rule
	requests string // the file for the log
}

func parseCut(s string) (upstream.Rule, error) {
	after, path, ok := strings.Cut(s, ":")
	n, err := strconv.ParseInt(after, 10, 64)
	if _, patternErr := regexp.Compile(path); !ok || n < 0 || err != nil || patternErr != nil {
		return upstream.Rule{}, errors.New("expected AFTER:PATH, a number of bytes and a regular expression")
	}
	return upstream.Rule{Method: http.MethodGet, Path: path, Times: 1, Fault: upstream.Cut{After: n}}, nil
}

func run(ctx context.Context, stdout io.Writer, o upstream.Options, names []string, b behaviour) (err error) {
	for _, name := range names {
		r, ok := releases[name]
		if !ok {
			return fmt.Errorf("there is no release %q", name)
		}
		o.Releases = append(o.Releases, r)
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	server, err := upstream.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	files := map[string][]byte{"mirrors": []byte(strings.Join(server.Mirrors(), "\n") + "\n")}
	for n, name := range names {
		lock := upstream.LockOptions{Release: releases[name]}
		pinned, err := server.PinnedLockYAML(lock)
		if err != nil {
			return err
		}
		if n == 0 {
			files["versions.lock"], files["unpinned.lock"] = pinned, server.LockYAML(lock)
		}
		if len(names) > 1 {
			files[name+".lock"], files[name+"-unpinned.lock"] = pinned, server.LockYAML(lock)
		}
	}
	for name, data := range files {
		if err := renameio.WriteFile(filepath.Join(o.Dir, name), data, 0o644); err != nil {
			return err
		}
	}
	for _, cut := range b.cuts {
		server.Inject(cut)
	}
	if _, err := fmt.Fprintln(stdout, "https://"+server.Addr()); err != nil {
		return err
	}
	<-ctx.Done()
	if b.requests == "" {
		return nil
	}
	requests, err := json.Marshal(server.Requests())
	if err != nil {
		return err
	}
	return os.WriteFile(b.requests, requests, 0o644)
}
