package debian

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"

	"github.com/liteboxd/boxlift/internal/lazyregexp"
)

// Bounds on what is read. The largest real indexes have some 70,000 packages in 20 MB, unpacked 80 MB.
const (
	// MaxIndex and MaxState bound an index of packages as it is fetched and the state of a system, in bytes.
	MaxIndex    = 64 << 20
	MaxState    = 64 << 20
	maxUnpacked = 512 << 20
	maxPackages = 1 << 18
	maxPackage  = 8 << 30 // one .deb, in bytes
)

// Package is one package in one version, in an archive or in a system.
type Package struct {
	Name         string
	Version      string
	Architecture string // of the archive, or "all"
	// Priority is required, important, standard, optional or extra.
	Priority string
	// Held says that a system is not to get another version of it.
	Held bool
	// assumed says that hosts have it, by its priority, in this version or any older one: nobody has looked.
	assumed bool

	// Archive is which of the archives of an [Index] has it, from 0 in the order in which they were added.
	Archive int
	// Path is below the archive's address; Size is in bytes. A system has neither.
	Path   string
	Size   int64
	SHA256 string

	essential bool
	depends   []group // Pre-Depends, then Depends
	conflicts []relation
	breaks    []relation
	provides  []relation
}

// String is its name and version.
func (p *Package) String() string { return p.Name + " " + p.Version }

// fields are those that are read of a paragraph.
var fields = []string{"package", "version", "architecture", "priority", "essential", "status", "filename", "size",
	"sha256", "pre-depends", "depends", "conflicts", "breaks", "provides"}

func isWanted(field string) bool { return slices.Contains(fields, field) }

// Index is what archives have for hosts of one architecture.
type Index struct {
	architecture string
	// newest is the highest version of each package, of the first archive that has it.
	newest map[string]*Package
	// providers are the packages that provide a name, in the order in which they were read.
	providers map[string][]string
}

// NewIndex is an empty one for hosts of an architecture, such as amd64.
func NewIndex(architecture string) *Index {
	return &Index{architecture: architecture, newest: make(map[string]*Package), providers: make(map[string][]string)}
}

// Add reads an index of packages of an archive, whose bytes were compared with the sha256 in the Release. Archives are
// counted by who calls, see [Package].
func (x *Index) Add(archive int, f IndexFile, data []byte) error {
	text, err := unpack(f, data)
	if err == nil {
		err = x.read(archive, text)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrArchive, f.Path, err)
	}
	return nil
}

func unpack(f IndexFile, data []byte) (io.Reader, error) {
	var text io.Reader = bytes.NewReader(data)
	var err error
	switch f.Compression {
	case "xz":
		text, err = xz.NewReader(text)
	case "gz":
		text, err = gzip.NewReader(text)
	}
	if err != nil {
		return nil, err
	}
	return &bounded{text, maxUnpacked}, nil
}

// bounded fails where something is longer than it may be, as an end would hide that.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("unpacked it has more than %d bytes", maxUnpacked)
	}
	return n, err
}

func (x *Index) read(archive int, text io.Reader) error {
	n := 0
	for s, err := range stanzas(text, isWanted) {
		if err != nil {
			return err
		}
		if n++; n > maxPackages {
			return fmt.Errorf("it lists more than %d packages", maxPackages)
		}
		p, err := parsePackage(s, CheckName)
		if err == nil {
			err = p.locate(s, archive)
		}
		if err != nil {
			return fmt.Errorf("line %d: package %q: %w", s.line, s.fields["package"], err)
		}
		if p.Architecture != x.architecture && p.Architecture != "all" {
			continue // an index has none, but for mistakes
		}
		x.add(p)
	}
	return nil
}

func (x *Index) add(p *Package) {
	if old := x.newest[p.Name]; old != nil && Compare(p.Version, old.Version) <= 0 {
		return
	}
	x.newest[p.Name] = p
	for _, r := range p.provides {
		if !slices.Contains(x.providers[r.name], p.Name) {
			x.providers[r.name] = append(x.providers[r.name], p.Name)
		}
	}
}

