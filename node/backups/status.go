package backups

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/liteboxd/boxlift/node/wire"
)

// MaxStatus is the largest [Status], in bytes of JSON.
const MaxStatus = 4 << 20

// Status is what came of the last round on a server.
type Status struct {
	Format int    `json:"format"`
	Node   string `json:"node"`
	// Time is when the round began.
	Time time.Time `json:"time"`
	// Error is why the round made no backup, "" when it did.
	Error string `json:"error,omitempty"`
	// Backups are those in the folder, the newest first.
	Backups []Kept         `json:"backups"`
	Targets []TargetStatus `json:"targets,omitempty"`
}

// Kept is a backup in the folder.
type Kept struct {
	File  string    `json:"file"`
	Time  time.Time `json:"time"` // what it is of
	Bytes int64     `json:"bytes"`
	// SHA256 is that of the file when it was made, "" where nobody knows it.
	SHA256 string `json:"sha256,omitempty"`
	// Made says that its databases were opened and that it was read back when it was made, Proven is when it was last
	// read and was still the same.
	Made   bool      `json:"made,omitempty"`
	Proven time.Time `json:"proven,omitzero"`
	// Problem is why it cannot be relied on, "" when nothing is wrong.
	Problem string `json:"problem,omitempty"`
	// Without says what of the cluster is not in it.
	Without []string `json:"without,omitempty"`
}

// Sound reports whether a backup was proven when it was made and the last time that it was looked at.
func (k Kept) Sound() bool { return k.Made && k.Problem == "" && !k.Proven.IsZero() }

// TargetStatus is what came of carrying backups to a target.
type TargetStatus struct {
	Name string `json:"name"`
	// Error is why not all that is to be there is, "" when it is.
	Error string `json:"error,omitempty"`
	// Files is how many backups of this server are there, Newest what the newest one is of, as it was last seen.
	Files  int       `json:"files"`
	Newest time.Time `json:"newest,omitzero"`
}

// ParseStatus reads a status strictly. Its texts are fit to be shown.
func ParseStatus(document []byte) (*Status, error) {
	var s Status
	err := wire.DecodeStrictly(document, MaxStatus, &s)
	if err == nil && s.Format != Format {
		err = fmt.Errorf("it has the format %d, this boxlift knows %d", s.Format, Format)
	}
	if err == nil {
		err = s.clean()
	}
	if err != nil {
		return nil, fmt.Errorf("read the status of backups: %w", err)
	}
	return &s, nil
}

// clean bounds what is in it. Moments are left alone, which are no texts.
func (s *Status) clean() error {
	if len(s.Backups) > wire.MaxEntries || len(s.Targets) > wire.MaxEntries {
		return fmt.Errorf("it has %d backups and %d targets", len(s.Backups), len(s.Targets))
	}
	texts := []*string{&s.Node, &s.Error}
	for i := range s.Backups {
		k := &s.Backups[i]
		if k.Bytes < 0 {
			return fmt.Errorf("a backup has %d bytes", k.Bytes)
		}
		texts = append(texts, &k.File, &k.SHA256, &k.Problem)
		if err := wire.Clean(reflect.ValueOf(&k.Without).Elem(), "without"); err != nil {
			return err
		}
	}
	for i := range s.Targets {
		if s.Targets[i].Files < 0 {
			return fmt.Errorf("a target has %d files", s.Targets[i].Files)
		}
		texts = append(texts, &s.Targets[i].Name, &s.Targets[i].Error)
	}
	for _, text := range texts {
		cleaned, err := wire.CleanText(*text, "a text")
		if err != nil {
			return err
		}
		*text = cleaned
	}
	return nil
}

// Newest is the newest sound backup, nil when there is none.
func (s *Status) Newest() *Kept {
	for i := range s.Backups {
		if s.Backups[i].Sound() {
			return &s.Backups[i]
		}
	}
	return nil
}

// newestFirst sorts names of backups of one cluster, which end with their times.
func newestFirst(names []string) {
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(b, a) })
}
