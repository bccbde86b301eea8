package packages

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"modernc.org/sqlite" // the driver "sqlite": SQLite itself, without C
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	// maxRPM bounds RPM's database, in bytes. It is on the disk while it is read; that of a
	// desktop has some 200 MB, most of which are lists of files.
	maxRPM = 1 << 30
	// maxRPMHeader bounds what is in it of one package, in bytes: RPM's own limit is 256 MiB,
	// and the largest packages come to 8 MB.
	maxRPMHeader = 16 << 20
	// maxRPMTime is how long reading one may take.
	maxRPMTime = 2 * time.Minute
	// maxRPMEntries is RPM's own limit.
	maxRPMEntries = 1 << 16
)

// spoolError is an error of this host's disk, which must not pass for one of the layer.
type spoolError struct{ err error }

func (e *spoolError) Error() string { return "keep an RPM database on the disk: " + e.err.Error() }
func (e *spoolError) Unwrap() error { return e.err }

// eachRPM calls visit with the header of each package in the database in a file. It comes from
// a stranger's layer.
type eachRPM func(file *os.File, visit func(header []byte) error) error

// readRPM returns what reads RPM's database in one of its forms. Their pages are in no order,
// so it is put into a temporary file first.
func readRPM(each eachRPM) reader {
	return func(name string, r *bufio.Reader, f *File) error { return spoolRPM(each, name, r, f) }
}

func spoolRPM(each eachRPM, name string, r *bufio.Reader, f *File) error {
	file, err := os.CreateTemp("", "boxlift-rpmdb-")
	if err != nil {
		return &spoolError{err}
	}
	defer os.Remove(file.Name()) //nolint:errcheck // a temporary file
	defer file.Close()           //nolint:errcheck // nothing in it is wanted
	size, err := copyTo(file, r, maxRPM)
	if err != nil {
		return err
	}
	if size > maxRPM {
		f.Notes = []string{fmt.Sprintf("the RPM database %s has more than %d bytes and is not read", name, maxRPM)}
		return nil
	}
	end := time.Now().Add(maxRPMTime)
	err = each(file, func(header []byte) error {
		if time.Now().After(end) {
			return fmt.Errorf("reading it takes longer than %s", maxRPMTime)
		}
		if len(f.Packages) > maxPackages {
			return fmt.Errorf("it has more than %d packages", maxPackages)
		}
		p, err := parseRPM(header)
		// Keys of those who sign packages are kept as packages, which they are not.
		if err == nil && p.Name != "gpg-pubkey" {
			f.Packages = append(f.Packages, p)
		}
		return err
	})
	if failed := (*spoolError)(nil); errors.As(err, &failed) {
		return failed
	}
	if err != nil {
		f.Notes = []string{fmt.Sprintf("the RPM database %s cannot be read to its end: %v", name, err)}
	}
	return nil
}

// copyTo copies at most one byte more than limit, and keeps errors of the disk apart.
func copyTo(file *os.File, r io.Reader, limit int64) (int64, error) {
	w := &spool{file: file}
	n, err := io.Copy(w, io.LimitReader(r, limit+1))
	if w.err != nil {
		return n, &spoolError{w.err}
	}
	return n, err
}

type spool struct {
	file *os.File
	err  error
}

func (s *spool) Write(p []byte) (int, error) {
	var n int
	n, s.err = s.file.Write(p)
	return n, s.err
}

// readSpooled fills b with what a spooled database of some size has at an offset.
func readSpooled(file *os.File, size int64, b []byte, offset int64) error {
	if offset > size-int64(len(b)) {
		return fmt.Errorf("it ends at byte %d, before byte %d", size, offset+int64(len(b)))
	}
	if _, err := file.ReadAt(b, offset); err != nil {
		return &spoolError{err}
	}
	return nil
}

func tooLargeRPM(size int64) error {
	return fmt.Errorf("it has a package of %d bytes, %d are the most that is read", size, maxRPMHeader)
}

// eachSQLite reads RPM's form since RHEL 9. SQLite trusts nothing of it ("Defense Against The
// Dark Arts", https://www.sqlite.org/security.html), and is asked for no more than a table
// that is one.
func eachSQLite(file *os.File, visit func(header []byte) error) error {
	err := querySQLite(file.Name(), visit)
	if failed := (*sqlite.Error)(nil); errors.As(err, &failed) && failed.Code()&0xff == sqlite3.SQLITE_IOERR &&
		failed.Code() != sqlite3.SQLITE_IOERR_SHORT_READ {
		return &spoolError{err}
	}
	return err
}

