package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/liteboxd/boxlift/bundle/kms"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/bundle/trust"
	"github.com/liteboxd/boxlift/internal/fault"
)

// passwordVariable holds the password of a signing key. A flag would show it to every
// user of the host.
const passwordVariable = "BOXLIFT_KEY_PASSWORD"

// keyURIs are the keys that lie elsewhere, for the help of flags.
const keyURIs = "the URI of a key in a token or a key service"

// passwordFileHelp is what --key-password-file says.
const passwordFileHelp = "file that holds the key's password, or the token's PIN"

func newKeyCommand() *cobra.Command {
	return group("key", "Make the keys that bundles are signed with", newKeyGenerateCommand(), newKeyPublicCommand())
}

type keyGenerateOptions struct {
	prefix       string
	key          string
	passwordFile string
}

func newKeyGenerateCommand() *cobra.Command {
	var o keyGenerateOptions
	c := &cobra.Command{
		Use:   "generate",
		Short: "Make a key pair",
		Long: `Make a key pair in cosign's format (ECDSA P-256): PREFIX.key, encrypted with a
password, signs bundles on the connected host; PREFIX.pub verifies them in the
isolated network, and goes there by another way than the bundle.

With --key, the private key is made where the URI says, in a PKCS#11 token or a key
service, and never leaves it; PREFIX.pub is written and no PREFIX.key:

  pkcs11:token=TOKEN;object=NAME?module-path=FILE
  hashivault://NAME, openbao://NAME, awskms://..., gcpkms://..., azurekms://...

The password, or the token's PIN, is asked for on the terminal, or read from
--password-file or from the variable ` + passwordVariable + `. Existing files are never
overwritten.`,
		Example: `  boxlift key generate
  boxlift key generate --key 'pkcs11:token=boxlift;object=release?module-path=/usr/lib/softhsm/libsofthsm2.so'`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runKeyGenerate(cmd, o) },
	}
	c.Flags().StringVar(&o.prefix, "output-prefix", "boxlift", "path of the files, without .key and .pub")
	c.Flags().StringVar(&o.key, "key", "", keyURIs+" that is to be made")
	c.Flags().StringVar(&o.passwordFile, "password-file", "", "file that holds the password, or the token's PIN")
	return c
}

func runKeyGenerate(cmd *cobra.Command, o keyGenerateOptions) error {
	privatePath, publicPath := o.prefix+".key", o.prefix+".pub"
	paths := []string{privatePath, publicPath}
	if o.key != "" {
		paths = paths[1:]
		if !kms.IsURI(o.key) {
			return fault.WithHint(fault.Usage.Errorf("--key %q is no URI of a token or a key service", o.key),
				"leave it out, and the key is made in a file, which --output-prefix names")
		}
	}
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return fault.WithHint(fmt.Errorf("make a key pair: %s is there already", path),
				"choose another --output-prefix, or move the old key away; bundles signed with it need it")
		}
	}
	if o.key != "" {
		return makeKeyElsewhere(cmd, o, publicPath)
	}
	return makeKeyFiles(cmd, o, privatePath, publicPath)
}

// makeKeyFiles makes both halves in files.
func makeKeyFiles(cmd *cobra.Command, o keyGenerateOptions, privatePath, publicPath string) error {
	password, err := readPassword(cmd.Context(), o.passwordFile, true)
	if err != nil {
		return err
	}
	private, public, err := signature.GenerateKey(password)
	if err != nil {
		return err
	}
	if err := writeNewFile(privatePath, private, 0o600); err != nil {
		return err
	}
	if err := writeNewFile(publicPath, public, 0o644); err != nil {
		_ = os.Remove(privatePath)
		return err
	}
	key, err := signature.ParsePublicKey(public)
	if err != nil {
		return err
	}
	w := &errorWriter{w: cmd.OutOrStdout()}
	w.printf("private key: %s (keep it and its password on the connected host)\n", privatePath)
	printPublicKey(w, publicPath, key)
	return w.err
}

