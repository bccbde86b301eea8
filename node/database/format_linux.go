package database

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	headerSize    = 100
	databaseMagic = "SQLite format 3\x00"
	pageSizeAt    = 16
	versionAt     = 19 // for reading: 1 with a rollback journal, 2 with a write-ahead log
	minPage       = 512
	maxPage       = 64 << 10
	journalMagic  = "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
	superTailSize = 16 // behind the name of a super-journal: its length, its checksum, the magic
)

// errFormat says that a file is not in SQLite's format.
var errFormat = errors.New("not in SQLite's format")

// header is what is needed of the first bytes of a database
// (https://sqlite.org/fileformat2.html).
type header struct {
	pageSize int64
	wal      bool
}

func (h header) journalMode() string {
	if h.wal {
		return "wal"
	}
	return "rollback"
}

func parseHeader(b []byte) (header, error) {
	if !bytes.HasPrefix(b, []byte(databaseMagic)) {
		return header{}, fmt.Errorf("%w: it does not begin as a database does", errFormat)
	}
	h := header{pageSize: int64(binary.BigEndian.Uint16(b[pageSizeAt:]))}
	if h.pageSize == 1 { // which is how that is written
		h.pageSize = maxPage
	}
	if h.pageSize < minPage || h.pageSize > maxPage || h.pageSize&(h.pageSize-1) != 0 {
		return header{}, fmt.Errorf("%w: its page size is %d", errFormat, h.pageSize)
	}
	read := b[versionAt]
	if read != 1 && read != 2 {
		return header{}, fmt.Errorf("%w: its version for reading is %d, and only 1 and 2 are known", errFormat, read)
	}
	h.wal = read == 2
	return h, nil
}

// errSuperJournal says that a transaction that did not end spans several databases.
var errSuperJournal = errors.New("its last writer died within a transaction over several databases")

// checkJournal refuses a journal that names another file: SQLite would look for that one,
// and delete it in the end.
func checkJournal(journal io.ReaderAt, size int64) error {
	if size <= superTailSize {
		return nil
	}
	tail := make([]byte, superTailSize)
	if _, err := journal.ReadAt(tail, size-superTailSize); err != nil {
		return fmt.Errorf("read the end of the journal: %w", err)
	}
	if bytes.HasSuffix(tail, []byte(journalMagic)) {
		return fmt.Errorf("%w; %s", errSuperJournal, mendHint)
	}
	return nil
}
