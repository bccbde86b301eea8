//go:build linux

package database_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/binary"
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
	// copyEnv: it makes copies of the database that the value names, again and again.
	copyEnv = "BOXLIFT_TEST_SQLITE_COPY"
)

// copyPrograms are what the test binary is with these in its environment.
func copyPrograms() {
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
	if name, ok := os.LookupEnv(copyEnv); ok {
		for i := 0; ; i++ {
			if _, err := database.Copy(context.Background(),
				database.Options{Source: name, Target: name + ".copy"}); err != nil {
				run(err)
			}
			if i == 0 {
				fmt.Println("ready")
			}
		}
	}
}

func TestMain(m *testing.M) {
	copyPrograms()
	os.Exit(m.Run())
}

// openDatabase opens a database with one connection. The cache is so small that much is
// written before a transaction ends.
func openDatabase(name string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+name+
		"?_pragma=cache_size(10)&_pragma=wal_autocheckpoint(40)&_pragma=busy_timeout(0)")
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
		if _, err := tx.Exec("INSERT INTO entries (amount, filler) VALUES (?, randomblob(?))",
			rand.IntN(1000), rand.IntN(3000)); err != nil {
			return err
		}
	}
	for _, statement := range []string{
		"DELETE FROM entries WHERE id <= (SELECT max(id) FROM entries) - 300",
		"UPDATE totals SET generation = generation + 1, count = (SELECT count(*) FROM entries), " +
			"sum = (SELECT coalesce(sum(amount), 0) FROM entries)",
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
		t.Fatalf("%s has parts of a transaction: %d entries with the sum %d, but its totals say %d and %d", name, count, sum,
			s.Count, s.Sum)
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

func makeCopy(t *testing.T, source string) (state, database.Report) {
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

// files are the digests of all files in a directory.
func files(t *testing.T, dir string) map[string]digest.Digest {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]digest.Digest)
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = digest.FromBytes(content)
	}
	return all
}

// journalModes are those of SQLite that keep a journal on disk, and what a report calls
// them.
var journalModes = map[string]string{"delete": "rollback", "truncate": "rollback", "persist": "rollback", "wal": "wal"}

