//go:build linux

package database_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	_ "modernc.org/sqlite" // the driver

	"github.com/liteboxd/boxlift/node/database"
)

// With one of these in its environment the test binary is another program.
const (
	// writerEnv: it writes to the database that the value names, until its stdin ends.
	writerEnv = "BOXLIFT_TEST_SQLITE_WRITER"
	// hangEnv makes such a writer stop within a transaction.
	hangEnv = "BOXLIFT_TEST_SQLITE_HANG"
	// snapshotEnv: it makes copies of the database that the value names, again and again.
	snapshotEnv = "BOXLIFT_TEST_SQLITE_SNAPSHOT"
)

// snapshotPrograms are what the test binary is with these in its environment.
func snapshotPrograms() {
	run := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if name, ok := os.LookupEnv(writerEnv); ok {
		run(writeDatabase(name, os.Getenv(hangEnv) != ""))
	}
	if name, ok := os.LookupEnv(snapshotEnv); ok {
		for i := 0; ; i++ {
			if _, err := database.Copy(context.Background(), database.Options{Source: name, Target: name + ".copy"}); err != nil {
				run(err)
			}
			if i == 0 {
				fmt.Println("ready")
			}
		}
	}
}

func TestMain(m *testing.M) {
	snapshotPrograms()
	os.Exit(m.Run())
}

// openDatabase opens a database with one connection. The cache is so small that much is
// written before a transaction ends.
func openDatabase(name string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+name+"?_pragma=cache_size(10)&_pragma=wal_autocheckpoint(40)&_pragma=busy_timeout(0)")
	if err == nil {
		db.SetMaxOpenConns(1)
	}
	return db, err
}

// makeDatabase makes one in which totals says what is in entries.
func makeDatabase(t *testing.T, mode string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "liteboxd.db")
	db, err := openDatabase(name)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{
		"PRAGMA journal_mode=" + mode,
		"CREATE TABLE entries (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL, filler BLOB)",
		"CREATE INDEX by_amount ON entries (amount)",
		"CREATE TABLE totals (generation INTEGER, count INTEGER, sum INTEGER)",
		"INSERT INTO totals VALUES (0, 0, 0)",
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := transact(db, 40, true); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// transact adds entries, drops old ones, and brings totals up to date. A transaction that
// is to fail is rolled back after all that.
func transact(db *sql.DB, n int, commit bool) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it says so
	if err := change(tx, n); err != nil {
		return err
	}
	if !commit {
		return tx.Rollback()
	}
	return tx.Commit()
}

func change(tx *sql.Tx, n int) error {
	for range n {
		if _, err := tx.Exec("INSERT INTO entries (amount, filler) VALUES (?, randomblob(?))", rand.IntN(1000), rand.IntN(3000)); err != nil {
			return err
		}
	}
	for _, statement := range []string{
		"DELETE FROM entries WHERE id <= (SELECT max(id) FROM entries) - 300",
		"UPDATE totals SET generation = generation + 1, count = (SELECT count(*) FROM entries), sum = (SELECT coalesce(sum(amount), 0) FROM entries)",
	} {
		if _, err := tx.Exec(statement); err != nil {
			return err
		}
	}
	return nil
}

// written is what a writer says at its end.
type written struct{ Committed, Busy int }

func writeDatabase(name string, hang bool) error {
	db, err := openDatabase(name)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	if hang {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		if err := change(tx, 200); err != nil {
			return err
		}
		fmt.Println("ready")
		<-ended
		return tx.Rollback()
	}
	var result written
	for i := 0; ; i++ {
		select {
		case <-ended:
			return errors.Join(db.Close(), json.NewEncoder(os.Stdout).Encode(result))
		default:
		}
		commit := i%5 != 4
		err := transact(db, 1+rand.IntN(30), commit)
		switch {
		case err == nil && commit:
			result.Committed++
		case err != nil && strings.Contains(err.Error(), "SQLITE_BUSY"):
			result.Busy++
		case err != nil:
			return err
		}
		if i == 0 {
			fmt.Println("ready")
		}
	}
}

// program is the test binary as another program.
type program struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

func startProgram(t *testing.T, environment ...string) *program {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), environment...)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{Cmd: c, in: in, out: bufio.NewReader(out)}
	t.Cleanup(p.kill)
	if line, err := p.out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the program says %q: %v", line, err)
	}
	return p
}

// kill ends the program as a power cut would.
func (p *program) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
}

// state is what is in a database.
type state struct {
	Generation, Count, Sum int
	Entries                []string
}

