// Package backups reads the section backups of install.yaml: what the servers back up by themselves, when, for whom,
// and where to.
package backups

import (
	"errors"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/liteboxd/boxlift/install/config/parse"
	"github.com/liteboxd/boxlift/install/config/schema"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Plan is what the servers make by themselves.
type Plan struct {
	// Times are when, each day, in the servers' own time zone: since midnight, sorted, each once; 2:30 unless given.
	Times []time.Duration
	// KeepDays is how long backups stay, 14 unless given.
	KeepDays int
	// Recipients are those of age that backups are encrypted to: at least one.
	Recipients []string
	// To are the places that they are carried to, in the order of the file.
	To []Target
}

// Target is one of a folder, an SFTP server and a bucket.
type Target struct {
	Folder string // an absolute path on the servers; "" for another place
	SFTP   *SFTP
	S3     *S3
}

// SFTP is a folder on an SFTP server.
type SFTP struct {
	Host         string // IP address in its canonical form, or DNS name in lower case
	Port         int    // 22 unless given
	User         string
	Path         string // relative to where the server puts the user unless it is absolute
	HostKey      string // as ssh-keygen -l prints it
	IdentityFile string // path of a private key without a passphrase, on the operator's machine
}

// S3 is a bucket on a server that speaks S3.
type S3 struct {
	Endpoint        string // https://host[:port], or http://
	Bucket          string
	Prefix          string // before the names of objects, without slashes at its ends; may be empty
	Region          string // us-east-1 unless given
	CredentialsFile string // path of a file of keys as the AWS command line has it, on the operator's machine
	CAFile          string // path of certificates in PEM; "" where servers trust that server's as they are
}

// TimeOfDay is a time since midnight as the file has it.
func TimeOfDay(since time.Duration) string { return time.Time{}.Add(since).Format("15:04") }

// String is what messages call the place.
func (t Target) String() string {
	if s := t.SFTP; s != nil {
		return "sftp://" + s.User + "@" + s.Address() + "/" + strings.TrimPrefix(s.Path, "/")
	}
	if s := t.S3; s != nil {
		_, host, _ := strings.Cut(s.Endpoint, "://")
		return "s3://" + path.Join(host, s.Bucket, s.Prefix)
	}
	return t.Folder
}

// Address returns host:port for a dialer.
func (s *SFTP) Address() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// Interval is the longest time between two backups.
func (b *Plan) Interval() time.Duration {
	const day = 24 * time.Hour
	longest := b.Times[0] + day - b.Times[len(b.Times)-1]
	for i := 1; i < len(b.Times); i++ {
		longest = max(longest, b.Times[i]-b.Times[i-1])
	}
	return longest
}

// Meaning is what the file asks for, without how to log in; nil for nothing.
func (b *Plan) Meaning() *Plan {
	if b == nil {
		return nil
	}
	m := *b
	m.To = slices.Clone(b.To)
	for i, t := range m.To {
		if t.SFTP != nil {
			s := *t.SFTP
			s.User, s.HostKey, s.IdentityFile = "", "", ""
			m.To[i].SFTP = &s
		}
		if t.S3 != nil {
			s := *t.S3
			s.CredentialsFile, s.CAFile = "", ""
			m.To[i].S3 = &s
		}
	}
	return &m
}

// Bounds of what a file may ask for.
const (
	maxTimes      = 24
	maxRecipients = 32
	maxTargets    = 8
)

// Read reads the section. parsePath makes a path absolute, seen from the folder of the file.
func Read(n schema.Node, parsePath func(string) (string, error)) *Plan {
	b := &Plan{Times: []time.Duration{2*time.Hour + 30*time.Minute}, KeepDays: 14}
	n.Mapping(
		schema.Optional("times", "When the servers make backups each day, in their own time zone. Default: 02:30.",
			func(n schema.Node) { b.Times = readTimes(n) }),
		schema.Optional("keepDays", "How many days backups are kept. Default: 14.",
			func(n schema.Node) { b.KeepDays = n.Number(1, 3650) }),
		schema.Required("recipients", "Recipients of age that backups are encrypted to.", func(n schema.Node) {
			n.List(func(_ int, item schema.Node) {
				one := schema.Text(item, parseRecipient)
				switch {
				case one == "":
				case slices.Contains(b.Recipients, one):
					item.Fail("found it a second time, expected each recipient once")
				case len(b.Recipients) > 0 && isQuantum(one) != isQuantum(b.Recipients[0]):
					item.Fail("found age1pq1... beside age1..., expected one kind: age does not mix them")
				}
				b.Recipients = append(b.Recipients, one)
			})
			if n.IsList() && (n.Len() < 1 || n.Len() > maxRecipients) {
				n.Fail("found %d recipients, expected 1 to %d", n.Len(), maxRecipients)
			}
		}),
		schema.Optional("to", "Places that backups are carried to. Default: none, they stay on the servers.",
			func(n schema.Node) {
				n.List(func(_ int, item schema.Node) { b.To = append(b.To, readTarget(item, parsePath)) })
				if len(b.To) > maxTargets {
					n.Fail("found %d places, expected at most %d", len(b.To), maxTargets)
				}
			}),
	)
	return b
}

func readTimes(n schema.Node) []time.Duration {
	var times []time.Duration
	n.List(func(_ int, item schema.Node) {
		var at time.Duration
		if !item.Sound(func() { at = schema.Text(item, parseTime) }) || n.Describes() {
			return
		}
		if slices.Contains(times, at) {
			item.Fail("found it a second time, expected each time once")
		}
		times = append(times, at)
	})
	if n.IsList() && (n.Len() < 1 || n.Len() > maxTimes) {
		n.Fail("found %d times, expected 1 to %d", n.Len(), maxTimes)
	}
	slices.Sort(times)
	return times
}

// parseTime reads a time of day.
func parseTime(s string) (time.Duration, error) {
	at, err := time.Parse("15:04", s)
	if err != nil || at.Format("15:04") != s {
		return 0, errors.New(`expected a time of day in quotes, from "00:00" to "23:59"`)
	}
	return time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute, nil
}

// isQuantum reports whether a recipient of age is a post-quantum one. A file is encrypted to one kind.
func isQuantum(recipient string) bool { return strings.HasPrefix(recipient, "age1pq1") }

// parseRecipient accepts a recipient that age knows without a plugin.
func parseRecipient(s string) (string, error) {
	if !strings.HasPrefix(s, "age1") {
		return "", errors.New("expected a recipient of age, which begins with age1")
	}
	if _, err := age.ParseRecipients(strings.NewReader(s)); err != nil {
		return "", errors.New("expected a recipient of age, as age-keygen prints it: this one is mistyped or cut off")
	}
	return s, nil
}

func readTarget(n schema.Node, parsePath func(string) (string, error)) Target {
	var t Target
	n.Needs(true, "folder", "sftp", "s3")
	present := n.Mapping(
		schema.Optional("folder", "Folder on the servers, where another disk or a file server is mounted.",
			func(n schema.Node) { t.Folder = schema.Text(n, parseFolder) }),
		schema.Optional("sftp", "Folder on an SFTP server.", func(n schema.Node) { t.SFTP = readSFTP(n, parsePath) }),
		schema.Optional("s3", "Bucket on a server that speaks S3.", func(n schema.Node) {
			t.S3 = readS3(n, parsePath)
		}),
	)
	if n.IsMapping() && len(present) != 1 {
		n.Fail("found %d places in one, expected folder, sftp or s3", len(present))
	}
	return t
}

func parseFolder(s string) (string, error) {
	if !path.IsAbs(s) || path.Clean(s) != s || s == "/" {
		return "", errors.New("expected the absolute path of a folder on the servers")
	}
	return s, nil
}

func readSFTP(n schema.Node, parsePath func(string) (string, error)) *SFTP {
	s := &SFTP{Port: 22}
	n.Mapping(
		schema.Required("host", "IP address or DNS name, as the servers reach it.",
			func(n schema.Node) { s.Host = schema.Text(n, parse.Host) }),
		schema.Optional("port", "Port of its SSH server. Default: 22.",
			func(n schema.Node) { s.Port = n.Number(1, 65535) }),
		schema.Required("user", "User to log in as.", func(n schema.Node) { s.User = schema.Text(n, parse.Login) }),
		schema.Required("path", "Folder there, which exists; relative to where the user gets.",
			func(n schema.Node) {
				s.Path = schema.Text(n, func(p string) (string, error) { return path.Clean(p), nil })
			}),
		schema.Required("hostKey", "Fingerprint of the host's key, SHA256: and 43 characters.",
			func(n schema.Node) { s.HostKey = schema.Text(n, parse.Fingerprint) }),
		schema.Required("identityFile", "Private key to log in with, without a passphrase; relative to the folder of "+
			"this file.", func(n schema.Node) { s.IdentityFile = schema.Text(n, parsePath) }),
	)
	return s
}

func readS3(n schema.Node, parsePath func(string) (string, error)) *S3 {
	s := &S3{Region: "us-east-1"}
	n.Mapping(
		schema.Required("endpoint", "URL of the server, as the servers reach it, such as https://10.0.0.9:9000.",
			func(n schema.Node) { s.Endpoint = schema.Text(n, parseEndpoint) }),
		schema.Required("bucket", "Bucket there, which exists.",
			func(n schema.Node) { s.Bucket = schema.Text(n, parseBucket) }),
		schema.Optional("prefix", "What names of objects begin with. Default: nothing.",
			func(n schema.Node) { s.Prefix = schema.Text(n, parsePrefix) }),
		schema.Optional("region", "Region that requests are signed for. Default: us-east-1.",
			func(n schema.Node) { s.Region = schema.Text(n, parseRegion) }),
		schema.Required("credentialsFile", "Access key and secret key, as the AWS command line has them in its "+
			"credentials file; relative to the folder of this file.",
			func(n schema.Node) { s.CredentialsFile = schema.Text(n, parsePath) }),
		schema.Optional("caFile", "Certificates in PEM that sign for the server; relative to the folder of this file. "+
			"Default: those that the servers trust.", func(n schema.Node) { s.CAFile = schema.Text(n, parsePath) }),
	)
	return s
}

// parseEndpoint accepts the root of a server.
func parseEndpoint(s string) (string, error) {
	wrong := errors.New("expected the URL of a server without a path, such as https://10.0.0.9:9000")
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		u.Path != "" && u.Path != "/" {
		return "", wrong
	}
	host, err := parse.Host(u.Hostname())
	if err != nil {
		return "", wrong
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port := u.Port(); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return "", wrong
		}
		host += ":" + strconv.FormatUint(n, 10)
	}
	return u.Scheme + "://" + host, nil
}

var (
	bucketName = lazyregexp.New(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixName = lazyregexp.New(`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`)
	regionName = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)
)

func parseBucket(s string) (string, error) {
	if !bucketName.MatchString(s) {
		return "", errors.New("expected a bucket's name: 3 to 63 small letters, digits, dots and hyphens")
	}
	return s, nil
}

func parsePrefix(s string) (string, error) {
	if trimmed := strings.Trim(s, "/"); len(trimmed) <= 512 && prefixName.MatchString(trimmed) {
		return trimmed, nil
	}
	return "", errors.New("expected letters, digits, dots, hyphens and underscores, with slashes between them")
}

func parseRegion(s string) (string, error) {
	if !regionName.MatchString(s) {
		return "", errors.New("expected a region, such as us-east-1")
	}
	return s, nil
}
