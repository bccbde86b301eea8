// Package trust is the trust file: which keys may sign what, whose they are, which of them and which
// bundles are revoked, and how that changes over the years.
//
// A trust file holds versions, whose numbers only rise. Each version is signed by enough owners of
// the version before it and by enough of its own, so that whoever holds any version proves every
// later one without a network, and nobody below the thresholds makes another. A file carries the
// versions that led to its newest, so that a site which missed some comes along: it goes from the
// one that it holds from version to version. Where a file leaves versions out, those before and
// behind the gap have to fit each other in the same way.
//
// Form: the outer document is JSON. It holds each version's content in base64, byte for byte as it
// was signed, and beside it one sigstore bundle for each signature. These are the blob signatures
// that bundles have (package signature), and no DSSE envelope, for two reasons: a sigstore bundle may
// have one signature in its envelope only, so that cosign verifies no envelope with several; and
// `cosign verify-blob-attestation` takes in-toto statements alone, which a list of keys is not. So
// each signature is verified with `cosign verify-blob` and with openssl once content and signature
// are taken out, which needs nothing but jq and base64.
//
// Time proves nothing here. Clocks behind an air gap are what they are, so that a key outside its
// validity gives a warning, and a version can say that it is refused instead ([Refuse]). What
// protects against old files is that a holder of version 3 refuses version 2, whatever its clock
// says.
//
// Reading is strict and bounded: sizes before anything is decoded, the number of values before
// anything is allocated. Unknown fields, repeated ones and other spellings are refused, white space
// may differ. Everything given to [Parse] may come from an attacker.
package trust

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/boundedjson"
	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/bundle/signature"
	"github.com/liteboxd/boxlift/internal/fault"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/printable"
)

// The values of apiVersion and kind, of a file and of a version in it.
const (
	APIVersion  = "boxlift.dev/v1"
	Kind        = "TrustFile"
	VersionKind = "Trust"
)

// Bounds.
const (
	// MaxSize is that of a file in bytes.
	MaxSize = 8 << 20
	// MaxContent is that of the content of one version, in bytes.
	MaxContent = 256 << 10
	// MaxVersions is how many versions a file carries. [Policy.Next] leaves out the oldest above that.
	MaxVersions = 32
	// MaxSignatures is how many signatures a version has.
	MaxSignatures = 32
	// MaxKeys is how many keys a version has.
	MaxKeys = 256
	// MaxRevoked is how many keys, and how many bundles, a version revokes.
	MaxRevoked = 512

	maxName       = 64
	maxReason     = 256
	maxComponents = 64
	// maxContentValues and maxFileValues bound JSON values.
	maxContentValues = 1 << 15
	maxFileValues    = MaxVersions*(3+MaxSignatures*8) + 16
)

var (
	// ErrInvalid is wrapped by errors that say that something is not in the form of a trust file.
	ErrInvalid = fault.NewKind(fault.Input, "invalid trust file")

	// ErrOlder says that a file is older than the one that is held: it was replaced, and may lack what was revoked
	// since.
	ErrOlder = fault.NewKind(fault.Input, "older trust file")

	// ErrForked says that two files have different versions of the same number: owners signed both,
	// or somebody has their keys.
	ErrForked = fault.NewKind(fault.Input, "forked trust file")

	// ErrSignature says that a signature is not of the version that it stands beside.
	ErrSignature = fault.NewKind(fault.Input, "signature in the trust file does not verify")

	// ErrTooFew says that too few owners signed a version.
	ErrTooFew = fault.NewKind(fault.Input, "too few signatures")
)

// Role is what a key is for.
type Role string

// The roles, in the order in which a key has them.
const (
	// Owner signs versions of the trust file.
	Owner Role = "owner"
	// Builder signs bundles.
	Builder Role = "builder"
	// Reviewer signs bundles that somebody else built.
	Reviewer Role = "reviewer"
	// Tester signs what came of tests of a bundle. It signs no bundles.
	Tester Role = "tester"
	// Site signs what a site says of itself. It signs no bundles, and goes with no other role: the key lies in the
	// site's cluster.
	Site Role = "site"
)

// Roles are all roles, in order.
func Roles() []Role { return []Role{Owner, Builder, Reviewer, Tester, Site} }

// The values of [Version.Clock]: what becomes of signatures by keys outside their validity.
const (
	Warn   = "warn"
	Refuse = "refuse"
)

// Version is the content of one version of a trust file.
type Version struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Number is 1 for the first, and rises.
	Number int64 `json:"version"`
	// Previous is the sha256 of the content of the version before; "" for the first.
	Previous   digest.Digest `json:"previous,omitempty"`
	Thresholds Thresholds    `json:"thresholds"`
	// Clock is [Warn] or [Refuse].
	Clock string `json:"clock"`
	Keys  []Key  `json:"keys"`
	// RevokedKeys and RevokedBundles are no longer good, whatever else is said of them.
	RevokedKeys    []RevokedKey    `json:"revokedKeys,omitempty"`
	RevokedBundles []RevokedBundle `json:"revokedBundles,omitempty"`
}

