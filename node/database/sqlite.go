package database

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// What SQLite keeps beside a database is brought into a copy of it here, after
// https://sqlite.org/fileformat2.html: the rollback journal of a writer that died, and
// the write-ahead log. Both are read as SQLite reads them after a crash; what does not
// have the right checksum was never part of a transaction that ended.

// sqliteFile is the copy.
type sqliteFile interface {
	io.WriterAt
	Truncate(size int64) error
}

// errSQLite says that a file is not in SQLite's format.
var errSQLite = errors.New("not in SQLite's format")

const (
	sqliteHeaderSize = 100
	sqliteMinPage    = 512
	sqliteMaxPage    = 64 << 10
	// sqliteLockOffset is where the bytes lie that only locks are for. No page with
	// content covers them.
	sqliteLockOffset = 1 << 30
)

var (
	sqliteMagic  = []byte("SQLite format 3\x00")
	journalMagic = []byte{0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7}
)

// sqliteHeader is what is needed of the first bytes of a database.
type sqliteHeader struct {
	pageSize int64
	wal      bool
}

func parseSQLiteHeader(b []byte) (sqliteHeader, error) {
	if len(b) < sqliteHeaderSize || !bytes.HasPrefix(b, sqliteMagic) {
		return sqliteHeader{}, fmt.Errorf("%w: it does not begin as a database does", errSQLite)
	}
	h := sqliteHeader{pageSize: int64(binary.BigEndian.Uint16(b[16:]))}
	if h.pageSize == 1 {
		h.pageSize = sqliteMaxPage
	}
	if !sqlitePageSize(h.pageSize) {
		return sqliteHeader{}, fmt.Errorf("%w: its page size is %d", errSQLite, h.pageSize)
	}
	read := b[19]
	if read != 1 && read != 2 {
		return sqliteHeader{}, fmt.Errorf("%w: its version for reading is %d, and only 1 and 2 are known", errSQLite, read)
	}
	h.wal = read == 2
	return h, nil
}

func sqlitePageSize(n int64) bool {
	return n >= sqliteMinPage && n <= sqliteMaxPage && n&(n-1) == 0
}

const (
	walHeaderSize   = 32
	walFrameSize    = 24 // of a frame's header
	walMagic        = 0x377f0682
	walMagicBig     = 0x377f0683
	walVersion      = 3007000
	journalFields   = len("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7") + 5*4
	journalTailSize = 16 // of the name of a super-journal: its length, its checksum, the magic
)

// walReader goes through the frames of a write-ahead log that are valid.
type walReader struct {
	wal       io.ReaderAt
	size      int64
	order     binary.ByteOrder
	pageSize  int64
	salts     []byte
	sum       [2]uint32
	offset    int64
	frame     []byte
	page      []byte
	number    int64
	committed int64 // the size of the database in pages, when the frame ends a transaction
}

// newWALReader returns nil for a log in which nothing is valid.
func newWALReader(wal io.ReaderAt, size int64, database sqliteHeader) (*walReader, error) {
	header := make([]byte, walHeaderSize)
	if size < walHeaderSize {
		return nil, nil //nolint:nilnil // no log
	}
	if _, err := wal.ReadAt(header, 0); err != nil {
		return nil, fmt.Errorf("read the head of the write-ahead log: %w", err)
	}
	w := &walReader{wal: wal, size: size, offset: walHeaderSize, salts: header[16:24]}
	switch binary.BigEndian.Uint32(header) {
	case walMagic:
		w.order = binary.LittleEndian
	case walMagicBig:
		w.order = binary.BigEndian
	default:
		return nil, nil //nolint:nilnil // as SQLite does: a log that was never finished
	}
	w.pageSize = int64(binary.BigEndian.Uint32(header[8:]))
	w.add(header[:24])
	if w.sum[0] != binary.BigEndian.Uint32(header[24:]) || w.sum[1] != binary.BigEndian.Uint32(header[28:]) {
		return nil, nil //nolint:nilnil // a head that was being written
	}
	if v := binary.BigEndian.Uint32(header[4:]); v != walVersion {
		return nil, fmt.Errorf("%w: the write-ahead log's version is %d, and only %d is known", errSQLite, v, walVersion)
	}
	if w.pageSize != database.pageSize {
		return nil, fmt.Errorf("%w: the write-ahead log's pages have %d bytes, the database's %d", errSQLite, w.pageSize, database.pageSize)
	}
	w.frame = make([]byte, walFrameSize+w.pageSize)
	w.page = w.frame[walFrameSize:]
	return w, nil
}

