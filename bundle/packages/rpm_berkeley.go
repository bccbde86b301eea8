package packages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// Berkeley DB's hash, RPM's form up to RHEL 8 and SLES 12: pages of one size, of which
// those of the hash hold pairs of a key and a value. A value that is longer than a quarter of
// a page, as nearly all are, has pages of its own, each of which names the next
// (libdb 5.3, src/dbinc/db_page.h).
const (
	berkeleyMagic  = 0x061561
	berkeleyHeader = 26 // bytes of a page before its contents

	berkeleyHashUnsorted = 2 // kinds of pages; this one is of Berkeley DB before 4.6
	berkeleyOverflow     = 7
	berkeleyHash         = 13

	berkeleyOnPage  = 1 // kinds of items
	berkeleyOffPage = 3
)

// berkeley is an open database.
type berkeley struct {
	file  *os.File
	order binary.ByteOrder // that of the machine that wrote it
	size  int64
	page  int64 // bytes of a page
	// left is how many bytes there can still be in pages of values, each of which is a part
	// of one value.
	left int64
}

// eachBerkeley calls visit with the header of each package in a database in this form.
func eachBerkeley(file *os.File, visit func(header []byte) error) error {
	info, err := file.Stat()
	if err != nil {
		return &spoolError{err}
	}
	db := &berkeley{file: file, order: binary.LittleEndian, size: info.Size(), page: 512, left: info.Size()}
	meta := make([]byte, db.page)
	if err := db.read(meta, 0); err != nil {
		return err
	}
	if db.order.Uint32(meta[12:]) != berkeleyMagic {
		db.order = binary.BigEndian
	}
	if db.order.Uint32(meta[12:]) != berkeleyMagic {
		return errors.New("it is no hash of Berkeley DB")
	}
	db.page = int64(db.order.Uint32(meta[20:]))
	if db.page < 512 || db.page > 65536 || db.page&(db.page-1) != 0 {
		return fmt.Errorf("it has pages of %d bytes", db.page)
	}
	if meta[24] != 0 || meta[26] != 0 {
		return errors.New("its pages are encrypted, or have checksums, which RPM's do not")
	}
	page := make([]byte, db.page)
	for n := range int64(db.order.Uint32(meta[32:])) + 1 {
		if err := db.read(page, n*db.page); err != nil {
			return err
		}
		if kind := page[25]; kind != berkeleyHash && kind != berkeleyHashUnsorted {
			continue
		}
		if err := db.visitPage(page, visit); err != nil {
			return fmt.Errorf("page %d: %w", n, err)
		}
	}
	return nil
}

func (db *berkeley) read(b []byte, offset int64) error {
	return readSpooled(db.file, db.size, b, offset)
}

// visitPage visits the values on a page of the hash. Items lie one before the other from the
// page's end on.
func (db *berkeley) visitPage(page []byte, visit func(header []byte) error) error {
	items := int(db.order.Uint16(page[20:]))
	if items%2 != 0 || berkeleyHeader+2*items > len(page) {
		return errBerkeleyItems
	}
	end := len(page)
	var key []byte
	for i := range items {
		begin := int(db.order.Uint16(page[berkeleyHeader+2*i:]))
		if begin < berkeleyHeader+2*items || begin >= end {
			return errBerkeleyItems
		}
		item := page[begin:end]
		end = begin
		if i%2 == 0 {
			key = item
			continue
		}
		// Package 0 is none: its value is the highest number in use.
		if len(key) == 5 && key[0] == berkeleyOnPage && db.order.Uint32(key[1:]) == 0 {
			continue
		}
		header, err := db.value(item)
		if err != nil {
			return err
		}
		if err := visit(header); err != nil {
			return err
		}
	}
	return nil
}

var errBerkeleyItems = errors.New("its pairs of keys and values are damaged")

// value returns what an item stands for.
func (db *berkeley) value(item []byte) ([]byte, error) {
	switch {
	case item[0] == berkeleyOnPage:
		return item[1:], nil
	case item[0] != berkeleyOffPage || len(item) != 12:
		return nil, fmt.Errorf("it has a value of kind %d with %d bytes", item[0], len(item))
	}
	n, size := db.order.Uint32(item[4:]), int64(db.order.Uint32(item[8:]))
	if size > maxRPMHeader {
		return nil, tooLargeRPM(size)
	}
	if db.left -= size; db.left < 0 {
		return nil, errors.New("its values have more bytes than it has")
	}
	value := make([]byte, 0, size)
	page := make([]byte, db.page)
	for int64(len(value)) < size {
		if err := db.read(page, int64(n)*db.page); err != nil {
			return nil, err
		}
		// All pages of a value but the last are full.
		here := min(size-int64(len(value)), db.page-berkeleyHeader)
		if page[25] != berkeleyOverflow || int64(db.order.Uint16(page[22:])) != here {
			return nil, fmt.Errorf("page %d has none of the %d bytes of a value", n, here)
		}
		value = append(value, page[berkeleyHeader:][:here]...)
		n = db.order.Uint32(page[16:])
	}
	return value, nil
}
