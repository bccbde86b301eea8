// Command netcheck is what test pods run: a server to be reached, and a client that says
// with its exit status whether it could.
//
//	netcheck serve [ADDRESS]   answers every HTTP request with the pod's name, on :8080
//	                           or $PORT where no address is given
//	netcheck get URL           prints the body; fails unless the status is 200 to 299
//	netcheck lookup NAME       prints the addresses, one a line, as the pod's
//	                           resolv.conf has them resolved
//	netcheck sleep             does nothing until it is told to end
//
// -timeout before the command bounds get and lookup, 5s unless given. Exit status: 0 for
// success, 1 for failure, 2 for a wrong call. serve and sleep end with 0 on SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// bodyLimit is the most that get prints.
const bodyLimit = 1 << 20

var errUsage = errors.New("usage: netcheck [-timeout 5s] serve [ADDRESS] | get URL | lookup NAME | sleep")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "netcheck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("netcheck", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	timeout := flags.Duration("timeout", 5*time.Second, "")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	command, operand := flags.Arg(0), flags.Arg(1)
	if flags.NArg() > 2 || (command == "get" || command == "lookup") != (operand != "") && command != "serve" {
		return errUsage
	}
	switch command {
	case "serve":
		return serve(ctx, operand)
	case "sleep":
		<-ctx.Done()
		return nil
	case "get":
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		return get(ctx, operand, stdout)
	case "lookup":
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		return lookup(ctx, operand, stdout)
	}
	return errUsage
}

func serve(ctx context.Context, address string) error {
	if address == "" {
		address = ":8080"
		if port := os.Getenv("PORT"); port != "" {
			address = ":" + port
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return serveOn(ctx, listener)
}

// serveOn answers until ctx ends.
func serveOn(ctx context.Context, listener net.Listener) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, name+"\n") // the client's loss
		}),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}

func get(ctx context.Context, url string, stdout io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// No connection is kept: each call is about the network as it is now.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // only read
	if _, err := io.Copy(stdout, io.LimitReader(response.Body, bodyLimit)); err != nil {
		return err
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return fmt.Errorf("get %s: %s", url, response.Status)
	}
	return nil
}

func lookup(ctx context.Context, name string, stdout io.Writer) error {
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		if _, err := fmt.Fprintln(stdout, address); err != nil {
			return err
		}
	}
	return nil
}
