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

	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
)

// passwordVariable holds the password of a signing key. A flag would show it to every
// user of the host.
const passwordVariable = "BOXLIFT_KEY_PASSWORD"

func newKeyCommand() *cobra.Command {
	return group("key", "Make the keys that bundles are signed with", newKeyGenerateCommand())
}

type keyGenerateOptions struct {
	prefix       string
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

The password is asked for on the terminal, or read from --password-file or from
the variable ` + passwordVariable + `. Existing files are never overwritten.`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runKeyGenerate(cmd, o) },
	}
	c.Flags().StringVar(&o.prefix, "output-prefix", "boxlift", "path of the files, without .key and .pub")
	c.Flags().StringVar(&o.passwordFile, "password-file", "", "file that holds the password")
	return c
}

func runKeyGenerate(cmd *cobra.Command, o keyGenerateOptions) error {
	privatePath, publicPath := o.prefix+".key", o.prefix+".pub"
	for _, path := range []string{privatePath, publicPath} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return fault.WithHint(fmt.Errorf("make a key pair: %s is there already", path),
				"choose another --output-prefix, or move the old key away; bundles signed with it need it")
		}
	}
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
	w.printf("public key:  %s (needed to verify and install)\n", publicPath)
	w.printf("key id:      %s (build and verify name it; compare it on both sides)\n", signature.KeyID(key))
	return w.err
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

// loadSigner opens the private key.
func loadSigner(ctx context.Context, path, passwordFile string) (*signature.Signer, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.Input.Errorf("read the signing key: %w", err)
	}
	password, err := readPassword(ctx, passwordFile, false)
	if err != nil {
		return nil, err
	}
	signer, err := signature.LoadSigner(content, password)
	if err != nil {
		return nil, fault.Input.Errorf("open the signing key %s: %w", path, err)
	}
	return signer, nil
}

// verifyOptions are the flags of all commands that trust a bundle.
type verifyOptions struct {
	readOptions
	digestOption
	key      string
	insecure bool
}

func (o *verifyOptions) addFlags(c *cobra.Command) {
	o.addReadFlags(c)
	o.addBaseFlag(c)
	o.addDigestFlag(c)
	c.Flags().StringVar(&o.key, "key", "", "public key that the bundle must be signed with")
	c.Flags().BoolVar(&o.insecure, "insecure-skip-signature", false, "accept a bundle without knowing who made it")
}

// publicKey returns the key to verify with, or nil when the user asked for none. Bundles that
// are opened from then on have to be signed with it.
func (o *verifyOptions) publicKey() (*signature.PublicKey, error) {
	switch {
	case o.insecure && o.key != "":
		return nil, fault.Usage.Errorf("--key and --insecure-skip-signature exclude each other")
	case o.insecure:
		return nil, nil
	case o.key == "":
		return nil, fault.WithHint(fault.Usage.Errorf("--key is needed to know who made the bundle"),
			"name the public key with --key FILE; --insecure-skip-signature goes without, which trusts whoever "+
				"handed the file over")
	}
	content, err := os.ReadFile(o.key)
	if err != nil {
		return nil, fault.Input.Errorf("read the public key: %w", err)
	}
	key, err := signature.ParsePublicKey(content)
	if err != nil {
		return nil, fault.Input.Errorf("public key %s: %w", o.key, err)
	}
	o.signedBy = key
	return key, nil
}
