package debian

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Bounds on what is read, in bytes. Real ones have a quarter of a megabyte and less.
const (
	MaxInRelease = 8 << 20
	MaxKeyring   = 4 << 20
	maxFiles     = 1 << 17 // that a Release lists
)

// Keyring are the keys that may sign an archive.
type Keyring struct{ keys openpgp.EntityList }

// ReadKeyring reads OpenPGP public keys, binary or with ASCII armor, as distributions ship them.
func ReadKeyring(data []byte) (*Keyring, error) {
	if len(data) > MaxKeyring {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrKeyring, MaxKeyring)
	}
	read := openpgp.ReadKeyRing
	if bytes.Contains(data, []byte("-----BEGIN PGP PUBLIC KEY BLOCK-----")) {
		read = openpgp.ReadArmoredKeyRing
	}
	keys, err := read(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeyring, err)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: there is no key in it", ErrKeyring)
	}
	return &Keyring{keys}, nil
}

// Release is what an archive says of one suite.
type Release struct {
	Suite, Codename string
	Date            time.Time
	// ValidUntil is when the archive has to have published another one; zero for never.
	ValidUntil    time.Time
	Architectures []string
	Components    []string
	// ByHash says that indexes are also there by their sha256, where an update of the archive does not touch them.
	ByHash bool
	// allApart says that packages for all architectures are in an index of their own alone.
	allApart bool
	files    map[string]file
}

type file struct {
	sha256 string
	size   int64
}

// OpenRelease verifies an InRelease and reads what is signed in it. One signature by a key of the ring is enough, as
// archives change their keys over time. Where the archive says until when it is good, it has to be good at now.
func OpenRelease(keyring *Keyring, data []byte, now time.Time) (*Release, error) {
	if len(data) > MaxInRelease {
		return nil, fmt.Errorf("%w: InRelease has more than %d bytes", ErrArchive, MaxInRelease)
	}
	signed, err := verify(keyring, data, now)
	if err != nil {
		return nil, err
	}
	r, err := parseRelease(signed)
	if err != nil {
		return nil, fmt.Errorf("%w: InRelease: %w", ErrArchive, err)
	}
	if !r.ValidUntil.IsZero() && now.After(r.ValidUntil) {
		return nil, fmt.Errorf("%w: InRelease is of %s and was good until %s: the archive, or a mirror of it, "+
			"withholds what is newer", ErrArchive, r.Date.Format(time.RFC3339), r.ValidUntil.Format(time.RFC3339))
	}
	return r, nil
}

// verify returns what is signed. Nothing else may stand in the file: readers have taken that for signed before.
func verify(keyring *Keyring, data []byte, now time.Time) ([]byte, error) {
	const begin = "-----BEGIN PGP SIGNED MESSAGE-----"
	if !bytes.HasPrefix(data, []byte(begin)) {
		return nil, fmt.Errorf("%w: InRelease does not begin with %q", ErrSignature, begin)
	}
	block, rest := clearsign.Decode(data)
	switch {
	case block == nil:
		return nil, fmt.Errorf("%w: InRelease is not a signed text in one piece", ErrSignature)
	case len(bytes.TrimSpace(rest)) > 0:
		return nil, fmt.Errorf("%w: something follows the signature in InRelease", ErrSignature)
	}
	config := &packet.Config{Time: func() time.Time { return now }}
	_, _, err := openpgp.VerifyDetachedSignature(keyring.keys, bytes.NewReader(block.Bytes),
		block.ArmoredSignature.Body, config)
	if err != nil {
		return nil, fmt.Errorf("%w: no key of the keyring (%s) has signed InRelease: %w", ErrSignature,
			keyring.ids(), err)
	}
	return block.Plaintext, nil
}

// ids names a few keys.
func (k *Keyring) ids() string {
	const most = 6
	var ids []string
	for _, key := range k.keys[:min(len(k.keys), most)] {
		ids = append(ids, fmt.Sprintf("%016X", key.PrimaryKey.KeyId))
	}
	if more := len(k.keys) - most; more > 0 {
		ids = append(ids, fmt.Sprintf("%d more", more))
	}
	return strings.Join(ids, ", ")
}

