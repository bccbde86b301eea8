// Package have is HAVE.json: what the hosts of a cluster hold of bundles, written in the
// isolated network and read where the next bundle is built, so that this one can leave it
// out.
//
// The file is JSON. Its reader is strict: fields that are unknown, there twice or in another
// order are refused, and so is anything out of bounds. White space may differ.
//
// A file that a site signs also says when it was written, and how far the cluster's record of
// releases was then ([Have.Date]), so that an old one can be told from a new one. It has another
// apiVersion, which a boxlift that does not know these fields refuses.
package have

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
)

// The values of apiVersion and kind. DatedAPIVersion is that of files with Written and Record.
const (
	APIVersion      = "boxlift.dev/v1"
	DatedAPIVersion = "boxlift.dev/v2"
	Kind            = "Have"
)

// Bounds of a file.
const (
	// MaxSize is that of the file in bytes. A cluster's blobs take some 40 kB.
	MaxSize = 16 << 20
	// maxBlobs is as many as a bundle may have.
	maxBlobs = 1 << 17
	maxHosts = 1 << 14
	// maxBundles and maxPlatforms are more than there can be.
	maxBundles   = 1 << 10
	maxPlatforms = 64
	maxName      = 253
	maxBlobSize  = 1 << 53
)

// ErrInvalid is wrapped by errors that say that a file is not in this form.
var ErrInvalid = fault.NewKind(fault.Input, "invalid HAVE.json")

// Have is what hosts hold.
type Have struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Cluster is the name of the cluster.
	Cluster string `json:"cluster"`
	// Written is when the file was written, by the clock of the machine that did, in UTC and whole seconds. It and
	// Record are there in dated files only.
	Written time.Time `json:"written,omitzero"`
	Record  *Record   `json:"record,omitempty"`
	// Bundles are the digests of the bundles that the hosts have on record: what they hold
	// came in these.
	Bundles   []digest.Digest `json:"bundles"`
	Platforms []Platform      `json:"platforms"`
}

// Record is how far a cluster's record of releases was.
type Record struct {
	// Release is the number of the newest release. Of two files of a cluster, the one with the higher number is newer,
	// whatever clocks say.
	Release int `json:"release"`
	// Bundle is the digest of the bundle of the last release that succeeded; "" when none has.
	Bundle digest.Digest `json:"bundle,omitempty"`
	// Serial is the highest serial of a bundle that the cluster has had; 0 for none.
	Serial int64 `json:"serial,omitempty"`
}

// Platform is what hosts of one platform hold.
type Platform struct {
	Platform lock.Platform `json:"platform"`
	// Hosts are the hosts' names.
	Hosts []string `json:"hosts"`
	// Blobs are what every one of them holds.
	Blobs []Blob `json:"blobs"`
}

// Blob is a blob by its digest, with its size in bytes.
type Blob struct {
	Digest digest.Digest `json:"digest"`
	Size   int64         `json:"size"`
}

// Host is what one host holds.
type Host struct {
	Name     string
	Platform lock.Platform
	// Bundles are those on record there.
	Bundles []digest.Digest
	// Blobs are the sizes of blobs in bytes, by their digests.
	Blobs map[digest.Digest]int64
}

