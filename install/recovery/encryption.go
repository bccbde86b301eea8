package recovery

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/liteboxd/boxlift/install/atrest"
	"github.com/liteboxd/boxlift/install/k3s"
	"github.com/liteboxd/boxlift/install/site"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
)

// encryptsSecrets reports whether the cluster of a backup has encrypted its Secrets, by the config and the keys of the
// server that the backup is from. It is nil for a backup without these.
func encryptsSecrets(r *backup.Reader) (*bool, error) {
	if !r.Has(backup.ServerFiles) {
		return nil, nil
	}
	content, _, err := r.Open(backup.ServerFiles)
	if err != nil {
		return nil, err
	}
	known, encrypts := false, false
	const most = 1 << 20
	for files := tar.NewReader(content); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: read %s: %w", backup.ErrInvalid, backup.ServerFiles, err)
		}
		name := path.Join("/", header.Name)
		if known = known || path.Dir(name) == site.K3sServerCredentials; name == site.K3sEncryptionKey {
			encrypts = true
		}
		if name != site.K3sConfigFile {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(files, most+1))
		if err != nil {
			return nil, fmt.Errorf("%w: read %s: %w", backup.ErrInvalid, backup.ServerFiles, err)
		}
		var settings map[string]any
		if len(text) > most || outsideyaml.Unmarshal(text, &settings) != nil {
			return nil, fmt.Errorf("%w: %s in %s cannot be read", backup.ErrInvalid, site.K3sConfigFile,
				backup.ServerFiles)
		}
		known, encrypts = true, encrypts || k3s.IsSet(settings[atrest.Setting])
	}
	// Only at its end it is known that it is what was backed up.
	if _, err := io.Copy(io.Discard, content); err != nil || !known {
		return nil, err
	}
	return &encrypts, nil
}

// checkSecrets refuses a restore with another setting than the data was written with: k3s would
// not tell the API server of the key, and no Secret could be read; or it would make a key for a
// cluster that has begun without one, which it does not support. Where install.yaml does not say anything, the
// cluster gets the setting that it had.
func (rv *Recovery) checkSecrets(r *backup.Reader) (encrypts *bool, err error) {
	encrypts, err = encryptsSecrets(r)
	asked := rv.Cluster.AsksToEncrypt()
	if err != nil || encrypts == nil || asked == nil || *asked == *encrypts {
		return encrypts, err
	}
	if *encrypts {
		return nil, fmt.Errorf("%w: the cluster of the backup encrypts its Secrets, which cannot be read with "+
			"%s: false: take that out of install.yaml", site.ErrRefused, atrest.Setting)
	}
	return nil, fmt.Errorf("%w: install.yaml has %s: true, and the cluster of the backup began without it, "+
		"which k3s does not support: take it out", site.ErrRefused, atrest.Setting)
}
