// Command upstream runs the stand-in for the internet in the foreground, for benchmarks
// and demonstrations that want it in a process of its own.
//
// It writes ca.pem, mirrors (one HOST=ADDRESS a line), versions.lock (with every pin) and
// unpinned.lock (without any) into the folder given by -dir, and after them prints the
// address on standard output. It stops on SIGINT, on SIGTERM, and with -stdin when
// standard input ends, which it does when the parent process dies.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
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
	addr := flag.String("addr", "127.0.0.1:0", "loopback address to listen on")
	stdin := flag.Bool("stdin", false, "stop when standard input ends")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if *stdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // however it ends
			stop()
		}()
	}
	err := run(ctx, os.Stdout, upstream.Size(*size), *dir, *addr)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, stdout io.Writer, size upstream.Size, dir, addr string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	server, err := upstream.Start(ctx, upstream.Options{Size: size, Dir: dir, Addr: addr, Logf: log.Printf})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	pinned, err := server.PinnedLockYAML(upstream.LockOptions{})
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"mirrors":       []byte(strings.Join(server.Mirrors(), "\n") + "\n"),
		"versions.lock": pinned,
		"unpinned.lock": server.LockYAML(upstream.LockOptions{}),
	} {
		if err := renameio.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(stdout, "https://"+server.Addr()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