// add takes bytes, a multiple of eight, into the checksum.
func (w *walReader) add(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		w.sum[0] += w.order.Uint32(b) + w.sum[1]
		w.sum[1] += w.order.Uint32(b[4:]) + w.sum[0]
	}
}

// next reads a frame, and tells whether there is one more that is valid.
func (w *walReader) next() (bool, error) {
	if w.size-w.offset < int64(len(w.frame)) {
		return false, nil
	}
	_, err := w.wal.ReadAt(w.frame, w.offset)
	if errors.Is(err, io.EOF) { // it was cut meanwhile, behind all that counts
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the write-ahead log at %d: %w", w.offset, err)
	}
	w.number = int64(binary.BigEndian.Uint32(w.frame))
	w.committed = int64(binary.BigEndian.Uint32(w.frame[4:]))
	if w.number == 0 || !bytes.Equal(w.frame[8:16], w.salts) {
		return false, nil
	}
	w.add(w.frame[:8])
	w.add(w.page)
	if w.sum[0] != binary.BigEndian.Uint32(w.frame[16:]) || w.sum[1] != binary.BigEndian.Uint32(w.frame[20:]) {
		return false, nil
	}
	w.offset += int64(len(w.frame))
	return true, nil
}

// mergeWAL brings into a copy of a database what the transactions in its write-ahead log
// have changed. The log may be appended to meanwhile, but not begun anew. A copy that
// would be larger than most bytes is refused.
func mergeWAL(to sqliteFile, wal io.ReaderAt, size int64, database sqliteHeader, most int64) error {
	w, err := newWALReader(wal, size, database)
	if w == nil || err != nil {
		return err
	}
	var end, pages int64
	for {
		ok, err := w.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if w.committed > 0 {
			end, pages = w.offset, w.committed
		}
	}
	if end == 0 {
		return nil
	}
	if pages*w.pageSize > most {
		return tooLargeError(pages*w.pageSize, most)
	}
	// Only frames before end: the ones behind it belong to a transaction that has not ended.
	if w, err = newWALReader(wal, end, database); w == nil || err != nil {
		return errors.Join(errors.New("the write-ahead log was begun anew while it was read"), err)
	}
	for {
		ok, err := w.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if w.number > pages {
			continue
		}
		if _, err := to.WriteAt(w.page, (w.number-1)*w.pageSize); err != nil {
			return err
		}
	}
	if w.offset != end {
		return errors.New("the write-ahead log changed while it was read")
	}
	return to.Truncate(pages * w.pageSize)
}

// errSuperJournal says that a transaction that did not end spans several databases.
var errSuperJournal = errors.New("its last writer died within a transaction over several databases")

