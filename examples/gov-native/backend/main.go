// Command backend is the program of the example gov-native: it keeps records, such as the entries of a register, for
// the people and programs of a site.
//
// Contract: several of these programs, on one host, may share one folder, DATA_DIR. A record that was answered with
// 201 is on the disk, once, and in the order in which all of them took records in; nothing takes a record out again.
// Any other answer to a new record says that it may be there or may not. What one answer, one request or one page
// takes of memory is bounded, and so is the file with the records (DATA_LIMIT). On SIGTERM it takes no new requests,
// answers those that it has, and ends with 0.
//
//	GET  /          what this is: name, version, host, site
//	POST /records   keeps {"text": "..."}, and answers with the record
//	GET  /records   the records, oldest first, a page at a time: ?from=POSITION&limit=NUMBER
//	GET  /healthz   200 while the folder can be written to, 503 with the reason otherwise
//	GET  /livez     503 once only a new start can help
//	GET  /metrics   figures, as Prometheus takes them in
//
// Settings come from the environment: DATA_DIR (/data), LISTEN (:8080), DATA_LIMIT (bytes, 536870912) and SITE, a text
// that is shown.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
	"unicode/utf8"
)

// version is said when the program is built: -ldflags "-X main.version=v1.1.0".
var version = "v0.0.0-dev"

// drain is how long requests may take that are there when the program is asked to end. With what preStop in
// manifests/deployment.yaml waits, it is less than the grace period of its pods.
const drain = 20 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Getenv, os.Stdout)
	stop()
	if err != nil {
		// The last line of a container that restarts is what an operator gets to see.
		fmt.Fprintln(os.Stderr, "backend: fatal:", err)
		os.Exit(1)
	}
}

type settings struct {
	folder string
	listen string
	limit  int64 // of the file with the records, in bytes
	site   string
	host   string
}

func readSettings(getenv func(string) string) (settings, error) {
	s := settings{folder: "/data", listen: ":8080", limit: 512 << 20, site: getenv("SITE")}
	if v := getenv("DATA_DIR"); v != "" {
		s.folder = v
	}
	if v := getenv("LISTEN"); v != "" {
		s.listen = v
	}
	if v := getenv("DATA_LIMIT"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < maxLine {
			return s, fmt.Errorf("DATA_LIMIT is %q: want a number of bytes, at least %d", v, maxLine)
		}
		s.limit = n
	}
	if len(s.site) > 200 || !utf8.ValidString(s.site) {
		return s, errors.New("SITE is no text of at most 200 bytes")
	}
	var err error
	if s.host, err = os.Hostname(); err != nil {
		return s, fmt.Errorf("ask for the host's name: %w", err)
	}
	return s, nil
}

// run serves until ctx ends and all requests are answered.
func run(ctx context.Context, getenv func(string) string, stdout io.Writer) error {
	set, err := readSettings(getenv)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(stdout, nil)).With("version", version)
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", set.listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           newService(set, log).handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	// A folder that cannot be written to is no reason to end: the cause may go away, and until then /healthz says it.
	log.Info("serving", "address", listener.Addr().String(), "folder", set.folder)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	log.Info("ending")
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		_ = server.Close() // there is nobody to answer any more
		return fmt.Errorf("requests were not answered within %s: %w", drain, err)
	}
	log.Info("ended")
	return nil
}