func querySQLite(path string, visit func(header []byte) error) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), maxRPMTime)
	defer cancel()
	address := url.URL{Scheme: "file", Path: filepath.ToSlash(path),
		RawQuery: "mode=ro&immutable=1&_pragma=trusted_schema(0)&_pragma=cell_size_check(1)"}
	db, err := sql.Open("sqlite", address.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var tables int
	if err := db.QueryRowContext(ctx,
		`SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'Packages' AND rootpage > 0`,
	).Scan(&tables); err != nil {
		return err
	}
	if tables != 1 {
		return errors.New("it has no table Packages")
	}
	rows, err := db.QueryContext(ctx, `SELECT length(blob), CASE WHEN length(blob) <= ? THEN blob END FROM Packages`,
		maxRPMHeader)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var size int64
		var header []byte
		if err := rows.Scan(&size, &header); err != nil {
			return err
		}
		if size > maxRPMHeader {
			return tooLargeRPM(size)
		}
		if err := visit(header); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Tags of RPM headers (https://rpm-software-management.github.io/rpm/manual/tags.html).
const (
	rpmName      = 1000
	rpmVersion   = 1001
	rpmRelease   = 1002
	rpmEpoch     = 1003
	rpmLicense   = 1014
	rpmArch      = 1022
	rpmSourceRPM = 1044

	rpmInt32  = 4
	rpmString = 6
)

var errRPMHeader = errors.New("a package's header is damaged")

// parseRPM reads a header as databases have it
// (https://rpm-software-management.github.io/rpm/manual/hregions.html): how many entries there
// are and how long the data is, the entries with 16 bytes each, the data.
func parseRPM(header []byte) (Package, error) {
	if len(header) < 8 {
		return Package{}, errRPMHeader
	}
	entries, length := binary.BigEndian.Uint32(header), binary.BigEndian.Uint32(header[4:])
	if entries > maxRPMEntries || uint64(len(header)) < 8+16*uint64(entries)+uint64(length) {
		return Package{}, errRPMHeader
	}
	data := header[8+16*entries:][:length]
	texts := make(map[uint32]string)
	epoch := ""
	for i := range entries {
		e := header[8+16*i:][:16]
		tag, kind, offset := binary.BigEndian.Uint32(e), binary.BigEndian.Uint32(e[4:]), binary.BigEndian.Uint32(e[8:])
		switch tag {
		case rpmName, rpmVersion, rpmRelease, rpmLicense, rpmArch, rpmSourceRPM:
			if kind != rpmString || offset > length {
				return Package{}, errRPMHeader
			}
			text, _, ended := bytes.Cut(data[offset:], []byte{0})
			if !ended {
				return Package{}, errRPMHeader
			}
			texts[tag] = string(text)
		case rpmEpoch:
			if kind != rpmInt32 || uint64(offset)+4 > uint64(length) {
				return Package{}, errRPMHeader
			}
			epoch = strconv.FormatUint(uint64(binary.BigEndian.Uint32(data[offset:])), 10) + ":"
		}
	}
	p := Package{
		Type: RPM, Name: texts[rpmName], Version: epoch + texts[rpmVersion] + "-" + texts[rpmRelease],
		Architecture: texts[rpmArch], License: texts[rpmLicense],
	}
	if !plausible(p.License) {
		p.License = ""
	}
	if name, version, ok := splitSourceRPM(texts[rpmSourceRPM]); ok {
		p.Source = name
		if version != texts[rpmVersion]+"-"+texts[rpmRelease] {
			p.SourceVersion = version
		}
	}
	return p, nil
}

// splitSourceRPM splits NAME-VERSION-RELEASE.src.rpm, where only the name may have dashes.
func splitSourceRPM(file string) (name, version string, ok bool) {
	all, ok := strings.CutSuffix(file, ".rpm")
	if !ok {
		return "", "", false
	}
	all = all[:max(0, strings.LastIndexByte(all, '.'))] // src, or nosrc
	release := strings.LastIndexByte(all, '-')
	if release < 0 {
		return "", "", false
	}
	at := strings.LastIndexByte(all[:release], '-')
	if at <= 0 {
		return "", "", false
	}
	return all[:at], all[at+1:], true
}
