// Package backup keeps what a cluster cannot be made again from, in one file.
//
// Contract: a backup is a tar, or the same tar encrypted with age (format v1, binary). Its
// first entry is manifest.json ([Manifest]), which names every further entry in the order in
// which they follow, with size and sha256; all are regular files with mode 0600, and
// nothing follows them. The entries are
//
//	k3s/etcd-snapshot                      a snapshot of embedded etcd, as k3s etcd-snapshot save makes it, or
//	k3s/state.db                           a consistent copy of k3s' SQLite database
//	k3s/token                              the server token in full, without which neither of them can be used
//	k3s/agent-token                        the password that agents join with, if they have one of their own
//	k3s/server.tar                         the server's /etc/rancher/k3s, server/tls, server/cred and unit: for work by hand
//	nodes/NAME/password                    what a node shows to the servers that it is the one of that name
//	liteboxd/backup.json                   what ran: rows and sandboxes
//	liteboxd/liteboxd.db                   a consistent copy of LiteBoxd's database
//	liteboxd/sandbox-token-encryption-key  without which that database's tokens are worth nothing
//	liteboxd/objects.yaml                  LiteBoxd's objects
//	release.json                           the cluster's release record; opaque here
//	claims/claims.json                     whose the files of claims are, and where they belong ([Claim])
//	claims/NAMESPACE/NAME.tar              the files of a PersistentVolumeClaim, in the form of package foldertar
//
// A backup with files of claims has the format 2, and any other the format 1: a boxlift that does not know them says
// so, rather than restore a cluster without them.
//
// A file has its name only when it is complete and was read back; it is its owner's alone
// (0600). A backup holds every secret of its cluster: whoever has it in the clear owns
// the cluster.
//
// What is read may come from anywhere: it is bounded, everything that is not as above is
// refused ([ErrInvalid]), and no entry is used before its digest was compared.
package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// The versions of the form described above: without files of claims, and with them.
const (
	Format           = 1
	FormatWithClaims = 2
)

// formatOf is the format that a backup with these entries has.
func (m Manifest) formatOf() int {
	if _, ok := m.Entry(ClaimsRecord); ok {
		return FormatWithClaims
	}
	return Format
}

// Names of entries.
const (
	manifestName     = "manifest.json"
	EtcdSnapshot     = "k3s/etcd-snapshot"
	SQLiteDatabase   = "k3s/state.db"
	Token            = "k3s/token"
	AgentToken       = "k3s/agent-token"
	ServerFiles      = "k3s/server.tar"
	LiteBoxdFolder   = "liteboxd"
	LiteBoxdRecord   = LiteBoxdFolder + "/backup.json"
	LiteBoxdDatabase = LiteBoxdFolder + "/liteboxd.db"
	ReleaseRecord    = "release.json"
	// What LiteBoxd's tokens are encrypted with, and what ran.
	LiteBoxdKey     = LiteBoxdFolder + "/sandbox-token-encryption-key"
	LiteBoxdObjects = LiteBoxdFolder + "/objects.yaml"
)

// Where k3s has what a backup is made of (k3s v1.36).
const (
	Databases        = "/var/lib/rancher/k3s/server/db"
	ServerToken      = "/var/lib/rancher/k3s/server/token"
	NodePasswordFile = "/etc/rancher/node/password"
)

// ServerPaths are the files and folders of a server that [ServerFiles] has, those that there are.
func ServerPaths() []string {
	return []string{"/etc/rancher/k3s", "/var/lib/rancher/k3s/server/tls", "/var/lib/rancher/k3s/server/cred",
		"/etc/systemd/system/k3s.service", "/etc/systemd/system/k3s.service.env", "/etc/systemd/system/k3s.service.d"}
}

// NodePassword is the entry with the password of a node.
func NodePassword(node string) string { return "nodes/" + node + "/password" }

// Datastore is what a cluster keeps its objects in.
type Datastore string

// The datastores that k3s runs itself.
const (
	Etcd   Datastore = "etcd"
	SQLite Datastore = "sqlite"
)

// Entry is the name of the datastore's copy.
func (d Datastore) Entry() string {
	if d == SQLite {
		return SQLiteDatabase
	}
	return EtcdSnapshot
}

// Manifest says what a backup is of.
type Manifest struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"`
	// Time is when the datastore was copied; what the cluster was told later is not there.
	Time time.Time `json:"time"`
	// Boxlift and K3s are versions, Bundle the digest of the bundle that the cluster was
	// installed from, "" where nobody knew it.
	Boxlift   string    `json:"boxlift"`
	K3s       string    `json:"k3s"`
	Bundle    string    `json:"bundle,omitempty"`
	Datastore Datastore `json:"datastore"`
	// Server is the node that the datastore was copied on, Nodes are all that there were.
	Server string   `json:"server"`
	Nodes  []string `json:"nodes"`
	// LiteBoxd says where its database was; nil when there was none.
	LiteBoxd *Location `json:"liteboxd,omitempty"`
	Entries  []Entry   `json:"entries"`
}

// Location is where a file lies on a node, and whose it and its folder are.
type Location struct {
	Node   string    `json:"node"`
	Path   string    `json:"path"`
	File   Ownership `json:"file"`
	Folder Ownership `json:"folder"`
}

