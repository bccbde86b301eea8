package backups

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/backup"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/node/wire"
)

// Where a server has what belongs to its backups.
const (
	// Program is a copy of boxlift-node: what a timer starts does not change with every other run of boxlift.
	Program = "/usr/local/libexec/boxlift-backup"
	// Service is the unit's name, without its ending; its timer has the same.
	Service = "boxlift-backup"
	// ConfigDir holds ConfigFile ([Config]) and, in PasswordsDir, the nodes' passwords, each in a file by its node's
	// name. Only root can read it.
	ConfigDir    = "/etc/boxlift-backup"
	ConfigFile   = ConfigDir + "/config.json"
	PasswordsDir = ConfigDir + "/node-passwords"
	// StatusFile has the [Status] of the last round.
	StatusFile = wire.FilesDir + "/backup-status.json"
	// Folder has a folder of backups for each cluster. It stays when the host leaves its cluster.
	Folder = "/var/backups/boxlift"
)

const (
	// Format is the version of the forms of [Config] and [Status].
	Format = 1
	// MaxConfig is the largest [Config], in bytes of JSON.
	MaxConfig = 1 << 20
	// KeepAtLeast is how many backups stay however old they are.
	KeepAtLeast = 3
)

// Config says what a server backs up, for whom, and where to.
type Config struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"`
	// Node is the name of the server's node.
	Node     string `json:"node"`
	KeepDays int    `json:"keepDays"`
	// Recipients are those of age that backups are encrypted to: at least one.
	Recipients []string `json:"recipients"`
	// NotWhile are files that keep a round from making a backup while they are there.
	NotWhile []string `json:"notWhile,omitempty"`
	// Release is the Secret with the cluster's record of releases.
	Release Secret `json:"release"`
	// LiteBoxd is nil where there is none.
	LiteBoxd *LiteBoxd `json:"liteboxd,omitempty"`
	// Claims are those whose files are to be in a backup, where their volumes are on the server.
	Claims  []Claim  `json:"claims,omitempty"`
	Targets []Target `json:"targets,omitempty"`
}