func parseRelease(text []byte) (*Release, error) {
	var all []stanza
	for s, err := range stanzas(bytes.NewReader(text), func(string) bool { return true }) {
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("it has %d paragraphs: expected 1", len(all))
	}
	f := all[0].fields
	r := &Release{
		Suite: f["suite"], Codename: f["codename"], ByHash: f["acquire-by-hash"] == "yes",
		Architectures: strings.Fields(f["architectures"]),
		files:         make(map[string]file),
	}
	for _, c := range strings.Fields(f["components"]) {
		r.Components = append(r.Components, path.Base(c)) // some have the folder before it
	}
	r.allApart = slices.Contains(r.Architectures, "all") && f["no-support-for-architecture-all"] != "Packages"
	var err error
	if r.Date, err = parseTime(f["date"]); err != nil {
		return nil, fmt.Errorf("field Date: %w", err)
	}
	if until := f["valid-until"]; until != "" {
		if r.ValidUntil, err = parseTime(until); err != nil {
			return nil, fmt.Errorf("field Valid-Until: %w", err)
		}
	}
	if f["sha256"] == "" {
		return nil, fmt.Errorf("it lists no files by their SHA256")
	}
	for line := range strings.Lines(f["sha256"]) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, listed, err := parseFile(line)
		if err != nil {
			return nil, fmt.Errorf("field SHA256: %w", err)
		}
		if r.files[name] = listed; len(r.files) > maxFiles {
			return nil, fmt.Errorf("field SHA256: it lists more than %d files", maxFiles)
		}
	}
	return r, nil
}

// parseTime reads a date of a Release, which are in UTC.
func parseTime(s string) (time.Time, error) {
	for _, layout := range []string{"Mon, 2 Jan 2006 15:04:05 MST", "Mon, 2 Jan 2006 15:04:05 -0700"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time", s)
}

var sha256Pattern = lazyregexp.New(`^[0-9a-f]{64}$`)

func parseFile(line string) (name string, f file, err error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return "", file{}, fmt.Errorf("%q: expected a sha256, a size and a name", line)
	}
	f.sha256 = fields[0]
	if !sha256Pattern.MatchString(f.sha256) {
		return "", file{}, fmt.Errorf("%q: expected 64 hexadecimal digits first", line)
	}
	if f.size, err = strconv.ParseInt(fields[1], 10, 64); err != nil || f.size < 0 {
		return "", file{}, fmt.Errorf("%q: expected a size in bytes", line)
	}
	return fields[2], f, nil
}

// IndexFile is a file of an archive that lists packages.
type IndexFile struct {
	// Path is below the folder of the suite.
	Path string
	// Compression is "xz", "gz" or "".
	Compression string
	SHA256      string
	Size        int64 // of the file, compressed as it may be, in bytes
}

// Is refuses a Release of another suite: a mirror could answer with any that is signed. A release is also called by its
// codename. What comes beside it is not: Ubuntu's noble-updates and noble-backports say that their Codename is noble.
func (r *Release) Is(suite string) error {
	suite = strings.TrimSuffix(suite, "/")
	if suite == r.Suite || suite == r.Codename && !strings.HasPrefix(r.Suite, r.Codename+"-") {
		return nil
	}
	return fmt.Errorf("%w: its InRelease is that of the suite %s (%s), not of %s", ErrArchive, r.Suite, r.Codename,
		suite)
}

// Indexes are the files that list the packages of a component for an architecture, in the smallest form that can be
// read: one, or two where packages for all architectures are listed apart.
func (r *Release) Indexes(component, architecture string) ([]IndexFile, error) {
	if !slices.Contains(r.Components, path.Base(component)) {
		return nil, fmt.Errorf("%w: %s has no component %s, only %s", ErrArchive, r.name(), component,
			strings.Join(r.Components, ", "))
	}
	if !slices.Contains(r.Architectures, architecture) {
		return nil, fmt.Errorf("%w: %s has no architecture %s, only %s", ErrArchive, r.name(), architecture,
			strings.Join(r.Architectures, ", "))
	}
	own, ok := r.index(component, architecture)
	if !ok {
		return nil, fmt.Errorf("%w: %s lists no index of packages of %s for %s", ErrArchive, r.name(), component,
			architecture)
	}
	all := []IndexFile{own}
	if r.allApart {
		if apart, ok := r.index(component, "all"); ok {
			all = append(all, apart)
		}
	}
	return all, nil
}

func (r *Release) name() string {
	if r.Codename != "" {
		return r.Codename
	}
	return r.Suite
}

func (r *Release) index(component, architecture string) (IndexFile, bool) {
	base := component + "/binary-" + architecture + "/Packages"
	for _, suffix := range []string{".xz", ".gz", ""} {
		listed, ok := r.files[base+suffix]
		if !ok {
			continue
		}
		f := IndexFile{Path: base + suffix, Compression: strings.TrimPrefix(suffix, "."), SHA256: listed.sha256,
			Size: listed.size}
		if r.ByHash {
			f.Path = path.Dir(base) + "/by-hash/SHA256/" + listed.sha256
		}
		return f, true
	}
	return IndexFile{}, false
}
