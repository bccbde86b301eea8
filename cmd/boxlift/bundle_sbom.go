package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/bundle"
	"github.com/liteboxd/boxlift/bundle/attestation"
	"github.com/liteboxd/boxlift/bundle/packages"
	"github.com/liteboxd/boxlift/bundle/sbom"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/progress"
)

type bundleSBOMOptions struct {
	attestationOptions
	cacheOptions
}

// cacheOptions say where what was found in layers is kept.
type cacheOptions struct {
	cache   string
	noCache bool
}

func (o *cacheOptions) addCacheFlags(c *cobra.Command) {
	c.Flags().StringVar(&o.cache, "cache", "",
		"folder for what was found in layers (default: boxlift/packages in the user's folder for such)")
	c.Flags().BoolVar(&o.noCache, "no-cache", false, "read all layers, and keep nothing")
}

// attestationOptions are the flags of commands that say something about a bundle.
type attestationOptions struct {
	readOptions
	output       string
	key          string
	passwordFile string
}

func (o *attestationOptions) addFlags(c *cobra.Command, keyHelp string) {
	o.addReadFlags(c)
	c.Flags().StringVarP(&o.output, "output", "o", "", "file to write (default: standard output)")
	c.Flags().StringVar(&o.key, "key", "", keyHelp)
	c.Flags().StringVar(&o.passwordFile, "key-password-file", "", passwordFileHelp)
}

// signer opens the key, which must be the one that the bundle was signed with: a statement
// is about what its signer has made.
func (o *attestationOptions) signer(ctx context.Context, r *bundle.Reader) (*signature.Signer, error) {
	signer, err := loadSigner(ctx, o.key, o.passwordFile)
	if err != nil {
		return nil, err
	}
	if err := r.VerifySignature(signer.PublicKey()); err != nil {
		return nil, fault.WithHint(
			err, "a statement about a bundle is signed with the key that the bundle was built with")
	}
	return signer, nil
}

// write writes to the output, or to out when there is none.
func (o *attestationOptions) write(out io.Writer, content []byte) error {
	if o.output == "" {
		_, err := out.Write(content)
		return err
	}
	if err := renameio.WriteFile(o.output, content, 0o644, renameio.WithTempDir(filepath.Dir(o.output))); err != nil {
		return fmt.Errorf("write %s: %w", o.output, err)
	}
	return nil
}

func newBundleSBOMCommand(global *globalOptions) *cobra.Command {
	var o bundleSBOMOptions
	c := &cobra.Command{
		Use:   "sbom FILE",
		Short: "List all software in a bundle as a CycloneDX document",
		Long: `List everything in a bundle as a CycloneDX 1.6 document in JSON: components, files and
images by digest, and the packages in images and programs, with package URLs and
licences where they are known. Packages are those of dpkg, apk and RPM, the modules of Go
programs, and what npm and Python have installed. An image of which something could not
be read is marked as incomplete.

A bundle that was built with --sbom carries the document, which is printed then. Otherwise
it is made: each layer is read once and proven against its digest, and what was found in
it is kept for the next time. The same bundle gives the same document. The signature of
the bundle is not checked: see "boxlift bundle verify".

With --key, which has to be the key that the bundle was signed with, the document is
signed: the output is a sigstore bundle with an in-toto statement about the bundle's
index.json.`,
		Example: `  boxlift bundle sbom bundle.tar -o bundle.cdx.json
  boxlift bundle sbom bundle.tar --key boxlift.key -o bundle.cdx.sigstore.json
  tar -xf bundle.tar index.json
  cosign verify-blob-attestation --key boxlift.pub --insecure-ignore-tlog --type cyclonedx \
      --bundle bundle.cdx.sigstore.json index.json`,
		Args: arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return global.withReporter(cmd.OutOrStdout(), func(r progress.Reporter, out io.Writer) error {
				return runBundleSBOM(cmd.Context(), out, args[0], o, r)
			})
		},
	}
	o.addFlags(c, "private key to sign the document with: a file, or "+keyURIs)
	o.addBaseFlag(c)
	o.addCacheFlags(c)
	return c
}

func (o *cacheOptions) folder() (string, error) {
	switch {
	case o.noCache && o.cache != "":
		return "", fault.Usage.Errorf("--cache and --no-cache exclude each other")
	case o.noCache || o.cache != "":
		return o.cache, nil
	}
	folder, err := packagesFolder()
	if err != nil {
		return "", fault.WithHint(fmt.Errorf("find the folder for what was found in layers: %w", err),
			"name one with --cache, or do without: --no-cache")
	}
	return folder, nil
}

// packagesFolder is where what was found in layers is kept.
func packagesFolder() (string, error) {
	folder, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(folder, "boxlift", "packages"), nil
}

// softwareList makes the document of a bundle. A cache without a folder keeps nothing.
func softwareList(
	cache packages.Cache, reporter progress.Reporter,
) func(context.Context, *bundle.Reader) ([]byte, error) {
	return func(ctx context.Context, r *bundle.Reader) ([]byte, error) {
		document, err := sbom.Make(ctx, r, sbom.Options{Version: version, Cache: cache, Reporter: reporter})
		if err != nil {
			return nil, err
		}
		var text bytes.Buffer
		if err := sbom.Write(&text, document); err != nil {
			return nil, fmt.Errorf("write the list of software in %s: %w", r.Path(), err)
		}
		return text.Bytes(), nil
	}
}

// softwareOf is the document that a bundle carries, or else the one that is made of it.
func softwareOf(
	ctx context.Context, r *bundle.Reader, cache packages.Cache, reporter progress.Reporter,
) ([]byte, error) {
	document, isStored, err := r.SBOM()
	if err != nil || isStored {
		return document, err
	}
	if err := r.RequireAll(); err != nil {
		return nil, err
	}
	return softwareList(cache, reporter)(ctx, r)
}

func runBundleSBOM(
	ctx context.Context, out io.Writer, path string, o bundleSBOMOptions, reporter progress.Reporter,
) error {
	folder, err := o.folder()
	if err != nil {
		return err
	}
	r, err := o.openBundle(ctx, path)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it was only read
	if err := o.checkBases(r); err != nil {
		return err
	}
	// The key comes before the work, so that nobody has to sit and wait for it.
	var signer *signature.Signer
	if o.key != "" {
		if signer, err = o.signer(ctx, r); err != nil {
			return err
		}
	}
	text, err := softwareOf(ctx, r, packages.Cache{Folder: folder}, reporter)
	if err != nil {
		return damagedHint(err)
	}
	if signer == nil {
		return o.write(out, text)
	}
	statement, err := attestation.Make(r.Digest(), attestation.CycloneDX, json.RawMessage(text))
	if err != nil {
		return err
	}
	return o.attest(out, signer, statement)
}

// attest signs a statement and writes it.
func (o *attestationOptions) attest(out io.Writer, signer *signature.Signer, statement []byte) error {
	signed, err := signer.Attest(statement)
	if err != nil {
		return err
	}
	return o.write(out, append(signed, '\n'))
}
