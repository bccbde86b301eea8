package install

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/liteboxd/boxlift/install/backup"
)

// secretsEncryption is k3s' setting for Secrets that are encrypted in the datastore.
const secretsEncryption = "secrets-encryption"

// isSet reports whether a value of k3s' config is true, however it is written.
func isSet(value any) bool { return value != nil && fmt.Sprint(value) == "true" }

// encryptsSecrets reports whether the cluster of a backup was set to encrypt its Secrets, by the
// config of the server that the backup is from. It is not known of a backup without that.
func encryptsSecrets(r *backup.Reader) (encrypts, known bool, err error) {
	if !r.Has(backup.ServerFiles) {
		return false, false, nil
	}
	content, _, err := r.Open(backup.ServerFiles)
	if err != nil {
		return false, false, err
	}
	const most = 1 << 20
	for files := tar.NewReader(content); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, false, fmt.Errorf("%w: read %s: %w", backup.ErrInvalid, backup.ServerFiles, err)
		}
		if "/"+strings.TrimPrefix(header.Name, "/") != k3sConfigFile {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(files, most+1))
		if err != nil {
			return false, false, fmt.Errorf("%w: read %s: %w", backup.ErrInvalid, backup.ServerFiles, err)
		}
		var settings map[string]any
		if len(text) > most || yaml.Unmarshal(text, &settings) != nil {
			return false, false, fmt.Errorf("%w: %s in %s cannot be read", backup.ErrInvalid, k3sConfigFile, backup.ServerFiles)
		}
		encrypts, known = isSet(settings[secretsEncryption]), true
	}
	// Only at its end it is known that it is what was backed up.
	if _, err := io.Copy(io.Discard, content); err != nil {
		return false, false, err
	}
	return encrypts, known, nil
}

// checkSecrets refuses a restore with another setting than the data was written with: k3s would
// not tell the API server of the key, and no Secret could be read; or it would make a key for a
// cluster that has begun without one, which it does not support.
func (in *installer) checkSecrets(r *backup.Reader) error {
	encrypts, known, err := encryptsSecrets(r)
	first := &k3sNode{installer: in, host: in.servers()[0]}
	if err != nil || !known || encrypts == isSet(first.settings()[secretsEncryption]) {
		return err
	}
	if encrypts {
		return fmt.Errorf("%w: the cluster of the backup encrypts its Secrets, which cannot be read without "+
			"%s: true: write that into cluster.serverConfig", ErrRefused, secretsEncryption)
	}
	return fmt.Errorf("%w: install.yaml has %s: true, and the cluster of the backup began without it, "+
		"which k3s does not support: take it out", ErrRefused, secretsEncryption)
}
