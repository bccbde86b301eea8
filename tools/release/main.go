// Command release makes what a release of boxlift consists of, from programs that are built:
// archives, Debian and RPM packages, an image, a list of the Go modules in the programs, what it
// was built from, checksums, and a signature over these.
//
// The same programs, documents, version and time give the same bytes, but for the signature's:
// nothing is taken from the clock, the user or the folder's order. Files that are there already
// are replaced.
package main

import (
	"context"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/bundle/kms"
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
	flag.StringVar(&r.commit, "commit", "", "Git's commit that all of it is from; without it, there is no provenance")
	flag.Int64Var(&unix, "time", 0, "time that everything has, in seconds since 1970, such as that of the commit (required)")
	flag.StringVar(&r.programs, "programs", "bin", "folder with the programs, one folder for each platform, as make build lays it out")
	flag.StringVar(&r.documents, "documents", ".", "folder with LICENSE, README.md, CHANGELOG.md, SECURITY.md and versions.lock")
	flag.StringVar(&r.manual, "manual", "man", "folder with the pages of the manual, as boxlift man writes them")
	flag.StringVar(&r.out, "out", "dist", "folder to write to")
	flag.StringVar(&operators, "platforms", "linux-amd64,linux-arm64", "platforms that boxlift itself is released for")
	flag.StringVar(&key, "key", "", "private key to sign with, a file or the URI of one in a token or a key service; its password or PIN is in "+passwordVariable)
	flag.Parse()
	if r.version == "" || unix <= 0 || flag.NArg() > 0 {
		return fmt.Errorf("-version and -time are needed, and nothing else than flags")
	}
	if r.commit != "" && !isCommit(r.commit) {
		return fmt.Errorf("-commit %q: expected 40 hexadecimal digits", r.commit)
	}
	r.time = time.Unix(unix, 0).UTC()
	r.operators = strings.Split(operators, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if key != "" {
		var err error
		if r.signer, err = signer(ctx, key); err != nil {
			return err
		}
	}
	names, err := r.write(ctx)
	for _, name := range names {
		fmt.Println(name)
	}
	if err == nil && r.commit == "" {
		fmt.Println("no provenance: no -commit was given")
	}
	if err == nil && r.signer == nil {
		fmt.Println("not signed: no -key was given")
	}
	return err
}

func isCommit(text string) bool {
	_, err := hex.DecodeString(text)
	return err == nil && len(text) == 40
}

// signer opens the key: a file, or one that lies in a token or a key service. boxlift-keys has to be in PATH then.
func signer(ctx context.Context, name string) (*signature.Signer, error) {
	password := []byte(os.Getenv(passwordVariable))
	if kms.IsURI(name) {
		key, err := kms.Open(name)
		if err != nil {
			return nil, err
		}
		if key.NeedsPIN() {
			if err := key.SetPIN(password); err != nil {
				return nil, err
			}
		}
		return key.Signer(ctx)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the signing key: %w", err)
	}
	s, err := signature.LoadSigner(content, password)
	if err != nil {
		return nil, fmt.Errorf("open the signing key %s: %w", name, err)
	}
	return s, nil
}