// Thresholds are how many keys of different names have to sign: owners for the next version of the
// file, builders and reviewers for a bundle. Nobody counts for two roles.
type Thresholds struct {
	Owner    int `json:"owner"`
	Builder  int `json:"builder"`
	Reviewer int `json:"reviewer"`
}

// Bundle is how many have to sign a bundle.
func (t Thresholds) Bundle() int { return t.Builder + t.Reviewer }

// Key is a key and what it is for.
type Key struct {
	// Name is whose it is: a person or a team. Several keys may have one name, and count once.
	Name  string `json:"name"`
	Roles []Role `json:"roles"`
	// ID is that of [signature.KeyID].
	ID string `json:"id"`
	// PublicKey is PEM.
	PublicKey string `json:"publicKey"`
	// NotBefore and NotAfter are when it is meant to sign, in UTC and whole seconds; zero is no bound.
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`
	// Components are those that bundles signed with the key may have; nil for all.
	Components []string `json:"components,omitempty"`
	// Audience are the clusters for which bundles signed with the key may be, as in a lock; nil for all.
	Audience []string `json:"audience,omitempty"`

	public *signature.PublicKey
}

// RevokedKey says why and since when a key is no longer good.
type RevokedKey struct {
	ID     string    `json:"id"`
	Reason string    `json:"reason"`
	Date   time.Time `json:"date"`
}

// RevokedBundle says that of a bundle, by its bundle digest.
type RevokedBundle struct {
	Digest digest.Digest `json:"digest"`
	Reason string        `json:"reason"`
	Date   time.Time     `json:"date"`
}

// NewKey returns a key without validity and bounds. The PEM is that of a public key.
func NewKey(name string, publicPEM []byte, roles ...Role) (Key, error) {
	public, err := signature.ParsePublicKey(publicPEM)
	if err != nil {
		return Key{}, err
	}
	text, err := public.PEM()
	if err != nil {
		return Key{}, err
	}
	k := Key{Name: name, ID: signature.KeyID(public), PublicKey: string(text), public: public}
	for _, role := range Roles() {
		if slices.Contains(roles, role) {
			k.Roles = append(k.Roles, role)
		}
	}
	return k, nil
}

// Has reports whether the key has a role.
func (k *Key) Has(role Role) bool { return slices.Contains(k.Roles, role) }

// clockText says how a clock is outside the key's validity; "" when it is not.
func (k *Key) clockText(now time.Time) string {
	at := now.UTC().Format(time.RFC3339)
	switch {
	case !k.NotBefore.IsZero() && now.Before(k.NotBefore):
		return fmt.Sprintf("the key of %s is meant to sign from %s on, and this machine's clock says %s", k.Name,
			k.NotBefore.Format(time.RFC3339), at)
	case !k.NotAfter.IsZero() && now.After(k.NotAfter):
		return fmt.Sprintf("the key of %s was meant to sign until %s, and this machine's clock says %s", k.Name,
			k.NotAfter.Format(time.RFC3339), at)
	}
	return ""
}

// Key returns the key with an id, or nil.
func (v *Version) Key(id string) *Key {
	i := slices.IndexFunc(v.Keys, func(k Key) bool { return k.ID == id })
	if i < 0 {
		return nil
	}
	return &v.Keys[i]
}

// Revoked returns why a key is revoked, or nil.
func (v *Version) Revoked(id string) *RevokedKey {
	i := slices.IndexFunc(v.RevokedKeys, func(r RevokedKey) bool { return r.ID == id })
	if i < 0 {
		return nil
	}
	return &v.RevokedKeys[i]
}

// RevokedBundle returns why a bundle is revoked, or nil.
func (v *Version) RevokedBundle(d digest.Digest) *RevokedBundle {
	i := slices.IndexFunc(v.RevokedBundles, func(r RevokedBundle) bool { return r.Digest == d })
	if i < 0 {
		return nil
	}
	return &v.RevokedBundles[i]
}

// names are those of the keys that have one of the roles and are not revoked, each once, in order.
func (v *Version) names(roles ...Role) []string {
	var names []string
	for i := range v.Keys {
		k := &v.Keys[i]
		if slices.ContainsFunc(roles, k.Has) && v.Revoked(k.ID) == nil && !slices.Contains(names, k.Name) {
			names = append(names, k.Name)
		}
	}
	return names
}

// clone shares nothing with v that is changed.
func (v *Version) clone() *Version {
	c := *v
	c.Keys = slices.Clone(v.Keys)
	for i := range c.Keys {
		c.Keys[i].Roles = slices.Clone(c.Keys[i].Roles)
	}
	c.RevokedKeys, c.RevokedBundles = slices.Clone(v.RevokedKeys), slices.Clone(v.RevokedBundles)
	return &c
}

// encode returns the content that is signed.
func (v *Version) encode() ([]byte, error) {
	if err := v.check(); err != nil {
		return nil, fmt.Errorf("%w: version %d: %w", ErrInvalid, v.Number, err)
	}
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("%w: version %d: %w", ErrInvalid, v.Number, err)
	}
	content = append(content, '\n')
	if len(content) > MaxContent {
		return nil, fmt.Errorf("%w: version %d has %d bytes, %d is the most", ErrInvalid, v.Number, len(content),
			MaxContent)
	}
	return content, nil
}

// keyCache are keys by their PEM: the versions of a file have most of them in common.
type keyCache map[string]*signature.PublicKey

func (c keyCache) parse(text string) (*signature.PublicKey, error) {
	if key := c[text]; key != nil {
		return key, nil
	}
	key, err := signature.ParsePublicKey([]byte(text))
	if err == nil {
		c[text] = key
	}
	return key, err
}

// parseVersion reads the content of a version.
func parseVersion(content []byte, keys keyCache) (*Version, error) {
	if len(content) > MaxContent {
		return nil, fmt.Errorf("it has %d bytes, %d is the most", len(content), MaxContent)
	}
	var v Version
	if err := boundedjson.UnmarshalExact(content, &v, maxContentValues); err != nil {
		return nil, err
	}
	if v.APIVersion != APIVersion || v.Kind != VersionKind {
		return nil, fmt.Errorf("it is a %.40q of %.40q, expected a %q of %q", v.Kind, v.APIVersion, VersionKind,
			APIVersion)
	}
	if len(v.Keys) > MaxKeys {
		return nil, fmt.Errorf("it has %d keys, %d is the most", len(v.Keys), MaxKeys)
	}
	for i := range v.Keys {
		k := &v.Keys[i]
		var err error
		if k.public, err = keys.parse(k.PublicKey); err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
	}
	return &v, v.check()
}

var componentPattern = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)

// check finds what a version must not say. What it finds is said without the version's number.
func (v *Version) check() error {
	switch {
	case v.Number < 1 || v.Number > lock.MaxSerial:
		return fmt.Errorf("the number is %d, expected 1 to %d", v.Number, int64(lock.MaxSerial))
	case (v.Number == 1) != (v.Previous == ""):
		return fmt.Errorf("it names %.80q as the version before", v.Previous)
	case v.Previous != "" && !isSHA256(v.Previous):
		return fmt.Errorf("the version before is named %.80q: expected a sha256", v.Previous)
	case v.Clock != Warn && v.Clock != Refuse:
		return fmt.Errorf("clock is %.40q, expected %q or %q", v.Clock, Warn, Refuse)
	case len(v.Keys) > MaxKeys:
		return fmt.Errorf("it has %d keys, %d is the most", len(v.Keys), MaxKeys)
	}
	if err := v.checkKeys(); err != nil {
		return err
	}
	if err := v.checkRevoked(); err != nil {
		return err
	}
	return v.checkThresholds()
}

func (v *Version) checkKeys() error {
	ids, names := make(map[string]bool, len(v.Keys)), make(map[string]string, len(v.Keys))
	for i := range v.Keys {
		k := &v.Keys[i]
		if err := k.check(); err != nil {
			return fmt.Errorf("key %d (%s): %w", i+1, printable.Short(k.Name, maxName), err)
		}
		if ids[k.ID] {
			return fmt.Errorf("the key %s is there twice: a key has one name", k.ID)
		}
		ids[k.ID] = true
		if other, ok := names[strings.ToLower(k.Name)]; ok && other != k.Name {
			return fmt.Errorf("the names %q and %q differ in capitals only: those who sign are told apart by names",
				other, k.Name)
		}
		names[strings.ToLower(k.Name)] = k.Name
	}
	return nil
}

func (k *Key) check() error {
	if err := checkLine("name", k.Name, maxName); err != nil {
		return err
	}
	if len(k.Roles) == 0 {
		return errors.New("it has no role")
	}
	last := -1
	for _, role := range k.Roles {
		at := slices.Index(Roles(), role)
		if at <= last {
			return fmt.Errorf("the roles are %.80q: expected some of %q, in this order", k.Roles, Roles())
		}
		last = at
	}
	if k.Has(Site) && len(k.Roles) > 1 {
		return errors.New("a key of a site has no other role: every server of the site can sign with it")
	}
	if k.public == nil || k.ID != signature.KeyID(k.public) {
		return fmt.Errorf("the id %.80q is not that of its public key", k.ID)
	}
	for _, t := range []time.Time{k.NotBefore, k.NotAfter} {
		if !t.IsZero() && !isPlain(t) {
			return errors.New("a validity is not in UTC and whole seconds")
		}
	}
	if !k.NotBefore.IsZero() && !k.NotAfter.IsZero() && !k.NotBefore.Before(k.NotAfter) {
		return errors.New("its validity ends before it begins")
	}
	if len(k.Components) > maxComponents {
		return fmt.Errorf("it has %d components, %d is the most", len(k.Components), maxComponents)
	}
	for _, name := range k.Components {
		if !componentPattern.MatchString(name) {
			return fmt.Errorf("the component %.80q is not a component's name", name)
		}
	}
	if len(k.Audience) > lock.MaxAudience || slices.ContainsFunc(k.Audience, func(s string) bool {
		return s == "" || strings.Contains(s, ",")
	}) {
		return errors.New("the audience is not one of a lock")
	}
	_, err := lock.ParseValidity("", strings.Join(k.Audience, ","), "")
	return err
}

func (v *Version) checkRevoked() error {
	if len(v.RevokedKeys) > MaxRevoked || len(v.RevokedBundles) > MaxRevoked {
		return fmt.Errorf("it revokes %d keys and %d bundles, %d is the most of each", len(v.RevokedKeys),
			len(v.RevokedBundles), MaxRevoked)
	}
	seen := make(map[string]bool, len(v.RevokedKeys)+len(v.RevokedBundles))
	one := func(what, reason string, date time.Time) error {
		if seen[what] {
			return fmt.Errorf("%s is revoked twice", what)
		}
		seen[what] = true
		if !isPlain(date) {
			return fmt.Errorf("the date at which %s was revoked is missing, or not in UTC and whole seconds", what)
		}
		return checkLine("reason", reason, maxReason)
	}
	for _, r := range v.RevokedKeys {
		if !IsKeyID(r.ID) {
			return fmt.Errorf("%.80q is revoked, and is not the id of a key", r.ID)
		}
		if err := one(r.ID, r.Reason, r.Date); err != nil {
			return err
		}
	}
	for _, r := range v.RevokedBundles {
		if !isSHA256(r.Digest) {
			return fmt.Errorf("%.80q is revoked, and is not a bundle digest", r.Digest)
		}
		if err := one(string(r.Digest), r.Reason, r.Date); err != nil {
			return err
		}
	}
	return nil
}

// checkThresholds refuses what nobody could ever fulfil: a file that nobody can change, or with
// which no bundle is good.
func (v *Version) checkThresholds() error {
	t := v.Thresholds
	for _, one := range []struct {
		what        string
		least, want int
		have        []string
	}{
		{"owners", 1, t.Owner, v.names(Owner)},
		{"builders", 1, t.Builder, v.names(Builder)},
		{"reviewers", 0, t.Reviewer, v.names(Reviewer)},
		{"builders and reviewers together", 1, t.Bundle(), v.names(Builder, Reviewer)},
	} {
		switch {
		case one.want < one.least || one.want > MaxKeys:
			return fmt.Errorf("%d %s are asked for, expected %d to %d", one.want, one.what, one.least, MaxKeys)
		case one.want > len(one.have):
			return fault.WithHint(fmt.Errorf("%d %s are asked for, and there are keys of %s", one.want, one.what,
				nameList(one.have)), "ask for fewer with --need, or add a key first: boxlift trust add, or succeed")
		}
	}
	return nil
}

// IsKeyID reports whether a text has the form of the id of a key.
func IsKeyID(s string) bool {
	sum, err := base64.StdEncoding.Strict().DecodeString(s)
	return err == nil && len(sum) == 32 && base64.StdEncoding.EncodeToString(sum) == s
}

func isSHA256(d digest.Digest) bool { return d.Validate() == nil && d.Algorithm() == digest.SHA256 }

// isPlain reports whether a time is there, in UTC and whole seconds.
func isPlain(t time.Time) bool { return !t.IsZero() && t.Nanosecond() == 0 && t.Location() == time.UTC }

// checkLine takes a line that shows as what it is.
func checkLine(what, s string, most int) error {
	switch {
	case s == "" || strings.TrimSpace(s) != s:
		return fmt.Errorf("the %s %.80q is empty, or has spaces around it", what, s)
	case len(s) > most:
		return fmt.Errorf("the %s has %d bytes, %d is the most", what, len(s), most)
	case printable.Line(s) != s:
		return fmt.Errorf("the %s %.80q has characters that do not show", what, s)
	}
	return nil
}

// nameList is names in a message.
func nameList(names []string) string {
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, ", ")
}