// readDatabase proves a database and the invariant of its tables.
func readDatabase(t *testing.T, name string) state {
	t.Helper()
	db, err := openDatabase(name)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Fatalf("integrity check of %s: %q, %v", name, verdict, err)
	}
	var s state
	var count, sum int
	if err := db.QueryRow("SELECT generation, count, sum FROM totals").Scan(&s.Generation, &s.Count, &s.Sum); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow("SELECT count(*), coalesce(sum(amount), 0) FROM entries").Scan(&count, &sum); err != nil {
		t.Fatal(err)
	}
	if count != s.Count || sum != s.Sum {
		t.Fatalf("%s has parts of a transaction: %d entries with the sum %d, but its totals say %d and %d", name, count, sum, s.Count, s.Sum)
	}
	rows, err := db.Query("SELECT id || ' ' || amount || ' ' || hex(filler) FROM entries ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var entry string
		if err := rows.Scan(&entry); err != nil {
			t.Fatal(err)
		}
		s.Entries = append(s.Entries, entry)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

func snapshot(t *testing.T, source string) (state, database.Report) {
	t.Helper()
	target := filepath.Join(t.TempDir(), "copy.db")
	report, err := database.Copy(t.Context(), database.Options{Source: source, Target: target, Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	if got := digest.FromBytes(content).Encoded(); got != report.SHA256 || int64(len(content)) != report.Bytes {
		t.Errorf("%d bytes with the digest %s, but the report says %+v", len(content), got, report)
	}
	info, err := os.Lstat(target)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the copy has the mode %v: %v", info.Mode(), err)
	}
	s := readDatabase(t, target)
	if err := os.RemoveAll(filepath.Dir(target)); err != nil {
		t.Fatal(err)
	}
	return s, report
}

// journalModes are those of SQLite that keep a journal on disk, and what a report calls
// them.
var journalModes = map[string]string{"delete": "rollback", "truncate": "rollback", "persist": "rollback", "wal": "wal"}

// Whatever another process is writing, each copy is whole, and holds whole transactions
// and none that are older than in the copy before.
func TestSnapshotsWhileItIsWrittenTo(t *testing.T) {
	const snapshots = 220
	for _, mode := range []string{"delete", "wal"} {
		t.Run(mode, func(t *testing.T) {
			source := makeDatabase(t, mode)
			writer := startProgram(t, writerEnv+"="+source)
			var first, last state
			var held []int64
			for i := range snapshots {
				got, report := snapshot(t, source)
				if report.JournalMode != journalModes[mode] || report.RolledBack {
					t.Fatalf("report %+v", report)
				}
				if i == 0 {
					first = got
				}
				if got.Generation < last.Generation {
					t.Fatalf("generation %d came after %d", got.Generation, last.Generation)
				}
				last = got
				held = append(held, report.HeldMicroseconds)
			}
			if last.Generation <= first.Generation {
				t.Errorf("from generation %d to %d nothing was written", first.Generation, last.Generation)
			}
			if err := writer.in.Close(); err != nil {
				t.Fatal(err)
			}
			var did written
			if err := json.NewDecoder(writer.out).Decode(&did); err != nil {
				t.Fatal(err)
			}
			if err := writer.Wait(); err != nil {
				t.Fatal(err)
			}
			slices.Sort(held)
			t.Logf("%d transactions committed, %d found it busy; locks held for %d µs (median), %d µs (most)",
				did.Committed, did.Busy, held[len(held)/2], held[len(held)-1])
			if mode == "wal" && did.Busy > 0 {
				t.Errorf("%d transactions failed because of copies", did.Busy)
			}
			got, _ := snapshot(t, source)
			if diff := cmp.Diff(readDatabase(t, source), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A writer that was killed has left its journal, or a log that nobody has open.
func TestSnapshotAfterWriterDied(t *testing.T) {
	for mode, called := range journalModes {
		t.Run(mode, func(t *testing.T) {
			source := makeDatabase(t, mode)
			before := readDatabase(t, source)
			changed, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			writer := startProgram(t, writerEnv+"="+source, hangEnv+"=1")

			_, err = database.Copy(t.Context(), database.Options{Source: source, Target: source + ".copy", Wait: 50 * time.Millisecond})
			if !errors.Is(err, database.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("the process %d (", writer.Process.Pid)) {
				t.Errorf("while %d writes: %v", writer.Process.Pid, err)
			}
			if _, err := os.Lstat(source + ".copy"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a copy is there: %v", err)
			}

			writer.kill()
			now, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			if mode != "wal" && slices.Equal(now, changed) {
				t.Fatal("the writer has written nothing before it was killed, so that there is nothing to roll back")
			}
			got, report := snapshot(t, source)
			if report.JournalMode != called || report.RolledBack != (called == "rollback") {
				t.Errorf("report %+v", report)
			}
			if diff := cmp.Diff(before, got); diff != "" {
				t.Errorf("the copy (-before +after):\n%s", diff)
			}
			after, err := os.ReadFile(source)
			if err != nil || !slices.Equal(now, after) {
				t.Errorf("the database was written to: %v", err)
			}
			if mode == "wal" {
				// So it is after a restore without the shared memory.
				if err := os.Remove(source + "-shm"); err != nil {
					t.Fatal(err)
				}
				if got, _ := snapshot(t, source); !cmp.Equal(before, got) {
					t.Error("the copy is another one without the shared memory")
				}
			}
			// SQLite itself comes to the same.
			if diff := cmp.Diff(before, readDatabase(t, source)); diff != "" {
				t.Errorf("the database (-before +after):\n%s", diff)
			}
		})
	}
}

// What was committed is in the log alone when the writer dies before a checkpoint.
func TestSnapshotOfALogThatNobodyReads(t *testing.T) {
	source := makeDatabase(t, "wal")
	writer := startProgram(t, writerEnv+"="+source)
	writer.kill()
	wal, err := os.Stat(source + "-wal")
	if err != nil || wal.Size() == 0 {
		t.Fatalf("there is no log: %v", err)
	}
	got, _ := snapshot(t, source)
	if diff := cmp.Diff(readDatabase(t, source), got); diff != "" {
		t.Error(diff)
	}
}

// A helper that is killed leaves no lock, and no target that is not whole.
func TestSnapshotIsKilled(t *testing.T) {
	for _, mode := range []string{"delete", "wal"} {
		t.Run(mode, func(t *testing.T) {
			source := makeDatabase(t, mode)
			for range 12 {
				helper := startProgram(t, snapshotEnv+"="+source)
				time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond) // at any moment
				helper.kill()
				db, err := openDatabase(source)
				if err != nil {
					t.Fatal(err)
				}
				// Changing the mode needs the database for itself, and the log's locks.
				for _, statement := range []string{"PRAGMA journal_mode=delete", "BEGIN EXCLUSIVE", "COMMIT", "PRAGMA journal_mode=" + mode} {
					if _, err := db.Exec(statement); err != nil {
						t.Errorf("%s: %v", statement, err)
					}
				}
				if err := db.Close(); err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(readDatabase(t, source), readDatabase(t, source+".copy")); diff != "" {
					t.Error(diff)
				}
			}
			// What is left behind has names that clean knows.
			names, err := os.ReadDir(filepath.Dir(source))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if !strings.HasPrefix(name.Name(), filepath.Base(source)) && !strings.HasPrefix(name.Name(), ".boxlift-put-") {
					t.Errorf("%s is left", name.Name())
				}
			}
		})
	}
}

func TestSnapshotRefuses(t *testing.T) {
	source := makeDatabase(t, "wal")
	db, err := openDatabase(source) // so that the log is there
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := transact(db, 1, true); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.Symlink(source, at("link")),
		syscall.Mkfifo(at("pipe"), 0o600),
		os.Mkdir(at("dir"), 0o700),
		os.WriteFile(at("text"), []byte(strings.Repeat("text", 100)), 0o600),
		os.WriteFile(at("short"), []byte("SQLite format 3\x00"), 0o600),
		os.WriteFile(at("empty"), nil, 0o600),
		os.Link(source+"-wal", at("wal")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		source, target string
		most           int64
		want           string
	}{
		"missing":               {at("none"), at("copy"), 0, "no such file"},
		"relative":              {"liteboxd.db", at("copy"), 0, "expected an absolute path"},
		"link":                  {at("link"), at("copy"), 0, "expected a regular file"},
		"pipe":                  {at("pipe"), at("copy"), 0, "expected a regular file"},
		"directory":             {at("dir"), at("copy"), 0, "expected a regular file"},
		"text":                  {at("text"), at("copy"), 0, "not in SQLite's format"},
		"short":                 {at("short"), at("copy"), 0, "not in SQLite's format"},
		"too large":             {source, at("copy"), 1 << 16, "more than the 0 MiB that are allowed"},
		"target is a link":      {source, at("link"), 0, "no regular file"},
		"target is a pipe":      {source, at("pipe"), 0, "no regular file"},
		"target is a directory": {source, at("dir"), 0, "no regular file"},
		"target is itself":      {source, source, 0, "part of the database"},
		"target is its log":     {source, source + "-wal", 0, "part of the database"},
		"target is linked":      {source, at("wal"), 0, "part of the database"},
		"target's directory":    {source, at("none/copy"), 0, "no such file"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := database.Copy(t.Context(), database.Options{Source: test.source, Target: test.target, MaxBytes: test.most})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, expected %q", err, test.want)
			}
		})
	}
	names, err := filepath.Glob(at(".boxlift*"))
	if err != nil || len(names) > 0 {
		t.Errorf("%q are left: %v", names, err)
	}
	report, err := database.Copy(t.Context(), database.Options{Source: at("empty"), Target: at("copy")})
	if err != nil || report.Bytes != 0 || report.JournalMode != "rollback" {
		t.Errorf("an empty database: %+v, %v", report, err)
	}
}
