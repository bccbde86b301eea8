package main

import (
	"context"
	"io"
	"os"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Bundles and backups are encrypted in age's format, for recipients or with a passphrase.

const (
	// maxScrypt bounds the memory that opening something with a passphrase takes: 2^20 KiB. age
	// itself writes 2^18.
	maxScrypt = 20
	// maxIdentities is the largest file of identities, in bytes.
	maxIdentities = 1 << 20
)

// encryptOptions are the flags that say whom something is encrypted for.
type encryptOptions struct {
	recipients []string
	passphrase bool
}

func (o *encryptOptions) addEncryptFlags(c *cobra.Command) {
	c.Flags().StringArrayVar(&o.recipients, "encrypt-to", nil,
		"encrypt for this age recipient, age1... or age1pq1... (repeatable)")
	c.Flags().BoolVar(&o.passphrase, "passphrase", false, "encrypt with a passphrase, which is asked for; "+
		"--passphrase-file does it too")
}

// isEncrypting reports whether something is to be encrypted. The passphrase may be in a file.
func (o *encryptOptions) isEncrypting(passphraseFile string) bool {
	return len(o.recipients) > 0 || o.withPassphrase(passphraseFile)
}

func (o *encryptOptions) withPassphrase(file string) bool { return o.passphrase || file != "" }

// open returns whom to encrypt for: nobody, when nothing is to be encrypted. The passphrase, if
// it is done with one, is read from a file or asked for, and returned too.
func (o *encryptOptions) open(ctx context.Context, of secret,
	passphraseFile string) (recipients []age.Recipient, passphrase []byte, err error) {
	if !o.withPassphrase(passphraseFile) {
		recipients, err = parseRecipients("--encrypt-to", o.recipients)
		return recipients, nil, err
	}
	if len(o.recipients) > 0 {
		return nil, nil, fault.Usage.Errorf("--encrypt-to and --passphrase exclude each other: age's format has no " +
			"file with both")
	}
	if passphrase, err = of.read(ctx, passphraseFile, true); err != nil {
		return nil, nil, err
	}
	recipient, err := age.NewScryptRecipient(string(passphrase))
	if err != nil {
		return nil, nil, fault.Input.Errorf("encrypt with the passphrase: %w", err)
	}
	return []age.Recipient{recipient}, passphrase, nil
}

// parseRecipients reads what a flag names. That they go together is found out here, and not when
// there is something to encrypt: age has no file for both kinds of recipients, as whoever breaks
// the older kind one day could read what is kept for the other.
func parseRecipients(flag string, texts []string) ([]age.Recipient, error) {
	var recipients []age.Recipient
	for _, text := range texts {
		// What is no recipient may be an identity that was mixed up with it: it is not shown.
		found, err := age.ParseRecipients(strings.NewReader(text))
		if err != nil || len(found) != 1 {
			return nil, fault.WithHint(fault.Usage.Errorf("%s takes age recipients, age1... or age1pq1..., and "+
				"this is none", flag), "`age-keygen -y FILE` prints that of an identity")
		}
		recipients = append(recipients, found...)
	}
	if len(recipients) == 0 {
		return nil, nil
	}
	if _, err := age.Encrypt(io.Discard, recipients...); err != nil {
		return nil, fault.WithHint(fault.Usage.Errorf("%s: %w", flag, err), "name recipients of one kind only: "+
			"`age-keygen -pq` makes post-quantum identities, whose recipients begin with age1pq1")
	}
	return recipients, nil
}

// readIdentities reads files of age identities.
func readIdentities(paths []string) ([]age.Identity, error) {
	var identities []age.Identity
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, fault.Input.Errorf("read the identity: %w", err)
		}
		found, err := age.ParseIdentities(io.LimitReader(f, maxIdentities))
		_ = f.Close() // it was only read
		if err != nil {
			// The error may quote the line, which is a secret.
			return nil, fault.WithHint(fault.Input.Errorf("read the identity %s: it is not a file of age identities",
				path), "age-keygen makes such files; those that are encrypted themselves have to be decrypted first")
		}
		identities = append(identities, found...)
	}
	return identities, nil
}

// scryptIdentity opens what was encrypted with a passphrase.
func scryptIdentity(passphrase []byte) (*age.ScryptIdentity, error) {
	identity, err := age.NewScryptIdentity(string(passphrase))
	if err != nil {
		return nil, fault.Input.Errorf("use the passphrase: %w", err)
	}
	identity.SetMaxWorkFactor(maxScrypt)
	return identity, nil
}
