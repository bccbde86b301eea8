package packages

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

const (
	// maxDatabase bounds a database of packages, in bytes; Debian's with all of a desktop
	// has some 5 MB.
	maxDatabase = 64 << 20
	// maxDocument bounds files about one package, in bytes.
	maxDocument = 1 << 20
)

// reader reads a file of a kind. Errors are those of the layer; what is wrong with the
// file itself becomes a note.
type reader func(name string, r *bufio.Reader, f *File) error

// readerFor returns what reads a file of that name, or nil.
func readerFor(name string) reader {
	folder, base := path.Split(name)
	switch folder {
	case "etc/", "usr/lib/":
		if base == "os-release" {
			return readOSRelease
		}
	case "var/lib/dpkg/":
		if base == "status" {
			return readDpkg
		}
	case "var/lib/dpkg/status.d/": // distroless images have a file for each package
		if !strings.HasSuffix(base, ".md5sums") {
			return readDpkg
		}
	case "lib/apk/db/", "usr/lib/apk/db/":
		if base == "installed" {
			return readApk
		}
	case "var/lib/rpm/", "usr/lib/sysimage/rpm/", "usr/share/rpm/":
		switch base {
		case "rpmdb.sqlite":
			return readRPM(eachSQLite)
		case "Packages.db":
			return readRPM(eachNDB)
		case "Packages":
			return readRPM(eachBerkeley)
		case "rpmdb.sqlite-wal":
			return noteJournal
		}
	}
	switch {
	case base == "copyright" && strings.HasPrefix(folder, "usr/share/doc/"):
		return readCopyright
	case base == "METADATA" && strings.HasSuffix(folder, ".dist-info/"),
		base == "PKG-INFO" && strings.HasSuffix(folder, ".egg-info/"):
		return readPython
	case base == "package.json" && isNodeModule(folder):
		return readNode
	}
	return nil
}

// noteJournal says that there is a journal, with changes to an RPM database that are not in it
// yet: nothing here reads these.
func noteJournal(name string, _ *bufio.Reader, f *File) error {
	f.Notes = []string{fmt.Sprintf("%s, a part of an RPM database, is not read", name)}
	return nil
}

// lines calls visit with each line of up to limit bytes of r. Longer lines than fit into
// the reader's buffer are cut off.
func lines(r *bufio.Reader, limit int, visit func(line string) bool) (complete bool, err error) {
	for read := 0; read <= limit; {
		line, long, err := r.ReadLine()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		text := string(line)
		read += len(line) + 1
		for long && read <= limit {
			if line, long, err = r.ReadLine(); err != nil {
				return false, ignoreShort(err)
			}
			read += len(line)
		}
		if !visit(text) {
			return true, nil
		}
	}
	return false, nil
}

func tooLarge(name string, limit int) string {
	return fmt.Sprintf("%s was read only up to %d bytes", shown(name), limit)
}

// readOSRelease reads os-release(5).
func readOSRelease(_ string, r *bufio.Reader, f *File) error {
	var d Distribution
	_, err := lines(r, maxDocument, func(line string) bool {
		key, value, _ := strings.Cut(line, "=")
		value = strings.Trim(strings.TrimSpace(value), `"'`)
		if !plausible(value) {
			return true
		}
		switch key {
		case "ID":
			d.ID = value
		case "VERSION_ID":
			d.Version = value
		}
		return true
	})
	if d.ID != "" {
		f.Distribution = &d
	}
	return err
}

// readDpkg reads dpkg's database: paragraphs of fields (deb-control(5)).
func readDpkg(name string, r *bufio.Reader, f *File) error {
	var p Package
	installed := true
	flush := func() {
		// A package that was removed may leave its configuration behind.
		if p.Name != "" && installed {
			f.Packages = append(f.Packages, p)
		}
		p, installed = Package{}, true
	}
	complete, err := lines(r, maxDatabase, func(line string) bool {
		if line == "" {
			flush()
			return len(f.Packages) <= maxPackages
		}
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		p.Type = Debian
		switch key { // continuation lines begin with a space and are none of these
		case "Package":
			p.Name = value
		case "Version":
			p.Version = value
		case "Architecture":
			p.Architecture = value
		case "Status":
			installed = strings.HasSuffix(value, " installed")
		case "Source":
			source, version, _ := strings.Cut(value, " ")
			p.Source, p.SourceVersion = source, strings.Trim(version, "()")
		}
		return true
	})
	flush()
	return f.end(name, complete, err, maxDatabase)
}

