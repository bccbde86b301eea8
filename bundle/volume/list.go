package volume

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
)

// maxList is how many bytes a list may have: MaxVolumes lines with names of 255 bytes.
const maxList = MaxVolumes * (64 + 2 + 255 + 1)

// formatList writes a list: a line for each volume, in order, with the sha256 in lower
// case, two spaces, the file's own name and a line feed. It is what
// `sha256sum NAME.000 NAME.001 ...` prints.
func formatList(s set, sums []digest.Digest) []byte {
	var b bytes.Buffer
	for i, sum := range sums {
		fmt.Fprintf(&b, "%s  %s\n", sum.Encoded(), filepath.Base(s.volume(i)))
	}
	return b.Bytes()
}

// parseList reads the list of a set. It accepts what formatList writes and nothing else.
func parseList(s set, content []byte) ([]digest.Digest, error) {
	if len(content) > maxList {
		return nil, fmt.Errorf("has more than %d bytes", maxList)
	}
	var sums []digest.Digest
	for text := string(content); text != ""; {
		line, rest, ended := strings.Cut(text, "\n")
		text = rest
		sum, name, ok := strings.Cut(line, "  ")
		want := filepath.Base(s.volume(len(sums)))
		switch raw, err := hex.DecodeString(sum); {
		case !ended:
			return nil, fmt.Errorf("is cut off in line %d", len(sums)+1)
		case len(sums) == MaxVolumes:
			return nil, fmt.Errorf("has more than %d lines", MaxVolumes)
		case !ok || err != nil || len(raw) != 32 || sum != strings.ToLower(sum):
			return nil, fmt.Errorf("has in line %d no sha256 and name as sha256sum writes them", len(sums)+1)
		case name != want:
			return nil, fmt.Errorf("has in line %d the name %q, expected %q", len(sums)+1, name, want)
		}
		sums = append(sums, digest.NewDigestFromEncoded(digest.SHA256, sum))
	}
	if len(sums) == 0 {
		return nil, fmt.Errorf("is empty")
	}
	return sums, nil
}

// readList reads the list of a set from the disk. What is wrong with it is a [Fault].
func (s set) readList() ([]digest.Digest, error) { return s.readListAt(s.list()) }

// readListAt is readList for a list that may have its temporary name.
func (s set) readListAt(path string) ([]digest.Digest, error) {
	if !exists(path) {
		return nil, s.fault(path, "is missing: it says which volumes there are")
	}
	// Opening a pipe would wait for somebody who writes to it.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, s.fault(path, "is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.LimitReader(f, maxList+1))
	if err != nil {
		return nil, err
	}
	sums, err := parseList(s, content)
	if err != nil {
		return nil, s.fault(path, err.Error())
	}
	return sums, nil
}