// rollBack undoes in a copy of a database what the transaction of a rollback journal has
// changed. It tells whether there was anything in the journal.
func rollBack(to sqliteFile, journal io.ReaderAt, size, most int64) (bool, error) {
	if tail := make([]byte, journalTailSize); size > int64(len(tail)) {
		if _, err := journal.ReadAt(tail, size-int64(len(tail))); err != nil {
			return false, fmt.Errorf("read the end of the journal: %w", err)
		}
		if bytes.Equal(tail[8:], journalMagic) {
			return false, errSuperJournal
		}
	}
	r := &journalReader{journal: journal, size: size}
	for first := true; ; first = false {
		ok, err := r.header(first)
		if err != nil {
			return false, err
		}
		if !ok {
			return !first, nil
		}
		if first {
			if r.pages*r.pageSize > most {
				return false, tooLargeError(r.pages*r.pageSize, most)
			}
			if err := to.Truncate(r.pages * r.pageSize); err != nil {
				return false, err
			}
		}
		if ok, err = r.records(to); err != nil || !ok {
			return true, err
		}
	}
}

// journalReader goes through a rollback journal: parts of a header and of so many records,
// each a page as it was.
type journalReader struct {
	journal    io.ReaderAt
	size       int64
	offset     int64
	count      int64
	sum        uint32
	pages      int64 // of the database before the transaction
	sectorSize int64
	pageSize   int64
	done       map[int64]struct{}
}

// header reads the header of the next part, and tells whether there is one.
func (r *journalReader) header(first bool) (bool, error) {
	if !first {
		r.offset = (r.offset + r.sectorSize - 1) / r.sectorSize * r.sectorSize
	}
	if r.size-r.offset < int64(journalFields) {
		return false, nil
	}
	b := make([]byte, journalFields)
	if _, err := r.journal.ReadAt(b, r.offset); err != nil {
		return false, fmt.Errorf("read the journal at %d: %w", r.offset, err)
	}
	if !bytes.HasPrefix(b, journalMagic) {
		return false, nil
	}
	number := func(i int) int64 { return int64(binary.BigEndian.Uint32(b[8+4*i:])) }
	r.count, r.sum = number(0), uint32(number(1))
	if first {
		r.pages, r.sectorSize, r.pageSize = number(2), number(3), number(4)
		if !sqlitePageSize(r.pageSize) || r.sectorSize < 32 || r.sectorSize > sqliteMaxPage || r.sectorSize&(r.sectorSize-1) != 0 {
			return false, fmt.Errorf("%w: the journal has sectors of %d and pages of %d bytes", errSQLite, r.sectorSize, r.pageSize)
		}
		r.done = make(map[int64]struct{})
	}
	r.offset += r.sectorSize
	// Without syncing, the number of records is not known before the end.
	if record := r.pageSize + 8; r.count == 1<<32-1 {
		r.count = max(0, (r.size-r.offset)/record)
	}
	return r.offset <= r.size, nil
}

// records writes the pages of a part back, and tells whether more may follow.
func (r *journalReader) records(to sqliteFile) (bool, error) {
	record := make([]byte, r.pageSize+8)
	page := record[4 : 4+r.pageSize]
	for range r.count {
		if r.size-r.offset < int64(len(record)) {
			return false, nil
		}
		if _, err := r.journal.ReadAt(record, r.offset); err != nil {
			return false, fmt.Errorf("read the journal at %d: %w", r.offset, err)
		}
		r.offset += int64(len(record))
		number := int64(binary.BigEndian.Uint32(record))
		if number == 0 || number == sqliteLockOffset/r.pageSize+1 {
			return false, nil
		}
		if _, ok := r.done[number]; ok || number > r.pages {
			continue
		}
		sum := r.sum
		for i := r.pageSize - 200; i > 0; i -= 200 {
			sum += uint32(page[i])
		}
		if sum != binary.BigEndian.Uint32(record[4+r.pageSize:]) {
			return false, nil
		}
		r.done[number] = struct{}{}
		if _, err := to.WriteAt(page, (number-1)*r.pageSize); err != nil {
			return false, err
		}
	}
	return true, nil
}

// errTooLarge says that a copy would be larger than it may be.
var errTooLarge = errors.New("it is too large")

func tooLargeError(size, most int64) error {
	return fmt.Errorf("%w: it has %d MiB, more than the %d MiB that are allowed", errTooLarge, size>>20, most>>20)
}