// Of puts together what several hosts hold: for each platform what all of its hosts do, and
// the bundles that all hosts have on record.
func Of(cluster string, hosts []Host) *Have {
	h := &Have{APIVersion: APIVersion, Kind: Kind, Cluster: cluster, Bundles: []digest.Digest{},
		Platforms: []Platform{}}
	common := make(map[lock.Platform]map[digest.Digest]int64)
	for i, host := range hosts {
		if i == 0 {
			h.Bundles = append(h.Bundles, host.Bundles...)
		}
		h.Bundles = slices.DeleteFunc(h.Bundles, func(d digest.Digest) bool {
			return !slices.Contains(host.Bundles,
				d)
		})
		at := slices.IndexFunc(h.Platforms, func(p Platform) bool { return p.Platform == host.Platform })
		if at < 0 {
			at = len(h.Platforms)
			h.Platforms = append(h.Platforms, Platform{Platform: host.Platform})
			common[host.Platform] = make(map[digest.Digest]int64)
			for d, size := range host.Blobs {
				common[host.Platform][d] = size
			}
		}
		p := &h.Platforms[at]
		p.Hosts = append(p.Hosts, host.Name)
		for d, size := range common[host.Platform] {
			if has, ok := host.Blobs[d]; !ok || has != size {
				delete(common[host.Platform], d)
			}
		}
	}
	slices.Sort(h.Bundles)
	h.Bundles = slices.Compact(h.Bundles)
	slices.SortFunc(h.Platforms, func(a, b Platform) int { return cmp.Compare(a.Platform, b.Platform) })
	for i := range h.Platforms {
		p := &h.Platforms[i]
		slices.Sort(p.Hosts)
		p.Blobs = make([]Blob, 0, len(common[p.Platform]))
		for d, size := range common[p.Platform] {
			p.Blobs = append(p.Blobs, Blob{d, size})
		}
		slices.SortFunc(p.Blobs, func(a, b Blob) int { return cmp.Compare(a.Digest, b.Digest) })
	}
	return h
}

// Date says when the file is written, and how far the record of the cluster is.
func (h *Have) Date(now time.Time, r Record) {
	h.APIVersion, h.Written, h.Record = DatedAPIVersion, now.UTC().Truncate(time.Second), &r
}

// Encode returns the file: one line for each blob, in an order that does not change.
func (h *Have) Encode() ([]byte, error) {
	if err := h.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var b bytes.Buffer
	line := func(v any) string {
		text, _ := json.Marshal(v) // strings and numbers have no errors
		return string(text)
	}
	fmt.Fprintf(&b, "{\n\"apiVersion\": %s,\n\"kind\": %s,\n\"cluster\": %s,\n", line(h.APIVersion), line(h.Kind),
		line(h.Cluster))
	if h.Record != nil {
		fmt.Fprintf(&b, "\"written\": %s,\n\"record\": %s,\n", line(h.Written), line(h.Record))
	}
	fmt.Fprintf(&b, "\"bundles\": %s,\n\"platforms\": [", line(h.Bundles))
	for i, p := range h.Platforms {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n{\"platform\": %s, \"hosts\": %s, \"blobs\": [", line(p.Platform), line(p.Hosts))
		for j, blob := range p.Blobs {
			if j > 0 {
				b.WriteString(",")
			}
			b.WriteString("\n" + line(blob))
		}
		b.WriteString("\n]}")
	}
	b.WriteString("\n]\n}\n")
	if b.Len() > MaxSize {
		return nil, fmt.Errorf("%w: %d bytes, %d is the most", ErrInvalid, b.Len(), MaxSize)
	}
	return b.Bytes(), nil
}

// Parse reads what Encode wrote. Errors wrap [ErrInvalid].
func Parse(content []byte) (*Have, error) {
	if len(content) > MaxSize {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrInvalid, MaxSize)
	}
	// What is of another version is told so, whatever fields it has. Nothing follows the object: this reads all.
	var form struct{ APIVersion, Kind string }
	if err := json.Unmarshal(content, &form); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := checkForm(form.APIVersion, form.Kind); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	var h Have
	if err := decoder.Decode(&h); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	written, err := h.Encode()
	if err != nil {
		return nil, err
	}
	// This finds what the decoder passes over: fields that are there twice, or written in
	// other letters.
	var got, want bytes.Buffer
	if err := errors.Join(json.Compact(&got, content), json.Compact(&want, written)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		return nil, fmt.Errorf("%w: it says the same otherwise than `boxlift have` does: it was changed", ErrInvalid)
	}
	return &h, nil
}