// end finishes a database, of which a note says when it was not read to its end.
func (f *File) end(name string, complete bool, err error, limit int) error {
	if err == nil && !complete {
		f.Notes = append(f.Notes, tooLarge(name, limit))
	}
	return err
}

// readApk reads apk's database: paragraphs of one-letter fields
// (https://wiki.alpinelinux.org/wiki/Apk_spec).
func readApk(name string, r *bufio.Reader, f *File) error {
	var p Package
	flush := func() {
		if p.Name != "" {
			f.Packages = append(f.Packages, p)
		}
		p = Package{}
	}
	complete, err := lines(r, maxDatabase, func(line string) bool {
		if line == "" {
			flush()
			return len(f.Packages) <= maxPackages
		}
		key, value, _ := strings.Cut(line, ":")
		p.Type = Alpine
		switch key {
		case "P":
			p.Name = value
		case "V":
			p.Version = value
		case "A":
			p.Architecture = value
		case "L":
			p.License = value
		case "o":
			p.Source = value
		}
		return true
	})
	flush()
	return f.end(name, complete, err, maxDatabase)
}

// readCopyright reads Debian's machine-readable copyright files
// (https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/); others say nothing
// that could be taken for a licence's name.
func readCopyright(name string, r *bufio.Reader, f *File) error {
	of := path.Base(path.Dir(name))
	var licenses []string
	first := true
	_, err := lines(r, maxDocument, func(line string) bool {
		key, value, found := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if first {
			first = false
			return key == "Format" && strings.Contains(value, "copyright-format")
		}
		if found && key == "License" && value != "" && plausible(value) && !slices.Contains(licenses, value) &&
			len(licenses) < 32 {
			licenses = append(licenses, value)
		}
		return true
	})
	slices.Sort(licenses)
	if text := strings.Join(licenses, " AND "); text != "" && plausible(text) && plausible(of) {
		f.LicenseOf, f.License = of, text
	}
	return err
}

// readPython reads the metadata of an installed distribution (Python packaging
// specifications, "Core metadata"), up to the text that describes it.
func readPython(name string, r *bufio.Reader, f *File) error {
	p := Package{Type: Python}
	complete, err := lines(r, maxDocument, func(line string) bool {
		if line == "" {
			return false
		}
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			p.Name = value
		case "Version":
			p.Version = value
		case "License-Expression":
			p.License = value
		case "License":
			// Some have the licence's whole text there.
			if p.License == "" && plausible(value) && value != "UNKNOWN" && len(value) < 100 {
				p.License = value
			}
		}
		return true
	})
	if p.Name != "" {
		f.Packages = []Package{p}
	}
	return f.end(name, complete, err, maxDocument)
}

// isNodeModule reports whether a folder is that of an installed module:
// node_modules/NAME/ or node_modules/@SCOPE/NAME/. Modules have other files called
// package.json deeper inside.
func isNodeModule(folder string) bool {
	parts := strings.Split(strings.TrimSuffix(folder, "/"), "/")
	n := len(parts)
	return n >= 2 && parts[n-2] == "node_modules" ||
		n >= 3 && parts[n-3] == "node_modules" && strings.HasPrefix(parts[n-2], "@")
}

// readNode reads the package.json of an installed module.
func readNode(name string, r *bufio.Reader, f *File) error {
	content, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return err
	}
	if len(content) > maxDocument {
		f.Notes = []string{fmt.Sprintf("%s has more than %d bytes and is not read", shown(name), maxDocument)}
		return nil
	}
	var module struct {
		Name    string          `json:"name"`
		Version string          `json:"version"`
		License json.RawMessage `json:"license"`
	}
	if json.Unmarshal(content, &module) != nil || module.Version == "" {
		return nil // there are such files for tests, and to set options of folders
	}
	p := Package{Type: Node, Name: module.Name, Version: module.Version}
	var old struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(module.License, &p.License) != nil && json.Unmarshal(module.License, &old) == nil {
		p.License = old.Type
	}
	if !plausible(p.License) {
		p.License = ""
	}
	f.Packages = []Package{p}
	return nil
}
