package backup

import (
	"time"

	"github.com/liteboxd/boxlift/internal/database"
)

// LiteBoxd is liteboxd/backup.json: what ran when its database was copied. The same document lies in the folder of a
// backup of LiteBoxd, which is made before it is changed.
type LiteBoxd struct {
	Format  int       `json:"format"`
	Cluster string    `json:"cluster"`
	Time    time.Time `json:"time"`
	// From is the revision of the release that ran, To what it was to become.
	From int    `json:"from"`
	To   string `json:"to"`
	// SHA256 is that of the database, empty when there was none yet.
	SHA256    string        `json:"sha256,omitempty"`
	Rows      database.Keys `json:"rows"`
	Sandboxes []Sandbox     `json:"sandboxes"`
	// Compared says that the cluster was compared with it after the change.
	Compared bool `json:"compared"`
}

// Sandbox is a sandbox's pod.
type Sandbox struct {
	Name     string `json:"name"`
	UID      string `json:"uid"`
	Node     string `json:"node"`
	Restarts int    `json:"restarts"`
}

// KeptTables are the tables of LiteBoxd's database whose rows an upgrade has to leave alone: templates and what was
// pulled ahead. Those of sandboxes come and go by themselves.
func KeptTables() []string { return []string{"templates", "template_versions", "image_prepulls"} }
