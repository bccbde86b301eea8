// Package have is HAVE.json: what the hosts of a cluster hold of bundles, written in the
// isolated network and read where the next bundle is built, so that this one can leave it
// out.
//
// The file is JSON. Its reader is strict: fields that are unknown, there twice or in another
// order are refused, and so is anything out of bounds. White space may differ.
package have

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/fault"
)

// The values of apiVersion and kind.
const (
	APIVersion = "boxlift.dev/v1"
	Kind       = "Have"
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
	// Bundles are the digests of the bundles that the hosts have on record: what they hold
	// came in these.
	Bundles   []digest.Digest `json:"bundles"`
	Platforms []Platform      `json:"platforms"`
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
	fmt.Fprintf(&b, "{\n\"apiVersion\": %s,\n\"kind\": %s,\n\"cluster\": %s,\n\"bundles\": %s,\n\"platforms\": [",
		line(h.APIVersion), line(h.Kind), line(h.Cluster), line(h.Bundles))
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

// ReadFile reads a file. Errors about its content wrap [ErrInvalid].
func ReadFile(path string) (*Have, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	h, err := Parse(content)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return h, nil
}

// Parse reads what Encode wrote. Errors wrap [ErrInvalid].
func Parse(content []byte) (*Have, error) {
	if len(content) > MaxSize {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrInvalid, MaxSize)
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	var h Have
	if err := decoder.Decode(&h); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the object", ErrInvalid)
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
	if h.APIVersion != APIVersion || h.Kind != Kind {
		return fmt.Errorf("apiVersion %.40q and kind %.40q, expected %s and %s", h.APIVersion, h.Kind, APIVersion, Kind)
	}
	if err := checkName("cluster", h.Cluster); err != nil {
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