func (h *Have) validate() error {
	if err := checkForm(h.APIVersion, h.Kind); err != nil {
		return err
	}
	if err := checkName("cluster", h.Cluster); err != nil {
		return err
	}
	if err := h.checkDate(); err != nil {
		return err
	}
	switch {
	case len(h.Bundles) > maxBundles:
		return fmt.Errorf("bundles: more than %d", maxBundles)
	case len(h.Platforms) == 0:
		return errors.New("platforms: none: no host holds anything")
	case len(h.Platforms) > maxPlatforms:
		return fmt.Errorf("platforms: more than %d", maxPlatforms)
	}
	for i, d := range h.Bundles {
		if err := checkDigest(d); err != nil {
			return fmt.Errorf("bundles: %w", err)
		}
		if slices.Contains(h.Bundles[:i], d) {
			return fmt.Errorf("bundles: %s is there twice", d)
		}
	}
	hosts, blobs := make(map[string]bool), 0
	for i := range h.Platforms {
		p := &h.Platforms[i]
		if err := p.validate(hosts); err != nil {
			return fmt.Errorf("platforms: %.40q: %w", string(p.Platform), err)
		}
		if slices.ContainsFunc(h.Platforms[:i], func(o Platform) bool { return o.Platform.Match(p.Platform) }) {
			return fmt.Errorf("platforms: %s is there twice", p.Platform)
		}
		if blobs += len(p.Blobs); blobs > maxBlobs {
			return fmt.Errorf("more than %d blobs", maxBlobs)
		}
	}
	return nil
}

func checkForm(apiVersion, kind string) error {
	if apiVersion != APIVersion && apiVersion != DatedAPIVersion || kind != Kind {
		return fmt.Errorf("apiVersion %.40q and kind %.40q, expected %s or %s, and %s", apiVersion, kind, APIVersion,
			DatedAPIVersion, Kind)
	}
	return nil
}

// checkDate finds what dated files have to have, and others must not.
func (h *Have) checkDate() error {
	isDated := h.APIVersion == DatedAPIVersion
	switch {
	case isDated == h.Written.IsZero(), isDated == (h.Record == nil):
		return fmt.Errorf("written and record are of %s, and go together", DatedAPIVersion)
	case !isDated:
		return nil
	case !h.Written.Equal(h.Written.Truncate(time.Second)) || h.Written.Location() != time.UTC:
		return errors.New("written: it is not in UTC and whole seconds")
	case h.Written.Year() < 1 || h.Written.Year() > 9999:
		return fmt.Errorf("written: the year %d", h.Written.Year())
	case h.Record.Release < 1:
		return fmt.Errorf("record: release %d", h.Record.Release)
	case h.Record.Serial < 0 || h.Record.Serial > lock.MaxSerial:
		return fmt.Errorf("record: the serial is %d", h.Record.Serial)
	}
	if h.Record.Bundle != "" {
		if err := checkDigest(h.Record.Bundle); err != nil {
			return fmt.Errorf("record: bundle: %w", err)
		}
	}
	return nil
}

func (p *Platform) validate(hosts map[string]bool) error {
	if err := p.Platform.Validate(); err != nil {
		return err
	}
	if len(p.Hosts) == 0 {
		return errors.New("hosts: none")
	}
	for _, name := range p.Hosts {
		if err := checkName("hosts", name); err != nil {
			return err
		}
		if hosts[name] {
			return fmt.Errorf("hosts: %q is there twice", name)
		}
		if hosts[name] = true; len(hosts) > maxHosts {
			return fmt.Errorf("hosts: more than %d", maxHosts)
		}
	}
	seen := make(map[digest.Digest]bool, len(p.Blobs))
	for _, blob := range p.Blobs {
		if err := checkDigest(blob.Digest); err != nil {
			return fmt.Errorf("blobs: %w", err)
		}
		if blob.Size < 0 || blob.Size > maxBlobSize {
			return fmt.Errorf("blobs: %s: its size of %d bytes is out of bounds", blob.Digest, blob.Size)
		}
		if seen[blob.Digest] {
			return fmt.Errorf("blobs: %s is there twice", blob.Digest)
		}
		seen[blob.Digest] = true
	}
	return nil
}

func checkName(field, name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%s: a name has 1 to %d characters", field, maxName)
	}
	for _, r := range name {
		if r < ' ' || r > '~' {
			return fmt.Errorf("%s: the name %.80q has characters that no name has", field, name)
		}
	}
	return nil
}

func checkDigest(d digest.Digest) error {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("%.80q is not a sha256 digest", string(d))
	}
	return nil
}