// makeKeyElsewhere makes the private half in a token or a key service, and writes the public one.
func makeKeyElsewhere(cmd *cobra.Command, o keyGenerateOptions, publicPath string) error {
	elsewhere, err := openKey(cmd.Context(), o.key, o.passwordFile)
	if err != nil {
		return err
	}
	key, err := elsewhere.Create(cmd.Context())
	if err != nil {
		return err
	}
	w := &errorWriter{w: cmd.OutOrStdout()}
	w.printf("private key: %s (it never leaves its place)\n", o.key)
	public, err := key.PEM()
	if err == nil {
		err = writeNewFile(publicPath, public, 0o644)
	}
	if err != nil {
		return fault.WithHint(err, "the key is made: `boxlift key public --key URI` writes its public half")
	}
	printPublicKey(w, publicPath, key)
	return w.err
}

func printPublicKey(w *errorWriter, path string, key *signature.PublicKey) {
	w.printf("public key:  %s (needed to verify and install)\n", path)
	w.printf("key id:      %s (build and verify name it; compare it on both sides)\n", signature.KeyID(key))
}

func newKeyPublicCommand() *cobra.Command {
	var key, output string
	c := &cobra.Command{
		Use:   "public",
		Short: "Write the public half of a key in a token or a key service",
		Long: `Write the public half of a key that lies in a PKCS#11 token or a key service, for those who
verify with it. Nothing signs for that, and no PIN is needed.`,
		Example: `  boxlift key public --key hashivault://boxlift -o boxlift.pub`,
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !kms.IsURI(key) {
				return fault.WithHint(fault.Usage.Errorf("--key is needed: "+keyURIs),
					"the public half of a key file lies beside it, as NAME.pub")
			}
			public, err := readPublicKey(cmd.Context(), key)
			if err != nil {
				return err
			}
			content, err := public.PEM()
			if err != nil {
				return err
			}
			if output == "" {
				_, err = cmd.OutOrStdout().Write(content)
				return err
			}
			if err := writeNewFile(output, content, 0o644); err != nil {
				return err
			}
			w := &errorWriter{w: cmd.OutOrStdout()}
			printPublicKey(w, output, public)
			return w.err
		},
	}
	c.Flags().StringVar(&key, "key", "", keyURIs)
	c.Flags().StringVarP(&output, "output", "o", "", "new file to write (default: standard output)")
	return c
}

// writeNewFile creates a file that is not there yet.
func writeNewFile(path string, content []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("write the key: %w", err)
	}
	return nil
}

// secret is something that is asked for.
type secret struct {
	// of and noun make its name, such as "the key's password".
	of, noun string
	// variable of the environment may hold it.
	variable string
}

var (
	keyPassword      = secret{"key", "password", passwordVariable}
	keyPIN           = secret{"token", "PIN", passwordVariable}
	bundlePassphrase = secret{"bundle", "passphrase", passphraseVariable}
	backupPassphrase = secret{"backup", "passphrase", backupPassphraseVariable}
)

func readPassword(ctx context.Context, file string, isNew bool) ([]byte, error) {
	return keyPassword.read(ctx, file, isNew)
}

// read takes a secret from a file, the environment or the terminal. A new one is asked for
// twice.
func (s secret) read(ctx context.Context, file string, isNew bool) ([]byte, error) {
	if file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fault.Input.Errorf("read the %s's %s: %w", s.of, s.noun, err)
		}
		return bytes.TrimRight(content, "\r\n"), nil
	}
	if value, ok := os.LookupEnv(s.variable); ok {
		return []byte(value), nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return nil, fault.WithHint(fault.Usage.Errorf("the %s's %s is needed, and there is no terminal to ask on", s.of,
			s.noun), "set "+s.variable+", or name a file that holds it")
	}
	value, err := prompt(ctx, os.Stdin, s.noun+" of the "+s.of+": ")
	if err != nil || !isNew {
		return value, err
	}
	again, err := prompt(ctx, os.Stdin, "the same "+s.noun+" again: ")
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(value, again) {
		return nil, fmt.Errorf("the two %ss differ", s.noun)
	}
	return value, nil
}

