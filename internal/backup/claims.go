package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/liteboxd/boxlift/internal/foldertar"
)

// Claim is a PersistentVolumeClaim whose files a backup has.
type Claim struct {
	// Workload is what install.yaml calls the workload that it is of.
	Workload  string `json:"workload"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Node and Path are where its volume was: a folder of a node.
	Node string `json:"node"`
	Path string `json:"path"`
	// Entries are the folders, files and links, and Bytes what the files have in them.
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// String is the claim's name, with its namespace.
func (c Claim) String() string { return c.Namespace + "/" + c.Name }

// claimsDocument is claims/claims.json.
type claimsDocument struct {
	Claims []Claim `json:"claims"`
}

const (
	claimsFolder = "claims/"
	// ClaimsRecord is the entry that says which claims there are.
	ClaimsRecord = claimsFolder + "claims.json"
	// MaxClaims is the largest number of claims.
	MaxClaims = 1024
	// MaxClaimFiles is the largest tar of the files of one, in bytes.
	MaxClaimFiles = 1 << 40
)

// ClaimFiles is the entry with the files of a claim.
func ClaimFiles(namespace, name string) string { return claimsFolder + namespace + "/" + name + ".tar" }

// EncodeClaims renders the entry [ClaimsRecord].
func EncodeClaims(claims []Claim) ([]byte, error) {
	content, err := json.MarshalIndent(claimsDocument{claims}, "", "  ")
	return append(content, '\n'), err
}

// CheckClaimFolder refuses a folder that is not one that k3s' local storage makes for a claim, whose name it bears:
// what is brought back takes the place of all that is there.
func CheckClaimFolder(claim, folder string) error {
	if len(folder) > 4096 || !path.IsAbs(folder) || path.Clean(folder) != folder || strings.Count(folder, "/") < 3 ||
		!strings.Contains(path.Base(folder), claim) || strings.ContainsAny(folder, "\n\x00") {
		return fmt.Errorf("%.200q is no folder that k3s' local storage has made for the claim %s", folder, claim)
	}
	return nil
}

// parseClaims reads the claims of a backup strictly.
func (m Manifest) parseClaims(content []byte) ([]Claim, error) {
	var d claimsDocument
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		return nil, invalid("%s cannot be read: %w", ClaimsRecord, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, invalid("something follows the document in %s", ClaimsRecord)
	}
	if len(d.Claims) == 0 || len(d.Claims) > MaxClaims {
		return nil, invalid("%s has %d claims, expected 1 to %d", ClaimsRecord, len(d.Claims), MaxClaims)
	}
	named := make(map[string]bool)
	for i, c := range d.Claims {
		if err := c.check(); err != nil {
			return nil, err
		}
		for _, other := range d.Claims[:i] {
			if c.Node == other.Node && (isWithin(c.Path, other.Path) || isWithin(other.Path, c.Path)) {
				return nil, invalid("the claims %s and %s are in one folder", c, other)
			}
		}
		name := ClaimFiles(c.Namespace, c.Name)
		if _, ok := m.Entry(name); !ok || named[name] {
			return nil, invalid("the files of the claim %s are missing, or named twice", c)
		}
		named[name] = true
	}
	for _, e := range m.Entries {
		if strings.HasPrefix(e.Name, claimsFolder) && e.Name != ClaimsRecord && !named[e.Name] {
			return nil, invalid("%s does not say whose %s is", ClaimsRecord, e.Name)
		}
	}
	return d.Claims, nil
}

func isWithin(folder, other string) bool {
	return folder == other || strings.HasPrefix(folder, other+"/")
}

func (c Claim) check() error {
	for _, name := range []string{c.Workload, c.Namespace, c.Name, c.Node} {
		if len(name) > maxName || !nodeName.MatchString(name) {
			return invalid("%s has the name %.100q", ClaimsRecord, name)
		}
	}
	if err := CheckClaimFolder(c.Name, c.Path); err != nil {
		return invalid("%w", err)
	}
	if c.Entries < 1 || c.Bytes < 0 || c.Bytes > MaxClaimFiles {
		return invalid("the claim %s has %d files with %d bytes", c, c.Entries, c.Bytes)
	}
	return nil
}

// checkFiles reads the tar of a claim's files to its end.
func (c Claim) checkFiles(ctx context.Context, in io.Reader) error {
	report, err := foldertar.Check(ctx, in)
	switch {
	case errors.Is(err, foldertar.ErrInvalid):
		return invalid("the files of the claim %s: %w", c, err)
	case err != nil:
		return fmt.Errorf("the files of the claim %s: %w", c, err)
	case report.Entries != c.Entries || report.Bytes != c.Bytes:
		return invalid("the claim %s has %d files with %d bytes, expected %d with %d", c, report.Entries, report.Bytes,
			c.Entries, c.Bytes)
	}
	return nil
}

// Claims are those whose files the backup has.
func (r *Reader) Claims() []Claim { return r.claims }

// claimOf finds the claim whose files an entry has.
func claimOf(claims []Claim, entry string) (Claim, bool) {
	for _, c := range claims {
		if ClaimFiles(c.Namespace, c.Name) == entry {
			return c, true
		}
	}
	return Claim{}, false
}

// checkGathered proves the claims among the files that a backup is made of.
func (m Manifest) checkGathered(ctx context.Context, place func(entry string) string) ([]Claim, error) {
	if m.Format != FormatWithClaims {
		return nil, nil
	}
	content, err := os.ReadFile(place(ClaimsRecord))
	if err != nil {
		return nil, err
	}
	claims, err := m.parseClaims(content)
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		f, err := os.Open(place(ClaimFiles(c.Namespace, c.Name)))
		if err != nil {
			return nil, err
		}
		err = c.checkFiles(ctx, f)
		_ = f.Close() // it was only read
		if err != nil {
			return nil, err
		}
	}
	return claims, nil
}