// Ownership are a file's numeric owner and group, and its permission bits.
type Ownership struct {
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Mode uint32 `json:"mode"`
}

// Entry is one file in a backup.
type Entry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// Entry finds an entry.
func (m Manifest) Entry(name string) (Entry, bool) {
	for _, e := range m.Entries {
		if e.Name == name {
			return e, true
		}
	}
	return Entry{}, false
}

// ErrInvalid is wrapped by errors about files that are no backup, or a damaged one.
var ErrInvalid = fault.NewKind(fault.Input, "not a sound backup")

// Bounds of what is read.
const (
	maxManifest = 4 << 20
	maxEntries  = 1 << 14
	maxName     = 300
	maxText     = 300
)

var (
	// Each part begins with a letter or digit, so that none leads elsewhere.
	entryName = lazyregexp.New(`^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$`)
	nodeName  = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	hexDigest = lazyregexp.New(`^[0-9a-f]{64}$`)
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// parseManifest reads a manifest strictly.
func parseManifest(content []byte) (m Manifest, err error) {
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return m, invalid("its manifest cannot be read: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return m, invalid("something follows the manifest's document")
	}
	if m.Format != Format && m.Format != FormatWithClaims {
		return m, invalid("it has the format %d, this boxlift knows %d and %d: use the boxlift that made it, or a newer one",
			m.Format, Format, FormatWithClaims)
	}
	return m, m.check()
}

// check refuses what [Write] would not write.
func (m Manifest) check() error {
	if m.Datastore != Etcd && m.Datastore != SQLite {
		return invalid("its datastore is %.100q, expected %s or %s", m.Datastore, Etcd, SQLite)
	}
	if m.Cluster == "" || m.Time.IsZero() || m.K3s == "" {
		return invalid("its manifest does not say which cluster it is of, when it was made, or with which k3s")
	}
	for _, text := range []string{m.Cluster, m.Boxlift, m.K3s, m.Bundle} {
		if len(text) > maxText {
			return invalid("its manifest has a text of %d bytes", len(text))
		}
	}
	if len(m.Nodes) > maxEntries {
		return invalid("it has %d nodes", len(m.Nodes))
	}
	for _, node := range append([]string{m.Server}, m.Nodes...) {
		if len(node) > maxName || !nodeName.MatchString(node) {
			return invalid("%.100q is no name of a node", node)
		}
	}
	if err := m.checkLocation(); err != nil {
		return err
	}
	return m.checkEntries()
}

func (m Manifest) checkLocation() error {
	l := m.LiteBoxd
	switch _, has := m.Entry(LiteBoxdDatabase); {
	case l == nil && has:
		return invalid("it does not say where LiteBoxd's database belongs")
	case l == nil:
		return nil
	case !has:
		return invalid("LiteBoxd's database is missing")
	case !nodeName.MatchString(l.Node):
		return invalid("%.100q is no name of a node", l.Node)
	case len(l.Path) > 4096 || !path.IsAbs(l.Path) || path.Clean(l.Path) != l.Path ||
		strings.ContainsAny(l.Path, "\n\x00"):
		return invalid("%.100q is no place for a database", l.Path)
	case (l.File.Mode|l.Folder.Mode)&^0o1777 != 0:
		return invalid("LiteBoxd's database has the mode %o in a folder with %o", l.File.Mode, l.Folder.Mode)
	}
	return nil
}

func (m Manifest) checkEntries() error {
	if len(m.Entries) > maxEntries {
		return invalid("it has %d entries, %d is the most", len(m.Entries), maxEntries)
	}
	seen := make(map[string]bool, len(m.Entries))
	for _, e := range m.Entries {
		switch {
		case len(e.Name) > maxName || !entryName.MatchString(e.Name) || e.Name == manifestName:
			return invalid("%.100q is no name of an entry", e.Name)
		case seen[e.Name]:
			return invalid("it has %s twice", e.Name)
		case e.Size < 0 || !hexDigest.MatchString(e.SHA256):
			return invalid("the size or digest of %s is none", e.Name)
		}
		seen[e.Name] = true
	}
	for _, name := range []string{m.Datastore.Entry(), Token} {
		if !seen[name] {
			return invalid("%s is missing, without which nothing can be restored", name)
		}
	}
	return m.checkFormat()
}

// checkFormat makes sure that files of claims are where the format says that there are some.
func (m Manifest) checkFormat() error {
	if m.Format != m.formatOf() {
		return invalid("it has the format %d, which does not go with %s being there or not", m.Format, ClaimsRecord)
	}
	for _, e := range m.Entries {
		if m.Format == Format && strings.HasPrefix(e.Name, claimsFolder) {
			return invalid("%s is there, and %s is missing", e.Name, ClaimsRecord)
		}
	}
	return nil
}

// encode renders a manifest, and its digest, which is the backup's own.
func (m Manifest) encode() (content []byte, digest string, err error) {
	content, err = json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, "", err
	}
	content = append(content, '\n')
	sum := sha256.Sum256(content)
	return content, hex.EncodeToString(sum[:]), nil
}
