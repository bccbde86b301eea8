package liteboxd

import (
	"github.com/liteboxd/boxlift/install/config"
	"github.com/liteboxd/boxlift/install/seed"
	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/manifests"
	"github.com/liteboxd/boxlift/node/backups"
)

// InBackups says where servers that make backups by themselves find what is to be kept of LiteBoxd; nil for none.
func InBackups(box *config.LiteBoxd) *backups.LiteBoxd {
	if box == nil {
		return nil
	}
	return &backups.LiteBoxd{
		ReleaseNamespace: seed.ReleasesNamespace, ReleaseName: seed.LiteBoxdRelease,
		Namespace: box.NamespaceSystem, Claim: manifests.DataClaim, Database: DatabaseFile, Tables: backup.KeptTables(),
		Key:       backups.Secret{Namespace: box.NamespaceSystem, Name: manifests.KeysSecret, Key: keyVariable},
		Sandboxes: box.NamespaceSandbox, SandboxLabels: sandboxSelector,
	}
}
