package sbom

import (
	"archive/tar"
	"bytes"
	"database/sql"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	_ "modernc.org/sqlite" // the driver

	"github.com/liteboxd/boxlift/bundle/packages"
	"github.com/liteboxd/boxlift/test/debian"
	"github.com/liteboxd/boxlift/test/need"
)

// rpm is what RPM keeps of a package, as far as anybody here reads it.
type rpm struct {
	name, version, release, arch, license, source string
	epoch                                         uint32 // 0 for none
}

// header makes the header that the database has of it.
func (p rpm) header() []byte {
	var entries, data []byte
	count := 0
	add := func(tag, kind uint32, content []byte) {
		for _, n := range []uint32{tag, kind, uint32(len(data)), 1} {
			entries = binary.BigEndian.AppendUint32(entries, n)
		}
		data = append(data, content...)
		count++
	}
	if p.epoch > 0 {
		add(1003, 4, binary.BigEndian.AppendUint32(nil, p.epoch))
	}
	for _, text := range []struct {
		tag   uint32
		value string
	}{{1000, p.name}, {1001, p.version}, {1002, p.release}, {1014, p.license}, {1022, p.arch}, {1044, p.source}} {
		if text.value != "" {
			add(text.tag, 6, append([]byte(text.value), 0))
		}
	}
	header := binary.BigEndian.AppendUint32(nil, uint32(count))
	header = binary.BigEndian.AppendUint32(header, uint32(len(data)))
	return append(append(header, entries...), data...)
}

// rpmDatabase has SQLite itself make a database as RPM has it.
func rpmDatabase(t testing.TB, pageSize int, installed []rpm) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rpmdb.sqlite")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // settings and transactions are the connection's
	do := func(statement string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
			t.Fatal(err)
		}
	}
	do(fmt.Sprintf("PRAGMA page_size = %d", pageSize))
	do("CREATE TABLE IF NOT EXISTS Packages (hnum INTEGER PRIMARY KEY AUTOINCREMENT, blob BLOB NOT NULL)")
	do("CREATE TABLE IF NOT EXISTS 'Name' (key 'TEXT' NOT NULL, hnum INTEGER NOT NULL, idx INTEGER NOT NULL, FOREIGN KEY (hnum) REFERENCES 'Packages'(hnum))")
	do("CREATE INDEX IF NOT EXISTS 'Name_key_idx' ON 'Name'(key ASC)")
	do("BEGIN")
	for _, p := range installed {
		do("INSERT INTO Packages (blob) VALUES (?)", p.header())
	}
	do("COMMIT")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// scanned lists the packages that are found in a layer with a database at a path.
func scanned(t *testing.T, path string, database []byte) (names, notes []string) {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(database))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(database); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	found, err := packages.Scan(t.Context(), &layer)
	if err != nil {
		t.Fatal(err)
	}
	image := packages.Merge([]*packages.Layer{found})
	for _, p := range image.Packages {
		names = append(names, p.Name+" "+p.Version)
	}
	return names, image.Notes
}

// Where two of the forms lie.
const (
	sqlitePath   = "var/lib/rpm/rpmdb.sqlite"
	berkeleyPath = "var/lib/rpm/Packages"
)

// TestRPMDatabases reads what SQLite itself has written, with all lengths of pages, and rows of
// all lengths about which they go on on other pages.
func TestRPMDatabases(t *testing.T) {
	var installed []rpm
	var want []string
	for i := range 700 {
		p := rpm{name: fmt.Sprintf("package-%04d", i), version: "1", release: "1", arch: "noarch", license: strings.Repeat("x", i*37%9000)}
		installed = append(installed, p)
		want = append(want, p.name+" 1-1")
	}
	for _, pageSize := range []int{512, 1024, 4096, 65536} {
		database := rpmDatabase(t, pageSize, installed)
		got, notes := scanned(t, sqlitePath, database)
		if diff := cmp.Diff(want, got); diff != "" || len(notes) > 0 {
			t.Errorf("pages of %d bytes: %v (-want +got):\n%s", pageSize, notes, diff)
		}

		// The first page that leads to pages goes on where it is.
		for at := pageSize; at < len(database); at += pageSize {
			if database[at] == 0x05 {
				binary.BigEndian.PutUint32(database[at+8:], uint32(at/pageSize+1))
				break
			}
		}
		if _, notes := scanned(t, sqlitePath, database); len(notes) != 1 || !strings.Contains(notes[0], "cannot be read to its end") {
			t.Errorf("pages of %d bytes, in a loop: %v", pageSize, notes)
		}
	}
}