// Claim is a PersistentVolumeClaim of a workload.
type Claim struct {
	Workload  string `json:"workload"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Secret is one key of a Secret.
type Secret struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Key       string `json:"key"`
}

// LiteBoxd says where LiteBoxd has what is to be kept of it.
type LiteBoxd struct {
	// ReleaseNamespace and ReleaseName are those of its Helm release.
	ReleaseNamespace string `json:"releaseNamespace"`
	ReleaseName      string `json:"releaseName"`
	// Namespace has the claim of the volume with the database, and Claim is its name.
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	Database  string `json:"database"`
	// Tables are those whose rows are noted.
	Tables []string `json:"tables,omitempty"`
	Key    Secret   `json:"key"`
	// Sandboxes is the namespace of the pods that SandboxLabels selects.
	Sandboxes     string `json:"sandboxes"`
	SandboxLabels string `json:"sandboxLabels"`
}

// Target is a place that backups are carried to: a folder, an SFTP server or a bucket.
type Target struct {
	// Name is what messages call it.
	Name string `json:"name"`
	// Folder is an absolute path on another filesystem than the backups' own.
	Folder string `json:"folder,omitempty"`
	SFTP   *SFTP  `json:"sftp,omitempty"`
	S3     *S3    `json:"s3,omitempty"`
}

// SFTP is a folder on a server, and how to log in to that.
type SFTP struct {
	Address string `json:"address"` // host:port
	User    string `json:"user"`
	// Path is the folder, relative to where the server puts the user unless it is absolute.
	Path string `json:"path"`
	// HostKey is what ssh-keygen -l prints of the server's key, "SHA256:...".
	HostKey string `json:"hostKey"`
	// Key is the private key to log in with, as OpenSSH or PEM has it, without a passphrase.
	Key string `json:"key"`
}

// S3 is a bucket on a server that speaks S3, and how requests to it are signed.
type S3 struct {
	// Endpoint is https://host:port or http://host:port; the bucket is the first part of the path.
	Endpoint string `json:"endpoint"`
	Bucket   string `json:"bucket"`
	// Prefix is before the names of objects, without slashes at its ends; may be empty.
	Prefix    string `json:"prefix,omitempty"`
	Region    string `json:"region"`
	AccessKey string `json:"accessKey"`
	SecretKey string `json:"secretKey"`
	// CA are certificates in PEM that the server's may be signed by, besides those that the host trusts; may be empty.
	CA string `json:"ca,omitempty"`
}

var (
	nodeName = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	label    = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// ParseConfig reads a config strictly.
func ParseConfig(document []byte) (Config, error) {
	var c Config
	err := wire.DecodeStrictly(document, MaxConfig, &c)
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return Config{}, fmt.Errorf("read the config of backups: %w", err)
	}
	return c, nil
}

func (c *Config) check() error {
	const maxDays, maxTargets, maxRecipients = 3650, 8, 32
	switch {
	case c.Format != Format:
		return fmt.Errorf("it has the format %d, this program knows %d", c.Format, Format)
	case !label.MatchString(c.Cluster):
		return fmt.Errorf("%.100q is no name of a cluster", c.Cluster)
	case !nodeName.MatchString(c.Node):
		return fmt.Errorf("%.100q is no name of a node", c.Node)
	case c.KeepDays < 1 || c.KeepDays > maxDays:
		return fmt.Errorf("backups are to be kept %d days, expected 1 to %d", c.KeepDays, maxDays)
	case len(c.Recipients) < 1 || len(c.Recipients) > maxRecipients:
		return fmt.Errorf("it has %d recipients, expected 1 to %d", len(c.Recipients), maxRecipients)
	case len(c.Targets) > maxTargets:
		return fmt.Errorf("it has %d targets, %d is the most", len(c.Targets), maxTargets)
	case len(c.Claims) > backup.MaxClaims:
		return fmt.Errorf("it has %d claims, %d is the most", len(c.Claims), backup.MaxClaims)
	}
	for _, claim := range c.Claims {
		for _, name := range []string{claim.Workload, claim.Namespace, claim.Name} {
			if !nodeName.MatchString(name) {
				return fmt.Errorf("%.100q is no name of a workload, a namespace or a claim", name)
			}
		}
	}
	for _, t := range c.Targets {
		if err := t.check(); err != nil {
			return fmt.Errorf("the target %.100q: %w", t.Name, err)
		}
	}
	return nil
}

func (t Target) check() error {
	places := 0
	for _, is := range []bool{t.Folder != "", t.SFTP != nil, t.S3 != nil} {
		if is {
			places++
		}
	}
	switch {
	case t.Name == "":
		return errors.New("it has no name")
	case places != 1:
		return fmt.Errorf("it is %d places, expected one: a folder, an SFTP server or a bucket", places)
	case t.SFTP != nil:
		return t.SFTP.check()
	case t.S3 != nil:
		return t.S3.check()
	case !path.IsAbs(t.Folder) || path.Clean(t.Folder) != t.Folder:
		return fmt.Errorf("%.100q is no absolute path of a folder", t.Folder)
	}
	return nil
}

func (s *SFTP) check() error {
	if s.Address == "" || s.User == "" || s.Path == "" || s.Key == "" || !strings.HasPrefix(s.HostKey, "SHA256:") {
		return errors.New("an address, a user, a path, a host key or a key is missing")
	}
	return nil
}

func (s *S3) check() error {
	if s.Endpoint == "" || s.Bucket == "" || s.Region == "" || s.AccessKey == "" || s.SecretKey == "" {
		return errors.New("an endpoint, a bucket, a region or a key is missing")
	}
	return nil
}

// timeFormat is that of the time in a backup's name (package backup).
const timeFormat = "20060102T150405Z"

// suffix ends the names of encrypted backups.
const suffix = ".tar.age"

// timeOf is the time in the name of a backup of the cluster; of any other name there is none.
func (c *Config) timeOf(name string) (time.Time, bool) {
	rest, ok := strings.CutPrefix(name, c.Cluster+"-")
	if !ok {
		return time.Time{}, false
	}
	text, ok := strings.CutSuffix(rest, suffix)
	if !ok {
		return time.Time{}, false
	}
	at, err := time.Parse(timeFormat, text)
	return at, err == nil && at.Format(timeFormat) == text
}

// expired are those of some backups that are older than they are to be kept, but for the newest.
func (c *Config) expired(names []string, now time.Time) []string {
	dated := make(map[string]time.Time)
	var sorted []string
	for _, name := range names {
		if at, ok := c.timeOf(name); ok {
			dated[name] = at
			sorted = append(sorted, name)
		}
	}
	newestFirst(sorted)
	var old []string
	for i, name := range sorted {
		if i >= KeepAtLeast && now.Sub(dated[name]) > time.Duration(c.KeepDays)*24*time.Hour {
			old = append(old, name)
		}
	}
	return old
}
