// Package archive is the file that a support bundle is: what lies in it, written and read. docs/support-bundle.md
// specifies it.
//
// Contract: it is a tar within gzip, which tar, file managers and archivers of every system open without the internet
// and without anything of boxlift's; Go has both, too. All its files are in one folder. Nothing gets into it but
// through a [redact.Redactor]. The index, its last file, says of each item where it comes from, how much of it there
// is, and what went wrong with it: an item that could not be collected is one, too.
//
// Reading is strict and bounded: an archive comes from somebody else.
package archive

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/internal/fault"
)

// Format is the version of the layout.
const Format = 1

// Names of the files at the top of the folder.
const (
	IndexName  = "index.json"
	ReadmeName = "README.txt"
)

// Bounds of what is written, and read. The bytes are those without compression.
const (
	MaxItems = 10_000
	MaxFile  = 64 << 20
	MaxTotal = 4 << 30
	maxIndex = 32 << 20
	maxName  = 240
)

// ErrInvalid is wrapped by errors that say that a file is no support bundle that can be read.
var ErrInvalid = fault.NewKind(fault.Input, "no support bundle that this boxlift can read")

// Observation is the path of what boxlift doctor has seen, in the form of package diagnosis.
const Observation = "doctor.json"

// Cut says which end of an item is missing, because it would have been too large.
type Cut string

// What can be missing.
const (
	Whole   Cut = ""
	CutHead Cut = "beginning"
	CutTail Cut = "end"
)

// Index is what index.json says.
type Index struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"`
	// Created is when collecting began, by the clock of the machine that boxlift ran on.
	Created time.Time `json:"created"`
	// Boxlift is the version of boxlift that has collected.
	Boxlift string `json:"boxlift"`
	// Since is from when on logs were asked for.
	Since time.Time `json:"since"`
	Items []Item    `json:"items"`
}

// Item is one thing that was to be collected.
type Item struct {
	// Path is its file, below the folder. There is none when nothing was collected: then Error says why, or Absent.
	Path string `json:"path"`
	// Host is where it comes from, as messages call it; "" is the cluster, or the operator's machine.
	Host string `json:"host,omitempty"`
	// Source is the command, the file or the path of the API that it comes from.
	Source string `json:"source"`
	// Started is when it was begun, by the clock of the machine that boxlift ran on, and Seconds how long it took.
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	// Size is in bytes, SHA256 in hex; 0 and "" when there is no file.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
	// Cut says which end is missing.
	Cut Cut `json:"cut,omitempty"`
	// Masked is how many places were taken out.
	Masked int `json:"masked,omitempty"`
	// Error is why it could not be collected, or not to its end.
	Error string `json:"error,omitempty"`
	// Absent tells that there is no such thing where it was looked for, which is no error.
	Absent bool `json:"absent,omitempty"`
}

// check reports what is wrong with what an index says.
func (x *Index) check() error {
	if x.Format != Format {
		return fault.WithHint(fmt.Errorf("%w: its format is %d, expected %d", ErrInvalid, x.Format, Format),
			"open it with a boxlift of the version that made it, or unpack it with tar -xzf")
	}
	if len(x.Items) > MaxItems {
		return fmt.Errorf("%w: its index has %d items, %d is the most", ErrInvalid, len(x.Items), MaxItems)
	}
	seen := make(map[string]bool)
	for _, item := range x.Items {
		if err := checkName(item.Path); err != nil {
			return err
		}
		switch {
		case item.Path == IndexName || seen[item.Path]:
			return fmt.Errorf("%w: its index has %s twice", ErrInvalid, item.Path)
		case item.Size < 0 || item.Seconds < 0 || item.Masked < 0:
			return fmt.Errorf("%w: its index has numbers below 0 for %s", ErrInvalid, item.Path)
		case item.Cut != Whole && item.Cut != CutHead && item.Cut != CutTail:
			return fmt.Errorf("%w: its index says of %s that it was cut at its %.20q", ErrInvalid, item.Path, item.Cut)
		}
		seen[item.Path] = true
	}
	return nil
}

// checkName accepts paths that every system can unpack, below a folder.
func checkName(name string) error {
	if name == "" || len(name) > maxName || path.Clean(name) != name || path.IsAbs(name) || name == "." || name == ".." ||
		strings.HasPrefix(name, "../") {
		return fmt.Errorf("%w: %.100q is no name of a file in it", ErrInvalid, name)
	}
	for _, c := range []byte(name) {
		if !isNameByte(c) && c != '/' {
			return fmt.Errorf("%w: %.100q is no name of a file in it", ErrInvalid, name)
		}
	}
	return nil
}

func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._-+", c) >= 0
}

// Name makes a part of a path of a text of others: what is not a letter, a digit or one of "._-+" becomes a dash.
func Name(text string) string {
	const most = 60
	name := []byte(text[:min(len(text), most)])
	for i, c := range name {
		if !isNameByte(c) {
			name[i] = '-'
		}
	}
	if trimmed := strings.Trim(string(name), "."); trimmed != "" {
		return trimmed
	}
	return "unnamed"
}
