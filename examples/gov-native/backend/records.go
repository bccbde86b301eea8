package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// Bounds on records and on what is read of them at a time.
const (
	maxText  = 16 << 10  // bytes of a record's text
	maxLine  = 128 << 10 // bytes of a record in the file: JSON makes six bytes of one at most
	maxPage  = 256 << 10 // bytes of the file that one page is made of, beside the record that goes over it
	maxCount = 1000      // records of a page
)

// record is one entry.
type record struct {
	ID   string    `json:"id"`   // 26 letters and digits, of no other record
	Time time.Time `json:"time"` // when it was taken in, in UTC, by the clock of the host
	Host string    `json:"host"` // which program took it in
	Text string    `json:"text"`
}

// recordFile is the file with the records, one in a line, as JSON.
//
// All programs that share it write at its end, under a lock on the file itself, and each record is on the disk before
// the lock is given back. The lock is what the kernel of one host keeps (flock), which is enough because the volume is
// on one host: manifests/data.yaml asks for one that can be mounted on one node only. Without it, two writes would not
// be mixed either, but one could follow the half of another, and both might go past the limit.
//
// A power cut, or a full disk, can leave half a line. It stays, for nothing is ever taken out of the file: the next
// record begins on a line of its own, and readers count what is no record as damaged.
type recordFile struct {
	path  string
	limit int64
	// lost is set once the kernel could not bring to the disk what was written. It drops such data from memory and
	// says so once only, so that later writes would seem to succeed.
	lost atomic.Bool
}

var (
	errFull = errors.New("the file with the records has reached its limit")
	errLost = errors.New("what was written did not reach the disk: nothing more is written until the program starts anew")
)

const fileName = "records.jsonl"

func openRecords(folder string, limit int64) *recordFile {
	return &recordFile{path: filepath.Join(folder, fileName), limit: limit}
}

// add writes a record at the end of the file. After an error other than errFull it may be there or not.
func (f *recordFile) add(r record) (err error) {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(line) >= maxLine {
		return fmt.Errorf("a record of %d bytes: at most %d can be read again", len(line), maxLine-1)
	}
	if f.lost.Load() {
		return errLost
	}
	file, err := os.OpenFile(f.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	// Gives the lock back, too.
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := lock(file); err != nil {
		return err
	}
	return f.write(file, append(line, '\n'))
}

// write writes a line to the locked file.
func (f *recordFile) write(file *os.File, line []byte) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if size > 0 {
		var last [1]byte
		if _, err := file.ReadAt(last[:], size-1); err != nil {
			return fmt.Errorf("read the end of %s: %w", f.path, err)
		}
		if last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if size+int64(len(line)) > f.limit {
		return fmt.Errorf("%w: it has %d bytes of %d", errFull, size, f.limit)
	}
	if _, err := file.Write(line); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		f.lost.Store(true)
		return fmt.Errorf("%w: %w", errLost, err)
	}
	if size > 0 {
		return nil
	}
	// The file is new: its name has to be on the disk as well.
	folder, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// lock waits until no other program has the file. It is held for as long as one record takes.
func lock(file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		return nil
	}
}

// page is a part of the records.
type page struct {
	Records []record `json:"records"`
	Next    int64    `json:"next"`    // where the next page begins, whether or not there is a record yet
	Damaged int      `json:"damaged"` // lines in this part that are no records
}

// errPosition is for a position at which no line begins.
var errPosition = errors.New("no record begins there: take 0, or next of a page")

// page reads records from a position on: 0, or Next of another page.
func (f *recordFile) page(from int64, count int) (page, error) {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		if from != 0 {
			return page{}, errPosition
		}
		return page{Records: []record{}}, nil
	}
	if err != nil {
		return page{}, err
	}
	defer func() { _ = file.Close() }() // it was only read
	return readPage(file, from, count)
}

// readPage reads a page of whole lines. What is behind the last of them is being written, or was left by a program that
// was cut short.
func readPage(file io.ReadSeeker, from int64, count int) (page, error) {
	p := page{Records: []record{}, Next: from}
	lines := bufio.NewReaderSize(file, maxLine)
	if from > 0 {
		if _, err := file.Seek(from-1, io.SeekStart); err != nil {
			return page{}, errPosition
		}
		if before, err := lines.ReadByte(); errors.Is(err, io.EOF) || err == nil && before != '\n' {
			return page{}, errPosition
		} else if err != nil {
			return page{}, err
		}
	}
	for len(p.Records) < count && p.Next-from < maxPage {
		line, size, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return page{}, err
		}
		p.Next += size
		switch r, ok := parseRecord(line); {
		case ok:
			p.Records = append(p.Records, r)
		case len(bytes.TrimSpace(line)) > 0:
			p.Damaged++
		}
	}
	return p, nil
}

// readLine returns a whole line, and how many bytes of the file it takes: io.EOF when there is none. Of one that is too
// long, nothing is returned but its size.
func readLine(lines *bufio.Reader) (line []byte, size int64, err error) {
	for long := false; ; long = true {
		part, err := lines.ReadSlice('\n')
		size += int64(len(part))
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, 0, err
		case long:
			return []byte("too long"), size, nil
		}
		return part, size, nil
	}
}

func parseRecord(line []byte) (record, bool) {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	var r record
	if err := decoder.Decode(&r); err != nil || r.ID == "" || r.Time.IsZero() {
		return record{}, false
	}
	_, err := decoder.Token()
	return r, errors.Is(err, io.EOF)
}