// TestSmallRPMDatabase writes the database that the tests of package packages read.
func TestSmallRPMDatabase(t *testing.T) {
	database := rpmDatabase(t, 512, []rpm{
		{name: "bash", version: "5.2.26", release: "4.el9", arch: "x86_64", license: "GPL-3.0-or-later", source: "bash-5.2.26-4.el9.src.rpm"},
		{name: "dbus-libs", epoch: 1, version: "1.12.20", release: "8.el9", arch: "x86_64", license: "(GPLv2+ or AFL) and GPLv2+", source: "dbus-1.12.20-7.el9.src.rpm"},
		{name: "gpg-pubkey", version: "fd431d51", release: "4ae0493b"},
		{name: "long", version: "1", release: "1", license: strings.Repeat("long ", 300)},
	})
	if *update {
		if err := os.WriteFile(filepath.Join("..", "packages", "testdata", "rpmdb.sqlite"), database, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, notes := scanned(t, sqlitePath, database)
	if diff := cmp.Diff([]string{"bash 5.2.26-4.el9", "dbus-libs 1:1.12.20-8.el9", "long 1-1"}, got); diff != "" || len(notes) > 0 {
		t.Errorf("%v %s", notes, diff)
	}
}

// berkeleyPairs are the keys and values of RPM's database as Berkeley DB reads them.
func berkeleyPairs(order binary.AppendByteOrder, installed []rpm) string {
	var escaped [256]string
	for c := range escaped {
		escaped[c] = fmt.Sprintf("\\%02x", c)
	}
	var pairs strings.Builder
	pair := func(number int, value []byte) {
		for _, b := range [][]byte{order.AppendUint32(nil, uint32(number)), value} {
			for _, c := range b {
				pairs.WriteString(escaped[c])
			}
			pairs.WriteByte('\n')
		}
	}
	pair(0, order.AppendUint32(nil, uint32(len(installed))))
	for i, p := range installed {
		pair(i+1, p.header())
	}
	return pairs.String()
}

// berkeleyDatabase has Berkeley DB itself make a database as RPM has it.
func berkeleyDatabase(t *testing.T, pageSize int, order binary.AppendByteOrder, pairs string) []byte {
	t.Helper()
	load := debian.Program{Name: "db5.3_load", Package: "db5.3-util"}
	need.Programs(t, load)
	path := filepath.Join(t.TempDir(), "Packages")
	lorder := map[binary.AppendByteOrder]int{binary.LittleEndian: 1234, binary.BigEndian: 4321}[order]
	c := exec.CommandContext(t.Context(), load.Find(), "-T", "-t", "hash", "-c",
		fmt.Sprintf("db_pagesize=%d", pageSize), "-c", fmt.Sprintf("db_lorder=%d", lorder), path)
	c.Stdin = strings.NewReader(pairs)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	database, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return database
}

// TestBerkeleyDatabases reads what Berkeley DB itself has written, on machines of both byte
// orders, with pages of all lengths and headers of all lengths about which they are kept on
// pages of their own.
func TestBerkeleyDatabases(t *testing.T) {
	var installed []rpm
	var want []string
	for i := range 700 {
		p := rpm{name: fmt.Sprintf("package-%04d", i), version: "1", release: "1", arch: "noarch", license: strings.Repeat("x", i*37%9000)}
		installed = append(installed, p)
		want = append(want, p.name+" 1-1")
	}
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		pairs := berkeleyPairs(order, installed)
		for _, pageSize := range []int{512, 4096, 65536} {
			database := berkeleyDatabase(t, pageSize, order, pairs)
			got, notes := scanned(t, berkeleyPath, database)
			if diff := cmp.Diff(want, got); diff != "" || len(notes) > 0 {
				t.Errorf("%s, pages of %d bytes: %v (-want +got):\n%s", order, pageSize, notes, diff)
			}

			// The first page that leads to pages goes on where it is.
			for at := pageSize; at < len(database); at += pageSize {
				if database[at+25] == 7 && !bytes.Equal(database[at+16:][:4], make([]byte, 4)) {
					copy(database[at+16:], order.AppendUint32(nil, uint32(at/pageSize)))
					break
				}
			}
			if _, notes := scanned(t, berkeleyPath, database); pageSize < 65536 && (len(notes) != 1 || !strings.Contains(notes[0], "cannot be read to its end")) {
				t.Errorf("%s, pages of %d bytes, in a loop: %v", order, pageSize, notes)
			}
		}
	}
}

// TestInstalledRPMs reads what RPM itself has written as it installed packages and removed one.
func TestInstalledRPMs(t *testing.T) {
	tool := debian.Program{Name: "rpmbuild", Package: "rpm"}
	need.Programs(t, tool)
	folder := t.TempDir()
	do := func(name string, args ...string) {
		t.Helper()
		c := exec.CommandContext(t.Context(), name, args...)
		c.Env = append(os.Environ(), "HOME="+folder)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c, err, out)
		}
	}
	const packaged = 40
	var spec strings.Builder
	spec.WriteString("Name: first\nEpoch: 2\nVersion: 1.0\nRelease: 3\nSummary: one\nLicense: MIT\nBuildArch: noarch\n%description\nOne.\n%files\n")
	want := []string{"first 2:1.0-3"}
	for i := range packaged {
		fmt.Fprintf(&spec, "%%package -n other-%02d\nSummary: other\n%%description -n other-%02d\n%s\n%%files -n other-%02d\n", i, i, strings.Repeat("Long. ", i*300), i)
		if i != 7 {
			want = append(want, fmt.Sprintf("other-%02d 2:1.0-3", i))
		}
	}
	file := filepath.Join(folder, "first.spec")
	if err := os.WriteFile(file, []byte(spec.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	do(tool.Find(), "--quiet", "-bb", "--define", "_topdir "+folder, file)
	built, err := filepath.Glob(filepath.Join(folder, "RPMS", "noarch", "*.rpm"))
	if err != nil || len(built) != packaged+1 {
		t.Fatalf("%v %v", built, err)
	}
	root := t.TempDir()
	options := []string{"--define", "_db_backend sqlite", "--dbpath", root}
	rpm := filepath.Join(filepath.Dir(tool.Find()), "rpm")
	do(rpm, slices.Concat(options, []string{"--initdb"})...)
	do(rpm, slices.Concat(options, []string{"--install", "--force-debian", "--justdb", "--nodeps", "--nosignature"}, built)...)
	do(rpm, slices.Concat(options, []string{"--erase", "--justdb", "--nodeps", "other-07"})...)
	database, err := os.ReadFile(filepath.Join(root, "rpmdb.sqlite"))
	if err != nil {
		t.Fatal(err)
	}
	got, notes := scanned(t, sqlitePath, database)
	if diff := cmp.Diff(want, got); diff != "" || len(notes) > 0 {
		t.Errorf("%v (-want +got):\n%s", notes, diff)
	}
}
