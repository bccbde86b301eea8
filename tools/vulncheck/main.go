// Command vulncheck runs govulncheck where the database of vulnerabilities can be had. Where it
// does not answer within seconds, it says so and succeeds: lint works without a network, too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/vuln/scan"
)

const (
	// database is the one that govulncheck asks unless GOVULNDB names another.
	database = "https://vuln.go.dev"
	// patience is for the first answer of the database.
	patience = 3 * time.Second
)

func main() {
	module := flag.String("module", ".", "folder of the module to look through")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	from := os.Getenv("GOVULNDB")
	if from == "" {
		from = database
	}
	if err := answers(ctx, from, patience); err != nil {
		fmt.Printf("govulncheck was left out, because its database cannot be had: %v\n", err)
		return
	}
	if err := check(ctx, *module, from); err != nil {
		fmt.Fprintln(os.Stderr, "govulncheck:", err)
		os.Exit(1)
	}
}

// answers asks the database for the smallest thing that it has.
func answers(ctx context.Context, from string, patience time.Duration) error {
	if !strings.HasPrefix(from, "http") {
		return nil // it is a folder
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(from, "/")+"/index/db.json", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	if err = errors.Join(err, response.Body.Close()); err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", request.URL, response.Status)
	}
	return err
}

func check(ctx context.Context, module, from string) error {
	c := scan.Command(ctx, "-C", module, "-db", from, "./...")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}
