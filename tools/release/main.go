// Command release makes what a release of boxlift consists of, from programs that are built:
// archives, Debian and RPM packages, an image, a list of the Go modules in the programs,
// checksums, and a signature over these.
//
// The same programs, documents, version and time give the same bytes, but for the signature's:
// nothing is taken from the clock, the user or the folder's order. Files that are there already
// are replaced.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle/signature"
)

// passwordVariable holds the password of the signing key, as for boxlift itself.
const passwordVariable = "BOXLIFT_KEY_PASSWORD"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run() error {
	var r release
	var unix int64
	var operators, key string
	flag.StringVar(&r.version, "version", "", "version, such as v0.1.0 (required)")
	flag.Int64Var(&unix, "time", 0, "time that everything has, in seconds since 1970, such as that of the commit (required)")
	flag.StringVar(&r.programs, "programs", "bin", "folder with the programs, one folder for each platform, as make build lays it out")
	flag.StringVar(&r.documents, "documents", ".", "folder with LICENSE, README.md, CHANGELOG.md, SECURITY.md and versions.lock")
	flag.StringVar(&r.out, "out", "dist", "folder to write to")
	flag.StringVar(&operators, "platforms", "linux-amd64,linux-arm64", "platforms that boxlift itself is released for")
	flag.StringVar(&key, "key", "", "private key of boxlift key generate to sign with; its password is in "+passwordVariable)
	flag.Parse()
	if r.version == "" || unix <= 0 || flag.NArg() > 0 {
		return fmt.Errorf("-version and -time are needed, and nothing else than flags")
	}
	r.time = time.Unix(unix, 0).UTC()
	r.operators = strings.Split(operators, ",")
	if key != "" {
		content, err := os.ReadFile(key)
		if err != nil {
			return fmt.Errorf("read the signing key: %w", err)
		}
		if r.signer, err = signature.LoadSigner(content, []byte(os.Getenv(passwordVariable))); err != nil {
			return fmt.Errorf("open the signing key %s: %w", key, err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	names, err := r.write(ctx)
	for _, name := range names {
		fmt.Println(name)
	}
	if err == nil && r.signer == nil {
		fmt.Println("not signed: no -key was given")
	}
	return err
}
