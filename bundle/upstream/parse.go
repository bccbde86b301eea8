package upstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"

	"github.com/liteboxd/boxlift/bundle/lock"
	"github.com/liteboxd/boxlift/internal/lazyregexp"
	"github.com/liteboxd/boxlift/internal/outsideyaml"
)

const (
	// maxLines bounds the lists of upstream; k3s' have about ten.
	maxLines = 4096
	// maxIndexNodes bounds the values of an index of charts, and the punctuation of its texts. Cilium's has some
	// hundred versions, each with some hundred lines.
	maxIndexNodes = 1 << 19
)

// sumPattern is a line of sha256sum, for a file read as text or as binary.
var sumPattern = lazyregexp.New(`^([0-9a-f]{64}) [ *]([A-Za-z0-9][A-Za-z0-9._+-]{0,127})$`)

// parseSums reads what sha256sum wrote: the digests by name of file.
func parseSums(content []byte) (map[string]string, error) {
	sums := make(map[string]string)
	err := eachLine(content, func(line string) error {
		m := sumPattern.FindStringSubmatch(line)
		if m == nil {
			return errors.New("is not one of sha256sum: expected 64 hexadecimal digits, two spaces and the name of a " +
				"file")
		}
		if other, ok := sums[m[2]]; ok && other != m[1] {
			return fmt.Errorf("is another sha256 of %s", m[2])
		}
		sums[m[2]] = m[1]
		return nil
	})
	return sums, err
}

// parseImages reads a list of images, one on each line: their full references, sorted,
// each once.
func parseImages(content []byte) ([]string, error) {
	var all []string
	err := eachLine(content, func(line string) error {
		ref, err := fullReference(line)
		if err != nil {
			return err
		}
		all = append(all, ref)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = errors.New("it lists no images")
	}
	slices.Sort(all)
	return slices.Compact(all), err
}

// eachLine visits the lines that have something in them.
func eachLine(content []byte, visit func(line string) error) error {
	n := 0
	for raw := range bytes.Lines(content) {
		if n++; n > maxLines {
			return fmt.Errorf("it has more than %d lines", maxLines)
		}
		line := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
		if line == "" {
			continue
		}
		if err := visit(line); err != nil {
			return fmt.Errorf("line %d, %s, %w", n, brief(line), err)
		}
	}
	return nil
}

// brief quotes text of upstream for an error.
func brief(s string) string {
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return strconv.Quote(s)
}

// fullReference completes an image's name as container runtimes do. A digest behind a tag
// is left out: a tag is what a lock pins.
func fullReference(s string) (string, error) {
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return "", errors.New("is not the name of an image") // the library's error has the name as it came
	}
	tagged, ok := named.(reference.Tagged)
	if !ok {
		return "", errors.New("is an image without a tag")
	}
	return reference.TrimNamed(named).String() + ":" + tagged.Tag(), nil
}

// references makes entries of a lock of the images that something rendered names: each
// once, in order.
func references(images []string) ([]lock.Image, error) {
	var all []lock.Image
	for _, image := range images {
		ref, err := fullReference(image)
		if err != nil {
			return nil, fmt.Errorf("%s %w", brief(image), err)
		}
		if !slices.ContainsFunc(all, func(m lock.Image) bool { return m.Ref == ref }) {
			all = append(all, lock.Image{Ref: ref})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("it names no images")
	}
	return all, nil
}

// parseChannels reads the channels of k3s: the newest version of each minor version, by
// the channel's name, such as v1.36 (docs.k3s.io, "Upgrades").
func parseChannels(content []byte) (map[string]string, error) {
	var list struct {
		Data []struct {
			Name   string `json:"name"`
			Latest string `json:"latest"`
		} `json:"data"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, fmt.Errorf("the list of channels: %w", err)
	}
	latest := make(map[string]string)
	for _, channel := range list.Data {
		// Channels of another kind, or from long ago, are none of ours.
		if Check(K3s, channel.Latest) == nil {
			latest[channel.Name] = channel.Latest
		}
	}
	if len(latest) == 0 {
		return nil, errors.New("it lists no channels")
	}
	return latest, nil
}

// chartVersion is one entry of a repository of charts.
type chartVersion struct {
	Version string `yaml:"version"`
	Digest  string `yaml:"digest"` // sha256 of the chart's archive, in hexadecimal
}

// parseIndex reads the index of a repository of charts (Helm's index.yaml) and returns
// the versions of one.
func parseIndex(content []byte, name string) ([]chartVersion, error) {
	var index struct {
		Entries map[string][]chartVersion `yaml:"entries"`
	}
	if err := (outsideyaml.Reader{MaxSize: maxIndex, MaxNodes: maxIndexNodes}).Unmarshal(content, &index); err != nil {
		return nil, fmt.Errorf("the index of charts: %w", err)
	}
	if len(index.Entries[name]) == 0 {
		return nil, fmt.Errorf("it lists no chart %s", name)
	}
	return index.Entries[name], nil
}

func sum(content []byte) string {
	s := sha256.Sum256(content)
	return hex.EncodeToString(s[:])
}

// checkSum compares content with a sha256, if there is one.
func checkSum(content []byte, want string) error {
	if got := sum(content); want != "" && got != want {
		return fmt.Errorf("what came has the sha256 %s, upstream's checksums say %s", got, want)
	}
	return nil
}