// Whatever another process is writing, each copy is whole, and holds whole transactions
// and none that are older than in the copy before.
func TestCopiesWhileItIsWrittenTo(t *testing.T) {
	const copies = 220
	for _, mode := range []string{"delete", "wal"} {
		t.Run(mode, func(t *testing.T) {
			source := makeDatabase(t, mode)
			writer := startProgram(t, writerEnv+"="+source)
			var first, last state
			var held []int64
			for i := range copies {
				got, report := makeCopy(t, source)
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
			got, _ := makeCopy(t, source)
			if diff := cmp.Diff(readDatabase(t, source), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A writer that was killed has left its journal, or a log that nobody has open.
func TestCopyAfterWriterDied(t *testing.T) {
	for mode, called := range journalModes {
		t.Run(mode, func(t *testing.T) {
			source := makeDatabase(t, mode)
			before := readDatabase(t, source)
			changed, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			writer := startProgram(t, writerEnv+"="+source, hangEnv+"=1")

			if mode == "wal" {
				// Nobody has to wait, and nothing is written: not where SQLite keeps what belongs
				// to the log either.
				untouched := files(t, filepath.Dir(source))
				got, report := makeCopy(t, source)
				if diff := cmp.Diff(before, got); diff != "" || report.JournalMode != called {
					t.Errorf("while it is written to: %+v\n%s", report, diff)
				}
				if diff := cmp.Diff(untouched, files(t, filepath.Dir(source))); diff != "" {
					t.Errorf("something was written beside the database: %s", diff)
				}
			} else {
				wait := 50 * time.Millisecond
				_, err = database.Copy(t.Context(), database.Options{Source: source, Target: source + ".copy", Wait: wait})
				by := fmt.Sprintf("the process %d (", writer.Process.Pid)
				if !errors.Is(err, database.ErrLocked) || !strings.Contains(err.Error(), by) {
					t.Errorf("while %d writes: %v", writer.Process.Pid, err)
				}
				if _, err := os.Lstat(source + ".copy"); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a copy is there: %v", err)
				}
			}

			writer.kill()
			now, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			if mode != "wal" && slices.Equal(now, changed) {
				t.Fatal("the writer has written nothing before it was killed, so that there is nothing to roll back")
			}
			untouched := files(t, filepath.Dir(source))
			got, report := makeCopy(t, source)
			if diff := cmp.Diff(untouched, files(t, filepath.Dir(source))); diff != "" {
				t.Errorf("something was written beside the database: %s", diff)
			}
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
				untouched := files(t, filepath.Dir(source))
				if got, _ := makeCopy(t, source); !cmp.Equal(before, got) {
					t.Error("the copy is another one without the shared memory")
				}
				if diff := cmp.Diff(untouched, files(t, filepath.Dir(source))); diff != "" {
					t.Errorf("something was written beside the database: %s", diff)
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
func TestCopyOfALogThatNobodyReads(t *testing.T) {
	source := makeDatabase(t, "wal")
	writer := startProgram(t, writerEnv+"="+source)
	writer.kill()
	wal, err := os.Stat(source + "-wal")
	if err != nil || wal.Size() == 0 {
		t.Fatalf("there is no log: %v", err)
	}
	got, _ := makeCopy(t, source)
	if diff := cmp.Diff(readDatabase(t, source), got); diff != "" {
		t.Error(diff)
	}
}

// A helper that is killed leaves no lock, and no target that is not whole.
func TestCopyIsKilled(t *testing.T) {
	for _, mode := range []string{"delete", "wal"} {
		t.Run(mode, func(t *testing.T) {
			source := makeDatabase(t, mode)
			for range 12 {
				helper := startProgram(t, copyEnv+"="+source)
				time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond) // at any moment
				helper.kill()
				db, err := openDatabase(source)
				if err != nil {
					t.Fatal(err)
				}
				// Changing the mode needs the database for itself, and the log's locks.
				for _, statement := range []string{"PRAGMA journal_mode=delete", "BEGIN EXCLUSIVE", "COMMIT",
					"PRAGMA journal_mode=" + mode} {
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

func TestCopyRefuses(t *testing.T) {
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

// What was closed in an orderly way has neither log nor shared memory, and gets none.
func TestCopyOfADatabaseThatNobodyHasOpen(t *testing.T) {
	for mode, called := range journalModes {
		source := makeDatabase(t, mode)
		untouched := files(t, filepath.Dir(source))
		got, report := makeCopy(t, source)
		if report.JournalMode != called || report.RolledBack {
			t.Errorf("%s: report %+v", mode, report)
		}
		if diff := cmp.Diff(untouched, files(t, filepath.Dir(source))); diff != "" {
			t.Errorf("%s: something was written beside the database: %s", mode, diff)
		}
		if diff := cmp.Diff(readDatabase(t, source), got); diff != "" {
			t.Errorf("%s: %s", mode, diff)
		}
	}
}

// Of a log that is damaged, the transactions before the damage count.
func TestCopyOfADamagedLog(t *testing.T) {
	source := makeDatabase(t, "wal")
	before := readDatabase(t, source)
	writer := startProgram(t, writerEnv+"="+source)
	writer.kill()
	if err := os.Remove(source + "-shm"); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(source + "-wal")
	if err != nil || len(log) < 100 {
		t.Fatalf("the log has %d bytes: %v", len(log), err)
	}
	for name, damaged := range map[string][]byte{
		"no head":         nil,
		"part of a head":  log[:20],
		"a head alone":    log[:32],
		"overwritten":     append(make([]byte, 32), log[32:]...),
		"cut in a frame":  log[:len(log)-1],
		"a byte is wrong": slices.Concat(log[:60], []byte{log[60] ^ 1}, log[61:]),
	} {
		if err := os.WriteFile(source+"-wal", damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		got, _ := makeCopy(t, source) // it proves that it has whole transactions
		if name != "cut in a frame" && got.Generation < before.Generation {
			t.Errorf("%s: generation %d, but %d was there before the log", name, got.Generation, before.Generation)
		}
	}
}

// A journal that names another file is not SQLite's to follow: it would delete that one.
func TestCopyOfAJournalThatNamesAnotherFile(t *testing.T) {
	source := makeDatabase(t, "delete")
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	writer := startProgram(t, writerEnv+"="+source, hangEnv+"=1")
	writer.kill()
	journal, err := os.ReadFile(source + "-journal")
	if err != nil || len(journal) == 0 {
		t.Fatalf("there is no journal: %v", err)
	}
	var sum uint32
	for _, b := range []byte(victim) {
		sum += uint32(b)
	}
	// The page that only locks lie on, the name, its length, its checksum, and the magic.
	tail := binary.BigEndian.AppendUint32(nil, 1<<30/4096+1)
	tail = append(tail, victim...)
	tail = binary.BigEndian.AppendUint32(tail, uint32(len(victim)))
	tail = binary.BigEndian.AppendUint32(tail, sum)
	tail = append(tail, journal[:8]...)
	if err := os.WriteFile(source+"-journal", append(journal, tail...), 0o600); err != nil {
		t.Fatal(err)
	}
	untouched := files(t, filepath.Dir(source))
	_, err = database.Copy(t.Context(), database.Options{Source: source, Target: filepath.Join(t.TempDir(), "copy")})
	if err == nil || !strings.Contains(err.Error(), "a transaction over several databases") {
		t.Errorf("it says %v", err)
	}
	if diff := cmp.Diff(untouched, files(t, filepath.Dir(source))); diff != "" {
		t.Errorf("something was written beside the database: %s", diff)
	}
	if _, err := os.Lstat(victim); err != nil {
		t.Errorf("the file that the journal names: %v", err)
	}
}

// A context that ends is an end, and leaves nothing.
func TestCopyEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("it is over")
	cancel(over)
	for mode := range journalModes {
		source := makeDatabase(t, mode)
		dir := t.TempDir()
		_, err := database.Copy(ctx, database.Options{Source: source, Target: filepath.Join(dir, "copy")})
		if !errors.Is(err, over) && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", mode, err)
		}
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("%s: %v is left", mode, left)
		}
	}
}

// FuzzCopy lets a database and what lies beside it be anything. A copy stays within its
// bound, and nothing else is written.
func FuzzCopy(f *testing.F) {
	sample := func(mode string) (content, beside []byte) {
		dir := f.TempDir()
		name := filepath.Join(dir, "db")
		db, err := openDatabase(name)
		if err != nil {
			f.Fatal(err)
		}
		defer db.Close()
		for _, statement := range []string{
			"PRAGMA page_size=512", "PRAGMA journal_mode=" + mode, "CREATE TABLE a (b)", "INSERT INTO a VALUES (1)",
		} {
			if _, err := db.Exec(statement); err != nil {
				f.Fatal(err)
			}
		}
		if content, err = os.ReadFile(name); err != nil {
			f.Fatal(err)
		}
		suffix := map[string]string{"wal": "-wal", "persist": "-journal"}[mode]
		if beside, err = os.ReadFile(name + suffix); err != nil {
			f.Fatal(err)
		}
		return content, beside
	}
	content, log := sample("wal")
	f.Add(content, log, false)
	f.Add(content, log[:len(log)-1], false)
	content, journal := sample("persist")
	f.Add(content, journal, true)
	f.Add(content, append([]byte("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7\xff\xff\xff\xff"), journal[12:]...), true)
	f.Add(content[:100], []byte{}, true)
	f.Add([]byte("SQLite format 3\x00"), []byte{}, true)
	f.Fuzz(func(t *testing.T, content, beside []byte, rollback bool) {
		const most = 1 << 20
		dir, to := t.TempDir(), t.TempDir()
		suffix := "-wal"
		if rollback {
			suffix = "-journal"
		}
		for name, b := range map[string][]byte{"db": content, "db" + suffix: beside} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		untouched := files(t, dir)
		report, err := database.Copy(t.Context(), database.Options{
			Source: filepath.Join(dir, "db"), Target: filepath.Join(to, "copy"), MaxBytes: most, Wait: time.Millisecond,
		})
		if diff := cmp.Diff(untouched, files(t, dir)); diff != "" {
			t.Errorf("something was written beside the database: %s", diff)
		}
		want := map[string]digest.Digest{}
		if err == nil {
			want["copy"] = digest.NewDigestFromEncoded(digest.SHA256, report.SHA256)
		}
		if diff := cmp.Diff(want, files(t, to)); diff != "" {
			t.Errorf("%v, and in the folder of the copy: %s", err, diff)
		}
		if report.Bytes > most {
			t.Errorf("the copy has %d bytes", report.Bytes)
		}
	})
}