// parsePackage reads what indexes and states have in common, but for which names they may have.
func parsePackage(s stanza, checkName func(string) error) (*Package, error) {
	f := s.fields
	p := &Package{Name: f["package"], Version: f["version"], Architecture: f["architecture"],
		Priority: f["priority"], essential: f["essential"] == "yes"}
	if err := errors.Join(checkName(p.Name), CheckVersion(p.Version), CheckArchitecture(p.Architecture)); err != nil {
		return nil, err
	}
	for _, key := range []string{"pre-depends", "depends"} {
		groups, err := parseGroups(f[key])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		p.depends = append(p.depends, groups...)
	}
	for _, list := range []struct {
		key string
		to  *[]relation
	}{{"conflicts", &p.conflicts}, {"breaks", &p.breaks}, {"provides", &p.provides}} {
		var err error
		if *list.to, err = parseRelations(f[list.key]); err != nil {
			return nil, fmt.Errorf("%s: %w", list.key, err)
		}
	}
	return p, nil
}

var architecturePattern = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,31}$`)

// CheckArchitecture refuses what is not the name of an architecture, such as amd64, or "all".
func CheckArchitecture(s string) error {
	if !architecturePattern.MatchString(s) {
		return fmt.Errorf("%q is not an architecture", s)
	}
	return nil
}

// pathPattern are the characters that paths of packages are made of.
var pathPattern = lazyregexp.New(`^[A-Za-z0-9._][A-Za-z0-9._/+~:%-]{0,999}$`)

// locate reads where an archive has the package.
func (p *Package) locate(s stanza, archive int) error {
	f := s.fields
	p.Archive, p.Path, p.SHA256 = archive, f["filename"], f["sha256"]
	if !pathPattern.MatchString(p.Path) || path.Clean(p.Path) != p.Path || strings.HasPrefix(p.Path, "..") {
		return fmt.Errorf("%q is not a path in the archive", p.Path)
	}
	if !sha256Pattern.MatchString(p.SHA256) {
		return fmt.Errorf("its SHA256 is %q: expected 64 hexadecimal digits", p.SHA256)
	}
	var err error
	if p.Size, err = strconv.ParseInt(f["size"], 10, 64); err != nil || p.Size < 1 || p.Size > maxPackage {
		return fmt.Errorf("its size is %q: expected from 1 to %d bytes", f["size"], int64(maxPackage))
	}
	return nil
}

// ReadState reads the state of a system as dpkg keeps it in /var/lib/dpkg/status. Packages that are not installed
// count as not there, those of other architectures too; one that is in the middle of being installed is an error.
func ReadState(architecture string, data []byte) ([]*Package, error) {
	all, err := readState(architecture, data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	return all, nil
}

func readState(architecture string, data []byte) ([]*Package, error) {
	if len(data) > MaxState {
		return nil, fmt.Errorf("it has more than %d bytes", MaxState)
	}
	var all []*Package
	seen := make(map[string]bool)
	for s, err := range stanzas(bytes.NewReader(data), isWanted) {
		if err != nil {
			return nil, err
		}
		fail := func(err error) error {
			return fmt.Errorf("line %d: package %q: %w", s.line, s.fields["package"], err)
		}
		// Want, error flag, status: "install ok installed" (dpkg-query(1)).
		status := strings.Fields(s.fields["status"])
		if len(status) != 3 {
			return nil, fail(fmt.Errorf("its Status is %q: expected three words", s.fields["status"]))
		}
		switch status[2] {
		case "installed":
		case "not-installed", "config-files":
			continue
		default:
			return nil, fail(fmt.Errorf("it is %s: expected a system on which every package is installed",
				status[2]))
		}
		p, err := parsePackage(s, CheckInstalledName)
		if err != nil {
			return nil, fail(err)
		}
		if p.Architecture != architecture && p.Architecture != "all" {
			continue
		}
		if seen[p.Name] {
			return nil, fail(errors.New("it is listed twice"))
		}
		seen[p.Name], p.Held = true, status[0] == "hold"
		if all = append(all, p); len(all) > maxPackages {
			return nil, fmt.Errorf("it lists more than %d packages", maxPackages)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no package for %s is installed in it", architecture)
	}
	return all, nil
}