// prompt asks for a password. When ctx ends, it gives the terminal its echo back and
// returns; what still waits for the answer ends with the program.
func prompt(ctx context.Context, terminal *os.File, text string) ([]byte, error) {
	fd := int(terminal.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, fmt.Errorf("read a password from the terminal: %w", err)
	}
	fmt.Fprint(os.Stderr, text)
	defer fmt.Fprintln(os.Stderr)
	type answer struct {
		password []byte
		err      error
	}
	answered := make(chan answer, 1)
	go func() {
		password, err := term.ReadPassword(fd)
		answered <- answer{password, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return nil, fmt.Errorf("read a password from the terminal: %w", a.err)
		}
		return a.password, nil
	case <-ctx.Done():
		_ = term.Restore(fd, before)
		return nil, context.Cause(ctx)
	}
}

// loadSigner opens the private key: a file, or the URI of a key that lies elsewhere.
func loadSigner(ctx context.Context, key, passwordFile string) (*signature.Signer, error) {
	if kms.IsURI(key) {
		elsewhere, err := openKey(ctx, key, passwordFile)
		if err != nil {
			return nil, err
		}
		return elsewhere.Signer(ctx)
	}
	content, err := os.ReadFile(key)
	if err != nil {
		return nil, fault.Input.Errorf("read the signing key: %w", err)
	}
	password, err := readPassword(ctx, passwordFile, false)
	if err != nil {
		return nil, err
	}
	signer, err := signature.LoadSigner(content, password)
	if err != nil {
		return nil, fault.Input.Errorf("open the signing key %s: %w", key, err)
	}
	return signer, nil
}

// openKey opens a key that lies elsewhere, to sign with or to be made, and asks for its PIN if it has one.
func openKey(ctx context.Context, uri, passwordFile string) (*kms.Key, error) {
	key, err := kms.Open(uri)
	if err != nil || !key.NeedsPIN() {
		return key, err
	}
	pin, err := keyPIN.read(ctx, passwordFile, false)
	if err != nil {
		return nil, err
	}
	return key, key.SetPIN(pin)
}

// readPublicKey reads a public key from a file, or fetches that of a key that lies elsewhere.
func readPublicKey(ctx context.Context, name string) (*signature.PublicKey, error) {
	if kms.IsURI(name) {
		key, err := kms.Open(name)
		if err != nil {
			return nil, err
		}
		return key.PublicKey(ctx)
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, fault.Input.Errorf("read the public key: %w", err)
	}
	key, err := signature.ParsePublicKey(content)
	if err != nil {
		return nil, fault.Input.Errorf("public key %s: %w", name, err)
	}
	return key, nil
}

// verifyOptions are the flags of all commands that trust a bundle.
type verifyOptions struct {
	readOptions
	digestOption
	key      string
	trust    string
	insecure bool
	// need is how many keys of different names have to have signed; 0 for what the trust file says.
	need int
	// required are statements that have to lie beside the bundle.
	required []trust.Requirement
	// requireRehearsal asks for one that passed, besides; rehearses is for who is about to make one.
	requireRehearsal, rehearses bool
}

func (o *verifyOptions) addFlags(c *cobra.Command) {
	o.addReadFlags(c)
	o.addBaseFlag(c)
	o.addDigestFlag(c)
	c.Flags().StringVar(&o.key, "key", "", "public key that the bundle must be signed with: a file, or "+keyURIs)
	c.Flags().StringVar(&o.trust, "trust", "",
		"instead of --key: trust file that says whose signatures the bundle must have")
	c.Flags().BoolVar(&o.insecure, "insecure-skip-signature", false, "accept a bundle without knowing who made it")
}

// publicKey returns the key to verify with, or nil when the user asked for none.
func (o *verifyOptions) publicKey(ctx context.Context) (*signature.PublicKey, error) {
	switch {
	case o.insecure && o.key != "":
		return nil, fault.Usage.Errorf("--key and --insecure-skip-signature exclude each other")
	case o.insecure:
		return nil, nil
	case o.key == "":
		return nil, fault.WithHint(fault.Usage.Errorf("--key is needed to know who made the bundle"),
			"name the public key with --key FILE, or a trust file with --trust FILE; --insecure-skip-signature goes "+
				"without, which trusts whoever handed the file over")
	}
	return readPublicKey(ctx, o.key)
}
